"""What pyright and mypy infer of definitions and inside bodies: one assertion for each row of api.md."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from pydantic import BaseModel

from gasoline_es import (
    Activity,
    ActivityContext,
    Backoff,
    NotRetryable,
    Prune,
    Signal,
    Step,
    Workflow,
    WorkflowContext,
    activity,
    workflow,
)
from gasoline_es.definitions import AsyncActivity, ThreadActivity


class Order(BaseModel):
    item: str


class RushOrder(Order):
    by: datetime


class Receipt(BaseModel):
    number: int


@dataclass
class Basket:
    total: int = 0


class Paid(Signal):
    amount: int


class Cancelled(Signal): ...


class Held(Signal, name="on_hold"):
    name: str


class Freed(Signal): ...


class Moved(Signal): ...


class Lost(Signal): ...


# --- definitions ------------------------------------------------------------------------------------------------------


@activity
async def charge(ctx: ActivityContext, order: Order) -> Receipt:
    raise NotRetryable("no card", order)


@activity(max_attempts=3, timeout=timedelta(minutes=1), retry_on_timeout=False, backoff=Backoff(base=1, doublings=3))
async def charge_slowly(ctx: ActivityContext, order: Order) -> Receipt:
    return await charge.fn(ctx, order)


@activity
def pack(ctx: ActivityContext, order: Order) -> list[str]:
    return [order.item]


@activity("pack_it", timeout=5)
def pack_quickly(ctx: ActivityContext, order: Order) -> list[str]:
    return pack.fn(ctx, order)


@activity
async def notify(ctx: ActivityContext, text: str | None) -> None: ...


@activity(name="count")
def count_(ctx: ActivityContext, _: None) -> dict[str, int] | None:
    return None


@workflow
async def fulfil(ctx: WorkflowContext, order: Order) -> Receipt:
    return await ctx.activity(charge, order)


@workflow("tick_tock", prune=Prune.NONE)
async def tick(ctx: WorkflowContext, _: None) -> None: ...


assert_type(charge, AsyncActivity[Order, Receipt])
assert_type(charge_slowly, AsyncActivity[Order, Receipt])
assert_type(pack, ThreadActivity[Order, list[str]])
assert_type(pack_quickly, ThreadActivity[Order, list[str]])
assert_type(notify, AsyncActivity[str | None, None])
assert_type(count_, ThreadActivity[None, dict[str, int] | None])
assert_type(fulfil, Workflow[Order, Receipt])
assert_type(tick, Workflow[None, None])

# Whoever takes any activity writes the plain name.
either: Activity[Order, Receipt] = charge
other: Activity[Order, list[str]] = pack

# The plain function stays at hand, typed as it was written.
assert_type(charge.fn, Callable[[ActivityContext, Order], Coroutine[Any, Any, Receipt]])
assert_type(pack.fn, Callable[[ActivityContext, Order], list[str]])
assert_type(fulfil.fn, Callable[[WorkflowContext, Order], Coroutine[Any, Any, Receipt]])


def signals() -> None:
    assert_type(Paid(amount=9).amount, int)
    assert_type(Held(name="tea").name, str)
    assert_type(Held.__signal_name__, str)


# --- inside a workflow ------------------------------------------------------------------------------------------------


async def who_and_when(ctx: WorkflowContext) -> None:
    assert_type(ctx.workflow_id, str)
    assert_type(ctx.name, str)
    assert_type(ctx.ray_id, str)
    assert_type(ctx.tags, Mapping[str, str])
    assert_type(ctx.now(), datetime)
    assert_type(ctx.random(), float)
    assert_type(ctx.uuid(), UUID)


async def activities(ctx: WorkflowContext, order: Order, rush: RushOrder) -> None:
    assert_type(await ctx.activity(charge, order), Receipt)
    assert_type(await ctx.activity(charge, rush), Receipt)
    assert_type(await ctx.activity(charge, order, max_attempts=1, timeout=timedelta(hours=1)), Receipt)
    assert_type(await ctx.activity(pack, order), list[str])
    assert_type(await ctx.activity(either, order), Receipt)
    assert_type(await ctx.activity(count_, None), dict[str, int] | None)
    await ctx.activity(notify, "sent")
    await ctx.activity(notify, None)
    later: Step[Receipt] = ctx.activity(charge, order)
    assert_type(await later, Receipt)
    _ = assert_type(later, Coroutine[Any, Any, Receipt])


async def sleeps(ctx: WorkflowContext, when: datetime) -> None:
    step = ctx.sleep(1)
    _ = assert_type(step, Coroutine[Any, Any, None])
    await step
    await ctx.sleep(0.5)
    await ctx.sleep(timedelta(days=30))
    until = ctx.sleep_until(when)
    _ = assert_type(until, Coroutine[Any, Any, None])
    await until


async def listens(ctx: WorkflowContext) -> None:
    assert_type(await ctx.listen(Paid), Paid)
    assert_type(await ctx.listen(Paid, Cancelled), Paid | Cancelled)
    assert_type(await ctx.listen(Paid, Cancelled, Held), Paid | Cancelled | Held)
    assert_type(await ctx.listen(Paid, Cancelled, Held, Freed), Paid | Cancelled | Held | Freed)
    assert_type(await ctx.listen(Paid, Cancelled, Held, Freed, Moved), Paid | Cancelled | Held | Freed | Moved)
    assert_type(
        await ctx.listen(Paid, Cancelled, Held, Freed, Moved, Lost), Paid | Cancelled | Held | Freed | Moved | Lost
    )


async def timed_listens(ctx: WorkflowContext, when: datetime, maybe: float | None) -> None:
    assert_type(await ctx.listen(Paid, timeout=5), Paid | None)
    assert_type(await ctx.listen(Paid, timeout=maybe), Paid | None)
    assert_type(await ctx.listen(Paid, until=when), Paid | None)
    assert_type(await ctx.listen(Paid, Cancelled, timeout=timedelta(days=1)), Paid | Cancelled | None)
    assert_type(await ctx.listen(Paid, Cancelled, until=when), Paid | Cancelled | None)
    assert_type(await ctx.listen(Paid, Cancelled, Held, until=when), Paid | Cancelled | Held | None)
    assert_type(await ctx.listen(Paid, Cancelled, Held, Freed, timeout=1), Paid | Cancelled | Held | Freed | None)
    assert_type(
        await ctx.listen(Paid, Cancelled, Held, Freed, Moved, until=when),
        Paid | Cancelled | Held | Freed | Moved | None,
    )
    assert_type(
        await ctx.listen(Paid, Cancelled, Held, Freed, Moved, Lost, timeout=1),
        Paid | Cancelled | Held | Freed | Moved | Lost | None,
    )


async def listens_for_many(ctx: WorkflowContext, when: datetime) -> None:
    assert_type(await ctx.listen_n(Paid, limit=10), list[Paid])
    assert_type(await ctx.listen_n(Paid, limit=10, timeout=5), list[Paid])
    assert_type(await ctx.listen_n(Paid, limit=10, until=when), list[Paid])
    assert_type(await ctx.listen_n(Paid, Cancelled, limit=10), list[Paid | Cancelled])
    assert_type(await ctx.listen_n(Paid, Cancelled, Held, limit=10, timeout=5), list[Paid | Cancelled | Held])
    assert_type(await ctx.listen_n(Paid, Cancelled, Held, Freed, limit=1), list[Paid | Cancelled | Held | Freed])
    assert_type(
        await ctx.listen_n(Paid, Cancelled, Held, Freed, Moved, limit=1), list[Paid | Cancelled | Held | Freed | Moved]
    )
    assert_type(
        await ctx.listen_n(Paid, Cancelled, Held, Freed, Moved, Lost, limit=1, until=when),
        list[Paid | Cancelled | Held | Freed | Moved | Lost],
    )


async def narrowed(ctx: WorkflowContext) -> int:
    match await ctx.listen(Paid, Cancelled, timeout=60):
        case Paid(amount=amount):
            assert_type(amount, int)
            return amount
        case Cancelled():
            return 0
        case None:
            return -1


async def versions(ctx: WorkflowContext, order: Order) -> None:
    assert_type(ctx.v(2), WorkflowContext)
    assert_type(await ctx.v(2).activity(charge, order), Receipt)
    step = ctx.removed("activity", "charge")
    _ = assert_type(step, Coroutine[Any, Any, None])
    await step
    await ctx.removed("sleep")
    assert_type(await ctx.check_version(2), int)


# --- inside an activity -----------------------------------------------------------------------------------------------


def told(ctx: ActivityContext) -> None:
    assert_type(ctx.workflow_id, str)
    assert_type(ctx.workflow_name, str)
    assert_type(ctx.name, str)
    assert_type(ctx.ray_id, str)
    assert_type(ctx.attempt, int)
    assert_type(ctx.first_attempt_at, datetime)
    assert_type(ctx.attempt_at, datetime)
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.cancelled, bool)


def states(ctx: ActivityContext) -> None:
    assert_type(ctx.state(Receipt), Receipt)
    assert_type(ctx.state(Basket), Basket)
    assert_type(ctx.state(dict[str, int]), dict[str, int])
    assert_type(ctx.state(list[str]), list[str])
