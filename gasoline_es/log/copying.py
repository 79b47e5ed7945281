"""Moves a namespace from one log to another: every record that means something there, checked one by one (0040).

Both places are closed while it is on its way, and the old one for good: see :mod:`gasoline_es.core.moving`. Whatever ends it
in between, the same call again goes on from there. What is at the new place already is never taken for granted: it is
compared, record by record, with what belongs there. So the pass that copies and the pass that checks are the same.
"""

from __future__ import annotations

import asyncio
import heapq
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import orjson

from gasoline_es.clock import Clock, SystemClock
from gasoline_es.core.durations import format_time
from gasoline_es.core.letters import WAITING
from gasoline_es.core.moving import (
    KEY,
    STREAMS,
    Mark,
    State,
    home_of,
    home_of_command,
    suspects_of,
    tracks_histories,
)
from gasoline_es.core.packets import decode_packet
from gasoline_es.core.stored_events import TRACKING, TrackingStored, decode_stored
from gasoline_es.core.topics import OWNERS_TOPICS, Topics
from gasoline_es.errors import CopyRefused, LogError, PartitionOwned
from gasoline_es.log.moved import newest_first, newest_mark
from gasoline_es.log.opening import directory_of, open_log
from gasoline_es.log.port import Appended, Log, Member, NewRecord, Owner, Ownership, Position, Record, Section, Tail

Progress = Callable[[str, int, int], None]
"""Told what is being done ("copying" or "checking"), and how many records of how many, about, are done."""

MESSAGES_KEPT_US: Final = 3600 * 1_000_000
"""Messages that are older have expired everywhere."""
_READ_RECORDS: Final = 4_096
_READ_BYTES: Final = 4_000_000
"""So much is read ahead at a time, of all partitions together."""
_APPEND_RECORDS: Final = 2_000
_APPEND_BYTES: Final = 4_000_000
"""So much is appended at a time, of all partitions together."""
_TURN: Final = 500
"""So many records are looked at before the event loop gets a turn."""
_POLL: Final = 1_000
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Topic:
    """What became of a topic. ``found``: so many of its records were at the new place already, of a copy that was broken off.

    ``digest``: of all its records as they are at the new place, the same for equal records in whatever partitions: the sum of
    the sha-256 of each, modulo 2^256, in hex.
    """

    records: int
    found: int
    digest: str


@dataclass(frozen=True, slots=True)
class Copied:
    """What :func:`copy_log` has done. ``again``: nothing, because all of it had been copied before."""

    source: str
    target: str
    namespace: str
    partitions: tuple[int, int]
    topics: Mapping[str, Topic] = field(default_factory=dict[str, Topic])
    again: bool = False


class _Content(NamedTuple):
    """What of a record is the same everywhere."""

    key: str
    value: bytes | None
    time: int
    headers: Mapping[str, str]


async def copy_log(
    source: str,
    target: str,
    *,
    namespace: str | None = None,
    partitions: int | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Copied:
    """Move a namespace from the log at the URL ``source`` to the one at ``target``, which is made with so many partitions.

    ``namespace`` None: the one that a Kafka URL names, else ``default``; it is called the same at both places, because ids are
    made of its name. ``partitions`` None: one for an application that is event-sourced by itself, else as the kind of log has
    it, or as it was made before. On return all of it is durable at the new place and was read again from there; whoever opens
    the old place for writing gets :class:`LogMoved`. Broken off at any point, the same call again goes on from there;
    :func:`reopen` gives it up instead.

    Raises: CopyRefused: somebody works at one of the places, or the new one holds something else; the message says what, and
        nothing was moved. LogCorrupt: damage, where it is. LogError.
    """
    name = namespace_of(source, target, namespace=namespace)
    _refuse_within(source, target)
    async with _open_old(source, name) as old:
        await _refuse_before_made(old, target)
        # Before the new place is made: with how many partitions it is made cannot be changed.
        if partitions != 1 and await _holds_stored(old):
            if partitions is not None:
                raise _refuse_many(old, partitions)
            partitions = 1
        new = await open_log(target, namespace=name, partitions=partitions)
        async with _closing(new):
            return await copy_between(old, new, lambda: _open_again(new, name), progress=progress, clock=clock)


async def copy_between(
    old: Log,
    new: Log,
    again: Callable[[], AbstractAsyncContextManager[Log]],
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Copied:
    """The same for logs that are open for writing and own nothing. ``again`` opens the new one anew, to read what it holds."""
    return await _Copying(old, new, progress or (lambda doing, done, total: None), clock or SystemClock()).run(again)


async def reopen(url: str, *, namespace: str | None = None) -> None:
    """Let a namespace go on where it was, whose copy was broken off. What was copied is of no use, but to copy again.

    Raises: CopyRefused: it is not being moved, or all of it was; somebody works there. LogError.
    """
    async with _open_old(url, namespace_of(url, namespace=namespace)) as log:
        await reopen_log(log)


async def reopen_log(log: Log, clock: Clock | None = None) -> None:
    """The same for a log that is open for writing and owns nothing."""
    taken = await _take_all(log, "open it again")
    moving = taken.marks[0]
    if moving is None or moving.state != "leaving":
        closed = (
            "was moved for good" if moving is not None and moving.state == "left" else "is not being moved from here"
        )
        raise CopyRefused(
            f"namespace {log.namespace!r} of {log.url} {closed}: only one whose copy was broken off, before all was "
            f"copied, can be opened again",
            url=log.url,
        )
    # The first partition last: until then nobody opens the log.
    for index in reversed(range(log.partition_count)):
        await taken.write("staying", moving, clock or SystemClock(), [index])


# --- opening ----------------------------------------------------------------------------------------------------------


def namespace_of(*urls: str, namespace: str | None = None) -> str:
    """Return which namespace is meant by URLs and what was given besides. Raises: CopyRefused: they name two; LogError."""
    named = set[str]() if namespace is None else {namespace}
    for url in urls:
        if url.startswith("kafka:"):
            from gasoline_es.log.kafka.settings import Address

            if (of_url := Address.of(url).namespace) is not None:
                named.add(of_url)
    if len(named) > 1:
        raise CopyRefused(
            f"two namespaces are named, {' and '.join(map(repr, sorted(named)))}: a namespace is called the same at both "
            f"places, because ids are made of its name. Name one",
        )
    return named.pop() if named else "default"


@asynccontextmanager
async def _open_old(url: str, namespace: str) -> AsyncGenerator[Log]:
    # For reading first: that makes nothing where nothing is.
    async with _closing(await open_log(url, namespace=namespace, readonly=True)):
        pass
    log = await open_log(url, namespace=namespace)
    async with _closing(log):
        yield log


def _refuse_within(source: str, target: str) -> None:
    """Raises: CopyRefused: one of the directories lies in the other, which would be copied, backed up and removed with it."""
    if not (source.startswith("file:") and target.startswith("file:")):
        return
    old, new = (Path(directory_of(url)).resolve() for url in (source, target))
    if old != new and (old in new.parents or new in old.parents):
        raise CopyRefused(f"{source} and {target} lie one in the other: copy to a directory beside it", url=source)


async def _refuse_before_made(old: Log, target: str) -> None:
    """Refuse what can be known to be refused before anything is made at the new place. Raises: CopyRefused; LogError."""
    _refuse_others(old, "copy")
    topic = Topics(old.namespace).registry
    await old.refresh((topic, 0))
    mark = newest_mark(old, 0, old.end(topic, 0))
    goes_on = mark is None or not mark.closed
    try:
        new = await open_log(target, namespace=old.namespace, readonly=True)
    except LogError:
        pass  # nothing is there yet; or it is damaged, which is told where it is opened for writing
    else:
        async with _closing(new):
            _refuse_same(old, new)
            goes_on = goes_on or _says(mark, new, "leaving", "left")
    if mark is not None and not goes_on:
        raise CopyRefused(mark.refusal(old.url, old.namespace), url=old.url)


def _refuse_same(old: Log, new: Log) -> None:
    if old.log_id == new.log_id:
        raise CopyRefused(f"{old.url} and {new.url} are the same log: copy to another")


async def _holds_stored(log: Log) -> bool:
    """Whether it is the namespace of an application that is event-sourced by itself. Such have one partition."""
    topic = Topics(log.namespace).stored
    await log.refresh((topic, 0))
    return log.partition_count == 1 and log.end(topic, 0) > 0


def _refuse_many(old: Log, partitions: int) -> CopyRefused:
    return CopyRefused(
        f"namespace {old.namespace!r} of {old.url} holds an application that is event-sourced by itself, and such have one "
        f"partition: copy it with partitions=1 (--partitions 1) or say none, not {partitions}",
        url=old.url,
    )


@asynccontextmanager
async def _open_again(log: Log, namespace: str) -> AsyncGenerator[Log]:
    """Open a log for reading that knows nothing of what this process has written."""
    if not log.remote:
        async with _closing(await open_log(log.url, namespace=namespace, readonly=True)) as opened:
            yield opened
        return
    from dataclasses import replace

    from gasoline_es.log.kafka.settings import Address

    with TemporaryDirectory(prefix="gasoline-copy-") as directory:
        url = str(replace(Address.of(log.url), state_dir=directory))
        async with _closing(await open_log(url, namespace=namespace, readonly=True)) as opened:
            yield opened


@asynccontextmanager
async def _closing(log: Log) -> AsyncGenerator[Log]:
    try:
        yield log
    finally:
        await log.close()


def _waiting(log: Log, topic: str, partition: int, stop: int) -> dict[str, int]:
    """Return where the dead letters are that wait in a partition of the registry, by their keys."""
    found: dict[str, int] = {}
    for record in log.read(topic, partition, 0, stop):
        if record.key.startswith(WAITING):
            found.pop(record.key, None)
            if record.value is not None and record.offset is not None:
                found[record.key] = record.offset
    return found


# --- taking both places -----------------------------------------------------------------------------------------------


class _Taken:
    """All partitions of a namespace, owned here."""

    def __init__(self, log: Log) -> None:
        self.log: Final = log
        self.topics: Final = Topics(log.namespace)
        self.owned: Final[dict[int, Ownership]] = {}
        self.marks: Final[dict[int, Mark | None]] = {}
        """What is said of a move, by partition."""
        self.suspects: Final[dict[int, tuple[str, ...] | None]] = {}
        """As in :class:`Mark`, by partition."""

    def end(self, name: str, partition: int) -> int:
        """Return where a topic of a partition ended when it was taken."""
        return self.owned[partition].ends.get(f"{self.log.namespace}.{name}", 0)

    def position(self, partition: int) -> Position | None:
        """Return how far the inbox was consumed; None: not at all."""
        key = self.topics.position_key(partition)
        for record in newest_first(self.log, partition, self.end("registry", partition)):
            if record.key == key and record.value is not None:
                return Position(orjson.loads(record.value))
        return None

    async def take(self, partition: int) -> None:
        """Take a partition, with what its last owner leaves. Raises: PartitionOwned; LogError."""
        former = self.log.owner(partition)
        self.owned[partition] = await self.log.acquire(partition)
        mark = self.marks[partition] = newest_mark(self.log, partition, self.end("registry", partition))
        left = mark is not None and mark.state in ("leaving", "left")
        self.suspects[partition] = mark.suspects if left and mark is not None else self._left_by(partition, former)

    def _left_by(self, partition: int, former: Owner | None) -> tuple[str, ...] | None:
        if former is None:
            return ()
        if not former.released:
            return None
        key = self.topics.suspects_key(partition)
        for record in islice(newest_first(self.log, partition, self.end("registry", partition)), _READ_RECORDS):
            if record.key == key and record.value is not None:
                left = orjson.loads(record.value)
                if left["epoch"] != former.epoch:
                    return ()
                return None if left["workflows"] is None else tuple(left["workflows"])
        return ()

    async def append(self, partition: int, records: Iterable[NewRecord]) -> None:
        """Append an owner's records. Raises: LogError: they do not count, or it is not known."""
        await appended(self.log, [Section(partition, self.owned[partition].epoch, list(records))])

    async def write(self, state: State, other: Log | Mark, clock: Clock, partitions: Iterable[int]) -> None:
        """Say in some partitions, one after the other, how far the namespace has moved. The next owner hears of suspects."""
        now_us = clock.now_us()
        for index in partitions:
            suspects = self.suspects[index]
            leaves = state in ("leaving", "left")
            count = other.partitions if isinstance(other, Mark) else other.partition_count
            told = suspects if leaves else ()
            mark = Mark(state, other.log_id, other.url, count, format_time(now_us), told)
            records = [NewRecord(self.topics.registry, index, KEY, mark.json(), now_us)]
            if state in ("staying", "arrived") and suspects != ():
                note = orjson.dumps({"epoch": self.owned[index].epoch, "workflows": suspects})
                records.insert(0, NewRecord(self.topics.registry, index, self.topics.suspects_key(index), note, now_us))
            await self.append(index, records)
            self.marks[index] = mark


async def _take_all(log: Log, what: str) -> _Taken:
    """Take every partition. Raises: CopyRefused: somebody works there."""
    taken = _Taken(log)
    await log.refresh()
    _refuse_others(log, what)
    for partition in range(log.partition_count):
        try:
            await taken.take(partition)
        except PartitionOwned as error:
            raise CopyRefused(f"{error.message}: end it, and {what} then", url=log.url) from error
    return taken


def _refuse_others(log: Log, what: str) -> None:
    """Raises: CopyRefused: somebody else has the namespace open for writing."""
    others = log.others()
    if others:
        named = ", ".join(map(_told, others[:_NAMED])) + (
            f" and {len(others) - _NAMED} more" if others[_NAMED:] else ""
        )
        wait = ". One that was killed is taken for dead ten seconds later" if log.remote else ""
        raise CopyRefused(
            f"namespace {log.namespace!r} of {log.url} is open for writing elsewhere ({named}): end that, and "
            f"{what} then{wait}",
            url=log.url,
            others=[other.incarnation for other in others],
        )


def _told(other: Member) -> str:
    return f"process {other.pid} on {other.host}" if other.pid else other.incarnation


async def appended(log: Log, sections: list[Section]) -> None:
    """Append. Raises: LogError: not all of it counts."""
    for outcome in await log.append(sections):
        if not isinstance(outcome, Appended):
            raise outcome


# --- copying ----------------------------------------------------------------------------------------------------------


class _Writing:
    """Collects what is to be appended, by partition, and appends it when it is much."""

    def __init__(self, taken: _Taken, *, owned: bool) -> None:
        self._taken: Final = taken
        self._owned: Final = owned
        self._open: dict[int, list[NewRecord]] = {}
        self._count = 0
        self._bytes = 0

    async def add(self, topic: str, partition: int, record: Record) -> None:
        """Append a record to a partition of a topic, sooner or later."""
        made = NewRecord(topic, partition, record.key, record.value, record.time_us, record.headers)
        self._open.setdefault(partition, []).append(made)
        self._count += 1
        self._bytes += len(record.value or b"")
        if self._count >= _APPEND_RECORDS or self._bytes >= _APPEND_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Append what is left; durable on return. Raises: LogError."""
        records, self._open, self._count, self._bytes = self._open, {}, 0, 0
        if not records:
            return
        log, owned = self._taken.log, self._taken.owned
        if self._owned:
            await appended(log, [Section(index, owned[index].epoch, its) for index, its in records.items()])
        else:
            # Without an epoch: what anyone writes has no offsets, and stays in the order of one writer.
            await appended(log, [Section(min(records), None, [one for its in records.values() for one in its])])


class _Tally:
    """Counts and digests records of a topic."""

    def __init__(self) -> None:
        self.records = 0
        self.found = 0
        self._sum = 0

    def add(self, content: _Content) -> None:
        """Count a record as it is at the new place."""
        told = orjson.dumps([content.key, content.time, dict(content.headers)]) + b"\n" + (content.value or b"")
        self._sum = (self._sum + int.from_bytes(sha256(told).digest(), "big")) % (1 << 256)
        self.records += 1

    def topic(self) -> Topic:
        return Topic(self.records, self.found, f"{self._sum:064x}")


class _Copying:
    """One call of :func:`copy_between`."""

    def __init__(self, old: Log, new: Log, progress: Progress, clock: Clock) -> None:
        self._old: Final = old
        self._new: Final = new
        self._progress: Final = progress
        self._clock: Final = clock
        self._topics: Final = Topics(old.namespace)
        self._unit_us: Final = max(old.time_unit_us, new.time_unit_us)
        self._found: Final[dict[str, int]] = {}
        self._doing = "copying"
        self._done = 0
        self._total = 0
        self._looked = 0
        self._from: _Taken
        self._to: _Taken

    async def run(self, again: Callable[[], AbstractAsyncContextManager[Log]]) -> Copied:
        """Do all of it."""
        old, new = self._old, self._new
        if old.namespace != new.namespace:
            raise CopyRefused(
                f"a namespace is called the same at both places, not {old.namespace!r} and {new.namespace!r}"
            )
        _refuse_same(old, new)
        self._from = await _take_all(old, "copy")
        mark = self._from.marks[0]
        if mark is not None and mark.closed and not _says(mark, new, "leaving", "left"):
            raise CopyRefused(mark.refusal(old.url, old.namespace), url=old.url)
        if await self._is_done():
            return self._copied({}, again=True)
        self._to = await _take_all(new, "copy")
        await self._check_target()
        self._check_stored()
        await self._close_both()
        await self._pass("copying", new, write=True)
        await self._copy_messages()
        async with again() as read:
            tallies = await self._pass("checking", read, write=False)
        await self._open_new()
        return self._copied({name: tally.topic() for name, tally in tallies.items()}, again=False)

    def _copied(self, topics: Mapping[str, Topic], *, again: bool) -> Copied:
        counts = (self._old.partition_count, self._new.partition_count)
        return Copied(self._old.url, self._new.url, self._old.namespace, counts, topics, again)

    # --- what may be copied where -------------------------------------------------------------------------------------

    async def _is_done(self) -> bool:
        """Whether all was copied before. Others may work there: nothing is compared, nor taken from them."""
        if not _says(self._from.marks[0], self._new, "left"):
            return False
        topic = self._topics.registry
        await self._new.refresh((topic, 0))
        mark = newest_mark(self._new, 0, self._new.end(topic, 0))
        return mark is not None and not _says(mark, self._old, "arriving")

    async def _check_target(self) -> None:
        """Raises: CopyRefused: the new place is neither new nor a copy of this log that was broken off."""
        sent = await _tails(self._new, self._topics.inbox)
        for index, mark in self._to.marks.items():
            if mark is not None and mark.log_id == self._old.log_id and mark.state in ("arriving", "arrived"):
                if mark.partitions != self._old.partition_count:
                    raise self._not_new(f"a copy of one with {mark.partitions} partitions")
                continue
            if mark is not None and mark.closed:
                raise self._not_new(f"something that is being moved, from or to {mark.url}")
            for name in OWNERS_TOPICS:
                if (end := self._to.end(name, index)) > 0:
                    raise self._not_new(f"{end} records of {name} in partition {index}")
            if sent[index].poll(1):
                raise self._not_new(f"commands in the inbox of partition {index}")

    def _not_new(self, holds: str) -> CopyRefused:
        return CopyRefused(
            f"namespace {self._new.namespace!r} of {self._new.url} holds something else: {holds}. A log is copied to a new "
            f"place, or goes on where a copy of it was broken off: name another",
            url=self._new.url,
        )

    def _check_stored(self) -> None:
        """Raises: CopyRefused: what applications have stored would not mean the same at the new place."""
        held = next((p for p in self._from.owned if self._from.end("stored", p) > 0), None)
        if held is None:
            return
        if self._new.partition_count != 1:
            raise _refuse_many(self._old, self._new.partition_count)
        same = self._old.partition_count == self._new.partition_count and not (self._old.remote or self._new.remote)
        if same:
            return
        for index in range(self._old.partition_count):
            for record in self._feed(self._old, "stored", index, self._from.end("stored", index), 1):
                if not record.key.startswith(TRACKING) or record.value is None:
                    continue
                events = decode_stored(record.value).events
                names = [one.application for one in events if isinstance(one, TrackingStored)]
                if (tracked := tracks_histories(names, self._old.namespace)) is not None:
                    raise CopyRefused(
                        f"record {record.key!r} of stored says how far an application has followed the histories {tracked!r}, "
                        f"by the numbers that events have here: they get others at the new place, as the number of partitions "
                        f"or the kind of log is another. Copy to a log in files with the same number of partitions",
                        url=self._old.url,
                    )

    # --- closing and opening ------------------------------------------------------------------------------------------

    async def _close_both(self) -> None:
        """Let nobody else work at either place. Raises: CopyRefused: somebody has come."""
        old, new = self._old, self._new
        # What is said already is said: a copy that goes on adds nothing.
        unsaid = [p for p, mark in self._to.marks.items() if not _says(mark, old, "arriving", "arrived")]
        await self._to.write("arriving", old, self._clock, unsaid)
        for index in [p for p, mark in self._from.marks.items() if not _says(mark, new, "leaving", "left")]:
            await self._from.write("leaving", new, self._clock, [index])
            if index == 0:
                try:
                    await self._look_who_came()
                except CopyRefused:
                    await self._from.write("staying", new, self._clock, [0])
                    raise

    async def _look_who_came(self) -> None:
        """Whoever opened a log before it said that it is closed is seen now; whoever does later sees what it says."""
        for log in (self._old, self._new):
            await log.refresh()
            _refuse_others(log, "copy")

    async def _open_new(self) -> None:
        """Let the namespace go on at the new place: the old one first says that it does not, whatever comes."""
        old, new = self._old, self._new
        await self._from.write("left", new, self._clock, range(old.partition_count))
        for index in range(new.partition_count):
            self._to.suspects[index] = suspects_of(index, new.partition_count, self._from.suspects, old.partition_count)
        await self._to.write("arrived", old, self._clock, reversed(range(new.partition_count)))

    # --- the pass that copies, and the pass that checks ---------------------------------------------------------------

    async def _pass(self, doing: str, place: Log, *, write: bool) -> dict[str, _Tally]:
        """Go through all that belongs at the new place; what is there must be that. What is not is written, or missing."""
        self._doing, self._done = doing, 0
        self._total = sum(self._from.end(name, p) for name in STREAMS for p in self._from.owned)
        tallies: dict[str, _Tally] = {}
        for name in STREAMS:
            tallies[name] = await self._stream(name, place, write=write)
        tallies["index"] = await self._index(place, write=write)
        tallies["inbox"] = await self._inbox(place, write=write)
        await self._letters(place, write=write)
        if write:
            self._found.update({name: tally.found for name, tally in tallies.items()})
        else:
            for name, tally in tallies.items():
                tally.found = self._found[name]
        return tallies

    async def _stream(self, name: str, place: Log, *, write: bool) -> _Tally:
        """One of the topics whose records keep their order."""
        topic, count = f"{self._new.namespace}.{name}", self._new.partition_count
        await self._ready(place, topic)
        there = [self._feed(place, name, p, place.end(topic, p), count) for p in range(count)]
        writing, tally = _Writing(self._to, owned=True), _Tally()
        for record in self._merged(name):
            home = self._home(name, record, count)
            found = next(there[home], None)
            if found is None:
                if not write:
                    raise self._missing(topic, home, record)
                await writing.add(topic, home, record)
            else:
                tally.found += 1
                self._compare(topic, home, record, found)
                tally.add(self._content(found))
            await self._step()
        for home, rest in enumerate(there):
            if (found := next(rest, None)) is not None:
                raise self._not_of(topic, home, found)
        await writing.flush()
        return tally

    async def _index(self, place: Log, *, write: bool) -> _Tally:
        """The topic of which the last record of each key counts: others may be gone from either place."""
        topic, count = self._topics.index, self._new.partition_count
        await self._ready(place, topic)
        writing, tally = _Writing(self._to, owned=True), _Tally()
        with closing(
            sqlite3.connect("", isolation_level=None)
        ) as rows:  # on disk once it is large, and gone with the process
            for table in ("here", "there"):
                rows.execute(
                    f"CREATE TABLE {table} (key TEXT, home INTEGER, time INTEGER, value BLOB, PRIMARY KEY (key, home))"
                )
            rows.execute("BEGIN")
            for record in self._merged("index"):
                self._stand(rows, "here", record, self._home("index", record, count))
                await self._step(0)
            for home in range(count):
                for record in self._feed(place, "index", home, place.end(topic, home), count):
                    self._stand(rows, "there", record, home)
                    await self._step(0)
            for key, home, time, value, there in rows.execute(
                "SELECT here.key, here.home, here.time, here.value, there.value FROM here LEFT JOIN there USING (key, home) "
                "ORDER BY here.rowid"
            ):
                record = Record(topic, home, None, key, value, time)
                if there == value:
                    tally.found += 1
                    tally.add(self._content(record))
                elif write:
                    await writing.add(topic, home, record)
                else:
                    raise self._missing(topic, home, record)
            for key, home, time in rows.execute(
                "SELECT there.key, there.home, there.time FROM there LEFT JOIN here USING (key, home) WHERE here.key IS NULL"
            ):
                record = Record(topic, home, None, key, None, time)
                if not write:
                    raise self._not_of(topic, home, record)
                await writing.add(topic, home, record)
        await writing.flush()
        return tally

    def _stand(self, rows: sqlite3.Connection, table: str, record: Record, home: int) -> None:
        if record.value is None:
            rows.execute(f"DELETE FROM {table} WHERE key = ? AND home = ?", (record.key, home))  # noqa: S608  # a name of ours
        else:
            time = record.time_us
            rows.execute(f"REPLACE INTO {table} VALUES (?, ?, ?, ?)", (record.key, home, time, record.value))  # noqa: S608

    async def _inbox(self, place: Log, *, write: bool) -> _Tally:
        """Commands that nobody has consumed yet."""
        topic, count = self._topics.inbox, self._new.partition_count
        there = [_polled(tail) for tail in await _tails(place, topic)]
        sent = await _tails(self._old, topic, self._from.position)
        writing, tally = _Writing(self._to, owned=False), _Tally()
        before = self._old.partition_count
        for index in range(before):
            for record in _polled(sent[index]):
                home = home_of_command(record.key, record.value, index, before, count)
                if home is None:
                    continue
                found = next(there[home], None)
                if found is not None:
                    tally.found += 1
                    self._compare(topic, home, record, found)
                    tally.add(self._content(found))
                elif write:
                    await writing.add(topic, home, record)
                else:
                    raise self._missing(topic, home, record)
                await self._step(0)
        for home, rest in enumerate(there):
            if (found := next(rest, None)) is not None:
                raise self._not_of(topic, home, found)
        await writing.flush()
        return tally

    async def _letters(self, place: Log, *, write: bool) -> None:
        """Dead letters that wait in the registry, of which nothing else goes along. By its key each is there once."""
        topic, count = self._topics.registry, self._new.partition_count
        await self._ready(place, topic)
        there = [_waiting(place, topic, home, place.end(topic, home)) for home in range(count)]
        writing = _Writing(self._to, owned=True)
        for index in self._from.owned:
            home = index % count
            for key, at in _waiting(self._old, topic, index, self._from.end("registry", index)).items():
                (record,) = self._old.read(topic, index, at, at + 1)
                found = there[home].get(key)
                if found is not None:
                    self._compare(topic, home, record, next(place.read(topic, home, found, found + 1)))
                elif write:
                    await writing.add(topic, home, record)
                else:
                    raise self._missing(topic, home, record)
                await self._step(0)
        await writing.flush()

    async def _copy_messages(self) -> None:
        """Messages that have not expired. Nobody promises that none is lost: those that are there are there once."""
        topic, count = self._topics.messages, self._new.partition_count
        since_us = self._clock.now_us() - MESSAGES_KEPT_US
        sent, there = await _tails(self._old, topic), await _tails(self._new, topic)
        writing = _Writing(self._to, owned=False)
        with closing(sqlite3.connect("", isolation_level=None)) as rows:
            rows.execute("CREATE TABLE there (digest BLOB PRIMARY KEY)")
            rows.execute("BEGIN")
            for tail in there:
                for record in _polled(tail):
                    rows.execute("INSERT OR IGNORE INTO there VALUES (?)", (self._digest(record),))
                    await self._step(0)
            for tail in sent:
                for record in _polled(tail):
                    if record.time_us < since_us or record.value is None:
                        continue
                    with suppress(ValueError):  # none of ours: nobody reads it there either
                        home = self._topics.message_partition(decode_packet(record.value).name, count)
                        if (
                            rows.execute("SELECT 1 FROM there WHERE digest = ?", (self._digest(record),)).fetchone()
                            is None
                        ):
                            await writing.add(topic, home, record)
                    await self._step(0)
        await writing.flush()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _ready(self, log: Log, topic: str) -> None:
        """Have everything that a topic holds."""
        await log.refresh(*((topic, p) for p in range(log.partition_count)))

    def _merged(self, name: str) -> Iterator[Record]:
        """Yield what the old place holds of a topic, by time where partitions come together: the same for each call."""
        count = self._old.partition_count
        feeds = [self._feed(self._old, name, p, self._from.end(name, p), count) for p in range(count)]
        return feeds[0] if count == 1 else heapq.merge(*feeds, key=_time_of)

    def _feed(self, log: Log, name: str, partition: int, stop: int, beside: int) -> Iterator[Record]:
        """Yield the records of a partition of an owners' topic, of which some are read ahead. ``beside``: so many at a time."""
        topic, at = f"{log.namespace}.{name}", 0
        count, size = max(_READ_RECORDS // beside, 16), max(_READ_BYTES // beside, 16_000)
        while at < stop:
            chunk: list[Record] = []
            read = 0
            for record in islice(log.read(topic, partition, at, stop), count):
                chunk.append(record)
                read += len(record.value or b"")
                if read >= size:
                    break
            if not chunk:
                return
            yield from chunk
            last = chunk[-1].offset
            assert last is not None
            at = last + 1

    def _home(self, name: str, record: Record, count: int) -> int:
        try:
            return home_of(name, record.key, count)
        except ValueError as error:
            raise CopyRefused(
                f"{self._old.url}: {error}. It stands at offset {record.offset} of partition {record.partition}",
                url=self._old.url,
            ) from error

    async def _step(self, records: int = 1) -> None:
        """Count records; let others have a turn now and then."""
        self._done += records
        self._looked += 1
        if self._looked % _TURN == 0:
            self._progress(self._doing, self._done, self._total)
            await asyncio.sleep(0)

    # --- comparing ----------------------------------------------------------------------------------------------------

    def _content(self, record: Record) -> _Content:
        return _Content(record.key, record.value, record.time_us // self._unit_us, record.headers or {})

    def _digest(self, record: Record) -> bytes:
        content = self._content(record)
        return sha256(f"{content.key}\n{content.time}\n".encode() + (content.value or b"")).digest()

    def _compare(self, topic: str, home: int, wanted: Record, found: Record) -> None:
        """Raises: CopyRefused: they are not the same; names both places and what differs."""
        want, have = self._content(wanted), self._content(found)
        if want == have:
            return
        differs = next(name for name, one, other in zip(want._fields, want, have, strict=True) if one != other)
        raise CopyRefused(
            f"{_where(topic, home, found)} of {self._new.url} is not {_where(topic, wanted.partition, wanted)} of "
            f"{self._old.url}: the {differs} differs. What is there is not a copy of this log as it is now. "
            f"Copy to a new place",
            topic=topic,
            partition=home,
            key=found.key,
        )

    def _missing(self, topic: str, home: int, record: Record) -> CopyRefused:
        return CopyRefused(
            f"{_where(topic, record.partition, record)} of {self._old.url} is not in partition {home} of {self._new.url}, "
            f"though it was copied: copy again, which adds what is missing",
            topic=topic,
            partition=home,
            key=record.key,
        )

    def _not_of(self, topic: str, home: int, record: Record) -> CopyRefused:
        return CopyRefused(
            f"{_where(topic, home, record)} of {self._new.url} is not of {self._old.url}: what is there is not a copy of this "
            f"log as it is now. Copy to a new place",
            topic=topic,
            partition=home,
            key=record.key,
        )


def _where(topic: str, partition: int, record: Record) -> str:
    at = "" if record.offset is None else f", offset {record.offset}"
    return f"record {record.key!r} of topic {topic!r} (partition {partition}{at})"


def _says(mark: Mark | None, other: Log, *states: State) -> bool:
    return mark is not None and mark.state in states and mark.log_id == other.log_id


def _time_of(record: Record) -> int:
    return record.time_us


async def _tails(
    log: Log, topic: str, position: Callable[[int], Position | None] = lambda partition: None
) -> list[Tail]:
    """Open all partitions of a many-writer topic, which have everything that was published before, to be polled."""
    tails = [log.tail(topic, partition, position(partition)) for partition in range(log.partition_count)]
    await log.refresh(*((topic, partition) for partition in range(log.partition_count)))
    return tails


def _polled(tail: Tail) -> Iterator[Record]:
    """Yield what a tail has yet to give."""
    while records := tail.poll(_POLL):
        yield from records
