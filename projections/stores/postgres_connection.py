"""A PostgreSQL connection whose transactions are the store's: whoever is given it can neither end them nor change our tables.

The methods that end a transaction are refused, and so are statements that begin with it or name our tables. One that comes
hidden (behind another statement, in a comment) costs the transaction, and nothing counts that comes after it:

* a commit meets a constraint that is checked then (``postgres_generation``), so it rolls back;
* behind a rollback nothing can be written: whatever does not say otherwise is a transaction that reads only;
* once the transaction has ended, statements are refused, until the store begins the next one.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, Final, LiteralString, NoReturn, Self, TypeAlias

import psycopg
from psycopg import sql
from psycopg.abc import Params
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from gasoline_es.errors import ProjectionError

_ENDS: Final = re.compile(
    r"^\s*(?:BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\b))\b",
    re.IGNORECASE,
)
_OURS: Final = "gasoline_"
ENDS: Final = "apply cannot commit or roll back: the store does, together with the position"
"""What is told of whatever would end the transaction."""
_LOCK_TIMEOUT_MS: Final = 60_000

BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Whatever the database's defaults are: who has waited for a lock sees what was committed before it was had."""
BEGIN_READING: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

Row: TypeAlias = tuple[Any, ...]
Connection: TypeAlias = "psycopg.Connection[Row]"


class StoreCursor(psycopg.Cursor[Any]):
    """A cursor that refuses what is the store's."""

    def execute(
        self, query: Any, params: Params | None = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        self._check(query)
        return super().execute(query, params, prepare=prepare, binary=binary)

    def executemany(self, query: Any, params_seq: Iterable[Params], *, returning: bool = False) -> None:
        self._check(query)
        super().executemany(query, params_seq, returning=returning)

    def _check(self, query: Any) -> None:
        connection = self.connection
        if isinstance(connection, StoreConnection):
            connection.check(query)


class StoreConnection(psycopg.Connection[Any]):
    """Made by :func:`connect`."""

    _ours = 0
    _begun = False
    """A transaction of the store has begun that the store has not ended."""

    @contextmanager
    def ours(self) -> Generator[None]:
        """Within this block the store speaks, and its rows are tuples, whatever those who were given it have set."""
        self._ours += 1
        rows, cursors = self.row_factory, self.cursor_factory
        self.row_factory, self.cursor_factory = tuple_row, StoreCursor
        try:
            yield
        finally:
            self.row_factory, self.cursor_factory = rows, cursors
            self._ours -= 1

    def begin(self) -> None:
        """Begin a transaction in which somebody else is given the connection."""
        with self.ours():
            self.execute(BEGIN)
        self._begun = True

    def end(self) -> None:
        """Commit it. If that fails, it is still to be undone."""
        with self.ours():
            self.execute("COMMIT")
        self._begun = False

    def undo(self) -> None:
        """Undo what is open; a connection that is lost has nothing open."""
        self._begun = False
        if not self.closed and self.info.transaction_status != TransactionStatus.IDLE:
            with self.ours():
                self.execute("ROLLBACK")

    def require_transaction(self) -> None:
        """Raises: psycopg.Error: the transaction has ended."""
        if self._ours or not self._begun:
            return
        if self.info.transaction_status == TransactionStatus.IDLE:
            raise psycopg.errors.NoActiveSqlTransaction(
                "a statement ended the store's transaction. Nothing of it counts, and nothing more is run in it: leave "
                "transactions to the store"
            )

    def require_sound(self) -> None:
        """Raises: psycopg.Error: nothing of the transaction can count."""
        self.require_transaction()
        if self.info.transaction_status == TransactionStatus.INERROR:  # of the projection, not of the store
            raise psycopg.errors.InFailedSqlTransaction(
                "a statement of the projection failed, and its error was caught: nothing of the transaction can count. Make a "
                "savepoint (`with db.transaction():`) around what may fail"
            )

    def check(self, query: Any) -> None:
        """Raises: ProjectionError: the statement is the store's own business. psycopg.Error: see ``require_transaction``."""
        if self._ours:
            return
        self.require_transaction()
        text = query if isinstance(query, str) else _text_of(query, self)
        if _ENDS.search(text) is not None:
            _refuse(ENDS)
        if _OURS in text.lower():
            _refuse(f"tables called {_OURS}… are the store's")

    def commit(self) -> None:
        """Refused, but to the store."""
        if not self._ours:
            _refuse(ENDS)
        super().commit()

    def rollback(self) -> None:
        """Refused, but to the store."""
        if not self._ours:
            _refuse(ENDS)
        super().rollback()

    def __enter__(self) -> Self:
        _refuse("the connection is the store's: `with db.transaction()` makes a savepoint")


def _text_of(query: Any, connection: Connection) -> str:
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    return query.as_string(connection) if isinstance(query, sql.Composable) else str(query)


def _refuse(why: str) -> NoReturn:
    raise ProjectionError(f"a projection may change its tables and nothing else: {why}")


def connect(url: str) -> StoreConnection:
    """Open a connection that begins nothing by itself. Raises: psycopg.Error."""
    db = StoreConnection.connect(
        url, autocommit=True, cursor_factory=StoreCursor, application_name="gasoline projections"
    )
    with db.ours():
        db.execute(sql.SQL("SET lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT_MS)))
        db.execute("SET client_min_messages = warning")
        db.execute("SET default_transaction_read_only = on")
    return db


def statement(text: LiteralString, *names: str) -> sql.Composed:
    """Return a statement whose ``{}`` are these names, quoted."""
    return sql.SQL(text).format(*map(sql.Identifier, names))
