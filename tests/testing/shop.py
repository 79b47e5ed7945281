"""What the tests of simulations run: an order that is paid, shipped or cancelled."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from pydantic import BaseModel

from gasoline_es import ActivityContext, Backoff, Break, Signal, WorkflowContext, activity, workflow

WEEK = timedelta(days=7)
MONTH = timedelta(days=30)


class Order(BaseModel):
    number: int
    cents: int = 500


class Receipt(BaseModel):
    order: int
    cents: int


class Paid(Signal):
    cents: int


@activity(max_attempts=4, timeout=10, backoff=Backoff(base=60, doublings=8))
async def charge(ctx: ActivityContext, order: Order) -> Receipt:
    raise RuntimeError("the bank is real")


@activity
async def ship(ctx: ActivityContext, order: Order) -> str:
    await asyncio.sleep(2)
    return f"parcel {order.number}"


@activity
def label(ctx: ActivityContext, order: Order) -> str:
    return f"label {order.number}"


@workflow
async def fulfil(ctx: WorkflowContext, order: Order) -> str:
    """Ask for money for a week; then charge and ship."""
    paid = await ctx.listen(Paid, timeout=WEEK)
    if paid is None:
        return "cancelled"
    receipt = await ctx.activity(charge, order)
    parcel = await ctx.activity(ship, order)
    return f"{parcel} for {receipt.cents}"


@workflow
async def deliver(ctx: WorkflowContext, order: Order) -> str:
    await ctx.sleep(3600)
    both = await ctx.join(ctx.activity(ship, order), ctx.activity(label, order))
    return " with ".join(both)


@workflow
async def order_and_deliver(ctx: WorkflowContext, order: Order) -> list[str]:
    delivery = await ctx.dispatch(deliver, order, tags={"order": order.number})
    inline = await ctx.run(deliver, Order(number=order.number + 1))
    return [await delivery.output(), inline]


class Months(BaseModel):
    over: int = 0


@workflow
async def subscribe(ctx: WorkflowContext, order: Order) -> int:
    """A payment a month, for a year."""

    async def month(ctx: WorkflowContext, months: Months) -> Break[int] | None:
        await ctx.sleep(MONTH)
        await ctx.activity(charge, order)
        months.over += 1
        return Break(months.over) if months.over == 12 else None

    return await ctx.loop(month, Months(), commit_interval=5)


@workflow
async def two_payments(ctx: WorkflowContext, order: Order) -> list[int]:
    return [(await ctx.listen(Paid)).cents, (await ctx.listen(Paid)).cents]
