"""Where dead letters wait in the registry, as rows (decision 0038)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from projections.database import PLACE, kind_of, run

_TABLES: Final = """
CREATE TABLE letter_rows (partition INTEGER NOT NULL, key TEXT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (partition, key));
"""


def make_tables(db: Any) -> None:
    """Make the table in a new generation."""
    run(db, _TABLES)


class LetterTable:
    """Reads and writes rows through a store's connection."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._mark: Final = PLACE[kind_of(db)]

    def write(self, partition: int, letters: Mapping[str, int | None]) -> None:
        """Store where letters wait; None: they do not any more."""
        mark, cursor = self._mark, self._db.cursor()
        gone = [(partition, key) for key, at in letters.items() if at is None]
        rows = [(partition, key, at) for key, at in letters.items() if at is not None]
        if gone:
            cursor.executemany(f"DELETE FROM letter_rows WHERE partition = {mark} AND key = {mark}", gone)
        if rows:
            cursor.executemany(
                f"INSERT INTO letter_rows VALUES ({mark}, {mark}, {mark}) "
                "ON CONFLICT (partition, key) DO UPDATE SET at = excluded.at",
                rows,
            )

    def waiting(self, partition: int) -> dict[str, int]:
        """Return the offsets of the letters that wait in a partition, by key, in the order in which they came."""
        query = f"SELECT key, at FROM letter_rows WHERE partition = {self._mark} ORDER BY at"
        return dict(self._db.execute(query, (partition,)).fetchall())
