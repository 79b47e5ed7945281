"""What workers have said that they run, as rows, and as people may ask for it in SQL (docs/guides/views.md).

A worker may say something in one partition and take it back in another: of each the newest counts, over all of them. So
what was taken back stays, as a row that says nothing: it is a worker's only trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gasoline_es.core.announced import Announced
from projections.database import PLACE, held, kind_of, run
from projections.registry import Said

_TABLES: Final = """
CREATE TABLE worker_rows (worker TEXT NOT NULL, partition INTEGER NOT NULL, time_us BIGINT NOT NULL, said TEXT,
    problem TEXT, PRIMARY KEY (worker, partition));
CREATE INDEX worker_rows_said ON worker_rows (worker) WHERE said IS NOT NULL OR problem IS NOT NULL;
"""

_NEWEST: Final = """(r.said IS NOT NULL OR r.problem IS NOT NULL) AND NOT EXISTS (
    SELECT 1 FROM worker_rows o WHERE o.worker = r.worker
    AND (o.time_us > r.time_us OR (o.time_us = r.time_us AND o.partition > r.partition)))"""

_VIEWS: Final = {
    "sqlite": f"""
CREATE VIEW workers AS SELECT worker, json_extract(said, '$.started') AS started, json_extract(said, '$.version') AS library,
    json_extract(said, '$.workflows') AS workflows, json_extract(said, '$.activities') AS activities
    FROM worker_rows r WHERE r.said IS NOT NULL AND {_NEWEST};
CREATE VIEW definitions AS SELECT 'workflow' AS kind, d.value AS name, worker FROM workers w, json_each(w.workflows) d
    UNION ALL SELECT 'activity', d.value, worker FROM workers w, json_each(w.activities) d;
""",
    "postgres": f"""
CREATE VIEW workers AS SELECT worker, (said::jsonb ->> 'started')::timestamptz AS started, said::jsonb ->> 'version' AS library,
    said::jsonb -> 'workflows' AS workflows, said::jsonb -> 'activities' AS activities
    FROM worker_rows r WHERE r.said IS NOT NULL AND {_NEWEST};
CREATE VIEW definitions AS SELECT 'workflow' AS kind, d.value AS name, worker
    FROM workers w, jsonb_array_elements_text(w.workflows) AS d(value)
    UNION ALL SELECT 'activity', d.value, worker FROM workers w, jsonb_array_elements_text(w.activities) AS d(value);
""",
}


def make_tables(db: Any) -> None:
    """Make the table and the views in a new generation."""
    run(db, _TABLES + _VIEWS[kind_of(db)])


class AnnouncedTable:
    """Reads and writes rows through a store's connection."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._kind: Final = kind_of(db)

    def write(self, partition: int, said: Mapping[str, Said]) -> None:
        """Put what workers said in the place of what they said before in this partition."""
        mark = PLACE[self._kind]
        rows = [(worker, partition, time_us, *_read(value)) for worker, (time_us, value) in said.items()]
        if rows:
            self._db.cursor().executemany(
                f"INSERT INTO worker_rows VALUES ({mark}, {mark}, {mark}, {mark}, {mark}) ON CONFLICT (worker, partition) "
                "DO UPDATE SET time_us = excluded.time_us, said = excluded.said, problem = excluded.problem",
                held(self._kind, rows),
            )

    def standing(self) -> list[tuple[str, int, Announced | str]]:
        """Return what was said last and not taken back, over all partitions: worker, when, what (or why it does not read)."""
        found = self._db.execute(f"SELECT worker, time_us, said, problem FROM worker_rows r WHERE {_NEWEST}")
        return [(worker, time_us, _said(said) or problem) for worker, time_us, said, problem in found]

    def last_of(self, worker: str) -> tuple[int, Announced | str | None] | None:
        """Return what a worker said last, over all partitions; its value is None if it took that back."""
        query = "SELECT time_us, said, problem FROM worker_rows WHERE worker = {} ORDER BY time_us DESC, partition DESC LIMIT 1"
        found = self._db.execute(query.format(PLACE[self._kind]), (worker,)).fetchone()
        return None if found is None else (found[0], _said(found[1]) or found[2])


def _said(text: str | None) -> Announced | None:
    return None if text is None else Announced.read(text.encode())


def _read(value: bytes | None) -> tuple[str | None, str | None]:
    """Return what was said as we write it, and why it does not read."""
    if value is None:
        return None, None
    try:
        return Announced.read(value).json().decode(), None
    except ValueError as error:
        return None, str(error)
