"""What is damage, what is a moment's matter, and what becomes of generations that nobody can use (decision 0033)."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import projections.stores.sqlite as sqlite_store
from gasoline_es.errors import GenerationDamaged, ProjectionError, ProjectionNotBuilt, ProjectionStopped
from gasoline_es.log.port import Log
from projections.building import rebuild
from projections.stores.port import Feed, Forked, Generation, Position, Stop, Store, is_damage
from projections.stores.sqlite import SqliteStore
from projections.stores.sqlite_connection import StoreConnection
from tests.projection.conftest import OpenStore
from tests.projection.counting import FEED, at, built, catching_up, change, counted, fold, setup
from tests.projection.damaging import damage
from tests.projection.orders import append_orders, read, turnover
from tests.projection.test_running import keep_up, refusing

WAIT_S = 20.0
BLANK = Stop(1, "an event", "it failed", 1)


@pytest.fixture
def sqlite(log: Log, tmp_path: Path) -> SqliteStore:
    return SqliteStore(f"{tmp_path}/projections", log_id=log.log_id, namespace="default")


def file_of(store: SqliteStore, generation: int) -> Path:
    return Path(store.url.removeprefix("sqlite:")) / f"counts.{generation}.sqlite"


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["unable to open database file", "disk I/O error", "database is locked"])
def test_an_old_generation_that_does_not_open_for_a_moment_is_not_replaced_unlocked(
    error: str, sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(sqlite, up_to=3).close()
    new = sqlite.create("counts", 2, setup)
    connect = sqlite_store.connect

    def failing(path: str, *, mode: str) -> StoreConnection:
        if path == str(file_of(sqlite, 1)):
            raise sqlite3.OperationalError(error)
        return connect(path, mode=mode)

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_store, "connect", failing)
        with pytest.raises(ProjectionError, match=error) as raised:
            sqlite.swap(new, catching_up(new))
        assert not is_damage(raised.value)
        with pytest.raises(ProjectionError, match=error):
            sqlite.discard("counts")
    assert counted(sqlite) == (4, 3)
    sqlite.swap(new, catching_up(new))
    assert counted(sqlite) == (4, 3)
    new.close()


@pytest.mark.parametrize("table", ["gasoline_meta", "gasoline_positions"])
def test_a_damaged_generation_is_said_to_be_and_can_be_replaced(table: str, sqlite: SqliteStore) -> None:
    built(sqlite, up_to=3).close()
    damage(file_of(sqlite, 1), table)
    with pytest.raises(GenerationDamaged):
        sqlite.snapshot("counts")
    new = sqlite.create("counts", 2, setup)
    sqlite.swap(new, catching_up(new, 3))
    assert counted(sqlite) == (4, 3)
    new.close()


@pytest.mark.parametrize("table", ["gasoline_meta", "gasoline_positions"])
def test_a_damaged_generation_can_be_discarded(table: str, sqlite: SqliteStore) -> None:
    built(sqlite, up_to=3).close()
    damage(file_of(sqlite, 1), table)
    sqlite.discard("counts")
    assert sqlite.current("counts") is None


def test_generations_that_replace_each_other_are_no_damage(
    sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(sqlite, up_to=3).close()
    numbers = iter(range(1, 1_000))

    def linked(name: str) -> int:
        return next(numbers)

    def gone(name: str, number: int, *, mode: str) -> None:
        return None

    monkeypatch.setattr(sqlite, "_linked", linked)
    monkeypatch.setattr(sqlite, "_open", gone)
    with pytest.raises(ProjectionError, match="faster than one can be opened") as raised:
        sqlite.current("counts")
    assert not is_damage(raised.value)
    assert not is_damage(ProjectionError("of whatever kind"))


def give_up(generation: Generation[Any]) -> None:
    """Mark it as a version of this library did that gave generations up."""
    guarded: Any = generation.db
    guarded.begin(*(["BEGIN IMMEDIATE"] if isinstance(guarded, StoreConnection) else []))
    with guarded.ours():
        guarded.execute("UPDATE gasoline_meta SET state = 'superseded' /* by hand */")
    guarded.end(*(["COMMIT"] if isinstance(guarded, StoreConnection) else []))


def test_a_generation_that_was_given_up_is_not_read(store: Store[Any]) -> None:
    give_up(built(store, up_to=3))
    with pytest.raises(ProjectionNotBuilt, match="cannot be read yet"):
        store.snapshot("counts")
    with pytest.raises(GenerationDamaged, match="was given up"):
        store.current("counts")
    store.discard("counts")
    built(store, up_to=0)
    assert counted(store) == (1, 0)


# --- swaps side by side -----------------------------------------------------------------------------------------------


def test_one_changes_what_is_current_at_a_time(open_store: OpenStore) -> None:
    """Also where there is no old generation whose lock all would wait for."""
    locked, go_on = threading.Event(), threading.Event()
    order: list[int] = []

    def reach(point: str) -> None:
        if point == "swap locked":
            locked.set()
            assert go_on.wait(WAIT_S)

    slow, store = open_store(reach=reach), open_store()
    first, second = slow.create("counts", 1, setup), store.create("counts", 2, setup)

    def catch_up(positions: Mapping[Feed, Position]) -> None:
        order.append(2)
        catching_up(second)(positions)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(slow.swap, first, lambda positions: order.append(1))
        assert locked.wait(WAIT_S)
        other = pool.submit(store.swap, second, catch_up)
        with pytest.raises(TimeoutError):
            other.result(0.2)
        go_on.set()
        one.result(WAIT_S)
        other.result(WAIT_S)
    assert order == [1, 2]
    with store.snapshot("counts") as snapshot:
        assert snapshot.meta.generation == 2


def test_what_another_began_to_link_is_not_made_current(sqlite: SqliteStore) -> None:
    """A process of another version may be between making its link and renaming it."""
    built(sqlite, up_to=1).close()
    new, other = sqlite.create("counts", 2, setup), sqlite.create("counts", 3, setup)
    beside: list[str] = []
    symlink = os.symlink

    def both(target: str, link: str) -> None:
        symlink(target, link)
        beside.append(link)
        if len(beside) == 1:
            sqlite._relink("counts", 3)  # pyright: ignore[reportPrivateUsage]
            os.unlink(sqlite._link("counts"))  # pyright: ignore[reportPrivateUsage]
            symlink("counts.1.sqlite", sqlite._link("counts"))  # pyright: ignore[reportPrivateUsage]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "symlink", both)
        sqlite.swap(new, catching_up(new))
    assert len(set(beside)) == 2
    with sqlite.snapshot("counts") as snapshot:
        assert snapshot.meta.generation == 2
    new.close()
    other.close()


# --- what is left of builds -------------------------------------------------------------------------------------------


async def test_a_rebuild_that_fails_leaves_nothing(log: Log, store: Store[Any]) -> None:
    await append_orders(log, 5, 666)
    keep_up(log, store, turnover())
    for _ in range(2):
        with pytest.raises(ProjectionStopped):
            rebuild(log, store, refusing("666"))
        assert [info.current for info in store.generations("turnover")] == [True]
    rebuild(log, store, turnover())
    assert read(store) == [(0, 2, 671)]


def test_the_current_generation_is_not_abandoned(store: Store[Any]) -> None:
    current = built(store, up_to=1)
    store.abandon(current)
    assert counted(store) == (2, 1)
    begun = store.create("counts", 2, setup)
    store.abandon(begun)
    assert [info.current for info in store.generations("counts")] == [True]
    assert store.unfinished("counts", 2) is None


# --- stops ------------------------------------------------------------------------------------------------------------


def test_a_stop_that_is_past_is_not_told(store: Store[Any]) -> None:
    """One fails at an event, and before it says so another process applies it, and more."""
    generation = built(store, up_to=0)
    fold(generation, 5)
    for offset, stands in ((1, False), (5, False), (6, True)):
        with generation.writing() as write:
            assert write.stop(FEED, BLANK._replace(offset=offset)) is stands
    (info,) = store.generations("counts")
    assert {feed: stop.offset for feed, stop in info.stops.items()} == {FEED: 6}
    change(generation, at(5), at(6))
    (info,) = store.generations("counts")
    assert info.stops == {}


# --- forks ------------------------------------------------------------------------------------------------------------


def test_a_forked_child_does_not_open_what_its_parent_has_open(sqlite: SqliteStore) -> None:
    """SQLite in the child would take its parent's locks for its own."""
    generation = built(sqlite, up_to=1)

    def in_a_child() -> str:
        """Return what opening comes to in a forked child."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            told = "opened"
            try:
                sqlite.snapshot("counts").close()
            except Forked:
                told = "Forked"
            except BaseException as error:
                told = repr(error)
            os.write(writing, told.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
        return told

    assert in_a_child() == "Forked"
    generation.close()
    assert in_a_child() == "opened"
    with sqlite.snapshot("counts"):
        assert in_a_child() == "Forked"
