"""Which workflow a log record is about: the library's own, and those of bodies, activities and operations (style.md §10)."""

from __future__ import annotations

import ast
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import (
    ActivityContext,
    Break,
    NotRetryable,
    OperationContext,
    Signal,
    WorkflowContext,
    WorkflowLogFilter,
    activity,
    operation,
    workflow,
)
from gasoline_es.errors import NoSpace
from tests.engine.harness import Process, World, soon

ROOT = Path(__file__).resolve().parents[2]
mine = logging.getLogger("shop")


class Kept(logging.Handler):
    """Keeps what passes its filters."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.addFilter(WorkflowLogFilter(**settings))

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records if record.name == "shop"]

    def fields(self, line: str) -> dict[str, Any]:
        """What the one record with this message has of what is ours."""
        (record,) = (record for record in self.records if record.getMessage() == line)
        names = ("workflow_id", "workflow", "location", "activity", "attempt", "operation", "replayed")
        return {name: getattr(record, name) for name in names if hasattr(record, name)}

    def named(self, words: str) -> Any:
        """The one record of the library whose message has these words."""
        (record,) = (record for record in self.records if words in record.getMessage())
        return record


@pytest.fixture
def kept() -> Iterator[Kept]:
    yield from keeping(Kept())


def keeping(handler: Kept) -> Iterator[Kept]:
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.setLevel(level)
    root.removeHandler(handler)


class Word(Signal):
    text: str = ""


@operation
async def look(ctx: OperationContext, _: None) -> None:
    mine.info("in an operation")


@operation
def look_in_a_thread(ctx: OperationContext, _: None) -> None:
    mine.info("in an operation's thread")


@activity
async def on_the_loop(ctx: ActivityContext, _: None) -> None:
    mine.info("in an activity")
    await ctx.operation(look, None)
    await ctx.operation(look_in_a_thread, None)
    mine.info("in the activity again", extra={"location": "my own"})


@activity
def in_a_thread(ctx: ActivityContext, _: None) -> None:
    mine.info("in a thread, attempt %d", ctx.attempt)
    if ctx.attempt == 1:
        raise ValueError("once more")


@workflow
async def told(ctx: WorkflowContext, _: None) -> None:
    mine.info("begins")
    await ctx.activity(on_the_loop, None)
    mine.info("between")
    await ctx.activity(in_a_thread, None)

    async def beside(ctx: WorkflowContext) -> None:
        await ctx.sleep(0)
        mine.info("on a branch")

    await ctx.join(ctx.closure(beside))


async def test_record_says_which_workflow_activity_or_operation_made_it(world: World, kept: Kept) -> None:
    process = await world.worker(told)
    mine.info("elsewhere")
    handle = await process.gasoline.dispatch(told, None)
    await process.until(handle.id, lambda events: any(one.data.TYPE == "activity.failed" for one in events))
    await process.advance(600)
    await soon(handle.output())
    workflow = {"workflow_id": handle.id, "workflow": "told"}
    first = {**workflow, "location": "{1}"}
    assert kept.fields("elsewhere") == {}
    assert kept.fields("begins") == workflow
    assert kept.fields("in an activity") == {**first, "activity": "on_the_loop", "attempt": 1}
    assert kept.fields("in an operation") == {**workflow, "operation": "look"}
    assert kept.fields("in an operation's thread") == {**workflow, "operation": "look_in_a_thread"}
    assert kept.fields("in the activity again") == {
        **workflow,
        "location": "my own",
        "activity": "on_the_loop",
        "attempt": 1,
    }
    assert kept.fields("between") == first
    for attempt in (1, 2):
        made = {**workflow, "location": "{2}", "activity": "in_a_thread", "attempt": attempt}
        assert kept.fields(f"in a thread, attempt {attempt}") == made
    assert kept.fields("on a branch") == {**workflow, "location": "{3, 1}"}


# --- replay -----------------------------------------------------------------------------------------------------------


@workflow
async def talk(ctx: WorkflowContext, count: int) -> None:
    mine.info("begins")
    for number in range(count):
        word = await ctx.listen(Word)
        mine.info("heard %d: %s", number, word.text)
    mine.info("ends")


async def say(process: Process, workflow_id: str, *words: str) -> None:
    for text in words:
        await process.gasoline.handle(workflow_id, talk).signal(Word(text=text))
        await process.settle()


async def test_line_of_a_body_is_written_once_although_it_leaves_memory_and_is_replayed(
    any_world: World, kept: Kept
) -> None:
    process = await any_world.worker(talk)
    handle = await process.gasoline.dispatch(talk, 3)
    await say(process, handle.id, "a")
    await process.evict()
    assert not process.in_memory(handle.id)
    await say(process, handle.id, "b")
    await process.evict()
    await process.stop()
    process = await any_world.worker(talk)
    await say(process, handle.id, "c")
    await soon(process.gasoline.handle(handle.id, talk).output())
    assert kept.lines == ["begins", "heard 0: a", "heard 1: b", "heard 2: c", "ends"]


async def test_replayed_lines_are_marked_for_whoever_wants_them(world: World) -> None:
    for kept in keeping(Kept(replayed=True)):
        process = await world.worker(talk)
        handle = await process.gasoline.dispatch(talk, 2)
        await say(process, handle.id, "a")
        await process.evict()
        await say(process, handle.id, "b")
        await soon(handle.output())
        shown = [(record.getMessage(), hasattr(record, "replayed")) for record in kept.records if record.name == "shop"]
        first = [("begins", False), ("heard 0: a", False)]
        again = [("begins", True), ("heard 0: a", True)]
        assert shown == [*first, *again, ("heard 1: b", False), ("ends", False)]


async def test_after_a_kill_a_line_is_written_again_rather_than_never(world: World, kept: Kept) -> None:
    """The signal's consumption is durable, but the process is killed before it can hear of that."""
    process = await world.worker(talk)
    handle = await process.gasoline.dispatch(talk, 2)
    await process.settle()
    await say(process, handle.id, "a")
    process.log.script[process.log.count + 2] = "unanswered"  # the signal is received, then consumed
    await process.live(say(process, handle.id, "b"))
    await process.kill()
    again = await world.worker(talk)
    await soon(again.gasoline.handle(handle.id, talk).output())
    # "begins" is proven by the first word, "heard 0" by the second; that "heard 1" was written nothing proves.
    assert kept.lines == ["begins", "heard 0: a", "heard 1: b", "ends"]


async def listen_on(ctx: WorkflowContext, count: list[int]) -> Break[int] | None:
    count[0] += 1
    mine.info("listens for number %d", count[0])
    word = await ctx.listen(Word)
    mine.info("%d is %s", count[0], word.text)
    return Break(count[0]) if word.text == "over" else None


@workflow
async def loop(ctx: WorkflowContext, _: None) -> int:
    mine.info("begins")
    return await ctx.loop(listen_on, [0], commit_interval=2)


async def test_iterations_write_each_line_once_also_where_the_loop_has_forgotten_others(
    any_world: World, kept: Kept
) -> None:
    process = await any_world.worker(loop)
    handle = await process.gasoline.dispatch(loop, None)
    for number in range(1, 6):
        await say(process, handle.id, f"word {number}")
        if number % 2:
            await process.evict()
        else:
            await process.stop()  # in memory still, and not suspended: what is not proven comes again
            process = await any_world.worker(loop)
    await say(process, handle.id, "over")
    assert await soon(process.gasoline.handle(handle.id, loop).output()) == 6
    wanted = ["begins"]
    for number in range(1, 7):
        wanted += [f"listens for number {number}", f"{number} is {'over' if number == 6 else f'word {number}'}"]
    assert list(dict.fromkeys(kept.lines)) == wanted
    twice = [line for line in wanted if kept.lines.count(line) > 1]
    # Of what a restart came upon, only what stands behind the last thing recorded.
    assert twice == ["listens for number 3", "listens for number 5"]


@workflow
async def aside(ctx: WorkflowContext, _: None) -> None:
    async def branch(ctx: WorkflowContext, name: str) -> None:
        mine.info("%s begins", name)
        word = await ctx.listen(Word)
        mine.info("%s heard %s", name, word.text)
        await ctx.sleep(1)
        mine.info("%s slept", name)

    async def left(ctx: WorkflowContext) -> None:
        await branch(ctx, "left")

    async def right(ctx: WorkflowContext) -> None:
        await branch(ctx, "right")

    await ctx.join(ctx.closure(left), ctx.closure(right))
    mine.info("both")


async def test_branches_side_by_side_write_each_line_once(any_world: World, kept: Kept) -> None:
    process = await any_world.worker(aside)
    handle = await process.gasoline.dispatch(aside, None)
    await say(process, handle.id, "a")
    await process.evict()
    await process.advance(60)
    await say(process, handle.id, "b")
    await process.evict()
    await process.advance(60)
    await soon(handle.output())
    assert len(kept.lines) == len(set(kept.lines)) == 7
    assert kept.lines[-1] == "both"


# --- the library's own ------------------------------------------------------------------------------------------------


@activity(max_attempts=1)
async def refuse(ctx: ActivityContext, _: None) -> None:
    mine.info("before it fails")
    raise NotRetryable("no", threading.Lock())


@workflow
async def doomed(ctx: WorkflowContext, _: None) -> None:
    await ctx.activity(refuse, None)


async def test_what_the_library_says_of_a_workflow_names_it(world: World, kept: Kept) -> None:
    process = await world.worker(doomed)
    handle = await process.gasoline.dispatch(doomed, None)
    await process.status(handle.id, "dead")
    partition = process.node.index_of(handle.id)
    for words in ("died", "failed in attempt", "could not be kept"):
        record = kept.named(words)
        assert (record.workflow_id, record.workflow, record.partition) == (handle.id, "doomed", partition)
    failed = kept.named("failed in attempt")
    assert (failed.location, failed.activity, failed.attempt, failed.error_type) == ("{1}", "refuse", 1, "NotRetryable")
    died = kept.named("died")
    assert (died.error_type, died.error) == ("ActivityFailed", died.error)
    assert died.location == "{1}"
    assert not hasattr(died, "activity"), "it is written where the attempt ended, but it is not about that"


async def test_what_the_library_says_of_a_partition_names_it(world: World, kept: Kept) -> None:
    process = await world.worker(doomed)
    process.log.always = NoSpace
    late = process.gasoline.dispatch(doomed, None)
    with pytest.raises(NoSpace):
        await soon(late)
    record = kept.named("an append was not recorded")
    assert record.partition in range(16)
    assert "injected" in record.error
    process.log.always = None


CALLS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
LOGGERS = frozenset({"_log", "_logger"})


def test_every_log_call_has_a_constant_message_and_its_fields_in_extra() -> None:
    """style.md §10."""
    wrong: list[str] = []
    count = 0
    for package in ("gasoline_es", "projections"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                if node.func.attr not in CALLS or getattr(node.func.value, "id", None) not in LOGGERS:
                    continue
                count += 1
                constant = isinstance(node.args[0], ast.Constant)
                told = len(node.args) == 1 or any(keyword.arg == "extra" for keyword in node.keywords)
                if not (constant and told):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert wrong == []
    assert count > 20
