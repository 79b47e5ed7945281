"""Required cases B11, B12 and B13: deadlines are absolute, exact, and come once, whatever the clocks do."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gasoline_es import Gasoline, WorkflowContext, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.durations import MAX_US, MICROSECONDS, from_datetime
from gasoline_es.core.events import Event
from gasoline_es.errors import WorkflowFailed
from tests.engine.harness import World, soon, types
from tests.engine.workflows import Note, echo, nap, timed_note

DAY_S = 86_400.0


def deadlines(history: list[Event]) -> list[int]:
    return [event.data.deadline_us for event in history if isinstance(event.data, ev.SleepStarted)]


def endings(history: list[Event]) -> list[str]:
    return [event.data.outcome for event in history if isinstance(event.data, ev.SleepFinished)]


# --- B11 --------------------------------------------------------------------------------------------------------------


async def test_timed_listen_keeps_its_deadline_over_kills(any_world: World) -> None:
    """required.md B11: killed at +20 s and +40 s, the timeout comes 60 s after the first start."""
    first = await any_world.worker(timed_note)
    handle = await first.gasoline.dispatch(timed_note, 60.0)
    await first.settle()
    started_us = any_world.clock.now_us()
    process = first
    for _ in range(2):
        any_world.clock.advance(20)
        await process.kill()
        process = await any_world.worker(timed_note)
        await process.settle()
    await process.advance(19.999)
    assert (await process.gasoline.get(handle.id)).status != "complete"
    await process.advance(0.001)
    history = await process.status(handle.id, "complete")
    assert deadlines(history) == [started_us + 60 * MICROSECONDS]
    assert endings(history) == ["uninterrupted"]
    assert await process.gasoline.handle(handle.id, timed_note).output() == "timeout"


@pytest.mark.parametrize("evicted", [False, True])
async def test_timed_listen_that_ran_out_while_nobody_worked_looks_at_the_queue_once_more(
    any_world: World, evicted: bool
) -> None:
    """required.md B11, variant; semantics.md §5: workers down from +50 s to +70 s, the signal sent at +65 s."""
    process = await any_world.worker(timed_note)
    handle = await process.gasoline.dispatch(timed_note, 60.0)
    await process.settle()
    if evicted:
        await process.evict()
        assert not process.in_memory(handle.id)
    any_world.clock.set_wall((await handle.history())[0].time_us + 50 * MICROSECONDS)
    await process.kill()
    any_world.clock.advance(15)
    client = await any_world.process()
    await client.gasoline.signal(Note(text="late"), to=handle.id)
    await client.stop()
    any_world.clock.advance(5)
    again = await any_world.worker(timed_note)
    assert await soon(again.gasoline.handle(handle.id, timed_note).output()) == "late"
    assert endings(await again.gasoline.history(handle.id)) == ["interrupted"]


# --- B12 --------------------------------------------------------------------------------------------------------------


@workflow
async def far_sleep(ctx: WorkflowContext, days: float) -> str:
    await ctx.sleep(timedelta(days=days))
    return "woke"


@workflow
async def sleep_to_the_end(ctx: WorkflowContext, _: None) -> None:
    await ctx.sleep_until(datetime.max.replace(tzinfo=UTC))


@workflow
async def longest(ctx: WorkflowContext, what: str) -> None:
    if what == "timedelta.max":
        await ctx.sleep(timedelta.max)
    elif what == "inf":
        await ctx.sleep(math.inf)
    elif what == "nan":
        await ctx.sleep(math.nan)
    elif what == "listen inf":
        await ctx.listen(Note, timeout=math.inf)
    elif what == "listen nan":
        await ctx.listen(Note, timeout=math.nan)
    elif what == "naive":
        await ctx.sleep_until(datetime(9999, 1, 1))  # noqa: DTZ001 -- the mistake under test
    elif what == "negative":
        await ctx.sleep(-1)
    else:
        await ctx.sleep(timedelta(days=7_990 * 365))  # in itself a time, but it ends after the year 9999


async def test_far_deadlines_are_stored_exactly_and_leave_the_worker_serving_others(any_world: World) -> None:
    """required.md B12: 25 and 50 days, 300 years, the year 9999; moving the clock past 50 days wakes that sleep once."""
    process = await any_world.worker(far_sleep, sleep_to_the_end, echo)
    gasoline = process.gasoline
    now_us = any_world.clock.now_us()
    days = [25.0, 50.0, 300 * 365.0]
    handles = [await gasoline.dispatch(far_sleep, many) for many in days]
    last = await gasoline.dispatch(sleep_to_the_end, None)
    await process.evict()
    for many, handle in zip(days, handles, strict=True):
        assert deadlines(await handle.history()) == [now_us + int(many * DAY_S) * MICROSECONDS]
    assert deadlines(await last.history()) == [MAX_US]
    assert deadlines(await last.history()) == [from_datetime(datetime.max.replace(tzinfo=UTC))]
    assert await soon((await gasoline.dispatch(echo, "served")).output()) == "served"

    await process.advance(50 * DAY_S)
    assert [(await handle.get()).status for handle in handles] == ["complete", "complete", "sleeping"]
    assert endings(await handles[1].history()) == ["normal"]
    assert await soon((await gasoline.dispatch(echo, "still served")).output()) == "still served"
    assert (await last.get()).waiting_until == datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "what", ["timedelta.max", "inf", "nan", "listen inf", "listen nan", "naive", "negative", "after 9999"]
)
async def test_deadline_that_cannot_be_is_a_value_error_before_anything_is_recorded(world: World, what: str) -> None:
    """required.md B12, design §1.5."""
    process = await world.worker(longest, echo)
    handle = await process.gasoline.dispatch(longest, what)
    with pytest.raises(WorkflowFailed, match="ValueError"):
        await soon(handle.output())
    assert types(await handle.history()) == ["workflow.dispatched", "workflow.failed"]
    assert await soon((await process.gasoline.dispatch(echo, "lives")).output()) == "lives"


async def test_worker_with_far_sleeps_only_uses_no_processor_time(tmp_path: Path) -> None:
    """required.md B12: CPU is idle while waiting, on the real clock and the file log."""
    async with Gasoline.open(f"file:{tmp_path}/log") as gasoline, gasoline.worker([far_sleep], evict_after=0.05):
        for many in range(1, 21):
            await gasoline.dispatch(far_sleep, 25.0 * many)
        async with asyncio.timeout(20):
            while [one.status async for one in gasoline.list()] != ["sleeping"] * 20:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        before = time.process_time()
        await asyncio.sleep(1.0)
        assert time.process_time() - before < 0.3


# --- B13 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evicted", [False, True])
async def test_sleeps_are_not_lost_when_the_wall_clock_steps_back_between(any_world: World, evicted: bool) -> None:
    """required.md B13: 100 sleeps due at T; picked at T+1, then the wall goes to T-30 and on past T."""
    process = await any_world.worker(nap)
    handles = [await process.gasoline.dispatch(nap, 100.0) for _ in range(100)]
    await process.settle()
    recorded = [deadlines(await handle.history()) for handle in handles]
    if evicted:
        await process.evict()
    due_us = recorded[0][0]
    any_world.clock.set_wall(due_us + 1 * MICROSECONDS)  # the timers fire now, nothing has run yet
    any_world.clock.set_wall(due_us - 30 * MICROSECONDS)
    await process.settle()
    any_world.clock.advance(29)
    await process.settle()
    any_world.clock.advance(2)
    await process.settle()
    for handle, before in zip(handles, recorded, strict=True):
        history = await handle.history()
        assert (await handle.get()).status == "complete"
        assert endings(history) == ["normal"]
        assert deadlines(history) == before


async def test_sleep_survives_a_step_back_while_an_append_holds_it_up(world: World) -> None:
    """required.md B13: the timer fires while the sleep's own start is on its way to the log; then the wall steps back."""
    process = await world.worker(nap)
    handle = await process.gasoline.dispatch(nap, 10.0)
    await process.settle()
    process.log.open_gate.clear()
    note = asyncio.ensure_future(process.gasoline.signal(Note(), to=handle.id))
    await process.log.asked.wait()
    world.clock.jump_wall(11)
    world.clock.jump_wall(-30)
    process.log.open_gate.set()
    await note
    await process.settle()
    world.clock.jump_wall(31)
    await process.settle()
    assert await soon(handle.output()) == "awake"
    assert endings(await handle.history()) == ["normal"]


async def test_jump_of_a_day_forward_ends_what_is_due_and_takes_nobodys_partitions(any_world: World) -> None:
    """required.md B13: a wall step of one day does not free leases, nor stop the worker from writing."""
    process = await any_world.worker(nap, echo)
    short = await process.gasoline.dispatch(nap, 3_600.0)
    long = await process.gasoline.dispatch(nap, 2 * DAY_S)
    await process.settle()
    other = await any_world.process()
    any_world.clock.jump_wall(DAY_S)
    await process.settle()
    assert (await short.get()).status == "complete"
    assert (await long.get()).status != "complete"
    for index in range(process.log.partition_count):
        owner = other.log.owner(index)
        assert owner is not None
        assert owner.alive
        assert owner.incarnation == process.log.incarnation
    assert await soon((await process.gasoline.dispatch(echo, "still the owner")).output()) == "still the owner"
