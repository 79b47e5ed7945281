"""A history that is read while its workflow is pruned and the log cleaned under it is of one moment (decision 0045)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gasoline_es import Break, Gasoline, Prune, WorkflowContext, WorkflowNotFound, workflow
from gasoline_es.clock import VirtualClock
from gasoline_es.core.retention import Retention
from gasoline_es.errors import LogError
from gasoline_es.log.file.log import FileLog
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Record
from gasoline_es.persistence.history_reader import open_histories
from gasoline_es.testing.log_contract import EVENTS
from projections import partition_fold
from projections.building import Progress, rebuild
from projections.comparing import verify
from projections.stores.opening import open_store
from projections.workflows import Workflows
from tests.cli.terminal import invoke
from tests.engine.workflows import Note

AGE_S = 600.0
DAY_US = 86_400 * 10**6


class Taken(BaseModel):
    count: int = 0


@workflow
async def all_goes(ctx: WorkflowContext, count: int) -> int:
    return await ctx.run(notes_taken, count)


@workflow(prune=Prune.HISTORY)
async def history_goes(ctx: WorkflowContext, count: int) -> int:
    return await ctx.run(notes_taken, count)


@workflow(prune=Prune.NONE)
async def notes_taken(ctx: WorkflowContext, count: int) -> int:
    for _ in range(count):
        await ctx.listen(Note)
    return count


@workflow(prune=Prune.HISTORY)
async def forgets(ctx: WorkflowContext, count: int) -> int:
    async def once(ctx: WorkflowContext, taken: Taken) -> Break[int] | None:
        await ctx.listen(Note)
        taken.count += 1
        return Break(taken.count) if taken.count == count else None

    return await ctx.loop(once, Taken(), commit_interval=1)


WORKFLOWS = (all_goes, history_goes, notes_taken, forgets)


@dataclass
class Told:
    """A log of three segments, the first two of which hold a workflow's events; and what its prunings and cleanings are."""

    url: str
    id: str
    clock: VirtualClock
    name: str
    whole: list[int]
    """The numbers of its events."""

    @property
    def directory(self) -> Path:
        return Path(self.url.removeprefix("file:"))

    def prune_and_clean(self, times: int = 1) -> None:
        """Do what other processes would, before this returns; ``times`` 2: once more a day later."""
        with ThreadPoolExecutor(1) as others:
            others.submit(asyncio.run, self._prune_and_clean(times)).result()

    async def _prune_and_clean(self, times: int) -> None:
        self.clock.advance(AGE_S + 1)
        async with (
            Gasoline.open(self.url, clock=self.clock) as gasoline,
            gasoline.worker(WORKFLOWS, prune_after=AGE_S) as worker,
        ):
            assert worker.pruner is not None
            assert await worker.pruner.look() == 1
            await _run(gasoline, notes_taken, 1)
        for time in range(times):
            log = await open_log(self.url)
            report = await log.compact(Retention(self.clock.now_us() + time * 2 * DAY_US))
            assert time or EVENTS in report.removed
            await log.close()


async def _run(gasoline: Gasoline, definition: Any, count: int) -> str:
    handle = await gasoline.dispatch(definition, count)
    for _ in range(count):
        await handle.signal(Note(text="on"))
    assert await handle.output() == count
    return handle.id


async def _told(url: str, definition: Any) -> Told:
    clock = VirtualClock()
    async with Gasoline.open(url, partitions=1, clock=clock) as gasoline, gasoline.worker(WORKFLOWS):
        handle = await gasoline.dispatch(definition, 2)
        await handle.signal(Note(text="first"))
        await _run(gasoline, notes_taken, 1)
    async with Gasoline.open(url, clock=clock) as gasoline, gasoline.worker(WORKFLOWS):
        handle = gasoline.handle(handle.id, definition)
        await handle.signal(Note(text="second"))
        assert await handle.output() == 2
        whole = [event.seq for event in await handle.history()]
    return Told(url, handle.id, clock, definition.name, whole)


@pytest.fixture(params=["all", "history"])
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Told:
    return asyncio.run(_told(f"file:{tmp_path}/log", all_goes if request.param == "all" else history_goes))


def left(told: Told) -> list[int]:
    """The numbers of what is left of the workflow once it is pruned: its first event, its last, and what pruned it."""
    return [told.whole[0], told.whole[-1], told.whole[-1] + 1]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Told, int], list[str]]]:
    """Let a log be pruned and cleaned when the first of the workflow's events was read, and the others were not."""

    def arm(told: Told, times: int = 1) -> list[str]:
        done: list[str] = []
        read, read_at = FileLog.read, FileLog.read_at

        def once(why: str) -> None:
            if not done:
                done.append(why)
                told.prune_and_clean(times)

        def reading(
            self: FileLog, topic: str, partition: int, start: int = 0, stop: int | None = None
        ) -> Iterator[Record]:
            for record in read(self, topic, partition, start, stop):
                yield record
                if record.key == f"{told.id}/1":
                    once("read")

        def looking(
            self: FileLog, topic: str, partition: int, offsets: Sequence[int], places: Sequence[int] | None = None
        ) -> list[Record]:
            if topic == EVENTS and len(offsets) >= len(told.whole):
                once("looked up")
            return read_at(self, topic, partition, offsets, places)

        monkeypatch.setattr(FileLog, "read", reading)
        monkeypatch.setattr(FileLog, "read_at", looking)
        return done

    yield arm
    monkeypatch.undo()


@pytest.mark.parametrize("times", [1, 2])
def test_a_reader_of_histories_sees_all_of_it_as_of_one_moment(
    told: Told, meanwhile: Callable[[Told, int], list[str]], times: int
) -> None:
    """It had read the first event, and would have found none of the others and nothing that says why."""

    async def read() -> tuple[list[str], list[tuple[int, str]]]:
        async with open_histories(told.url, "default") as reader:
            done = meanwhile(told, times)
            found = await reader.of_workflow(0, told.id)
            return done, [(event.seq, type(event.data).__name__) for _, event, _ in found]

    done, found = asyncio.run(read())
    assert done == ["read"]
    kept = left(told)
    assert [seq for seq, _ in found] in (kept, [kept[-1]] if times == 1 else [])
    assert not found or found[-1][1] == "WorkflowPruned"


async def _history(told: Told, arm: Callable[[], list[str]]) -> tuple[list[str], list[int] | None]:
    """Ask a client that has looked the workflow up before, while the log is cleaned; None: it is told that there is none."""
    async with Gasoline.open(told.url, readonly=True, clock=told.clock) as gasoline:
        await gasoline.counts()
        done = arm()
        try:
            return done, [event.seq for event in await gasoline.history(told.id)]
        except WorkflowNotFound:
            return done, None


@pytest.mark.parametrize("times", [1, 2])
def test_a_client_is_answered_as_the_workflow_stands_then(
    told: Told, meanwhile: Callable[[Told, int], list[str]], times: int
) -> None:
    """It knew where the events lie; when it came there they were gone."""
    done, found = asyncio.run(_history(told, lambda: meanwhile(told, times)))
    assert done == ["looked up"]
    assert found == (None if told.name == "all_goes" else left(told))


def test_so_it_is_where_a_loop_has_forgotten_some_of_them(
    tmp_path: Path, meanwhile: Callable[[Told, int], list[str]]
) -> None:
    """All of its events are looked for between the first and the last, and half of them are gone before it comes there."""
    told = asyncio.run(_told(f"file:{tmp_path}/log", forgets))
    done, found = asyncio.run(_history(told, lambda: meanwhile(told, 1)))
    assert done == ["read"]
    assert found == left(told)


def test_what_is_lost_for_another_reason_is_no_reason_to_ask_again(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the log is what is told, once."""
    asked: list[int] = []

    def lost(self: FileLog, topic: str, partition: int, offsets: Sequence[int], places: Any = None) -> list[Record]:
        asked.append(len(offsets))
        raise LogError("no record there")

    async def read() -> None:
        async with Gasoline.open(told.url, readonly=True, clock=told.clock) as gasoline:
            with monkeypatch.context() as broken:
                broken.setattr(FileLog, "read_at", lost)
                with pytest.raises(LogError, match="no record there"):
                    await gasoline.history(told.id)

    asyncio.run(read())
    assert asked == [len(told.whole)]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("times", [1, 2])
def test_on_the_command_line_it_is_whole_or_what_is_left_of_it(
    told: Told, meanwhile: Callable[[Told, int], list[str]], stored: bool, times: int
) -> None:
    """``stored``: the views tell where its events lie; else the partition is looked through."""
    if not stored:
        shutil.rmtree(told.directory / "projections")
    done = meanwhile(told, times)
    shown = invoke("--log", told.url, "workflow", "history", told.id, "--json")
    assert done == ["looked up" if stored else "read"]
    assert shown.status == (1 if told.name == "all_goes" else 0)
    if told.name == "all_goes":
        assert f"workflow {told.id} was not found" in shown.stderr
    else:
        assert [event["seq"] for event in shown.objects] == left(told)
        assert shown.stderr == "", "nothing is damaged"


def test_a_dump_of_a_workflow_says_that_it_may_lack_some_of_it(
    told: Told, meanwhile: Callable[[Told, int], list[str]]
) -> None:
    """It was written as it was read: it cannot be taken back."""
    meanwhile(told, 1)
    dump = ("--log", told.url, "log", "dump", "--topic", "events", "--workflow", told.id)
    shown = invoke(*dump)
    assert shown.status == 1
    assert f"workflow {told.id} was pruned while it was read" in shown.stderr
    assert "Dump it again" in shown.stderr
    again = invoke(*dump)
    assert again.objects[-1]["value"]["type"] == "gasoline.workflow.pruned.v1"


def test_a_dump_over_which_the_horizon_moved_writes_all_else_and_says_so_at_its_end(
    tmp_path: Path, meanwhile: Callable[[Told, int], list[str]]
) -> None:
    """What it has of one topic may not be folded; the topics after it are there."""
    told = asyncio.run(_told(f"file:{tmp_path}/log", all_goes))
    done = meanwhile(told, 2)
    shown = invoke("--log", told.url, "log", "dump")
    assert shown.status == 1
    assert done == ["read"]
    assert "tombstones of topic 'default.events', partition 0" in shown.stderr
    assert "read it again" in shown.stderr
    topics = [record["topic"] for record in shown.objects]
    assert topics.index("default.events") < topics.index("default.registry")
    assert invoke("--log", told.url, "log", "dump").objects


# --- others that go through the log -----------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
def test_who_selects_events_gets_each_that_is_left_once_and_goes_on(
    told: Told, meanwhile: Callable[[Told, int], list[str]], times: int
) -> None:
    """Notifications and subscriptions of the eventsourcing package read so: in order, at most so many at a time."""

    async def read() -> tuple[list[str], list[int], list[int]]:
        async with open_histories(told.url, "default") as reader:
            whole = await reader.select(0, 1, None, 1_000, frozenset())
            done = meanwhile(told, times)
            got: list[int] = []
            while some := await reader.select(0, got[-1] + 1 if got else 1, None, 2, frozenset()):
                got += [number for number, _, _ in some]
            now = [number for number, _, _ in await reader.select(0, 1, None, 1_000, frozenset())]
            assert len(whole) > len(told.whole)
            return done, got, now

    done, got, now = asyncio.run(read())
    assert done == ["read"]
    assert got == sorted(set(got))
    assert [number for number in now if number > 2] == [number for number in got if number > 2]


def test_a_rebuild_over_which_the_horizon_moved_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had folded the workflow's first events, and what took them back was gone before it came there."""
    told = asyncio.run(_told(f"file:{tmp_path}/log", all_goes))
    monkeypatch.setattr(partition_fold, "_CHUNK_FIRST", 1)
    monkeypatch.setattr(partition_fold, "CHUNK_MAX", 1)
    seen: list[Progress] = []

    def on_progress(now: Progress) -> None:
        seen.append(now)
        if len(seen) == 2:
            told.prune_and_clean(2)

    async def build() -> None:
        log = await open_log(told.url, readonly=True)
        store = open_store(log)
        assert rebuild(log, store, Workflows(), on_progress).generation >= 2
        assert verify(log, store, Workflows()).difference is None
        with store.snapshot("workflows") as snapshot:
            assert snapshot.db.execute("SELECT count(*) FROM workflows WHERE id = ?", (told.id,)).fetchall() == [(0,)]
        await log.close()

    asyncio.run(build())
    assert seen[2].total > seen[1].total == seen[0].total, "another build"
