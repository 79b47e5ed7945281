"""Compares what stands in a projection's tables with a fresh fold of the log up to the same positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from gasoline_es.errors import LogCorrupt, LogError, PositionMoved, ProjectionError
from gasoline_es.log.port import Log
from projections.alike import Row, gone_rows, same_but_for_places
from projections.building import OnProgress, Progress
from projections.definition import ENGINES, Projection, setup_of
from projections.known import stands
from projections.partition_fold import PartitionFold
from projections.stores.port import AnyStore, Feed, Meta, Position, Stop, Table

_NO_ROW: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that is not alike. Rows are by column; None: there is no such row, or no such table.

    ``key``: of the row, empty in a table without a primary key.
    """

    table: str
    key: Mapping[str, Any]
    stored: Mapping[str, Any] | None
    fresh: Mapping[str, Any] | None
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a comparison: of how many records, tables and rows, and the first difference if there is one."""

    projection: str
    generation: int
    records: int
    tables: int
    rows: int
    difference: Difference | None
    stopped: int = 0
    """In how many feeds it stands before an event: what comes from there on is in neither of the two."""


def verify(log: Log, store: AnyStore, projection: Projection, on_progress: OnProgress | None = None) -> Verdict:
    """Fold the log anew, up to exactly where the stored tables stand, and compare all tables row by row.

    Partitions are folded whole, the last one first: tables that depend on their order come out otherwise than where they were
    folded side by side. Nothing is changed; others may go on folding.

    Raises: ProjectionNotBuilt. ProjectionError: it was built by another version, or the log does not know where it stands.
    ProjectionStopped: an event that was applied once cannot be any more.
    """
    name = projection.name
    with store.snapshot(name) as stored:
        state, why = stands(log, stored.meta, stored.positions, projection.version)
        if state != "usable":
            what = "with this log" if state in ("unknown", "foreign") else "with what this code makes of the log"
            raise ProjectionError(
                f"projection {name!r} cannot be compared {what}: {why}", projection=name, store=store.url
            )
        _require_topics(log, projection, stored.positions)
        scratch = store.scratch(name, projection.version, setup_of(projection))
        try:
            total = sum(position.next_offset for position in stored.positions.values())
            done = passed = 0
            for feed, position in sorted(stored.positions.items(), reverse=True):
                fold = PartitionFold(projection, scratch, log, feed.partition)
                while folded := fold.step(feed, position.next_offset):
                    done += folded
                    if on_progress is not None:
                        on_progress(Progress(name, passed + fold.position(feed).next_offset, total))
                passed += position.next_offset  # of what is behind the last record of a feed nothing is left
                if on_progress is not None:
                    on_progress(Progress(name, passed, total))
                _require_same(log, fold.position(feed), feed, position, name)
            tables, rows, difference = _compare(store, stored.db, scratch.db, gone_rows(log) if name == ENGINES else {})
            stopped = len(_stops(store, stored.meta))
            return Verdict(name, stored.meta.generation, done, tables, rows, difference, stopped)
        finally:
            scratch.close()


def _stops(store: AnyStore, meta: Meta) -> Mapping[Feed, Stop]:
    """Return where a generation stands still, as of now; a moment later another may have taken its place."""
    for info in store.generations(meta.projection):
        if info.meta.generation == meta.generation:
            return info.stops
    return {}


def _require_topics(log: Log, projection: Projection, positions: Mapping[Feed, Position]) -> None:
    """Refuse code that folds other topics than the tables were folded from. Raises: ProjectionError."""
    folded = {feed.topic for feed in positions} - set(projection.topics_of(log.namespace))
    if folded:
        raise ProjectionError(
            f"projection {projection.name!r} was built of topics that this code does not fold: {', '.join(sorted(folded))}. "
            f"Raise its version, so that it is built anew",
            projection=projection.name,
        )


def _require_same(log: Log, reached: Position, feed: Feed, position: Position, name: str) -> None:
    same = (reached.offset, reached.digest) == (position.offset, position.digest)
    if not same and not (reached.offset < position.offset and _removed(log, feed, position)):
        raise PositionMoved(
            f"projection {name!r}: the log changed while it was compared: {feed} is at {reached} and not at {position}",
            projection=name,
            generation=0,
            topic=feed.topic,
            partition=feed.partition,
            stored=position.offset,
            expected=reached.offset,
        )


def _removed(log: Log, feed: Feed, position: Position) -> bool:
    """Whether the cleaner has removed the record at which a projection stands. Raises: LogCorrupt."""
    try:
        _ = log.read_at(feed.topic, feed.partition, [position.offset], [position.place])
    except LogCorrupt:
        raise
    except LogError:
        return True
    return False


def _compare(
    store: AnyStore, stored: Any, fresh: Any, gone: Mapping[str, Callable[[Row], bool]]
) -> tuple[int, int, Difference | None]:
    """Return how many tables and rows were looked at, and the first difference."""
    known = {table.name: table for table in store.tables(stored)}
    made = {table.name: table for table in store.tables(fresh)}
    rows = 0
    names = sorted(known.keys() | made.keys())
    for count, name in enumerate(names, start=1):
        left, right = known.get(name), made.get(name)
        if left is None or right is None:
            where = "a fresh fold makes" if left is None else "the store has"
            return count, rows, Difference(name, {}, None, None, f"only {where} the table")
        if left != right:
            those, these = ", ".join(left.columns), ", ".join(right.columns)
            reason = f"its columns are {those} in the store, and {these} in a fresh fold"
            return count, rows, Difference(name, {}, None, None, reason)
        those_left, these_left = (_left(store.rows(db, left), left, gone.get(name)) for db in (stored, fresh))
        for one, other in zip_longest(those_left, these_left, fillvalue=_NO_ROW):
            rows += 1
            if (one != other or _kinds(one) != _kinds(other)) and not (gone and _moved(left, one, other)):
                return count, rows, _difference(store, stored, fresh, left, one, other)
    return len(names), rows, None


def _left(rows: Iterator[Any], table: Table, gone: Callable[[Row], bool] | None) -> Iterator[Any]:
    """Yield the rows that are compared."""
    if gone is None:
        return rows
    return (row for row in rows if not gone(dict(zip(table.columns, row, strict=True))))


def _moved(table: Table, one: Any, other: Any) -> bool:
    """Whether rows of the engine's differ only in where records lie."""
    left, right = _row(table, one), _row(table, other)
    return left is not None and right is not None and same_but_for_places(table.name, left, right)


def _kinds(row: Any) -> list[type]:
    """1 and 1.0 are equal, and not alike."""
    return [] if row is _NO_ROW else [type(value) for value in row]


def _difference(store: AnyStore, stored: Any, fresh: Any, table: Table, one: Any, other: Any) -> Difference:
    """Say of two rows that stand at the same place what is different: a row is missing on one side, or its values are."""
    left, right = _row(table, one), _row(table, other)
    if not table.key:
        return Difference(table.name, {}, left, right, "their rows differ")
    left_key, right_key = _key(table, left), _key(table, right)
    if left is not None and left_key == right_key:
        return Difference(table.name, left_key, left, right, "the rows differ")
    if left is not None and not store.has_key(fresh, table, tuple(left_key.values())):
        return Difference(table.name, left_key, left, None, "only the store has the row")
    assert right is not None, "rows in order of their key, of which one side has more"
    return Difference(table.name, right_key, None, right, "only a fresh fold has the row")


def _row(table: Table, row: Any) -> Mapping[str, Any] | None:
    return None if row is _NO_ROW else dict(zip(table.columns, row, strict=True))


def _key(table: Table, row: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {} if row is None else {column: row[column] for column in table.key}
