"""What is PostgreSQL's own: schemas, views, and commits that come hidden in other texts (design §7)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from gasoline_es.errors import ExtraMissing, ProjectionError, Superseded
from gasoline_es.log.port import Log
from projections.stores.opening import open_store as open_store_at
from projections.stores.port import Store
from projections.stores.postgres import PostgresStore
from tests.projection.conftest import OpenStore
from tests.projection.counting import at, built, catching_up, change, count, counted, fold, running, setup
from tests.projection.orders import append_orders, parameter, turnover
from tests.projection.test_running import keep_up

SCHEMA = "default__counts"


@pytest.fixture
def kind() -> str:
    return "postgres"


def names_our_table(db: Any) -> None:
    db.execute("UPDATE gasoline_positions SET digest = ''")


def names_our_table_composed(db: Any) -> None:
    db.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier("gasoline_positions")))


def prepares(db: Any) -> None:
    db.execute("PREPARE TRANSACTION 'mine'")


@pytest.mark.parametrize(
    "do",
    [
        running("/* in a comment */ COMMIT"),
        running("SELECT 1; /* in a comment */ COMMIT"),
        running("SELECT 1; COMMIT"),
        names_our_table,
        names_our_table_composed,
        prepares,
    ],
    ids=["a comment", "after another", "behind a semicolon", "our table", "our table, composed", "PREPARE"],
)
def test_what_is_the_stores_own_is_refused_however_it_comes(do: Callable[[Any], None], store: Store[Any]) -> None:
    generation = built(store, up_to=0)
    with pytest.raises((psycopg.Error, ProjectionError)):
        change(generation, at(0), at(1), do)
    assert counted(store) == (1, 0)
    fold(generation, 1)
    assert counted(store) == (2, 1)


def test_a_hidden_rollback_gives_the_generation_up(store: Store[Any]) -> None:
    generation = built(store, up_to=0)
    with pytest.raises(ProjectionError, match="ended the store's transaction"):
        change(generation, at(0), at(1), running("/* in a comment */ ROLLBACK"))
    with pytest.raises(Superseded):
        change(generation, at(0), at(1))
    with pytest.raises(ProjectionError, match="was given up"):
        store.current("counts")


def test_an_error_that_was_caught_is_told_as_what_it_is(store: Store[Any]) -> None:
    def fail(db: Any) -> None:
        with pytest.raises(psycopg.Error):
            db.execute("SELECT 1 / 0")

    generation = built(store, up_to=0)
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        change(generation, at(0), at(1), fail)
    fold(generation, 1)
    assert counted(store) == (2, 1)


async def test_the_event_at_which_an_error_was_caught_is_named(log: Log, store: Store[Any]) -> None:
    def fail(event: Any, db: Any) -> None:
        if event.data.input == b"7":
            with pytest.raises(psycopg.Error):
                db.execute("SELECT 1 / 0")

    await append_orders(log, 5, 7, 9)
    (kept,) = keep_up(log, store, turnover(then=fail)).kept
    assert kept.standing == "folding"
    (info,) = store.generations("turnover")
    assert [stop.offset for stop in info.stops.values()] == [1]


def test_the_stable_schema_shows_the_current_tables(store: Store[Any], postgres_url: str) -> None:
    def wider(db: Any) -> None:
        setup(db)
        db.execute("ALTER TABLE counted ADD COLUMN more integer")

    def shown() -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres_url) as db:
            return db.execute("SELECT * FROM default__counts.counted").fetchall()

    built(store, up_to=1)
    assert shown() == [("event", 2)]
    new = store.create("counts", 2, wider)
    store.swap(new, catching_up(new))
    assert shown() == [("event", 2, None)]
    store.discard("counts")
    with pytest.raises(psycopg.errors.UndefinedTable):
        shown()


def test_a_reader_of_the_views_holds_a_swap_up_and_costs_it_nothing_else(store: Store[Any], postgres_url: str) -> None:
    old = built(store, up_to=1)
    new = store.create("counts", 2, setup)
    with psycopg.connect(postgres_url) as reader:
        reader.execute("SELECT * FROM default__counts.counted").fetchall()
        with pytest.raises(ProjectionError, match="lock timeout"):
            store.swap(new, catching_up(new))
        fold(old, 2)
    store.swap(new, catching_up(new))
    assert counted(store) == (3, 2)


def test_a_name_too_long_for_a_schema_is_refused(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, log_id="log", namespace="n" * 50, reach=lambda point: None)
    with pytest.raises(ProjectionError, match="53 are possible"):
        store.create("counts", 1, setup)


def test_a_password_is_not_shown(log: Log) -> None:
    store = open_store_at(log, "postgresql://someone:secret@nowhere.invalid/db")
    assert "secret" not in store.url
    with pytest.raises(ProjectionError) as raised:
        store.current("counts")
    assert "secret" not in raised.value.message


def test_a_url_that_cannot_be_read_is_refused(log: Log) -> None:
    with pytest.raises(ProjectionError, match="URL of the store cannot be read"):
        open_store_at(log, "postgresql://%zz")


def test_without_psycopg_the_extra_is_named(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "projections.stores.postgres", raising=False)
    monkeypatch.delitem(sys.modules, "projections.stores.postgres_connection", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ExtraMissing, match=r"gasoline_es\[postgres\]"):
        open_store_at(log, "postgresql:///db")


def test_a_lost_connection_costs_the_transaction_and_nothing_else(open_store: OpenStore, postgres_url: str) -> None:
    generation = built(open_store(), up_to=0)

    def lose(db: Any) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (db.info.backend_pid,))
        count(db, "event")

    with pytest.raises((psycopg.Error, ProjectionError)):
        change(generation, at(0), at(1), lose)
    again = open_store().current("counts")
    assert again is not None
    fold(again, 1)
    assert counted(open_store()) == (2, 1)
    assert parameter(again.db) == "%s"
