"""What every store promises (projections/stores/port.py; design §7), and required case B20 below the runner."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gasoline_es.errors import PositionMoved, ProjectionError, ProjectionNotBuilt, Superseded
from projections.stores.port import START, Feed, Position, Store
from tests.projection.conftest import OpenStore
from tests.projection.counting import (
    FEED,
    OTHER,
    at,
    built,
    catching_up,
    change,
    count,
    counted,
    fold,
    raising,
    running,
    setup,
)

WAIT_S = 20.0


def test_what_is_committed_is_read_by_others_with_its_position(open_store: OpenStore) -> None:
    generation = built(open_store())
    fold(generation, 0)
    fold(generation, 3)
    assert counted(open_store()) == (2, 3)
    other = open_store().current("counts")
    assert other is not None
    assert other.positions() == {FEED: at(3)}


def test_tables_and_position_are_undone_together(store: Store[Any]) -> None:
    generation = built(store, up_to=0)
    with pytest.raises(RuntimeError):
        change(generation, at(0), at(1), raising(RuntimeError("in the midst of it")))
    assert counted(store) == (1, 0)
    fold(generation, 1)
    assert counted(store) == (2, 1)


def test_a_position_moves_from_where_it_stands_only(store: Store[Any]) -> None:
    generation = built(store, up_to=4)
    expected = "is at offset 4 of topic 'default.events', partition 0, and not at 3"
    with pytest.raises(PositionMoved, match=re.escape(expected)) as raised:
        change(generation, at(3), at(5))
    assert (raised.value.stored, raised.value.expected) == (4, 3)
    assert counted(store) == (5, 4)


def test_a_position_with_another_digest_is_another_position(store: Store[Any]) -> None:
    generation = built(store, up_to=4)
    with pytest.raises(PositionMoved):
        change(generation, Position(4, 104, "another"), at(5))


def test_a_feed_that_stands_somewhere_does_not_start_again(store: Store[Any]) -> None:
    generation = built(store, up_to=4)
    with pytest.raises(PositionMoved):
        change(generation, START, at(5))


def test_a_feed_that_stands_nowhere_does_not_go_on(store: Store[Any]) -> None:
    generation = built(store)
    with pytest.raises(PositionMoved):
        change(generation, at(4), at(5))


@pytest.mark.parametrize("after", [at(4), at(3), START])
def test_a_position_never_goes_back(after: Position, store: Store[Any]) -> None:
    generation = built(store, up_to=4)
    with pytest.raises(ValueError, match="no way on"):
        change(generation, at(4), after)
    assert counted(store) == (5, 4)


def test_feeds_stand_each_for_itself(store: Store[Any]) -> None:
    generation = built(store)
    fold(generation, 5)
    fold(generation, 2, feed=OTHER)
    fold(generation, 0, feed=Feed("default.schedules", 0))
    assert generation.positions() == {FEED: at(5), OTHER: at(2), Feed("default.schedules", 0): at(0)}


def test_processes_that_fold_the_same_count_each_event_once(open_store: OpenStore) -> None:
    built(open_store())
    start = threading.Barrier(4)

    def fold_all() -> None:
        generation = open_store().current("counts")
        assert generation is not None
        start.wait(WAIT_S)
        while True:
            before = generation.positions().get(FEED, START)
            if before.offset == 49:
                generation.close()
                return
            try:
                with generation.writing() as write:
                    count(write.db, "event")
                    write.move(FEED, before, at(before.next_offset))
            except PositionMoved:
                continue

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(fold_all) for _ in range(4)]:
            done.result(WAIT_S)
    assert counted(open_store()) == (50, 49)


# --- what may not be done in a transaction ----------------------------------------------------------------------------


def commit(db: Any) -> None:
    db.commit()


def rollback(db: Any) -> None:
    db.rollback()


def leave(db: Any) -> None:
    with db:
        pass


def commit_by_a_cursor(db: Any) -> None:
    db.cursor().execute("COMMIT")


ENDS = (commit, rollback, leave, commit_by_a_cursor, *map(running, ("COMMIT", "END", "ROLLBACK")))


@pytest.mark.parametrize(
    "end", ENDS, ids=["commit()", "rollback()", "with db", "a cursor", "COMMIT", "END", "ROLLBACK"]
)
def test_a_projection_cannot_end_the_transaction(end: Callable[[Any], None], store: Store[Any]) -> None:
    generation = built(store, up_to=0)
    for _ in range(2):  # the second time the statement is one that SQLite may have kept
        with pytest.raises(Exception):  # noqa: B017, PT011  # each database says it in its own way
            change(generation, at(0), at(1), end)
        assert counted(store) == (1, 0)
    fold(generation, 1)
    assert counted(store) == (2, 1)


def test_savepoints_are_the_projections_own(store: Store[Any]) -> None:
    generation = built(store)
    with generation.writing() as write:
        count(write.db, "event")
        write.db.execute("SAVEPOINT mine")
        count(write.db, "event")
        write.db.execute("ROLLBACK TO SAVEPOINT mine")
        write.db.execute("RELEASE SAVEPOINT mine")
        write.move(FEED, START, at(0))
    assert counted(store) == (1, 0)


SCRIPT = """
CREATE TABLE one(x TEXT DEFAULT ';'); -- a comment; with a semicolon
CREATE TABLE two(x TEXT);
INSERT INTO one(x) VALUES ('a;b')
"""


@pytest.mark.parametrize("kind", ["sqlite", "memory"], indirect=True)
def test_a_script_is_part_of_the_transaction(store: Store[sqlite3.Connection]) -> None:
    def run(db: sqlite3.Connection) -> None:
        db.executescript(SCRIPT)
        raise RuntimeError("afterwards")

    generation = built(store)
    with pytest.raises(RuntimeError):
        change(generation, START, at(0), run)
    with generation.writing() as write:
        write.db.executescript(SCRIPT)
        assert write.db.execute("SELECT x FROM one").fetchall() == [("a;b",)]
        write.move(FEED, START, at(0))


@pytest.mark.parametrize("kind", ["sqlite", "memory"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        'UPDATE gasoline_positions SET "offset" = 7',
        "DELETE FROM gasoline_positions",
        "DROP TABLE gasoline_positions",
        "UPDATE gasoline_meta SET state = 'superseded'",
        "ALTER TABLE gasoline_meta RENAME TO mine",
        "ATTACH ':memory:' AS other",
    ],
)
def test_a_projection_cannot_change_what_the_store_keeps(statement: str, store: Store[sqlite3.Connection]) -> None:
    generation = built(store, up_to=0)
    with pytest.raises(sqlite3.DatabaseError):
        change(generation, at(0), at(1), running(statement))
    fold(generation, 1)
    assert counted(store) == (2, 1)


def by_a_conflict(db: sqlite3.Connection) -> None:
    db.execute("INSERT OR ROLLBACK INTO counted VALUES ('event', 1)")


def by_a_trigger(db: sqlite3.Connection) -> None:
    db.execute("CREATE TRIGGER refuse BEFORE DELETE ON counted BEGIN SELECT RAISE(ROLLBACK, 'not to be deleted'); END")
    db.execute("DELETE FROM counted")


MORE = "INSERT INTO counted VALUES ('more', 1)"


def execute(db: sqlite3.Connection) -> None:
    count(db, "event")  # a statement that SQLite has prepared before


def execute_by_a_cursor(db: sqlite3.Connection) -> None:
    db.cursor().execute(MORE)


def execute_by_a_cursor_of_another_class(db: sqlite3.Connection) -> None:
    sqlite3.Cursor(db).execute(MORE)


def execute_many(db: sqlite3.Connection) -> None:
    db.executemany("INSERT INTO counted VALUES (?, 1)", [("more",), ("most",)])


def execute_a_script(db: sqlite3.Connection) -> None:
    db.executescript(f"{MORE}; {MORE}")


def execute_a_script_by_a_cursor(db: sqlite3.Connection) -> None:
    db.cursor().executescript(f"{MORE};")


def write_into_a_blob(db: sqlite3.Connection) -> None:
    with db.blobopen("counted", "name", 1) as blob:
        blob.write(b"EVENT")


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("end", [by_a_conflict, by_a_trigger])
@pytest.mark.parametrize(
    "more",
    [
        execute,
        execute_by_a_cursor,
        execute_by_a_cursor_of_another_class,
        execute_many,
        execute_a_script,
        execute_a_script_by_a_cursor,
        write_into_a_blob,
    ],
)
@pytest.mark.parametrize("raised", [True, False])
def test_nothing_counts_that_comes_after_sqlite_itself_has_rolled_back(
    end: Callable[[Any], None], more: Callable[[Any], None], raised: bool, store: Store[sqlite3.Connection]
) -> None:
    def roll_back_and_go_on(db: sqlite3.Connection) -> None:
        try:
            end(db)
        except sqlite3.IntegrityError:
            try:
                more(db)
            finally:
                if raised:
                    raise

    generation = built(store, up_to=0)
    for _ in range(2):
        with pytest.raises(sqlite3.Error):
            change(generation, at(0), at(1), roll_back_and_go_on)
        with store.snapshot("counts") as snapshot:
            assert snapshot.db.execute("SELECT * FROM counted").fetchall() == [("event", 1)]
            assert snapshot.positions == {FEED: at(0)}
    fold(generation, 1)
    assert counted(store) == (2, 1)


@pytest.mark.parametrize("kind", ["sqlite", "memory"], indirect=True)
def test_an_error_that_rolled_back_and_was_forgotten_costs_the_transaction(store: Store[sqlite3.Connection]) -> None:
    def forget(db: sqlite3.Connection) -> None:
        with pytest.raises(sqlite3.IntegrityError):
            by_a_conflict(db)

    def begin_and_forget(db: sqlite3.Connection) -> None:
        setup(db)
        count(db, "event")
        forget(db)

    def write_and_forget(*, move: bool) -> None:
        with generation.writing() as write:
            forget(write.db)
            if move:
                write.move(FEED, at(0), at(1))

    generation = built(store, up_to=0)
    for move in (True, False):
        with pytest.raises(sqlite3.OperationalError, match="roll the store's transaction back"):
            write_and_forget(move=move)
    with pytest.raises(sqlite3.OperationalError, match="roll the store's transaction back"):
        store.create("others", 1, begin_and_forget)
    assert store.generations("others") == []
    assert counted(store) == (1, 0)
    fold(generation, 1)
    assert counted(store) == (2, 1)


@pytest.mark.parametrize("kind", ["sqlite", "memory"], indirect=True)
def test_an_error_that_rolled_back_and_left_at_once_costs_nothing(store: Store[sqlite3.Connection]) -> None:
    generation = built(store, up_to=0)
    with pytest.raises(sqlite3.IntegrityError):
        change(generation, at(0), at(1), running("INSERT OR ROLLBACK INTO counted VALUES ('event', 1)"))
    fold(generation, 1)
    assert counted(store) == (2, 1)


def test_a_setup_that_raises_leaves_nothing(store: Store[Any]) -> None:
    def bad(db: Any) -> None:
        setup(db)
        raise RuntimeError("no such table was wanted")

    for _ in range(3):
        with pytest.raises(RuntimeError):
            store.create("counts", 1, bad)
    assert store.unfinished("counts", 1) is None
    assert store.generations("counts") == []
    built(store, up_to=0)
    assert counted(store) == (1, 0)


# --- generations ------------------------------------------------------------------------------------------------------


def test_a_generation_that_is_being_built_is_not_read(store: Store[Any]) -> None:
    generation = store.create("counts", 1, setup)
    fold(generation, 0)
    with pytest.raises(ProjectionNotBuilt, match="cannot be read yet"):
        store.snapshot("counts")
    assert store.current("counts") is None


def test_a_swap_supersedes_the_old_generation_and_catches_up_with_it(store: Store[Any]) -> None:
    old = built(store, up_to=3)
    fold(old, 2, feed=OTHER)
    new = store.create("counts", 2, setup)
    given: list[dict[Feed, Position]] = []

    def catch_up(positions: Mapping[Feed, Position]) -> None:
        given.append(dict(positions))
        catching_up(new)(positions)

    store.swap(new, catch_up)
    assert given == [{FEED: at(3), OTHER: at(2)}]
    with pytest.raises(Superseded, match="takes no write any more"):
        change(old, at(3), at(4))
    fold(new, 4)
    assert counted(store) == (4 + 3 + 1, 4)
    assert [(info.meta.generation, info.meta.version, info.current) for info in store.generations("counts")] == [
        (2, 2, True)
    ]
    store.swap(new, catch_up)  # asked again, it is the current one already
    assert len(given) == 1


def test_a_swap_whose_catching_up_falls_short_changes_nothing(store: Store[Any]) -> None:
    old = built(store, up_to=3)
    new = store.create("counts", 2, setup)
    with pytest.raises(ProjectionError, match="is behind the current one"):
        store.swap(new, lambda positions: fold(new, 2))
    fold(old, 4)
    assert counted(store) == (5, 4)


def test_a_swap_whose_catching_up_raises_changes_nothing(store: Store[Any]) -> None:
    old = built(store, up_to=3)
    new = store.create("counts", 2, setup)

    def catch_up(positions: Mapping[Feed, Position]) -> None:
        raise RuntimeError("the log went away")

    with pytest.raises(RuntimeError):
        store.swap(new, catch_up)
    fold(old, 4)
    assert counted(store) == (5, 4)
    found = store.unfinished("counts", 2)
    assert found is not None
    store.swap(found, catching_up(found))
    assert counted(store) == (5, 4)


def test_a_write_that_is_under_way_is_swapped_in_whole(open_store: OpenStore) -> None:
    """Required case B20, below the runner: an event being applied while a rebuild ends counts once."""
    store = open_store()
    old = built(store, up_to=3)
    new = store.create("counts", 2, setup)
    in_the_midst, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        with old.writing() as write:
            count(write.db, "event")
            in_the_midst.set()
            assert go_on.wait(WAIT_S)
            write.move(FEED, at(3), at(4))

    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(slow)
        assert in_the_midst.wait(WAIT_S)
        swapped = pool.submit(open_store().swap, new, catching_up(new))
        assert counted(store) == (4, 3)  # a reader sees the old one, without what is under way
        go_on.set()
        held.result(WAIT_S)
        swapped.result(WAIT_S)
    assert counted(store) == (5, 4)


def test_a_writer_that_waited_for_a_swap_is_refused(open_store: OpenStore) -> None:
    locked, tried = threading.Event(), threading.Event()

    def reach(point: str) -> None:
        if point == "swap locked":
            locked.set()
            assert tried.wait(WAIT_S)

    old = built(open_store(), up_to=3)
    store = open_store(reach=reach)
    new = store.create("counts", 2, setup)

    def late() -> None:
        tried.set()
        change(old, at(3), at(4))

    with ThreadPoolExecutor(2) as pool:
        swapped = pool.submit(store.swap, new, catching_up(new))
        assert locked.wait(WAIT_S)
        wrote = pool.submit(late)
        swapped.result(WAIT_S)
        with pytest.raises(Superseded):
            wrote.result(WAIT_S)
    assert counted(store) == (4, 3)


def test_a_snapshot_stays_as_it_was(store: Store[Any]) -> None:
    old = built(store, up_to=1)
    with store.snapshot("counts") as before:
        fold(old, 2)
        new = store.create("counts", 2, setup)
        store.swap(new, catching_up(new))
        assert before.db.execute("SELECT times FROM counted").fetchone()[0] == 2
        assert before.positions == {FEED: at(1)}
        assert before.meta.generation == 1
    assert counted(store) == (3, 2)


def test_a_snapshot_writes_nothing(store: Store[Any]) -> None:
    built(store, up_to=1)
    with store.snapshot("counts") as snapshot, pytest.raises(Exception, match=r"read-?only"):
        snapshot.db.execute("DELETE FROM counted")
    assert counted(store) == (2, 1)


def test_what_is_discarded_is_neither_read_nor_written(store: Store[Any]) -> None:
    old = built(store, up_to=3)
    store.discard("counts")
    store.discard("counts")
    assert store.current("counts") is None
    with pytest.raises(ProjectionNotBuilt):
        store.snapshot("counts")
    with pytest.raises(Superseded):
        change(old, at(3), at(4))
    new = built(store, up_to=0)
    assert counted(store) == (1, 0)
    assert new.meta.generation == 2


def test_an_unfinished_generation_is_found_by_its_version(store: Store[Any]) -> None:
    built(store, up_to=3)
    assert store.unfinished("counts", 1) is None
    begun = store.create("counts", 2, setup)
    fold(begun, 0)
    begun.close()
    assert store.unfinished("counts", 1) is None
    found = store.unfinished("counts", 2)
    assert found is not None
    assert (found.meta.generation, found.positions()) == (2, {FEED: at(0)})


def test_no_number_is_used_twice(store: Store[Any]) -> None:
    numbers = [built(store).meta.generation]
    numbers += [store.create("counts", 2, setup).meta.generation for _ in range(2)]
    store.discard("counts")
    numbers.append(built(store).meta.generation)
    store.remove_old("counts")
    numbers.append(built(store).meta.generation)
    assert numbers == [1, 2, 3, 4, 5]


def test_a_newer_generation_is_not_replaced_by_an_older_one(store: Store[Any]) -> None:
    first, second = store.create("counts", 1, setup), store.create("counts", 2, setup)
    store.swap(second, catching_up(second, 2))
    with pytest.raises(Superseded, match="generation 2 is the current one"):
        store.swap(first, catching_up(first, 2))
    assert counted(store) == (3, 2)


def test_one_builds_at_a_time(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    with store.building("counts") as held:
        assert held
        with other.building("counts", wait=False) as second:
            assert not second
        with other.building("another", wait=False) as another:
            assert another
    with other.building("counts", wait=False) as held:
        assert held


def test_a_scratch_generation_is_nobodys(store: Store[Any]) -> None:
    built(store, up_to=3)
    scratch = store.scratch("counts", 1, setup)
    fold(scratch, 0)
    assert counted(store) == (4, 3)
    assert [info.meta.generation for info in store.generations("counts")] == [1]
    scratch.close()


def test_projections_are_listed(store: Store[Any]) -> None:
    assert list(store) == []
    built(store, name="turnover", up_to=1)
    built(store, name="late-orders", up_to=0)
    assert list(store) == ["late-orders", "turnover"]
    (info,) = store.generations("turnover")
    assert (info.current, info.positions) == (True, {FEED: at(1)})
    assert (info.meta.projection, info.meta.namespace, info.meta.state) == ("turnover", "default", "live")
    assert info.size_bytes is None or info.size_bytes > 0


@pytest.mark.parametrize("name", ["", "Turnover", "a.b", "../etc", "a/b", "a__b", "a-", "1st", "x" * 41, "a b"])
def test_a_name_that_cannot_be_a_files_is_refused(name: str, store: Store[Any]) -> None:
    with pytest.raises(ProjectionError, match="a projection's name is"):
        store.create(name, 1, setup)
    with pytest.raises(ProjectionError, match="a projection's name is"):
        store.current(name)
