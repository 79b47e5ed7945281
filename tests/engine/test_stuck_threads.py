"""Required case B16: a timeout on blocking code in a thread takes effect when it is over, not when the code returns."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest
from pydantic import BaseModel

from gasoline_es import ActivityContext, Backoff, Gasoline, WorkflowContext, activity, workflow
from tests.engine.harness import World, failures, soon, successes
from tests.engine.subprocesses import line, worker_process
from tests.engine.workflows import blocked, blocked_long, echo, lingering


class Marked(BaseModel):
    by: int = 0


async def test_thread_that_blocks_times_out_and_its_late_result_is_dropped(world: World) -> None:
    """required.md B16: recorded as timed out; late result and state change never overwrite attempt 2; others go on."""
    release, done = threading.Event(), threading.Event()

    @activity(max_attempts=2, timeout=0.2, backoff=Backoff(base=1, doublings=0))
    def stuck(ctx: ActivityContext, _: None) -> str:
        if ctx.attempt == 1:
            release.wait()
            ctx.state(Marked).by = 1
            done.set()
            return "late"
        ctx.state(Marked).by = 2
        return "in time"

    @workflow
    async def sticky(ctx: WorkflowContext, _: None) -> str:
        return await ctx.activity(stuck, None)

    process = await world.worker(sticky, echo)
    try:
        started = time.monotonic()
        handle = await process.gasoline.dispatch(sticky, None)
        for number in range(20):  # the other workflow is not delayed
            assert await soon((await process.gasoline.dispatch(echo, str(number))).output()) == str(number)
        history = await process.until(handle.id, lambda events: len(failures(events)) == 1)
        assert 0.2 <= time.monotonic() - started < 5
        (failure,) = failures(history)
        assert failure.error.type == "TimeoutError"
        assert "0.2 s" in failure.error.message
        await process.advance(1.2)  # the backoff, with its jitter
        assert await soon(handle.output()) == "in time"
    finally:
        release.set()
    assert await asyncio.to_thread(done.wait, 10)
    await process.settle()
    history = await handle.history()
    assert [one.output for one in successes(history)] == [b'"in time"']
    assert (await handle.get()).state == {"by": 2}


async def test_thread_is_told_that_its_result_is_not_wanted_any_more(world: World) -> None:
    """api.md: ctx.cancelled turns true when the attempt timed out."""
    seen = threading.Event()

    @activity(max_attempts=1, timeout=0.05)
    def polite(ctx: ActivityContext, _: None) -> None:
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        seen.set()

    @workflow
    async def polite_one(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(polite, None)

    process = await world.worker(polite_one)
    handle = await process.gasoline.dispatch(polite_one, None)
    await process.status(handle.id, "dead")
    assert await asyncio.to_thread(seen.wait, 10)


async def test_worker_ends_within_its_limit_although_a_thread_is_stuck(world: World) -> None:
    """required.md B16, semantics.md §8: the limit counts, not the thread; after a restart the activity runs again."""
    release, runs = threading.Event(), 0

    @activity(timeout=600)
    def stuck_once(ctx: ActivityContext, _: None) -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            release.wait()
        return "run again"

    @workflow
    async def stuck_flow(ctx: WorkflowContext, _: None) -> str:
        return await ctx.activity(stuck_once, None)

    process = await world.worker(stuck_flow)
    try:
        handle = await process.gasoline.dispatch(stuck_flow, None)
        await process.settle()
        assert process.worker is not None
        started = time.monotonic()
        await process.worker.stop(limit_s=0.1)
        assert time.monotonic() - started < 5
        await process.stop()
        again = await world.worker(stuck_flow)
        assert await soon(again.gasoline.handle(handle.id, stuck_flow).output()) == "run again"
        (done,) = successes(await again.gasoline.history(handle.id))
        assert done.attempt == 1, "what was given up by a clean stop is no failed attempt"
    finally:
        release.set()


# --- SIGTERM, in a process of its own ---------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["its limit", "a second signal"])
async def test_sigterm_ends_a_worker_whose_thread_is_stuck(file_world: World, again: bool) -> None:
    """required.md B16, semantics.md §8: within the limit; at once when a second signal comes."""
    async with Gasoline.open(file_world.url) as gasoline:
        handle = await gasoline.dispatch(blocked_long, None)
        async with worker_process(file_world.url, "60" if again else "0.3") as process:
            assert await line(process) == "ready"
            assert await line(process) == "blocked"
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            if again:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await process.wait()
                process.send_signal(signal.SIGTERM)
            assert await line(process) == "stopped"
            assert await soon(process.wait()) == 0
            assert time.monotonic() - started < 10
        assert successes(await handle.history()) == []
        assert (await handle.get()).status == "running"


async def test_timeout_of_one_second_is_recorded_while_the_thread_still_blocks(file_world: World) -> None:
    """required.md B16 as it is told: a timeout of 1 s, recorded at about 1 s, then SIGTERM while the thread blocks."""
    async with Gasoline.open(file_world.url) as gasoline:
        handle = await gasoline.dispatch(blocked, None)
        async with worker_process(file_world.url) as process:
            assert await line(process) == "ready"
            assert await line(process) == "blocked"
            async with asyncio.timeout(20):
                while not (failed := failures(await handle.history())):
                    await asyncio.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            assert await line(process) == "stopped"
            assert await soon(process.wait()) == 0
        (failure,) = failed
        history = await handle.history()
        recorded_us = next(event.time_us for event in history if event.data == failure)
        assert 1_000_000 <= recorded_us - failure.started_us < 3_000_000
        assert failure.error.type == "TimeoutError"


async def test_sigterm_lets_a_running_activity_end_and_records_its_result(file_world: World) -> None:
    """semantics.md §8: wait for running activities up to a limit; the result is durable, the next step not begun."""
    async with Gasoline.open(file_world.url) as gasoline:
        handle = await gasoline.dispatch(lingering, None)
        async with worker_process(file_world.url) as process:
            assert await line(process) == "ready"
            assert await line(process) == "lingering"
            process.send_signal(signal.SIGTERM)
            assert await line(process) == "stopped"
            assert await soon(process.wait()) == 0
        assert [done.output for done in successes(await handle.history())] == [b'"done"']
        assert (await handle.get()).status == "running", "the body goes no further while the worker stops"
