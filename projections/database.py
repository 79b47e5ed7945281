"""What SQLite and PostgreSQL write differently, for tables of ours that lie in either."""

from __future__ import annotations

import sqlite3
from typing import Any, Final, Literal

Kind = Literal["sqlite", "postgres"]

PLACE: Final[dict[Kind, str]] = {"sqlite": "?", "postgres": "%s"}
"""What stands in a statement for a value."""
_TIMES: Final[dict[Kind, str]] = {
    # Text as events have it: it sorts as the time does.
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%S', {0} / 1000000, 'unixepoch') || printf('.%06dZ', {0} % 1000000)",
    "postgres": "to_timestamp(({0}) / 1000000.0)",
}


def kind_of(db: Any) -> Kind:
    """Return what a connection is to."""
    return "sqlite" if isinstance(db, sqlite3.Connection) else "postgres"


def time_as(kind: Kind, column: str) -> str:
    """Return the expression for a time that is kept in microseconds, as people are shown it."""
    return _TIMES[kind].format(column)


def run(db: Any, statements: str) -> None:
    """Run statements, of which none has a semicolon in it."""
    for statement in statements.split(";"):
        if statement.strip():
            db.execute(statement)


def held(kind: Kind, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows as the database can hold them: PostgreSQL's texts have no NUL, as plain text or in JSON."""
    if kind == "sqlite":
        return rows
    return [tuple(_without_nul(value) if isinstance(value, str) else value for value in row) for row in rows]


def _without_nul(text: str) -> str:
    return text.replace("\0", "\ufffd").replace("\\u0000", "\\ufffd")
