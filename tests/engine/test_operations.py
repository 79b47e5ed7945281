"""Operations: timed, typed calls in one process, of which nothing is recorded (semantics.md §1)."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from gasoline_es import (
    ActivityContext,
    GasolineError,
    OperationContext,
    OperationTimedOut,
    WorkflowContext,
    WorkflowFailed,
    activity,
    operation,
    workflow,
)
from gasoline_es.errors import DefinitionError, LogError, NotSerializable
from gasoline_es.operating import THREADS_MAX, at_work
from tests.engine.harness import World, failures, soon, types

RAY = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"


class Query(BaseModel):
    words: list[str]


class Found(BaseModel):
    count: int
    on_behalf_of: tuple[str, str | None, str | None] = ("", None, None)
    in_thread: bool = False


class Broken(Exception):
    """What an operation raises."""


def who(ctx: OperationContext) -> tuple[str, str | None, str | None]:
    return ctx.ray_id, ctx.workflow_id, ctx.workflow_name


@operation
async def lookup(ctx: OperationContext, query: Query) -> Found:
    query.words.append("changed")  # its own copy
    return Found(count=len(query.words), on_behalf_of=who(ctx))


@operation(timeout=5)
def lookup_in_a_thread(ctx: OperationContext, query: Query) -> Found:
    assert at_work.get() is ctx
    in_thread = threading.current_thread() is not threading.main_thread()
    return Found(count=len(query.words), on_behalf_of=who(ctx), in_thread=in_thread)


@operation
async def nested(ctx: OperationContext, query: Query) -> list[Found]:
    return [await ctx.operation(lookup, query), await ctx.operation(lookup_in_a_thread, query)]


@operation
async def broken(ctx: OperationContext, text: str) -> None:
    raise Broken(text)


@operation
def broken_in_a_thread(ctx: OperationContext, text: str) -> None:
    raise Broken(text)


@activity
async def ask(ctx: ActivityContext, query: Query) -> list[Found]:
    assert at_work.get() is ctx
    return await ctx.operation(nested, query)


@workflow
async def research(ctx: WorkflowContext, query: Query) -> list[Found]:
    return await ctx.activity(ask, query)


async def test_operation_is_called_by_a_service_with_copies_of_its_values(world: World) -> None:
    process = await world.process()
    query = Query(words=["a", "b"])
    found = await process.gasoline.operation(lookup, query, ray_id=RAY)
    assert found == Found(count=3, on_behalf_of=(RAY, None, None))
    assert query.words == ["a", "b"]
    threaded = await process.gasoline.operation(lookup_in_a_thread, query)
    assert threaded.in_thread
    assert threaded.on_behalf_of[0] not in ("", RAY)
    assert process.log.appended == []


async def test_activity_calls_operations_with_its_ray_and_its_workflow_and_nothing_is_recorded(
    any_world: World,
) -> None:
    process = await any_world.worker(research)
    handle = await process.gasoline.dispatch(research, Query(words=["a"]), ray_id=RAY)
    found = await soon(handle.output())
    assert [one.on_behalf_of for one in found] == [(RAY, handle.id, "research")] * 2
    assert [(one.count, one.in_thread) for one in found] == [(2, False), (1, True)]
    assert types(await handle.history()) == ["workflow.dispatched", "activity.completed", "workflow.completed"]


async def test_client_in_an_activity_passes_its_ray_and_its_workflow_on(world: World) -> None:
    @activity
    async def by_client(ctx: ActivityContext, query: Query) -> Found:
        return await process.gasoline.operation(lookup, query)

    @workflow
    async def asks(ctx: WorkflowContext, query: Query) -> Found:
        return await ctx.activity(by_client, query)

    process = await world.worker(asks)
    handle = await process.gasoline.dispatch(asks, Query(words=[]))
    assert (await soon(handle.output())).on_behalf_of == (handle.id, handle.id, "asks")
    assert at_work.get() is None


@pytest.mark.parametrize("raising", [broken, broken_in_a_thread])
async def test_errors_of_an_operation_pass_as_they_are(world: World, raising: Any) -> None:
    @activity(max_attempts=1)
    async def catches(ctx: ActivityContext, text: str) -> str:
        with pytest.raises(Broken, match=text):
            await ctx.operation(raising, text)
        await ctx.operation(raising, "not caught")
        return text

    @workflow
    async def tries(ctx: WorkflowContext, text: str) -> str:
        return await ctx.activity(catches, text)

    process = await world.worker(tries)
    with pytest.raises(Broken, match="as it is"):
        await process.gasoline.operation(raising, "as it is")
    handle = await process.gasoline.dispatch(tries, "caught")
    with pytest.raises(WorkflowFailed):
        await soon(handle.output())
    (failed,) = failures(await handle.history())
    assert (failed.error.type, failed.error.message) == ("Broken", "not caught")


async def test_operation_that_takes_too_long_is_cancelled_and_told_by_name(world: World) -> None:
    cancelled = asyncio.Event()

    @operation(timeout=0.01)
    async def slow(ctx: OperationContext, n: int) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert not ctx.cancelled
            cancelled.set()
            raise
        return n

    process = await world.process()
    with pytest.raises(OperationTimedOut, match=r"operation slow .* timeout of 0.01 s") as raised:
        await process.gasoline.operation(slow, 1)
    assert cancelled.is_set()
    assert (raised.value.operation, raised.value.timeout, raised.value.retryable) == ("slow", 0.01, True)
    assert isinstance(raised.value, GasolineError)
    assert raised.value.__cause__ is None


async def test_operation_that_swallows_its_timeout_is_over_all_the_same(world: World) -> None:
    @operation(timeout=0.01)
    async def stubborn(ctx: OperationContext, n: int) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return n
        return n

    process = await world.process()
    with pytest.raises(OperationTimedOut):
        await process.gasoline.operation(stubborn, 1)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_timeout_error_of_an_operations_own_is_its_own(world: World) -> None:
    @operation
    async def fails(ctx: OperationContext, n: int) -> int:
        raise TimeoutError("the bank did not answer")

    process = await world.process()
    with pytest.raises(TimeoutError, match="the bank"):
        await process.gasoline.operation(fails, 1)


async def test_time_of_nested_operations_counts_and_the_one_that_is_over_is_named(world: World) -> None:
    @operation(timeout=60)
    async def inner(ctx: OperationContext, n: int) -> int:
        await asyncio.Event().wait()
        return n

    @operation(timeout=0.01)
    async def outer(ctx: OperationContext, n: int) -> int:
        return await ctx.operation(inner, n)

    process = await world.process()
    with pytest.raises(OperationTimedOut) as raised:
        await process.gasoline.operation(outer, 1)
    assert raised.value.operation == "outer"
    assert process.node.operations.running == 0


async def test_thread_of_an_operation_that_timed_out_is_left_and_told(world: World) -> None:
    """As an activity's (required case B16)."""
    told: list[bool] = []
    let_go, ended = threading.Event(), threading.Event()

    @operation(timeout=0.05)
    def stuck(ctx: OperationContext, n: int) -> int:
        let_go.wait(10)
        told.append(ctx.cancelled)
        ended.set()
        return n

    process = await world.process()
    with pytest.raises(OperationTimedOut):
        await process.gasoline.operation(stuck, 1)
    assert process.node.operations.in_threads == []
    let_go.set()
    assert await asyncio.to_thread(ended.wait, 10)
    assert told == [True]


async def test_operation_in_an_activity_that_times_out_is_cancelled_with_it(world: World) -> None:
    cancelled = asyncio.Event()

    @operation
    async def waits(ctx: OperationContext, n: int) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return n

    @activity(max_attempts=1, timeout=0.01)
    async def short(ctx: ActivityContext, n: int) -> int:
        return await ctx.operation(waits, n)

    @workflow
    async def tries(ctx: WorkflowContext, n: int) -> int:
        return await ctx.activity(short, n)

    process = await world.worker(tries)
    handle = await process.gasoline.dispatch(tries, 1)
    with pytest.raises(WorkflowFailed, match="longer than its timeout"):
        await soon(handle.output())
    await soon(cancelled.wait())


async def test_threads_of_operations_are_bounded_and_wait_within_their_time(world: World) -> None:
    """style.md §9."""
    let_go = threading.Event()
    most = 0

    @operation(timeout=60)
    def holds(ctx: OperationContext, n: int) -> int:
        let_go.wait(30)
        return n

    process = await world.process()
    operations = process.node.operations
    calls = [asyncio.create_task(process.gasoline.operation(holds, n)) for n in range(THREADS_MAX + 20)]
    for _ in range(20):
        await asyncio.sleep(0)
        most = max(most, len(operations.in_threads))
    assert (most, operations.running) == (THREADS_MAX, THREADS_MAX + 20)
    let_go.set()
    assert await soon(asyncio.gather(*calls)) == list(range(THREADS_MAX + 20))


async def test_values_that_are_not_of_the_declared_types_are_refused(world: World) -> None:
    @operation
    async def lies(ctx: OperationContext, n: int) -> int:
        return str(n)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    process = await world.process()
    with pytest.raises(NotSerializable, match="input of operation lookup"):
        await process.gasoline.operation(lookup, {"words": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotSerializable, match="output of operation lies"):
        await process.gasoline.operation(lies, 1)


async def test_closed_log_takes_no_operations(world: World) -> None:
    process = await world.process()
    await process.stop()
    with pytest.raises(LogError, match="was closed"):
        await process.gasoline.operation(lookup, Query(words=[]))


# --- where it is refused ----------------------------------------------------------------------------------------------


async def died_of(world: World, body: Any) -> tuple[str, str]:
    """How a workflow with this body dies."""

    @workflow
    async def wrong(ctx: WorkflowContext, n: int) -> None:
        await body(ctx)

    process = await world.worker(wrong)
    handle = await process.gasoline.dispatch(wrong, 1)
    history = await process.status(handle.id, "dead")
    assert types(history) == ["workflow.dispatched", "workflow.failed"]
    error = (await handle.get()).error
    assert error is not None
    return error.type, error.message


async def test_body_has_no_operations_and_is_told_to_use_an_activity(world: World) -> None:
    """semantics.md §1: never from a workflow's body."""

    async def by_context(ctx: Any) -> None:
        await ctx.operation(lookup, Query(words=[]))

    kind, message = await died_of(world, by_context)
    assert kind == "DefinitionError"
    assert "only activities and services call operations; write an activity that does, and run that" in message

    async def directly(ctx: Any) -> None:
        await lookup(ctx, Query(words=[]))  # type: ignore[operator]  # pyright: ignore[reportCallIssue]

    kind, message = await died_of(World(), directly)
    assert (kind, "a workflow's body runs an activity that does so" in message) == ("DefinitionError", True)

    async def as_an_activity(ctx: WorkflowContext) -> None:
        await ctx.activity(lookup, Query(words=[]))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    kind, message = await died_of(World(), as_an_activity)
    assert (kind, "`await ctx.operation(lookup, …)`" in message) == ("DefinitionError", True)


async def test_body_does_not_reach_a_clients_operations(world: World) -> None:
    other = await world.process()

    async def by_client(ctx: WorkflowContext) -> None:
        await other.gasoline.operation(lookup, Query(words=[]))

    kind, message = await died_of(world, by_client)
    assert (kind, "gasoline.operation(…)` in an activity" in message) == ("StepMisused", True)


async def test_activity_in_a_thread_cannot_call_operations_and_is_told_what_it_can(world: World) -> None:
    @activity(max_attempts=3)
    def threaded(ctx: ActivityContext, n: int) -> int:
        asyncio.run(ctx.operation(lookup, Query(words=[])))
        return n

    @workflow
    async def tries(ctx: WorkflowContext, n: int) -> int:
        return await ctx.activity(threaded, n)

    process = await world.worker(tries)
    handle = await process.gasoline.dispatch(tries, 1)
    with pytest.raises(WorkflowFailed, match=r"Write threaded as `async def`"):
        await soon(handle.output())
    assert len(failures(await handle.history())) == 1, "which no further attempt mends"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (ask, "an activity is run by a workflow's body"),
        (research, "a workflow by `gasoline.dispatch"),
        (lookup.fn, "decorate it with @operation and write `await gasoline.operation(lookup, …)`"),
        (42, "which is no operation: give one"),
    ],
)
async def test_what_is_no_operation_is_refused_with_what_to_write(world: World, given: Any, told: str) -> None:
    process = await world.process()
    with pytest.raises(DefinitionError) as raised:
        await process.gasoline.operation(given, Query(words=[]))
    assert told in raised.value.message


def test_definition_that_cannot_work_is_refused_where_it_is_written() -> None:
    with pytest.raises(DefinitionError, match="timeout"):
        operation(timeout=0)(lookup.fn)
    with pytest.raises(DefinitionError, match="exactly two parameters"):

        @operation  # type: ignore[arg-type]
        async def wrong(ctx: OperationContext) -> None: ...  # pyright: ignore[reportArgumentType, reportCallIssue]

    with pytest.raises(DefinitionError, match="no return annotation"):

        @operation
        async def untyped(ctx: OperationContext, n: int): ...  # type: ignore[no-untyped-def]

    with pytest.raises(DefinitionError, match="is not allowed"):
        operation("not a name")(lookup.fn)
    assert (lookup.name, lookup.timeout_us) == ("lookup", 30_000_000)
    assert operation(timeout=timedelta(minutes=1))(lookup.fn).timeout_us == 60_000_000


# --- unit tests of users ----------------------------------------------------------------------------------------------


async def test_functions_and_contexts_serve_in_unit_tests_without_a_log() -> None:
    assert (await lookup.fn(OperationContext(workflow_id="w"), Query(words=["a"]))).count == 2
    assert lookup_in_a_thread.name == "lookup_in_a_thread"
    found = await ActivityContext().operation(nested, Query(words=["a"]))
    assert [one.count for one in found] == [2, 1]


async def test_idle_threads_of_a_unit_test_end_with_its_call() -> None:
    before = threading.active_count()
    await ActivityContext().operation(lookup_in_a_thread, Query(words=[]))
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        await asyncio.sleep(0.001)
    assert threading.active_count() <= before
