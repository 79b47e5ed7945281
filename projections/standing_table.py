"""The rows of what stands beside workflows, and what people may ask of them in SQL (docs/guides/views.md).

A row is a state, as JSON: whoever writes one that was folded further puts it in the place of the former.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar, cast

import orjson
from pydantic_core import from_json, to_json

from gasoline_es.core.parked import Ended, Parked
from gasoline_es.core.parked_events import parked_members, read_parked
from gasoline_es.core.schedule_events import read_set, set_members
from gasoline_es.core.schedules import Schedule
from gasoline_es.core.standing import Stands
from projections.database import PLACE, Kind, held, kind_of, run, time_as
from projections.standing import StandingRow

S = TypeVar("S", bound=Stands)

_TABLES: Final = """
CREATE TABLE schedule_rows (id TEXT PRIMARY KEY, partition INTEGER NOT NULL, since BIGINT NOT NULL, over INTEGER NOT NULL,
    state TEXT NOT NULL);
CREATE INDEX schedule_rows_since ON schedule_rows (partition, since) WHERE over = 0;
CREATE TABLE parked_rows (id TEXT PRIMARY KEY, partition INTEGER NOT NULL, since BIGINT NOT NULL, over INTEGER NOT NULL,
    state TEXT NOT NULL);
CREATE INDEX parked_rows_since ON parked_rows (partition, since) WHERE over = 0;
"""

_SCHEDULES: Final = {
    "name": ("set.name", "text"),
    "workflow": ("set.workflow", "text"),
    "status": ("status", "text"),
    "tags": ("set.tags", "json"),
    "cron": ("set.cron", "text"),
    "timezone": ("set.timezone", "text"),
    "interval_us": ("set.interval_us", "number"),
    "next_due": ("due_us", "time"),
    "last_due": ("last_due_us", "time"),
    "last_run": ("last_run", "text"),
    "fired": ("fired", "number"),
    "skipped": ("skipped", "number"),
    "created": ("created_us", "time"),
}
_PARKED: Final = {
    "id": ("signal.signal_id", "text"),
    "name": ("signal.name", "text"),
    "workflow": ("signal.workflow", "text"),
    "tags": ("signal.tags", "json"),
    "status": ("status", "text"),
    "parked": ("parked_us", "time"),
    "until": ("signal.until", "written time"),
    "target": ("target", "text"),
}
"""The columns of the views that people see: where in the state each is, and what."""


def _column(kind: Kind, path: str, what: str) -> str:
    if kind == "sqlite":
        member = f"json_extract(state, '$.{path}')"
        return time_as(kind, member) if what == "time" else member
    keys = f"'{{{path.replace('.', ',')}}}'"
    if what == "json":
        return f"state::jsonb #> {keys}"
    member = f"(state::jsonb #>> {keys})"
    match what:
        case "number":
            return f"{member}::bigint"
        case "time":
            return time_as(kind, f"{member}::bigint")
        case "written time":
            return f"{member}::timestamptz"
        case _:
            return member


def make_tables(db: Any) -> None:
    """Make the tables and views in a new generation."""
    kind = kind_of(db)
    run(db, _TABLES)
    for view, columns, table, which in (
        ("schedules", _SCHEDULES, "schedule_rows", _column(kind, "status", "text") + " <> 'removed'"),
        ("parked_signals", _PARKED, "parked_rows", _column(kind, "signal.name", "text") + " IS NOT NULL"),
    ):
        shown = ", ".join(f"{_column(kind, *which_one)} AS {name}" for name, which_one in columns.items())
        run(db, f"CREATE VIEW {view} AS SELECT {shown}, partition FROM {table} WHERE {which}")


class StandingTable(Generic[S]):
    """Reads and writes the rows of one kind through a store's connection."""

    def __init__(
        self,
        db: Any,
        table: str,
        write: Callable[[S], dict[str, Any]],
        read: Callable[[str, dict[str, Any]], S],
        over: Callable[[S], bool],
    ) -> None:
        """``over``: whether it is not to be in memory."""
        self._db = db
        self._table = table
        self._kind: Final = kind_of(db)
        self._mark = PLACE[self._kind]
        self._write = write
        self._read = read
        self._over = over

    def write(self, partition: int, rows: Sequence[StandingRow[S]]) -> None:
        """Put these rows in the place of those that are there; those of what is forgotten go."""
        mark, cursor = self._mark, self._db.cursor()
        gone = [(row.id,) for row in rows if row.state is None]
        if gone:
            cursor.executemany(f"DELETE FROM {self._table} WHERE id = {mark}", gone)
        stand = [
            (row.id, partition, row.since, int(self._over(row.state)), _json(self._write(row.state)))
            for row in rows
            if row.state is not None
        ]
        if stand:
            cursor.executemany(
                f"INSERT INTO {self._table} VALUES ({mark}, {mark}, {mark}, {mark}, {mark}) ON CONFLICT (id) DO UPDATE "
                "SET since = excluded.since, over = excluded.over, state = excluded.state",
                held(self._kind, stand),
            )

    def rows(self, partition: int) -> Iterator[StandingRow[S]]:
        """Yield the rows of a partition that are not over, in the order of ``since``."""
        query = (
            f"SELECT id, since, state FROM {self._table} WHERE partition = {self._mark} AND over = 0 ORDER BY since, id"
        )
        for its_id, since, state in self._db.execute(query, (partition,)):
            yield StandingRow(its_id, since, self._read(its_id, from_json(state)))

    def get(self, its_id: str) -> StandingRow[S] | None:
        """Return the row of one."""
        query = f"SELECT since, state FROM {self._table} WHERE id = {self._mark}"
        found = self._db.execute(query, (its_id,)).fetchone()
        return None if found is None else StandingRow(its_id, found[0], self._read(its_id, from_json(found[1])))


def schedule_table(db: Any) -> StandingTable[Schedule]:
    """Return the table of schedules."""
    return StandingTable(db, "schedule_rows", _of_schedule, _schedule, lambda schedule: schedule.removed)


def parked_table(db: Any) -> StandingTable[Parked | Ended]:
    """Return the table of parked signals."""
    return StandingTable(db, "parked_rows", _of_parked, _parked, lambda _: False)


def _json(members: dict[str, Any]) -> str:
    # Values came from a log or from a caller, who may write the same ones differently: rows have one way.
    return to_json(from_json(orjson.dumps(members))).decode()


def _of_schedule(schedule: Schedule) -> dict[str, Any]:
    return {
        "seq": schedule.seq,
        "set": set_members(schedule.set),
        "created_us": schedule.created_us,
        "paused": schedule.paused,
        "removed": schedule.removed,
        "next_us": schedule.next_us,
        "last_due_us": schedule.last_due_us,
        "decided_us": schedule.decided_us,
        "made": schedule.made,
        "runs": schedule.runs,
        "fired": schedule.fired,
        "skipped": schedule.skipped,
        "problem": schedule.problem,
        # For people:
        "status": schedule.status,
        "due_us": schedule.due_us,
        "last_run": schedule.last_run,
    }


def _schedule(its_id: str, members: dict[str, Any]) -> Schedule:
    del members["status"], members["due_us"], members["last_run"]
    its_set, runs = read_set(members.pop("set")), tuple(cast(list[str], members.pop("runs")))
    return Schedule(id=its_id, set=its_set, runs=runs, **members)


def _of_parked(parked: Parked | Ended) -> dict[str, Any]:
    if isinstance(parked, Ended):
        return {"seq": parked.seq, "ended_us": parked.ended_us, "status": parked.status}
    return {
        "seq": parked.seq,
        "signal": parked_members(parked.signal),
        "parked_us": parked.parked_us,
        "updated_us": parked.updated_us,
        "status": parked.status,
        "target": parked.target,
        "passed": parked.passed,
        "problem": parked.problem,
    }


def _parked(its_id: str, members: dict[str, Any]) -> Parked | Ended:
    if "signal" not in members:
        return Ended(id=its_id, **members)
    signal, passed = read_parked(members.pop("signal")), tuple(cast(list[str], members.pop("passed")))
    return Parked(id=its_id, signal=signal, passed=passed, **members)
