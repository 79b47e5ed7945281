"""Activities through the engine: retries, limits, state (semantics.md §4)."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest
from pydantic import BaseModel

from gasoline_es import ActivityContext, Backoff, NotRetryable, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.durations import MICROSECONDS
from gasoline_es.errors import ActivityFailed, ActivityMaxFailuresReached, WorkflowFailed
from tests.engine.harness import Process, World, failures, has, soon, successes, types


class Balance(BaseModel):
    amount: int = 0


seen: dict[str, list[tuple[int, str, datetime, datetime]]] = {}
"""By workflow: what each attempt was told."""


@activity(max_attempts=3)
async def flaky(ctx: ActivityContext, fails: int) -> int:
    seen.setdefault(ctx.workflow_id, []).append(
        (ctx.attempt, ctx.idempotency_key, ctx.first_attempt_at, ctx.attempt_at)
    )
    ctx.state(Balance).amount += 100
    if ctx.attempt <= fails:
        raise RuntimeError(f"failure {ctx.attempt}")
    return ctx.attempt


@workflow
async def trying(ctx: WorkflowContext, fails: int) -> int:
    return await ctx.activity(flaky, fails)


async def retried(process: Process, workflow_id: str, times: int) -> None:
    """Let the backoffs after so many failed attempts pass, one by one."""
    for number in range(1, times + 1):
        history = await process.until(workflow_id, has("activity.failed", number))
        last = failures(history)[-1]
        if last.retry_us is not None:
            await process.advance((last.retry_us - process.world.clock.now_us()) / MICROSECONDS)


async def test_failed_attempt_is_tried_again_after_its_backoff_and_not_before(any_world: World) -> None:
    """semantics.md §4: base 500 ms, doubling, some jitter; the workflow replays and runs that activity again."""
    process = await any_world.worker(trying)
    handle = await process.gasoline.dispatch(trying, 2)
    await process.settle()
    (first,) = failures(await handle.history())
    assert first.retry_us is not None
    wait_us = first.retry_us - any_world.clock.now_us()
    assert 500_000 <= wait_us <= 550_000
    await process.advance((wait_us - 1) / MICROSECONDS)
    assert len(failures(await handle.history())) == 1
    await process.advance(1 / MICROSECONDS)
    _, second = failures(await handle.history())
    assert second.retry_us is not None
    assert 1_000_000 <= second.retry_us - any_world.clock.now_us() <= 1_100_000
    await process.advance(1.1)
    assert await soon(handle.output()) == 3
    history = await handle.history()
    assert [failure.attempt for failure in failures(history)] == [1, 2]
    assert [done.attempt for done in successes(history)] == [3]
    assert [failure.error.message for failure in failures(history)] == ["failure 1", "failure 2"]


async def test_attempts_share_one_idempotency_key_and_know_the_first_ones_time(world: World) -> None:
    """api.md: idempotency_key is the same for every attempt; semantics.md §4: first and this attempt's time."""
    process = await world.worker(trying)
    handle = await process.gasoline.dispatch(trying, 2)
    await retried(process, handle.id, 2)
    await soon(handle.output())
    told = seen[handle.id]
    assert [attempt for attempt, _, _, _ in told] == [1, 2, 3]
    assert {key for _, key, _, _ in told} == {f"{handle.id}:{{1}}"}
    assert {first for _, _, first, _ in told} == {told[0][3]}
    assert told[0][3] < told[1][3] < told[2][3]


async def test_state_is_committed_with_the_result_and_dropped_on_failure(world: World) -> None:
    """semantics.md §4: two failed attempts each added 100; only the third one's change is kept."""
    process = await world.worker(trying)
    handle = await process.gasoline.dispatch(trying, 2)
    await retried(process, handle.id, 2)
    await soon(handle.output())
    assert (await handle.get()).state == {"amount": 100}
    assert successes(await handle.history())[0].state == b'{"amount":100}'


@workflow
async def forgiving(ctx: WorkflowContext, fails: int) -> str:
    try:
        await ctx.activity(flaky, fails)
    except ActivityMaxFailuresReached as error:
        return f"gave up after {error.attempts} at {error.location}: {error.error.message}"
    return "never"


async def test_max_attempts_raise_into_the_body_and_can_be_caught(any_world: World) -> None:
    """semantics.md §4: at max_attempts the error becomes ActivityMaxFailuresReached, final, on replay too."""
    process = await any_world.worker(forgiving)
    handle = await process.gasoline.dispatch(forgiving, 99)
    await retried(process, handle.id, 3)
    assert await soon(handle.output()) == "gave up after 3 at {1}: failure 3"
    last = failures(await handle.history())[-1]
    assert (last.final, last.exhausted, last.retry_us) == (True, True, None)


async def test_uncaught_max_attempts_leave_a_dead_workflow_whose_error_is_kept(world: World) -> None:
    """semantics.md §4, §7; waking it replays what is recorded: a final failure stays final."""
    process = await world.worker(trying)
    handle = await process.gasoline.dispatch(trying, 99)
    await retried(process, handle.id, 3)
    with pytest.raises(WorkflowFailed, match="ActivityMaxFailuresReached"):
        await soon(handle.output())
    info = await handle.get()
    assert info.status == "dead"
    assert info.error is not None
    assert info.error.type == "ActivityMaxFailuresReached"
    assert "failure 3" in info.error.message
    assert [one.id async for one in process.gasoline.list(status="dead", error="failure 3")] == [handle.id]
    await handle.wake()
    await process.settle()
    assert (await handle.get()).status == "dead"
    assert len(seen[handle.id]) == 3, "the activity was not run again"


@activity(max_attempts=5)
async def hopeless(ctx: ActivityContext, _: None) -> None:
    ctx.state(Balance).amount = 1
    raise NotRetryable("card", {"code": 51})


@workflow
async def hopeful(ctx: WorkflowContext, _: None) -> str:
    try:
        await ctx.activity(hopeless, None)
    except ActivityMaxFailuresReached:
        return "tried again"
    except ActivityFailed as error:
        return f"{error.error.details!r}"
    return "never"


async def test_not_retryable_ends_the_attempts_at_once_with_its_details(world: World) -> None:
    """semantics.md §4, api.md: NotRetryable stops retries; .details are what follows its message."""
    process = await world.worker(hopeful)
    handle = await process.gasoline.dispatch(hopeful, None)
    assert await soon(handle.output()) == repr(b'[{"code":51}]')
    (failure,) = failures(await handle.history())
    assert (failure.final, failure.exhausted) == (True, False)
    assert (await handle.get()).state is None


async def test_async_activity_that_takes_too_long_times_out_and_is_cancelled(world: World) -> None:
    """semantics.md §4: activities run under their timeout."""
    cancelled = asyncio.Event()

    @activity(max_attempts=2, timeout=0.05, backoff=Backoff(base=1, doublings=0))
    async def slow(ctx: ActivityContext, _: None) -> str:
        if ctx.attempt == 2:
            return "in time"
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "never"

    @workflow
    async def slow_flow(ctx: WorkflowContext, _: None) -> str:
        return await ctx.activity(slow, None)

    process = await world.worker(slow_flow)
    handle = await process.gasoline.dispatch(slow_flow, None)
    history = await process.until(handle.id, has("activity.failed"))
    await soon(cancelled.wait())
    assert failures(history)[0].error.type == "TimeoutError"
    await process.advance(1.1)
    assert await soon(handle.output()) == "in time"


async def test_timeout_without_retry_is_final(world: World) -> None:
    """api.md: retry_on_timeout=False."""

    @activity(timeout=0.05, retry_on_timeout=False)
    async def one_chance(ctx: ActivityContext, _: None) -> None:
        await asyncio.get_running_loop().create_future()

    @workflow
    async def one_chance_flow(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(one_chance, None)

    process = await world.worker(one_chance_flow)
    handle = await process.gasoline.dispatch(one_chance_flow, None)
    history = await process.status(handle.id, "dead")
    assert [failure.final for failure in failures(history)] == [True]


async def test_settings_of_the_call_override_those_of_the_definition(world: World) -> None:
    """api.md: ctx.activity(…, max_attempts=, timeout=)."""

    @workflow
    async def once(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(flaky, 99, max_attempts=1)

    process = await world.worker(once)
    handle = await process.gasoline.dispatch(once, None)
    history = await process.status(handle.id, "dead")
    assert [(failure.attempt, failure.final) for failure in failures(history)] == [(1, True)]


async def test_activity_starts_only_when_what_it_rests_on_is_durable(world: World) -> None:
    """design §1.1: no activity starts before the events before it are durable."""
    started: list[str] = []

    @activity
    async def note_start(ctx: ActivityContext, name: str) -> str:
        started.append(name)
        return name

    @workflow
    async def two_steps(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(note_start, "first")
        await ctx.activity(note_start, "second")

    process = await world.worker(two_steps)
    process.log.open_gate.clear()
    dispatching = asyncio.ensure_future(process.gasoline.dispatch(two_steps, None))
    await process.log.asked.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert started == []
    assert not dispatching.done()
    process.log.asked.clear()
    process.log.open_gate.set()
    handle = await dispatching
    process.log.open_gate.clear()
    await process.log.asked.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert started == ["first"], "the first one's result is not durable yet"
    process.log.open_gate.set()
    await soon(handle.output())
    assert started == ["first", "second"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_attempts_at_a_time_are_bounded(world: World, kind: str) -> None:
    """api.md: worker(max_concurrency=…); the others wait their turn and all run."""
    running, most = 0, 0

    @activity
    async def counted(ctx: ActivityContext, _: None) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    @activity
    def counted_thread(ctx: ActivityContext, _: None) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1

    @workflow
    async def counting(ctx: WorkflowContext, _: None) -> None:
        if kind == "async":
            await ctx.activity(counted, None)
        else:
            await ctx.activity(counted_thread, None)

    process = await world.worker(counting, max_concurrency=3)
    handles = await asyncio.gather(*(process.gasoline.dispatch(counting, None) for _ in range(30)))
    for handle in handles:
        await soon(handle.output())
    assert 1 <= most <= 3
    if kind == "async":
        assert most == 3


async def test_attempt_that_waits_for_its_turn_is_dropped_when_its_partition_is_lost(world: World) -> None:
    """semantics.md §8: what this process lost does not run here later, nor takes the room of what does."""
    go = asyncio.Event()

    @activity
    async def hold(ctx: ActivityContext, number: int) -> int:
        if number == 1:
            await go.wait()
        return number

    @workflow
    async def holding(ctx: WorkflowContext, number: int) -> int:
        return await ctx.activity(hold, number)

    process = await world.worker(holding, max_concurrency=1)
    first = await process.gasoline.dispatch(holding, 1)
    while True:
        second = await process.gasoline.dispatch(holding, 2)
        if process.node.index_of(second.id) != process.node.index_of(first.id):
            break
    await process.settle()
    steal(process, process.node.index_of(second.id))
    await process.gasoline.wake(second.id)  # an append notices that the partition was lost, and it is taken again
    await process.settle()
    go.set()
    assert await soon(first.output()) == 1
    assert await soon(second.output()) == 2
    await process.settle()
    assert process.worker is not None
    assert process.worker.running == 0


def steal(process: Process, partition: int) -> None:
    """Let another process take the partition and vanish."""
    from gasoline_es.log.memory import MemoryLog

    assert isinstance(process.log.inner, MemoryLog)
    process.log.inner.steal(partition)


async def test_waiting_attempt_that_starts_as_another_times_out_has_its_own_limit(world: World) -> None:
    """semantics.md §4: each attempt has its whole timeout, counted from its own start."""
    never = asyncio.get_running_loop().create_future()

    @activity(timeout=0.1, max_attempts=1)
    async def endless(ctx: ActivityContext, _: None) -> None:
        await asyncio.shield(never)

    @workflow
    async def endless_flow(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(endless, None)

    process = await world.worker(endless_flow, max_concurrency=2)
    handles = [await process.gasoline.dispatch(endless_flow, None) for _ in range(6)]
    for handle in handles:
        history = await process.status(handle.id, "dead")
        assert failures(history)[0].error.type == "TimeoutError"
    never.cancel()


# --- records have a limit ---------------------------------------------------------------------------------------------


@activity(max_attempts=2)
async def shout(ctx: ActivityContext, text: str) -> str:
    raise ValueError("\x00" * 300_000 + text)


@activity(max_attempts=2)
async def blow_up(ctx: ActivityContext, text: str) -> str:
    return text * 2


@workflow
async def shouting(ctx: WorkflowContext, size: int) -> str:
    return await ctx.activity(shout, "x" * size)


@workflow
async def blowing_up(ctx: WorkflowContext, size: int) -> str:
    return await ctx.activity(blow_up, "x" * size)


async def test_error_of_any_length_beside_a_large_input_is_recorded(world: World) -> None:
    """design §6: one limit for a record; an error is cut so that it always fits, and the workflow goes on."""
    process = await world.worker(shouting)
    handle = await process.gasoline.dispatch(shouting, 900_000)
    await retried(process, handle.id, 2)
    history = await process.status(handle.id, "dead")
    assert [failure.attempt for failure in failures(history)] == [1, 2]
    assert all(failure.error.type == "ValueError" for failure in failures(history))


async def test_output_beyond_the_record_limit_fails_the_activity_for_good(world: World) -> None:
    """design §6: RecordTooLarge, not retried, kept as the error."""
    process = await world.worker(blowing_up)
    handle = await process.gasoline.dispatch(blowing_up, 600_000)
    history = await process.status(handle.id, "dead")
    assert [(failure.error.type, failure.final) for failure in failures(history)] == [("RecordTooLarge", True)]


async def test_input_beyond_the_record_limit_is_refused_before_the_activity_runs(world: World) -> None:
    """design §6: checked before anything is recorded."""
    ran: list[int] = []

    @activity
    async def take(ctx: ActivityContext, text: str) -> None:
        ran.append(len(text))

    @workflow
    async def taking(ctx: WorkflowContext, size: int) -> None:
        await ctx.activity(take, "x" * size)

    process = await world.worker(taking)
    handle = await process.gasoline.dispatch(taking, 1_100_000)
    history = await process.status(handle.id, "dead")
    assert ran == []
    failed = history[-1].data
    assert isinstance(failed, ev.WorkflowFailed)
    assert failed.error.type == "RecordTooLarge"
    assert types(history) == ["workflow.dispatched", "workflow.failed"]
