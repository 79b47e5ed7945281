"""What a refusal of a value says: which definition, where, and which type was expected (design §9)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from gasoline_es import ActivityContext, Gasoline, Signal, WorkflowContext, WorkflowFailed, activity, workflow
from gasoline_es.errors import NotSerializable


class Line(BaseModel):
    count: int = 1
    when: datetime | None = None


class Order(BaseModel):
    n: int
    lines: list[Line] = []
    by_place: dict[str, int] = {}


class Told(Signal):
    n: int


def order_of(**fields: Any) -> Order:
    """An order that pydantic has not checked, as assigning to its fields makes one."""
    return Order.model_construct(**fields)


@activity
async def charge(ctx: ActivityContext, order: Order) -> int:
    return 1


@activity
async def returns_nothing(ctx: ActivityContext, text: str) -> int:
    if text == "a number":
        return 1
    return None  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


@workflow
async def gives_a_wrong_type(ctx: WorkflowContext, text: str) -> None:
    await ctx.activity(charge, order_of(n=text))


@workflow
async def waits_for_nothing(ctx: WorkflowContext, text: str) -> None:
    await ctx.activity(returns_nothing, text)


@workflow
async def gives_a_text(ctx: WorkflowContext, text: str) -> int:
    return text  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def refused(value: Any) -> NotSerializable:
    with pytest.raises(NotSerializable) as raised:
        charge.input_codec.encode(value, charge.parameter)
    return raised.value


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        ("12 euros", "order", "expected Order, got str"),
        (None, "order", "expected Order, got None"),
        (order_of(n="x"), "order.n", "expected int, got str"),
        (order_of(n=None), "order.n", "expected int, got None"),
        (order_of(n=datetime(2026, 1, 1, tzinfo=UTC)), "order.n", "expected int, got datetime"),
        (order_of(n=1, lines="x"), "order.lines", "expected list, got str"),
        (order_of(n=1, lines=[Line.model_construct(count="x")]), "order.lines[0].count", "expected int, got str"),
        (order_of(n=1, by_place={"a": "x"}), "order.by_place.a", "expected int, got str"),
        (order_of(n="1"), "order.n", "str became int"),
        (order_of(), "order.n", "Field required"),
    ],
)
def test_refused_input_names_definition_path_and_types(value: Any, path: str, says: str) -> None:
    error = refused(value)
    assert str(error).startswith(f"input of {charge.what}: {path}: ")
    assert says in str(error)
    assert error.path == path


async def _death_of(body: Any, text: str) -> str:
    async with Gasoline.open("memory:") as gasoline, gasoline.worker([body]):
        with pytest.raises(WorkflowFailed) as raised:
            await (await gasoline.dispatch(body, text)).output(timeout=30)
        return str(raised.value.error)


async def test_input_of_a_step_names_the_activity() -> None:
    said = await _death_of(gives_a_wrong_type, "x")
    assert f"input of {charge.what}: order.n: expected int, got str" in said


async def test_output_of_an_activity_that_returned_nothing_says_so() -> None:
    said = await _death_of(waits_for_nothing, "x")
    assert f"output of {returns_nothing.what}: output: expected int, got None: " in said
    assert "without `return`?" in said


async def test_output_of_a_workflow_names_the_workflow() -> None:
    assert f"output of {gives_a_text.what}: output: expected int, got str" in await _death_of(gives_a_text, "x")


async def test_dispatch_and_signal_name_the_workflow_and_the_kind() -> None:
    async with Gasoline.open("memory:") as gasoline:
        with pytest.raises(NotSerializable, match=r"input of workflow gives_a_text .*: text: expected str, got int"):
            await gasoline.dispatch(gives_a_text, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        handle = await gasoline.dispatch(gives_a_text, "x")
        with pytest.raises(NotSerializable, match=r"signal told \(.*Told\): told.n: expected int, got str") as raised:
            await handle.signal(Told.model_construct(n="x"))
        assert (raised.value.path, raised.value.type) == ("told.n", "str")
