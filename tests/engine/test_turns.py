"""Limits on how much runs at a time: of a worker, and of one activity (semantics.md §8)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es import ActivityContext, WorkflowContext, activity, workflow
from gasoline_es.errors import ActivityFailed, DefinitionError
from gasoline_es.runtime.activities import Attempt
from gasoline_es.runtime.turns import Turns
from tests.engine.harness import World, soon, successes


def attempt(kind: Any, number: int) -> Attempt:
    return cast("Attempt", SimpleNamespace(definition=kind, number=number))


class Kind:
    """An activity, as far as turns look at it."""

    def __init__(self, limit: int | None) -> None:
        self.max_concurrency = limit


@given(
    st.integers(1, 4),
    st.lists(st.sampled_from([None, 1, 2, 3]), min_size=1, max_size=3),
    st.lists(st.integers(-3, 2), max_size=60),
)
def test_limits_hold_nobody_waits_without_need_and_each_kind_goes_in_order(
    limit: int, limits: list[int | None], moves: list[int]
) -> None:
    """Any order of arrivals (a kind's number), ends (-1), withdrawals of one kind (-2, -3)."""
    kinds = [Kind(one) for one in limits]
    turns, running, waiting = Turns(limit), list[Any](), list[Any]()

    def may_run(one: Any) -> bool:
        own = one.definition.max_concurrency
        return own is None or sum(other.definition is one.definition for other in running) < own

    for number, move in enumerate(moves):
        if move >= 0:
            arriving = attempt(kinds[move % len(kinds)], number)
            if turns.ask(arriving):
                running.append(arriving)
            else:
                waiting.append(arriving)
        elif move == -1 and running:
            following = turns.ended(running.pop(0))
            if following is not None:
                earlier = [one for one in waiting if one.definition is following.definition]
                assert earlier[0] is following, "of one kind the first comes first"
                waiting.remove(following)
                running.append(following)
        elif move < -1:
            unwanted = kinds[move % len(kinds)]
            gone = turns.withdraw(lambda one, unwanted=unwanted: one.definition is unwanted)  # type: ignore[misc]
            assert gone == [one for one in waiting if one.definition is unwanted] or sorted(
                one.number for one in gone
            ) == sorted(one.number for one in waiting if one.definition is unwanted)
            waiting = [one for one in waiting if one.definition is not unwanted]
        assert turns.running == len(running) <= limit
        for kind in kinds:
            assert (
                kind.max_concurrency is None or sum(one.definition is kind for one in running) <= kind.max_concurrency
            )
        assert len(running) == limit or not any(may_run(one) for one in waiting), "a place is free for one that waits"


async def test_activity_at_its_limit_waits_and_holds_up_nobody_behind_it(any_world: World) -> None:
    """semantics.md §8; the wait counts towards no timeout."""
    under_way, most, opened = 0, 0, asyncio.Event()

    @activity(max_concurrency=2, timeout=1, max_attempts=1)
    async def fragile(ctx: ActivityContext, number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await opened.wait()
        under_way -= 1
        return number

    @activity
    async def sturdy(ctx: ActivityContext, number: int) -> int:
        return number

    @workflow
    async def careful(ctx: WorkflowContext, number: int) -> int:
        return await ctx.activity(fragile, number)

    @workflow
    async def careless(ctx: WorkflowContext, number: int) -> int:
        return await ctx.activity(sturdy, number)

    process = await any_world.worker(careful, careless)
    handles = [await process.gasoline.dispatch(careful, number) for number in range(6)]
    await process.settle()
    assert under_way == 2
    assert await soon((await process.gasoline.dispatch(careless, 7)).output()) == 7
    opened.set()
    assert [await soon(handle.output()) for handle in handles] == list(range(6))
    assert most == 2
    assert [done.attempt for handle in handles for done in successes(await handle.history())] == [1] * 6


async def test_place_of_a_timed_out_attempt_goes_to_the_next(world: World) -> None:
    """semantics.md §4, §8: an attempt that was given up makes room."""
    begun: list[int] = []

    @activity(max_concurrency=1, timeout=0.05, max_attempts=1)
    async def stuck(ctx: ActivityContext, number: int) -> int:
        begun.append(number)
        if number == 0:
            await asyncio.sleep(3600)
        return number

    @workflow
    async def trying(ctx: WorkflowContext, number: int) -> int:
        try:
            return await ctx.activity(stuck, number)
        except ActivityFailed:
            return -1

    process = await world.worker(trying)
    handles = [await process.gasoline.dispatch(trying, number) for number in range(3)]
    assert [await soon(handle.output()) for handle in handles] == [-1, 1, 2]
    assert begun == [0, 1, 2]


@pytest.mark.parametrize("limit", [0, -1, 1.5, "1", True])
def test_limit_of_an_activity_is_a_whole_number_of_at_least_one(limit: object) -> None:
    with pytest.raises(DefinitionError, match="write how many of it may run"):

        @activity(max_concurrency=limit)  # type: ignore[arg-type]
        async def never(ctx: ActivityContext, _: None) -> None: ...
