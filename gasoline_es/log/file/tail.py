"""Tails: reading a many-writer topic's partition forward over all segments, from a position that can be stored.

A position, as JSON::

    {"finished":[[1,40]],"at":{"41":[4711,0],"43":[17,2]}}

``finished``: ranges of segments, both ends included, that were read to their ends and get nothing more. ``at``: for each other
segment that was read from, the batch to go on with and how many of its record lines were passed already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from gasoline_es.errors import LogCorrupt, LogError
from gasoline_es.log.file.bodies import Body, decode_records
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.lines import BatchHeader, Place, SectionHeader
from gasoline_es.log.file.ownership import Ownership
from gasoline_es.log.file.scan import Damage, Window, read_section
from gasoline_es.log.file.segments import Segment
from gasoline_es.log.port import Named, NamingTail, Position, Record

_PENDING_MAX: Final = 4096


def passed(position: Mapping[str, Any], segment: int, batch: int, number: int) -> bool:
    """Whether a reader that stands there has passed a record; ``number``: which of its batch's, as it was written.

    Raises: LogError: that is not a position.
    """
    try:
        if any(first <= segment <= last for first, last in position.get("finished", ())):
            return True
        at = position.get("at", {}).get(str(segment))
        return at is not None and (batch, number) < (at[0], at[1])
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise LogError(f"not a position in a topic of this log: {position!r}", position=position) from error


@dataclass(slots=True)
class _Cursor:
    """How far one segment was read. Everything up to ``known`` is either consumed or in ``pending``; beyond: not looked at."""

    batch: int
    record: int
    pending: deque[BatchHeader] = field(default_factory=deque[BatchHeader])
    version: int = 0
    """Of the segment's bytes that ``pending`` is about."""
    behind: bool = True
    """Not fed by the catalog: what comes next is looked up in the index."""


class FileTail(NamingTail):
    """A tail over the file log. The catalog feeds it new batches; older ones it finds by the index."""

    def __init__(
        self,
        topic: str,
        partition: int,
        position: Position | None,
        catalog: Catalog,
        ownership: Ownership,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._key: Final = (topic, partition)
        self._catalog: Final = catalog
        self._ownership: Final = ownership
        self._lock: Final = lock
        self._finished: list[list[int]] = []
        self._cursors: dict[int, _Cursor] = {}
        self._open: list[int] = []
        """Segments that are not finished for this tail, ascending."""
        self._highest = 0
        self._names: list[str] | None = None
        """Of the records that a poll takes, if they are asked for: segment, batch, and number in it. No segment changes."""
        self._load(position)

    def _load(self, position: Position | None) -> None:
        members = cast(dict[str, Any], position or {})
        try:
            self._finished = [[int(first), int(last)] for first, last in members.get("finished", [])]
            for number, (batch, record) in members.get("at", {}).items():
                self._cursors[int(number)] = _Cursor(int(batch), int(record))
        except (TypeError, ValueError, AttributeError) as error:
            raise LogError(f"not a position in a topic of this log: {members!r}", position=members) from error
        for number, cursor in self._cursors.items():
            if number <= self._catalog.highest:
                self._require(number, cursor.batch)
        named = [last for _, last in self._finished] + list(self._cursors)
        if named and max(named) > self._catalog.highest:
            raise LogError(
                f"a position names segment {max(named)}, but the log ends with {self._catalog.highest}: "
                "it is of another log",
                position=members,
            )

    def _require(self, number: int, batch: int) -> None:
        """Raises: LogCorrupt if the log does not hold what the position says was read."""
        segment = self._catalog.segments.get(number)
        if segment is None or (segment.finished and segment.damage is None and batch > segment.batch + 1):
            at = 0 if segment is None else segment.position
            reason = "its file is missing" if segment is None else f"it ends before batch {batch}"
            raise LogCorrupt(
                f"segment {number} of the log is damaged at byte {at}: {reason}, and a reader of "
                f"{self._key[0]!r}, partition {self._key[1]}, had read that far",
                segment=number,
                position=at,
                reason=reason,
            )

    def heard(self, segment: Segment, header: BatchHeader) -> None:
        """Take note of a new batch with records for this tail."""
        cursor = self._cursors.get(segment.number)
        if cursor is None or cursor.behind:
            return
        if len(cursor.pending) >= _PENDING_MAX:
            # Nobody polls. What waits is forgotten and found again by the index, so that the queue stays bounded.
            cursor.pending.clear()
            cursor.behind = True
            return
        cursor.pending.append(header)

    @property
    def position(self) -> Position:
        """How far the polls have come."""
        at: dict[str, list[int]] = {}
        for number in self._open:
            cursor = self._cursors[number]
            if cursor.batch or cursor.record:
                at[str(number)] = [cursor.batch, cursor.record]
        return Position({"finished": [list(span) for span in self._finished], "at": at})

    def poll(self, max_records: int = 10_000) -> list[Record]:
        """Return the records published since the last poll."""
        records: list[Record] = []
        with self._lock:
            self._catalog.refresh()
            self._discover()
            waiting: set[str] = set()
            for number in list(self._open):
                segment = self._catalog.segments[number]
                if segment.writer in waiting:
                    continue
                try:
                    if not self._read(segment, records, max_records):
                        waiting.add(segment.writer)
                    elif segment.damage is not None:
                        raise segment.damage
                except LogCorrupt:
                    if records:
                        break
                    raise
                if len(records) >= max_records:
                    break
        return records

    def poll_named(self, max_records: int) -> list[Named]:
        """Do the same, and name each record."""
        names = self._names = []
        try:
            records = self.poll(max_records)
        finally:
            self._names = None
        return [Named(name, record) for name, record in zip(names, records, strict=True)]

    def waiting(self) -> int:
        """Return how many records no poll has returned."""
        with self._lock:
            self._catalog.refresh()
            self._discover()
            return sum(self._waiting_in(self._catalog.segments[number]) for number in self._open)

    def _waiting_in(self, segment: Segment) -> int:
        cursor, count = self._cursors[segment.number], 0
        if segment.header is None or not (cursor.behind or cursor.pending):
            return 0
        with self._catalog.files.reading(segment) as window:
            for header in self._ahead(segment, cursor, window):
                passed = 0
                taken = cursor.record if header.number == cursor.batch else 0
                for section in header.sections:
                    for group, _, number in section.pieces():
                        if (group.topic, group.partition) == self._key:
                            count += min(group.size, max(0, passed + number + group.size - taken))
                    passed += section.record_count
        return count

    def skip(self) -> None:
        """Pass everything that is published now, without reading it."""
        with self._lock:
            self._catalog.refresh()
            self._discover()
            for number in list(self._open):
                segment, cursor = self._catalog.segments[number], self._cursors[number]
                cursor.pending.clear()
                cursor.behind = False
                if segment.header is not None and segment.batches:
                    cursor.batch, cursor.record = segment.batch + 1, 0
                if segment.finished and segment.damage is None:
                    self._finish(number)

    def _discover(self) -> None:
        while self._highest < self._catalog.highest:
            self._highest += 1
            number = self._highest
            if (passed := next((last for first, last in self._finished if first <= number <= last), 0)) > 0:
                self._highest = min(passed, self._catalog.highest)  # at once: they may be as many as the log is old
            elif number in self._catalog.segments:
                self._open.append(number)
                self._cursors.setdefault(number, _Cursor(0, 0))

    def _read(self, segment: Segment, records: list[Record], max_records: int) -> bool:
        """Take what one segment has. False: it holds records that are undecided, or did not fit any more."""
        cursor = self._cursors[segment.number]
        if segment.header is not None and (cursor.behind or cursor.pending):
            with self._catalog.files.reading(segment) as window:
                for header in self._ahead(segment, cursor, window):
                    if not self._take(segment, header, cursor, window, records, max_records):
                        return False
                    if cursor.pending and cursor.pending[0] is header:
                        cursor.pending.popleft()
        cursor.behind = False
        if segment.header is not None and segment.batches:
            cursor.batch, cursor.record = segment.batch + 1, 0
        if segment.finished and segment.damage is None:
            self._finish(segment.number)
        return True

    def _ahead(self, segment: Segment, cursor: _Cursor, window: Window) -> Iterator[BatchHeader]:
        """Yield the batches from the cursor on that have records for this tail (and, when behind, some that have none)."""
        if cursor.version != segment.version:
            # What waits lies elsewhere in the file that the cleaner has put there. The batches and their records have the
            # numbers that they had.
            cursor.pending.clear()
            cursor.version, cursor.behind = segment.version, True
        if not cursor.behind:
            yield from list(cursor.pending)
            return
        if not segment.may_hold(*self._key):
            return
        places = self._catalog.indexes.of(segment, window).tails.get(self._key)
        if places is None:
            return
        for header in self._catalog.files.headers(segment, window, places.at(cursor.batch)):
            if header.number >= cursor.batch:
                yield header

    def _take(
        self,
        segment: Segment,
        header: BatchHeader,
        cursor: _Cursor,
        window: Window,
        records: list[Record],
        max_records: int,
    ) -> bool:
        """Take one batch's records; False if it was left at an undecided section or at ``max_records``."""
        if header.number > cursor.batch:
            cursor.batch, cursor.record = header.number, 0
        passed = 0
        position = header.body
        for section in header.sections:
            count = section.record_count
            if cursor.record < passed + count and any(
                (group.topic, group.partition) == self._key for group, _, _ in section.pieces()
            ):
                counts = self._counts(segment, header, section)
                if counts is None:
                    return False
                if counts:
                    try:
                        body = read_section(window, header, section, position)
                    except Damage as damage:
                        raise self._catalog.files.corrupt_error(segment, damage) from damage
                    if not self._take_section(segment, section, body, passed, cursor, records, max_records):
                        return False
            passed += count
            position += section.bytes
            cursor.record = max(cursor.record, passed)
        cursor.batch, cursor.record = header.number + 1, 0
        return True

    def _take_section(
        self,
        segment: Segment,
        section: SectionHeader,
        body: Body,
        passed: int,
        cursor: _Cursor,
        records: list[Record],
        max_records: int,
    ) -> bool:
        for group, line, start in section.pieces():
            if (group.topic, group.partition) == self._key and cursor.record < passed + start + group.size:
                first = max(0, cursor.record - passed - start)
                last = min(group.size, first + max_records - len(records))
                records.extend(decode_records(body, line, group, first, last))
                if self._names is not None:
                    numbers = range(passed + start + first, passed + start + last)
                    self._names.extend(f"{segment.number}.{cursor.batch}.{number}" for number in numbers)
                cursor.record = passed + start + last
                if last < group.size:
                    return False
        return True

    def _counts(self, segment: Segment, header: BatchHeader, section: SectionHeader) -> bool | None:
        if section.epoch is None:
            return True
        assert segment.header is not None
        place = Place(segment.number, header.number)
        return self._ownership.counts(segment.header.namespace, section.partition, section.epoch, place)

    def _finish(self, number: int) -> None:
        self._open.remove(number)
        del self._cursors[number]
        spans = sorted([*self._finished, [number, number]])
        merged = [spans[0]]
        for first, last in spans[1:]:
            if first <= merged[-1][1] + 1:
                merged[-1][1] = max(merged[-1][1], last)
            else:
                merged.append([first, last])
        self._finished = merged
