"""Activities and operations of a workflow use clients to send and to dispatch only if they say so (semantics.md §5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gasoline_es import (
    ActivityContext,
    Gasoline,
    OperationContext,
    Signal,
    SignalTo,
    WorkflowContext,
    WorkflowFailed,
    activity,
    operation,
    workflow,
)
from tests.engine.harness import Process, World, failures, soon, types

Use = Callable[[Gasoline, str, bool], Awaitable[object]]
"""Uses a client, with the id of a workflow that listens; says that it is meant or not."""


class Poke(Signal): ...


@workflow
async def listener(ctx: WorkflowContext, n: int) -> int:
    await ctx.listen(Poke)
    return n


async def dispatches(gasoline: Gasoline, to: str, meant: bool) -> object:
    return await gasoline.dispatch(listener, 2, key="two", from_activity=meant)


async def signals(gasoline: Gasoline, to: str, meant: bool) -> object:
    return await gasoline.signal(Poke(), to=to, id="poke", from_activity=meant)


async def signals_by_tags(gasoline: Gasoline, to: str, meant: bool) -> object:
    return await gasoline.signal(Poke(), listener, tags={"to": "be poked"}, id="poke", from_activity=meant)


async def signals_many(gasoline: Gasoline, to: str, meant: bool) -> object:
    return await gasoline.signal_many([SignalTo(Poke(), to, id="poke")], from_activity=meant)


async def signals_by_handle(gasoline: Gasoline, to: str, meant: bool) -> object:
    return await gasoline.handle(to, listener).signal(Poke(), id="poke", from_activity=meant)


USES: list[Use] = [dispatches, signals, signals_by_tags, signals_many, signals_by_handle]


class Using:
    """A worker whose workflow has an activity that uses its client, itself, by a task, by an operation or from a thread."""

    def __init__(self, process: Process) -> None:
        self.gasoline = process.gasoline

        @operation
        async def inner(ctx: OperationContext, given: tuple[str, bool]) -> None:
            await self.use(self.gasoline, *given)

        @operation
        async def outer(ctx: OperationContext, given: tuple[str, bool]) -> None:
            await ctx.operation(inner, given)

        @activity(max_attempts=3)
        async def itself(ctx: ActivityContext, given: tuple[str, bool]) -> None:
            await self.use(self.gasoline, *given)

        @activity(max_attempts=3)
        async def by_a_task(ctx: ActivityContext, given: tuple[str, bool]) -> None:
            await asyncio.create_task(self._use(given))

        @activity(max_attempts=3)
        async def by_an_operation(ctx: ActivityContext, given: tuple[str, bool]) -> None:
            await ctx.operation(outer, given)

        @activity(max_attempts=3)
        def from_a_thread(ctx: ActivityContext, given: tuple[str, bool]) -> None:
            asyncio.run_coroutine_threadsafe(self._use(given), self.loop).result(30)

        self.ways = {"itself": itself, "task": by_a_task, "operation": by_an_operation, "thread": from_a_thread}
        self.outer = outer
        self.way = "itself"
        self.use: Use = dispatches
        self.loop = asyncio.get_running_loop()

        @workflow
        async def uses(ctx: WorkflowContext, given: tuple[str, bool]) -> str:
            await ctx.activity(self.ways[self.way], given)
            return "done"

        self.uses = uses

    async def _use(self, given: tuple[str, bool]) -> None:
        await self.use(self.gasoline, *given)


async def worked(world: World) -> tuple[Process, Using, str]:
    process = await world.process()
    using = Using(process)
    await process.work(using.uses, listener)
    to = await process.gasoline.dispatch(listener, 1, tags={"to": "be poked"})
    return process, using, to.id


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("way", ["itself", "task", "operation", "thread"])
async def test_client_that_sends_or_dispatches_in_an_activity_is_refused_with_both_ways(
    world: World, use: Use, way: str
) -> None:
    process, using, to = await worked(world)
    using.use, using.way = use, way
    handle = await process.gasoline.dispatch(using.uses, (to, False))
    with pytest.raises(WorkflowFailed) as raised:
        await soon(handle.output())
    verb = "dispatch" if use is dispatches else "signal"
    message = str(raised.value)
    assert f"calls `{verb}` of a client" in message
    assert f"`await ctx.{verb}(…)` in the workflow's body" in message
    assert f"`{verb}(…, from_activity=True)`" in message
    assert ("operation inner of workflow" in message) == (way == "operation")
    assert handle.id in message
    assert len(failures(await handle.history())) == 1, "which no further attempt mends"
    assert types(await process.gasoline.history(to)) == ["workflow.dispatched"]
    assert [info.id async for info in process.gasoline.list(name="listener")] == [to]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("way", ["itself", "task", "operation", "thread"])
async def test_client_that_is_meant_to_sends_and_dispatches_in_an_activity(world: World, use: Use, way: str) -> None:
    process, using, to = await worked(world)
    using.use, using.way = use, way
    handle = await process.gasoline.dispatch(using.uses, (to, True))
    assert await soon(handle.output()) == "done"
    if use is dispatches:
        assert len([info async for info in process.gasoline.list(name="listener")]) == 2
    else:
        assert await soon(process.gasoline.handle(to, listener).output()) == 1


@pytest.mark.parametrize("use", USES)
async def test_operation_of_a_service_sends_and_dispatches_as_the_service_does(world: World, use: Use) -> None:
    process, using, to = await worked(world)
    using.use = use
    await process.gasoline.operation(using.outer, (to, False))
    if use is not signals_by_tags:  # who has ended by it is found by no tags any more
        await use(process.gasoline, to, False)  # known by its id, or its key
    if use is not dispatches:
        assert await soon(process.gasoline.handle(to, listener).output()) == 1


async def test_other_verbs_of_a_client_need_no_word_in_an_activity(world: World) -> None:
    """To cancel, to wake and to look change nothing when they are repeated."""
    process, using, to = await worked(world)

    async def others(gasoline: Gasoline, to: str, meant: bool) -> object:
        assert await gasoline.find(listener, tags={"to": "be poked"}) is not None
        assert (await gasoline.get(to)).status == "running"
        await gasoline.wake(to)
        await gasoline.cancel(to)
        return None

    using.use = others
    handle = await process.gasoline.dispatch(using.uses, (to, False))
    assert await soon(handle.output()) == "done"
    assert (await process.gasoline.get(to)).status == "cancelled"


async def test_function_of_an_activity_that_a_test_calls_itself_is_not_at_work(world: World) -> None:
    process, using, to = await worked(world)
    function: Any = using.ways["itself"].fn
    await function(ActivityContext(), (to, False))
    assert len([info async for info in process.gasoline.list(name="listener")]) == 2
