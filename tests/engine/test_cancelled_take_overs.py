"""Whoever asked for a partition is cancelled in the middle of its take-over, and others ask on: each event is folded once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gasoline_es.core.events import WorkflowDispatched
from gasoline_es.core.stored_events import EventStored, Stored, embed
from gasoline_es.core.storing import Store
from gasoline_es.errors import Fenced, LogError, NoSpace
from gasoline_es.log.port import Outcome, Ownership, Section
from gasoline_es.persistence.journal import Journal, StoreIds
from gasoline_es.runtime import node, viewing
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.partition import Partition
from projections.views import PartitionViews
from tests.engine.harness import Process, World, soon, when
from tests.engine.workflows import Note, echo

# A process in the middle of a take-over is looked at from within.
# pyright: reportPrivateUsage=false

SEQUENCE = "events"
COUNT = 4


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have a turn after each event that is folded."""
    monkeypatch.setattr(viewing, "FOLD_CHUNK", 1)


async def begun(world: World) -> list[str]:
    """Write some of everything into a log of one partition; return the workflows."""
    first = await world.process(partitions=1)
    await first.work(echo)
    ids: list[str] = []
    journal, new_id = Journal(first.node), StoreIds()
    for number in range(COUNT):
        handle = await first.gasoline.dispatch(echo, str(number))
        assert await soon(handle.output()) == str(number)
        ids.append(handle.id)
        await first.gasoline.signal(Note(), echo, tags={"of": f"nobody {number}"}, park=3_600)
        await first.gasoline.schedule(timedelta(days=1), echo, "on", name=f"nightly_{number}")
        await journal.store(Store(new_id(), SEQUENCE, [EventStored("a", False, number, "t", embed(b"{}"))]))
    await first.stop()
    return ids


def forget_stored(world: World) -> None:
    """All is to be folded from the log again."""
    if world.url.startswith("file:"):
        shutil.rmtree(Path(world.url.removeprefix("file:")) / "projections", ignore_errors=True)


async def check(process: Process, ids: Sequence[str]) -> None:
    """What the process says is what was written."""
    gasoline = process.gasoline
    assert await soon(gasoline.counts()) == {"echo": {"complete": COUNT}}
    assert sorted([one.id async for one in gasoline.list()]) == sorted(ids)
    for workflow_id in ids:
        assert [event.seq for event in await soon(gasoline.history(workflow_id))] == [1, 2]
    assert len(list((await soon(process.node.viewing.parked(0))).live())) == COUNT
    assert len([one async for one in gasoline.schedules()]) == COUNT
    assert await soon(Journal(process.node).look(lambda view: view.end(SEQUENCE))) == COUNT


FOLDED: dict[str, Callable[[PartitionViews], int]] = {
    "events": lambda views: views.next_offset,
    "schedules": lambda views: views.schedules.next_offset,
    "parked": lambda views: views.parked.next_offset,
    "sequences": lambda views: views.stored.next_offset,
}


def folded(of: Node, what: str) -> int:
    views = of.viewing._views.get(0)
    return FOLDED[what](views) if isinstance(views, PartitionViews) else 0


@pytest.mark.parametrize("what", list(FOLDED))
async def test_a_call_that_is_cancelled_in_the_middle_of_a_take_over_costs_nothing(any_world: World, what: str) -> None:
    """design §1.4, §7: the take-over goes on folding; whoever reads meanwhile waits for it, and does not fold beside it."""
    ids = await begun(any_world)
    for reached in range(1, COUNT):
        forget_stored(any_world)
        process = await any_world.process()
        calling = asyncio.ensure_future(process.node.own(0))
        async with asyncio.timeout(20):
            while folded(process.node, what) < reached:
                await asyncio.sleep(0)
        assert not process.node.partitions
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await check(process, ids)
        assert process.node.failure is None
        await process.stop()
    if any_world.url.startswith("file:"):  # what was stored is what a start begins with
        await check(await any_world.process(), ids)


async def test_a_call_that_is_cancelled_at_any_turn_of_a_take_over_costs_nothing(world: World) -> None:
    ids = await begun(world)
    turns, done = 0, False
    while not done:
        process = await world.process()
        calling = asyncio.ensure_future(process.node.own(0))
        for _ in range(turns):
            await asyncio.sleep(0)
        done = calling.done()
        calling.cancel()
        asking = asyncio.ensure_future(process.gasoline.counts())
        await asyncio.gather(calling, return_exceptions=True)
        assert await soon(asking) == {"echo": {"complete": COUNT}}
        await check(process, ids)
        await process.stop()
        turns += 1
    assert turns > 4 * COUNT, "each event was folded in a turn of its own"


async def test_who_reads_waits_for_a_claim_of_this_process_to_be_decided(world: World) -> None:
    """filelog.md §4: between a claim and its begin the log does not say what counts, and whoever made it is here."""
    ids = await begun(world)
    process = await world.process()
    acquire, claimed, decided = process.log.acquire, asyncio.Event(), asyncio.Event()

    async def slowly(partition: int) -> Ownership:
        claimed.set()
        await decided.wait()
        return await acquire(partition)

    process.log.acquire = slowly  # type: ignore[method-assign]
    calling = asyncio.ensure_future(process.node.own(0))
    await soon(claimed.wait())
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    asking = asyncio.ensure_future(process.gasoline.counts())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not asking.done()
    decided.set()
    assert await soon(asking) == {"echo": {"complete": COUNT}}
    await check(process, ids)


async def test_a_partition_that_is_released_in_the_middle_of_its_take_over_is_released(world: World) -> None:
    """design §5: whoever asked for it was cancelled; a worker that asks for it gets it all the same."""
    ids = await begun(world)
    process = await world.process()
    calling = asyncio.ensure_future(process.node.own(0))
    async with asyncio.timeout(20):
        while not folded(process.node, "events"):
            await asyncio.sleep(0)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    await soon(process.node.release(0))
    owner = process.log.owner(0)
    assert owner is not None
    assert owner.released
    await check(process, ids)


async def test_a_release_that_is_cancelled_in_the_middle_comes_to_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §5: what this process no longer decides is there for others, though whoever released it was cancelled."""
    monkeypatch.setattr(node, "ROLL_BACK_WAIT_S", 0.0)
    process = await world.process(partitions=1)
    assert await process.node.own(0) is not None
    release, refused, space = process.log.release, asyncio.Event(), asyncio.Event()

    async def full(partition: int) -> None:
        if not space.is_set():
            refused.set()
            raise NoSpace("injected into the release")
        await release(partition)

    monkeypatch.setattr(process.log, "release", full)
    releasing = asyncio.ensure_future(process.node.release(0))
    await soon(refused.wait())
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    space.set()
    other = await world.process()
    await when(lambda: (owner := other.log.owner(0)) is not None and owner.released)
    assert await other.node.own(0) is not None


async def test_events_of_an_append_under_way_where_a_partition_is_let_go_are_folded_once(any_world: World) -> None:
    """design §1.4: they are in the log before this process hears of it, and may be read there before."""
    process = await any_world.process(partitions=1)
    journal, new_id = Journal(process.node), StoreIds()
    assert await process.node.own(0) is not None
    append, published, told = process.log.append, asyncio.Event(), asyncio.Event()

    async def slowly(sections: Sequence[Section]) -> list[Outcome]:
        outcomes = await append(sections)
        published.set()
        await told.wait()
        return outcomes

    process.log.append = slowly  # type: ignore[method-assign]
    dispatching = asyncio.ensure_future(process.gasoline.dispatch(echo, "once"))
    storing = asyncio.ensure_future(
        journal.store(Store(new_id(), SEQUENCE, [EventStored("a", False, 1, "t", embed(b"{}"))]))
    )
    await soon(published.wait())
    process.node._forget(process.node.partitions[0], Fenced("the partition was released", partition=0))
    before = [one.id async for one in process.gasoline.list()]
    sequence = await journal.look(lambda view: view.end(SEQUENCE))
    assert (len(before), sequence) == (1, 1)
    told.set()
    process.log.append = append  # type: ignore[method-assign]
    assert [(await soon(dispatching)).id] == before
    assert await soon(storing) == 1
    assert [one.id async for one in process.gasoline.list()] == before
    assert await journal.look(lambda view: view.end(SEQUENCE)) == 1
    assert process.node.failure is None


async def test_a_take_over_that_fails_leaves_nothing_that_folds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """design §1.4: what it had on its way to the log is folded by whoever reads it there."""
    ids = await begun(world)
    process = await world.process()
    consume, failed = process.node._consume_all_sent, list[Partition]()

    async def failing(partition: Partition) -> None:
        await consume(partition)
        failed.append(partition)
        raise LogError("injected: the inbox cannot be read")

    monkeypatch.setattr(process.node, "_consume_all_sent", failing)
    with pytest.raises(LogError, match="injected"):
        await process.node.own(0)
    assert failed[0].lost is not None
    await check(process, ids)
    monkeypatch.undo()
    assert await process.node.own(0) is not None
    await check(process, ids)


async def test_counts_are_of_views_that_do_not_drift(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """design §7: a store that goes on while views are loaded anew may be ahead of these, too."""
    ids = await begun(world)
    process = await world.process()
    load, loads = process.node.viewing._load, 0

    async def drifting(index: int, before: Any) -> Any:
        nonlocal loads
        views = await load(index, before)
        loads += 1
        views.drifted = loads < 4
        return views

    monkeypatch.setattr(process.node.viewing, "_load", drifting)
    await check(process, ids)
    assert loads == 4


def test_an_event_is_not_folded_twice() -> None:
    """design §1.4: rather than go on with what is wrong, the engine stops."""
    views = PartitionViews()
    dispatched = ("w", 1, 1, WorkflowDispatched(name="echo", input=b"1", tags={}), "ray", "worker")
    views.apply(0, 0, *dispatched)
    with pytest.raises(AssertionError, match="once"):
        views.apply(0, 0, *dispatched)
    stored = Stored(SEQUENCE, 1, 1, "id", (EventStored("a", False, 1, "t", embed(b"{}")),))
    views.stored.apply(7, 0, stored)
    with pytest.raises(AssertionError, match="once"):
        views.stored.apply(7, 0, stored)
