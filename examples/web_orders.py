"""A shop's orders, and the process that runs them. The web applications beside it only dispatch, signal and ask.

    python examples/web_orders.py --log file:./shop-data

Beside it one of `web_fastapi.py`, `web_flask.py`, `web_django.py`, or all of them, on the same log. Kill any of these
processes at any moment and start it again: an order goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, Field, ValidationError

from gasoline_es import (
    ActivityContext,
    Gasoline,
    Signal,
    WorkflowCancelled,
    WorkflowContext,
    WorkflowFailed,
    WorkflowInfo,
    WorkflowNotFound,
    activity,
    workflow,
)
from gasoline_es.errors import KeyReused, NoOwner

LOG = os.environ.get("GASOLINE_LOG", "file:./shop-data")


# --- definitions ------------------------------------------------------------------------------------------------------


class Order(BaseModel):
    item: str = Field(min_length=1, max_length=200)
    cents: int = Field(gt=0)


class Paid(Signal):
    cents: int = Field(gt=0)


class OrderState(BaseModel):
    """What a page shows while the order is under way."""

    stage: Literal["waiting for payment", "shipping", "shipped"] = "waiting for payment"
    paid_cents: int = 0


class Receipt(BaseModel):
    item: str
    paid_cents: int
    parcel: str


@activity
async def book(ctx: ActivityContext, payment: Paid) -> int:
    state = ctx.state(OrderState)
    state.paid_cents += payment.cents
    return state.paid_cents


@activity
async def prepare(ctx: ActivityContext, order: Order) -> None:
    ctx.state(OrderState).stage = "shipping"


@activity
async def ship(ctx: ActivityContext, order: Order) -> str:
    ctx.state(OrderState).stage = "shipped"
    return f"parcel-{ctx.idempotency_key[:8]}"  # a real carrier would be given the key, so that it ships once


@workflow
async def shop_order(ctx: WorkflowContext, order: Order) -> Receipt:
    """Takes payments until the price is paid, then ships."""
    paid = 0
    while paid < order.cents:
        paid = await ctx.activity(book, await ctx.listen(Paid))
    await ctx.activity(prepare, order)
    parcel = await ctx.activity(ship, order)
    return Receipt(item=order.item, paid_cents=paid, parcel=parcel)


# --- what requests and answers of all three web applications are made of -----------------------------------------------


class NewOrder(Order):
    """``request``: made by the page for this one order, so that a request that is sent twice gives one."""

    request: UUID

    @property
    def order(self) -> Order:
        return Order(item=self.item, cents=self.cents)


class Payment(BaseModel):
    """``request``: made by the page for this one payment, so that a request that is sent twice pays once."""

    request: UUID
    cents: int = Field(gt=0)


class Standing(BaseModel):
    """Where an order stands. ``version`` grows with everything that happens to it."""

    id: str
    status: str
    over: bool
    state: dict[str, Any] | None
    output: dict[str, Any] | None
    version: int

    @classmethod
    def of(cls, info: WorkflowInfo) -> Self:
        over = info.status in ("complete", "cancelled", "dead")
        return cls(id=info.id, status=info.status, over=over, state=info.state, output=info.output, version=info.events)


ANSWERS: dict[type[Exception], int] = {
    ValidationError: 422,
    WorkflowNotFound: 404,
    KeyReused: 409,
    WorkflowCancelled: 410,
    WorkflowFailed: 500,
    NoOwner: 503,  # the worker does not answer: the request may be sent again
    TimeoutError: 504,
}
"""The HTTP status for what the log refuses."""


def status_for(error: Exception) -> int:
    return next(status for kind, status in ANSWERS.items() if isinstance(error, kind))


# --- run --------------------------------------------------------------------------------------------------------------


async def work(log: str) -> None:
    async with Gasoline.open(log) as gasoline:
        await gasoline.run_worker([shop_order])  # until SIGTERM or SIGINT


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The worker: it runs the orders.")
    parser.add_argument("--log", default=LOG, help=f"by default {LOG} (or GASOLINE_LOG)")
    asyncio.run(work(parser.parse_args().log))
