"""`silence`: an operator takes a workflow out of sight, and it will not run again (semantics.md §7)."""

from __future__ import annotations

import asyncio

import pytest

from gasoline_es import ActivityContext, WorkflowContext, WorkflowNotFound, WorkflowSilenced, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.errors import GasolineError, NoSpace, RerunRefused, WorkflowFailed
from gasoline_es.outcomes import Failed
from tests.engine.harness import Fate, OneByOne, Process, World, discarded, kills, rehandle, soon, successes, types
from tests.engine.workflows import Note, nap, notes

started: list[asyncio.Event] = []
told: list[str] = []


@activity
async def drive(ctx: ActivityContext, order: int) -> int:
    told.append("drives")
    started[0].set()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        told.append(f"stopped, cancelled {ctx.cancelled}")
        raise
    return order


@activity
async def undo(ctx: ActivityContext, order: int) -> None:
    told.append("undone")


@workflow
async def deliver(ctx: WorkflowContext, order: int) -> int:
    await ctx.checkpoint()
    ctx.on_rollback(undo, order)
    try:
        return await ctx.activity(drive, order)
    except BaseException:
        told.append("the body was told")
        raise


@workflow
async def broken(ctx: WorkflowContext, order: int) -> None:
    raise ValueError("no such order")


@workflow
async def awaiting(ctx: WorkflowContext, of: str) -> str:
    try:
        return str(await ctx.output(nap, of))
    except WorkflowSilenced as error:
        return f"{error.workflow} was silenced"


@workflow
async def catching(ctx: WorkflowContext, of: str) -> str:
    outcome = await ctx.catch(ctx.output(nap, of))
    return outcome.error.type if isinstance(outcome, Failed) else "an output"


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    told.clear()
    started[:] = [asyncio.Event()]


async def test_silence_ends_it_at_once_without_its_body_and_stops_its_activity(any_world: World) -> None:
    """semantics.md §7: nothing is cleaned up or rolled back, and nothing is recorded behind the end."""
    process = await any_world.worker(deliver)
    handle = await process.gasoline.dispatch(deliver, 7)
    await soon(started[0].wait())
    await handle.silence()
    with pytest.raises(WorkflowSilenced, match="was silenced: it has no output"):
        await soon(handle.output())
    await process.settle()
    assert told == ["drives", "the body was told", "stopped, cancelled True"]  # by its close, as when it leaves memory
    assert types(await handle.history())[-1] == "workflow.silenced"
    assert successes(await handle.history()) == []
    info = await handle.get()
    assert (info.status, info.output, info.error) == ("silenced", None, None)
    assert info.completed is not None
    assert not process.in_memory(handle.id)
    assert process.driver.runner.running == 0


async def test_a_second_silence_changes_nothing_also_in_flight(any_world: World) -> None:
    """semantics.md §7: a call whose answer was lost may be repeated."""
    process = await any_world.worker(nap)
    handle = await process.gasoline.dispatch(nap, 600.0)
    await asyncio.gather(handle.silence(), handle.silence())
    await handle.silence()
    assert types(await handle.history()).count("workflow.silenced") == 1


async def test_silenced_workflow_is_found_by_nobody_and_takes_no_signal(any_world: World) -> None:
    """semantics.md §5, §6: it leaves the tag index, its queue is discarded, and a unique dispatch makes a new one."""
    process = await any_world.worker(notes, nap)
    handle = await process.gasoline.dispatch(nap, 600.0, tags={"a": 1}, unique=True)
    await handle.signal(Note(text="left"), id="left")
    await handle.silence()
    assert await process.gasoline.find(nap, tags={"a": 1}) is None
    with pytest.raises(WorkflowNotFound, match="it is silenced"):
        await handle.signal(Note(text="late"))
    with pytest.raises(WorkflowNotFound, match="no incomplete workflow"):
        await process.gasoline.signal(Note(text="late"), nap, tags={"a": 1})
    assert await handle.signal(Note(text="left"), id="left") == "left", "a repeat is answered with its id"
    assert discarded(await handle.history()) == ["left"]
    again = await process.gasoline.dispatch(nap, 600.0, tags={"a": 1}, unique=True)
    assert again.id != handle.id
    assert [info.id async for info in process.gasoline.list(status="silenced")] == [handle.id]


async def test_who_waits_for_the_output_learns_of_it(any_world: World) -> None:
    """semantics.md §4: an error like any other, recorded; also for who asks afterwards, and for `ctx.catch`."""
    process = await any_world.worker(nap, awaiting, catching)
    handle = await process.gasoline.dispatch(nap, 600.0)
    waiting = [await process.gasoline.dispatch(awaiting, handle.id) for _ in range(3)]
    caught = await process.gasoline.dispatch(catching, handle.id)
    await process.evict()
    outside = asyncio.ensure_future(handle.output())
    await asyncio.sleep(0)
    await handle.silence()
    with pytest.raises(WorkflowSilenced):
        await soon(outside)
    outputs = [await soon(one.output()) for one in waiting]
    late = await process.gasoline.dispatch(awaiting, handle.id)
    outputs.append(await soon(late.output()))
    assert outputs == ["nap was silenced"] * 4
    assert await soon(caught.output()) == "WorkflowSilenced"


async def test_what_was_silenced_does_not_come_back_but_as_a_fork(any_world: World) -> None:
    """semantics.md §7: wake, recover, cancel and rerun are refused, each in words; nothing is recorded."""
    process = await any_world.worker(nap)
    handle = await process.gasoline.dispatch(nap, 600.0)
    await process.settle()
    await handle.silence()
    before = types(await handle.history())
    for verb in (handle.wake, handle.recover):
        with pytest.raises(GasolineError, match="was silenced, so it will not run again"):
            await verb()
    for now in (False, True):
        with pytest.raises(GasolineError, match="was silenced, so it is over already"):
            await handle.cancel(now=now)
    with pytest.raises(RerunRefused, match=r"start over in a new one, as a fork of it"):
        await handle.rerun("{1}")
    with pytest.raises(RerunRefused, match=r"start over in a new one"):
        await process.gasoline.rerun(handle.id, "{1}", dry_run=True)
    assert types(await handle.history()) == before
    fork = await handle.rerun("{1}", fork=True)
    await process.advance(600)
    assert await soon(fork.output()) is not None
    assert (await handle.get()).status == "silenced"


async def test_fork_of_a_silenced_workflow_has_the_signals_that_were_left(any_world: World) -> None:
    """semantics.md §4, starting over: what was discarded at the end is queued again."""
    process = await any_world.worker(nap)
    handle = await process.gasoline.dispatch(nap, 600.0)
    await process.settle()
    await handle.signal(Note(text="left"), id="left")
    await handle.silence()
    fork = await handle.rerun("{1}", fork=True)
    assert (await fork.get()).queued == {"left": "note"}


async def test_dead_workflow_is_silenced_and_keeps_its_error(any_world: World) -> None:
    """semantics.md §7: what it is for: it stands among the dead no more."""
    process = await any_world.worker(broken)
    handle = await process.gasoline.dispatch(broken, 7)
    with pytest.raises(WorkflowFailed):
        await soon(handle.output())
    await handle.silence()
    info = await handle.get()
    assert (info.status, str(info.error)) == ("silenced", "ValueError: no such order")
    assert [one async for one in process.gasoline.list(status="dead")] == []
    with pytest.raises(WorkflowSilenced):
        await soon(handle.output())


async def test_what_is_over_or_being_cancelled_cannot_be_silenced(any_world: World) -> None:
    """semantics.md §7, §12: from a cancel on it can only end as cancelled."""
    process = await any_world.worker(nap)
    complete = await process.gasoline.dispatch(nap, 0.0)
    await soon(complete.output())
    with pytest.raises(GasolineError, match="is complete: it does not run any more"):
        await complete.silence()
    client = process.gasoline
    napping = await client.dispatch(nap, 600.0)
    cancelling, refused = await asyncio.gather(napping.cancel(), napping.silence(), return_exceptions=True)
    assert cancelling is None
    assert "is being cancelled, so it cannot be silenced" in str(refused)
    await process.settle()
    with pytest.raises(GasolineError, match="is cancelled: it does not run any more"):
        await napping.silence()
    with pytest.raises(WorkflowNotFound):
        await client.silence("0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f")


async def test_key_of_a_silenced_workflow_stays_taken(any_world: World) -> None:
    """semantics.md §6: the same key gives the same workflow, whatever became of it."""
    process = await any_world.worker(nap)
    handle = await process.gasoline.dispatch(nap, 600.0, key="night")
    await handle.silence()
    assert (await process.gasoline.dispatch(nap, 600.0, key="night")).id == handle.id


async def test_silence_without_a_worker_holds_when_one_comes(any_world: World) -> None:
    """semantics.md §7: it is decided by whoever owns the partition, and no deadline wakes it any more."""
    first = await any_world.worker(nap)
    handle = await first.gasoline.dispatch(nap, 600.0)
    await first.evict()
    await first.stop()
    client = await any_world.process()
    await rehandle(client, handle, nap).silence()
    assert (await client.gasoline.get(handle.id)).status == "silenced"
    await client.stop()
    second = await any_world.worker(nap)
    await second.advance(1200)
    assert types(await second.gasoline.history(handle.id))[-1] == "workflow.silenced"


@activity
async def drive_when_let(ctx: ActivityContext, order: int) -> int:
    started[0].set()
    await let[0].wait()
    return order


@workflow
async def deliver_when_let(ctx: WorkflowContext, order: int) -> int:
    return await ctx.activity(drive_when_let, order)


let: list[asyncio.Event] = []


async def test_attempt_that_ends_while_the_silence_is_on_its_way_is_dropped() -> None:
    """semantics.md §7: nothing is recorded behind the end."""
    let[:] = [asyncio.Event()]
    world = World()
    process = await world.worker(deliver_when_let)
    handle = await process.gasoline.dispatch(deliver_when_let, 7)
    await soon(started[0].wait())
    process.log.open_gate.clear()
    silencing = asyncio.ensure_future(handle.silence())
    for _ in range(20):
        await asyncio.sleep(0)
    let[0].set()
    for _ in range(20):
        await asyncio.sleep(0)
    process.log.open_gate.set()
    await soon(silencing)
    await process.settle()
    assert types(await handle.history())[-1] == "workflow.silenced"
    assert successes(await handle.history()) == []
    assert process.driver.runner.running == 0
    await world.end()


@workflow
async def parent(ctx: WorkflowContext, order: int) -> str:
    return (await ctx.dispatch(nap, 600.0)).id


async def test_dispatch_that_comes_back_behind_the_silence_is_not_recorded() -> None:
    """semantics.md §7: the other workflow exists, and nothing follows the end of this one."""
    world = World()
    process = await world.worker(parent, nap)
    gate = OneByOne(process)
    dispatching = asyncio.ensure_future(process.gasoline.dispatch(parent, 7))
    for _ in range(50):
        await asyncio.sleep(0)
    await gate.open()
    handle = await soon(dispatching)  # its body dispatches the other one, which waits at the gate
    silencing = asyncio.ensure_future(handle.silence())
    for _ in range(50):
        await asyncio.sleep(0)
    await gate.open()
    gate.end()
    await soon(silencing)
    await process.settle()
    assert {info.name async for info in process.gasoline.list()} == {"parent", "nap"}
    assert types(await handle.history())[-1] == "workflow.silenced"
    await world.end()


@workflow
async def knocking(ctx: WorkflowContext, of: str) -> list[str | None]:
    by_id = await ctx.signal(Note(text="x"), to=of, graceful_not_found=True)
    return [by_id, await ctx.signal(Note(text="x"), nap, tags={"a": 1}, graceful_not_found=True)]


async def test_body_reaches_a_silenced_workflow_neither_by_id_nor_by_tags(any_world: World) -> None:
    """semantics.md §5: as of any that is over."""
    process = await any_world.worker(knocking, nap)
    handle = await process.gasoline.dispatch(nap, 600.0, tags={"a": 1})
    await handle.silence()
    assert await soon((await process.gasoline.dispatch(knocking, handle.id)).output()) == [None, None]
    assert (await handle.get()).queued == {}


async def test_silence_that_finds_no_space_did_not_happen() -> None:
    """design §1: all or nothing; the body goes on from the log."""
    let[:] = [asyncio.Event()]
    world = World()
    process = await world.worker(deliver_when_let)
    handle = await process.gasoline.dispatch(deliver_when_let, 7)
    await soon(started[0].wait())
    process.log.script = {process.log.count + 1: NoSpace}
    with pytest.raises(NoSpace):
        await soon(handle.silence())
    let[0].set()
    assert await soon(handle.output()) == 7
    assert [event for event in await handle.history() if isinstance(event.data, ev.WorkflowSilenced)] == []
    await world.end()


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_kill_at_every_append_of_a_silence_gives_the_same_end(fate: Fate) -> None:
    """design §1: wherever the process dies, it is silenced once, what waits for it is told, and it does not run again."""
    number = 0
    async for world, number in kills(fate, silence_what_is_awaited):
        again = await world.worker(nap, awaiting)
        handle = await again.gasoline.dispatch(nap, 600.0, key="night")
        waiting = await again.gasoline.dispatch(awaiting, handle.id, key="waiting")
        await again.settle()
        await handle.silence()
        assert await soon(waiting.output()) == "nap was silenced"
        await again.advance(1200)
        history = types(await handle.history())
        assert history.count("workflow.silenced") == 1, f"killed at append {number}"
        assert history[-1] == "workflow.silenced"
        assert "sleep.finished" not in history
    assert number >= 4


async def silence_what_is_awaited(process: Process) -> None:
    await process.work(nap, awaiting)
    handle = await process.gasoline.dispatch(nap, 600.0, key="night")
    waiting = await process.gasoline.dispatch(awaiting, handle.id, key="waiting")
    await process.settle()
    await handle.silence()
    assert await waiting.output() == "nap was silenced"
