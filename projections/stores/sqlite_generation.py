"""A generation in one SQLite database, wherever that is: our two tables, and the transaction that moves a position."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from gasoline_es.errors import GenerationDamaged, ProjectionError
from projections.stores.port import (
    START,
    Feed,
    Generation,
    Meta,
    Position,
    Reach,
    Row,
    Setup,
    State,
    Stop,
    Table,
    Write,
    is_damage,
    moved_elsewhere,
    nothing,
    store_failed,
    superseded,
)
from projections.stores.sqlite_connection import StoreConnection, mark, plain

_TABLES: Final = """
CREATE TABLE gasoline_meta(
    projection TEXT NOT NULL, version INTEGER NOT NULL, log_id TEXT NOT NULL, namespace TEXT NOT NULL,
    generation INTEGER NOT NULL, state TEXT NOT NULL CHECK (state IN ('building', 'live', 'superseded'))
);
CREATE TABLE gasoline_positions(
    topic TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL, place INTEGER NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
CREATE TABLE gasoline_stops(
    topic TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL, event TEXT NOT NULL, error TEXT NOT NULL,
    time_us INTEGER NOT NULL, PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
"""

_ROWS_AT_ONCE: Final = 500
_OF_THE_MACHINE: Final = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_NOTADB")

_INSERT: Final = "INSERT INTO gasoline_positions VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_UPDATE: Final = """UPDATE gasoline_positions SET "offset" = ?, place = ?, digest = ?
    WHERE topic = ? AND partition = ? AND "offset" = ? AND digest = ?"""

_STOP: Final = """INSERT OR REPLACE INTO gasoline_stops SELECT ?, ?, ?, ?, ?, ? WHERE NOT EXISTS (
    SELECT 1 FROM gasoline_positions WHERE topic = ? AND partition = ? AND "offset" >= ?)"""
_PASSED: Final = 'DELETE FROM gasoline_stops WHERE topic = ? AND partition = ? AND "offset" <= ?'


def make_tables(
    db: StoreConnection, meta: Meta, setup: Setup[sqlite3.Connection], url: str, reach: Reach = nothing
) -> None:
    """Make ours and the projection's tables, in one transaction.

    Raises: what ``setup`` raises; ProjectionError.
    """
    with translated(url, meta.projection):
        db.begin("BEGIN IMMEDIATE" + mark())
    try:
        with translated(url, meta.projection), db.ours():
            db.executescript(_TABLES)
            row = (meta.projection, meta.version, meta.log_id, meta.namespace, meta.generation, meta.state)
            db.execute(f"INSERT INTO gasoline_meta VALUES (?, ?, ?, ?, ?, ?){mark()}", row)  # noqa: S608  # a comment
        try:
            setup(db)
        except sqlite3.Error as error:
            if is_of_the_machine(error):  # no fault of the setup
                with translated(url, meta.projection):
                    raise
            raise
        db.require_transaction()
        reach("created")
        with translated(url, meta.projection):
            db.end("COMMIT" + mark())
    except BaseException:
        db.undo()
        raise


def read_meta(db: sqlite3.Connection) -> Meta | None:
    """Return what the generation says of itself; None: it was never made."""
    with plain(db):
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'gasoline_meta'").fetchone() is None:
            return None
        select = "SELECT projection, version, log_id, namespace, generation, state FROM gasoline_meta"
        row = db.execute(select).fetchone()
        return Meta(*row)


def read_positions(db: sqlite3.Connection) -> dict[Feed, Position]:
    """Return where each feed stands."""
    with plain(db):
        found = db.execute('SELECT topic, partition, "offset", place, digest FROM gasoline_positions').fetchall()
    return {
        Feed(topic, partition): Position(offset, place, digest) for topic, partition, offset, place, digest in found
    }


def read_stops(db: sqlite3.Connection) -> dict[Feed, Stop]:
    """Return the feeds that stand before an event that could not be applied."""
    with plain(db):
        found = db.execute('SELECT topic, partition, "offset", event, error, time_us FROM gasoline_stops').fetchall()
    return {Feed(topic, partition): Stop(*stop) for topic, partition, *stop in found}


def read_tables(db: sqlite3.Connection) -> list[Table]:
    """Return the projection's own tables; what a virtual table keeps its content in is the module's."""
    with plain(db):
        return _tables(db)


def _tables(db: sqlite3.Connection) -> list[Table]:
    listed = db.execute("SELECT name FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'virtual')")
    found: list[Table] = []
    for name in sorted(name for (name,) in listed if not name.startswith(("gasoline_", "sqlite_"))):
        columns = db.execute("SELECT name, pk FROM pragma_table_xinfo(?) WHERE hidden <> 1", (name,)).fetchall()
        key = tuple(column for column, _ in sorted((c for c in columns if c[1]), key=lambda column: column[1]))
        found.append(Table(name, tuple(column for column, _ in columns), key))
    return found


def read_rows(db: sqlite3.Connection, table: Table) -> Iterator[Row]:
    """Yield a table's rows in order."""
    columns, order = ", ".join(map(quoted, table.columns)), ", ".join(map(quoted, table.key or table.columns))
    with plain(db):
        cursor = db.execute(f"SELECT {columns} FROM {quoted(table.name)} ORDER BY {order}")  # noqa: S608  # quoted
    while True:
        with plain(db):  # texts are made as the rows are fetched
            rows = cursor.fetchmany(_ROWS_AT_ONCE)
        if not rows:
            return
        yield from rows


def has_key(db: sqlite3.Connection, table: Table, key: Row) -> bool:
    """Whether a table has a row with this key."""
    where = " AND ".join(f"{quoted(column)} IS ?" for column in table.key)
    with plain(db):
        return db.execute(f"SELECT 1 FROM {quoted(table.name)} WHERE {where}", key).fetchone() is not None  # noqa: S608


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def set_state(db: StoreConnection, state: State) -> None:
    """Say what the generation is now, in the transaction that is open, or in one of its own."""
    with db.ours():
        db.execute(f"UPDATE gasoline_meta SET state = ?{mark()}", (state,))  # noqa: S608  # a comment


class SqliteWrite(Write[sqlite3.Connection]):
    """See :class:`~projections.stores.port.Write`."""

    def __init__(self, db: StoreConnection, meta: Meta, url: str, statements: _Statements) -> None:
        self.db = db
        self._url: Final = url
        self._guarded: Final = db
        self._meta: Final = meta
        self._statements: Final = statements

    def positions(self) -> dict[Feed, Position]:
        return read_positions(self.db)

    def move(self, feed: Feed, before: Position, after: Position) -> None:
        """Move a feed's position (see the port)."""
        if after.offset <= before.offset:
            raise ValueError(
                f"the position of {feed} would go from {before.offset} to {after.offset}, which is no way on"
            )
        self._guarded.require_transaction()
        with translated(self._url, self._meta.projection), self._guarded.ours():
            if before == START:
                moved = self.db.execute(self._statements.insert, (*feed, *after))
            else:
                moved = self.db.execute(self._statements.update, (*after, *feed, before.offset, before.digest))
            self.db.execute(self._statements.passed, (*feed, after.offset))
        if moved.rowcount != 1:
            raise moved_elsewhere(self._meta, feed, before, self.positions().get(feed, START))

    def stop(self, feed: Feed, stop: Stop) -> bool:
        """Say that a feed stands before this event (see the port)."""
        with translated(self._url, self._meta.projection), self._guarded.ours():
            said = self.db.execute(_STOP + mark(), (*feed, *stop, *feed, stop.offset))
        return said.rowcount == 1


class _Statements:
    """The store's own, in texts that this connection alone knows; so each is prepared once."""

    def __init__(self) -> None:
        ours = mark()
        self.read: Final = "BEGIN" + ours
        self.begin: Final = "BEGIN IMMEDIATE" + ours
        self.commit: Final = "COMMIT" + ours
        self.insert: Final = _INSERT + ours
        self.update: Final = _UPDATE + ours
        self.passed: Final = _PASSED + ours


class SqliteGeneration(Generation[sqlite3.Connection]):
    """See :class:`~projections.stores.port.Generation`. ``is_current``: asked with the write lock held, once it is live."""

    def __init__(
        self,
        db: StoreConnection,
        meta: Meta,
        url: str,
        is_current: Callable[[], bool],
        reach: Reach = nothing,
    ) -> None:
        self.meta = meta
        self.db = db
        self.guarded: Final = db
        """The same, as the store uses it."""
        self._url: Final = url
        self._is_current: Final = is_current
        self._reach: Final = reach
        self._statements: Final = _Statements()

    def positions(self) -> dict[Feed, Position]:
        with translated(self._url, self.meta.projection):
            return read_positions(self.db)

    @contextmanager
    def reading(self) -> Generator[Mapping[Feed, Position]]:
        """Read as of one moment (see the port)."""
        db = self.guarded
        with translated(self._url, self.meta.projection):
            db.begin(self._statements.read)
        try:
            with translated(self._url, self.meta.projection):
                positions = read_positions(db)
            yield positions
        finally:
            db.undo()

    @contextmanager
    def writing(self) -> Generator[Write[sqlite3.Connection]]:
        """Hold the write lock; commit at the block's end (see the port)."""
        db = self.guarded
        with translated(self._url, self.meta.projection):
            db.begin(self._statements.begin)
        try:
            with translated(self._url, self.meta.projection):
                self._require_current()
            self._reach("begun")
            yield SqliteWrite(db, self.meta, self._url, self._statements)
            db.require_transaction()
            self._reach("moved")
            with translated(self._url, self.meta.projection):
                db.end(self._statements.commit)
        except BaseException:
            db.undo()
            raise
        self._reach("stored")

    def _require_current(self) -> None:
        with self.guarded.ours():
            (state,) = self.db.execute("SELECT state FROM gasoline_meta").fetchone()
        if state == "superseded":
            raise superseded(self.meta, self._url, "another generation took its place, or it was given up")
        if state == "live" and not self._is_current():
            raise superseded(self.meta, self._url, "another generation is the current one")

    def close(self) -> None:
        self.db.close()


def is_of_the_machine(error: sqlite3.Error) -> bool:
    """Whether an error says of the file or its disk that they cannot be written to or read, whatever the statement is."""
    return getattr(error, "sqlite_errorname", "").startswith(_OF_THE_MACHINE)


@contextmanager
def translated(url: str, projection: str) -> Generator[None]:
    """Let what SQLite says of the store itself be a ProjectionError that names where; of damage, a GenerationDamaged."""
    try:
        yield
    except sqlite3.Error as error:
        raise (GenerationDamaged if is_damage(error) else ProjectionError)(
            store_failed(url, projection, error), projection=projection, store=url
        ) from error
