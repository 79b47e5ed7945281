"""Real histories for the command line to show, made by the engine on a file log; each with everything in a known order.

A story is told in two parts, with another revision of the code in the second: the first never lets a workflow leave
memory, the second lets it leave at once, so that where it was suspended is no matter of luck.
"""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from gasoline_es import (
    ActivityContext,
    Backoff,
    Event,
    Gasoline,
    NotRetryable,
    Signal,
    Workflow,
    WorkflowContext,
    activity,
    workflow,
)
from gasoline_es.errors import WorkflowFailed
from gasoline_es.log import open_log
from gasoline_es.log.port import NewRecord, Section
from projections.definition import projection

PARTITIONS = 4
AT_ONCE = Backoff(base=0.0001, doublings=0)

# ESC sequences (colour, clear screen, set title), a forged row, CR, C1, a right-to-left override, zero width, rich markup.
HOSTILE = (
    "\x1b[31mred\x1b[0m\x1b[2J\x1b]0;title\x07\r\nforged  row\tx\x9b1m\x85\x7f\x00 \u202egnp\u2066\u200b\u2028\ufeff"
    "\U000e0041[red]markup[/red] :smile: 日本語 \\ end"
)


class Order(BaseModel):
    order: str
    amount: int = 0


class Ledger(BaseModel):
    charged: int = 0


class Paid(Signal):
    amount: int


class Cancelled(Signal):
    why: str


class Noted(Signal):
    text: str


@activity(max_attempts=3, backoff=AT_ONCE)
async def charge(ctx: ActivityContext, order: Order) -> str:
    if ctx.attempt == 1:
        raise ConnectionError("no route to the bank")
    ctx.state(Ledger).charged = order.amount
    return f"receipt {order.order}"


@activity(max_attempts=2, backoff=AT_ONCE)
async def ship(ctx: ActivityContext, order: Order) -> str:
    raise RuntimeError(f"the lorry broke down with {order.order}")


@activity
async def refuse(ctx: ActivityContext, text: str) -> str:
    raise NotRetryable(text)


@activity(max_attempts=2, backoff=Backoff(base=3600, doublings=0))
async def doubt(ctx: ActivityContext, text: str) -> str:
    raise TimeoutError(text)


@activity
async def notify(ctx: ActivityContext, order: Order) -> None:
    return None


def fulfil_of(revision: int) -> Workflow[Order, str]:
    @workflow("fulfil")
    async def fulfil(ctx: WorkflowContext, order: Order) -> str:
        receipt = await ctx.activity(charge, order)
        if revision == 2:
            await ctx.v(2).activity(notify, order)
        await ctx.sleep(0.001)
        await ctx.listen(Paid, Cancelled)
        await ctx.listen(Cancelled, timeout=0.001)
        await ctx.removed("activity", "old_mail")
        await ctx.check_version(2)
        await ctx.listen(Paid, timeout=3_600)
        return receipt

    return fulfil


@workflow
async def doomed(ctx: WorkflowContext, order: Order) -> str:
    return await ctx.activity(ship, order)


@workflow
async def hostile(ctx: WorkflowContext, text: str) -> str:
    return await ctx.activity(refuse, text)


@workflow
async def waiting(ctx: WorkflowContext, order: Order) -> str:
    await ctx.listen(Cancelled)
    return "cancelled"


@workflow
async def doubtful(ctx: WorkflowContext, text: str) -> str:
    return await ctx.activity(doubt, text)


def _make_table(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE seen(workflow TEXT, seq INTEGER, name TEXT, kind TEXT, PRIMARY KEY (workflow, seq))")


@projection("seen", setup=_make_table)
def seen(event: Event, db: sqlite3.Connection) -> None:
    row = (event.workflow_id, event.seq, event.workflow, type(event.data).__name__)
    db.execute("INSERT INTO seen VALUES (?, ?, ?, ?)", row)


@dataclass(frozen=True)
class Story:
    """A finished log and the ids of what is in it."""

    directory: Path
    fulfil: str
    doomed: str
    hostile: str
    waiting: str
    doubtful: str

    @property
    def url(self) -> str:
        return f"file:{self.directory}"

    @property
    def ids(self) -> list[str]:
        return [self.fulfil, self.doomed, self.hostile, self.waiting, self.doubtful]


def tell(directory: Path) -> Story:
    """Make the log with everything in it."""
    return asyncio.run(_tell(directory))


async def _tell(directory: Path) -> Story:
    url = f"file:{directory}"
    async with Gasoline.open(url, partitions=PARTITIONS) as gasoline:
        first = fulfil_of(1)
        async with gasoline.worker([first, doomed, hostile, waiting], evict_after=60):
            order = Order(order="42", amount=7)
            fulfil = await gasoline.dispatch(first, order, tags={"order": "42", "rush": True}, key="order-42")
            await fulfil.signal(Paid(amount=7), id="payment-1")
            await _until(gasoline, fulfil.id, "version.checked")
            dead = await gasoline.dispatch(doomed, Order(order="43"), tags={"order": "43"})
            await _dead(dead.output(timeout=20))
            refused = await gasoline.dispatch(hostile, HOSTILE, tags={"text": HOSTILE, HOSTILE: "1"})
            await _dead(refused.output(timeout=20))
            still = await gasoline.dispatch(waiting, Order(order="44"), tags={"order": "44"})
            await still.signal(Paid(amount=1), id="early")
    async with Gasoline.open(url) as gasoline:
        second = fulfil_of(2)
        async with gasoline.worker([second, doomed, hostile, waiting, doubtful], evict_after=0.001):
            unsure = await gasoline.dispatch(doubtful, "is it there?")
            for workflow_id in (fulfil.id, still.id, unsure.id):
                await _until(gasoline, workflow_id, "workflow.suspended")
            await gasoline.signal(Noted(text="left over"), to=fulfil.id, id="note-1")
            await gasoline.signal(Paid(amount=8), to=fulfil.id, id="payment-2")
            await gasoline.handle(fulfil.id, second).output(timeout=20)
            await gasoline.wake(dead.id)
            await _until(gasoline, dead.id, "workflow.failed", count=2)
    return Story(directory, fulfil.id, dead.id, refused.id, still.id, unsure.id)


async def _dead(output: object) -> None:
    try:
        await output  # type: ignore[misc]
    except WorkflowFailed:
        return
    raise AssertionError("it should have died")


async def _until(gasoline: Gasoline, workflow_id: str, kind: str, count: int = 1) -> None:
    async with asyncio.timeout(20):
        while [event.type for event in await gasoline.history(workflow_id)].count(kind) < count:
            await asyncio.sleep(0.002)


def append(directory: Path, partition: int, key: str, value: bytes) -> None:
    """Append a record to a partition's events, as its owner."""

    async def run() -> None:
        log = await open_log(f"file:{directory}")
        owned = await log.acquire(partition)
        record = NewRecord("default.events", partition, key, value, 1_767_225_600_000_000)
        await log.append([Section(partition, owned.epoch, [record])])
        await log.close()

    asyncio.run(run())
