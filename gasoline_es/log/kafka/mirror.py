"""What a process has read of single-writer topics, kept on its own disk: reads are local, and start-up reads what is new.

A mirror holds copies. Every record in it was committed on the broker, and for each topic's partition it holds *all* records
below its position, so whoever has it needs the broker only for what came since. It may be deleted at any time.

One file for a log, shared by the processes of a machine: records never change, and a position only grows, so it does not
matter who writes first. Threads: any number may read; writes take turns.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import Feed
from gasoline_es.log.port import Offset, Record

FORMAT: Final = 1
_FEED_BITS: Final = 40
"""A record's row id is its feed's number, then its offset: a feed's records lie together, in order."""
_READ_AT_ONCE: Final = 500
"""A read that stays open keeps SQLite from tidying up: it asks for so many records at a time."""
_BUSY_S: Final = 30.0

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS feeds(
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
    UNIQUE (topic, partition));
CREATE TABLE IF NOT EXISTS records(
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB, time_us INTEGER NOT NULL, headers TEXT);
"""


class _Known(NamedTuple):
    """What is known of a feed: its number, how far it was read, and where its last record ends (0: it has none)."""

    number: int
    position: int
    end: int


class Mirror:
    """The copies of one log."""

    def __init__(self, path: Path | None, prefix: str = "") -> None:
        """Open or create the file; None: in memory. ``prefix``: of the topics in the cluster, which records are told without.

        Raises: LogError: it cannot be.
        """
        self._path = path
        self._prefix: Final = prefix
        # In memory all share one connection; SQLite serialises what several threads do with it.
        self._name = ":memory:" if path is None else str(path)
        self._lock: Final = threading.RLock()
        self._readers: Final = threading.local()
        self._open: Final[list[sqlite3.Connection]] = []
        self._known: dict[Feed, _Known] = {}
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                _discard_foreign(path)
            self._writer: Final = self._connect()
            self._writer.executescript(_TABLES)
            self._writer.execute(f"PRAGMA user_version={FORMAT}")
        except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: no path is called so
            raise LogError(
                f"what this process reads of the log cannot be kept in {self._name}: {error}. Free the disk, or name another "
                f"directory with ?state_dir="
            ) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._name, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        # Copies: what the machine's end takes is read from the broker again. The file stays whole.
        connection.execute("PRAGMA synchronous=NORMAL")
        self._open.append(connection)
        return connection

    @property
    def _reader(self) -> sqlite3.Connection:
        if self._path is None:
            return self._writer
        connection: sqlite3.Connection | None = getattr(self._readers, "connection", None)
        if connection is None:
            with self._lock:
                connection = self._readers.connection = self._connect()
        return connection

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            for connection in self._open:
                with suppress(sqlite3.Error):  # of a thread in the middle of a read: it learns that by itself
                    connection.close()
            self._open.clear()

    # --- writing ------------------------------------------------------------------------------------------------------

    def add(self, read: Mapping[Feed, tuple[Sequence[Record], int, int]]) -> None:
        """Take what was read of feeds: their records, in order, from where, and how far they are read now.

        What is there already is left as it is; what would leave a gap is not taken. Raises: LogError.
        """
        with self._lock:
            read = {feed: one for feed, one in read.items() if one[1] <= self._of(feed).position}
            known = {feed: self._of(feed) for feed in read}
            rows = [
                (
                    (known[feed].number << _FEED_BITS) + (record.offset or 0),
                    record.key,
                    record.value,
                    record.time_us,
                    json.dumps(dict(record.headers)) if record.headers else None,
                )
                for feed, (records, _, _) in read.items()
                for record in records
            ]
            moved = [(position, known[feed].number) for feed, (_, _, position) in read.items()]
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    self._writer.executemany("INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?, ?)", rows)
                    self._writer.executemany("UPDATE feeds SET position=max(position, ?) WHERE number=?", moved)
                    self._writer.execute("COMMIT")
                except BaseException:
                    with suppress(
                        sqlite3.Error
                    ):  # a full disk has ended the transaction already, and is what is to be told
                        self._writer.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._failed(error) from error
            for feed, (records, _, position) in read.items():
                number, before, end = known[feed]
                if records:
                    end = max(end, (records[-1].offset or 0) + 1)
                self._known[feed] = _Known(number, max(before, position), end)

    # --- reading ------------------------------------------------------------------------------------------------------

    def position(self, feed: Feed) -> int:
        """Return the offset from which a feed has yet to be read."""
        return self._of(feed).position

    def end(self, feed: Feed) -> Offset:
        """Return the offset after a feed's last record; 0: it has none."""
        return Offset(self._of(feed).end)

    def read(self, feed: Feed, start: int, stop: int) -> Iterator[Record]:
        """Yield the records of a feed with ``start <= offset < stop``, in order."""
        first = self._of(feed).number << _FEED_BITS
        at, last = first + max(start, 0), first + max(stop, 0)
        while at < last:
            rows = self._rows("WHERE id >= ? AND id < ? ORDER BY id LIMIT ?", (at, last, _READ_AT_ONCE))
            for row in rows:
                yield self._record(feed, first, row)
            if len(rows) < _READ_AT_ONCE:
                return
            at = rows[-1][0] + 1

    def read_at(self, feed: Feed, offsets: Sequence[int]) -> list[Record]:
        """Return the records of a feed at these offsets, those that are there."""
        first = self._of(feed).number << _FEED_BITS
        found: list[Record] = []
        for begin in range(0, len(offsets), _READ_AT_ONCE):
            ids = [first + offset for offset in offsets[begin : begin + _READ_AT_ONCE] if 0 <= offset < 1 << _FEED_BITS]
            rows = self._rows(f"WHERE id IN ({','.join('?' * len(ids))}) ORDER BY id", ids)
            found += [self._record(feed, first, row) for row in rows]
        return found

    def _rows(self, where: str, values: Sequence[int]) -> list[tuple[int, str, bytes | None, int, str | None]]:
        try:
            query = f"SELECT id, key, value, time_us, headers FROM records {where}"  # noqa: S608  # all of it is in this file
            return self._reader.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _record(self, feed: Feed, first: int, row: tuple[int, str, bytes | None, int, str | None]) -> Record:
        id_, key, value, time_us, headers = row
        return Record(
            feed.topic.removeprefix(self._prefix),
            feed.partition,
            Offset(id_ - first),
            key,
            value,
            time_us,
            json.loads(headers) if headers else None,
        )

    def _of(self, feed: Feed) -> _Known:
        known = self._known.get(feed)
        if known is None:
            with self._lock:
                known = self._known[feed] = self._look_up(feed)
        return known

    def _look_up(self, feed: Feed) -> _Known:
        try:
            found = self._writer.execute(
                "SELECT number, position FROM feeds WHERE topic=? AND partition=?", feed
            ).fetchone()
            if found is None:
                self._writer.execute("INSERT OR IGNORE INTO feeds(topic, partition, position) VALUES (?, ?, 0)", feed)
                return self._look_up(feed)
            number, position = found
            first = number << _FEED_BITS
            (last,) = self._writer.execute(
                "SELECT max(id) FROM records WHERE id >= ? AND id < ?", (first, first + (1 << _FEED_BITS))
            ).fetchone()
        except sqlite3.Error as error:
            raise self._failed(error) from error
        return _Known(number, position, 0 if last is None else last - first + 1)

    def _failed(self, error: sqlite3.Error) -> LogError:
        return LogError(
            f"the copies of the log in {self._name} failed: {error}. Nothing of the log is lost: free the disk, or delete the "
            f"file, and open the log again"
        )


def _discard_foreign(path: Path) -> None:
    """Delete a file that is damaged or of another format: it holds nothing but copies."""
    if not path.exists():
        return
    try:
        connection = sqlite3.connect(path, timeout=_BUSY_S)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version in (0, FORMAT):
                return
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
