"""Leaving memory while waiting, and coming back: by signal, by deadline, by retry (semantics.md §4, §5; design §4, §5)."""

from __future__ import annotations

import asyncio

import pytest

from gasoline_es import ActivityContext, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event
from tests.engine.harness import Process, World, discarded, failures, has, soon, types
from tests.engine.workflows import Note, Other, nap, notes, one_note, timed_note


def suspensions(history: list[Event]) -> list[ev.WorkflowSuspended]:
    return [event.data for event in history if isinstance(event.data, ev.WorkflowSuspended)]


async def assert_evicted(process: Process, workflow_id: str) -> None:
    """Let it be evicted; hold it to that."""
    assert process.in_memory(workflow_id)
    await process.evict()
    assert not process.in_memory(workflow_id)
    assert types(await process.gasoline.history(workflow_id))[-1] == "workflow.suspended"
    assert (await process.gasoline.get(workflow_id)).status == "sleeping"


async def test_listen_is_evicted_and_woken_by_its_signal(any_world: World) -> None:
    """semantics.md §5: leaves memory after a short wait; wakes at once when a matching signal arrives."""
    process = await any_world.worker(notes)
    handle = await process.gasoline.dispatch(notes, 2)
    for text in ("a", "b"):
        await assert_evicted(process, handle.id)
        await handle.signal(Note(text=text))
        await process.settle()
    assert await soon(handle.output()) == ["a", "b"]
    assert [(s.signals, s.deadline_us, s.retry) for s in suspensions(await handle.history())] == [
        (("note",), None, False)
    ] * 2


async def test_signal_that_is_not_waited_for_leaves_it_asleep(any_world: World) -> None:
    """semantics.md §5: signals of other names stay queued, and wake nobody."""
    process = await any_world.worker(one_note)
    handle = await process.gasoline.dispatch(one_note, None)
    await assert_evicted(process, handle.id)
    await handle.signal(Other())
    await process.settle()
    assert (await handle.get()).status == "sleeping"
    assert not process.in_memory(handle.id)
    await handle.signal(Note(text="now"))
    assert await soon(handle.output()) == "now"


async def test_sleep_is_evicted_and_woken_by_its_deadline(any_world: World) -> None:
    """design §4: workflow.suspended carries the deadline."""
    process = await any_world.worker(nap)
    handle = await process.gasoline.dispatch(nap, 60.0)
    await assert_evicted(process, handle.id)
    (suspended,) = suspensions(await handle.history())
    started = next(e.data for e in await handle.history() if isinstance(e.data, ev.SleepStarted))
    assert suspended.deadline_us == started.deadline_us
    assert (await handle.get()).waiting_until is not None
    await process.advance(54.9)
    assert not process.in_memory(handle.id)
    await process.advance(0.1)
    assert await soon(handle.output()) == "awake"


@pytest.mark.parametrize("how", ["signal", "deadline"])
async def test_timed_listen_is_evicted_and_woken_by_signal_or_deadline(any_world: World, how: str) -> None:
    """semantics.md §4: waits only for what is left."""
    process = await any_world.worker(timed_note)
    handle = await process.gasoline.dispatch(timed_note, 60.0)
    await assert_evicted(process, handle.id)
    if how == "signal":
        await handle.signal(Note(text="here"))
    else:
        await process.advance(55)
    assert await soon(handle.output()) == ("here" if how == "signal" else "timeout")


@activity(max_attempts=3)
async def fails_once(ctx: ActivityContext, _: None) -> int:
    if ctx.attempt == 1:
        raise RuntimeError("once")
    return ctx.attempt


@workflow
async def retrying(ctx: WorkflowContext, _: None) -> int:
    return await ctx.activity(fails_once, None)


async def test_backoff_is_evicted_and_woken_by_the_retry(any_world: World) -> None:
    """semantics.md §4: the workflow goes to sleep until the backoff ends."""
    process = await any_world.worker(retrying, evict_after=0.1)
    handle = await process.gasoline.dispatch(retrying, None)
    history = await process.until(handle.id, has("activity.failed"))
    await process.evict(0.1)
    assert not process.in_memory(handle.id)
    (suspended,) = suspensions(await handle.history())
    assert (suspended.retry, suspended.deadline_us) == (True, failures(history)[0].retry_us)
    assert (await handle.get()).waiting_for == "retry"
    await process.advance(0.5)
    assert await soon(handle.output()) == 2


async def test_suspension_that_is_overtaken_by_a_signal_keeps_the_body_in_memory(any_world: World) -> None:
    """design §5: it leaves memory only if nothing has come up since."""
    process = await any_world.worker(notes)
    handle = await process.gasoline.dispatch(notes, 1)
    await process.settle()
    process.log.open_gate.clear()
    process.log.asked.clear()
    any_world.clock.advance(5)
    process.driver.evict_idle()
    await process.log.asked.wait()
    sending = asyncio.ensure_future(handle.signal(Note(text="in between")))
    for _ in range(10):
        await asyncio.sleep(0)
    process.log.open_gate.set()
    await sending
    assert await soon(handle.output()) == ["in between"]


async def test_many_sleeping_workflows_are_not_in_memory(any_world: World) -> None:
    """design §10: a sleeping workflow costs next to nothing; all wake at their time."""
    process = await any_world.worker(nap)
    handles = await asyncio.gather(*(process.gasoline.dispatch(nap, 100.0 + n % 7) for n in range(300)))
    await process.evict()
    assert sum(len(partition.lives) for partition in process.node.partitions.values()) == 0
    await process.advance(102)
    await process.settle()
    assert [await soon(handle.output()) for handle in handles] == ["awake"] * 300


async def test_activity_that_runs_keeps_its_workflow_in_memory(any_world: World) -> None:
    """design §5: only what waits is evicted."""
    go = asyncio.Event()

    @activity(timeout=600)
    async def long_one(ctx: ActivityContext, _: None) -> str:
        await go.wait()
        return "done"

    @workflow
    async def long_flow(ctx: WorkflowContext, _: None) -> str:
        return await ctx.activity(long_one, None)

    process = await any_world.worker(long_flow)
    handle = await process.gasoline.dispatch(long_flow, None)
    await process.evict()
    await process.evict()
    assert process.in_memory(handle.id)
    assert "workflow.suspended" not in types(await handle.history())
    go.set()
    assert await soon(handle.output()) == "done"


async def test_worker_evicts_by_itself(any_world: World) -> None:
    """api.md: worker(evict_after=…), looked at while it runs."""
    process = await any_world.worker(one_note, evict_after=0.02)
    handle = await process.gasoline.dispatch(one_note, None)
    await process.settle()
    any_world.clock.advance(0.02)
    await process.until(handle.id, has("workflow.suspended"))
    await process.settle()
    assert not process.in_memory(handle.id)


async def test_unrelated_signal_on_its_way_while_the_deadline_of_a_suspended_listen_passes_breaks_nothing(
    any_world: World,
) -> None:
    """semantics.md §4, §5: the listen ends at its deadline, and the signal stays queued until the completion."""
    process = await any_world.worker(timed_note)
    handle = await process.gasoline.dispatch(timed_note, 100.0)
    await process.evict()
    assert (await handle.get()).status == "sleeping"
    assert not process.in_memory(handle.id)
    process.log.asked.clear()
    process.log.open_gate.clear()
    sending = asyncio.ensure_future(handle.signal(Other(text="unrelated"), id="unrelated"))
    await soon(process.log.asked.wait())
    for _ in range(20):
        await asyncio.sleep(0)
    any_world.clock.advance(101)
    for _ in range(20):
        await asyncio.sleep(0)
    process.log.open_gate.set()
    assert await soon(sending) == "unrelated"
    assert await soon(handle.output()) == "timeout"
    assert process.node.failure is None
    assert discarded(await handle.history()) == ["unrelated"]


go = asyncio.Event()


@activity
async def when_told(ctx: ActivityContext, _: None) -> str:
    await go.wait()
    return "told"


@workflow
async def waits_to_be_told(ctx: WorkflowContext, _: None) -> str:
    return await ctx.activity(when_told, None)


async def test_workflow_whose_answer_is_on_its_way_to_the_log_is_not_suspended(world: World) -> None:
    """design §5: a workflow leaves memory only when everything decided about it is durable."""
    go.clear()
    process = await world.worker(waits_to_be_told)
    handle = await process.gasoline.dispatch(waits_to_be_told, None)
    await process.settle()
    partition = process.node.partition_of(handle.id)
    assert partition is not None
    live = partition.lives[handle.id]
    process.log.open_gate.clear()
    go.set()
    while live.settled:
        await asyncio.sleep(0)
    signalled = asyncio.ensure_future(process.gasoline.signal(Note(text="something else"), to=handle.id))
    while live.state.summary.seq < 3:  # it had a turn for that
        await asyncio.sleep(0)
    world.clock.advance(60)
    process.driver.evict_idle()
    process.log.open_gate.set()
    assert await soon(handle.output()) == "told"
    await soon(signalled)
    assert "workflow.suspended" not in types(await handle.history())
