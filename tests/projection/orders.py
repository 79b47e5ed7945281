"""Events of orders on a log, and projections of them, for tests of the runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gasoline_es.core.codec import Envelope
from gasoline_es.core.events import Event, EventData, WorkflowCompleted, WorkflowDispatched
from gasoline_es.log.port import Appended, Log, NewRecord, Section
from projections.definition import FunctionProjection, projection

TOPIC = "default.events"


def workflow_id(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012d}"


def encoded(number: int, seq: int, data: EventData, partition: int = 0) -> NewRecord:
    one = workflow_id(number)
    envelope = Envelope(
        namespace="default", workflow_id=one, workflow="order", ray_id=one, partition=partition, epoch=1, worker="w"
    )
    return NewRecord(TOPIC, partition, f"{one}/{seq}", envelope.encode(seq, 1_700_000_000_000_000 + seq, data), 1)


def dispatched(cents: int) -> WorkflowDispatched:
    return WorkflowDispatched("order", str(cents).encode(), {})


async def append(log: Log, partition: int, records: Sequence[NewRecord]) -> None:
    ownership = await log.acquire(partition)
    (outcome,) = await log.append([Section(partition, ownership.epoch, records)])
    assert isinstance(outcome, Appended), outcome


async def append_orders(log: Log, *cents: int, partition: int = 0, first: int = 1) -> None:
    """Append the first event of so many orders."""
    numbered = enumerate(cents, start=first)
    await append(log, partition, [encoded(number, 1, dispatched(value), partition) for number, value in numbered])


def parameter(db: Any) -> str:
    return "?" if hasattr(db, "total_changes") else "%s"


def make_tables(db: Any) -> None:
    db.execute("CREATE TABLE turnover(partition INTEGER PRIMARY KEY, orders INTEGER NOT NULL, cents INTEGER NOT NULL)")
    db.execute("CREATE TABLE seen(workflow VARCHAR(40), seq INTEGER, kind VARCHAR(40), PRIMARY KEY (workflow, seq))")


def apply_order(event: Event, db: Any) -> None:
    mark = parameter(db)
    kind = type(event.data).__name__
    db.execute(f"INSERT INTO seen VALUES ({mark}, {mark}, {mark})", (event.workflow_id, event.seq, kind))  # noqa: S608
    if isinstance(event.data, WorkflowDispatched):
        db.execute(
            f"INSERT INTO turnover VALUES ({mark}, 1, {mark}) ON CONFLICT (partition) "  # noqa: S608
            f"DO UPDATE SET orders = turnover.orders + 1, cents = turnover.cents + excluded.cents",
            (event.partition, int(event.data.input)),
        )


def turnover(
    version: int = 1, then: Callable[[Event, Any], None] | None = None, name: str = "turnover"
) -> FunctionProjection:
    """Return a projection of orders; ``then`` is called for each event after it has changed the tables."""

    @projection(name, version=version, setup=make_tables)
    def fold_order(event: Event, db: Any) -> None:
        apply_order(event, db)
        if then is not None:
            then(event, db)

    return fold_order


def read(store: Any, name: str = "turnover") -> list[tuple[int, int, int]]:
    """Return partition, orders and cents, as a reader sees them; what was seen has to fit."""
    with store.snapshot(name) as snapshot:
        rows = snapshot.db.execute("SELECT partition, orders, cents FROM turnover ORDER BY partition").fetchall()
        (seen,) = snapshot.db.execute("SELECT count(*) FROM seen WHERE kind = 'WorkflowDispatched'").fetchone()
    assert seen == sum(orders for _, orders, _ in rows), "a row of each event, and counts of each event"
    return rows


def completed() -> WorkflowCompleted:
    return WorkflowCompleted(b"null", b"null")
