"""The newest record of a many-writer topic's partition: each writer's segments are read from their ends, no further than asked.

Within a segment the sparse index tells where to begin; each stretch between two of its entries is read forward. A segment
that is complete is read once: what was found in it, if anything of the topic is there, is how new its newest record is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from gasoline_es.log.file.bodies import Body, decode_records
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.index import SPACING_BYTES
from gasoline_es.log.file.lines import BatchHeader, Place, SectionHeader
from gasoline_es.log.file.ownership import Ownership
from gasoline_es.log.file.recent import Recent
from gasoline_es.log.file.scan import BatchScan, Damage, Window, read_section
from gasoline_es.log.file.segments import Segment
from gasoline_es.log.port import Record, Wanted

_REMEMBERED_MAX: Final = 100_000


class Newest:
    """Looks for records backwards. Its owner refreshed the catalog just before."""

    def __init__(self, catalog: Catalog, ownership: Ownership, lock: AbstractContextManager[Any]) -> None:
        self._catalog: Final = catalog
        self._ownership: Final = ownership
        self._lock: Final = lock
        self._passed: Final[Recent[tuple[str, int, int], int]] = Recent(_REMEMBERED_MAX)
        """Topic, partition and number of a complete segment → the time of its newest record there; 0: it has none."""

    def find(self, topic: str, partition: int, since_us: int, wanted: Wanted) -> Record | None:
        """Return the record of the latest time, of those at or after ``since_us`` that are wanted. Raises: LogCorrupt."""
        best: Record | None = None
        with self._lock:
            # Copies: to ask whether a section counts may discover new segments.
            # The last writers first: what is found there tells of most others that they have nothing newer.
            for numbers in [list(numbers) for numbers in reversed(self._catalog.by_writer.values())]:
                found = self._in_writer(numbers, topic, partition, since_us, wanted)
                if found is not None and (best is None or found.time_us > best.time_us):
                    # From the others only what is newer is of interest.
                    best, since_us = found, found.time_us
        return best

    def _in_writer(
        self, numbers: list[int], topic: str, partition: int, since_us: int, wanted: Wanted
    ) -> Record | None:
        for number in reversed(numbers):
            segment = self._catalog.segments[number]
            assert segment.header is not None
            if segment.newest_us is not None and 0 < segment.newest_us < since_us:
                return None
            key = (topic, partition, number)
            last_us = self._passed.get(key) if segment.finished else None
            if last_us is None or last_us >= since_us:
                last_us, all_decided = 0, True
                for records, decided in self._backwards(segment, topic, partition):
                    all_decided = all_decided and decided
                    last_us = last_us or max((record.time_us for record in records), default=0)
                    for record in reversed(records):
                        if record.time_us >= since_us and wanted(record):
                            return record
                    if records and records[-1].time_us < since_us:
                        break
                if segment.damage is not None:
                    raise segment.damage  # it may have held what is looked for
                if segment.finished and all_decided and self._passed.get(key) is None:
                    self._passed.put(key, last_us)
            if 0 < last_us < since_us or segment.header.started_us < since_us:
                return None  # what the writer wrote before is older still
        return None

    def _backwards(self, segment: Segment, topic: str, partition: int) -> Iterator[tuple[list[Record], bool]]:
        """Yield the counted records of the topic's partition, stretch by stretch, the last one first.

        With each, whether it is decided of all records in it whether they count.
        """
        if not segment.may_hold(topic, partition):
            return
        with self._catalog.files.reading(segment) as window:
            places = self._catalog.indexes.of(segment, window).tails.get((topic, partition))
            if places is None:
                return
            key, end = (topic, partition), window.limit
            for start in reversed(list(places.positions)):
                try:
                    yield self._stretch(segment, window, start, end, key)
                except Damage as damage:
                    raise self._catalog.files.corrupt_error(segment, damage) from damage
                end = start

    def _stretch(
        self, segment: Segment, window: Window, start: int, end: int, key: tuple[str, int]
    ) -> tuple[list[Record], bool]:
        """Read the batches from the byte ``start`` up to ``end``. Raises: Damage."""
        records: list[Record] = []
        decided = True
        for header in BatchScan(window, start, None, None).headers(end):
            if header.position - start >= SPACING_BYTES:
                break  # a batch of this topic beyond would have an entry of its own in the index
            position = header.body
            for section in header.sections:
                if any((group.topic, group.partition) == key for group in section.groups):
                    counts = self._counts(segment, header, section)
                    decided = decided and counts is not None
                    if counts:
                        records += _of_section(read_section(window, header, section, position), section, key)
                position += section.bytes
        return records, decided

    def _counts(self, segment: Segment, header: BatchHeader, section: SectionHeader) -> bool | None:
        if section.epoch is None:
            return True
        assert segment.header is not None
        place = Place(segment.number, header.number)
        return self._ownership.counts(segment.header.namespace, section.partition, section.epoch, place)


def _of_section(body: Body, section: SectionHeader, key: tuple[str, int]) -> list[Record]:
    records: list[Record] = []
    for group, line, _ in section.pieces():
        if (group.topic, group.partition) == key:
            records += decode_records(body, line, group, 0, group.size)
    return records
