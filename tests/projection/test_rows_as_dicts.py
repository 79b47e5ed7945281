"""A projection may have the rows of its connection as it likes: the store reads its own as it needs them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from psycopg.rows import dict_row

from gasoline_es import Event
from gasoline_es.log.opening import open_log
from projections import projection
from projections.building import rebuild
from projections.comparing import verify
from projections.running import Notice, Runner
from projections.stores.opening import open_store
from tests.projection.orders import append_orders

STEPS_MAX = 200


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def make_tables(db: Any) -> None:
    db.execute("CREATE TABLE orders(n INTEGER NOT NULL)")
    db.execute("INSERT INTO orders VALUES (0)")


@projection("dicts", setup=make_tables)
def dicts(event: Event, db: Any) -> None:
    factory: Any = as_dict if isinstance(db, sqlite3.Connection) else dict_row
    db.row_factory = factory
    found = db.execute("SELECT n FROM orders").fetchone()
    db.execute(f"UPDATE orders SET n = {found['n'] + 1}")  # noqa: S608  # a number


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_projection_that_reads_rows_as_dicts_is_kept_up(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In SQLite it fails with ``'dicts': 0``, a KeyError. In PostgreSQL it turns round at `PositionMoved` for ever."""
    store_url = request.getfixturevalue("postgres_url") if kind == "postgres" else None
    log = await open_log(f"file:{tmp_path}/log", partitions=2)
    await append_orders(log, 1, 2, 3, partition=0)
    await append_orders(log, 4, 5, partition=1, first=4)
    store, told, mine = open_store(log, store_url), list[Notice](), {0, 1}
    with closing(Runner(log, store, [dicts], partitions=lambda: sorted(mine), tell=told.append)) as runner:
        for partitions in ({0, 1}, {1}, {0, 1}):  # as a worker gives one up, and has it again
            mine.clear()
            mine.update(partitions)
            steps = 0
            while runner.step():
                steps += 1
                assert steps < STEPS_MAX, "it does not come to rest"
    assert [notice.why for notice in told if notice.kind == "failing"] == []
    with store.snapshot("dicts") as snapshot:
        assert snapshot.db.execute("SELECT n FROM orders").fetchone() == (5,)
    await log.close()


@projection("dicts", setup=make_tables)
def plain(event: Event, db: Any) -> None:
    db.execute("UPDATE orders SET n = n + 1")


async def test_a_projection_that_reads_rows_as_dicts_is_rebuilt(tmp_path: Path, postgres_url: str) -> None:
    log = await open_log(f"file:{tmp_path}/log", partitions=1)
    await append_orders(log, 1, 2, 3)
    store = open_store(log, postgres_url)
    Runner(log, store, [dicts]).run_once()
    assert rebuild(log, store, dicts).generation == 2
    await log.close()


async def test_a_projection_that_reads_rows_as_dicts_goes_on_in_the_tables_of_a_rebuild(
    tmp_path: Path, postgres_url: str
) -> None:
    log = await open_log(f"file:{tmp_path}/log", partitions=1)
    await append_orders(log, 1, 2, 3)
    store = open_store(log, postgres_url)
    with closing(Runner(log, store, [dicts])) as runner:
        while runner.step():
            pass
        with store.snapshot("dicts"):  # which keeps the old tables from being dropped
            rebuild(log, store, plain)
            await append_orders(log, 4, first=4)
            while runner.step():
                pass
            with store.snapshot("dicts") as snapshot:
                assert snapshot.db.execute("SELECT n FROM orders").fetchone() == (4,)
    await log.close()


def make_named(db: Any) -> None:
    db.execute("CREATE TABLE orders(n INTEGER NOT NULL, name TEXT NOT NULL)")


@projection("named", setup=make_named)
def named(event: Event, db: Any) -> None:
    kept = isinstance(db, sqlite3.Connection)
    db.row_factory, db.text_factory = (as_dict, bytes) if kept else (dict_row, bytes)
    values = "?, ?" if kept else "%s, %s"
    db.execute(f"INSERT INTO orders VALUES ({values})", (event.seq, event.workflow))  # noqa: S608  # placeholders


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_a_projection_sets_changes_nothing_of_what_the_store_tells(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store_url = request.getfixturevalue("postgres_url") if kind == "postgres" else None
    log = await open_log(f"file:{tmp_path}/log", partitions=1)
    await append_orders(log, 1, 2, 3)
    store = open_store(log, store_url)
    Runner(log, store, [named]).run_once()
    await append_orders(log, 4, 5, first=4)
    Runner(log, store, [named]).run_once()
    assert rebuild(log, store, named).records == 5
    verdict = verify(log, store, named)
    assert (verdict.records, verdict.rows, verdict.difference) == (5, 5, None)
    await log.close()
