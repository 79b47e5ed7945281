"""The rows of sequences of stored events: where each lies, and by what it is found. No payloads.

Rows are only ever added, numbered as the events are. So whoever asks up to a number that is stored gets the same whatever
others have added since.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import merge
from typing import Any, Final

from gasoline_es.core.stored_events import DecisionStored, EventStored, Stored
from projections.database import PLACE, held, kind_of, run

_TABLES: Final = """
CREATE TABLE stored_record_rows (partition INTEGER NOT NULL, sequence TEXT NOT NULL, first BIGINT NOT NULL,
    record_offset BIGINT NOT NULL, place BIGINT NOT NULL, PRIMARY KEY (partition, sequence, first)){compact};
CREATE TABLE stored_version_rows (partition INTEGER NOT NULL, sequence TEXT NOT NULL, originator TEXT NOT NULL,
    version BIGINT NOT NULL, number BIGINT NOT NULL, PRIMARY KEY (partition, sequence, originator, version, number)){compact};
CREATE TABLE stored_kind_rows (partition INTEGER NOT NULL, sequence TEXT NOT NULL, kind TEXT NOT NULL,
    number BIGINT NOT NULL, PRIMARY KEY (partition, sequence, kind, number)){compact};
CREATE TABLE stored_tag_rows (partition INTEGER NOT NULL, sequence TEXT NOT NULL, tag TEXT NOT NULL,
    number BIGINT NOT NULL, PRIMARY KEY (partition, sequence, tag, number)){compact};
CREATE TABLE stored_end_rows (partition INTEGER NOT NULL, sequence TEXT NOT NULL, number BIGINT NOT NULL,
    PRIMARY KEY (partition, sequence));
CREATE TABLE tracking_rows (partition INTEGER NOT NULL, application TEXT NOT NULL, notification_id BIGINT NOT NULL,
    PRIMARY KEY (partition, application));
"""

_TAGS_COUNTED: Final = 1_000
"""Of several tags the one that the fewest have leads; more than so many are not told apart."""
_DENSE: Final = 8
"""Numbers that are so many times closer than that are looked up in one go."""


def make_tables(db: Any) -> None:
    """Make the tables in a new generation."""
    run(db, _TABLES.format(compact=" WITHOUT ROWID" if kind_of(db) == "sqlite" else ""))


class SequenceTable:
    """Reads and writes rows through a store's connection. Of what is read, only what is numbered up to ``base``."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._kind: Final = kind_of(db)
        self._mark = PLACE[self._kind]

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, partition: int, records: Sequence[tuple[int, int, Stored]]) -> None:
        """Add what these records hold, each with its offset and place. What is there already is the same."""
        located: list[tuple[Any, ...]] = []
        versions: list[tuple[Any, ...]] = []
        kinds: list[tuple[Any, ...]] = []
        tags: list[tuple[Any, ...]] = []
        ends: dict[str, int] = {}
        tracked: dict[str, int] = {}
        for offset, place, (sequence, first, _, _, events) in records:
            located.append((partition, sequence, first, offset, place))
            ends[sequence] = first + len(events) - 1
            for number, data in enumerate(events, first):
                if isinstance(data, EventStored):
                    versions.append((partition, sequence, data.originator, data.version, number))
                    kinds.append((partition, sequence, data.topic, number))
                elif isinstance(data, DecisionStored):
                    kinds.append((partition, sequence, data.type, number))
                    tags += [(partition, sequence, tag, number) for tag in frozenset(data.tags)]
                else:
                    tracked[data.application] = data.notification_id
        self._add("stored_record_rows", located)
        self._add("stored_version_rows", versions)
        self._add("stored_kind_rows", kinds)
        self._add("stored_tag_rows", tags)
        self._put("stored_end_rows", "sequence", "number", [(partition, *one) for one in ends.items()])
        self._put("tracking_rows", "application", "notification_id", [(partition, *one) for one in tracked.items()])

    def _add(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            marks = ", ".join([self._mark] * len(rows[0]))
            statement = f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT DO NOTHING"
            self._db.cursor().executemany(statement, held(self._kind, rows))

    def _put(self, table: str, key: str, column: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            marks = ", ".join([self._mark] * 3)
            statement = (
                f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT (partition, {key}) DO UPDATE SET "
                f"{column} = excluded.{column}"
            )
            self._db.cursor().executemany(statement, held(self._kind, rows))

    # --- reading ------------------------------------------------------------------------------------------------------

    def ends(self, partition: int) -> dict[str, int]:
        """Return the number of the last event of each sequence."""
        return dict(self._all("SELECT sequence, number FROM stored_end_rows WHERE partition = ?", (partition,)))

    def tracked(self, partition: int) -> dict[str, int]:
        """Return up to which notification each application's were processed."""
        query = "SELECT application, notification_id FROM tracking_rows WHERE partition = ?"
        return dict(self._all(query, (partition,)))

    def first_known(
        self, partition: int, sequence: str, originator: str, versions: Collection[int], base: int
    ) -> int | None:
        """Return one of these versions of an originator that is there, None if none is."""
        query = (
            "SELECT version FROM stored_version_rows WHERE partition = ? AND sequence = ? AND originator = ? "
            "AND version BETWEEN ? AND ? AND number <= ?"
        )
        given = (partition, sequence, originator, min(versions), max(versions), base)
        return next((version for (version,) in self._all(query, given) if version in versions), None)

    def of_originator(
        self,
        partition: int,
        sequence: str,
        originator: str,
        above: int | None,
        up_to: int | None,
        base: int,
        *,
        newest_first: bool,
        limit: int | None,
    ) -> list[tuple[int, int]]:
        """Return versions and numbers of an originator's events in order of version, with ``above < version <= up_to``."""
        query = (
            "SELECT version, number FROM stored_version_rows WHERE partition = ? AND sequence = ? AND originator = ? "
            "AND number <= ?"
        )
        given: list[Any] = [partition, sequence, originator, base]
        for bound, comparison in ((above, ">"), (up_to, "<=")):
            if bound is not None:
                query += f" AND version {comparison} ?"
                given.append(bound)
        order = " DESC" if newest_first else ""
        query += f" ORDER BY version{order}, number{order}"
        return self._all(query + _limited(limit, given), given)

    def of_kinds(
        self, partition: int, sequence: str, kinds: Sequence[str], start: int, stop: int, limit: int
    ) -> list[int]:
        """Return at most ``limit`` numbers with ``start <= number < stop`` of events of one of these kinds, ascending."""
        found = [self._of_kind(partition, sequence, kind, start, stop - 1, limit) for kind in dict.fromkeys(kinds)]
        return list(merge(*found))[:limit]

    def _of_kind(self, partition: int, sequence: str, kind: str, start: int, last: int, limit: int | None) -> list[int]:
        query = (
            "SELECT number FROM stored_kind_rows WHERE partition = ? AND sequence = ? AND kind = ? "
            "AND number BETWEEN ? AND ? ORDER BY number"
        )
        given: list[Any] = [partition, sequence, kind, start, last]
        return [number for (number,) in self._all(query + _limited(limit, given), given)]

    def of_item(
        self,
        partition: int,
        sequence: str,
        types: Sequence[str],
        tags: Sequence[str],
        after: int,
        base: int,
        limit: int | None,
    ) -> list[int]:
        """Return the numbers above ``after`` of what has all the tags and one of the types, ascending; at most ``limit``."""
        if not tags:
            found = [self._of_kind(partition, sequence, kind, after + 1, base, limit) for kind in dict.fromkeys(types)]
            return list(merge(*found))[:limit]
        leading, *others = self._rarest_first(partition, sequence, list(dict.fromkeys(tags)), after)
        query = (
            "SELECT number FROM stored_tag_rows t WHERE partition = ? AND sequence = ? AND tag = ? "
            "AND number > ? AND number <= ?"
        )
        given: list[Any] = [partition, sequence, leading, after, base]
        for tag in others:
            query += (
                " AND EXISTS (SELECT 1 FROM stored_tag_rows o WHERE o.partition = t.partition AND o.sequence = t.sequence "
                "AND o.tag = ? AND o.number = t.number)"
            )
            given.append(tag)
        if types:
            query += (
                " AND EXISTS (SELECT 1 FROM stored_kind_rows k WHERE k.partition = t.partition AND k.sequence = t.sequence "
                f"AND k.kind IN ({', '.join('?' * len(types))}) AND k.number = t.number)"
            )
            given += types
        query += " ORDER BY number"
        return [number for (number,) in self._all(query + _limited(limit, given), given)]

    def _rarest_first(self, partition: int, sequence: str, tags: list[str], after: int) -> list[str]:
        if len(tags) == 1:
            return tags
        query = (
            "SELECT count(*) FROM (SELECT 1 FROM stored_tag_rows WHERE partition = ? AND sequence = ? AND tag = ? "
            f"AND number > ? LIMIT {_TAGS_COUNTED}) AS counted"
        )
        counts = {tag: self._all(query, (partition, sequence, tag, after))[0][0] for tag in tags}
        return sorted(tags, key=lambda tag: counts[tag])

    def located(self, partition: int, sequence: str, seqs: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return the records that hold these ascending numbers, and maybe others between: first number, offset, place."""
        first = self._record(partition, sequence, seqs[0])
        if seqs[-1] - seqs[0] < _DENSE * len(seqs):
            query = (
                "SELECT first, record_offset, place FROM stored_record_rows WHERE partition = ? AND sequence = ? "
                "AND first > ? AND first <= ? ORDER BY first"
            )
            return [first, *self._all(query, (partition, sequence, first[0], seqs[-1]))]
        found = [first]
        for seq in seqs[1:]:
            record = self._record(partition, sequence, seq)
            if record != found[-1]:
                found.append(record)
        return found

    def _record(self, partition: int, sequence: str, seq: int) -> tuple[int, int, int]:
        query = (
            "SELECT first, record_offset, place FROM stored_record_rows WHERE partition = ? AND sequence = ? "
            "AND first <= ? ORDER BY first DESC LIMIT 1"
        )
        ((first, offset, place),) = self._all(query, (partition, sequence, seq))
        return first, offset, place

    def _all(self, query: str, given: Sequence[Any]) -> list[Any]:
        if self._kind == "postgres":
            query = query.replace("?", self._mark)
        found: list[Any] = self._db.execute(query, given).fetchall()
        return found


def _limited(limit: int | None, given: list[Any]) -> str:
    if limit is None:
        return ""
    given.append(limit)
    return " LIMIT ?"
