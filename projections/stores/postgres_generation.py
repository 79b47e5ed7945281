"""A generation in a PostgreSQL schema: our tables, and the transaction that moves a position.

One transaction at a time writes to a generation: each takes an advisory lock first. It also puts a row into
``gasoline_open`` that refers to nothing, and takes it away at its end; the reference is checked when the transaction is
committed. So a commit that is not the store's fails, whatever text it came in.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from gasoline_es.errors import ProjectionError
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
    moved_elsewhere,
    nothing,
    store_failed,
    superseded,
)
from projections.stores.postgres_connection import BEGIN_READING, Connection, StoreConnection, statement

_TABLES: Final = """
CREATE TABLE gasoline_meta(
    projection text NOT NULL, version bigint NOT NULL, log_id text NOT NULL, namespace text NOT NULL,
    generation bigint NOT NULL, state text NOT NULL CHECK (state IN ('building', 'live', 'superseded'))
);
CREATE TABLE gasoline_positions(
    topic text, partition integer, "offset" bigint NOT NULL, place bigint NOT NULL, digest text NOT NULL,
    PRIMARY KEY (topic, partition)
);
CREATE TABLE gasoline_stops(
    topic text, partition integer, "offset" bigint NOT NULL, event text NOT NULL, error text NOT NULL, time_us bigint NOT NULL,
    PRIMARY KEY (topic, partition)
);
CREATE TABLE gasoline_closed(id integer PRIMARY KEY);
CREATE TABLE gasoline_open(id integer PRIMARY KEY REFERENCES gasoline_closed DEFERRABLE INITIALLY DEFERRED);
"""
TEMPORARY: Final = "pg_temp"


def make_tables(
    db: StoreConnection, schema: str, meta: Meta, setup: Setup[Any], url: str, reach: Reach = nothing
) -> None:
    """Make a schema with ours and the projection's tables, in one transaction.

    Raises: what ``setup`` raises; ProjectionError.
    """
    with translated(url, meta.projection):
        db.begin()
    try:
        with translated(url, meta.projection), db.ours():
            if schema != TEMPORARY:
                db.execute(statement("CREATE SCHEMA {}", schema))
            use_schema(db, schema)
            db.execute(_TABLES)
            db.execute(
                "INSERT INTO gasoline_meta VALUES (%s, %s, %s, %s, %s, %s)",
                (meta.projection, meta.version, meta.log_id, meta.namespace, meta.generation, meta.state),
            )
            db.execute("INSERT INTO gasoline_open VALUES (1)")
        setup(db)
        db.require_sound()
        reach("created")
        with translated(url, meta.projection):
            with db.ours():
                db.execute("DELETE FROM gasoline_open")
            db.end()
    except BaseException:
        db.undo()
        raise


def use_schema(db: StoreConnection, schema: str) -> None:
    """Let names without a schema be of this one."""
    if schema == TEMPORARY:
        db.execute("SET search_path = pg_temp")
    else:
        db.execute(statement("SET search_path = {}", schema))


def read_meta(db: Connection, schema: str) -> Meta | None:
    """Return what the generation says of itself; None: there is none."""
    if db.execute("SELECT to_regclass(%s)", (f'"{schema}".gasoline_meta',)).fetchone() == (None,):
        return None
    select = "SELECT projection, version, log_id, namespace, generation, state FROM {}.gasoline_meta"
    row = db.execute(statement(select, schema)).fetchone()
    return None if row is None else Meta(*row)


def read_positions(db: Connection, schema: str) -> dict[Feed, Position]:
    """Return where each feed stands."""
    select = 'SELECT topic, partition, "offset", place, digest FROM {}.gasoline_positions'
    found = db.execute(statement(select, schema)).fetchall()
    return {
        Feed(topic, partition): Position(offset, place, digest) for topic, partition, offset, place, digest in found
    }


def read_stops(db: Connection, schema: str) -> dict[Feed, Stop]:
    """Return the feeds that stand before an event that could not be applied."""
    select = 'SELECT topic, partition, "offset", event, error, time_us FROM {}.gasoline_stops'
    return {Feed(topic, at): Stop(*stop) for topic, at, *stop in db.execute(statement(select, schema)).fetchall()}


def set_state(db: StoreConnection, schema: str, state: State) -> None:
    """Say what the generation is now."""
    with db.ours():
        db.execute(statement("UPDATE {}.gasoline_meta SET state = %s", schema), (state,))


def read_tables(db: Connection) -> list[Table]:
    """Return the projection's own tables in the schema that names without one are of."""
    select = """
        SELECT c.relname, array_agg(a.attname ORDER BY a.attnum), (
            SELECT array_agg(k.attname ORDER BY array_position(i.indkey::int[], k.attnum::int))
            FROM pg_index i JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = ANY (i.indkey)
            WHERE i.indrelid = c.oid AND i.indisprimary
        )
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        GROUP BY c.oid, c.relname ORDER BY c.relname"""
    found = plain(db).execute(select).fetchall()
    return [
        Table(name, tuple(columns), tuple(key or ()))
        for name, columns, key in found
        if not name.startswith("gasoline_")
    ]


def read_rows(db: Connection, table: Table) -> Iterator[Row]:
    """Yield a table's rows in order, without holding all of them."""
    columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
    texts = [sql.SQL("{}::text").format(sql.Identifier(column)) for column in table.columns]  # json has no order
    order = sql.SQL(", ").join(map(sql.Identifier, table.key) if table.key else texts)
    select = sql.SQL("SELECT {} FROM {} ORDER BY {}").format(columns, sql.Identifier(table.name), order)
    with db.transaction(), psycopg.ServerCursor(db, "gasoline_rows", row_factory=tuple_row) as cursor:
        cursor.execute(select)
        yield from cursor


def plain(db: Connection) -> psycopg.Cursor[Row]:
    """Return a cursor whose rows are tuples, whatever those who were given the connection have set."""
    return db.cursor(row_factory=tuple_row)


def has_key(db: Connection, table: Table, key: Row) -> bool:
    """Whether a table has a row with this key."""
    where = sql.SQL(" AND ").join(
        sql.SQL("{} IS NOT DISTINCT FROM %s").format(sql.Identifier(column)) for column in table.key
    )
    select = sql.SQL("SELECT 1 FROM {} WHERE {}").format(sql.Identifier(table.name), where)
    return plain(db).execute(select, key).fetchone() is not None


class PostgresWrite(Write[Connection]):
    """See :class:`~projections.stores.port.Write`."""

    def __init__(self, db: StoreConnection, meta: Meta, url: str, schema: str) -> None:
        self.db = db
        self._guarded: Final = db
        self._meta: Final = meta
        self._url: Final = url
        self._schema: Final = schema
        names = (schema,)
        self._insert: Final = statement(
            "INSERT INTO {}.gasoline_positions VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING", *names
        )
        self._update: Final = statement(
            'UPDATE {}.gasoline_positions SET "offset" = %s, place = %s, digest = %s '
            'WHERE topic = %s AND partition = %s AND "offset" = %s AND digest = %s',
            *names,
        )
        self._passed: Final = statement(
            'DELETE FROM {}.gasoline_stops WHERE topic = %s AND partition = %s AND "offset" <= %s', *names
        )
        self._stop: Final = statement(
            "INSERT INTO {}.gasoline_stops AS s SELECT %s, %s, %s, %s, %s, %s WHERE NOT EXISTS (SELECT 1 FROM "
            '{}.gasoline_positions WHERE topic = %s AND partition = %s AND "offset" >= %s) ON CONFLICT (topic, partition) '
            'DO UPDATE SET "offset" = excluded."offset", event = excluded.event, error = excluded.error, '
            "time_us = excluded.time_us",
            schema,
            schema,
        )

    def positions(self) -> dict[Feed, Position]:
        with self._guarded.ours():
            return read_positions(self.db, self._schema)

    def move(self, feed: Feed, before: Position, after: Position) -> None:
        """Move a feed's position (see the port)."""
        if after.offset <= before.offset:
            raise ValueError(
                f"the position of {feed} would go from {before.offset} to {after.offset}, which is no way on"
            )
        self._guarded.require_sound()
        with translated(self._url, self._meta.projection), self._guarded.ours():
            if before == START:
                moved = self.db.execute(self._insert, (*feed, *after))
            else:
                moved = self.db.execute(self._update, (*after, *feed, before.offset, before.digest))
            if moved.rowcount == 1:
                self.db.execute(self._passed, (*feed, after.offset))
        if moved.rowcount != 1:
            raise moved_elsewhere(self._meta, feed, before, self.positions().get(feed, START))

    def stop(self, feed: Feed, stop: Stop) -> bool:
        """Say that a feed stands before this event (see the port)."""
        with translated(self._url, self._meta.projection), self._guarded.ours():
            # PostgreSQL's texts hold no NUL, and an error's message may.
            texts = (stop.event.replace("\0", "�"), stop.error.replace("\0", "�"))
            said = self.db.execute(self._stop, (*feed, stop.offset, *texts, stop.time_us, *feed, stop.offset))
        return said.rowcount == 1


class PostgresGeneration(Generation[Connection]):
    """See :class:`~projections.stores.port.Generation`. ``stable``: the schema that says which generation is current."""

    def __init__(self, db: StoreConnection, meta: Meta, url: str, schema: str, stable: str, reach: Reach) -> None:
        self.meta = meta
        self.db = db
        self.guarded: Final = db
        self.schema: Final = schema
        self._url: Final = url
        self._reach: Final = reach
        self._write: Final = PostgresWrite(db, meta, url, schema)
        self._state: Final = (
            statement("SELECT state, 0 FROM {}.gasoline_meta", schema)
            if schema == TEMPORARY
            else statement(
                "SELECT m.state, p.current FROM {}.gasoline_meta m, {}.gasoline_projection p", schema, stable
            )
        )

    @contextmanager
    def _speaking(self) -> Generator[None]:
        """Let the store speak. Where its tables are gone, another generation has taken their place long ago."""
        with translated(self._url, self.meta.projection), self.guarded.ours():
            try:
                yield
            except psycopg.errors.UndefinedTable as error:
                raise superseded(self.meta, self._url, "it was removed, for another is the current one") from error

    def positions(self) -> dict[Feed, Position]:
        with self._speaking():
            return read_positions(self.db, self.schema)

    @contextmanager
    def reading(self) -> Generator[Mapping[Feed, Position]]:
        """Read as of one moment (see the port)."""
        db = self.guarded
        with self._speaking():
            db.execute(BEGIN_READING)
        try:
            with self._speaking():
                positions = read_positions(db, self.schema)
            yield positions
        finally:
            db.undo()

    @contextmanager
    def writing(self) -> Generator[Write[Connection]]:
        """Hold the write lock; commit at the block's end (see the port)."""
        db = self.guarded
        try:
            with self._speaking():
                db.begin()
                lock(db, self.schema)
                self._require_current()
                db.execute(statement("INSERT INTO {}.gasoline_open VALUES (1)", self.schema))
            self._reach("begun")
            yield self._write
            db.require_sound()
            self._reach("moved")
            with self._speaking():
                db.execute(statement("DELETE FROM {}.gasoline_open", self.schema))
                db.end()
        except BaseException:
            db.undo()
            raise
        self._reach("stored")

    def _require_current(self) -> None:
        row = self.db.execute(self._state).fetchone()
        state, current = row if row is not None else ("superseded", None)
        if state == "superseded":
            raise superseded(self.meta, self._url, "another generation took its place, or it was given up")
        if state == "live" and current != self.meta.generation:
            raise superseded(self.meta, self._url, "another generation is the current one")

    def close(self) -> None:
        self.guarded.close()


def lock(db: Connection, what: str) -> None:
    """Hold an advisory lock until the transaction ends."""
    db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"gasoline write {what}",))


@contextmanager
def translated(url: str, projection: str) -> Generator[None]:
    """Let what PostgreSQL says of the store itself be a ProjectionError that names where."""
    try:
        yield
    except psycopg.Error as error:
        raise ProjectionError(store_failed(url, projection, error), projection=projection, store=url) from error
