"""A SQLite connection whose transactions are the store's: whoever is given it can neither end them nor change our tables.

``commit``, ``rollback``, ``with db:`` and ``COMMIT`` as SQL are all refused, by SQLite's authorizer, which is asked as a
statement is prepared. (A prepared statement is kept by its text: ours have a mark in it that nobody else writes.) What the
authorizer cannot see is that SQLite itself rolls back: for ``INSERT OR ROLLBACK``, for ``RAISE(ROLLBACK)`` in a trigger, on a
full disk. What came after it would count at once, each statement by itself. So from the store's ``BEGIN`` to its ``COMMIT`` a
statement is run only while that transaction is open; after it has ended, nothing is.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, Final, Self
from weakref import WeakSet

from projections.stores.port import Forked

_BUSY_TIMEOUT_S: Final = 60.0
_STATEMENTS_MAX: Final = 256
_OURS: Final = "gasoline_"
_CHANGES: Final = frozenset(
    {
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_DROP_INDEX,
    }
)


ENDS: Final = "apply cannot commit or roll back: the store does, together with the position"
"""What is told of whatever would end the transaction."""

_open: WeakSet[StoreConnection] = WeakSet()
"""The connections to files that this process has open."""
_inherited: set[tuple[int, int]] = set()
"""The files, by device and number, that a process had open which this one was forked from."""


def _forked() -> None:
    _inherited.update(db.file for db in _open if db.file is not None)


os.register_at_fork(after_in_child=_forked)


class StoreCursor(sqlite3.Cursor):
    """A cursor that runs a statement only within the store's transaction, once that has begun."""

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        self._require_transaction()
        try:
            return super().execute(sql, parameters)
        except sqlite3.DatabaseError as error:
            raise self._why(error) from None

    def _why(self, error: sqlite3.DatabaseError) -> sqlite3.DatabaseError:
        connection = self.connection
        return connection.why(error) if isinstance(connection, StoreConnection) else error

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Self:
        self._require_transaction()
        return super().executemany(sql, seq_of_parameters)

    def executescript(self, sql_script: str, /) -> Self:
        """Run statement after statement, in the transaction that is open. (SQLite's own would commit it first.)"""
        # A ';' may end a statement, or stand in a text, a comment or a trigger: SQLite says which.
        statement = ""
        for piece in sql_script.split(";"):
            statement += piece + ";"
            if sqlite3.complete_statement(statement):
                if statement.strip(" \t\r\n;"):
                    self.execute(statement)
                statement = ""
        if statement.strip(" \t\r\n;"):
            self.execute(statement.removesuffix(";"))
        return self

    def _require_transaction(self) -> None:
        connection = self.connection
        if isinstance(connection, StoreConnection):
            connection.require_transaction()


class StoreConnection(sqlite3.Connection):
    """Made by :func:`connect`."""

    denied: str | None = None
    """What the authorizer refused last, in words."""
    file: tuple[int, int] | None = None
    """Device and number."""
    projection = ""
    """What it is of, once that is known."""
    _ours = 0
    _begun = False
    """A transaction of the store has begun that the store has not ended."""

    @contextmanager
    def ours(self) -> Generator[None]:
        """Within this block the store speaks, and its rows are plain."""
        self._ours += 1
        try:
            with plain(self):
                yield
        finally:
            self._ours -= 1

    def commit(self) -> None:
        """Refused, but to the store."""
        self._refuse_the_end("commit()")
        super().commit()

    def rollback(self) -> None:
        """Refused, but to the store."""
        self._refuse_the_end("rollback()")
        super().rollback()

    def __enter__(self) -> Self:
        self._refuse_the_end("`with db:` would commit at its end")
        return super().__enter__()

    def _refuse_the_end(self, what: str) -> None:
        if self._begun and not self._ours:
            raise sqlite3.DatabaseError(f"not authorized: {what}: {ENDS}")

    def why(self, error: sqlite3.DatabaseError) -> sqlite3.DatabaseError:
        """Return an error as whoever was given the connection is told it: SQLite says of what is refused but that it is."""
        if self._ours or self.denied is None or getattr(error, "sqlite_errorname", "") != "SQLITE_AUTH":
            return error
        denied, self.denied = self.denied, None
        return type(error)(f"not authorized: {denied}")

    def close(self) -> None:
        _open.discard(self)
        super().close()

    def begin(self, statement: str) -> None:
        """Begin a transaction in which somebody else is given the connection."""
        with self.ours():
            self.execute(statement)
        self._begun = True

    def end(self, statement: str) -> None:
        """Commit it. If that fails, it is still to be undone."""
        with self.ours():
            self.execute(statement)
        self._begun = False

    def undo(self) -> None:
        """Undo what is open. SQLite may have done so by itself."""
        if self.in_transaction:
            with self.ours():
                self.execute("ROLLBACK" + mark())
        self._begun = False

    def require_transaction(self) -> None:
        """Raises: sqlite3.OperationalError: SQLite has ended the transaction, so nothing may be done any more."""
        if self._begun and not self._ours and not self.in_transaction:
            raise sqlite3.OperationalError(
                "a statement made SQLite roll the store's transaction back (INSERT OR ROLLBACK, RAISE(ROLLBACK), a full disk), "
                "and its error was caught. Nothing of the transaction counts, and nothing more is run in it: let errors of "
                "the database leave the function"
            )

    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor that runs nothing once the transaction has ended."""
        return super().cursor(StoreCursor if factory is None else factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self.require_transaction()
        try:
            return super().execute(sql, parameters)
        except sqlite3.DatabaseError as error:
            raise self.why(error) from None

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        self.require_transaction()
        return super().executemany(sql, parameters)

    def blobopen(self, *args: Any, **named: Any) -> sqlite3.Blob:
        """Open a blob, within the transaction."""
        self.require_transaction()
        return super().blobopen(*args, **named)

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        """Run statement after statement, in the transaction that is open. (SQLite's own would commit it first.)"""
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.executescript(sql_script)

    def authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        """Called by SQLite for each thing a statement that is being prepared would do."""
        if self._ours:
            return sqlite3.SQLITE_OK
        if self._begun and not self.in_transaction:  # of a cursor that is not of our class
            self.denied = "a statement after SQLite has rolled the store's transaction back"
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_TRANSACTION:
            self.denied = f"{first}: {ENDS}"
        elif action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
            self.denied = "ATTACH, DETACH: a generation is one file"
        elif action in _CHANGES and any(name is not None and name.startswith(_OURS) for name in (first, second)):
            self.denied = f"a change of {first}: tables called {_OURS}… are the store's"
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY


@contextmanager
def plain(db: sqlite3.Connection) -> Generator[None]:
    """Within this block rows are tuples and texts are ``str``, whatever those who were given the connection have set."""
    rows, texts = db.row_factory, db.text_factory
    db.row_factory, db.text_factory = None, str
    try:
        yield
    finally:
        db.row_factory, db.text_factory = rows, texts


def connect(path: str, *, mode: str) -> StoreConnection:
    """Open a file that is there: ``mode`` is ``rw`` or ``ro``.

    Raises: sqlite3.Error. Forked: this process must not, as one that it was forked from has it open. SQLite would take the
    locks of that one for its own.
    """
    file: tuple[int, int] | None = None
    with suppress(FileNotFoundError):
        found = os.stat(path)
        file = (found.st_dev, found.st_ino)
    if file in _inherited:
        raise Forked(
            f"{path} cannot be used in this process: it was forked from one that has it open, and SQLite's locks do not tell "
            f"the two apart. Start a process of its own (multiprocessing's `spawn`), or open it after the fork alone"
        )
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    db = _guarded(f"file:{quoted}?mode={mode}", uri=True)
    db.file = file
    _open.add(db)
    return db


def connect_memory() -> StoreConnection:
    """Open a new database in memory, which is gone when it is closed."""
    return _guarded(":memory:", uri=False)


def _guarded(database: str, *, uri: bool) -> StoreConnection:
    db: StoreConnection = sqlite3.connect(
        database,
        uri=uri,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,  # Python begins nothing by itself
        check_same_thread=False,  # one thread at a time is what the port asks for
        cached_statements=_STATEMENTS_MAX,
        factory=StoreConnection,
    )
    db.set_authorizer(db.authorize)
    return db


def projection_of(db: sqlite3.Connection) -> str:
    """Return the name of the projection that a connection shows, for people."""
    return db.projection if isinstance(db, StoreConnection) else ""


def mark() -> str:
    """Return a comment that tells the store's statements from all others, also in SQLite's cache of statements."""
    return f" /* {secrets.token_hex(8)} */"
