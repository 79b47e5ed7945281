"""Recorded events, read where they are checked: a partition of a log, or a share of an exported file."""

from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pydantic_core import from_json, to_json

from gasoline_es.core.topics import Topics, holds_events
from gasoline_es.errors import LogCorrupt
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log

Line = tuple[str, str, bytes]
"""The topic, the record's key (``<workflow id>/<seq>``) and the event as JSON."""

Advance = Callable[[int], None]
"""Told how much was read: records of a log, bytes of a file."""

_ADVANCE_RECORDS: Final = 1_000
_SMALL_RECORDS: Final = 20_000
_SMALL_BYTES: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Share:
    """One of ``of`` parts of the histories: whole workflows, each in exactly one share."""

    index: int
    of: int


class Source(Protocol):
    """Where events are; can be sent to another process."""

    def open(self) -> AbstractContextManager[Reader]:
        """Open it for reading."""
        ...


class Reader(Protocol):
    """An open source."""

    damages: list[str]
    """Places that could not be read, as far as they were met."""

    def shares(self, jobs: int) -> list[Share]:
        """Divide the histories into shares that so many processes can take in turns."""
        ...

    def size(self, shares: list[Share]) -> int:
        """Return how much there is to read, as ``advance`` of :meth:`lines` will be told it."""
        ...

    def is_small(self) -> bool:
        """Whether it is read in less time than it takes to start a process."""
        ...

    def lines(self, share: Share, advance: Advance) -> Iterator[Line]:
        """Yield the events of a share, those of each workflow in order."""
        ...


@dataclass(frozen=True, slots=True)
class LogSource:
    """The events of a namespace of a log."""

    url: str
    namespace: str

    def open(self) -> LogReader:
        """Open it, read-only and without a lock."""
        return LogReader(self.url, self.namespace)


class LogReader:
    """Reads a log by partitions, each up to damage if there is any."""

    def __init__(self, url: str, namespace: str) -> None:
        self.damages: list[str] = []
        self._runner = asyncio.Runner()
        self._log: Log = self._runner.run(open_log(url, namespace=namespace, readonly=True))
        self._topic = Topics(namespace).events

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        with self._runner:
            self._runner.run(self._log.close())

    def shares(self, jobs: int) -> list[Share]:
        """Every partition that has events is a share, the largest first."""
        count = self._log.partition_count
        ends = [(self._log.end(self._topic, partition), partition) for partition in range(count)]
        # One that is empty may have lost what it had: reading it says so.
        return [Share(partition, count) for _, partition in sorted(ends, key=lambda end: (-end[0], end[1]))]

    def size(self, shares: list[Share]) -> int:
        """Count the records."""
        return sum(self._log.end(self._topic, share.index) for share in shares)

    def is_small(self) -> bool:
        """Whether it has few records."""
        return self.size(self.shares(1)) < _SMALL_RECORDS

    def lines(self, share: Share, advance: Advance) -> Iterator[Line]:
        """Yield the events of a partition."""
        unsaid = 0
        try:
            for record in self._log.read(self._topic, share.index):
                unsaid += 1
                if unsaid == _ADVANCE_RECORDS:
                    advance(unsaid)
                    unsaid = 0
                if record.value is not None:
                    yield self._topic, record.key, record.value
        except LogCorrupt as error:
            self.damages.append(error.message)
        advance(unsaid)


@dataclass(frozen=True, slots=True)
class FileSource:
    """What ``log dump --json`` wrote, as it is or packed with gzip. ``namespace`` None: all that are in it."""

    path: str
    namespace: str | None = None

    def open(self) -> FileReader:
        """Open it."""
        return FileReader(self.path, self.namespace)


class FileReader:
    """Reads a file of records, one JSON object a line; of each share only what belongs to its workflows."""

    def __init__(self, path: str, namespace: str | None) -> None:
        self.damages: list[str] = []
        self._path = path
        self._topic = None if namespace is None else Topics(namespace).events
        with open(path, "rb") as file:
            self._zipped = file.read(2) == b"\x1f\x8b"
        self._size = Path(path).stat().st_size

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def shares(self, jobs: int) -> list[Share]:
        """One share for each process: each reads the whole file, and parses only what is its own."""
        return [Share(index, jobs) for index in range(jobs)]

    def size(self, shares: list[Share]) -> int:
        """Count the bytes, once for each share."""
        return self._size * len(shares)

    def is_small(self) -> bool:
        """Whether it has few bytes."""
        return self._size < _SMALL_BYTES

    def lines(self, share: Share, advance: Advance) -> Iterator[Line]:
        """Yield the events of the workflows whose ids fall to this share."""
        number = told = 0
        with open(self._path, "rb") as raw, gzip.open(raw) if self._zipped else raw as opened:
            try:
                for number, line in enumerate(opened, start=1):
                    if number % _ADVANCE_RECORDS == 0:
                        position = raw.tell()
                        advance(position - told)
                        told = position
                    found = self._read(line, number, share)
                    if found is not None:
                        yield found
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                self._note(number + 1, str(error))
        advance(self._size - told)

    def _read(self, line: bytes, number: int, share: Share) -> Line | None:
        known = _DUMPED.match(line)
        if known is not None and line.endswith(b"}\n"):
            topic, key = known[1].decode(), known[2].decode()
            if not self._is_wanted(topic, key, share):
                return None
            value = line[known.end() : -2]
            return None if value == b"null" else (topic, key, value)
        if not line.strip():
            return None
        return self._parse(line, number, share)

    def _parse(self, line: bytes, number: int, share: Share) -> Line | None:
        """Read any spelling of a record, or an event alone, as ``log dump --values`` writes it."""
        try:
            record = from_json(line)
            if "specversion" in record:
                topic, key = Topics(record["source"].rpartition("/")[2]).events, record["id"]
                value = line.strip()
            else:
                topic, key = record["topic"], record["key"]
                value = b"null" if record["value"] is None else to_json(record["value"])
            wanted = self._is_wanted(topic, key, share)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._note(number, f"it is no record that `gasoline log dump` writes ({type(error).__name__}: {error})")
            return None
        return (topic, key, value) if wanted and value != b"null" else None

    def _is_wanted(self, topic: str, key: str, share: Share) -> bool:
        if not holds_events(topic) if self._topic is None else topic != self._topic:
            return False
        # Not hash(), which differs from process to process.
        return share.of == 1 or zlib.crc32(key.rpartition("/")[0].encode()) % share.of == share.index

    def _note(self, number: int, what: str) -> None:
        self.damages.append(f"{self._path}, line {number}: {what}")


_DUMPED: Final = re.compile(
    rb'\{"topic":"([a-z0-9-]+\.[a-z]+)","partition":[0-9]+,"offset":(?:[0-9]+|null),"key":"([^"\\]*)",'
    rb'"time":"[^"\\]*","headers":\{(?:"[^"\\]*":"[^"\\]*",?)*\},"value":'
)
"""The layout ``log dump`` writes, up to the value, which is then cut out and not parsed twice."""
