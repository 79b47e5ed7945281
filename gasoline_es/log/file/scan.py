"""Reading a segment's bytes forward: headers by themselves, bodies by wish, and what broken bytes mean.

*Torn* and *corrupt* (filelog.md §2): what a dead writer left after its last valid batch is torn if it is incomplete (a header
line without its line feed, a body shorter than declared, NUL bytes a power loss put there) and is ignored. A complete header
or body that fails its digest is corrupt, last or not, and so is anything incomplete within what was promised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from gasoline_es.log.file.bodies import Body, check_body
from gasoline_es.log.file.disk import Disk, Status
from gasoline_es.log.file.lines import (
    BadLine,
    BatchHeader,
    SectionHeader,
    SegmentHeader,
    decode_batch_header,
    decode_segment_header,
)

_WINDOW_BYTES: Final = 64 * 1024


class Damage(Exception):
    """The bytes at ``position`` are not a batch. ``kind`` says what they may be taken for if nothing was promised there."""

    def __init__(self, position: int, reason: str, kind: Literal["incomplete", "zeroed", "invalid"]) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason
        self.kind = kind


class Window:
    """A file read through one buffer, so that small batches do not cost a system call each."""

    def __init__(self, disk: Disk, fd: int, limit: int) -> None:
        self._disk = disk
        self._fd = fd
        self._start = 0
        self._data = b""
        self.limit = limit
        """Nothing from here on is read: bytes that are not published yet may still change, and must not be kept."""

    def close(self) -> None:
        """Let go of the file, if it was opened for this."""
        self._disk.close(self._fd)

    def read(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes at ``position``, fewer at the end of the file."""
        at = position - self._start
        if at < 0 or at + size > len(self._data):
            if size >= _WINDOW_BYTES:
                return self._disk.read(self._fd, max(0, min(size, self.limit - position)), position)
            self._start, at = position, 0
            self._data = self._disk.read(self._fd, max(0, min(_WINDOW_BYTES, self.limit - position)), position)
        return self._data[at : at + size]

    def size(self) -> int:
        """Return the file's length."""
        return self._disk.size(self._fd)

    def status(self) -> Status:
        """Return which file it is."""
        return self._disk.status(self._fd)

    def line(self, position: int, end: int) -> bytes | None:
        """Return the line at ``position`` without its line feed; None if no line feed comes before ``end``."""
        at = position - self._start
        if 0 <= at < len(self._data):
            found = self._data.find(b"\n", at)
            if found >= 0:
                return self._data[at:found] if self._start + found < end else None
        size = 4096
        while True:
            data = self.read(position, min(size, end - position))
            found = data.find(b"\n")
            if found >= 0:
                return data[:found]
            if len(data) >= end - position or len(data) < size:
                return None
            size *= 4


def read_segment_header(window: Window, end: int) -> SegmentHeader:
    """Return the header of a segment of ``end`` bytes. Raises: Damage."""
    line = window.line(0, end)
    if line is None:
        raise Damage(0, "an incomplete segment header", "incomplete")
    try:
        return decode_segment_header(line)
    except BadLine as error:
        raise Damage(0, f"segment header: {error}", _kind(line)) from error


class BatchScan:
    """Walks the batches of one segment from a known place, checking each header, its number and its chain."""

    def __init__(self, window: Window, position: int, batch: int | None, digest: str | None) -> None:
        """``batch`` and ``digest`` are those of the batch before ``position``; None: not known, the first is believed."""
        self.window = window
        self.position = position
        self._batch = batch
        self._digest = digest

    def next(self, end: int) -> BatchHeader | None:
        """Return the next batch's header, None at ``end``. Raises: Damage; the scan then stays where it is."""
        position = self.position
        if position >= end:
            return None
        line = self.window.line(position, end)
        if line is None:
            tail = self.window.read(position, min(end - position, _WINDOW_BYTES))
            raise Damage(position, "an incomplete batch header", "zeroed" if _zeroed(tail) else "incomplete")
        try:
            header = decode_batch_header(line, position)
        except BadLine as error:
            raise Damage(position, f"batch header: {error}", _kind(line)) from error
        if self._batch is not None and header.number != self._batch + 1:
            raise Damage(position, f"batch {header.number} follows batch {self._batch}", "invalid")
        if self._digest is not None and header.prev != self._digest:
            raise Damage(position, f"batch {header.number} does not continue the batch before it", "invalid")
        if header.end > end:
            raise Damage(position, f"batch {header.number} is shorter than declared", "incomplete")
        self.position, self._batch, self._digest = header.end, header.number, header.digest
        return header

    @property
    def digest(self) -> str | None:
        """Return the digest of the last header that was walked."""
        return self._digest

    def check_body(self, header: BatchHeader) -> None:
        """Check every record line of a batch against the digests. Raises: Damage."""
        position = header.body
        for section in header.sections:
            read_section(self.window, header, section, position)
            position += section.bytes

    def headers(self, end: int) -> Iterator[BatchHeader]:
        """Yield the headers up to ``end``. Raises: Damage."""
        while (header := self.next(end)) is not None:
            yield header


def read_section(window: Window, header: BatchHeader, section: SectionHeader, position: int) -> Body:
    """Return the record lines of a batch's section at ``position``. Raises: Damage."""
    data = window.read(position, section.bytes) if section.bytes else b""
    if len(data) < section.bytes:
        raise Damage(header.position, f"batch {header.number} is shorter than declared", "incomplete")
    try:
        return check_body(data, section)
    except BadLine as error:
        raise Damage(position, f"batch {header.number}: {error}", _kind(data)) from error


def _kind(data: bytes) -> Literal["zeroed", "invalid"]:
    return "zeroed" if _zeroed(data) else "invalid"


def _zeroed(data: bytes) -> bool:
    # Pages a power loss left unwritten read as NULs, which no line of ours contains. One flipped bit cannot make two of
    # them in a row, nor one at either end (`{` and the line feed are more than a bit away).
    return b"\0\0" in data or data[:1] == b"\0" or data[-1:] == b"\0"


def content_size(disk: Disk, fd: int) -> int:
    """Return a file's length without the NUL bytes at its end: those were never written."""
    size = disk.size(fd)
    while size:
        start = max(0, size - _WINDOW_BYTES)
        kept = disk.read(fd, size - start, start).rstrip(b"\0")
        if kept:
            return start + len(kept)
        size = start
    return 0


def valid_batch_after(disk: Disk, fd: int, position: int, size: int) -> bool:
    """Return whether any line that starts after ``position`` is a valid batch header: then the bytes here were not the last."""
    data = disk.read(fd, size - position, position)
    at = data.find(b'{"batch":', 1)
    while at >= 0:
        line_end = data.find(b"\n", at)
        if line_end < 0:
            return False
        try:
            decode_batch_header(data[at:line_end], position + at)
            return True
        except BadLine:
            at = data.find(b'{"batch":', at + 1)
    return False
