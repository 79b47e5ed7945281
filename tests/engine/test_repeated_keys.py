"""A key is used again by a later release, whose input model has changed (semantics.md §6)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from gasoline_es import WorkflowContext, workflow
from gasoline_es.errors import KeyReused
from tests.engine.harness import World


class Line(BaseModel):
    sku: str
    count: int = 1


class LineWithNote(BaseModel):
    sku: str
    count: int = 1
    note: str | None = None


class Order(BaseModel):
    number: str
    lines: list[Line] = []


class OrderWithCurrency(BaseModel):
    number: str
    lines: list[LineWithNote] = []
    currency: str = "EUR"


class OrderWithCustomer(BaseModel):
    number: str
    customer: str


@workflow(name="keyed")
async def first_release(ctx: WorkflowContext, order: Order) -> None: ...


@workflow(name="keyed")
async def later_release(ctx: WorkflowContext, order: OrderWithCurrency) -> None: ...


@workflow(name="keyed")
async def release_that_does_not_read_it(ctx: WorkflowContext, order: OrderWithCustomer) -> None: ...


@pytest.mark.parametrize("owner", ["this process", "another process"])
async def test_same_key_is_a_repeat_for_a_release_with_defaulted_fields_more(any_world: World, owner: str) -> None:
    old = await any_world.process()
    handle = await old.gasoline.dispatch(first_release, Order(number="1", lines=[Line(sku="a")]), key="k")
    new = old
    if owner == "another process":
        new = await any_world.process()
    lines = [LineWithNote(sku="a")]
    repeated = await new.gasoline.dispatch(later_release, OrderWithCurrency(number="1", lines=lines), key="k")
    assert repeated.id == handle.id
    assert len(await repeated.history()) == 1, "a repeat records nothing"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (OrderWithCurrency(number="2"), 'order.number: recorded is "1", given is "2"'),
        (OrderWithCurrency(number="1"), "order.lines: recorded are 1 items, given are 0"),
        (
            OrderWithCurrency(number="1", lines=[LineWithNote(sku="a", count=2)]),
            "order.lines[0].count: recorded is 1, given is 2",
        ),
        (
            OrderWithCurrency(number="1", lines=[LineWithNote(sku="a")], currency="USD"),
            'order.currency: recorded is "EUR", given is "USD"',
        ),
    ],
)
async def test_another_input_is_refused_with_the_first_difference(
    any_world: World, given: OrderWithCurrency, says: str
) -> None:
    process = await any_world.process()
    handle = await process.gasoline.dispatch(first_release, Order(number="1", lines=[Line(sku="a")]), key="k")
    with pytest.raises(KeyReused) as raised:
        await process.gasoline.dispatch(later_release, given, key="k")
    assert says in str(raised.value)
    assert (raised.value.workflow_id, raised.value.key) == (handle.id, "k")


async def test_input_that_the_code_does_not_read_any_more_is_another(any_world: World) -> None:
    process = await any_world.process()
    await process.gasoline.dispatch(first_release, Order(number="1"), key="k")
    given = OrderWithCustomer(number="1", customer="x")
    with pytest.raises(KeyReused, match="the recorded one does not read as OrderWithCustomer any more") as raised:
        await process.gasoline.dispatch(release_that_does_not_read_it, given, key="k")
    assert "customer" in str(raised.value)


@workflow(name="anything")
async def anything(ctx: WorkflowContext, given: Any) -> None: ...


@pytest.mark.parametrize(
    ("recorded", "given", "says"),
    [
        (1, True, "given: recorded is 1, given is true"),
        (1, 1.0, "given: recorded is 1, given is 1.0"),
        ({"a b": 1}, {}, "given['a b']: recorded is 1, given is nothing"),
        ({}, {"a": [1]}, "given.a: recorded is nothing, given is [1]"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, None),
        ("x" * 200, "y" * 200, "…"),
    ],
)
async def test_json_values_differ_by_type_and_by_key_but_not_by_order(
    world: World, recorded: Any, given: Any, says: str | None
) -> None:
    process = await world.process()
    await process.gasoline.dispatch(anything, recorded, key="k")
    if says is None:
        await process.gasoline.dispatch(anything, given, key="k")
        return
    with pytest.raises(KeyReused) as raised:
        await process.gasoline.dispatch(anything, given, key="k")
    assert says in str(raised.value)
    assert len(str(raised.value)) < 500
