"""What is PostgreSQL's own: schemas, views, and commits that come hidden in other texts (design §7)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql

from gasoline_es.errors import ExtraMissing, ProjectionError
from gasoline_es.log.port import Log
from projections.stores.opening import open_store as open_store_at
from projections.stores.port import START, Store
from projections.stores.postgres import PostgresStore
from tests.projection.conftest import OpenStore
from tests.projection.counting import FEED, OTHER, at, built, catching_up, change, count, counted, fold, running, setup
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


HIDDEN = "/* in a comment */ ROLLBACK"
MORE = "INSERT INTO counted VALUES ('more', 1)"


def stop_there(db: Any) -> None:
    """Run nothing more."""


def go_on(db: Any) -> None:
    db.execute(MORE)


def go_on_in_the_same_text(db: Any) -> None:
    db.execute(f"{HIDDEN}; {MORE}")


def go_on_in_a_savepoint(db: Any) -> None:
    with db.transaction():
        db.execute(MORE)


def go_on_with_another_class_of_cursor(db: Any) -> None:
    psycopg.ClientCursor(db).execute(MORE)


def go_on_copying(db: Any) -> None:
    with db.cursor().copy("COPY counted FROM STDIN") as copy:
        copy.write_row(("more", 1))


@pytest.mark.parametrize(
    "more",
    [
        stop_there,
        go_on,
        go_on_in_the_same_text,
        go_on_in_a_savepoint,
        go_on_with_another_class_of_cursor,
        go_on_copying,
    ],
    ids=["nothing", "a statement", "the same text", "a savepoint", "another cursor", "COPY"],
)
@pytest.mark.parametrize("raised", [True, False])
def test_nothing_counts_that_comes_after_a_hidden_rollback(
    more: Callable[[Any], None], raised: bool, store: Store[Any], postgres_url: str
) -> None:
    def roll_back_and_go_on(db: Any) -> None:
        db.execute(HIDDEN)
        try:
            more(db)
        finally:
            if raised:
                db.execute("SELECT no_such_column")

    generation = built(store, up_to=0)
    for _ in range(2):
        with pytest.raises(psycopg.Error):
            change(generation, at(0), at(1), roll_back_and_go_on)
        with psycopg.connect(postgres_url) as db:
            assert db.execute("SELECT * FROM default__counts.counted").fetchall() == [("event", 1)]
    fold(generation, 1)
    assert counted(store) == (2, 1)


def test_a_move_after_a_hidden_rollback_is_refused(store: Store[Any]) -> None:
    def roll_back_and_move() -> None:
        with generation.writing() as write:
            write.db.execute(HIDDEN)
            write.move(FEED, at(0), at(1))

    generation = built(store, up_to=0)
    with pytest.raises(psycopg.Error, match="ended the store's transaction"):
        roll_back_and_move()
    with pytest.raises(psycopg.Error, match="ended the store's transaction"):
        store.create("others", 1, running(HIDDEN))
    assert store.generations("others") == []
    assert counted(store) == (1, 0)


FUNCTION = """
CREATE FUNCTION add_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE counted SET times = times + 10 WHERE name = 'all';
    RETURN NEW;
END;
$$
"""


def test_a_setup_may_make_functions_and_triggers_of_plpgsql(store: Store[Any]) -> None:
    def with_a_trigger(db: Any) -> None:
        setup(db)
        db.execute("INSERT INTO counted VALUES ('all; commit', 0), ('all', 0)")
        db.execute(FUNCTION)
        db.execute("CREATE TRIGGER add_up AFTER INSERT ON counted FOR EACH ROW EXECUTE FUNCTION add_up()")

    generation = store.create("counts", 1, with_a_trigger)
    store.swap(generation, catching_up(generation, 0))
    with store.snapshot("counts") as snapshot:
        assert snapshot.db.execute("SELECT name, times FROM counted ORDER BY name").fetchall() == [
            ("all", 10),
            ("all; commit", 0),
            ("event", 1),
        ]


@pytest.mark.parametrize(
    "default", ["default_transaction_isolation = 'repeatable read'", "default_transaction_read_only = on"]
)
def test_the_databases_defaults_change_nothing(default: str, open_store: OpenStore, postgres_url: str) -> None:
    """Who waits for the write lock sees what was committed before it was had, whatever isolation is the default."""
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("BEGIN READ WRITE")
        name = sql.Identifier(db.info.dbname)
        db.execute(sql.SQL("ALTER DATABASE {} SET " + default).format(name))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        db.execute("COMMIT")
    try:
        built(open_store(), up_to=0).close()
        first, second = open_store().current("counts"), open_store().current("counts")
        assert first is not None
        assert second is not None
        seen: list[int] = []

        def look() -> None:
            assert second is not None
            with second.writing() as write:
                seen.extend(write.db.execute("SELECT times FROM counted").fetchone())
                write.move(OTHER, START, at(0))

        with ThreadPoolExecutor(1) as pool:
            with first.writing() as write:
                count(write.db, "event")
                looking = pool.submit(look)
                wait_for_a_waiter(postgres_url)
                write.move(FEED, at(0), at(1))
            looking.result(20)
        assert seen == [2]
        new = open_store().create("counts", 2, setup)
        open_store().swap(new, catching_up(new))
        open_store().discard("counts")
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute("BEGIN READ WRITE")
            db.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(name))
            db.execute("COMMIT")


def wait_for_a_waiter(url: str) -> None:
    """Return once somebody waits for a lock."""
    with psycopg.connect(url, autocommit=True) as db:
        while db.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
            db.execute("SELECT pg_sleep(0.01)")


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
