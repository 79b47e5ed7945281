"""Starting again after any end: everything is folded from the log (design §1, §5)."""

from __future__ import annotations

import asyncio

import pytest

from gasoline_es import ActivityContext, Backoff, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.durations import MICROSECONDS
from tests.engine.harness import Fate, Process, World, failures, has, kills, soon, successes, types
from tests.engine.workflows import Note, echo, nap, notes, one_note, timed_note

runs: dict[str, list[str]] = {}


@activity
async def count_run(ctx: ActivityContext, name: str) -> str:
    runs.setdefault(ctx.workflow_id, []).append(name)
    return name


@workflow
async def journey(ctx: WorkflowContext, _: None) -> list[str]:
    out = [await ctx.activity(count_run, "one")]
    await ctx.sleep(10)
    out.append(await ctx.activity(count_run, "two"))
    out.append((await ctx.listen(Note)).text)
    out.append(await ctx.activity(count_run, "three"))
    return out


@pytest.mark.parametrize("evict", [False, True])
async def test_every_stage_of_a_workflow_survives_a_kill(any_world: World, evict: bool) -> None:
    """design §1: a fold of the log is all there is; no step is run again."""
    process = await any_world.worker(journey)
    handle = await process.gasoline.dispatch(journey, None)
    for stage in range(4):
        await process.settle()
        if stage == 1:
            await process.advance(20)
        if stage == 2:
            await process.gasoline.signal(Note(text="here"), to=handle.id)
        await process.settle()  # else an activity may be in flight, and rightly runs again
        if evict:
            await process.evict()
        await process.kill()
        process = await any_world.worker(journey)
    assert await soon(process.gasoline.handle(handle.id, journey).output()) == ["one", "two", "here", "three"]
    assert runs[handle.id] == ["one", "two", "three"]


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_kill_at_every_append_of_a_journey_ends_in_the_same_history(fate: Fate) -> None:
    """design §1: whatever append the process dies at; a step may run twice, its record is one."""
    number = 0
    async for world, number in kills(fate, walk):
        again = await world.worker(journey)
        handle = await again.gasoline.dispatch(journey, None, key="journey")
        await again.gasoline.signal(Note(text="here"), to=handle.id, id="note")
        await again.advance(10)
        assert await soon(handle.output()) == ["one", "two", "here", "three"], f"killed at append {number}"
        history = await handle.history()
        assert [done.name for done in successes(history)] == ["count_run"] * 3
        assert types(history).count("sleep.started") == types(history).count("signal.consumed") == 1
    assert number >= 8


async def walk(process: Process) -> None:
    """Go through the journey."""
    await process.work(journey)
    handle = await process.gasoline.dispatch(journey, None, key="journey")
    await process.gasoline.signal(Note(text="here"), to=handle.id, id="note")
    await process.until(handle.id, has("sleep.started"))
    process.world.clock.advance(10)
    await handle.output()


@activity(max_attempts=3, backoff=Backoff(base=10, doublings=1))
async def stubborn(ctx: ActivityContext, _: None) -> str:
    runs.setdefault(ctx.workflow_id, []).append(f"attempt {ctx.attempt}")
    if ctx.attempt < 3:
        raise RuntimeError(f"not at attempt {ctx.attempt}")
    return f"at attempt {ctx.attempt}, first tried at {ctx.first_attempt_at.timestamp():.0f}"


@workflow
async def stubborn_flow(ctx: WorkflowContext, _: None) -> str:
    return await ctx.activity(stubborn, None)


@pytest.mark.parametrize("evict", [False, True])
async def test_restart_in_the_middle_of_a_backoff_keeps_the_attempts_and_the_time(
    any_world: World, evict: bool
) -> None:
    """semantics.md §4: the attempt count and the time of the next one are recorded."""
    process = await any_world.worker(stubborn_flow)
    handle = await process.gasoline.dispatch(stubborn_flow, None)
    started = any_world.clock.now_us() // MICROSECONDS
    for attempt in (1, 2):
        history = await process.until(handle.id, has("activity.failed", attempt))
        if evict:
            await process.evict()
        await process.kill()
        process = await any_world.worker(stubborn_flow)
        await process.settle()
        retry_us = failures(history)[-1].retry_us
        assert retry_us is not None
        left_s = (retry_us - any_world.clock.now_us()) / MICROSECONDS
        await process.advance(left_s - 0.000_001)
        assert len(runs[handle.id]) == attempt, "not before its time"
        await process.advance(0.000_001)
    output = await soon(process.gasoline.handle(handle.id, stubborn_flow).output())
    assert output == f"at attempt 3, first tried at {started}"
    assert runs[handle.id] == ["attempt 1", "attempt 2", "attempt 3"]


async def test_restart_recovers_workflows_of_every_kind_at_once(any_world: World) -> None:
    """design §5: running, sleeping, waiting and complete ones, by folding the log."""
    process = await any_world.worker(nap, one_note, timed_note, echo)
    gasoline = process.gasoline
    naps = [await gasoline.dispatch(nap, 30.0) for _ in range(10)]
    waiting = [await gasoline.dispatch(one_note, None, tags={"n": n}) for n in range(10)]
    timed = [await gasoline.dispatch(timed_note, 30.0) for _ in range(10)]
    done = [await gasoline.dispatch(echo, str(n)) for n in range(10)]
    await process.evict()
    await process.kill()
    any_world.clock.advance(60)
    again = (await any_world.worker(nap, one_note, timed_note, echo)).gasoline
    for number in range(10):
        await again.signal(Note(text="hi"), one_note, tags={"n": number})
    assert [await soon(again.handle(h.id, nap).output()) for h in naps] == ["awake"] * 10
    assert [await soon(again.handle(h.id, one_note).output()) for h in waiting] == ["hi"] * 10
    assert [await soon(again.handle(h.id, timed_note).output()) for h in timed] == ["timeout"] * 10
    assert [await soon(again.handle(h.id, echo).output()) for h in done] == [str(n) for n in range(10)]


async def test_activity_in_flight_at_a_kill_is_run_again(any_world: World) -> None:
    """design §5: nothing was recorded of it, so it starts again at attempt 1."""
    reached = asyncio.Event()

    @activity
    async def cut_off(ctx: ActivityContext, _: None) -> str:
        runs.setdefault(ctx.workflow_id, []).append(ctx.idempotency_key)
        if len(runs[ctx.workflow_id]) == 1:
            reached.set()
            await asyncio.get_running_loop().create_future()
        return "second time"

    @workflow
    async def cut_flow(ctx: WorkflowContext, _: None) -> str:
        return await ctx.activity(cut_off, None)

    process = await any_world.worker(cut_flow)
    handle = await process.gasoline.dispatch(cut_flow, None)
    await soon(reached.wait())
    await process.kill()
    again = await any_world.worker(cut_flow)
    assert await soon(again.gasoline.handle(handle.id, cut_flow).output()) == "second time"
    first, second = runs[handle.id]
    assert first == second, "what deduplicates elsewhere by it does not see two"
    (completed,) = successes(await again.gasoline.history(handle.id))
    assert completed.attempt == 1


async def test_epoch_of_an_event_tells_which_life_wrote_it(any_world: World) -> None:
    """design §4: the envelope names epoch and worker."""
    process = await any_world.worker(notes)
    handle = await process.gasoline.dispatch(notes, 2)
    for text in ("a", "b"):
        await process.gasoline.signal(Note(text=text), to=handle.id)
        await process.settle()
        await process.kill()
        process = await any_world.worker(notes)
    history = await process.gasoline.history(handle.id)
    received = [event for event in history if isinstance(event.data, ev.SignalReceived)]
    assert received[0].epoch < received[1].epoch
    assert received[0].worker != received[1].worker
