"""Pruning is log compaction: what was pruned leaves the log, and nobody who asks notices (design §8, decision 0045)."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Gasoline
from gasoline_es.core import events as ev
from gasoline_es.core.codec import read
from gasoline_es.core.filters import Filters
from gasoline_es.core.retention import Retention
from gasoline_es.errors import WorkflowNotFound
from gasoline_es.log.copying import copy_log
from gasoline_es.log.file.log import FileLog, open_file_log
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Compaction, Log, Problem
from gasoline_es.runtime.node import Node
from gasoline_es.testing.faults import FaultyDisk, Killed
from gasoline_es.testing.log_contract import EVENTS
from projections.comparing import verify
from projections.memory_keeper import MemoryKeeper
from projections.stores.opening import open_store
from projections.views import PartitionViews
from projections.workflows import Workflows
from tests.engine.conftest import kafka_world
from tests.engine.harness import World, rehandle, soon
from tests.engine.test_pruning import (
    AGE_S,
    _answers,
    _many,
    invoice,
    ledger,
    ledger_all,
    prune,
    ran,
    rounds,
    told,
    waits_for,
    worker,
)
from tests.engine.workflows import Note, nap, one_note

DAY_S = 86_400.0


@pytest.fixture(params=["memory", "file"])
async def cleaned_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A log that cleans itself, with a virtual clock."""
    made = World() if request.param == "memory" else World(f"file:{tmp_path}/log")
    yield made
    await made.end()


async def clean(world: World, **options: Any) -> Compaction:
    """Clean the log as the command does, as somebody who has just opened it."""
    log = await open_log(world.url)
    try:
        return await log.compact(Retention(world.clock.now_us()), **options)
    finally:
        await log.close()


async def events(world: World) -> dict[str, list[int]]:
    """Which events of which workflows the log holds."""
    log = await open_log(world.url, readonly=True)
    found: dict[str, list[int]] = {}
    for index in range(log.partition_count):
        for record in log.read(EVENTS, index):
            workflow_id, _, seq = record.key.rpartition("/")
            found.setdefault(workflow_id, []).append(int(seq))
    await log.close()
    return found


async def marks(world: World) -> dict[str, list[str]]:
    """The variants of the marks of prunings that the log holds, by workflow."""
    log = await open_log(world.url, readonly=True)
    found: dict[str, list[str]] = {}
    for index in range(log.partition_count):
        for record in log.read(EVENTS, index):
            assert record.value is not None
            data = read(record.key, record.value).data
            if isinstance(data, ev.WorkflowPruned):
                found.setdefault(record.key.rpartition("/")[0], []).append("history" if data.keeps else "all")
    await log.close()
    return found


def size(world: World) -> int:
    return sum(path.stat().st_size for path in Path(world.url.removeprefix("file:")).glob("segments/*.jsonl"))


async def sound(world: World) -> None:
    """The log's bytes are as they were written, and what is stored of the views is what a fresh fold makes."""
    log = await open_log(world.url, readonly=True)
    assert [found for found in log.verify() if isinstance(found, Problem)] == []
    if isinstance(log, FileLog):
        verdict = verify(log, open_store(log), Workflows())
        assert verdict.difference is None, verdict
    await log.close()


async def views_anew(world: World) -> None:
    """Let go of the stored views: whoever comes next folds the log from its start."""
    if world.url.startswith("file:"):
        log = await open_log(world.url)
        open_store(log).discard("workflows")
        await log.close()


async def past(gasoline: Gasoline, moments: Sequence[datetime]) -> list[Any]:
    return [sorted([(one.id, one.status, one.name) async for one in gasoline.list(as_of=moment)]) for moment in moments]


async def test_nobody_notices_that_what_was_pruned_is_gone(cleaned_world: World) -> None:
    """design §8: views, lists, histories, tags and counts are the same before, after, and folded anew."""
    world = cleaned_world
    process = await worker(world)
    began = datetime.fromtimestamp(world.clock.now_us() / 1e6).astimezone()
    ids = await _many(process)
    infos = [one async for one in process.gasoline.list()]
    moments = [
        began,
        *sorted({one.created for one in infos}),
        *sorted({one.completed for one in infos if one.completed}),
    ]
    before, then = await _answers(process.gasoline, ids), await past(process.gasoline, moments)
    await process.stop()
    held = await events(world)
    would = await clean(world, dry_run=True)
    assert await events(world) == held
    done = await clean(world)
    assert done.removed[EVENTS] == would.removed[EVENTS]
    assert done.removed[EVENTS].keys() == {"pruned"}
    left = await events(world)
    assert sum(map(len, held.values())) - sum(map(len, left.values())) == done.removed[EVENTS]["pruned"] > 100
    for _ in range(2):
        again = await worker(world)
        assert await _answers(again.gasoline, ids) == before
        assert await past(again.gasoline, moments) == then
        await again.stop()
        await sound(world)
        await views_anew(world)
    assert EVENTS not in (await clean(world)).removed, "once"


async def test_marks_go_after_a_day_but_never_that_of_a_kept_workflow_nor_the_last_event(cleaned_world: World) -> None:
    """required.md B05: a mark goes once nothing older is left; what stays as input, output and tags needs its mark."""
    world = cleaned_world
    process = await worker(world)
    gone = [(await ran(process, ledger_all, str(n), key=f"a{n}", tags={"n": n})).id for n in range(12)]
    kept = [(await ran(process, invoice, str(n), key=f"h{n}", tags={"n": n})).id for n in range(12)]
    whole = [(await ran(process, ledger, str(n), key=f"n{n}", tags={"n": n})).id for n in range(3)]
    await process.advance(AGE_S + 1)
    assert await prune(process) == 24
    before = await _answers(process.gasoline, [*kept, *whole])
    await process.stop()
    assert (await clean(world)).removed[EVENTS].keys() == {"pruned"}
    assert await marks(world) == {one: ["all" if one in gone else "history"] for one in [*gone, *kept]}
    world.clock.advance(DAY_S)
    assert (await clean(world)).removed[EVENTS].keys() == {"tombstone"}
    left = await marks(world)
    assert {one for one, kinds in left.items() if kinds == ["history"]} == set(kept)
    log = await open_log(world.url, readonly=True)
    for index in range(log.partition_count):
        last = [record.offset for record in log.read(EVENTS, index)][-1:]
        assert last in ([], [log.end(EVENTS, index) - 1]), "whoever waits for the end comes there"
    await log.close()
    assert sum(kinds == ["all"] for kinds in left.values()) < len(gone)
    for _ in range(2):
        again = await worker(world)
        assert await _answers(again.gasoline, [*kept, *whole]) == before
        for one in gone:
            with pytest.raises(WorkflowNotFound):
                await again.gasoline.get(one)
        await again.stop()
        await sound(world)
        await views_anew(world)
    assert EVENTS not in (await clean(world)).removed


async def test_a_key_is_used_again_and_again_over_cleanings(cleaned_world: World) -> None:
    """design §5, §8: numbers go on while views know of the former life, and begin with 1 once nobody does.

    One who reads all along knows of it still, and sees the next life all the same.
    """
    world = cleaned_world
    reader = Node(await open_log(world.url, partitions=1), world.clock, MemoryKeeper())
    firsts: list[int] = []
    for life in range(4):
        process = await worker(world)
        handle = await ran(process, ledger_all, str(life), key="k", tags={"life": life})
        assert await soon(handle.output()) == f"booked {life}"
        firsts.append((await handle.history())[0].seq)
        assert [one.id async for one in process.gasoline.list(tags={"life": life})] == [handle.id]
        summary = await reader.viewing.look_up(handle.id)
        assert summary is not None
        assert (summary.status, summary.tags) == ("complete", {"life": str(life)})
        await process.advance(AGE_S + 1)
        assert await prune(process) == 1
        assert await reader.viewing.look_up(handle.id) is None
        await ran(process, ledger, "after", key=f"stays{life}")
        await process.stop()
        await reader.viewing.views(0)
        await clean(world)
        world.clock.advance(DAY_S)
        await clean(world)
        assert handle.id not in await events(world)
        await sound(world)
        if life % 2:
            await views_anew(world)
    again = await worker(world)
    assert await again.gasoline.counts() == {"ledger": {"complete": 4}}
    assert (await reader.viewing.views(0)).tally() == (await again.node.viewing.views(0)).tally()
    kept = world.url.startswith("file:")
    assert [first == 1 for first in firsts] == ([True, False, True, False] if kept else [True] * 4)
    await again.stop()
    await reader.close()


async def test_everything_that_waits_goes_on(cleaned_world: World) -> None:
    """design §8: sleepers, listeners, parents of pruned children, loops and schedules do not need what went."""
    world = cleaned_world
    process = await worker(world)
    gasoline = process.gasoline
    parent = await gasoline.dispatch(waits_for, "7a")
    sleeper = await gasoline.dispatch(nap, 10 * DAY_S)
    listener = await gasoline.dispatch(one_note, None)
    looping = await gasoline.dispatch(rounds, 12)
    await gasoline.schedule(DAY_S, ledger_all, "scheduled")
    await gasoline.signal(Note(text="early"), one_note, tags={"order": "7"}, park=DAY_S)
    for n in range(6):
        await ran(process, ledger_all, str(n))
        await looping.signal(Note(text=str(n)))
        await process.settle()
    await process.advance(AGE_S + 1)
    assert await prune(process) >= 7
    await process.stop()
    assert (await clean(world)).removed[EVENTS]["pruned"] > 12
    again = await worker(world)
    await rehandle(again, listener, one_note).signal(Note(text="late"))
    await rehandle(again, parent, waits_for).signal(Note())
    assert await soon(rehandle(again, parent, waits_for).output()) == "booked 7a, booked 7a"
    assert await soon(rehandle(again, listener, one_note).output()) is not None
    for _ in range(12):
        await again.advance(6)
    assert await soon(rehandle(again, looping, rounds).output()) == 12
    assert (await again.gasoline.get(sleeper.id)).completed is None
    early = await again.gasoline.dispatch(one_note, None, tags={"order": "7"})
    assert (await soon(early.output())) == "early", "the signal was parked before the cleaning"
    await again.advance(DAY_S)
    assert [one async for one in again.gasoline.list(name="ledger_all", status="complete")] != [], "the schedule"
    await again.advance(10 * DAY_S)
    assert (await again.gasoline.get(sleeper.id)).status == "complete"
    await again.stop()


async def test_a_running_worker_goes_on_while_its_log_is_cleaned(cleaned_world: World) -> None:
    """design §8: it neither stops nor forgets, and what it asks of the log is answered."""
    world = cleaned_world
    first = await worker(world)
    looping = await first.gasoline.dispatch(rounds, 6)
    gone = [(await ran(first, ledger_all, str(n))).id for n in range(8)]
    await first.advance(AGE_S + 1)
    await prune(first)
    await first.stop()
    running = await worker(world)
    before = {one.id: one async for one in running.gasoline.list(payloads=True)}
    assert (await clean(world)).removed[EVENTS]["pruned"] > 0
    assert {one.id: one async for one in running.gasoline.list(payloads=True)} == before
    assert not before.keys() & set(gone)
    for _ in range(8):
        await running.advance(6)
    assert await soon(rehandle(running, looping, rounds).output()) == 6
    assert await soon((await running.gasoline.dispatch(ledger_all, "new")).output()) == "booked new"
    assert running.node.failure is None
    await running.stop()


@pytest.mark.parametrize("marks_too", [False, True])
async def test_workers_agree_whatever_views_they_start_from(tmp_path: Path, marks_too: bool) -> None:
    """required.md B05: from views that were stored before the prunings, from those stored after, and from none.

    Those from before have folded events that are gone, and stand before the marks; where these are gone, they are of no use.
    """
    world = World(f"file:{tmp_path}/log")
    process = await worker(world)
    gone = [(await ran(process, ledger_all, str(n), key=f"a{n}", tags={"n": n})).id for n in range(24)]
    kept = [(await ran(process, invoice, str(n), key=f"h{n}", tags={"n": n})).id for n in range(24)]
    await process.stop()
    views = tmp_path / "log" / "projections"
    shutil.copytree(views, tmp_path / "before", symlinks=True)
    process = await worker(world)
    await process.advance(AGE_S + 1)
    assert await prune(process) == 48
    kept += [(await ran(process, ledger_all, "again", key=f"a{n}")).id for n in range(3)]
    expected = await _answers(process.gasoline, kept)
    await process.stop()
    shutil.copytree(views, tmp_path / "after", symlinks=True)
    assert (await clean(world)).removed[EVENTS].keys() == {"pruned"}
    if marks_too:
        world.clock.advance(DAY_S)
        assert (await clean(world)).removed[EVENTS].keys() == {"tombstone"}
    found: dict[str, Any] = {}
    for name in ("before", "after", "none"):
        shutil.rmtree(views)
        if name != "none":
            shutil.copytree(tmp_path / name, views, symlinks=True)
        again = await worker(world)
        found[name] = await _answers(again.gasoline, kept)
        for one in gone[3:]:
            with pytest.raises(WorkflowNotFound):
                await again.gasoline.get(one)
        await again.stop()
        await sound(world)
    assert found == dict.fromkeys(found, expected)
    await world.end()


async def test_a_reader_that_stands_below_the_horizon_begins_anew(cleaned_world: World) -> None:
    """filelog.md §5: it has not heard of the pruning, and what would have told it is gone."""
    world = cleaned_world
    process = await worker(world)
    gone = [await ran(process, ledger_all, str(n), tags={"n": n}) for n in range(12)]
    await process.settle()
    reader = await open_log(world.url, readonly=True)
    node = Node(reader, world.clock, MemoryKeeper())
    for index in range(reader.partition_count):
        await node.viewing.views(index)
    seen = [(await node.viewing.look_up(one.id)) is not None for one in gone]
    assert all(seen)
    await process.advance(AGE_S + 1)
    assert await prune(process) == 12
    for n in range(12):
        await ran(process, ledger, str(n))
    await process.stop()
    await clean(world)
    world.clock.advance(DAY_S)
    assert (await clean(world)).removed[EVENTS]["tombstone"] > 0
    assert [(await node.viewing.look_up(one.id)) for one in gone] == [None] * 12
    await node.close()


async def test_the_disk_falls_in_proportion(tmp_path: Path) -> None:
    """design §8: of many with long histories, a tenth of which stays, little more than that tenth is left."""
    world = World(f"file:{tmp_path}/log")
    process = await worker(world)
    for n in range(60):
        await ran(process, ledger_all if n % 10 else ledger, "x" * 4000)
    await process.advance(AGE_S + 1)
    assert await prune(process) == 54
    await process.stop()
    before = size(world)
    await clean(world)
    world.clock.advance(DAY_S)
    await clean(world)
    assert size(world) < 0.3 * before, (size(world), before)
    await world.end()


# --- a cleaned log goes elsewhere -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "partitions"), [("file", 1), ("file", 5), ("memory", 3), ("kafka", 3)])
async def test_a_cleaned_log_is_moved_and_everything_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, partitions: int
) -> None:
    """decision 0040: what is left is copied, in order, to other offsets; keys that are taken stay so, and others are free."""
    world = World(f"file:{tmp_path}/log")
    process = await worker(world)
    ids = await _many(process)
    waiting = await process.gasoline.dispatch(one_note, None)
    await process.settle()
    before = await _anywhere(process.gasoline)
    await process.stop()
    assert (await clean(world)).removed[EVENTS]["pruned"] > 100
    left = await events(world)
    match kind:
        case "kafka":
            there = kafka_world(monkeypatch, tmp_path / "state")
        case "memory":
            there = World()
        case _:
            there = World(f"file:{tmp_path}/new")
    there.clock = world.clock
    copied = await copy_log(world.url, there.url, partitions=partitions, clock=world.clock)
    assert copied.topics["events"].records == sum(map(len, left.values()))
    if kind != "kafka":
        assert await events(there) == left
    again = await worker(there)
    assert await _anywhere(again.gasoline) == before
    assert (await again.gasoline.dispatch(invoice, "0", key="k0")).id in ids
    assert (await ran(again, ledger_all, "anew", key="k3")).id in ids
    await rehandle(again, waiting, one_note).signal(Note(text="late"))
    assert await soon(rehandle(again, waiting, one_note).output()) == "late"
    await again.stop()
    await there.end()
    await world.end()


async def _anywhere(gasoline: Gasoline) -> dict[str, Any]:
    """What is answered of each workflow, wherever its partition is."""
    found: dict[str, Any] = {}
    async for info in gasoline.list(payloads=True):
        stands = info.name, info.status, info.tags, info.input, info.output, info.created, info.completed
        found[info.id] = stands, [(event.seq, event.data) for event in await gasoline.history(info.id)]
    return {**found, "counts": await gasoline.counts()}


# --- killed while it cleans -------------------------------------------------------------------------------------------


async def _two_lives(world: World) -> tuple[list[str], list[str]]:
    """Three segments: workflows, their prunings with a new life of one key, and what comes later; who is there, and who not."""
    await (await open_log(world.url, partitions=1)).close()
    first = await worker(world)
    gone = [(await ran(first, ledger_all, str(n), key=f"a{n}", tags={"n": n})).id for n in range(3)]
    there = [(await ran(first, invoice, str(n), key=f"h{n}", tags={"n": n})).id for n in range(2)]
    there += [(await ran(first, ledger, "x", key="n")).id, (await first.gasoline.dispatch(nap, 10 * DAY_S)).id]
    await first.settle()
    await first.stop()
    second = await worker(world)
    await second.advance(AGE_S + 1)
    assert await prune(second) == 5
    there.append((await ran(second, ledger_all, "again", key="a0", tags={"n": 0})).id)
    await second.stop()
    third = await worker(world)
    there.append((await ran(third, ledger, "last", key="last")).id)
    await third.stop()
    return there, gone[1:]


def _folded(log: Log, there: Sequence[str], gone: Sequence[str]) -> dict[str, Any]:
    """What a fresh fold knows of those that were not pruned, with where their events lie; of the others nothing."""
    views = PartitionViews()
    views.fold(log.read(EVENTS, 0))
    assert [views.summary(one) for one in gone] == [None] * len(gone), "a pruned workflow never reappears"
    assert not {one.id for one in views.matching(Filters())} & set(gone)
    found = told(views, there)
    histories = {one: [(r.key, r.value) for r in log.read_at(EVENTS, 0, views.located(one).offsets)] for one in there}
    return {**found, "histories": histories}


@pytest.mark.parametrize("power", [pytest.param(False, marks=pytest.mark.soak), True])
async def test_killed_after_any_call_of_the_disk_nothing_is_lost_and_nothing_comes_back(
    tmp_path: Path, power: bool
) -> None:
    """required.md B05: killed anywhere in a cleaning that removes events, or in a later one that removes their marks."""
    world = World(f"file:{tmp_path}/log")
    there, gone = await _two_lives(world)
    log = await open_log(world.url, readonly=True)
    expected = _folded(log, there, gone)
    await log.close()
    now_us = world.clock.now_us()
    finals: set[tuple[int | None, ...]] = set()
    cut = 0
    for later_us in (0, 2 * 86_400 * 10**6):
        origin = tmp_path / f"origin{later_us}"
        shutil.copytree(tmp_path / "log", origin)
        if later_us:
            log = await open_file_log(str(origin))
            await log.compact(Retention(now_us))
            await log.close()
        for cut in itertools.count():
            copy = tmp_path / "copy"
            shutil.copytree(origin, copy)
            disk = FaultyDisk(str(copy))
            cleaned = await open_file_log(str(copy), disk=disk)
            if power:
                for path in copy.rglob("*"):
                    disk.sync_directory(str(path)) if path.is_dir() else disk._remember(str(path))
            disk.kill_after = len(disk.calls) + cut
            killed = False
            try:
                await cleaned.compact(Retention(now_us + later_us))
            except Killed:
                killed = True
            disk.kill_after = None
            await cleaned.crash()
            if power:
                disk.lose_power(random.Random(cut))
            again = await open_file_log(str(copy))
            assert _folded(again, there, gone) == expected, (later_us, cut)
            for _ in range(2):
                await again.compact(Retention(now_us + later_us))
                assert _folded(again, there, gone) == expected, (later_us, cut)
            assert [found for found in again.verify() if isinstance(found, Problem)] == []
            finals.add((later_us, *(record.offset for record in again.read(EVENTS, 0))))
            await again.close()
            shutil.rmtree(copy)
            if not killed:
                break
        assert cut > 8, "each of the calls of a cleaning"
    assert len(finals) == 2, "wherever it was killed, the next one ends alike"
    await world.end()
