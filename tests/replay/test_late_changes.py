"""Errors that leave a body before a cancel's turn, and intervals that change under a loop (semantics.md §4, §12)."""

from __future__ import annotations

import pytest

from gasoline_es import Break, WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core.decide import AttemptFailed
from tests.replay.code import Cart, charge, refund, ship
from tests.replay.world import World

FAILED = AttemptFailed(ev.ErrorInfo("OutOfStock", "nothing left"), final=True)


async def bought(ctx: WorkflowContext) -> None:
    await ctx.checkpoint()
    ctx.on_rollback(refund, await ctx.activity(charge, 1))
    await ctx.activity(ship, 1)


@pytest.mark.parametrize("crashed", [False, True])
def test_a_failure_that_came_before_the_cancel_rolls_back_before_it_ends_as_cancelled(crashed: bool) -> None:
    """semantics.md §12: the body ended before the cancel's turn, so it could not clean up by itself."""
    world = World(bought)
    world.dispatch()
    world.complete("receipt")
    world.finish({((3,),): FAILED}, behind=ev.WorkflowCancelRequested("operator"))
    if crashed:
        world.restart()
    assert [(wait.location, type(wait).__name__) for wait in world.waits] == [(((4,), (1,)), "WaitActivity")]
    world.complete(None)
    assert world.status == "cancelled"
    assert [data.name for data in world.events if isinstance(data, ev.ActivityCompleted)] == ["charge", "refund"]


def test_a_failure_that_came_behind_the_cancel_is_lost_to_it_and_rolls_nothing_back() -> None:
    """semantics.md §12: the cancel is thrown into the body, which may clean up."""
    world = World(bought)
    world.dispatch()
    world.complete("receipt")
    world.finish({((3,),): FAILED}, before=ev.WorkflowCancelRequested("operator"))
    assert world.status == "cancelled"
    assert not any(isinstance(data, ev.RollbackStarted) for data in world.events)


@pytest.mark.parametrize("later", [1, 2, 3, 50])
def test_a_shorter_interval_commits_behind_what_is_recorded(later: int) -> None:
    """semantics.md §4: a commit in the midst of recorded iterations would give them its time, and its place in the order."""
    interval, seen = 20, list[tuple[int, float]]()

    async def round_(ctx: WorkflowContext, cart: Cart) -> Break[int] | None:
        cart.rounds += 1
        seen.append((cart.rounds, ctx.now().timestamp()))
        await ctx.sleep(10)
        return Break(cart.rounds) if cart.rounds == 6 else None

    async def body(ctx: WorkflowContext) -> int:
        return await ctx.loop(round_, Cart(), commit_interval=interval)

    world = World(body)
    world.dispatch()
    for _ in range(4):
        world.advance(10_000_000)
    interval = later
    world.advance(7_200_000_000 - 40_000_000)
    first = list(seen)
    seen.clear()
    world.restart()
    assert seen[: len(first)] == first
    for _ in range(3):
        world.advance(10_000_000)
    assert world.status == "complete"
    times = [data.deadline_us for data in world.events if isinstance(data, ev.SleepStarted)]
    assert times == sorted(times)
