"""Of each workflow the timers hold its next deadline and nothing else: none is missed, and none outlives what it was for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gasoline_es import ActivityContext, Backoff, WorkflowContext, activity, workflow
from gasoline_es.errors import Fenced
from gasoline_es.runtime.activities import IDLE_LIMITS_MAX, Attempt, TimeLimits
from tests.engine.harness import World, soon, types, when
from tests.engine.workflows import Note, nap

HOUR_S = 3_600.0


@activity(timeout=86_400)
async def for_ever(ctx: ActivityContext, _: None) -> None:
    await asyncio.Event().wait()


@workflow
async def short_and_long(ctx: WorkflowContext, _: None) -> str:
    """Sleep twice side by side, beside an activity that keeps the workflow in memory."""

    async def naps(ctx: WorkflowContext) -> None:
        await ctx.join(ctx.sleep(10.0), ctx.sleep(100.0))

    await ctx.race(ctx.activity(for_ever, None), ctx.closure(naps))
    return "both passed"


@workflow
async def answered_early(ctx: WorkflowContext, _: None) -> str:
    """Listen for a minute, which a signal cuts short; then sleep for longer beside an activity."""
    await ctx.listen(Note, timeout=60.0)
    await ctx.race(ctx.activity(for_ever, None), ctx.sleep(300.0))
    return "slept"


async def test_the_later_of_two_deadlines_comes_after_the_earlier_has_passed(any_world: World) -> None:
    """semantics.md §4, join: the second sleep ends at its own time, whatever keeps the workflow in memory."""
    process = await any_world.worker(short_and_long)
    handle = await process.gasoline.dispatch(short_and_long, None)
    await process.advance(10)
    await process.advance(89)
    assert (await handle.get()).status == "running"
    await process.advance(1)
    assert await soon(handle.output(), 2) == "both passed"


async def test_a_deadline_behind_one_that_no_longer_counts_is_kept(any_world: World) -> None:
    """semantics.md §5: the listen's time is over when its signal comes, and the sleep after it has its own."""
    process = await any_world.worker(answered_early)
    handle = await process.gasoline.dispatch(answered_early, None)
    await process.advance(1)
    await process.gasoline.signal(Note(text="early"), to=handle.id)
    await process.advance(59)
    await process.advance(240)
    assert (await handle.get()).status == "running"
    await process.advance(1)
    assert await soon(handle.output(), 2) == "slept"


# --- what is left of it -----------------------------------------------------------------------------------------------


@activity(timeout=HOUR_S, heartbeat_timeout=HOUR_S)
async def quick(ctx: ActivityContext, _: None) -> None: ...


@workflow
async def quick_and_listens(ctx: WorkflowContext, _: None) -> str:
    """An activity that may take an hour, and a listen that may."""
    await ctx.activity(quick, None)
    note = await ctx.listen(Note, timeout=HOUR_S)
    return "too late" if note is None else note.text


@activity(max_attempts=2, backoff=Backoff(base=HOUR_S, doublings=0))
async def fails(ctx: ActivityContext, _: None) -> None:
    raise ValueError("not today")


@workflow
async def raced(ctx: WorkflowContext, _: None) -> int:
    """The losers of a race had deadlines: a retry, a sleep."""
    index, _value = await ctx.race(ctx.activity(fails, None), ctx.sleep(HOUR_S), ctx.listen(Note))
    return index


async def test_workflows_that_are_answered_early_leave_no_timers(any_world: World) -> None:
    """An activity, its heartbeats and a listen end early: until their hour is over nothing of them is kept."""
    process = await any_world.worker(quick_and_listens)
    handles = [await process.gasoline.dispatch(quick_and_listens, None) for _ in range(100)]
    await process.settle()
    assert len(process.driver.timers) == 100
    for handle in handles:
        await process.gasoline.signal(Note(text="early"), to=handle.id)
    assert [await soon(handle.output()) for handle in handles] == ["early"] * 100
    assert len(process.driver.timers) == 0
    assert left_in_the_loop() == []


async def test_what_loses_a_race_leaves_no_timer(any_world: World) -> None:
    process = await any_world.worker(raced)
    handle = await process.gasoline.dispatch(raced, None)
    await process.until(handle.id, lambda history: "activity.failed" in types(history))
    await process.settle()
    assert len(process.driver.timers) == 1
    await process.gasoline.signal(Note(), to=handle.id)
    assert await soon(handle.output()) == 2
    assert len(process.driver.timers) == 0


@pytest.mark.parametrize("evicted", [False, True])
@pytest.mark.parametrize("verb", ["cancel", "silence"])
async def test_workflows_that_are_ended_from_outside_leave_no_timers(
    any_world: World, verb: str, evicted: bool
) -> None:
    process = await any_world.worker(nap)
    handle = await process.gasoline.dispatch(nap, HOUR_S)
    await process.settle()
    if evicted:
        await process.evict()
        assert not process.in_memory(handle.id)
    assert len(process.driver.timers) == 1
    await (handle.cancel() if verb == "cancel" else handle.silence())
    await process.settle()
    assert len(process.driver.timers) == 0


@pytest.mark.parametrize("evicted", [False, True])
async def test_a_partition_that_is_given_up_leaves_no_timers(any_world: World, evicted: bool) -> None:
    """design §5: its next owner sees to what waits there."""
    process = await any_world.worker(nap)
    for _ in range(20):
        await process.gasoline.dispatch(nap, HOUR_S)
    await process.settle()
    if evicted:
        await process.evict()
    assert len(process.driver.timers) == 20
    assert process.worker is not None
    for chore in process.worker._tasks:
        chore.cancel()  # it would take them again
    await process.node.release_all()
    assert len(process.driver.timers) == 0


async def test_a_partition_that_was_taken_away_leaves_no_timers(world: World) -> None:
    process = await world.worker(nap)
    for _ in range(20):
        await process.gasoline.dispatch(nap, HOUR_S)
    await process.settle()
    process.log.always = Fenced
    for index in range(process.log.partition_count):
        process.node.partitions[index].when_durable(lambda error: None)
    await process.settle()
    assert process.node.partitions == {}
    assert len(process.driver.timers) == 0


async def test_schedules_and_parked_signals_that_are_over_leave_no_alarms(any_world: World) -> None:
    process = await any_world.worker(nap)
    gasoline = process.gasoline
    schedule = await gasoline.schedule(HOUR_S, nap, HOUR_S)
    await gasoline.signal(Note(text="parked"), nap, tags={"who": "me"}, park=HOUR_S)
    alarms = process.node._alarms
    assert len(alarms) == 2
    await schedule.pause()
    assert len(alarms) == 1
    await schedule.resume()
    assert len(alarms) == 2
    await schedule.remove()
    await gasoline.dispatch(nap, HOUR_S, tags={"who": "me"})
    await when(lambda: len(alarms) == 0)


async def test_alarms_of_a_partition_that_is_given_up_are_let_go(any_world: World) -> None:
    process = await any_world.process()
    await process.gasoline.schedule(HOUR_S, nap, HOUR_S)
    await process.gasoline.signal(Note(), nap, tags={"who": "me"}, park=HOUR_S)
    assert len(process.node._alarms) == 2
    await process.node.release_all()
    assert len(process.node._alarms) == 0


# --- attempts ---------------------------------------------------------------------------------------------------------


async def test_limits_of_attempts_that_end_in_time_leave_nothing_behind() -> None:
    """100,000 attempts of an hour's timeout, one after the other, and a timer for them all (decision 0009)."""
    loop = asyncio.get_running_loop()
    limits = TimeLimits(loop, lambda attempt: None)
    for _ in range(100_000):
        attempt = an_attempt()
        limits.add(attempt, 3_600_000_000)
        limits.discard(attempt, 3_600_000_000)
    assert list(limits._by_limit.values()) == [{}]
    limits.close()


async def test_limits_that_code_computes_do_not_pile_up() -> None:
    """Each attempt has a limit of its own: those that nobody is under any more are let go of, the others kept."""
    loop = asyncio.get_running_loop()
    limits = TimeLimits(loop, lambda attempt: None)
    kept = [an_attempt() for _ in range(50)]
    for number, attempt in enumerate(kept):
        limits.add(attempt, 7_200_000_000 + number)
    for number in range(10_000):
        attempt = an_attempt()
        limits.add(attempt, 3_600_000_000 + number)
        limits.discard(attempt, 3_600_000_000 + number)
        assert len(limits._timers) <= 2 * (len(kept) + 1) + IDLE_LIMITS_MAX
    assert sum(map(len, limits._by_limit.values())) == len(kept)
    limits.close()


def an_attempt() -> Attempt:
    return Attempt.__new__(Attempt)


def left_in_the_loop() -> list[str]:
    """The timers of the event loop that are not cancelled and belong to attempts' heartbeats."""
    loop: Any = asyncio.get_running_loop()
    handles: list[asyncio.TimerHandle] = loop._scheduled
    return [repr(one) for one in handles if not one.cancelled() and "_listen_for_heart" in repr(one)]
