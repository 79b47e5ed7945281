"""Lets a projection fold events that a test has, and gives the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import TypeVar, overload

import gasoline_es.shadowing  # noqa: F401  # pyright: ignore[reportUnusedImport]  # before `projections`
from gasoline_es.core.events import Event
from projections.definition import Projection, check_projection
from projections.stores.sqlite_connection import connect_memory

Db = TypeVar("Db")


@overload
def fold(projection: Projection | type[Projection], events: Iterable[Event]) -> sqlite3.Connection: ...


@overload
def fold(projection: Projection | type[Projection], events: Iterable[Event], *, db: Db) -> Db: ...


def fold(
    projection: Projection | type[Projection], events: Iterable[Event], *, db: Db | None = None
) -> sqlite3.Connection | Db:
    """Make a projection's tables, and apply these events to them in order; return the connection.

        db = fold(turnover, await handle.history())
        assert db.execute("SELECT cents FROM turnover").fetchall() == [(1200,)]

    The database is a new one of SQLite in memory. ``db``: a connection of psycopg to use instead, to a database or schema
    without those tables; nothing is committed there. What ``apply`` raises comes out as it is. As in a store, it cannot
    commit.
    """
    one = check_projection(projection)
    if db is not None:
        one.setup(db)
        for event in events:
            one.apply(event, db)
        return db
    memory = connect_memory()
    memory.begin("BEGIN")
    one.setup(memory)
    for event in events:
        one.apply(event, memory)
    memory.require_transaction()
    memory.end("COMMIT")
    return memory
