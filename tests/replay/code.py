"""The words of the scripts: the activities and signals that their code uses, and how a block of code becomes a body."""

from __future__ import annotations

import ast
import contextlib
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from gasoline_es import ActivityContext, Break, Failed, Message, Ok, Signal, WorkflowContext, activity, workflow
from gasoline_es.errors import ActivityFailed, ActivityMaxFailuresReached, WorkflowCancelled
from gasoline_es.errors import Cancelled as Cancel
from tests.replay.world import OTHER_ID, PLANS, Body


class Paid(Signal):
    amount: int


class PaidBy(Signal, name="paid"):
    """The kind ``paid`` as later code has it: with a field that the recorded ones lack."""

    amount: int
    by: str


class Cancelled(Signal): ...


class Shipped(Signal): ...


class Moved(Message):
    x: int


class Walked(Message): ...


class Receipt(BaseModel):
    number: int


@activity
def charge(ctx: ActivityContext, order: Any) -> Any: ...


@activity
def refund(ctx: ActivityContext, order: Any) -> Any: ...


@activity
def ship(ctx: ActivityContext, order: Any) -> Any: ...


@activity
def notify(ctx: ActivityContext, order: Any) -> Any: ...


@activity
def charge_card(ctx: ActivityContext, order: Any) -> Any: ...


@activity(name="charge")
def charge_card_named_charge(ctx: ActivityContext, order: Any) -> Any: ...


def _typed_charge() -> object:
    @activity
    def charge(ctx: ActivityContext, order: Any) -> Receipt: ...

    return charge


class Cart(BaseModel):
    """The state of the scripts' loops."""

    items: list[str] = []
    rounds: int = 0


@workflow
async def pack(ctx: WorkflowContext, order: Any) -> str:
    return f"packed {await ctx.activity(ship, order)}"


@workflow
async def wrap(ctx: WorkflowContext, order: Any) -> str:
    return f"wrapped {await ctx.activity(ship, order)}"


@workflow(name="pack")
async def wrap_named_pack(ctx: WorkflowContext, order: Any) -> str:
    return f"wrapped {await ctx.activity(ship, order)}"


PLANS.update((one.name, one.plan) for one in (charge, refund, ship, notify))

_WORDS: dict[str, Any] = {
    "Break": Break,
    "Cart": Cart,
    "Failed": Failed,
    "Ok": Ok,
    "Receipt": Receipt,
    "WorkflowContext": WorkflowContext,
    "pack": pack,
    "wrap": wrap,
    "wrap_named_pack": wrap_named_pack,
    "charge": charge,
    "charge_for_receipt": _typed_charge(),
    "charge_card": charge_card,
    "charge_card_named_charge": charge_card_named_charge,
    "refund": refund,
    "ship": ship,
    "notify": notify,
    "Paid": Paid,
    "PaidBy": PaidBy,
    "Cancel": Cancel,
    "Cancelled": Cancelled,
    "WorkflowCancelled": WorkflowCancelled,
    "OTHER_ID": OTHER_ID,
    "Shipped": Shipped,
    "Moved": Moved,
    "Walked": Walked,
    "ActivityFailed": ActivityFailed,
    "ActivityMaxFailuresReached": ActivityMaxFailuresReached,
    "contextlib": contextlib,
    "datetime": datetime,
    "timedelta": timedelta,
    "UTC": UTC,
}


def body_of(code: str, say: Callable[[object], None]) -> Body:
    """Make a body of the lines between ``async def body(ctx):`` and its end; they are lines 1, 2, … of ``code``."""
    tree = ast.parse("async def body(ctx):\n" + textwrap.indent(textwrap.dedent(code), "    "))
    ast.increment_lineno(tree, -1)
    names: dict[str, Any] = {**_WORDS, "say": say}
    exec(compile(tree, "code", "exec"), names)  # noqa: S102  # the scripts are part of the tests
    body: Body = names["body"]
    return body
