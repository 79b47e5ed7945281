"""The files of the verified mark, and whether what they name is still what was verified (layout: mark.py).

``verified/log.json`` is written by whoever opened the log for writing and verified all of it; it is replaced as a whole, and
synced before, so that a power loss leaves one that is whole. ``verified/<number>.json`` is written by the writer of a segment
when it closes it, and not synced; the next opening takes it into its own mark and removes it. So nobody waits for anybody, and
where two write at once, one's claims are lost, which costs time. Nothing in ``verified/`` is ever needed.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from pydantic_core import from_json

from gasoline_es.engine_log import EngineLog
from gasoline_es.log.file.disk import Disk
from gasoline_es.log.file.incarnation import Observer
from gasoline_es.log.file.index import SegmentIndex
from gasoline_es.log.file.lines import (
    BadLine,
    SegmentHeader,
    decode_batch_header,
    decode_segment_header,
    is_header_line,
)
from gasoline_es.log.file.mark import Mark, MarkedSegment, decode_mark, encode_mark
from gasoline_es.log.file.segments import Segment, segment_path

_TICK_NS: Final = 20_000_000
"""Two writes within that time may have left the same time on the file: kernels tick every 1 to 10 ms."""
_logger = EngineLog("gasoline_es.log")


class Marks:
    """Reads and writes the mark of one log, for one handle."""

    def __init__(self, directory: str, log_id: str, disk: Disk) -> None:
        self._directory: Final = directory
        self._folder: Final = f"{directory}/verified"
        self._disk: Final = disk
        self.log_id: Final = log_id
        self._found: list[str] = []
        """The files of single segments that were there when the mark was read."""
        self._renewed = False
        """Whether the stored mark of the log names files that the cleaner has put others in the place of."""
        self._stored = -1
        """How much the stored mark of the log says (:func:`_extent`); -1: there is none that can be used."""

    def read(self) -> tuple[Mark, dict[int, SegmentHeader]] | None:
        """Return the mark of all that is claimed, and its segments' headers; None: all has to be verified."""
        self._found = self._names()
        mark = self._decoded("log.json")
        if mark is None:
            return None
        headers: dict[int, SegmentHeader] = {}
        for number in sorted(mark.segments):
            header = self._fitting(mark.segments[number]) or self._cleaned(mark, number)
            if header is None:
                _logger.info(
                    "the log is not the one that was verified before, so all of it is verified",
                    extra={"segment": number},
                )
                return None
            headers[number] = header
        if not self._renewed:
            self._stored = _extent(mark)
        for name in self._found:
            claim = self._decoded(name)
            if claim is None or claim.segments.keys() <= mark.segments.keys():
                continue
            (number,) = claim.segments  # a writer's claim is of one segment
            header = self._fitting(claim.segments[number])
            if header is None:
                continue  # it vouches for this one alone
            # Only behind all that its writer wrote before: what an epoch's first segment says is needed for its others.
            if header.follows is None or header.follows.segment in mark.segments:
                mark.merge(claim)
                headers[number] = header
        return mark, headers

    def _cleaned(self, mark: Mark, number: int) -> SegmentHeader | None:
        """Let the mark be about the file that the cleaner has put in a segment's place, if the cleaner vouches for it.

        It stands for the same batches: that is what their digests say, which it must have kept.
        """
        was = mark.segments[number]
        claim = self._decoded(f"{number:010d}.json")
        if claim is None or number not in claim.segments:
            return None
        now = claim.segments[number]
        header = self._fitting(now)
        if header is None or header.compacted is None:
            return None
        if (now.header_digest, now.batch, now.batches, now.digest) != (
            was.header_digest,
            was.batch,
            was.batches,
            was.digest,
        ):
            return None
        mark.segments[number] = now
        self._renewed = True
        return header

    def _names(self) -> list[str]:
        try:
            names = self._disk.names(self._folder)
        except OSError:
            return []
        return [name for name in names if name.endswith(".json") and name != "log.json"]

    def _decoded(self, name: str) -> Mark | None:
        try:
            mark = decode_mark(self.log_id, self._disk.read_file(f"{self._folder}/{name}"))
        except OSError:
            return None
        if name == "log.json" or mark is None or len(mark.segments) == 1:
            return mark
        return None

    def _fitting(self, marked: MarkedSegment) -> SegmentHeader | None:
        """Return the header of a segment that is the file which was verified, as far as can be told without reading it all."""
        try:
            fd = self._disk.open(segment_path(self._directory, marked.number) + ".jsonl")
        except OSError:
            return None
        try:
            if self._disk.status(fd) != (marked.inode, marked.bytes, marked.changed_ns, marked.kept_ns):
                return None
            line = self._disk.read(fd, marked.header_bytes, 0)
            header = decode_segment_header(line[:-1])
            emptied = header.compacted is not None and header.compacted.epochs is not None
            if emptied:
                digest = None if header.compacted is None else header.compacted.digest
                if digest != marked.digest:
                    return None
            elif marked.batches:
                last = self._disk.read(fd, marked.body - marked.last, marked.last)
                if (
                    not is_header_line(last, marked.digest)
                    and decode_batch_header(last[:-1], marked.last).digest != marked.digest
                ):
                    return None
        except (BadLine, OSError):
            return None
        finally:
            self._disk.close(fd)
        same = (header.number, header.digest, line[-1:]) == (marked.number, marked.header_digest, b"\n")
        return header if same else None

    def marked(self, segment: Segment, index: SegmentIndex) -> MarkedSegment | None:
        """Return what a mark says of a complete segment, all of which was verified or written here; the segment knows it too.

        None: it may have been written to since, without a trace if that was just now. A writer that closes a segment stamps it.
        """
        assert segment.header is not None
        try:
            fd = self._disk.open(segment.path + ".jsonl")
            try:
                status = self._disk.status(fd)
                closed = segment.end is not None and segment.end.state == "closed"
                closed = closed or segment.header.compacted is not None
                if status != segment.seen or (not closed and time.time_ns() - status.changed_ns < _TICK_NS):
                    return None
                newest_us = self._newest_us(fd, segment.filled)
            finally:
                self._disk.close(fd)
        except (OSError, ValueError, LookupError, TypeError):
            return None
        segment.newest_us = newest_us
        return MarkedSegment(
            number=segment.number,
            inode=status.inode,
            changed_ns=status.changed_ns,
            kept_ns=status.kept_ns,
            bytes=status.size,
            header_bytes=segment.header.bytes,
            header_digest=segment.header.digest,
            last=segment.last,
            body=segment.body,
            position=segment.position,
            batch=segment.batch,
            batches=segment.batches,
            records=segment.records,
            digest=segment.digest or "",
            newest_us=newest_us,
            topics=index.topics,
        )

    def _newest_us(self, fd: int, end: int) -> int:
        """Return the time of the record whose line ends at ``end``; 0: there is none."""
        size = 4096
        while end:
            data = self._disk.read(fd, min(size, end), end - min(size, end))
            start = data.rfind(b"\n", 0, -1)
            if start >= 0:
                return int(from_json(data[start + 1 :])["time"])
            size *= 16
        return 0

    def claim(self, marked: MarkedSegment, namespace: str, index: SegmentIndex, writer: str) -> None:
        """Store that ``writer`` wrote a segment, every byte of it."""
        mark = Mark(self.log_id)
        mark.add(marked, namespace, index)
        self._write(f"{marked.number:010d}.json", mark, writer, sync=False)

    def store(self, mark: Mark, writer: str, observer: Observer) -> None:
        """Store what an opening has verified, unless that was all stored before; then remove what it has taken in."""
        if _extent(mark) == self._stored:
            return
        if not self._write("log.json", mark, writer, sync=True):
            return
        with suppress(OSError):
            for name in self._found:
                self._disk.unlink(f"{self._folder}/{name}")
            for name in self._disk.names(self._folder):
                stem, _, kind = name.rpartition(".")
                if kind == "tmp" and not observer.alive(stem.rpartition(".")[2]):
                    self._disk.unlink(f"{self._folder}/{name}")

    def discard(self) -> None:
        """Remove the mark of the log: it vouches for bytes that are not what was verified. The next opening reads all."""
        with suppress(OSError):
            self._disk.unlink(f"{self._folder}/log.json")

    def _write(self, name: str, mark: Mark, writer: str, *, sync: bool) -> bool:
        path = f"{self._folder}/{name}"
        beside = f"{path}.{writer}.tmp"  # named by process: two that write at once must not take each other's file away
        try:
            self._disk.make_directory(self._folder)
            fd = self._disk.create(beside)
            try:
                self._disk.write(fd, encode_mark(mark), 0)
                if sync:
                    self._disk.sync(fd)
            finally:
                self._disk.close(fd)
            self._disk.rename(beside, path)
        except OSError as error:
            with suppress(OSError):
                self._disk.unlink(beside)
            _logger.warning("what was verified could not be stored", extra={"path": path, "error": str(error)})
            return False
        return True


def _extent(mark: Mark) -> int:
    return len(mark.segments) + sum([of.read for of in mark.epochs.values()])
