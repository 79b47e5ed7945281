"""What pyright and mypy infer of definitions and inside bodies: one assertion for each row of api.md."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, assert_type
from uuid import UUID

from pydantic import BaseModel

from gasoline_es import (
    Activity,
    ActivityContext,
    Backoff,
    Break,
    Failed,
    Message,
    NotRetryable,
    Ok,
    Operation,
    OperationContext,
    Prune,
    Signal,
    Step,
    Workflow,
    WorkflowContext,
    activity,
    operation,
    workflow,
)
from gasoline_es.definitions import AsyncActivity, ThreadActivity
from gasoline_es.events import ErrorInfo
from gasoline_es.operations import AsyncOperation, ThreadOperation


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


class Progress(Message, tail_ttl=timedelta(minutes=5)):
    done: int


class Left(Message, name="player_left", tail_ttl=90): ...


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


@operation
async def lookup(ctx: OperationContext, order: Order) -> Receipt:
    assert_type(ctx.workflow_id, str | None)
    assert_type((ctx.name, ctx.ray_id), tuple[str, str])
    assert_type(ctx.cancelled, bool)
    assert_type(await ctx.operation(count, order), int)
    return Receipt(number=1)


@operation(timeout=timedelta(seconds=5))
def count(ctx: OperationContext, order: Order) -> int:
    return 1


@operation("looks", timeout=1)
async def look(ctx: OperationContext, order: None) -> list[Order]:
    return []


assert_type(lookup, AsyncOperation[Order, Receipt])
assert_type(count, ThreadOperation[Order, int])
assert_type(look, AsyncOperation[None, list[Order]])
_operation: Operation[Order, Receipt] = lookup
_operation_of_more: Operation[Order, object] = lookup
assert_type(lookup.fn, Callable[[OperationContext, Order], Coroutine[Any, Any, Receipt]])
assert_type(count.fn, Callable[[OperationContext, Order], int])


async def operations(ctx: ActivityContext, order: Order) -> None:
    assert_type(await ctx.operation(lookup, order), Receipt)
    assert_type(await ctx.operation(count, order), int)
    assert_type(await ctx.operation(look, None), list[Order])


def signals() -> None:
    assert_type(Paid(amount=9).amount, int)
    assert_type(Held(name="tea").name, str)
    assert_type(Held.__signal_name__, str)
    assert_type(Progress(done=1).done, int)
    assert_type(Left.__message_name__, str)


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
    assert_type(await ctx.activity(charge, order, ephemeral=True), Receipt)
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


# --- side by side, again and again ------------------------------------------------------------------------------------


async def branches(ctx: WorkflowContext, order: Order, rush: RushOrder) -> None:
    async def body(ctx: WorkflowContext) -> Receipt:
        return await ctx.activity(charge, order)

    assert_type(await ctx.closure(body), Receipt)
    step = ctx.closure(body)
    _ = assert_type(step, Coroutine[Any, Any, Receipt])
    await step
    assert_type(await ctx.run(fulfil, order), Receipt)
    assert_type(await ctx.run(fulfil, rush), Receipt)
    assert_type(await ctx.run(tick, None), None)
    assert_type(await ctx.v(2).closure(body), Receipt)


async def messages(ctx: WorkflowContext) -> None:
    assert_type(await ctx.message(Progress(done=1), topic={"order": 42, "new": True}), None)
    assert_type(await ctx.v(2).message(Left()), None)
    assert_type(await ctx.join(ctx.message(Left()), ctx.check_version(1)), tuple[None, int])
    await ctx.removed("message", "left")
    assert_type(await ctx.v(2).emit("orders", "42", Left()), None)
    await ctx.removed("emit", "orders")


async def joins(ctx: WorkflowContext, order: Order) -> None:
    async def body(ctx: WorkflowContext) -> int:
        return 1

    assert_type(await ctx.join(ctx.sleep(1)), tuple[None])
    assert_type(await ctx.join(ctx.activity(charge, order), ctx.activity(pack, order)), tuple[Receipt, list[str]])
    receipt, packed = await ctx.join(ctx.run(fulfil, order), ctx.activity(pack, order))
    assert_type(receipt, Receipt)
    assert_type(packed, list[str])
    assert_type(await ctx.join(ctx.closure(body), ctx.sleep(1), ctx.activity(charge, order)), tuple[int, None, Receipt])
    assert_type(
        await ctx.join(ctx.listen(Paid), ctx.listen(Paid, timeout=1), ctx.check_version(2), ctx.sleep(1)),
        tuple[Paid, Paid | None, int, None],
    )
    assert_type(
        await ctx.join(
            ctx.activity(charge, order),
            ctx.join(ctx.closure(body), ctx.sleep(1)),
            ctx.maybe(ctx.activity(pack, order)),
            ctx.join_all([ctx.activity(charge, order)]),
            ctx.catch(ctx.activity(charge, order)),
        ),
        tuple[Receipt, tuple[int, None], list[str] | None, list[Receipt], Ok[Receipt] | Failed],
    )
    assert_type(
        await ctx.join(
            ctx.sleep(1), ctx.closure(body), ctx.sleep(1), ctx.closure(body), ctx.sleep(1), ctx.closure(body)
        ),
        tuple[None, int, None, int, None, int],
    )
    assert_type(
        await ctx.join(
            ctx.sleep(1),
            ctx.closure(body),
            ctx.sleep(1),
            ctx.closure(body),
            ctx.sleep(1),
            ctx.closure(body),
            ctx.activity(charge, order),
        ),
        tuple[None, int, None, int, None, int, Receipt],
    )
    assert_type(
        await ctx.join(
            ctx.sleep(1),
            ctx.closure(body),
            ctx.sleep(1),
            ctx.closure(body),
            ctx.sleep(1),
            ctx.closure(body),
            ctx.activity(charge, order),
            ctx.activity(pack, order),
        ),
        tuple[None, int, None, int, None, int, Receipt, list[str]],
    )


async def many(ctx: WorkflowContext, orders: list[Order], rush: bool) -> None:
    assert_type(await ctx.join_all([ctx.activity(charge, order) for order in orders]), list[Receipt])
    assert_type(await ctx.join_all(ctx.activity(pack, order) for order in orders), list[list[str]])
    optional = ctx.activity(charge, orders[0]) if rush else None
    assert_type(await ctx.maybe(optional), Receipt | None)
    assert_type(await ctx.join(ctx.maybe(optional), ctx.sleep(1)), tuple[Receipt | None, None])


async def races(ctx: WorkflowContext, order: Order) -> int:
    assert_type(
        await ctx.race(ctx.activity(charge, order), ctx.sleep(1)),
        tuple[Literal[0], Receipt] | tuple[Literal[1], None],
    )
    assert_type(
        await ctx.race(ctx.activity(charge, order), ctx.activity(pack, order), ctx.listen(Paid)),
        tuple[Literal[0], Receipt] | tuple[Literal[1], list[str]] | tuple[Literal[2], Paid],
    )
    match await ctx.race(ctx.activity(charge, order), ctx.activity(pack, order)):
        case (0, receipt):
            assert_type(receipt, Receipt)
            return receipt.number
        case (1, packed):
            assert_type(packed, list[str])
            return len(packed)


async def races_of_more(ctx: WorkflowContext, order: Order) -> None:
    match await ctx.race(ctx.sleep(1), ctx.listen(Paid), ctx.run(fulfil, order), ctx.activity(pack, order)):
        case (1, paid):
            assert_type(paid, Paid)
        case (3, packed):
            assert_type(packed, list[str])
        case (index, other):
            assert_type(index, Literal[0, 2])
            assert_type(other, Receipt | None)
    five = await ctx.race(ctx.sleep(1), ctx.sleep(1), ctx.sleep(1), ctx.sleep(1), ctx.listen(Paid))
    if five[0] == 4:
        assert_type(five[1], Paid)
    six = await ctx.race(ctx.sleep(1), ctx.sleep(1), ctx.sleep(1), ctx.sleep(1), ctx.sleep(1), ctx.listen(Paid))
    if six[0] == 5:
        assert_type(six[1], Paid)


async def catches(ctx: WorkflowContext, order: Order) -> int:
    assert_type(await ctx.catch(ctx.activity(charge, order)), Ok[Receipt] | Failed)
    match await ctx.catch(ctx.run(fulfil, order)):
        case Ok(receipt):
            assert_type(receipt, Receipt)
            return receipt.number
        case Failed(error, attempts):
            assert_type(error, ErrorInfo)
            return attempts


async def loops(ctx: WorkflowContext, order: Order) -> None:
    async def until_paid(ctx: WorkflowContext, basket: Basket) -> Break[Receipt] | None:
        basket.total += (await ctx.listen(Paid)).amount
        return Break(Receipt(number=basket.total)) if basket.total > 100 else None

    async def poll(ctx: WorkflowContext) -> Break[str] | None:
        await ctx.sleep(60)
        return None

    async def at_once(ctx: WorkflowContext) -> Break[None]:
        return Break(None)

    assert_type(await ctx.loop(until_paid, Basket()), Receipt)
    assert_type(await ctx.loop(until_paid, Basket(), commit_interval=100), Receipt)
    assert_type(await ctx.repeat(poll), str)
    assert_type(await ctx.repeat(poll, commit_interval=1), str)
    await ctx.repeat(at_once)
    assert_type(await ctx.join(ctx.loop(until_paid, Basket()), ctx.repeat(poll)), tuple[Receipt, str])


async def undoing(ctx: WorkflowContext, order: Order, receipt: Receipt) -> None:
    assert_type(await ctx.checkpoint(), None)
    ctx.on_rollback(charge, order)


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
    assert_type(ctx.tags, Mapping[str, str])


def states(ctx: ActivityContext) -> None:
    assert_type(ctx.state(Receipt), Receipt)
    assert_type(ctx.state(Basket), Basket)
    assert_type(ctx.state(dict[str, int]), dict[str, int])
    assert_type(ctx.state(list[str]), list[str])
