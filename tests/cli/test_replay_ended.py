"""`replay_check` over histories that were cancelled or recovered (semantics.md §3, §7, §12)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from gasoline_es import (
    ActivityContext,
    Break,
    Cancelled,
    Gasoline,
    Workflow,
    WorkflowCancelled,
    WorkflowContext,
    WorkflowFailed,
    WorkflowHandle,
    activity,
    workflow,
)
from gasoline_es.testing import replay_check

names = itertools.count()
bank = {"open": False}


@activity(max_attempts=1)
async def charge(ctx: ActivityContext, order: int) -> str:
    if not bank["open"]:
        raise ConnectionError("the bank is closed")
    return f"charged {order}"


@activity
async def refund(ctx: ActivityContext, order: int) -> None: ...


@workflow
async def pay(ctx: WorkflowContext, order: int) -> str:
    return await ctx.activity(charge, order)


@workflow
async def hold(ctx: WorkflowContext, order: int) -> None:
    async def again(inner: WorkflowContext, _: None) -> Break[None] | None:
        await inner.sleep(3600)
        return None

    try:
        await ctx.join(ctx.sleep(3600), ctx.loop(again, None))
    except Cancelled:
        await ctx.activity(refund, order)
        if order == 13:
            raise ValueError("the clean-up fails") from None
        raise


@workflow(name="hold")
async def hold_otherwise(ctx: WorkflowContext, order: int) -> None:
    try:
        await ctx.activity(charge, order)
    finally:
        await ctx.activity(refund, order)


@workflow(name="hold")
async def hold_and_forget(ctx: WorkflowContext, order: int) -> None:
    async def again(inner: WorkflowContext, _: None) -> Break[None] | None:
        await inner.sleep(3600)
        return None

    await ctx.join(ctx.sleep(3600), ctx.loop(again, None))


@pytest.fixture
async def ended() -> AsyncIterator[Gasoline]:
    """Three cancelled ones: cleaned up, without clean-up, and with one that fails; and one that was recovered."""
    async with Gasoline.open(f"memory:ended-{next(names)}", partitions=1) as gasoline, gasoline.worker([pay, hold]):
        bank["open"] = False
        recovered = await gasoline.dispatch(pay, 1)
        with pytest.raises(WorkflowFailed):
            await recovered.output()
        bank["open"] = True
        await recovered.recover()
        await recovered.output()
        for order, now in ((2, False), (3, True), (13, False)):
            handle = await gasoline.dispatch(hold, order)
            await placed(handle)
            await handle.cancel(now=now)
            with pytest.raises(WorkflowCancelled):
                await handle.output()
        yield gasoline


async def placed(handle: WorkflowHandle[None]) -> None:
    while sum(event.type == "sleep.started" for event in await handle.history()) < 2:
        await asyncio.sleep(0.001)


def test_histories_that_were_cancelled_or_recovered_replay(ended: Gasoline) -> None:
    report = replay_check([pay, hold], ended.log.url)
    assert report.ok
    assert (report.histories, report.replayed, report.partly, report.warnings) == (4, 4, 0, [])


def test_histories_that_are_over_can_be_left_out(ended: Gasoline) -> None:
    report = replay_check([pay, hold_otherwise], ended.log.url, incomplete=True)
    assert (report.ok, report.histories, report.left_out) == (True, 0, 4)
    assert str(report).endswith("4 are over and were left out")


@pytest.mark.parametrize(
    ("code", "kinds"),
    [(hold_otherwise, ["diverged", "diverged", "diverged"]), (hold_and_forget, [])],
)
def test_changed_code_is_held_against_cancelled_histories(
    ended: Gasoline, code: Workflow[int, None], kinds: list[str]
) -> None:
    """A cancel that leaves the body before the recorded clean-up leaves that unvisited: nobody will run it again."""
    report = replay_check([pay, code], ended.log.url)
    assert [finding.kind for finding in report.divergences] == kinds


@pytest.mark.parametrize("incomplete", [False, True])
def test_silenced_histories_are_left_out_whatever_the_code_does(incomplete: bool) -> None:
    """semantics.md §7: it will not run again, so it asks nothing of the code."""

    async def silenced(url: str) -> None:
        async with Gasoline.open(url, partitions=1) as gasoline, gasoline.worker([hold]):
            handle = await gasoline.dispatch(hold, 2)
            await placed(handle)
            await handle.silence()

    async def checked() -> None:
        url = f"memory:silenced-{next(names)}"
        async with Gasoline.open(url, partitions=1):  # in memory for as long as somebody has it open
            await silenced(url)
            report = replay_check([pay, hold_otherwise], url, incomplete=incomplete)
            assert (report.ok, report.histories, report.silenced) == (True, 0, 1)
            assert "1 are silenced and were left out" in str(report)

    asyncio.run(checked())
