"""Cancelling: the body cleans up where it waits, and its workflow ends for good (semantics.md §12, §7)."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from gasoline_es import ActivityContext, WorkflowContext, WorkflowNotFound, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event
from gasoline_es.errors import Cancelled, GasolineError, WorkflowCancelled
from tests.engine.harness import Fate, OneByOne, Process, World, discarded, has, kills, rehandle, soon, successes, types
from tests.engine.subprocesses import line, worker_process
from tests.engine.workflows import Note, cancellable, nap, notes

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


@activity(timeout=60)
def drive_in_a_thread(ctx: ActivityContext, order: int) -> int:
    told.append("drives")
    until = time.monotonic() + 20
    while not ctx.cancelled and time.monotonic() < until:
        stopped.wait(0.005)
    told.append(f"cancelled {ctx.cancelled}")
    stopped.set()
    return order


stopped = threading.Event()


@activity
async def unload(ctx: ActivityContext, order: int) -> str:
    told.append(f"unloads {order}")
    return f"unloaded {order}"


@workflow
async def deliver(ctx: WorkflowContext, order: int) -> int:
    try:
        return await ctx.activity(drive, order)
    except Cancelled:
        await ctx.activity(unload, order)
        raise


@workflow
async def deliver_in_a_thread(ctx: WorkflowContext, order: int) -> int:
    return await ctx.activity(drive_in_a_thread, order)


@workflow
async def stubborn(ctx: WorkflowContext, order: int) -> str:
    try:
        await ctx.sleep(3600)
    except Cancelled:
        await ctx.sleep(60)
    return "done anyway"


@workflow
async def awaiting(ctx: WorkflowContext, of: str) -> str:
    try:
        return str(await ctx.output(nap, of))
    except WorkflowCancelled as error:
        return f"{error.workflow} was cancelled"


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    told.clear()
    started[:] = [asyncio.Event()]
    stopped.clear()


def interrupted(history: list[Event]) -> list[tuple[str | None, str]]:
    return [(event.location, event.data.kind) for event in history if isinstance(event.data, ev.StepInterrupted)]


async def test_cancel_stops_the_activity_and_the_body_cleans_up(any_world: World) -> None:
    """semantics.md §12, §4: what runs is cancelled as a task is; the clean-up is recorded; it ends as cancelled."""
    process = await any_world.worker(deliver)
    handle = await process.gasoline.dispatch(deliver, 7)
    await soon(started[0].wait())
    await handle.cancel()
    with pytest.raises(WorkflowCancelled, match="was cancelled: it has no output"):
        await soon(handle.output())
    assert told == ["drives", "stopped, cancelled True", "unloads 7"]
    history = await handle.history()
    assert types(history)[1:] == [
        "workflow.cancel_requested",
        "step.interrupted",
        "activity.completed",
        "workflow.cancelled",
    ]
    info = await handle.get()
    assert (info.status, info.output, info.error) == ("cancelled", None, None)
    assert info.completed is not None
    assert not process.in_memory(handle.id)


async def test_thread_learns_of_the_cancel_and_its_late_result_is_dropped(any_world: World) -> None:
    """semantics.md §4: a `def` looks at `ctx.cancelled`; nothing is recorded where a cancel was thrown."""
    process = await any_world.worker(deliver_in_a_thread)
    handle = await process.gasoline.dispatch(deliver_in_a_thread, 7)
    while not told:
        await asyncio.sleep(0)
    await handle.cancel()
    with pytest.raises(WorkflowCancelled):
        await soon(handle.output())
    await soon(asyncio.to_thread(stopped.wait))
    await process.settle()
    assert told == ["drives", "cancelled True"]
    assert successes(await handle.history()) == []


async def test_cancel_wakes_what_sleeps_and_a_second_one_changes_nothing(any_world: World) -> None:
    """semantics.md §12: also a workflow that left memory; a call whose answer was lost may be repeated."""
    process = await any_world.worker(stubborn)
    handle = await process.gasoline.dispatch(stubborn, 7)
    await process.evict()
    assert (await handle.get()).status == "sleeping"
    await handle.cancel()
    await handle.cancel()
    await process.settle()
    await handle.cancel()
    await process.evict()
    assert (await handle.get()).status == "sleeping", "its clean-up sleeps"
    await handle.cancel()
    await process.advance(60)
    assert (await handle.get()).status == "cancelled", "whatever it returns"
    await handle.cancel()
    kinds = types(await handle.history())
    assert kinds.count("workflow.cancel_requested") == 1
    assert kinds[-1] == "workflow.cancelled"


async def test_cancel_now_ends_it_without_its_clean_up(any_world: World) -> None:
    """semantics.md §12: while its activity runs, and in the middle of its clean-up."""
    process = await any_world.worker(deliver, stubborn)
    running = await process.gasoline.dispatch(deliver, 7)
    cleaning = await process.gasoline.dispatch(stubborn, 7)
    await soon(started[0].wait())
    await cleaning.cancel()
    await process.settle()
    for handle in (running, cleaning):
        await handle.cancel(now=True)
        with pytest.raises(WorkflowCancelled):
            await soon(handle.output())
    await process.settle()
    assert told == ["drives", "stopped, cancelled True"]
    assert types(await running.history())[1:] == ["workflow.cancel_requested", "workflow.cancelled"]
    await process.advance(120)
    assert types(await cleaning.history()).count("sleep.finished") == 0
    assert not process.in_memory(running.id)
    assert process.driver.runner.running == 0


async def test_cancelled_workflow_is_found_by_nobody_and_takes_no_signal(any_world: World) -> None:
    """semantics.md §5–§7: it leaves the tag index, its queue is discarded, and a unique dispatch makes a new one."""
    process = await any_world.worker(notes, nap)
    handle = await process.gasoline.dispatch(nap, 600.0, tags={"a": 1}, unique=True)
    await handle.signal(Note(text="left"), id="left")
    await handle.cancel()
    await process.settle()
    assert await process.gasoline.find(nap, tags={"a": 1}) is None
    with pytest.raises(WorkflowNotFound, match="it is cancelled"):
        await handle.signal(Note(text="late"))
    assert discarded(await handle.history()) == ["left"]
    again = await process.gasoline.dispatch(nap, 600.0, tags={"a": 1}, unique=True)
    assert again.id != handle.id
    assert [info.id async for info in process.gasoline.list(status="cancelled")] == [handle.id]
    await handle.wake()
    assert (await handle.get()).status == "cancelled"


async def test_who_waits_for_the_output_is_told_that_it_was_cancelled(any_world: World) -> None:
    """semantics.md §4, §12: an error like any other, recorded; also for who asks afterwards."""
    process = await any_world.worker(nap, awaiting)
    handle = await process.gasoline.dispatch(nap, 600.0)
    waiting = [await process.gasoline.dispatch(awaiting, handle.id) for _ in range(4)]
    for one in waiting:
        await process.until(one.id, has("workflow.dispatched"))
    await process.evict()
    await handle.cancel()
    outputs = [await soon(one.output()) for one in waiting]
    late = await process.gasoline.dispatch(awaiting, handle.id)
    outputs.append(await soon(late.output()))
    assert outputs == ["nap was cancelled"] * 5


async def test_what_was_cancelled_now_tells_those_who_wait(any_world: World) -> None:
    """semantics.md §12: the end is the same, with a clean-up or without."""
    process = await any_world.worker(nap, awaiting)
    handle = await process.gasoline.dispatch(nap, 600.0)
    waiting = await process.gasoline.dispatch(awaiting, handle.id)
    await process.evict()
    await handle.cancel(now=True)
    assert await soon(waiting.output()) == "nap was cancelled"


async def test_cancel_without_a_worker_is_carried_out_when_one_comes(any_world: World) -> None:
    """semantics.md §12: the request is durable."""
    first = await any_world.worker(nap)
    handle = await first.gasoline.dispatch(nap, 600.0)
    await first.evict()
    await first.stop()
    client = await any_world.process()
    await rehandle(client, handle, nap).cancel()
    info = await client.gasoline.get(handle.id)
    assert (info.status, info.waiting_for) == ("running", None)
    await client.stop()
    second = await any_world.worker(nap)
    with pytest.raises(WorkflowCancelled):
        await soon(rehandle(second, handle, nap).output())
    assert interrupted(await second.gasoline.history(handle.id)) == [("{1}", "sleep")]


async def test_cancel_of_what_is_over_is_refused_and_of_what_is_dead_done_at_once(any_world: World) -> None:
    """semantics.md §12: a complete one stays so; a dead one has no body to clean up."""
    process = await any_world.worker(nap)
    complete = await process.gasoline.dispatch(nap, 0.0)
    await soon(complete.output())
    with pytest.raises(GasolineError, match="is complete: there is nothing left to cancel"):
        await complete.cancel()
    dead = await process.gasoline.dispatch(nap, 1e300)
    await process.status(dead.id, "dead")
    await dead.cancel()
    assert (await dead.get()).status == "cancelled"
    with pytest.raises(WorkflowNotFound):
        await process.gasoline.cancel("0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f")


@workflow
async def deliver_when_let(ctx: WorkflowContext, order: int) -> int:
    return await ctx.activity(drive_when_let, order)


@activity
async def drive_when_let(ctx: ActivityContext, order: int) -> int:
    started[0].set()
    await let[0].wait()
    return order


@workflow
async def parent(ctx: WorkflowContext, order: int) -> str:
    return (await ctx.dispatch(nap, 600.0)).id


let: list[asyncio.Event] = []


@pytest.mark.parametrize("now", [False, True])
async def test_attempt_that_ends_before_its_interruption_is_durable_is_dropped(now: bool) -> None:
    """semantics.md §12: nothing is recorded where a cancel was thrown, nor behind the end."""
    let[:] = [asyncio.Event()]
    world = World()
    process = await world.worker(deliver_when_let)
    handle = await process.gasoline.dispatch(deliver_when_let, 7)
    await soon(started[0].wait())
    gate = OneByOne(process)
    cancelling = asyncio.ensure_future(handle.cancel(now=now))
    for _ in range(50):
        await asyncio.sleep(0)
    if not now:
        await gate.open()  # the request: now the step is interrupted, which waits at the gate
    let[0].set()
    for _ in range(50):
        await asyncio.sleep(0)
    gate.end()
    await soon(cancelling)
    with pytest.raises(WorkflowCancelled):
        await soon(handle.output())
    assert successes(await handle.history()) == []
    assert process.driver.runner.running == 0
    await world.end()


async def test_dispatch_that_comes_back_behind_the_end_is_not_recorded() -> None:
    """semantics.md §12: ended at once, in the middle of a step that reaches another workflow."""
    world = World()
    process = await world.worker(parent, nap)
    gate = OneByOne(process)
    dispatching = asyncio.ensure_future(process.gasoline.dispatch(parent, 7))
    for _ in range(50):
        await asyncio.sleep(0)
    await gate.open()
    handle = await soon(dispatching)  # its body dispatches the other one, which waits at the gate
    cancelling = asyncio.ensure_future(handle.cancel(now=True))
    for _ in range(50):
        await asyncio.sleep(0)
    await gate.open()
    gate.end()
    await soon(cancelling)
    await process.settle()
    assert types(await handle.history())[-1] == "workflow.cancelled"
    assert {info.name async for info in process.gasoline.list()} == {"parent", "nap"}
    await world.end()


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_kill_at_every_append_of_a_cancel_gives_the_same_end(fate: Fate) -> None:
    """design §1: the clean-up is neither repeated nor left out, wherever the process dies."""
    number = 0
    async for world, number in kills(fate, deliver_and_cancel):
        again = await world.worker(deliver)
        handle = await again.gasoline.dispatch(deliver, 7, key="deliver")
        await again.settle()
        await handle.cancel()
        with pytest.raises(WorkflowCancelled):
            await soon(handle.output())
        history = await handle.history()
        recorded = [
            kind for kind in types(history)[1:] if kind != "activity.started"
        ]  # what died is restarted with care
        assert recorded == [
            "workflow.cancel_requested",
            "step.interrupted",
            "activity.completed",
            "workflow.cancelled",
        ], f"killed at append {number}"
    assert number >= 5


async def deliver_and_cancel(process: Process) -> None:
    await process.work(deliver)
    handle = await process.gasoline.dispatch(deliver, 7, key="deliver")
    await handle.cancel()
    with pytest.raises(WorkflowCancelled):
        await handle.output()


async def test_worker_process_that_is_killed_in_a_clean_up_leaves_it_to_the_next(file_world: World) -> None:
    """design §1, §5: cancelled from another process, cleaned up by whoever comes; each step of it once."""
    from gasoline_es import Gasoline

    async with Gasoline.open(file_world.url) as gasoline:
        handle = await gasoline.dispatch(cancellable, 3)
        async with worker_process(file_world.url) as worker:
            assert await line(worker) == "ready"
            while "sleep.started" not in types(await handle.history()):
                await asyncio.sleep(0.01)
            await soon(handle.cancel())
            while "activity.completed" not in types(await handle.history()):
                await asyncio.sleep(0.01)
            worker.kill()
        async with worker_process(file_world.url) as worker:
            assert await line(worker) == "ready"
            with pytest.raises(WorkflowCancelled):
                await soon(handle.output())
        steps = [done.input for done in successes(await handle.history())]
        assert steps == [b"0", b"1", b"2"]
