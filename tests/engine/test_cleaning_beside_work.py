"""A worker that cleans the log now and then, beside its work (design §8, decision 0050)."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gasoline_es.errors import NoSpace
from gasoline_es.log.file.log import FileLog, open_file_log
from gasoline_es.log.port import Compaction, Problem
from gasoline_es.metrics import METRICS
from gasoline_es.runtime import cleaning
from gasoline_es.runtime.cleaning import Cleaning
from gasoline_es.runtime.snapshot import snapshot
from tests.engine.conftest import kafka_world
from tests.engine.harness import Process, World, soon, when
from tests.engine.subprocesses import program
from tests.engine.test_pruning import AGE_S, invoice, ledger_all, prune, ran, worker
from tests.engine.workflows import echo


async def with_pruned(world: World, count: int = 20) -> int:
    """Leave a log of which a great part can go: the workflows of a worker that has ended. Returns how long its files are."""
    first = await worker(world)
    for number in range(count):
        await ran(first, ledger_all if number % 2 else invoice, f"seat {number}" * 50)
    await first.stop()
    second = await worker(world)
    await second.advance(AGE_S + 1)
    assert await prune(second) == count
    await second.stop()
    return length(world)


def length(world: World) -> int:
    directory = Path(world.url.removeprefix("file:"))
    return sum(path.stat().st_size for path in directory.glob("segments/*.jsonl"))


async def cleans(world: World, every: float | timedelta = 3_600.0) -> tuple[Process, Cleaning]:
    process = await worker(world, compact_every=every)
    assert process.worker is not None
    assert process.worker.cleaning is not None
    return process, process.worker.cleaning


def problems(process: Process) -> list[Problem]:
    return [found for found in process.log.verify() if isinstance(found, Problem)]


def metric(process: Process, name: str) -> Any:
    (described,) = (one for one in METRICS if one.name == f"gasoline_{name}")
    return described.read(snapshot(process.node))


async def test_what_nobody_needs_leaves_the_disk_while_workflows_run_and_it_is_said_and_counted(
    file_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """design §8: of what was pruned nothing is left in the files; what runs meanwhile runs, and the log is sound."""
    before = await with_pruned(file_world)
    process, background = await cleans(file_world)
    assert metric(process, "log_cleaned_timestamp_seconds") == 0
    with caplog.at_level(logging.INFO, cleaning.__name__):
        done, answer = await soon(asyncio.gather(background.clean(), ran(process, echo, "meanwhile")))
    assert done, "it comes again"
    assert await answer.output() == "meanwhile"
    freed = metric(process, "log_cleaned_bytes_total")
    assert freed > before / 5
    assert metric(process, "log_cleaned_timestamp_seconds") == file_world.clock.now_us() / 1e6
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.__dict__["bytes"] == freed
    assert record.__dict__["records"] > 40, "commands, events, positions"
    assert problems(process) == []
    caplog.clear()
    with caplog.at_level(logging.INFO, cleaning.__name__):
        assert await soon(background.clean())
    assert caplog.records == [], "nothing goes, nothing is said"
    assert metric(process, "log_cleaned_bytes_total") == freed


async def test_it_comes_by_itself_and_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await world.process()
    turns: list[int] = []
    twice = asyncio.Event()

    async def counted(*_: Any, **options: Any) -> Compaction:
        turns.append(1)
        assert options == {"bytes_per_s": cleaning.BYTES_PER_S, "gain_min": cleaning.GAIN_MIN}
        if len(turns) == 2:
            twice.set()
        return Compaction()

    monkeypatch.setattr(process.log, "compact", counted)
    await process.work(echo, compact_every=timedelta(milliseconds=1))
    await soon(twice.wait())


async def test_nobody_cleans_unless_asked(world: World) -> None:
    process = await worker(world)
    assert process.worker is not None
    assert process.worker.cleaning is None
    with pytest.raises(ValueError, match="compact_every must be longer than nothing"):
        process.gasoline.worker([echo], compact_every=0)
    with pytest.raises(ValueError, match="compact_every must not be negative"):
        process.gasoline.worker([echo], compact_every=-1)


async def test_while_another_process_cleans_a_turn_is_passed(
    file_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """One at a time, by a lock of the kernel (0043): no error, no word, and the next turn is as any other."""
    before = await with_pruned(file_world)
    process, background = await cleans(file_world)
    directory = file_world.url.removeprefix("file:")
    with open(f"{directory}/compaction.lock", "w") as lock, caplog.at_level(logging.INFO, cleaning.__name__):
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert await soon(background.clean()), "it comes again"
        assert caplog.records == []
        assert metric(process, "log_cleaned_timestamp_seconds") == 0
    assert length(file_world) >= before
    assert await soon(background.clean())
    assert metric(process, "log_cleaned_bytes_total") > 0


async def test_a_worker_that_stops_does_not_wait_for_it(file_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At one byte a second the cleaning would take hours."""
    before = await with_pruned(file_world)
    monkeypatch.setattr(cleaning, "BYTES_PER_S", 1.0)
    process, _ = await cleans(file_world, 0.001)
    log = process.log.inner
    assert isinstance(log, FileLog)
    await when(lambda: log._cleaning is not None)
    assert process.worker is not None
    await soon(process.worker.stop())
    assert log._cleaning is None
    assert metric(process, "log_cleaned_timestamp_seconds") == 0, "it did not come to its end"
    assert length(file_world) >= before
    assert problems(process) == []


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (NoSpace("no room for segment 3"), logging.WARNING),
        (OSError(13, "compaction.lock"), logging.WARNING),
        (ValueError("an event that nobody can read"), logging.ERROR),
    ],
)
async def test_what_fails_is_said_and_tried_again_and_the_worker_goes_on(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    level: int,
) -> None:
    process, background = await cleans(world)

    async def fails(*_: Any, **__: Any) -> Compaction:
        raise error

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, cleaning.__name__):
        patch.setattr(process.log, "compact", fails)
        assert await background.clean(), "it comes again"
    (record,) = caplog.records
    assert record.levelno == level
    assert str(error) in record.__dict__["error"]
    assert await (await ran(process, echo, "on")).output() == "on"
    assert await background.clean()
    assert metric(process, "log_cleaned_timestamp_seconds") > 0


async def test_once_the_log_has_failed_it_ends_without_a_word(world: World, caplog: pytest.LogCaptureFixture) -> None:
    process, background = await cleans(world)
    await process.stop()
    with caplog.at_level(logging.INFO, cleaning.__name__):
        assert not await background.clean()
    assert caplog.records == []


async def test_on_kafka_it_says_that_the_brokers_clean_and_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same program runs on both by another URL: it is not refused there."""
    world = kafka_world(monkeypatch, tmp_path)
    process, background = await cleans(world)
    with caplog.at_level(logging.INFO, cleaning.__name__):
        assert not await background.clean()
    assert [record.getMessage() for record in caplog.records] == [
        f"compact_every does nothing on {process.log.url}: its brokers clean it by themselves"
    ]
    await world.end()


@pytest.mark.parametrize("moment", ["made", "written", "replaced"])
async def test_a_worker_killed_during_it_leaves_a_log_that_is_sound_and_can_be_cleaned(
    file_world: World, moment: str
) -> None:
    """required.md B05, filelog.md §5: by SIGKILL, at what the cleaner does to a segment."""
    before = await with_pruned(file_world)
    async with program("cleaning-worker", file_world.url, moment) as process:
        assert await soon(process.wait()) == -signal.SIGKILL
    log = await open_file_log(file_world.url.removeprefix("file:"), readonly=True)
    assert [found for found in log.verify() if isinstance(found, Problem)] == []
    await log.close()
    last, background = await cleans(file_world)
    assert await soon(background.clean())
    assert length(file_world) < before
    assert problems(last) == []
    assert {info.status async for info in last.gasoline.list()} == {"complete"}
    assert await (await ran(last, echo, "on")).output() == "on"
