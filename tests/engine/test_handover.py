"""Partitions that change hands between processes of which one stops, breaks, or has no space (semantics.md §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gasoline_es import Gasoline
from gasoline_es.errors import LogError, LogFailed, NoOwner, NoSpace
from gasoline_es.log import ends
from gasoline_es.log.file.log import open_file_log
from gasoline_es.log.port import Ownership
from tests.engine.harness import Process, World, rehandle, soon, when
from tests.engine.workflows import Note, echo, nap, one_note

# A process in the middle of a take-over is made by hand.
# pyright: reportPrivateUsage=false

PARTITIONS = 4


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tries again does so at once."""
    monkeypatch.setattr("gasoline_es.runtime.rebalancing.LOOK_AGAIN_S", 0.002)
    monkeypatch.setattr("gasoline_es.runtime.node.ROLL_BACK_WAIT_S", 0.002)
    monkeypatch.setattr("gasoline_es.runtime.calls.LOOK_AT_OWNER_S", 0.002)


def shared_by(*processes: Process) -> Callable[[], bool]:
    share = PARTITIONS // len(processes)
    return lambda: all(len(process.node.partitions) == share for process in processes)


def owns_all(process: Process) -> Callable[[], bool]:
    return lambda: len(process.node.partitions) == PARTITIONS


class SlowFolds:
    """Holds the take-overs of a process up until told to go on."""

    def __init__(self, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self._fold = process.node.viewing._fold
        monkeypatch.setattr(process.node.viewing, "_fold", self._slowly)

    async def _slowly(self, index: int, stop: int | None) -> None:
        self.begun.set()
        await self.go.wait()
        await self._fold(index, stop)


async def test_worker_beside_another_gets_all_the_partitions_when_that_one_stops(any_world: World) -> None:
    """semantics.md §8: the process of the stopped worker stays as a client, and its partitions are driven elsewhere."""
    first = await any_world.process(partitions=PARTITIONS)
    worker = await first.work(echo)
    second = await any_world.worker(echo)
    await when(shared_by(first, second))
    await soon(worker.stop())
    await when(owns_all(second))
    handle = await first.gasoline.dispatch(echo, "from the first")
    assert await soon(handle.output()) == "from the first"


async def test_worker_that_found_no_space_to_take_partitions_takes_them_later(any_world: World) -> None:
    """semantics.md §8, required.md B04: a full disk delays a take-over, it does not end the taking."""
    first = await any_world.process(partitions=PARTITIONS)
    await first.work(echo)
    second = await any_world.worker(echo)
    await when(shared_by(first, second))
    acquire, refused = second.log.acquire, 0

    async def full(partition: int) -> Ownership:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise NoSpace("injected into the take-over")
        return await acquire(partition)

    second.log.acquire = full  # type: ignore[method-assign]
    await first.kill()
    await when(owns_all(second))
    assert refused == 3
    assert await soon((await second.gasoline.dispatch(echo, "taken")).output()) == "taken"


async def test_take_over_whose_worker_was_cancelled_leaves_no_partition_to_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §5: what the log says this process owns, its engine knows, and yields to a worker that asks."""
    first = await world.process(partitions=PARTITIONS)
    folds = SlowFolds(first, monkeypatch)
    starting = asyncio.ensure_future(first.work(echo))
    await soon(folds.begun.wait())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    folds.go.set()
    second = await world.worker(echo)
    await when(owns_all(second))
    handle = await first.gasoline.dispatch(echo, "driven")
    assert await soon(handle.output()) == "driven"


async def test_process_whose_engine_broke_leaves_its_partitions_to_others_at_once(any_world: World) -> None:
    """design §1.3, semantics.md §8: a process that takes no further part does not keep the partitions to itself."""
    first = await any_world.process(partitions=PARTITIONS)
    await first.work(one_note)
    handle = await first.gasoline.dispatch(one_note, None)
    second = await any_world.worker(one_note)
    await when(shared_by(first, second))
    first.node.broke(RuntimeError("a bug elsewhere"))
    await when(owns_all(second))
    assert not first.node.partitions
    with pytest.raises(LogFailed):
        await first.gasoline.signal(Note(), to=handle.id)
    await second.gasoline.signal(Note(text="goes on"), to=handle.id)
    assert await soon(rehandle(second, handle, one_note).output()) == "goes on"


async def test_take_over_under_way_when_the_engine_broke_decides_nothing(
    any_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §1.1: after the engine broke nothing is decided or acknowledged here any more."""
    process = await any_world.process(partitions=PARTITIONS)
    folds = SlowFolds(process, monkeypatch)
    calling = asyncio.ensure_future(process.gasoline.dispatch(echo, "too late"))
    await soon(folds.begun.wait())
    process.node.broke(RuntimeError("a bug elsewhere"))
    folds.go.set()
    with pytest.raises(LogError):
        await soon(calling)
    assert not process.node.partitions
    assert process.log.appended == []
    again = await any_world.worker(echo)
    await when(owns_all(again))
    assert [info async for info in again.gasoline.list()] == []


async def test_partition_that_cannot_be_taken_does_not_cost_the_process_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §5: an error of taking one partition is told to whoever wanted that one."""
    process = await world.process(partitions=PARTITIONS)
    fold = process.node.viewing._fold

    async def refusing(index: int, stop: int | None) -> None:
        if index == 0:
            raise LogError("injected: partition 0 cannot be read")
        await fold(index, stop)

    monkeypatch.setattr(process.node.viewing, "_fold", refusing)
    with pytest.raises(LogError, match="partition 0"):
        await process.node.own(0)
    assert process.node.failure is None
    assert await process.node.own(1) is not None
    monkeypatch.setattr(process.node.viewing, "_fold", fold)
    assert await process.node.own(0) is not None


async def test_worker_whose_start_found_no_space_can_be_started_again(any_world: World) -> None:
    """semantics.md §8, required.md B04: a failed start leaves nothing behind that would refuse the next one."""
    process = await any_world.process(partitions=PARTITIONS)
    acquire, taken = process.log.acquire, 0

    async def full(partition: int) -> Ownership:
        nonlocal taken
        taken += 1
        if taken == 2:
            raise NoSpace("injected into the take-over")
        return await acquire(partition)

    process.log.acquire = full  # type: ignore[method-assign]
    with pytest.raises(NoSpace):
        await process.work(echo)
    assert process.node.driver is None
    await process.work(echo)
    assert owns_all(process)()
    assert await soon((await process.gasoline.dispatch(echo, "started")).output()) == "started"


async def test_process_that_yielded_a_partition_leaves_it_to_the_worker_for_a_while(any_world: World) -> None:
    """design §5: calls go on meanwhile; they do not take back what was just released for somebody who drives."""
    client = await any_world.process(partitions=1)
    handle = await client.gasoline.dispatch(one_note, None)
    await client.node.release(0)
    assert await client.node.own(0) is None
    sending = asyncio.ensure_future(handle.signal(Note(text="meanwhile")))
    worker = await any_world.worker(one_note)
    await soon(sending)
    assert await soon(handle.output()) == "meanwhile"
    assert set(worker.node.partitions) == {0}
    assert not client.node.partitions


async def ids(gasoline: Gasoline) -> list[str]:
    return [info.id async for info in gasoline.list()]


async def test_client_that_comes_in_the_middle_of_a_take_over_waits_for_its_begin(tmp_path: Path) -> None:
    """filelog.md §4: until a taker has begun it is not known what counts, so what was acknowledged must not seem to be lost."""
    url = f"file:{tmp_path}"
    async with Gasoline.open(url) as first:
        handle = await first.dispatch(nap, 3600.0)
        index = first._node.index_of(handle.id)
    taker = await open_file_log(str(tmp_path), namespace="default")
    assert taker._incarnation is not None
    assert taker._partitions.claim(index, taker._incarnation, None) is not None  # and it has not begun yet
    async with Gasoline.open(url) as second:
        asking = asyncio.ensure_future(second.get(handle.id))
        listing = asyncio.ensure_future(ids(second))
        await asyncio.sleep(0.05)
        assert not asking.done()
        assert not listing.done()
        await taker.acquire(index)
        assert (await soon(asking)).status == "running"
        assert await soon(listing) == [handle.id]
    await taker.close()


async def test_client_is_told_when_a_take_over_does_not_come_to_its_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """filelog.md §4; design §5: an error that says to try again, and not that there is no such workflow."""
    monkeypatch.setattr(ends, "TAKING_LIMIT_S", 0.02)
    url = f"file:{tmp_path}"
    async with Gasoline.open(url) as first:
        handle = await first.dispatch(nap, 3600.0)
        index = first._node.index_of(handle.id)
    taker = await open_file_log(str(tmp_path), namespace="default")
    assert taker._incarnation is not None
    taker._partitions.claim(index, taker._incarnation, None)
    async with Gasoline.open(url) as second:
        with pytest.raises(NoOwner, match="is being taken over"):
            await second.get(handle.id)
    await taker.close()


@pytest.mark.parametrize("fate", ["died", "lives"])
@pytest.mark.parametrize("readonly", [True, False])
async def test_partition_whose_first_owner_has_not_begun_is_empty_and_not_waited_for(
    tmp_path: Path, fate: str, readonly: bool
) -> None:
    """filelog.md §4: before the first begin nothing was acknowledged; a worker killed as it starts must not block readers."""
    url = f"file:{tmp_path}"
    taker = await open_file_log(str(tmp_path), namespace="default")
    assert taker._incarnation is not None
    taker._partitions.claim(3, taker._incarnation, None)
    if fate == "died":
        await taker.crash()
    async with Gasoline.open(url, readonly=readonly) as second:
        assert await soon(ids(second), 5.0) == []
    if fate == "lives":
        await taker.close()
