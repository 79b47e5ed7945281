"""Whatever raises in logging costs records, and nothing of what the engine has to do (design §1)."""

from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gasoline_es
from gasoline_es import ActivityContext, WorkflowContext, activity, workflow
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import Fenced, LogError, LogFailed, NoSpace, WorkflowFailed
from tests.engine.harness import World, soon
from tests.engine.workflows import echo

PACKAGE = Path(gasoline_es.__file__).parent


@pytest.fixture(
    params=[ValueError("broken"), asyncio.CancelledError(), GeneratorExit()], ids=lambda one: type(one).__name__
)
def raising(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let a filter raise at every record of the engine's; gives the messages at which it did."""
    met: list[str] = []

    def refuse(record: logging.LogRecord) -> bool:
        if record.name.startswith("gasoline_es.runtime"):
            met.append(record.msg)
            raise request.param
        return True

    handler = logging.NullHandler()
    handler.handle = refuse  # type: ignore[method-assign]  # what a handler of a database does when that is away
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    monkeypatch.setattr(EngineLog, "told", True)
    yield met
    root.removeHandler(handler)
    root.setLevel(level)


@activity(max_attempts=1)
async def refuse(ctx: ActivityContext, number: int) -> int:
    raise ValueError("no")


@workflow
async def refused(ctx: WorkflowContext, number: int) -> int:
    return await ctx.activity(refuse, number)


async def test_workflows_die_and_others_go_on(world: World, raising: list[str]) -> None:
    process = await world.worker(refused, echo)
    handle = await process.gasoline.dispatch(refused, 1)
    with pytest.raises(WorkflowFailed):
        await soon(handle.output())
    assert await soon((await process.gasoline.dispatch(echo, "2")).output()) == "2"
    assert "workflow %s %s died: %s" in raising
    assert process.node.failure is None


async def test_append_that_found_no_space_is_tried_again(world: World, raising: list[str]) -> None:
    process = await world.worker(echo)
    process.log.script = {2: NoSpace}
    handle = await process.gasoline.dispatch(echo, "2")
    assert await soon(handle.output()) == "2"
    assert "an append was not recorded; trying again" in raising


async def test_partition_that_another_took_is_let_go_of_and_the_call_goes_on(world: World, raising: list[str]) -> None:
    process = await world.worker(echo)
    process.log.script = {1: Fenced}
    assert await soon((await process.gasoline.dispatch(echo, "2")).output()) == "2"
    assert "partition %d is not owned any more: %s" in raising


async def test_log_that_fails_ends_the_process_part_in_it(world: World, raising: list[str]) -> None:
    process = await world.worker(echo)
    process.log.script = {1: LogFailed}
    for _ in range(2):
        with pytest.raises(LogError):
            await soon(process.gasoline.dispatch(echo, "2"))
    assert raising
    assert process.node.failed.is_set()
    assert process.node.partitions == {}


async def test_engine_that_broke_takes_no_further_part(world: World, raising: list[str]) -> None:
    process = await world.worker(echo)

    def breaks(sections: object) -> None:
        raise ZeroDivisionError

    process.log.append = breaks  # type: ignore[method-assign, assignment]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(LogError):
        await soon(process.gasoline.dispatch(echo, "2"))
    await soon(process.node.failed.wait())
    assert "the log broke" in raising


def test_first_record_that_is_lost_is_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineLog, "told", False)
    logger, log = logging.getLogger("gasoline_es.lost"), EngineLog("gasoline_es.lost")

    def refuse(record: object) -> bool:
        raise ConnectionError("away")

    logger.addFilter(refuse)
    try:
        calls: list[Callable[..., None]] = [log.error, log.warning, log.critical, log.exception, log.info]
        for say in calls:
            say("%s was lost", "it")
    finally:
        logger.removeFilter(refuse)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "logging raised ConnectionError at '%s was lost'" in told


def test_interrupts_pass() -> None:
    logger = logging.getLogger("gasoline_es.interrupted")

    def refuse(record: object) -> bool:
        raise KeyboardInterrupt

    logger.addFilter(refuse)
    with pytest.raises(KeyboardInterrupt):
        EngineLog("gasoline_es.interrupted").error("x")
    logger.removeFilter(refuse)


def test_record_is_of_whoever_made_it(caplog: pytest.LogCaptureFixture) -> None:
    EngineLog("gasoline_es.placed").warning("here %d", 1, extra={"partition": 3})
    (record,) = caplog.records
    assert (record.filename, record.funcName) == (Path(__file__).name, "test_record_is_of_whoever_made_it")
    assert (record.getMessage(), record.__dict__["partition"]) == ("here 1", 3)


def test_the_engine_logs_in_one_way() -> None:
    for part in ("runtime", "log"):
        # The drivers of Kafka hand their clients the loggers that these write to.
        for file in sorted(one for one in (PACKAGE / part).rglob("*.py") if "drivers" not in one.parts):
            imported = {
                name.name
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Import)
                for name in node.names
            }
            assert "logging" not in imported, f"{file}: log through gasoline_es.engine_log"
