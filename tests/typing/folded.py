"""What pyright and mypy infer of projections, and that both take what a user writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, assert_type

import psycopg

from gasoline_es import Event, Gasoline, WorkflowHandle
from gasoline_es.events import ActivityCompleted
from gasoline_es.testing import fold
from projections import Projection, ProjectionView, projection
from projections.definition import FunctionProjection
from projections.stores.port import Feed, Position, Snapshot
from tests.typing.inside import Receipt, fulfil


def make_tables(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE turnover(cents INTEGER NOT NULL)")


@projection("turnover", version=2, setup=make_tables, only=(ActivityCompleted,))
def turnover(event: Event, db: sqlite3.Connection) -> None:
    if isinstance(event.data, ActivityCompleted):
        db.execute("INSERT INTO turnover VALUES (?)", (event.data.output,))


class Turnover(Projection):
    name = "turnover-of-customers"
    version = 3
    only = (ActivityCompleted,)

    def setup(self, db: psycopg.Connection[tuple[Any, ...]]) -> None:
        db.execute("CREATE TABLE turnover(cents bigint NOT NULL)")

    def apply(self, event: Event, db: psycopg.Connection[tuple[Any, ...]]) -> None:
        db.execute("INSERT INTO turnover VALUES (%s)", (event.seq,))


def folds(events: list[Event], connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    assert_type(turnover, FunctionProjection)
    assert_type(fold(turnover, events), sqlite3.Connection)
    assert_type(fold(Turnover, events, db=connection), psycopg.Connection[tuple[Any, ...]])


async def reads(gasoline: Gasoline, handle: WorkflowHandle[Receipt]) -> None:
    view = gasoline.projection(turnover)
    assert_type(view, ProjectionView)
    assert_type(gasoline.projection(Turnover, store="postgresql:///shop"), ProjectionView)
    assert_type(await view.wait_for(handle, handle.id, timeout=5), None)
    with view.snapshot() as snapshot:
        assert_type(snapshot, Snapshot[Any])
        assert_type(snapshot.positions, Mapping[Feed, Position])
        await view.wait_for(snapshot.positions)
    async with gasoline.worker([fulfil], projections=[turnover, Turnover, Turnover()]):
        pass
