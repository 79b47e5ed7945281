"""Reading a single-writer topic: along the chain of its partition's epochs, only what counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

from gasoline_es.errors import LogCorrupt, LogError
from gasoline_es.log.file.bodies import Body, decode_records, pack_place, unpack_place
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.chain import Link
from gasoline_es.log.file.horizon import Horizon
from gasoline_es.log.file.index import Places
from gasoline_es.log.file.lines import BatchHeader, Place, SectionHeader
from gasoline_es.log.file.ownership import Ownership
from gasoline_es.log.file.recent import Recent
from gasoline_es.log.file.scan import BatchScan, Damage, Window, read_section
from gasoline_es.log.file.segments import Segment
from gasoline_es.log.names import check_namespace
from gasoline_es.log.port import Offset, Record, horizon_moved

_HEADERS_MAX: Final = 1_024
_BODIES_BYTES_MAX: Final = 8 * 1024 * 1024


class _NotKept(Exception):
    """What is wanted is not in memory: the segment has to be opened."""


class Reader:
    """Reads of one handle. Looks things up under the handle's lock; reads published bytes, which never change, without."""

    def __init__(
        self, catalog: Catalog, ownership: Ownership, horizon: Horizon, lock: AbstractContextManager[Any]
    ) -> None:
        self._catalog: Final = catalog
        self._horizon: Final = horizon
        self._files: Final = catalog.files
        self._ownership: Final = ownership
        self._lock: Final = lock
        self._headers: Final = Recent[tuple[int, int], BatchHeader](_HEADERS_MAX)
        """Version of the segment and place of the batch → its header."""
        self._bodies: Final = Recent[tuple[int, int, int], Body](_BODIES_BYTES_MAX)

    def end(self, topic: str, partition: int) -> Offset:
        """Return the offset after the last counted record."""
        with self._lock:
            self._catalog.refresh()
            return Offset(self._ownership.view(_namespace(topic), partition).ends.get(topic, 0))

    def undecided(self, topic: str, partition: int) -> bool:
        """Return whether a taker has yet to say where the epoch below it ended, as of the last look."""
        with self._lock:
            return self._ownership.seen(_namespace(topic), partition).undecided

    def read(self, topic: str, partition: int, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        """Return an iterator over the counted records with ``start <= offset < stop``, as of this call."""
        with self._lock:
            self._catalog.refresh()
            view = self._ownership.view(_namespace(topic), partition)
            end = view.ends.get(topic, 0)
            horizon = self._horizon.of(topic, partition)
            broken = view.broken
            links = view.chain.down_to(topic, start) if broken is None else view.chain.all()
            if stop is not None and stop <= end:
                broken_at_end = None
            else:
                stop, broken_at_end = end, broken
        return self._read_under(horizon, topic, partition, start, stop, links, broken, broken_at_end)

    def _read_under(
        self, horizon: int, topic: str, partition: int, start: int, stop: int, *rest: Any
    ) -> Iterator[Record]:
        """Read, and look at the end whether what was read first has been taken back by what was gone when it was to be read.

        Raises: HorizonMoved.
        """
        yield from self._read(topic, partition, start, stop, *rest)
        now = self.horizon(topic, partition)
        if start < now != horizon:
            raise horizon_moved(topic, partition, start, now)

    def horizon(self, topic: str, partition: int) -> Offset:
        """Return the offset below which tombstones may be gone."""
        with self._lock:
            return Offset(self._horizon.of(topic, partition))

    def _read(
        self,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        links: Sequence[Link],
        broken: LogCorrupt | None,
        broken_at_end: LogCorrupt | None,
    ) -> Iterator[Record]:
        above = 0
        for index, link in enumerate(links):
            first = link.begin.offsets.get(topic, 0)
            after = 0 if link.begin.after is None else link.begin.after.epoch
            if after != above and start < first and broken is not None:
                raise broken  # an epoch between this one and the one before it cannot be read
            above = link.epoch
            below = links[index + 1].begin.offsets.get(topic, 0) if index + 1 < len(links) else stop
            if broken is None and (below <= start or first >= stop or first == below):
                continue
            # Where an epoch that cannot be read comes next, this one ended somewhere below the one after that.
            for records in self._read_link(topic, partition, start, min(stop, below), link):
                if records:
                    yield from records
                    assert records[-1].offset is not None
                    start = records[-1].offset + 1
                    if start >= stop:
                        break  # what follows in the segment is not asked for, and would cost its length
        if broken_at_end is not None:
            raise broken_at_end

    def _read_link(self, topic: str, partition: int, start: int, stop: int, link: Link) -> Iterator[list[Record]]:
        segments = self._segments(link)
        for segment in segments[self._first(segments, topic, partition, start, link) :]:
            if segment.header is None:
                raise segment.damage or self._files.corrupt_error(segment, Damage(0, "it has no header", "invalid"))
            last = link.limit.batch if segment.number == link.limit.segment else None
            opened = self._open(segment, topic, partition, start, link)
            if opened is not None:
                window, position = opened
                try:
                    for header in BatchScan(window, position, None, None).headers(window.limit):
                        if last is not None and header.number > last:
                            break
                        yield _records(window, segment, header, topic, partition, link.epoch, start, stop)
                except Damage as damage:
                    raise self._files.corrupt_error(segment, damage) from damage
                finally:
                    window.close()
            if segment.damage is not None and (last is None or last > segment.batch):
                raise segment.damage

    def _open(self, segment: Segment, topic: str, partition: int, start: int, link: Link) -> tuple[Window, int] | None:
        """Open a segment to read an epoch's records of a topic's partition from the offset ``start`` on; None: it has none."""
        with self._lock:
            if not segment.may_hold(topic, partition):
                return None
            window = self._files.window(segment)
            try:
                places = self._places(segment, topic, partition, link.epoch, window)
            except BaseException:
                window.close()
                raise
            if places is None:
                window.close()
                return None
            return window, places.at(start)

    def _places(
        self, segment: Segment, topic: str, partition: int, epoch: int, window: Window | None = None
    ) -> Places | None:
        if not segment.may_hold(topic, partition):
            return None
        return self._catalog.indexes.of(segment, window).runs.get((topic, partition, epoch))

    def _first(self, segments: Sequence[Segment], topic: str, partition: int, start: int, link: Link) -> int:
        """Return which of an epoch's segments is the first that can hold the offset ``start``.

        Looked for from the last one backwards, in growing steps: that is where nearly everybody reads, and each look costs
        the index of a segment.
        """
        low, floor, high, step = 0, 1, len(segments), 1
        with self._lock:
            if self._catalog.damaged or start <= link.begin.offsets.get(topic, 0):
                return 0
            while floor < high:
                # Up to `low` is what comes before the offset; from `high` on is what comes after it.
                at = probe = max((floor + high) // 2, high - step)
                places = self._places(segments[at], topic, partition, link.epoch)
                while places is None and at > floor:
                    at -= 1
                    places = self._places(segments[at], topic, partition, link.epoch)
                if places is not None and places.ordinals[0] > start:
                    high, step = at, 2 * step
                else:
                    low, floor = at if places is not None else low, probe + 1
        return low

    def _segments(self, link: Link) -> list[Segment]:
        with self._lock:
            numbers = {
                number
                for number in self._catalog.by_writer.get(link.writer, [])
                if link.start <= number <= link.limit.segment
            }
            if self._catalog.damaged:
                # One whose header is damaged or missing may be anybody's.
                numbers |= {
                    segment.number
                    for segment in self._catalog.ordered()
                    if segment.damage is not None
                    and segment.header is None
                    and segment.writer in ("", link.writer)
                    and link.start <= segment.number <= link.limit.segment
                }
            return [self._catalog.segments[number] for number in sorted(numbers)]

    def read_at(
        self, topic: str, partition: int, offsets: Sequence[int], places: Sequence[int] | None = None
    ) -> list[Record]:
        """Return the records at these ascending offsets. Raises: LogError if one is not there."""
        found = {} if places is None else self._read_places(topic, partition, offsets, places)
        self._search(topic, partition, [offset for offset in offsets if offset not in found], found)
        missing = [offset for offset in offsets if offset not in found]
        if missing:
            raise LogError(
                f"topic {topic!r}, partition {partition} has no record at offset {missing[:3]}",
                topic=topic,
                partition=partition,
                offsets=missing,
            )
        return [found[offset] for offset in offsets]

    def _search(self, topic: str, partition: int, wanted: Sequence[int], found: dict[int, Record]) -> None:
        index = 0
        while index < len(wanted):
            # Neighbours are read in one go; a gap is looked up by the index.
            last = index
            while last + 1 < len(wanted) and wanted[last + 1] - wanted[last] <= 64:
                last += 1
            run = set(wanted[index : last + 1])
            for record in self.read(topic, partition, wanted[index], wanted[last] + 1):
                if record.offset in run:
                    found[record.offset] = record
            index = last + 1

    def _read_places(
        self, topic: str, partition: int, offsets: Sequence[int], places: Sequence[int]
    ) -> dict[int, Record]:
        """Return what is where it was said to be; the rest has to be searched."""
        found: dict[int, Record] = {}
        by_place: dict[int, list[int]] = {}
        for offset, place in zip(offsets, places, strict=True):
            by_place.setdefault(place, []).append(offset)
        for place, wanted in by_place.items():
            number, position = unpack_place(place)
            with self._lock:
                segment = self._catalog.segments.get(number)
            if segment is None or segment.header is None or not segment.header.bytes <= position < segment.position:
                continue
            try:
                self._read_place(segment, position, place, topic, partition, set(wanted), found)
            except Damage:
                continue  # no batch starts there; or one that is damaged, which the search then says
        return found

    def _read_place(
        self,
        segment: Segment,
        position: int,
        place: int,
        topic: str,
        partition: int,
        wanted: set[int],
        found: dict[int, Record],
    ) -> None:
        key = segment.version, place
        header = self._headers.get(key)
        if header is not None:
            with suppress(_NotKept):
                self._take(segment, None, header, key, topic, partition, wanted, found)
                return
        with self._lock:
            window = self._files.window(segment)
            key = segment.version, place
        try:
            header = self._headers.get(key)
            if header is None:
                header = BatchScan(window, position, None, None).next(window.limit)
                if header is None:
                    return
                self._headers.put(key, header)
            self._take(segment, window, header, key, topic, partition, wanted, found)
        finally:
            window.close()

    def _take(
        self,
        segment: Segment,
        window: Window | None,
        header: BatchHeader,
        key: tuple[int, int],
        topic: str,
        partition: int,
        wanted: set[int],
        found: dict[int, Record],
    ) -> None:
        assert segment.header is not None
        namespace = _namespace(topic)
        if segment.header.namespace != namespace:
            return
        position = header.body
        for section in header.sections:
            if section.partition == partition and section.epoch is not None:
                with self._lock:
                    at = Place(segment.number, header.number)
                    counts = self._ownership.counts(namespace, partition, section.epoch, at)
                if counts:
                    body = self._body(window, header, section, position, key)
                    found.update(_wanted(body, section, key[1], topic, partition, wanted))
            position += section.bytes

    def _body(
        self, window: Window | None, header: BatchHeader, section: SectionHeader, position: int, at: tuple[int, int]
    ) -> Body:
        key = (*at, section.partition)
        body = self._bodies.get(key)
        if body is None:
            if window is None:
                raise _NotKept
            body = read_section(window, header, section, position)
            self._bodies.put(key, body, section.bytes)
        return body


def _wanted(
    body: Body, section: SectionHeader, place: int, topic: str, partition: int, wanted: set[int]
) -> Iterator[tuple[int, Record]]:
    for group, line, _ in section.pieces():
        if group.topic == topic and group.partition == partition and group.offset is not None:
            for offset in wanted:
                index = offset - group.offset
                if 0 <= index < group.size:
                    yield offset, decode_records(body, line, group, index, index + 1, place)[0]


def _records(
    window: Window,
    segment: Segment,
    header: BatchHeader,
    topic: str,
    partition: int,
    epoch: int,
    start: int,
    stop: int,
) -> list[Record]:
    place = pack_place(segment.number, header.position)
    records: list[Record] = []
    position = header.body
    for section in header.sections:
        if section.epoch == epoch and section.partition == partition:
            body: Body | None = None
            for group, at, _ in section.pieces():
                if group.topic == topic and group.offset is not None and group.partition == partition:
                    first = max(0, start - group.offset)
                    last = min(group.size, stop - group.offset)
                    if first < last:
                        if body is None:
                            body = read_section(window, header, section, position)
                        records += decode_records(body, at, group, first, last, place)
        position += section.bytes
    return records


def _namespace(topic: str) -> str:
    namespace = topic.partition(".")[0]
    check_namespace(namespace)  # it becomes part of a path
    return namespace
