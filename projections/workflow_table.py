"""The rows of workflows in a store, and what people may ask of them in SQL: SQLite and PostgreSQL alike.

Tables end in ``_rows`` and are ours; the views beside them are for everybody (docs/guides/views.md). Everything of a partition
changes in the transaction that moves its position, so it is of one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final, cast

from gasoline_es.core.filters import Filters
from gasoline_es.core.ports import Prunable
from gasoline_es.core.state import Status, Summary
from projections.database import PLACE, held, kind_of, run, time_as
from projections.views import Counts
from projections.workflow_rows import COLUMNS, WorkflowRow, row_of, summary_of, values_of

PAGES: Final = (25, 100, 500)
"""So many workflows are read of those that match: first, then, and from then on. Many only want the first ones."""

_GOING_ON: Final = (
    "(completed_us IS NULL OR waiting IS NOT NULL OR findable = 1 OR queued IS NOT NULL"
    " OR running_since_us IS NOT NULL)"
)
"""What the views have in memory, see ``PartitionViews``: all that may still do something."""

_BY_RULE: Final = "prune IN ('all', 'history')"
"""Of what their definitions let something go. (An index is used where a query says the same word for word.)"""
_UNPRUNED: Final = "prune IN ('all', 'history', 'none')"
"""Of what may be pruned by hand. (Not ``IS NOT NULL``: that follows from the words above, and SQLite took this index there,
so the pruner passed over all that keep everything.)"""
_THERE: Final = "(pruned IS NULL OR pruned <> 'all')"
"""All but the rows that only say that there was a workflow, and how many events it had.

What lists go through has none of those in it: there may be a million of them between two that are there, and a page is read
on the thread of the event loop.
"""

_TABLES: Final = f"""
CREATE TABLE workflow_rows (
    id TEXT PRIMARY KEY, partition INTEGER NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL, tags TEXT NOT NULL,
    created_us BIGINT NOT NULL, updated_us BIGINT NOT NULL, completed_us BIGINT, ray_id TEXT NOT NULL, events BIGINT NOT NULL,
    worker TEXT NOT NULL, error_type TEXT, error_message TEXT, error TEXT, failures INTEGER NOT NULL, waiting TEXT,
    deadline_us BIGINT, queued TEXT, findable INTEGER NOT NULL, running_since_us BIGINT, first_offset BIGINT NOT NULL,
    last_offset BIGINT NOT NULL, positions BYTEA NOT NULL, more TEXT, prune TEXT, pruned TEXT);
CREATE INDEX workflow_rows_created ON workflow_rows (partition, created_us, id) WHERE {_THERE};
CREATE INDEX workflow_rows_status ON workflow_rows (partition, status, created_us, id) WHERE {_THERE};
CREATE INDEX workflow_rows_name ON workflow_rows (partition, name, created_us, id) WHERE {_THERE};
CREATE INDEX workflow_rows_going_on ON workflow_rows (partition, first_offset) WHERE {_GOING_ON};
CREATE INDEX workflow_rows_failed ON workflow_rows (partition, created_us, id) WHERE error_type IS NOT NULL;
CREATE INDEX workflow_rows_prunable ON workflow_rows (partition, completed_us, id) WHERE {_BY_RULE};
CREATE INDEX workflow_rows_unpruned ON workflow_rows (partition, completed_us, id) WHERE {_UNPRUNED};
CREATE TABLE tag_rows (
    tag TEXT NOT NULL, value TEXT NOT NULL, workflow_id TEXT NOT NULL, PRIMARY KEY (tag, value, workflow_id));
CREATE INDEX tag_rows_workflow ON tag_rows (workflow_id);
CREATE TABLE count_rows (
    partition INTEGER NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL, count BIGINT NOT NULL,
    PRIMARY KEY (partition, name, status));
"""

_VIEWS: Final = {
    "sqlite": """
CREATE VIEW workflows AS SELECT id, name, status, tags, {created_us} AS created, {updated_us} AS updated,
    {completed_us} AS completed, error_type, error_message, {deadline_us} AS waiting_until,
    json_extract(waiting, '$[0]') AS waiting_for_signals,
    json_extract(waiting, '$[2]') AS waiting_for_outputs, ray_id, events, worker, partition
    FROM workflow_rows WHERE pruned IS NULL OR pruned <> 'all';
CREATE VIEW tags AS SELECT tag, value, workflow_id FROM tag_rows;
CREATE VIEW signals AS SELECT r.id AS workflow_id, json_extract(s.value, '$[0]') AS id,
    json_extract(s.value, '$[1]') AS name, {signal_us} AS received, s.key AS place FROM workflow_rows r, json_each(r.queued) s;
CREATE VIEW wake_queue AS SELECT id AS workflow_id, name, {deadline_us} AS due, partition FROM workflow_rows
    WHERE deadline_us IS NOT NULL AND status = 'sleeping';
CREATE VIEW counts AS SELECT name, status, sum(count) AS count FROM count_rows GROUP BY name, status;
""",
    "postgres": """
CREATE VIEW workflows AS SELECT id, name, status, tags::jsonb AS tags, {created_us} AS created, {updated_us} AS updated,
    {completed_us} AS completed, error_type, error_message, {deadline_us} AS waiting_until,
    waiting::jsonb -> 0 AS waiting_for_signals, waiting::jsonb -> 2 AS waiting_for_outputs, ray_id, events, worker, partition
    FROM workflow_rows WHERE pruned IS NULL OR pruned <> 'all';
CREATE VIEW tags AS SELECT tag, value, workflow_id FROM tag_rows;
CREATE VIEW signals AS SELECT r.id AS workflow_id, s.value ->> 0 AS id, s.value ->> 1 AS name,
    {signal_us} AS received, s.place - 1 AS place
    FROM workflow_rows r, jsonb_array_elements(r.queued::jsonb) WITH ORDINALITY AS s(value, place);
CREATE VIEW wake_queue AS SELECT id AS workflow_id, name, {deadline_us} AS due, partition FROM workflow_rows
    WHERE deadline_us IS NOT NULL AND status = 'sleeping';
CREATE VIEW counts AS SELECT name, status, sum(count)::bigint AS count FROM count_rows GROUP BY name, status;
""",
}

_SELECT: Final = f"SELECT {', '.join(COLUMNS)} FROM workflow_rows"


def make_tables(db: Any) -> None:
    """Make the tables and views in a new generation."""
    kind = kind_of(db)
    times = {column: time_as(kind, column) for column in ("created_us", "updated_us", "completed_us", "deadline_us")}
    times["signal_us"] = time_as(
        kind, "json_extract(s.value, '$[2]')" if kind == "sqlite" else "(s.value ->> 2)::bigint"
    )
    run(db, _TABLES + _VIEWS[kind].format(**times))


class WorkflowTable:
    """Reads and writes rows through a store's connection."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._kind: Final = kind_of(db)
        mark = PLACE[self._kind]
        changing = [column for column in COLUMNS if column not in ("id", "partition")]
        values = ", ".join([mark] * len(COLUMNS))
        self._upsert = (
            f"INSERT INTO workflow_rows ({', '.join(COLUMNS)}) VALUES ({values}) ON CONFLICT (id) DO UPDATE SET "
            f"{', '.join(f'{column} = excluded.{column}' for column in changing)}"
        )
        self._mark = mark

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, partition: int, rows: Sequence[WorkflowRow], counts: Counts | None) -> Counts:
        """Put these rows in the place of those that are there, and these counts in that of the partition's.

        ``counts`` None: they are counted, which goes through the partition. They are returned.
        """
        mark, cursor = self._mark, self._db.cursor()
        if rows:
            cursor.executemany(self._upsert, held(self._kind, [values_of(row, partition) for row in rows]))
            # Of one with few events there is nothing to be taken away: it is new, or its tags never changed.
            tagged = [(tag, value, row.summary.id) for row in rows for tag, value in row.summary.tags.items()]
            cursor.executemany(f"DELETE FROM tag_rows WHERE workflow_id = {mark}", [(row.summary.id,) for row in rows])
            if tagged:
                cursor.executemany(f"INSERT INTO tag_rows VALUES ({mark}, {mark}, {mark})", held(self._kind, tagged))
        if counts is None:
            counts = self._counted(partition)
        cursor.execute(f"DELETE FROM count_rows WHERE partition = {mark}", (partition,))
        if counts:
            cursor.executemany(
                f"INSERT INTO count_rows VALUES ({mark}, {mark}, {mark}, {mark})",
                [(partition, name, status, count) for (name, status), count in counts.items()],
            )
        return counts

    def _counted(self, partition: int) -> Counts:
        where = f"partition = {self._mark} AND {_THERE}"
        query = f"SELECT name, status, count(*) FROM workflow_rows WHERE {where} GROUP BY name, status"
        found: Iterable[tuple[str, str, int]] = self._db.execute(query, (partition,)).fetchall()
        return {(name, cast(Status, status)): count for name, status, count in found}

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, workflow_id: str) -> WorkflowRow | None:
        """Return a workflow's row."""
        found = self._db.execute(f"{_SELECT} WHERE id = {self._mark}", (workflow_id,)).fetchone()
        return None if found is None else row_of(found)

    def going_on(self, partition: int) -> Iterator[WorkflowRow]:
        """Yield the rows of all workflows that may still do something, in order of dispatch."""
        query = f"{_SELECT} WHERE partition = {self._mark} AND {_GOING_ON} ORDER BY first_offset"
        return map(row_of, self._db.execute(query, (partition,)))

    def counts(self, partition: int) -> Counts:
        """Return how many workflows of a name stand somewhere."""
        query = f"SELECT name, status, count FROM count_rows WHERE partition = {self._mark}"
        found: Iterable[tuple[str, str, int]] = self._db.execute(query, (partition,))
        return {(name, cast(Status, status)): count for name, status, count in found}

    def matching(self, partition: int, wanted: Filters) -> Iterator[Summary]:
        """Yield the workflows of a partition that match, in order of creation; each page as it stands when it is read."""
        return (summary for summary, _ in self._matching(partition, wanted))

    def prunable(self, partition: int, wanted: Prunable, after: tuple[int, str], limit: int) -> list[Summary]:
        """Return at most ``limit`` workflows of a partition that may be pruned, in order of their end, behind ``after``."""
        mark = self._mark
        which = _BY_RULE if wanted.by_rule else _UNPRUNED
        conditions = [which, f"partition = {mark}", f"completed_us < {mark}", f"(completed_us, id) > ({mark}, {mark})"]
        given: list[Any] = [partition, wanted.before_us, *after]
        if wanted.name is not None:
            conditions.append(f"name = {mark}")
            given.append(wanted.name)
        query = f"{_SELECT} WHERE {' AND '.join(conditions)} ORDER BY completed_us, id LIMIT {limit}"
        return [summary_of(values) for values in self._db.execute(query, given).fetchall()]

    def rows(self, partition: int, wanted: Filters) -> Iterator[WorkflowRow]:
        """Yield their rows."""
        return (row_of(values) for _, values in self._matching(partition, wanted))

    def _matching(self, partition: int, wanted: Filters) -> Iterator[tuple[Summary, Sequence[Any]]]:
        if not all(map(_is_text, (wanted.name or "", wanted.status or "", *wanted.tags, *wanted.tags.values()))):
            return  # no name and no tag is such a text
        after = (wanted.since_us if wanted.since_us is not None else -1, "")
        if wanted.after is not None:
            after = max(after, wanted.after)
        for rows in chain(PAGES, repeat(PAGES[-1])):
            page = self._page(partition, wanted, after, rows)
            summaries = [summary_of(values) for values in page]
            yield from (one for one in zip(summaries, page, strict=True) if wanted.match(one[0]))
            if len(page) < rows:
                return
            after = (summaries[-1].created_us, summaries[-1].id)

    def _page(self, partition: int, wanted: Filters, after: tuple[int, str], rows: int) -> list[Sequence[Any]]:
        mark = self._mark
        conditions = [f"partition = {mark}", f"(created_us, id) > ({mark}, {mark})", _THERE]
        given: list[Any] = [partition, *after]
        for column, value in (("name", wanted.name), ("status", wanted.status)):
            if value is not None:
                conditions.append(f"{column} = {mark}")
                given.append(value)
        if wanted.until_us is not None:
            conditions.append(f"created_us < {mark}")
            given.append(wanted.until_us)
        if wanted.error is not None:
            conditions.append("error_type IS NOT NULL")
        for tag, value in wanted.tags.items():
            conditions.append(f"id IN (SELECT workflow_id FROM tag_rows WHERE tag = {mark} AND value = {mark})")
            given += (tag, value)
        query = f"{_SELECT} WHERE {' AND '.join(conditions)} ORDER BY created_us, id LIMIT {rows}"
        page: list[Sequence[Any]] = self._db.execute(query, given).fetchall()
        return page


def _is_text(text: str) -> bool:
    """Whether a text is one that events can hold (a lone surrogate is none)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
