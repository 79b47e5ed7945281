"""The catalog: every segment this handle knows, how far each is published, and what its batch headers say.

``refresh`` is the only way anything gets in: it reads published ends, walks the new batch headers once (bodies are skipped,
unless they have to be verified), notes them in the sparse indexes, and tells the tails that wait for them.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol
from weakref import WeakSet

from gasoline_es.errors import LogCorrupt
from gasoline_es.log.file.disk import Disk
from gasoline_es.log.file.end import END_BYTES, PublishedEnd, decode_end
from gasoline_es.log.file.incarnation import Observer
from gasoline_es.log.file.index import SegmentIndex, decode_index, encode_index
from gasoline_es.log.file.lines import BatchHeader, Begin, Place, SegmentHeader
from gasoline_es.log.file.scan import (
    BatchScan,
    Damage,
    Window,
    content_size,
    read_segment_header,
    valid_batch_after,
)
from gasoline_es.log.file.writer import segment_path
from gasoline_es.log.port import SegmentInfo

_LIVENESS_S: Final = 0.25
_INDEXES_MAX: Final = 64
_logger = logging.getLogger("gasoline_es.log")


@dataclass(slots=True)
class Segment:
    """What is known of one segment. ``position``, ``batch``: the end of what was read and is published."""

    number: int
    path: str
    header: SegmentHeader | None = None
    writer: str = ""
    position: int = 0
    batch: int = 0
    batches: int = 0
    records: int = 0
    digest: str | None = None
    finished: bool = False
    """Nothing will be published here any more."""
    damage: LogCorrupt | None = None
    torn: int = 0
    batch_max: int | None = None
    """The last batch that counts, as the writer's next segment says."""
    index: SegmentIndex | None = None
    """Kept here while the segment grows; afterwards in a small cache."""
    fd: int = -1
    end_fd: int = -1
    end_bytes: bytes = b""
    end: PublishedEnd | None = None


@dataclass(slots=True)
class Begun:
    """A begin that was found published."""

    place: Place
    begin: Begin


class Subscriber(Protocol):
    """Somebody who wants to hear of new batches with records of a topic's partition."""

    def heard(self, segment: Segment, header: BatchHeader) -> None:
        """Called once per batch, in order of the segment's batches."""


@dataclass(slots=True)
class _Known:
    begins: dict[tuple[str, int, int], Begun] = field(default_factory=dict[tuple[str, int, int], Begun])
    released: set[tuple[str, int, int]] = field(default_factory=set[tuple[str, int, int]])
    ends: dict[tuple[str, int, int], dict[str, int]] = field(default_factory=dict[tuple[str, int, int], dict[str, int]])


class Catalog:
    """All segments of a log. Its owner holds a lock around every call."""

    def __init__(
        self,
        directory: str,
        disk: Disk,
        observer: Observer,
        *,
        readonly: bool,
        verify: bool,
        own_ends: Callable[[int], PublishedEnd | None],
    ) -> None:
        """``verify``: check every body when it is first seen. ``own_ends``: the published end of one's own segment."""
        self.segments: dict[int, Segment] = {}
        self.by_writer: dict[str, list[int]] = {}
        self.last_place: dict[str, Place] = {}
        """incarnation → the last batch it published."""
        self.highest = 0
        self.subscribers: dict[tuple[str, int], WeakSet[Subscriber]] = {}
        self.readonly = readonly
        self.verify = verify
        self.writes_indexes = False
        self._known: Final = _Known()
        self._directory: Final = directory
        self._disk: Final = disk
        self._observer: Final = observer
        self._own_ends: Final = own_ends
        self._growing: list[Segment] = []
        self._unwritten: list[tuple[Segment, SegmentIndex]] = []
        self._damaged = False
        self._listed = False
        self._looked_s = float("-inf")
        self._indexes: OrderedDict[int, SegmentIndex] = OrderedDict()

    # --- what was found -----------------------------------------------------------------------------------------------

    def begun(self, namespace: str, partition: int, epoch: int) -> Begun | None:
        """Return the epoch's begin if it is published."""
        return self._known.begins.get((namespace, partition, epoch))

    def released(self, namespace: str, partition: int, epoch: int) -> bool:
        """Return whether the epoch's owner gave the partition up."""
        return (namespace, partition, epoch) in self._known.released

    def ends(self, namespace: str, partition: int, epoch: int) -> dict[str, int]:
        """Return topic → next offset after everything published in this epoch. Changes with the next refresh."""
        return self._known.ends.get((namespace, partition, epoch), {})

    @property
    def damage(self) -> LogCorrupt | None:
        """Return the first damage found, in order of segments."""
        for number in sorted(self.segments):
            damage = self.segments[number].damage
            if damage is not None:
                return damage
        return None

    @property
    def damaged(self) -> bool:
        """Return whether any segment is damaged."""
        return self._damaged

    def complete(self, writer: str) -> bool:
        """Return whether nothing more can come from a writer that is dead: all of its segments were taken in to their ends."""
        return self._observer.known_dead(writer) and not any(
            segment.writer == writer and segment.header is not None for segment in self._growing
        )

    def subscribe(self, topic: str, partition: int, subscriber: Subscriber) -> None:
        """Tell the subscriber of every new batch with records of the topic's partition, for as long as it lives."""
        self.subscribers.setdefault((topic, partition), WeakSet()).add(subscriber)

    def describe(self, segment: Segment) -> SegmentInfo:
        """Return what ``log info`` shows of a segment."""
        try:
            with self.reading(segment, 0) as window:
                size = window.size()
        except FileNotFoundError:
            size = 0
        return SegmentInfo(
            number=segment.number,
            writer=segment.writer,
            bytes=size,
            batches=segment.batches,
            records=segment.records,
            closed=segment.finished,
        )

    def ordered(self) -> list[Segment]:
        """Return all segments in order of their numbers."""
        return [self.segments[number] for number in sorted(self.segments)]

    # --- finding out --------------------------------------------------------------------------------------------------

    def refresh(self, *, liveness: bool = False) -> None:
        """Take in everything published by now. ``liveness``: look now at who still lives, not just every so often."""
        now = time.monotonic()
        look = liveness or now - self._looked_s >= _LIVENESS_S
        if look:
            self._looked_s = now
        self._discover()
        if not self._growing:
            return
        alive: dict[str, bool] = {}
        for segment in self._growing:
            # Alive first, then its end: what a dead writer left does not change any more.
            if look and segment.writer:
                alive[segment.writer] = self._observer.alive(segment.writer)
            self._read_end(segment)
            if segment.header is None:
                self._read_header(segment)
                if look and segment.writer and segment.writer not in alive:
                    alive[segment.writer] = self._observer.alive(segment.writer)
                    self._read_end(segment)
        for segment in self._growing:
            self._advance(segment, dead=alive.get(segment.writer) is False)
        self._growing = [segment for segment in self._growing if not segment.finished]
        if self.writes_indexes and self._unwritten:
            self.write_indexes()

    def _discover(self) -> None:
        if not self._listed:
            self._listed = True
            for name in self._disk.names(f"{self._directory}/segments"):
                stem, _, suffix = name.partition(".")
                if suffix == "jsonl" and stem.isdigit():
                    self._add(int(stem))
        # Numbers are claimed one after the other, so a new segment is always the next one.
        while self._disk.exists(segment_path(self._directory, self.highest + 1) + ".jsonl"):
            self._add(self.highest + 1)

    def _add(self, number: int) -> None:
        segment = Segment(number, segment_path(self._directory, number), index=SegmentIndex())
        self.segments[number] = segment
        self._growing.append(segment)
        self.highest = max(self.highest, number)

    def _read_end(self, segment: Segment) -> None:
        own = self._own_ends(segment.number)
        if own is not None:
            segment.end = own
            segment.writer = own.writer
            return
        if segment.end_fd < 0:
            try:
                segment.end_fd = self._disk.open(segment.path + ".end")
            except FileNotFoundError:
                return
        try:
            self._decode_end(segment)
        finally:
            if segment.header is None:
                # A number lost to a power loss is used again, with another file of this name.
                self._disk.close(segment.end_fd)
                segment.end_fd = -1

    def _decode_end(self, segment: Segment) -> None:
        for _ in range(100):
            data = self._disk.read(segment.end_fd, END_BYTES, 0)
            if data == segment.end_bytes:
                return
            end = decode_end(data)
            if end is not None and end.segment == segment.number:
                segment.end, segment.end_bytes = end, data
                if segment.header is None:
                    segment.writer = end.writer
                return
            # Read while it was being rewritten; or never whole, which then promises nothing.

    def _read_header(self, segment: Segment) -> None:
        if segment.fd < 0:
            segment.fd = self._disk.open(segment.path + ".jsonl")
        size = self._disk.size(segment.fd)
        try:
            header = read_segment_header(Window(self._disk, segment.fd, size), size)
            if header.number != segment.number:
                raise Damage(0, f"the header says segment {header.number}", "invalid")
        except Damage as damage:
            promised = segment.end is not None and segment.end.position > 0
            dead = bool(segment.writer) and self._observer.known_dead(segment.writer)
            incomplete = damage.kind in ("incomplete", "zeroed")
            if promised or (not incomplete and (dead or not segment.writer)):
                self._corrupt(segment, damage.position, damage.reason)
            elif segment.end is not None and segment.end.state != "open":
                self._finish(segment)  # its writer gave it up before anything was published in it
            elif dead:
                # Not finished: after a power loss somebody may be about to use the number again.
                segment.torn = size
            return
        if segment.end is not None and segment.end.writer != header.writer:
            segment.end, segment.end_bytes = None, b""
        segment.header, segment.writer, segment.torn = header, header.writer, 0
        segment.position, segment.digest = header.bytes, header.digest
        segment.batch = 0 if header.follows is None else header.follows.batch
        self.by_writer.setdefault(header.writer, []).append(segment.number)
        self.by_writer[header.writer].sort()
        if header.follows is not None and (before := self.segments.get(header.follows.segment)) is not None:
            before.batch_max = header.follows.batch

    def _advance(self, segment: Segment, *, dead: bool) -> None:
        if segment.finished or segment.header is None:
            return
        end = segment.end
        failed = end is not None and end.state == "failed"
        if dead and not failed:
            if self.verify or not self._load_index(segment):
                self._advance_dead(segment)
            if not segment.finished:
                self._finish(segment)
            return
        if end is not None and end.position > segment.position:
            try:
                self._scan(segment, end.position, check_from=0 if self.verify else None)
            except Damage as damage:
                self._corrupt(segment, damage.position, damage.reason)
                return
        if failed or (end is not None and end.state == "closed" and end.position <= segment.position):
            if failed and segment.fd >= 0:
                segment.torn = max(0, self._disk.size(segment.fd) - segment.position)
            self._finish(segment)

    def _advance_dead(self, segment: Segment) -> None:
        if segment.fd < 0:
            segment.fd = self._disk.open(segment.path + ".jsonl")
        try:
            self._disk.sync(segment.fd)
            self._disk.sync_directory(f"{self._directory}/segments")
        except OSError:
            if not self.readonly:
                raise
        promised = 0 if segment.end is None else segment.end.position
        size = content_size(self._disk, segment.fd)
        try:
            self._scan(segment, size, check_from=0 if self.verify else promised)
        except Damage as damage:
            torn = damage.kind == "incomplete" or (
                damage.kind == "zeroed" and not valid_batch_after(self._disk, segment.fd, damage.position, size)
            )
            if damage.position < promised or not torn:
                self._corrupt(segment, damage.position, damage.reason)
                return
        if segment.position < promised and segment.batch_max is None:
            self._corrupt(segment, segment.position, f"bytes up to {promised} were published and are missing")
            return
        segment.torn = self._disk.size(segment.fd) - segment.position

    def _scan(self, segment: Segment, end: int, check_from: int | None) -> None:
        if segment.fd < 0:
            segment.fd = self._disk.open(segment.path + ".jsonl")
        scan = BatchScan(Window(self._disk, segment.fd, end), segment.position, segment.batch, segment.digest)
        while (header := scan.next(end)) is not None:
            if segment.batch_max is not None and header.number > segment.batch_max:
                return
            if check_from is not None and header.position >= check_from:
                scan.check_body(header)
            self._publish(segment, header)

    def _publish(self, segment: Segment, header: BatchHeader) -> None:
        assert segment.header is not None
        assert segment.index is not None
        segment.index.add(header)
        segment.position, segment.batch, segment.digest = header.end, header.number, header.digest
        segment.batches, segment.records = segment.index.batches, segment.index.records
        place = Place(segment.number, header.number)
        self.last_place[segment.writer] = place
        namespace = segment.header.namespace
        for section in header.sections:
            if section.epoch is not None:
                key = (namespace, section.partition, section.epoch)
                if section.begin is not None:
                    self._known.begins[key] = Begun(place, section.begin)
                    self._known.ends[key] = dict(section.begin.offsets)
                if section.release:
                    self._known.released.add(key)
                ends = self._known.ends.setdefault(key, {})
                for topic, _, offset, count in section.groups:
                    if offset is not None:
                        ends[topic] = offset + count
        if self.subscribers:
            heard: set[tuple[str, int]] = {(group[0], group[1]) for s in header.sections for group in s.groups}
            for key in heard & self.subscribers.keys():
                for subscriber in self.subscribers[key]:
                    subscriber.heard(segment, header)

    def _corrupt(self, segment: Segment, position: int, reason: str) -> None:
        self._damaged = True
        segment.damage = self.corrupt_error(segment, Damage(position, reason, "invalid"))
        self._finish(segment)

    # --- complete segments --------------------------------------------------------------------------------------------

    def _finish(self, segment: Segment) -> None:
        segment.finished = True
        for fd in (segment.fd, segment.end_fd):
            if fd >= 0:
                self._disk.close(fd)
        segment.fd = segment.end_fd = -1
        index, segment.index = segment.index, None
        assert index is not None
        self._cache(segment.number, index)
        if segment.damage is not None:
            return
        index.torn = segment.torn
        path = segment.path + ".index"
        if self._disk.exists(path):
            return
        if segment.torn:
            # Said once in the log's life: the index that is written now remembers it.
            _logger.warning(
                "torn bytes at the end of a segment are ignored",
                extra={"segment": segment.number, "position": segment.position, "bytes": segment.torn},
            )
        if not self.readonly:
            self._unwritten.append((segment, index))

    def _load_index(self, segment: Segment) -> bool:
        """Take a dead writer's segment in by its index file; whether there is one that fits."""
        if segment.batches:
            return False
        index = self._read_index(segment)
        size = self._disk.size(segment.fd) if segment.fd >= 0 else -1
        if index is None or index.position + index.torn != size:
            return False
        assert segment.header is not None
        segment.index = index
        segment.position, segment.batch, segment.digest = index.position, index.batch, index.digest
        segment.batches, segment.records, segment.torn = index.batches, index.records, index.torn
        place = Place(segment.number, index.batch)
        if index.batches:
            self.last_place[segment.writer] = place
        namespace = segment.header.namespace
        for (partition, epoch), notes in index.epochs.items():
            key = (namespace, partition, epoch)
            ends = self._known.ends.setdefault(key, {})
            if notes.begin is not None:
                self._known.begins[key] = Begun(Place(segment.number, notes.begin_batch), notes.begin)
                ends.update(notes.begin.offsets)
            if notes.released:
                self._known.released.add(key)
            ends.update(notes.ends)
        return True

    def _read_index(self, segment: Segment) -> SegmentIndex | None:
        try:
            return decode_index(segment.number, self._disk.read_file(segment.path + ".index"))
        except (FileNotFoundError, LookupError, TypeError, ValueError):
            return None

    def _cache(self, number: int, index: SegmentIndex) -> None:
        self._indexes[number] = index
        self._indexes.move_to_end(number)
        while len(self._indexes) > _INDEXES_MAX:
            self._indexes.popitem(last=False)

    def index(self, segment: Segment) -> SegmentIndex:
        """Return a segment's index, from its file or by walking its headers again if it has left the cache."""
        if segment.index is not None:
            return segment.index
        index = self._indexes.get(segment.number)
        if index is None:
            index = self._read_index(segment)
            if index is None or index.position != segment.position:
                index = self._rebuild(segment)
        self._cache(segment.number, index)
        return index

    def _rebuild(self, segment: Segment) -> SegmentIndex:
        index = SegmentIndex(torn=segment.torn)
        if segment.header is not None:
            for header in self.headers(segment, segment.header.bytes, segment.position):
                index.add(header)
        return index

    def headers(self, segment: Segment, position: int, end: int) -> Iterator[BatchHeader]:
        """Yield the batch headers from ``position`` (a batch's first byte) up to ``end``. Raises: LogCorrupt."""
        with self.reading(segment, end) as window:
            try:
                yield from BatchScan(window, position, None, None).headers(end)
            except Damage as damage:
                raise self.corrupt_error(segment, damage) from damage

    @contextmanager
    def reading(self, segment: Segment, end: int) -> Generator[Window]:
        """Open a segment for reading published bytes, those before ``end``."""
        fd = self._disk.open(segment.path + ".jsonl")
        try:
            yield Window(self._disk, fd, end)
        finally:
            self._disk.close(fd)

    def corrupt_error(self, segment: Segment, damage: Damage) -> LogCorrupt:
        """Return the error that names where a segment is damaged."""
        return LogCorrupt(
            f"segment {segment.number} of the log in {self._directory} is damaged at byte {damage.position}: "
            f"{damage.reason}. Nothing was changed; it can still be opened for reading",
            segment=segment.number,
            position=damage.position,
            reason=damage.reason,
        )

    def write_indexes(self) -> None:
        """Store the indexes of segments that were completed since the last call. They only save time: errors are no matter."""
        unwritten, self._unwritten = self._unwritten, []
        for segment, index in unwritten:
            try:
                beside = f"{segment.path}.index.tmp"
                self._disk.unlink(beside)
                fd = self._disk.create(beside)
                try:
                    self._disk.write(fd, encode_index(segment.number, index), 0)
                finally:
                    self._disk.close(fd)
                self._disk.rename(beside, segment.path + ".index")
            except OSError as error:
                _logger.warning(
                    "a segment's index was not stored", extra={"segment": segment.number, "error": str(error)}
                )

    def close(self) -> None:
        """Let go of every file."""
        for segment in self._growing:
            for fd in (segment.fd, segment.end_fd):
                if fd >= 0:
                    self._disk.close(fd)
            segment.fd = segment.end_fd = -1
        self._growing = []
