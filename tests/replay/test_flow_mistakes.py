"""Mistakes with branches, joins, races and loops end the run with an error that names the fix (semantics.md §4, B07)."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from typing import Any

import pytest

from gasoline_es import Break, WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core.replay import Run
from tests.replay.code import Cart, Paid, charge, notify, pack, ship
from tests.replay.test_mistakes import Body, died, line_of
from tests.replay.world import World

# What is wrong on purpose, the type checkers say too.
UNCHECKED: Any = None


async def nothing(ctx: WorkflowContext) -> None: ...


# --- what is given ----------------------------------------------------------------------------------------------------


async def joins_a_set(ctx: Any) -> None:
    await ctx.join({ctx.sleep(1), ctx.sleep(2)})


async def joins_all_of_a_set(ctx: Any) -> None:
    await ctx.join_all({ctx.sleep(1), ctx.sleep(2)})


async def joins_all_of_a_frozenset(ctx: Any) -> None:
    await ctx.join_all(frozenset([ctx.sleep(1)]))


async def joins_a_list(ctx: Any) -> None:
    await ctx.join([ctx.sleep(1), ctx.sleep(2)])


async def joins_none(ctx: Any) -> None:
    await ctx.join(ctx.sleep(1), None)


async def joins_a_coroutine(ctx: Any) -> None:
    await ctx.join(nothing(ctx), ctx.sleep(1))


async def joins_a_function(ctx: Any) -> None:
    await ctx.join(nothing)


async def joins_a_number(ctx: Any) -> None:
    await ctx.join(3)


async def joins_all_of_a_step(ctx: Any) -> None:
    await ctx.join_all(ctx.maybe(None))


async def joins_an_activity(ctx: Any) -> None:
    await ctx.join(charge)


async def maybe_of_a_function(ctx: Any) -> None:
    await ctx.maybe(nothing)


async def races_nobody(ctx: Any) -> None:
    await ctx.race()


async def races_a_set(ctx: Any) -> None:
    await ctx.race({ctx.sleep(1)})


async def catches_a_coroutine(ctx: Any) -> None:
    await ctx.catch(nothing(ctx))


async def closes_over_a_coroutine(ctx: Any) -> None:
    await ctx.closure(nothing(ctx))


async def closes_over_a_step(ctx: Any) -> None:
    await ctx.closure(ctx.sleep(1))


async def closes_over_a_plain_function(ctx: Any) -> None:
    await ctx.closure(print)


async def loops_a_plain_function(ctx: Any) -> None:
    await ctx.loop(print, Cart())


async def runs_an_activity(ctx: Any) -> None:
    await ctx.run(charge, 1)


async def runs_a_function(ctx: Any) -> None:
    await ctx.run(nothing, 1)


GIVEN = [
    (joins_a_set, "ctx.join was given a set, whose order differs from process to process; give its steps one by one"),
    (joins_all_of_a_set, "Give a list, a tuple or a generator"),
    (joins_all_of_a_frozenset, "Give a list, a tuple or a generator"),
    (joins_a_list, "write `ctx.join_all([…])`"),
    (joins_none, "write `ctx.maybe(step)` for a step that may be None"),
    (joins_a_coroutine, "the coroutine of nothing; write `ctx.closure(nothing)` with the function itself"),
    (joins_a_function, "the function nothing; wrap it, as in `ctx.closure(body)`"),
    (joins_a_number, "int 3; give what a verb of `ctx` returns, before it is awaited"),
    (joins_all_of_a_step, "ctx.join_all takes a list of steps; write `ctx.join(a, b)` for some"),
    (joins_an_activity, "itself; give it with its input, `ctx.activity(charge, …)`"),
    (maybe_of_a_function, "ctx.maybe was given the function nothing"),
    (races_nobody, "ctx.race was given no step; give at least one"),
    (races_a_set, "ctx.race was given a set"),
    (catches_a_coroutine, "write `ctx.closure(nothing)` with the function itself"),
    (closes_over_a_coroutine, "give the function itself: `ctx.closure(nothing)`"),
    (closes_over_a_step, "give a function written `async def body(ctx)`"),
    (closes_over_a_plain_function, "give a function written `async def body(ctx)`"),
    (loops_a_plain_function, "give a function written `async def body(ctx, state)`"),
    (runs_an_activity, "give a workflow and its input"),
    (runs_a_function, "give a workflow and its input"),
]


@pytest.mark.parametrize(("body", "fix"), [pytest.param(*case, id=case[0].__name__) for case in GIVEN])
def test_what_is_no_step_is_refused_with_the_fix(body: Body, fix: str) -> None:
    """semantics.md §4; required.md B07: a set is refused with a clear error."""
    error = died(body)
    assert error.type == "DefinitionError"
    assert fix in error.message


@pytest.mark.parametrize(("body", "fix"), [pytest.param(*case, id=case[0].__name__) for case in GIVEN])
def test_body_that_catches_the_refusal_dies_all_the_same(body: Body, fix: str) -> None:
    async def catching(ctx: WorkflowContext) -> None:
        try:
            await body(ctx)
        except Exception:
            await ctx.activity(notify, "something else")

    assert fix in died(catching).message


# --- steps awaited otherwise than once --------------------------------------------------------------------------------


async def awaits_and_joins(ctx: WorkflowContext) -> None:
    step = ctx.maybe(None)
    await step
    await ctx.join(step)


async def gives_twice(ctx: WorkflowContext) -> None:
    step = ctx.sleep(1)
    await ctx.join(step, step)


async def gives_twice_below(ctx: WorkflowContext) -> None:
    step = ctx.sleep(1)
    await ctx.join(step, ctx.catch(step))


async def joins_and_awaits(ctx: WorkflowContext) -> None:
    step = ctx.maybe(None)
    await ctx.join(step)
    await step


async def joins_twice(ctx: WorkflowContext) -> None:
    join = ctx.join(ctx.maybe(None))
    await join
    await join


@pytest.mark.parametrize("body", [awaits_and_joins, gives_twice, gives_twice_below, joins_and_awaits, joins_twice])
def test_step_that_is_awaited_twice_is_told(body: Body) -> None:
    error = died(body)
    assert error.type == "StepMisused"
    assert "was awaited twice" in error.message
    assert __file__ in error.message


async def leaves_a_step_out(ctx: WorkflowContext) -> None:
    ctx.sleep(2)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]  # here
    await ctx.join(ctx.sleep(1))


async def leaves_the_join_out(ctx: WorkflowContext) -> None:
    ctx.join(ctx.sleep(1), ctx.sleep(2))  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]  # here


async def leaves_a_closure_out(ctx: WorkflowContext) -> None:
    ctx.closure(nothing)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]  # here


async def leaves_one_out_in_a_closure(ctx: WorkflowContext) -> None:
    async def forgetful(inner: WorkflowContext) -> None:
        inner.sleep(1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]  # here

    await ctx.join(ctx.closure(forgetful), ctx.sleep(1))


async def leaves_one_out_in_an_iteration(ctx: WorkflowContext) -> None:
    async def forgetful(inner: WorkflowContext) -> Break[None] | None:
        inner.sleep(1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]  # here
        return Break(None)

    await ctx.repeat(forgetful)


@pytest.mark.parametrize(
    ("body", "verb"),
    [
        (leaves_a_step_out, "sleep"),
        (leaves_the_join_out, "join"),
        (leaves_a_closure_out, "closure"),
        (leaves_one_out_in_a_closure, "sleep"),
        (leaves_one_out_in_an_iteration, "sleep"),
    ],
)
def test_step_that_is_neither_awaited_nor_joined_is_told_with_its_place(body: Body, verb: str) -> None:
    """api.md: a step that is neither awaited nor joined is an error; the outermost one is named."""
    error = died(body)
    assert error.type == "StepMisused"
    assert f"never awaited: `ctx.{verb}(…)` in {line_of(body, '# here')}" in error.message


# --- contexts ---------------------------------------------------------------------------------------------------------


async def uses_the_outer_context(ctx: WorkflowContext) -> None:
    async def inner(_: WorkflowContext) -> None:
        await ctx.sleep(1)  # here

    await ctx.closure(inner)


async def uses_the_outer_context_in_a_join(ctx: WorkflowContext) -> None:
    async def inner(_: WorkflowContext) -> None:
        await ctx.activity(charge, 1)  # here

    await ctx.join(ctx.closure(inner), ctx.sleep(1))


async def uses_the_outer_context_in_a_loop(ctx: WorkflowContext) -> None:
    async def iteration(_: WorkflowContext, state: Cart) -> Break[None] | None:
        await ctx.sleep(1)  # here
        return None

    await ctx.loop(iteration, Cart())


async def draws_from_the_outer_context_in_a_loop(ctx: WorkflowContext) -> None:
    async def iteration(_: WorkflowContext, state: Cart) -> Break[float] | None:
        return Break(ctx.random())  # here

    await ctx.loop(iteration, Cart())


async def uses_a_closures_context_after_it(ctx: WorkflowContext) -> None:
    kept: list[WorkflowContext] = []

    async def inner(given: WorkflowContext) -> None:
        kept.append(given)

    await ctx.closure(inner)
    await kept[0].sleep(1)  # here


@pytest.mark.parametrize(
    "body",
    [
        uses_the_outer_context,
        uses_the_outer_context_in_a_join,
        uses_the_outer_context_in_a_loop,
        draws_from_the_outer_context_in_a_loop,
        uses_a_closures_context_after_it,
    ],
)
def test_context_of_another_branch_is_refused_with_the_fix(body: Body) -> None:
    error = died(body)
    assert error.type == "StepMisused"
    assert line_of(body, "# here") in error.message
    assert "Use the `ctx` that this function was given" in error.message


async def joins_a_step_of_the_outer_context(ctx: WorkflowContext) -> None:
    step = ctx.sleep(1)

    async def inner(given: WorkflowContext) -> None:
        await given.join(step, given.sleep(1))

    await ctx.join(ctx.closure(inner))


def test_step_of_another_branch_is_refused() -> None:
    error = died(joins_a_step_of_the_outer_context)
    assert error.type == "StepMisused"


# --- loops ------------------------------------------------------------------------------------------------------------


async def returns_no_break(ctx: Any) -> None:
    async def iteration(inner: WorkflowContext, state: Cart) -> str:
        return "done"

    await ctx.loop(iteration, Cart())


async def returns_the_class(ctx: Any) -> None:
    async def iteration(inner: WorkflowContext) -> Any:
        return Break

    await ctx.repeat(iteration)


@pytest.mark.parametrize("body", [returns_no_break, returns_the_class])
def test_loop_body_that_returns_no_break_is_told_how_to(body: Body) -> None:
    error = died(body)
    assert error.type == "StepMisused"
    assert "return nothing to go on with the next iteration, or `return Break(value)` to end the loop" in error.message


@pytest.mark.parametrize("interval", [0, -1, 1.5, True, "2"])
def test_commit_interval_must_be_a_whole_number(interval: Any) -> None:
    async def body(ctx: Any) -> None:
        await ctx.repeat(nothing, commit_interval=interval)

    error = died(body)
    assert error.type == "ValueError"
    assert "whole number of at least 1" in error.message


def test_state_that_cannot_be_kept_is_told_at_the_call_and_at_the_commit() -> None:
    async def at_the_call(ctx: Any) -> None:
        await ctx.loop(nothing, object())

    async def at_the_commit(ctx: Any) -> None:
        async def iteration(inner: WorkflowContext, state: dict[str, Any]) -> None:
            state["ctx"] = inner

        await ctx.loop(iteration, {}, commit_interval=1)

    assert died(at_the_call).message.startswith("state: ")
    world = World(at_the_commit)
    world.dispatch()
    assert world.state.summary.error is not None
    assert world.state.summary.error.type == "NotSerializable"
    assert "state['ctx']" in world.state.summary.error.message


def test_loop_takes_a_partial_and_a_method_as_its_body() -> None:
    class Shop:
        async def buy(self, ctx: WorkflowContext, state: Cart) -> Break[int] | None:
            return Break(1)

    async def bought(price: int, ctx: WorkflowContext, state: Cart) -> Break[int] | None:
        return Break(price)

    async def body(ctx: WorkflowContext) -> list[int]:
        return [await ctx.loop(Shop().buy, Cart()), await ctx.loop(functools.partial(bought, 2), Cart())]

    world = World(body)
    world.dispatch()
    assert world.state.output == b"[1,2]"


# --- asyncio ----------------------------------------------------------------------------------------------------------


async def gathers_steps(ctx: WorkflowContext) -> None:
    await asyncio.gather(ctx.activity(charge, 1), ctx.activity(ship, 1))


async def waits_for_steps(ctx: WorkflowContext) -> None:
    await asyncio.wait({asyncio.ensure_future(ctx.activity(charge, 1)), asyncio.ensure_future(ctx.activity(ship, 1))})


async def gathers_in_a_closure(ctx: WorkflowContext) -> None:
    await ctx.join(ctx.closure(gathers_steps), ctx.closure(waits_for_steps))


@pytest.mark.parametrize("body", [gathers_steps, waits_for_steps, gathers_in_a_closure])
def test_bare_asyncio_is_refused_for_the_verb_that_does_it(body: Body) -> None:
    """required.md B07: bare asyncio helpers are refused."""
    error = died(body)
    assert error.type == "StepMisused"
    assert "use `await ctx.join(" in error.message


# --- values -----------------------------------------------------------------------------------------------------------


def test_race_may_be_won_by_a_value_that_need_not_come_back_from_json() -> None:
    """semantics.md §4: a replay has the winner's value from its steps; what is recorded of it is for people."""

    async def carts(ctx: WorkflowContext) -> list[Cart]:
        return [Cart(items=["book"])]

    async def body(ctx: WorkflowContext) -> str:
        return repr(await ctx.race(ctx.join(ctx.closure(carts), ctx.catch(ctx.closure(carts))), ctx.listen(Paid)))

    world = World(body)
    world.dispatch()
    decided = next(data for data in world.events if isinstance(data, ev.RaceDecided))
    assert decided.value == b'[[{"items":["book"],"rounds":0}],{"value":[{"items":["book"],"rounds":0}]}]'


def test_race_won_by_what_cannot_be_recorded_is_told() -> None:
    async def objects(ctx: WorkflowContext) -> object:
        return object()

    async def body(ctx: WorkflowContext) -> None:
        await ctx.race(ctx.closure(objects), ctx.sleep(1))

    world = World(body)
    world.dispatch()
    assert world.state.summary.error is not None
    assert world.state.summary.error.type == "NotSerializable"
    assert "`ctx.closure(…)`" in world.state.summary.error.message


def test_input_of_a_workflow_run_inline_is_a_copy_of_what_was_given() -> None:
    async def body(ctx: WorkflowContext) -> None:
        await ctx.run(pack, {"order": object()})

    error = died(body)
    assert error.type == "NotSerializable"


# --- memory -----------------------------------------------------------------------------------------------------------


def test_history_of_a_loop_of_many_iterations_stays_small() -> None:
    """semantics.md §4: a workflow that has looped a million times costs what its last few iterations cost."""

    async def iteration(ctx: WorkflowContext, state: list[int]) -> Break[int] | None:
        async def inner(below: WorkflowContext) -> Break[int] | None:
            return Break(await below.check_version(1))

        await ctx.join(ctx.repeat(inner), ctx.closure(below))
        state[0] += 1
        return Break(state[0]) if state[0] == 1_000 else None

    async def below(ctx: WorkflowContext) -> None:
        await ctx.check_version(2)

    sizes: list[tuple[int, int, int]] = []

    class Weighed(World):
        def _append(self) -> None:
            super()._append()
            history = self.state.history
            entries = sum(len(branch) for branch in history._branches.values())
            places = sum(len(below) for below in history._below.values())
            sizes.append((entries, len(history._branches), places))

    async def body(ctx: WorkflowContext) -> int:
        return await ctx.loop(iteration, [0], commit_interval=10)

    world = Weighed(body)
    world.dispatch()
    assert world.state.output == b"1000"
    assert max(sizes) < (200, 200, 200)
    assert sizes[-1] == (1, 2, 1)
    assert not gone_on(world.run)
    world.crash()
    history = world.state.history
    assert sum(len(branch) for branch in history._branches.values()) == 1


def gone_on(run: Run | None) -> bool:
    return run is not None and run.end is None


def test_strands_of_iterations_that_are_over_are_let_go_without_a_collection() -> None:
    """A loop goes on for ever: what its iterations were made of must not stay."""
    contexts: list[weakref.ref[Any]] = []

    class Kept:
        """Something an iteration holds."""

    async def iteration(ctx: WorkflowContext, state: list[int]) -> Break[int] | None:
        kept = Kept()
        contexts.append(weakref.ref(kept))
        await ctx.join(ctx.activity(charge, 1), ctx.closure(nothing))
        state[0] += 1
        return None

    async def body(ctx: WorkflowContext) -> None:
        await ctx.loop(iteration, [0], commit_interval=5)

    world = World(body)
    world.dispatch()
    gc.disable()
    try:
        for number in range(1, 21):
            world.complete(1, at=((1,), (number,), (1,)))
        assert [reference() is None for reference in contexts] == [True] * 20 + [False]
        assert world.run is not None
        assert len(world.run.waits) == 1
        assert not world.run._answered
        assert world.run.side_by_side == 1
    finally:
        gc.enable()
