"""What becomes of calls, appends and activities when a process closes its log, or its engine breaks (design §1, §5)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gasoline_es import ActivityContext, WorkflowContext, activity, workflow
from gasoline_es.core.commands import SendSignal
from gasoline_es.errors import LogError, NoSpace
from gasoline_es.log.port import Outcome, Section
from tests.engine.harness import PATIENCE_S, Process, World, soon, successes
from tests.engine.workflows import Note, echo, nap, notes

ran: list[str] = []


@activity
async def marking(ctx: ActivityContext, text: str) -> str:
    ran.append(text)
    return text


@workflow
async def marked(ctx: WorkflowContext, text: str) -> str:
    return await ctx.activity(marking, text)


async def turns(count: int = 30) -> None:
    """Let everything that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


class Load:
    """Callers that never pause: in the middle of every append the next call is made. Ends by itself, at some time."""

    LIMIT = 150

    def __init__(self, process: Process) -> None:
        self.process = process
        self.on = True
        self.appends = 0
        self.calls: list[asyncio.Task[Any]] = []
        self._append = process.log.append
        process.log.append = self._busy  # type: ignore[method-assign]
        self._call()

    def _call(self) -> None:
        self.calls.append(asyncio.ensure_future(self.process.gasoline.dispatch(echo, str(self.appends))))

    async def _busy(self, sections: Sequence[Section]) -> list[Outcome]:
        self.appends += 1
        outcomes = await self._append(sections)
        if self.on and self.appends < self.LIMIT:
            self._call()
            await turns(5)
        return outcomes

    async def end(self) -> list[Any]:
        self.on = False
        for call in self.calls:
            call.cancel()
        return await asyncio.gather(*self.calls, return_exceptions=True)


# --- flush, release, stop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["flush", "release", "stop"])
async def test_ends_although_the_load_never_pauses(world: World, what: str) -> None:
    """design §5: what waits for appends waits for what was decided before, not for what comes up meanwhile."""
    process = await world.process(partitions=1)
    worker = await process.work(nap)
    load = Load(process)
    await turns()
    before = load.appends
    assert before > 1
    if what == "flush":
        await soon(process.node.flush())
    elif what == "release":
        await soon(process.node.release(0))
    else:
        await soon(worker.stop())
    assert load.appends < before + 10
    await load.end()


async def test_full_disk_during_a_release_delays_it_and_breaks_nothing(
    any_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """required.md B04: the handle survives a full disk, in a release too."""
    monkeypatch.setattr("gasoline_es.runtime.node.ROLL_BACK_WAIT_S", 0.002)
    client = await any_world.process(partitions=1)
    handle = await client.gasoline.dispatch(notes, 1)
    release, refused = client.log.release, asyncio.Event()

    async def full(partition: int) -> None:
        if not refused.is_set():
            refused.set()
            raise NoSpace("injected into the release")
        await release(partition)

    client.log.release = full  # type: ignore[method-assign]
    worker = await any_world.worker(notes)
    await soon(refused.wait())
    async with asyncio.timeout(PATIENCE_S):
        while not worker.node.partitions:
            await asyncio.sleep(0.001)
    assert client.node.failure is None
    await handle.signal(Note(text="after"))
    assert await soon(handle.output()) == ["after"]


# --- closing ----------------------------------------------------------------------------------------------------------


async def test_output_that_waits_when_the_client_is_closed_ends_with_an_error(any_world: World) -> None:
    """design §1.1: nobody is left waiting for what this process will not learn any more."""
    process = await any_world.process()
    handle = await process.gasoline.dispatch(notes, 1)
    waiting = [asyncio.ensure_future(handle.output()) for _ in range(3)]
    await process.settle()
    await process.stop()
    for one in waiting:
        with pytest.raises(LogError, match="closed"):
            await soon(one)
    with pytest.raises(LogError, match="closed"):
        await soon(handle.output())


async def test_close_waits_for_the_append_under_way_and_its_callers_hear_of_it(any_world: World) -> None:
    """design §1.1: an append that was begun is not given up, however late it was; it counts, and its caller is told."""
    process = await any_world.process()
    node, log = process.node, process.log
    handle = await process.gasoline.dispatch(notes, 9)
    partition = node.partition_of(handle.id)
    assert partition is not None
    told: list[LogError | None] = []

    def decide(signal_id: str) -> None:
        log.asked.clear()
        log.open_gate.clear()
        partition.decide(SendSignal(handle.id, signal_id, "note", b"{}", True))
        partition.when_durable(told.append)

    async def slow_to_end() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:  # comes when the node has flushed: an activity that ends right then decides something, too
            decide("late")
            await soon(log.asked.wait())

    _ = node.spawn(slow_to_end(), "slow-to-end")
    await turns()
    decide("early")
    closing = asyncio.ensure_future(node.close())
    await soon(log.asked.wait())
    await turns()
    assert not closing.done()
    assert told == []
    log.open_gate.set()
    async with asyncio.timeout(PATIENCE_S):
        while log.count < 3:
            await asyncio.sleep(0)
    await turns()
    assert not closing.done()
    assert told == [None]
    log.open_gate.set()
    await soon(closing)
    assert told == [None, None]
    async with any_world.reader() as reader:
        assert list((await reader.get(handle.id)).queued) == ["early", "late"]


async def test_close_ends_although_callers_go_on_calling(world: World) -> None:
    """design §1.1: calls after the close get an error; the others are durable or fail; nobody hangs."""
    process = await world.process(partitions=1)
    load = Load(process)
    await turns()
    before = load.appends
    await soon(process.node.close())
    assert load.appends < before + 10
    done, hanging = await asyncio.wait(load.calls, timeout=PATIENCE_S)
    assert not hanging
    assert {type(call.exception()) for call in done} <= {type(None), LogError}
    acknowledged = sum(call.exception() is None for call in done)
    async with world.reader() as reader:
        assert len([info async for info in reader.list()]) == acknowledged


# --- breaking ---------------------------------------------------------------------------------------------------------


async def test_append_in_flight_when_the_engine_broke_starts_no_activity(any_world: World) -> None:
    """design §1.1: what became durable counts, and runs elsewhere; here nothing runs any more."""
    process = await any_world.worker(marked)
    written, go = asyncio.Event(), asyncio.Event()
    append = process.log.append

    async def slow(sections: Sequence[Section]) -> list[Outcome]:
        outcomes = await append(sections)
        written.set()
        await go.wait()
        return outcomes

    process.log.append = slow  # type: ignore[method-assign]
    ran.clear()
    calling = asyncio.ensure_future(process.gasoline.dispatch(marked, "once"))
    await soon(written.wait())
    process.node.broke(RuntimeError("a bug elsewhere"))
    go.set()
    handle = await soon(calling)
    await turns(100)
    assert ran == []
    await process.kill()
    again = await any_world.worker(marked)
    assert await soon(again.gasoline.handle(handle.id, marked).output()) == "once"
    assert ran == ["once"]
    assert [done.attempt for done in successes(await again.gasoline.history(handle.id))] == [1]
