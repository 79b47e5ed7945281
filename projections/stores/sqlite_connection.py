"""A SQLite connection whose transactions are the store's: whoever is given it can neither end them nor change our tables.

``commit``, ``rollback``, ``with db:`` and ``COMMIT`` as SQL are all refused, by SQLite's authorizer, which is asked as a
statement is prepared. (A prepared statement is kept by its text: ours have a mark in it that nobody else writes.) What the
authorizer cannot see is a statement that makes SQLite itself roll back, ``INSERT OR ROLLBACK`` for one:
``sqlite_generation.require_transaction`` looks for that.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

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


class StoreConnection(sqlite3.Connection):
    """Made by :func:`connect`."""

    denied: str | None = None
    """What the authorizer refused last, in words."""
    _ours = 0

    @contextmanager
    def ours(self) -> Generator[None]:
        """Within this block the store speaks."""
        self._ours += 1
        try:
            yield
        finally:
            self._ours -= 1

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        """Run statement after statement, in the transaction that is open. (SQLite's own would commit it first.)"""
        cursor = self.cursor()
        statement = ""
        # A ';' may end a statement, or stand in a text, a comment or a trigger: SQLite says which.
        for piece in sql_script.split(";"):
            statement += piece + ";"
            if sqlite3.complete_statement(statement):
                if statement.strip(" \t\r\n;"):
                    cursor.execute(statement)
                statement = ""
        if statement.strip(" \t\r\n;"):
            cursor.execute(statement.removesuffix(";"))
        return cursor

    def authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        """Called by SQLite for each thing a statement that is being prepared would do."""
        if self._ours:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_TRANSACTION:
            self.denied = f"{first}: the transaction is the store's, which commits tables and positions together"
        elif action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
            self.denied = "ATTACH, DETACH: a generation is one file"
        elif action in _CHANGES and any(name is not None and name.startswith(_OURS) for name in (first, second)):
            self.denied = f"a change of {first}: tables called {_OURS}… are the store's"
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY


def connect(path: str, *, mode: str) -> StoreConnection:
    """Open a file that is there: ``mode`` is ``rw`` or ``ro``. Raises: sqlite3.Error."""
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return _guarded(f"file:{quoted}?mode={mode}", uri=True)


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


def mark() -> str:
    """Return a comment that tells the store's statements from all others, also in SQLite's cache of statements."""
    return f" /* {secrets.token_hex(8)} */"
