"""Projections in PostgreSQL (extra ``gasoline_es[postgres]``): a schema for each generation, and a stable one that people read.

``<namespace>__<name>`` is the stable schema: a view on each table of the current generation, made anew by a swap, and our table
``gasoline_projection`` with which one that is. ``<namespace>__<name>__<number>`` is a generation. A swap is one transaction: it
makes the views, says which one is current, and that the old one is superseded. An old schema is dropped once no snapshot has a
table of it.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from gasoline_es.errors import ProjectionError
from projections.stores.port import (
    CatchUp,
    Failure,
    Feed,
    Generation,
    GenerationInfo,
    Meta,
    Position,
    Reach,
    Row,
    Setup,
    Snapshot,
    Store,
    Table,
    check_name,
    nothing,
    still_behind,
    superseded,
)
from projections.stores.postgres_connection import BEGIN, BEGIN_READING, Connection, StoreConnection, connect, statement
from projections.stores.postgres_generation import (
    TEMPORARY,
    PostgresGeneration,
    has_key,
    lock,
    make_tables,
    read_meta,
    read_positions,
    read_rows,
    read_stops,
    read_tables,
    set_state,
    translated,
    use_schema,
)

_IDENTIFIER_BYTES_MAX: Final = 63
_NUMBER_DIGITS_MAX: Final = 8
_VIEWS_WAIT_MS: Final = 2_000
"""A reader in a long transaction holds a swap up for so long; it is tried again."""
_REMOVE_WAIT_MS: Final = 200
_TRIES: Final = 100


class PostgresStore(Store[Connection]):
    """See :class:`~projections.stores.port.Store`."""

    kind = "postgres"
    private = False

    def __init__(self, url: str, *, log_id: str, namespace: str, reach: Reach = nothing) -> None:
        self._conninfo: Final = url
        self.url = _shown(url)
        self.log_id = log_id
        self.namespace = namespace
        self._reach: Final = reach

    # --- schemas ------------------------------------------------------------------------------------------------------

    def _stable(self, name: str) -> str:
        schema = f"{self.namespace}__{check_name(name)}"
        longest = _IDENTIFIER_BYTES_MAX - _NUMBER_DIGITS_MAX - len("__")
        if len(schema) > longest:
            raise ProjectionError(
                f"projection {name!r} of namespace {self.namespace!r} cannot be in PostgreSQL: its schema {schema!r} has "
                f"{len(schema)} characters, and {longest} are possible. Give it a shorter name",
                projection=name,
                store=self.url,
            )
        return schema

    def _schema(self, name: str, number: int) -> str:
        return f"{self._stable(name)}__{number}"

    @contextmanager
    def _connected(self, name: str) -> Generator[StoreConnection]:
        """Open a connection that the store alone uses, and close it; what it says is translated."""
        with translated(self.url, name):
            db = connect(self._conninfo)
            try:
                with db.ours():
                    yield db
            finally:
                db.close()

    def _current_number(self, db: Connection, name: str, *, for_update: bool = False) -> int | None:
        """Return the number of the current generation."""
        stable = self._stable(name)
        if db.execute("SELECT to_regclass(%s)", (f'"{stable}".gasoline_projection',)).fetchone() == (None,):
            return None
        select = statement("SELECT current FROM {}.gasoline_projection", stable)
        row = db.execute(select + sql.SQL(" FOR UPDATE" if for_update else "")).fetchone()
        return None if row is None else row[0]

    def _numbers(self, db: Connection, name: str) -> list[int]:
        """Return the generations there are schemas of."""
        stable = self._stable(name)
        found = db.execute("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", (f"{stable}__",))
        suffixes = (schema[len(stable) + 2 :] for (schema,) in found.fetchall())
        return sorted(int(suffix) for suffix in suffixes if re.fullmatch("[1-9][0-9]*", suffix))

    def _opened(self, db: StoreConnection, meta: Meta) -> PostgresGeneration:
        schema, stable = self._schema(meta.projection, meta.generation), self._stable(meta.projection)
        use_schema(db, schema)
        return PostgresGeneration(db, meta, self.url, schema, stable, self._reach)

    # --- opening ------------------------------------------------------------------------------------------------------

    def current(self, name: str, *, readonly: bool = False) -> Generation[Connection] | None:
        """Open the current generation (see the port)."""
        self._stable(name)
        with translated(self.url, name):
            db = connect(self._conninfo)
            try:
                with db.ours():
                    for _ in range(_TRIES):
                        number = self._current_number(db, name)
                        if number is None:
                            db.close()
                            return None
                        meta = read_meta(db, self._schema(name, number))
                        if meta is not None and meta.state != "superseded":
                            return self._opened(db, meta)
                        if self._current_number(db, name) == number:
                            raise self._damaged(name, f"generation {number} was given up, or is missing")
                    raise self._too_fast(name)
            except BaseException:
                db.close()
                raise

    def again(self, meta: Meta) -> Generation[Connection]:
        """Open a generation once more (see the port)."""
        name = meta.projection
        with translated(self.url, name):
            db = connect(self._conninfo)
            try:
                with db.ours():
                    found = read_meta(db, self._schema(name, meta.generation))
                    if found is None:
                        raise superseded(meta, self.url, "it was removed")
                    return self._opened(db, found)
            except BaseException:
                db.close()
                raise

    # --- building -----------------------------------------------------------------------------------------------------

    def create(self, name: str, version: int, setup: Setup[Connection]) -> Generation[Connection]:
        """Make the next generation (see the port)."""
        with self._connected(name) as db:
            number = self._next_number(db, name)
        meta = Meta(name, version, self.log_id, self.namespace, number, "building")
        with translated(self.url, name):
            db = connect(self._conninfo)
        try:
            make_tables(db, self._schema(name, number), meta, setup, self.url, self._reach)
            with db.ours():
                return self._opened(db, meta)
        except BaseException:
            db.close()
            raise

    def _next_number(self, db: Connection, name: str) -> int:
        """Take the next number, for good."""
        stable = self._stable(name)
        db.execute(BEGIN)
        lock(db, stable)
        self._make_stable(db, stable)
        newest = db.execute(
            statement("UPDATE {}.gasoline_projection SET newest = newest + 1 RETURNING newest", stable)
        ).fetchone()
        db.execute("COMMIT")
        assert newest is not None
        return int(newest[0])

    def _make_stable(self, db: Connection, stable: str) -> None:
        """Make the stable schema, if it is not there, with the lock of it held."""
        db.execute(statement("CREATE SCHEMA IF NOT EXISTS {}", stable))
        db.execute(
            statement(
                "CREATE TABLE IF NOT EXISTS {}.gasoline_projection(current bigint, newest bigint NOT NULL, "
                "one boolean PRIMARY KEY DEFAULT true CHECK (one))",
                stable,
            )
        )
        insert = "INSERT INTO {}.gasoline_projection VALUES (NULL, 0) ON CONFLICT DO NOTHING"
        db.execute(statement(insert, stable))

    def unfinished(self, name: str, version: int) -> Generation[Connection] | None:
        """Open the newest generation if it is still being built (see the port)."""
        self._stable(name)
        with translated(self.url, name):
            db = connect(self._conninfo)
            try:
                with db.ours():
                    numbers = self._numbers(db, name)
                    meta = read_meta(db, self._schema(name, numbers[-1])) if numbers else None
                    wanted = (version, self.log_id, self.namespace, "building")
                    if meta is not None and (meta.version, meta.log_id, meta.namespace, meta.state) == wanted:
                        return self._opened(db, meta)
                db.close()
                return None
            except BaseException:
                db.close()
                raise

    @contextmanager
    def building(self, name: str, *, wait: bool = True) -> Generator[bool]:
        """Hold the lock of whoever builds (see the port): an advisory lock of a connection of its own."""
        key = f"gasoline build {self._stable(name)}"
        with translated(self.url, name):
            db = connect(self._conninfo)
        try:
            with translated(self.url, name), db.ours():
                held = True
                if wait:
                    db.execute("SET lock_timeout = 0")
                    db.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (key,))
                else:
                    asked = db.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", (key,)).fetchone()
                    held = asked == (True,)
            yield held
            with suppress(psycopg.Error), db.ours():  # a lost connection holds nothing
                # A server may notice only later that a connection was closed; the next who asks is to get it now.
                db.execute("SELECT pg_advisory_unlock_all()")
        finally:
            db.close()

    def abandon(self, new: Generation[Connection]) -> None:
        """Remove a generation that was not built (see the port)."""
        name, number = new.meta.projection, new.meta.generation
        new.close()
        with self._connected(name) as db:
            if self._current_number(db, name) != number:
                self._drop(db, name, number)

    def swap(self, new: Generation[Connection], catch_up: CatchUp) -> None:
        """Make a generation the current one (see the port), in one transaction."""
        assert isinstance(new, PostgresGeneration)
        name, number = new.meta.projection, new.meta.generation
        with self._connected(name) as db:
            db.execute(BEGIN)
            try:
                old = self._current_number(db, name, for_update=True)
                if old == number:
                    return
                if old is not None and old > number:
                    raise superseded(new.meta, self.url, f"generation {old} is the current one")
                if old is not None:
                    lock(db, self._schema(name, old))
                self._reach("swap locked")
                stood = self._positions_of_log(db, name, old)
                catch_up(stood)
                behind = still_behind(new.positions(), stood)
                if behind is not None:
                    raise self._failed(name, f"generation {number} is behind the current one at {behind}")
                self._reach("swap caught up")
                self._take_place(db, name, number, old)
                db.execute("COMMIT")
            finally:
                db.undo()
            self._reach("swapped")
        self._reach("marked")
        self.remove_old(name)

    def _positions_of_log(self, db: Connection, name: str, old: int | None) -> dict[Feed, Position]:
        meta = None if old is None else read_meta(db, self._schema(name, old))
        if old is None or meta is None or meta.log_id != self.log_id:
            return {}
        return read_positions(db, self._schema(name, old))

    def _take_place(self, db: StoreConnection, name: str, number: int, old: int | None) -> None:
        set_state(db, self._schema(name, number), "live")
        if old is not None and read_meta(db, self._schema(name, old)) is not None:
            set_state(db, self._schema(name, old), "superseded")
        db.execute(statement("UPDATE {}.gasoline_projection SET current = %s", self._stable(name)), (number,))
        self._make_views(db, name, number)

    def _make_views(self, db: StoreConnection, name: str, number: int | None) -> None:
        """Let the stable schema show a generation's tables, or nothing."""
        stable = self._stable(name)
        db.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_VIEWS_WAIT_MS)))
        shown = db.execute("SELECT viewname FROM pg_views WHERE schemaname = %s", (stable,)).fetchall()
        for (view,) in shown:
            db.execute(statement("DROP VIEW {}.{} CASCADE", stable, view))
        if number is not None:
            schema = self._schema(name, number)
            db.execute(statement("SET LOCAL search_path = {}", schema))
            own = db.execute("SELECT viewname FROM pg_views WHERE schemaname = %s", (schema,)).fetchall()
            for name in [*(table.name for table in read_tables(db)), *(view for (view,) in own)]:
                db.execute(statement("CREATE VIEW {}.{} AS SELECT * FROM {}.{}", stable, name, schema, name))

    def discard(self, name: str) -> None:
        """Make no generation the current one (see the port)."""
        with self._connected(name) as db:
            db.execute(BEGIN)
            try:
                old = self._current_number(db, name, for_update=True)
                if old is None:
                    return
                lock(db, self._schema(name, old))
                if read_meta(db, self._schema(name, old)) is not None:
                    set_state(db, self._schema(name, old), "superseded")
                db.execute(statement("UPDATE {}.gasoline_projection SET current = NULL", self._stable(name)))
                self._make_views(db, name, None)
                db.execute("COMMIT")
            finally:
                db.undo()

    # --- reading ------------------------------------------------------------------------------------------------------

    def snapshot(self, name: str) -> Snapshot[Connection]:
        """Open the current generation to read it (see the port)."""
        self._stable(name)
        with translated(self.url, name):
            for _ in range(_TRIES):
                db = connect(self._conninfo)
                try:
                    with db.ours():
                        number = self._current_number(db, name)
                        if number is None:
                            raise self._not_built(name)
                        schema = self._schema(name, number)
                        use_schema(db, schema)
                        db.execute(BEGIN_READING)
                        # This also keeps the schema from being dropped.
                        meta = read_meta(db, schema)
                        if meta is not None and meta.state != "superseded":
                            return PostgresSnapshot(db, meta, read_positions(db, schema))
                        db.undo()
                        if meta is not None and self._current_number(db, name) == number:
                            raise self._not_built(name)  # it was given up
                except errors.UndefinedTable:  # dropped just now
                    pass
                except BaseException:
                    db.close()
                    raise
                db.close()
        raise self._too_fast(name)

    def scratch(self, name: str, version: int, setup: Setup[Connection]) -> Generation[Connection]:
        """Make a generation that nobody else sees: temporary tables, gone with their connection."""
        meta = Meta(check_name(name), version, self.log_id, self.namespace, 0, "building")
        with translated(self.url, name):
            db = connect(self._conninfo)
        try:
            make_tables(db, TEMPORARY, meta, setup, self.url)
            return PostgresGeneration(db, meta, self.url, TEMPORARY, TEMPORARY, nothing)
        except BaseException:
            db.close()
            raise

    def tables(self, db: Connection) -> list[Table]:
        return read_tables(db)

    def rows(self, db: Connection, table: Table) -> Iterator[Row]:
        return read_rows(db, table)

    def has_key(self, db: Connection, table: Table, key: Row) -> bool:
        return has_key(db, table, key)

    def names(self) -> list[str]:
        prefix = f"{self.namespace}__"
        with self._connected("") as db:
            found = db.execute(
                "SELECT n.nspname FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid "
                "WHERE c.relname = 'gasoline_projection' AND starts_with(n.nspname, %s)",
                (prefix,),
            ).fetchall()
        return sorted(schema.removeprefix(prefix) for (schema,) in found)

    def generations(self, name: str) -> list[GenerationInfo]:
        found: list[GenerationInfo] = []
        with self._connected(name) as db:
            current = self._current_number(db, name)
            for number in self._numbers(db, name):
                schema = self._schema(name, number)
                meta = read_meta(db, schema)
                if meta is not None:
                    positions, stops = read_positions(db, schema), read_stops(db, schema)
                    found.append(GenerationInfo(meta, number == current, positions, stops, _size(db, schema)))
        return found

    def failure(self, name: str) -> Failure | None:
        """Return why a projection could not be kept up (see the port)."""
        with self._connected(name) as db:
            if not self._has_failure(db, name):
                return None
            row = db.execute(statement("SELECT error, time_us FROM {}.gasoline_failure", self._stable(name))).fetchone()
            return None if row is None else Failure(*row)

    def tell_failure(self, name: str, failure: Failure | None) -> None:
        """Keep why a projection cannot be kept up (see the port)."""
        stable = self._stable(name)
        with self._connected(name) as db:
            if failure is None and not self._has_failure(db, name):
                return
            db.execute(BEGIN)
            try:
                lock(db, stable)
                if not self._has_failure(db, name):
                    self._make_stable(db, stable)
                    create = "CREATE TABLE {}.gasoline_failure(error text NOT NULL, time_us bigint NOT NULL)"
                    db.execute(statement(create, stable))
                db.execute(statement("DELETE FROM {}.gasoline_failure", stable))
                if failure is not None:
                    told = (failure.error.replace("\0", "\ufffd"), failure.time_us)
                    db.execute(statement("INSERT INTO {}.gasoline_failure VALUES (%s, %s)", stable), told)
                db.execute("COMMIT")
            finally:
                db.undo()

    def _has_failure(self, db: Connection, name: str) -> bool:
        there = db.execute("SELECT to_regclass(%s)", (f'"{self._stable(name)}".gasoline_failure',)).fetchone()
        return there != (None,)

    def remove(self, name: str) -> None:
        """Remove a projection (see the port), but for the number of its newest generation: those still count from there."""
        self.discard(name)
        with self._connected(name) as db:
            for number in self._numbers(db, name):
                if not self._drop(db, name, number):
                    raise self._failed(name, f"generation {number} is being read or folded: try again once nobody does")
        self.tell_failure(name, None)

    def remove_begun(self, name: str) -> None:
        """Drop what is above the current generation (see the port)."""
        with self._connected(name) as db:
            current = self._current_number(db, name)
            for number in self._numbers(db, name):
                if current is not None and number > current:
                    self._drop(db, name, number)

    def remove_old(self, name: str) -> None:
        """Drop what is below the current generation, unless somebody reads it: that is left for the next time."""
        with self._connected(name) as db:
            current = self._current_number(db, name)
            if current is None:
                return
            for number in self._numbers(db, name):
                if number < current:
                    self._drop(db, name, number)

    def _drop(self, db: Connection, name: str, number: int) -> bool:
        """Drop a generation; False: somebody has it open in a transaction."""
        dropped = False
        with suppress(errors.LockNotAvailable):
            db.execute(sql.SQL("SET lock_timeout = {}").format(sql.Literal(_REMOVE_WAIT_MS)))
            db.execute(BEGIN)
            db.execute(statement("DROP SCHEMA IF EXISTS {} CASCADE", self._schema(name, number)))
            db.execute("COMMIT")
            dropped = True
        if db.info.transaction_status != TransactionStatus.IDLE:
            db.execute("ROLLBACK")
        return dropped

    def close(self) -> None:
        """Hold nothing."""


class PostgresSnapshot(Snapshot[Connection]):
    """See :class:`~projections.stores.port.Snapshot`. Takes the connection over, in its transaction."""

    def __init__(self, db: StoreConnection, meta: Meta, positions: dict[Feed, Position]) -> None:
        self.db = db
        self.meta = meta
        self.positions = positions

    def close(self) -> None:
        self.db.close()


def _size(db: Connection, schema: str) -> int | None:
    row = db.execute(
        "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relkind = 'r'",
        (schema,),
    ).fetchone()
    return None if row is None else row[0]


def _shown(url: str) -> str:
    """Return a URL that may be printed: without its password."""
    try:
        parts: dict[str, Any] = {**conninfo_to_dict(url)}
    except psycopg.ProgrammingError as error:
        raise ProjectionError(f"the URL of the store cannot be read: {error}", store="postgresql:") from error
    parts.pop("password", None)
    return f"postgresql: {make_conninfo(**parts)}"
