"""An archive: a directory of files that hold records as the log has them, written before a pruning gives them up (0046).

    DIRECTORY/20260131T120000000000-<who>-0001.jsonl.zst        a file has one writer, for ever; names sort by time

A file is zstd frames, each whole by itself and with a checksum, of JSON Lines, in the members and order of `gasoline log
dump`, the value last and byte for byte::

    {"topic":…,"partition":…,"offset":…,"key":…,"time":…,"headers":{…},"value":{…CloudEvent…}}

What a frame holds counts once the frame is whole. A crash may leave the last one of a file torn: nothing that it held was
pruned, so it is passed over and told. A record may be there twice, after a crash between archiving and pruning: it is the
same topic, partition and offset then, and readers take one. A directory is for one log: offsets of another would mean others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, cast

import orjson

from gasoline_es.core.durations import format_time, parse_time
from gasoline_es.errors import ExtraMissing, LogCorrupt, LogError, NoSpace
from gasoline_es.log.file.disk import FULL, Disk
from gasoline_es.log.port import Offset, Record

try:
    import zstandard
except ImportError as missing:
    raise ExtraMissing(
        'archives need the package zstandard. Install it with: pip install "gasoline_es[archive]"'
    ) from missing

__all__ = ["Archive", "archived", "history_of"]

SUFFIX: Final = ".jsonl.zst"
FRAME_BYTES: Final = 4 << 20
"""A frame is closed once its lines are so long: what a reader holds in memory, and one record more."""
_READ_BYTES: Final = 1 << 16
_VALUE: Final = b',"value":'


class Archive:
    """Writes into a directory, as one of any number of writers. One at a time adds; the sync may be in a thread.

    ``who``: tells this process from all others, for ever. ``add`` is durable once :meth:`sync` has returned.
    """

    def __init__(self, directory: str, who: str, disk: Disk | None = None) -> None:
        self.directory: Final = os.path.abspath(directory)
        self._who = who
        self._disk: Final = disk or Disk()
        self._lock = threading.RLock()
        """Nobody closes a file under whoever syncs it: its number may be another file's by then."""
        self._lines = bytearray()
        self._fd: int | None = None
        self._path = ""
        self._count = 0
        self._end = 0
        """Where the next frame of the file goes."""
        self._synced = 0
        """Up to here the file is durable."""

    def add(self, record: Record, now_us: int) -> None:
        """Write a record's line; several make a frame. Raises: LogError, NoSpace: nothing since the last sync counts."""
        self._lines += _line(record)
        if len(self._lines) >= FRAME_BYTES:
            self._guarded(lambda: self._write(now_us))

    def sync(self, now_us: int) -> None:
        """Make all that was added durable. Raises: LogError, NoSpace: nothing since the last sync counts; add it again."""
        self._guarded(lambda: self._sync(now_us))

    def close(self) -> None:
        """Let go of the file. What was not synced is left out."""
        with self._lock:
            self._lines.clear()
            if self._fd is not None:
                self._disk.close(self._fd)
                self._fd = None

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            with self._lock:
                act()
        except OSError as error:
            self.give_up()
            kind = NoSpace if error.errno in FULL else LogError
            raise kind(f"the archive {self.directory} cannot be written: {error.strerror or error}") from error

    def give_up(self) -> None:
        """Leave the file as it is, for good, and what was added since the last sync; what is added next goes to another one."""
        with self._lock:
            if self._fd is not None and self._synced == 0:
                with suppress(OSError):  # readers pass over what is torn
                    self._disk.unlink(self._path)  # a full disk that is tried again and again is not to fill with names
            self.close()

    def _sync(self, now_us: int) -> None:
        if self._lines:
            self._write(now_us)
        if self._fd is not None and self._end > self._synced:
            self._disk.sync(self._fd)
            if self._synced == 0:
                self._disk.sync_directory(self.directory)
            self._synced = self._end

    def _write(self, now_us: int) -> None:
        frame = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(bytes(self._lines))
        if self._fd is None:
            self._begin(now_us)
        assert self._fd is not None
        self._disk.write(self._fd, frame, self._end)
        self._end += len(frame)
        self._lines.clear()

    def _begin(self, now_us: int) -> None:
        self._make_directory()
        when = format_time(now_us).translate({ord(one): None for one in "-:.Z"})
        while self._fd is None:
            self._count += 1
            self._path = os.path.join(self.directory, f"{when}-{self._who}-{self._count:04}{SUFFIX}")
            with suppress(FileExistsError):  # of this process, which has archived here before
                self._fd = self._disk.create(self._path)
        self._end = self._synced = 0

    def _make_directory(self) -> None:
        made: list[str] = []
        path = self.directory
        while not self._disk.exists(path):
            made.append(path)
            path = os.path.dirname(path)
        self._disk.make_directory(self.directory)
        for one in reversed(made):
            self._disk.sync_directory(os.path.dirname(one))


def archived(directory: str, *, note: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Yield the records of an archive, in order of writing within each file; one may come twice.

    ``note``: told of each file whose rest cannot be read, with the byte from which on. Memory: a frame.

    Raises: LogError: the directory cannot be read. LogCorrupt: a frame is whole, and a line of it is no record.
    """
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    except OSError as error:
        raise LogError(f"the archive {directory} cannot be read: {error.strerror or error}") from error
    for name in names:
        path = os.path.join(directory, name)
        for frame in _frames(path, note or (lambda told: None)):
            for line in frame.splitlines():
                yield _record(path, line)


def history_of(workflow_id: str, directory: str, *, note: Callable[[str], None] | None = None) -> list[Record]:
    """Return the records of a workflow's events, each once, in order: of all that had this id.

    Raises: as :func:`archived`.
    """
    prefix = f"{workflow_id}/"
    found = {
        (one.topic, one.partition, one.offset or 0): one
        for one in archived(directory, note=note)
        if one.key.startswith(prefix)
    }
    return [found[place] for place in sorted(found)]


def _frames(path: str, note: Callable[[str], None]) -> Iterator[bytes]:
    """Yield what each whole frame of a file holds."""
    begin = at = 0
    with open(path, "rb") as file:
        frame, parts = zstandard.ZstdDecompressor().decompressobj(), list[bytes]()
        while data := file.read(_READ_BYTES):
            while data:
                try:
                    parts.append(frame.decompress(data))
                except zstandard.ZstdError as error:
                    note(f"{path}: from byte {begin} on there is no whole frame: {error}")
                    return
                if not frame.eof:
                    at += len(data)
                    break
                rest = frame.unused_data
                at += len(data) - len(rest)
                yield b"".join(parts)
                begin, data = at, rest
                frame, parts = zstandard.ZstdDecompressor().decompressobj(), []
    if begin != at:
        note(f"{path}: the frame from byte {begin} on is cut off: nothing that it held was pruned for it")


def _line(record: Record) -> bytes:
    head = orjson.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "key": record.key,
            "time": format_time(record.time_us),
            "headers": dict(record.headers or {}),
        }
    )
    value = b"null" if record.value is None else record.value.replace(b"\n", b" ")  # in JSON that is blank space only
    return head[:-1] + _VALUE + value + b"}\n"


def _record(path: str, line: bytes) -> Record:
    at = line.find(_VALUE)
    while at >= 0:
        try:
            head = cast(
                dict[str, Any], orjson.loads(line[:at] + b"}")
            )  # a header may be called "value": then it is no JSON
            value = line[at + len(_VALUE) : -1]
            return Record(
                head["topic"],
                head["partition"],
                None if head["offset"] is None else Offset(head["offset"]),
                head["key"],
                None if value == b"null" else value,
                parse_time(head["time"]),
                head["headers"] or None,
            )
        except orjson.JSONDecodeError:
            at = line.find(_VALUE, at + 1)
        except (LookupError, TypeError, ValueError) as error:
            raise LogCorrupt(f"{path}: a line is no record of an archive: {error!r}") from error
    raise LogCorrupt(f"{path}: a line is no record of an archive")
