"""Decorators: what they take, what they refuse, and that every refusal says what to write instead (semantics.md §1)."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gasoline_es import ActivityContext, Backoff, Prune, WorkflowContext, activity, workflow
from gasoline_es.definitions import Activity, AsyncActivity, ThreadActivity, Workflow
from gasoline_es.errors import DefinitionError
from tests.definitions.fake_run import FakeRun


class Order(BaseModel):
    item: str


class Receipt(BaseModel):
    number: int


@activity
async def charge(ctx: ActivityContext, order: Order) -> Receipt:
    return Receipt(number=len(order.item))


@activity("pack_it", max_attempts=3, timeout=timedelta(minutes=2), retry_on_timeout=False, backoff=Backoff(0.1, 4))
def pack(ctx: ActivityContext, order: Order) -> list[str]:
    return [order.item]


@workflow
async def fulfil(ctx: WorkflowContext, order: Order) -> Receipt:
    return await ctx.activity(charge, order)


def test_bare_activity_has_the_defaults_of_the_reference() -> None:
    assert isinstance(charge, AsyncActivity)
    assert (charge.name, charge.is_async, charge.max_attempts, charge.timeout_us) == ("charge", True, 5, 30_000_000)
    assert charge.retry_on_timeout
    assert (charge.backoff, charge.plan.backoff_base_us) == (Backoff(base=0.5, doublings=8), 500_000)


def test_activity_settings_are_kept() -> None:
    assert isinstance(pack, ThreadActivity)
    assert (pack.name, pack.is_async, pack.max_attempts, pack.timeout_us) == ("pack_it", False, 3, 120_000_000)
    assert not pack.retry_on_timeout
    assert (pack.plan.backoff_base_us, pack.backoff.doublings) == (100_000, 4)


def test_workflow_has_a_name_and_a_prune_rule() -> None:
    @workflow(name="renamed", prune=Prune.HISTORY)
    async def renamed_later(ctx: WorkflowContext, order: Order) -> None: ...

    assert (fulfil.name, fulfil.prune) == ("fulfil", Prune.ALL)
    assert (renamed_later.name, renamed_later.prune) == ("renamed", Prune.HISTORY)


def test_definition_knows_where_it_was_written() -> None:
    lines = Path(__file__).read_text().splitlines()
    assert charge.file == __file__
    assert lines[charge.line - 1] == "@activity"
    assert repr(charge) == f"<activity charge ({__file__}:{charge.line})>"


def test_default_name_is_the_functions_also_in_main() -> None:
    main = types.ModuleType("__main__")
    source = (
        "from gasoline_es import workflow, WorkflowContext\n"
        "@workflow\n"
        "async def tick(ctx: WorkflowContext, _: None) -> None: ...\n"
    )
    exec(compile(source, "tick.py", "exec"), main.__dict__)  # noqa: S102
    assert main.__dict__["tick"].name == "tick"


def test_codecs_follow_the_annotations() -> None:
    encoded, decoded = charge.input_codec.roundtrip(Order(item="tea"), "order")
    assert encoded == b'{"item":"tea"}'
    assert decoded == Order(item="tea")
    assert pack.output_codec.decode(b'["tea"]') == ["tea"]


async def test_plain_function_stays_at_hand_for_unit_tests() -> None:
    ctx: Any = None
    assert await charge.fn(ctx, Order(item="tea")) == Receipt(number=3)
    assert pack.fn(ctx, Order(item="tea")) == ["tea"]


def _call_directly(definition: Any) -> None:
    definition(None, Order(item="tea"))


def test_activity_called_directly_says_ctx_activity() -> None:
    with pytest.raises(DefinitionError, match=r"`await ctx\.activity\(charge, …\)`.*`await charge\.fn\(ctx, …\)`"):
        _call_directly(charge)
    with pytest.raises(DefinitionError, match=r"`await ctx\.activity\(pack, …\)`.* write `pack\.fn\(ctx, …\)`"):
        _call_directly(pack)


def test_workflow_called_directly_says_dispatch() -> None:
    with pytest.raises(DefinitionError, match=r"`await gasoline\.dispatch\(fulfil, …\)`.*`await fulfil\.fn\(ctx, …\)`"):
        _call_directly(fulfil)


# --- functions that can never work ------------------------------------------------------------------------------------


def _no_input(ctx): ...  # type: ignore[no-untyped-def]


def _three(ctx, a: int, b: int) -> None: ...  # type: ignore[no-untyped-def]


def _starred(ctx, *orders: Order) -> None: ...  # type: ignore[no-untyped-def]


def _by_keyword(ctx, *, order: Order) -> None: ...  # type: ignore[no-untyped-def]


def _untyped_input(ctx, order) -> None: ...  # type: ignore[no-untyped-def]


def _untyped_return(ctx, order: Order): ...  # type: ignore[no-untyped-def]


def _generator(ctx: ActivityContext, order: Order) -> Iterator[int]:
    yield 1


async def _async_generator(ctx: ActivityContext, order: Order) -> AsyncIterator[int]:
    yield 1


def Capital(ctx: ActivityContext, order: Order) -> None: ...  # noqa: N802


WRONG_FUNCTIONS: list[tuple[Callable[..., Any], str]] = [
    (_no_input, r"exactly two parameters, a context and one input; it has: ctx\. .*annotate the second one with None"),
    (_three, r"exactly two parameters.*it has: ctx, a, b\. Gather several inputs in one"),
    (_starred, r"exactly two parameters.*it has: ctx, \*orders\."),
    (_by_keyword, r"exactly two parameters.*it has: ctx, order\."),
    (_untyped_input, r"its parameter 'order' has no annotation.*Write its type, as in `order: Order`"),
    (_untyped_return, r"has no return annotation.*or `-> None` when it returns nothing"),
    (_generator, r"is a generator\. Return one value"),
    (_async_generator, r"is a generator\. Return one value"),
    (Capital, r"activity name 'Capital' is not allowed.*Rename the function, or write `@activity\(name='…'\)`"),
]


@pytest.mark.parametrize("wrong", WRONG_FUNCTIONS, ids=lambda wrong: wrong[0].__name__)
def test_function_that_can_never_work_is_refused_with_its_place_and_the_fix(
    wrong: tuple[Callable[..., Any], str],
) -> None:
    fn, fix = wrong
    with pytest.raises(DefinitionError, match=fix) as caught:
        activity(fn)
    assert f"activity {fn.__name__} ({__file__}:{fn.__code__.co_firstlineno})" in str(caught.value)


def test_workflow_that_is_not_async_is_refused() -> None:
    def plain(ctx: WorkflowContext, order: Order) -> None: ...

    with pytest.raises(DefinitionError, match=r"Write `async def plain\(ctx, …\)`"):
        workflow(cast(Any, plain))


def test_async_generator_is_no_workflow() -> None:
    with pytest.raises(DefinitionError, match="is a generator"):
        workflow(cast(Any, _async_generator))


@pytest.mark.parametrize("given", [Order, print, 7, functools.partial(print)], ids=repr)
def test_what_is_no_function_is_refused(given: Any) -> None:
    with pytest.raises(DefinitionError, match="decorate a function written with `def`"):
        activity(given)


def test_staticmethod_goes_above_the_decorator() -> None:
    with pytest.raises(DefinitionError, match="put @staticmethod above it"):
        activity(cast(Any, staticmethod(cast(Any, _no_input))))


def test_async_function_hidden_by_a_plain_decorator_is_refused() -> None:
    def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any) -> Any:
            return fn(*args)

        return wrapper

    async def ship(ctx: ActivityContext, order: Order) -> None: ...

    with pytest.raises(DefinitionError, match="Write that decorator's inner function as `async def`"):
        activity(logged(ship))


async def test_decorator_that_wraps_properly_is_seen_through() -> None:
    def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        async def wrapper(*args: Any) -> Any:
            return await fn(*args)

        return wrapper

    async def ship(ctx: ActivityContext, order: Order) -> Receipt:
        return Receipt(number=1)

    made = activity(logged(ship))
    assert made.name == "ship"
    assert made.is_async
    assert made.output_codec.decode(b'{"number":1}') == Receipt(number=1)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None])
def test_max_attempts_is_a_whole_number_of_at_least_one(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"activity ship .*max_attempts is .*whole number of at least 1"):

        @activity(max_attempts=value)
        async def ship(ctx: ActivityContext, order: Order) -> None: ...


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "30", True, None, timedelta(0), timedelta(seconds=-1)])
def test_timeout_is_a_finite_time_above_zero(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"activity ship .*timeout .*[Ww]rite (seconds|a time above zero)"):

        @activity(timeout=value)
        async def ship(ctx: ActivityContext, order: Order) -> None: ...


@given(seconds=st.integers(1, 10**9), attempts=st.integers(1, 10**6))
def test_every_sensible_setting_is_kept(seconds: int, attempts: int) -> None:
    @activity(timeout=seconds, max_attempts=attempts)
    async def ship(ctx: ActivityContext, order: Order) -> None: ...

    assert (ship.timeout_us, ship.max_attempts) == (seconds * 1_000_000, attempts)


def test_other_settings_of_a_wrong_type_are_refused() -> None:
    wrong: Any = "yes"
    with pytest.raises(DefinitionError, match="retry_on_timeout is 'yes'; write True or False"):

        @activity(retry_on_timeout=wrong)
        async def ship(ctx: ActivityContext, order: Order) -> None: ...

    with pytest.raises(DefinitionError, match=r"backoff is 'yes'; write `backoff=Backoff\(base=0.5, doublings=8\)`"):

        @activity(backoff=wrong)
        async def carry(ctx: ActivityContext, order: Order) -> None: ...

    with pytest.raises(DefinitionError, match=r"prune is 'yes'; write Prune\.ALL, Prune\.HISTORY or Prune\.NONE"):

        @workflow(prune=wrong)
        async def move(ctx: WorkflowContext, order: Order) -> None: ...


HOSTILE = ["", "../../x", "..\\x", "/etc/passwd", "a\0b", ".", ".lock", "x" * 300, "Fulfil", "fülfil", "a b", "a\n"]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_name_outside_the_alphabet_is_refused(name: str) -> None:
    """B23: a name may never become a path."""
    with pytest.raises(DefinitionError, match=r"`@workflow\(name='…'\)` with a name of lower-case letters, digits"):

        @workflow(name)
        async def move(ctx: WorkflowContext, order: Order) -> None: ...


@given(st.from_regex(r"[a-z0-9_]{1,100}", fullmatch=True))
def test_every_name_of_the_alphabet_is_taken(name: str) -> None:
    @workflow(name=name)
    async def move(ctx: WorkflowContext, order: Order) -> None: ...

    assert move.name == name


# --- the driver's view ------------------------------------------------------------------------------------------------


def test_definitions_are_slotted_and_generic_only_for_checkers() -> None:
    assert not hasattr(charge, "__dict__")
    assert issubclass(AsyncActivity, Activity)
    assert not inspect.iscoroutinefunction(charge)
    assert not asyncio.iscoroutine(charge)
    assert isinstance(fulfil, Workflow)
    assert sys.getsizeof(charge) < 300


def test_body_makes_the_step_of_its_activity() -> None:
    run = FakeRun()
    body = fulfil.fn(WorkflowContext(run), Order(item="tea"))
    step = body.send(None)
    assert step is run.steps[0]
    with pytest.raises(StopIteration) as stopped:
        body.send(Receipt(number=3))
    assert stopped.value.value == Receipt(number=3)
