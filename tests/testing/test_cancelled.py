"""Cancelling and recovering in a simulation, also with a crash at every append (semantics.md §7, §12)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gasoline_es import ActivityContext, Break, Cancelled, WorkflowCancelled, WorkflowContext, activity, workflow
from gasoline_es.errors import WorkflowFailed
from gasoline_es.testing import Simulation, crash_everywhere


@activity
async def book(ctx: ActivityContext, seat: int) -> str:
    return f"seat {seat}"


@activity
async def release(ctx: ActivityContext, seat: int) -> str:
    return f"released {seat}"


@activity(max_attempts=2)
async def charge(ctx: ActivityContext, seat: int) -> str:
    return "charged"


@workflow
async def hold(ctx: WorkflowContext, seat: int) -> str:
    await ctx.activity(book, seat)
    try:
        await ctx.sleep(timedelta(days=7))
    except Cancelled:
        await ctx.activity(release, seat)
        await ctx.sleep(60)
        raise
    return await ctx.activity(charge, seat)


@workflow
async def hold_several(ctx: WorkflowContext, seats: int) -> None:
    async def one(inner: WorkflowContext) -> str:
        return await (await inner.dispatch(hold, 1)).output()

    async def guarded(inner: WorkflowContext) -> str:
        try:
            return await inner.activity(book, 2) + str(await inner.sleep(timedelta(days=30)))
        except Cancelled:
            await inner.activity(release, 2)
            raise

    async def renew(inner: WorkflowContext, _: None) -> Break[None] | None:
        await inner.sleep(3600)
        return None

    try:
        await ctx.join(ctx.closure(one), ctx.closure(guarded), ctx.loop(renew, None, commit_interval=2))
    except Cancelled:
        await ctx.activity(release, 0)
        raise


@workflow
async def hold_for_another(ctx: WorkflowContext, seat: int) -> str:
    held = await ctx.dispatch(hold, seat)
    try:
        return await held.output()
    except WorkflowCancelled:
        return "it was cancelled"


def test_a_cancel_comes_where_the_body_waits_and_takes_the_time_its_clean_up_takes() -> None:
    with Simulation([hold]) as sim:
        handle = sim.dispatch(hold, 7)
        sim.advance(timedelta(days=1))
        handle.cancel()
        assert handle.get().status == "running"
        with pytest.raises(WorkflowCancelled):
            handle.output()
        assert [call.input for call in sim.calls(release)] == [7]
        assert sim.elapsed == timedelta(days=1, seconds=60)
        assert handle.get().status == "cancelled"


def test_a_cancel_survives_a_crash_at_every_append() -> None:
    """design §1: the same steps are interrupted, and each step of the clean-up is there once."""

    def scenario(sim: Simulation) -> str:
        handle = sim.dispatch(hold, 7)
        sim.advance(timedelta(days=1))
        handle.cancel()
        with pytest.raises(WorkflowCancelled):
            handle.output()
        return handle.get().status

    assert crash_everywhere(scenario, [hold]) == "cancelled"


def test_a_cancel_of_branches_and_loops_survives_a_crash_at_every_append() -> None:
    def scenario(sim: Simulation) -> list[str]:
        handle = sim.dispatch(hold_several, 2)
        sim.advance(timedelta(hours=4.5))
        handle.cancel()
        with pytest.raises(WorkflowCancelled):
            handle.output()
        # A workflow that it dispatched is no part of it, and goes on.
        return [f"{info.name} {info.status}" for info in sim.workflows()]

    assert crash_everywhere(scenario, [hold, hold_several]) == ["hold_several cancelled", "hold sleeping"]


def test_who_waits_for_what_is_cancelled_is_told_through_a_crash_at_every_append() -> None:
    def scenario(sim: Simulation) -> str:
        handle = sim.dispatch(hold_for_another, 7)
        (held,) = sim.workflows(hold)
        sim.handle(held.id, hold).cancel()
        return handle.output()

    assert crash_everywhere(scenario, [hold, hold_for_another]) == "it was cancelled"


def test_a_recovery_survives_a_crash_at_every_append() -> None:
    """semantics.md §7."""

    def scenario(sim: Simulation) -> str:
        sim.fake(charge, raises=ConnectionError("closed"))
        handle = sim.dispatch(hold, 7)
        with pytest.raises(WorkflowFailed):
            handle.output()
        sim.fake(charge, returns="charged at last")
        handle.recover()
        return handle.output()

    assert crash_everywhere(scenario, [hold]) == "charged at last"
