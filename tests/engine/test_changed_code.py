"""Code that changes under running workflows, through the engine (semantics.md §3, §5)."""

from __future__ import annotations

import pytest

from gasoline_es import ActivityContext, Signal, WorkflowContext, activity, workflow
from gasoline_es.errors import WorkflowFailed
from tests.engine.harness import World, has, soon, types


class First(Signal):
    n: int


class Second(Signal):
    n: int


@activity
async def note(ctx: ActivityContext, text: str) -> str:
    return text


@activity
async def other(ctx: ActivityContext, text: str) -> str:
    return text


@workflow(name="changing")
async def before(ctx: WorkflowContext, _: None) -> str:
    await ctx.activity(note, "a")
    await ctx.sleep(3600)
    return await ctx.activity(note, "b")


@workflow(name="changing")
async def wrong(ctx: WorkflowContext, _: None) -> str:
    await ctx.activity(note, "a")
    await ctx.v(2).check_version(2)
    await ctx.removed("activity", "gone")
    await ctx.activity(other, "x")
    return ""


async def test_run_that_diverges_records_nothing_of_the_turn_it_diverged_in(any_world: World) -> None:
    """semantics.md §3: a version check passed before the divergence must not stand in the way of the first code."""
    process = await any_world.worker(before)
    handle = await process.gasoline.dispatch(before, None)
    await process.until(handle.id, has("sleep.started"))
    located = [event for event in await handle.history() if event.location is not None]
    await process.kill()

    process = await any_world.worker(wrong)
    handle = process.gasoline.handle(handle.id, wrong)
    with pytest.raises(WorkflowFailed, match="HistoryDiverged"):
        await soon(handle.output())
    history = await handle.history()
    assert [event for event in history if event.location is not None] == located
    assert types(history)[-1] == "workflow.failed"
    await process.stop()

    process = await any_world.worker(before)
    handle = process.gasoline.handle(handle.id, before)
    await handle.wake()
    await process.advance(3700)
    assert await soon(handle.output()) == "b"


@workflow(name="listening")
async def listens_for_first(ctx: WorkflowContext, _: None) -> int:
    return (await ctx.listen(First)).n


@workflow(name="listening")
async def listens_for_second(ctx: WorkflowContext, _: None) -> int:
    return (await ctx.listen(Second)).n


@pytest.mark.parametrize("sent", ["before the new code", "after the new code"])
async def test_suspended_listener_wakes_for_what_the_code_listens_for_now(any_world: World, sent: str) -> None:
    """semantics.md §5: what it listened for when it left memory decides nothing."""
    process = await any_world.worker(listens_for_first)
    handle = await process.gasoline.dispatch(listens_for_first, None)
    await process.evict()
    if sent == "before the new code":
        await handle.signal(Second(n=2))
    await process.stop()

    process = await any_world.worker(listens_for_second)
    handle = process.gasoline.handle(handle.id, listens_for_second)
    if sent == "after the new code":
        await handle.signal(Second(n=2))
    assert await soon(handle.output()) == 2


@workflow(name="asking")
async def asks(ctx: WorkflowContext, _: None) -> int:
    await ctx.activity(note, "a")
    return (await ctx.listen(First)).n


@workflow(name="asking")
async def asks_with_a_step_in_front(ctx: WorkflowContext, _: None) -> int:
    await ctx.activity(other, "new")
    await ctx.activity(note, "a")
    return (await ctx.listen(First)).n


@workflow(name="asking")
async def asks_with_a_step_of_version_2_in_front(ctx: WorkflowContext, _: None) -> int:
    await ctx.v(2).activity(other, "new")
    await ctx.activity(note, "a")
    return (await ctx.listen(First)).n


@pytest.mark.parametrize("typed", ["fast", "slowly"])
async def test_code_that_does_not_fit_shows_once_a_signal_comes_and_the_signal_is_kept(
    any_world: World, typed: str
) -> None:
    """semantics.md §5, tutorial §6: whether or not the listener had left memory when the old worker was stopped."""
    process = await any_world.worker(asks)
    handle = await process.gasoline.dispatch(asks, None)
    await process.settle()
    if typed == "slowly":
        await process.evict()
    await process.stop()

    process = await any_world.worker(asks_with_a_step_in_front)
    handle = process.gasoline.handle(handle.id, asks_with_a_step_in_front)
    await process.settle()
    if typed == "slowly":
        assert (await handle.get()).status == "sleeping", "nothing has woken it, so nothing has replayed it"
    await handle.signal(First(n=7))
    with pytest.raises(WorkflowFailed, match="HistoryDiverged"):
        await soon(handle.output())
    await process.stop()

    process = await any_world.worker(asks_with_a_step_of_version_2_in_front)
    handle = process.gasoline.handle(handle.id, asks_with_a_step_of_version_2_in_front)
    await handle.wake()
    assert await soon(handle.output()) == 7
