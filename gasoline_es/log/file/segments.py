"""One segment as a handle knows it, and the calls that read its files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gasoline_es.errors import LogCorrupt
from gasoline_es.log.file.disk import Disk, Status
from gasoline_es.log.file.end import END_BYTES, PublishedEnd, decode_end
from gasoline_es.log.file.index import SegmentIndex
from gasoline_es.log.file.lines import BatchHeader, SegmentHeader
from gasoline_es.log.file.scan import BatchScan, Damage, Window, read_segment_header
from gasoline_es.log.port import SegmentInfo


def same_file(one: Status, other: Status) -> bool:
    """Return whether a file is the one that was seen, and nobody has written to it since."""
    return one[:3] == other[:3]


def segment_path(directory: str, number: int) -> str:
    """Return a segment's path without its suffix."""
    return f"{directory}/segments/{number:010d}"


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
    last: int = 0
    body: int = 0
    """Where the header of the last batch starts, and where it ends; only where that batch was read or written here."""
    seen: Status | None = None
    """The file, as it was before it was verified, or when its writer, this very handle, closed it."""
    filled: int = 0
    """Where the last batch that has records ends; 0: there is none. Likewise."""
    newest_us: int | None = None
    """Of a complete one, the time of its last record; 0: it has none. None: not known."""
    topics: Mapping[str, int] | None = None
    """Of a complete one, which partitions each topic has records of: bit ``n`` for partition ``n``. None: not known."""
    finished: bool = False
    """Nothing will be published here any more."""
    damage: LogCorrupt | None = None
    torn: int = 0
    batch_max: int | None = None
    """The last batch that counts, as the writer's next segment says."""
    index: SegmentIndex | None = None
    """Kept here while the segment grows; afterwards in a small cache."""
    file: Status | None = None
    """Of a complete one, the file that all of this is about: the cleaner may put another in its place. None: not known."""
    version: int = 0
    """How often another file was found in its place. Bytes of different versions have nothing to do with each other."""
    fd: int = -1
    end_fd: int = -1
    end_bytes: bytes = b""
    end: PublishedEnd | None = None

    def may_hold(self, topic: str, partition: int) -> bool:
        """Return whether there may be records of a topic's partition. False needs no look at the index."""
        return self.topics is None or bool(self.topics.get(topic, 0) >> partition & 1)


class SegmentFiles:
    """Reads the files of segments. Whoever has a window reads without a lock: what it shows never changes."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory: Final = directory
        self._disk: Final = disk
        self.met_damage: Callable[[], None] | None = None
        """Called whenever something published is found not to be what was written."""

    def read_end(self, segment: Segment) -> None:
        """Read the published end of another handle's segment."""
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

    def headers(self, segment: Segment, window: Window, position: int) -> Iterator[BatchHeader]:
        """Yield the batch headers from ``position`` (a batch's first byte) to the window's end. Raises: LogCorrupt."""
        try:
            yield from BatchScan(window, position, None, None).headers(window.limit)
        except Damage as damage:
            raise self.corrupt_error(segment, damage) from damage

    @contextmanager
    def reading(self, segment: Segment, end: int | None = None) -> Generator[Window]:
        """Open a segment for reading what :meth:`window` shows. ``end``: nothing from there on."""
        window = self.window(segment)
        try:
            if end is not None:
                window.limit = min(window.limit, end)
            yield window
        finally:
            window.close()

    def window(self, segment: Segment) -> Window:
        """Open a segment for reading its published bytes, in the file that everything known of it is about.

        If the cleaner has put another in its place since, that one is taken in first. So whatever is to be looked up for
        reading (positions, the end, the index) is looked up afterwards, before anybody else opens a window: under the lock.
        """
        if segment.fd >= 0 and not segment.finished:
            return Window(self._disk, self._disk.duplicate(segment.fd), segment.position)
        fd = self._open(segment)
        try:
            status = self._disk.status(fd)
            if segment.file is None:
                segment.file = status
            elif not same_file(segment.file, status):
                self._renew(segment, fd, status)
            return Window(self._disk, fd, segment.position)
        except BaseException as error:
            self._disk.close(fd)
            if isinstance(error, Damage):
                raise self.corrupt_error(segment, error) from error
            raise

    def _renew(self, segment: Segment, fd: int, status: Status) -> None:
        """Take in the file that is in a complete segment's place now. Raises: Damage: it stands for other batches."""
        header = read_segment_header(Window(self._disk, fd, status.size), status.size)
        known, told = segment.header, header.compacted
        if known is not None and header.digest != known.digest:
            raise Damage(0, "another segment is in its place", "invalid")
        if told is not None:
            if (told.batch, told.digest) != (segment.batch, segment.digest):
                raise Damage(
                    0, f"it ends with another batch than {segment.batch}, which was read there before", "invalid"
                )
            segment.position, segment.records, segment.torn = told.bytes, told.records, 0
            segment.last = segment.body = segment.filled = 0
            segment.newest_us = segment.topics = segment.seen = None
        elif known is not None and known.compacted is not None:
            raise Damage(0, "it is not the file that was read before", "invalid")
        segment.header, segment.file = header, status
        segment.version += 1

    def corrupt_error(self, segment: Segment, damage: Damage) -> LogCorrupt:
        """Return the error that names where a segment is damaged."""
        if self.met_damage is not None:
            self.met_damage()
        return LogCorrupt(
            f"segment {segment.number} of the log in {self._directory} is damaged at byte {damage.position}: "
            f"{damage.reason}. Nothing was changed; it can still be opened for reading",
            segment=segment.number,
            position=damage.position,
            reason=damage.reason,
        )

    def describe(self, segment: Segment) -> SegmentInfo:
        """Return what ``log info`` shows of a segment."""
        try:
            fd = self._open(segment)
            try:
                size = self._disk.size(fd)
            finally:
                self._disk.close(fd)
        except LogCorrupt:
            size = 0
        return SegmentInfo(
            number=segment.number,
            writer=segment.writer,
            bytes=size,
            batches=segment.batches,
            records=segment.records,
            closed=segment.finished,
            compacted=segment.header is not None and segment.header.compacted is not None,
        )

    def open(self, segment: Segment) -> int:
        """Return a descriptor of a segment that is kept open while the segment grows."""
        if segment.fd < 0:
            segment.fd = self._open(segment)
        return segment.fd

    def _open(self, segment: Segment) -> int:
        try:
            return self._disk.open(segment.path + ".jsonl")
        except FileNotFoundError:
            raise segment.damage or self.corrupt_error(segment, Damage(0, "its file is missing", "invalid")) from None

    def close(self, segment: Segment) -> None:
        """Let go of a segment's descriptors."""
        for fd in (segment.fd, segment.end_fd):
            if fd >= 0:
                self._disk.close(fd)
        segment.fd = segment.end_fd = -1
