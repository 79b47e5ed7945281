"""A cluster in memory behind the drivers' interface: transactions, markers, fencing, and faults where a test wants them.

It keeps to what Kafka promises and no more: offsets are used up by markers and by aborted records, a committed reader stops
before the first open transaction, and a fenced writer can do nothing more. A fault is given for one commit of one
transactional id: what became of it, and what its writer learns of that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import pytest

from gasoline_es.log.kafka import log, opening
from gasoline_es.log.kafka.drivers.port import (
    Admin,
    BrokerError,
    Committed,
    Driver,
    Fate,
    Feed,
    In,
    NewTopic,
    NotAllowed,
    NotWritten,
    Out,
    Reader,
    Refused,
    TopicInfo,
    Unknown,
    Writer,
)
from gasoline_es.log.kafka.settings import Address
from gasoline_es.log.kafka.who import worker_key

Fault = Literal["unanswered", "lost", "open", "refused", "aborted"]
"""Of one commit. ``unanswered``: it counts, and its writer is told that it is unknown. ``lost``: it does not count, and the
same. ``open``: its records are there, neither committed nor aborted, and the same. ``aborted``: its writer knows that."""


SILENT_AFTER_S: Final = 5.0
"""Longer than a loaded machine keeps a thread from giving signs of life; deaths are told (:meth:`Cluster.tell_death`)."""


@dataclass(slots=True)
class Transaction:
    """What was written together."""

    state: Literal["open", "committed", "aborted"] = "open"
    offsets: list[tuple[Feed, int]] = field(default_factory=list[tuple[Feed, int]])


@dataclass(slots=True)
class Entry:
    """An offset of a partition. Without a record: a marker, or a hole."""

    record: In | None
    transaction: Transaction


@dataclass(slots=True)
class _Topic:
    info: TopicInfo
    feeds: dict[int, list[Entry]] = field(default_factory=dict[int, list[Entry]])
    begins: dict[int, int] = field(default_factory=dict[int, int])


class Cluster:
    """What the drivers of all processes share."""

    def __init__(self) -> None:
        self.lock: Final = threading.Condition()
        self.topics: dict[str, _Topic] = {}
        self.hidden: set[str] = set()
        """Topics that nobody may see."""
        self.refusing: set[str] = set()
        """Topics that refuse every record for what it is, as a broker does whose clock is another."""
        self.away = False
        """No broker answers."""
        self.faults: dict[str, list[Fault]] = {}
        """By transactional id, for its next commits."""
        self.epochs: dict[str, int] = {}
        self.left_open: dict[str, list[Transaction]] = {}
        self.before_commit: Callable[[str], None] = lambda transactional_id: None
        """Called by a writer's thread before it commits."""
        self.after_commit: Callable[[str], None] = lambda transactional_id: None
        """Called by it after that, before it learns what became of it."""

    def answer(self) -> None:
        """Raises: BrokerError: nobody does."""
        if self.away:
            raise BrokerError("no broker answers")

    def has(self, feed: Feed) -> bool:
        """Whether there is such a partition."""
        topic = self.topics.get(feed.topic)
        return topic is not None and 0 <= feed.partition < topic.info.partitions

    def refuses(self, out: Out) -> bool:
        """Whether a record is larger than its topic takes."""
        limit = self.topics[out.feed.topic].info.config.get("max.message.bytes")
        return limit is not None and len(out.value or b"") > int(limit)

    def make_topic(self, name: str, partitions: int, **config: str) -> None:
        """Make a topic, as an administrator does; one of this name that is there is gone."""
        with self.lock:
            self.topics[name] = _Topic(TopicInfo(partitions, 1, config))

    def allow(self, name: str, *operations: str) -> None:
        """Let everybody do no more than this with a topic, by Kafka's words in capitals."""
        with self.lock:
            topic = self.topics[name]
            topic.info = replace(topic.info, allowed=frozenset({"DESCRIBE", *operations}))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        with self.lock:
            del self.topics[name]

    def entries(self, feed: Feed) -> list[Entry]:
        """Return what a partition holds."""
        topic = self.topics.get(feed.topic)
        if topic is None or not 0 <= feed.partition < topic.info.partitions:
            raise BrokerError(f"there is no {feed}")
        return topic.feeds.setdefault(feed.partition, [])

    def begin(self, feed: Feed) -> int:
        """Return the first offset that a partition still has."""
        self.entries(feed)
        return self.topics[feed.topic].begins.get(feed.partition, 0)

    def compact(self, feed: Feed) -> int:
        """Clean a partition as a broker does whose tombstones have waited for long enough; return how many records went.

        The newest record of each key stays, unless it is a tombstone. What the broker would still write to is no exception.
        """
        with self.lock:
            entries = self.entries(feed)[: self.stable_end(feed)]
            newest = {one.record.key: at for at, one in enumerate(entries) if one.record is not None}
            gone = [
                one
                for at, one in enumerate(entries)
                if one.record is not None and (newest[one.record.key] != at or one.record.value is None)
            ]
            for one in gone:
                one.record = None
            return len(gone)

    def write(self, transaction: Transaction, records: Sequence[Out]) -> list[int]:
        """Append records of an open transaction; return their offsets."""
        offsets: list[int] = []
        for out in records:
            entries = self.entries(out.feed)
            offset = len(entries)
            entries.append(
                Entry(In(out.feed, offset, out.key, out.value, tuple(out.headers), out.time_ms), transaction)
            )
            transaction.offsets.append((out.feed, offset))
            offsets.append(offset)
        return offsets

    def end(self, transaction: Transaction, state: Literal["committed", "aborted"]) -> None:
        """Commit or abort: a marker in every partition it has written to."""
        transaction.state = state
        for feed in dict.fromkeys(feed for feed, _ in transaction.offsets):
            self.entries(feed).append(Entry(None, transaction))
        self.lock.notify_all()

    def tell_death(self, workers: Feed, incarnation: str) -> None:
        """Spare tests the silence after which a process is taken for dead."""
        with self.lock:
            transaction = Transaction()
            sign = Out(workers, worker_key(incarnation), None, (), time.time_ns() // 1_000_000)
            self.write(transaction, [sign])
            self.end(transaction, "committed")

    def stable_end(self, feed: Feed) -> int:
        """Where a committed reader stops for now."""
        entries = self.entries(feed)
        for offset, entry in enumerate(entries):
            if entry.record is not None and entry.transaction.state == "open":
                return offset
        return len(entries)


class MemoryWriter(Writer):
    """A transactional id at work."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._epoch = 0

    def fence(self) -> None:
        with self._cluster.lock:
            self._cluster.answer()
            self._epoch = self._cluster.epochs[self._id] = self._cluster.epochs.get(self._id, 0) + 1
            for left in self._cluster.left_open.pop(self._id, []):
                self._cluster.end(left, "aborted")

    def commit(self, records: Sequence[Out]) -> Fate:
        self._cluster.before_commit(self._id)
        fate = self._commit(records)
        self._cluster.after_commit(self._id)
        return fate

    def _commit(self, records: Sequence[Out]) -> Fate:
        cluster = self._cluster
        with cluster.lock:
            if cluster.away:
                return NotWritten("no broker answers")
            if self._epoch == 0 or cluster.epochs.get(self._id) != self._epoch:
                return Refused(f"{self._id} was fenced")
            faults = cluster.faults.get(self._id)
            fault = faults.pop(0) if faults else None
            if fault == "lost":
                return Unknown("the answer got lost")
            unknown = [out.feed for out in records if not cluster.has(out.feed)]
            if unknown:  # a client waits for them as long as it may, and gives up
                return NotWritten(f"unknown: {unknown[0]}")
            if any(cluster.refuses(out) for out in records):
                return NotWritten("too large", too_large=True)
            refused = [out.feed.topic for out in records if out.feed.topic in cluster.refusing]
            if refused:
                return NotWritten("INVALID_TIMESTAMP", refused=refused[0])
            closed = [
                out.feed.topic
                for out in records
                if out.feed.topic in cluster.hidden or not cluster.topics[out.feed.topic].info.may("WRITE")
            ]
            if closed:
                return NotWritten(f"TOPIC_AUTHORIZATION_FAILED: {closed[0]}")
            transaction = Transaction()
            offsets = cluster.write(transaction, records)
            if fault == "open":
                cluster.left_open.setdefault(self._id, []).append(transaction)
                return Unknown("the answer got lost")
            if fault in ("aborted", "refused"):
                cluster.end(transaction, "aborted")
                return NotWritten("aborted") if fault == "aborted" else Refused("fenced")
            cluster.end(transaction, "committed")
            return Unknown("the answer got lost") if fault == "unanswered" else Committed(offsets)

    def close(self) -> None:
        self._epoch = 0


class MemoryReader(Reader):
    """Reads what is committed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._at: dict[Feed, int] = {}
        self._woken = False

    def assign(self, starts: Mapping[Feed, int]) -> None:
        with self._cluster.lock:
            begins = {feed: self._cluster.begin(feed) if self._cluster.has(feed) else 0 for feed in starts}
            self._at = {feed: self._at.get(feed, max(start, begins[feed])) for feed, start in starts.items()}

    def poll(self, max_records: int, timeout_s: float) -> Sequence[In]:
        until_s = time.monotonic() + timeout_s
        with self._cluster.lock:
            while True:
                found = self._take(max_records)
                left_s = until_s - time.monotonic()
                if found or self._woken or left_s <= 0:
                    self._woken = False
                    return found
                self._cluster.lock.wait(left_s)

    def _take(self, count: int) -> list[In]:
        found: list[In] = []
        if self._cluster.away:
            return found
        for feed, at in self._at.items():
            if not self._cluster.has(feed):
                continue  # whose topic is gone is waited for
            entries, stop = self._cluster.entries(feed), self._cluster.stable_end(feed)
            while at < stop and len(found) < count:
                entry = entries[at]
                if entry.record is not None and entry.transaction.state == "committed":
                    found.append(entry.record)
                at += 1
            self._at[feed] = at
        return found

    def position(self, feed: Feed) -> int:
        return self._at[feed]

    def seek(self, feed: Feed, offset: int) -> None:
        with self._cluster.lock:
            self._at[feed] = offset

    def stable_ends(self, feeds: Sequence[Feed], timeout_s: float) -> Mapping[Feed, int]:
        with self._cluster.lock:
            self._cluster.answer()
            return {feed: self._cluster.stable_end(feed) for feed in feeds}

    def ends(self, feeds: Sequence[Feed], timeout_s: float) -> Mapping[Feed, int]:
        with self._cluster.lock:
            self._cluster.answer()
            return {feed: len(self._cluster.entries(feed)) for feed in feeds}

    def begins(self, feeds: Sequence[Feed], timeout_s: float) -> Mapping[Feed, int]:
        with self._cluster.lock:
            self._cluster.answer()
            return {feed: self._cluster.begin(feed) for feed in feeds}

    def since(self, feeds: Mapping[Feed, int], timeout_s: float) -> Mapping[Feed, int]:
        with self._cluster.lock:
            self._cluster.answer()
            found: dict[Feed, int] = {}
            for feed, time_ms in feeds.items():
                entries = self._cluster.entries(feed)
                late = (
                    at for at, one in enumerate(entries) if one.record is not None and one.record.time_ms >= time_ms
                )
                found[feed] = next(late, len(entries))
            return found

    def wake(self) -> None:
        with self._cluster.lock:
            self._woken = True
            self._cluster.lock.notify_all()

    def close(self) -> None: ...


class MemoryAdmin(Admin):
    """Makes topics and looks at them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def describe(self, topics: Sequence[str], timeout_s: float, *, settings: bool = True) -> Mapping[str, TopicInfo]:
        with self._cluster.lock:
            self._cluster.answer()
            if hidden := self._cluster.hidden & {*topics}:
                raise NotAllowed(f"TOPIC_AUTHORIZATION_FAILED: {sorted(hidden)}")
            return {name: self._cluster.topics[name].info for name in topics if name in self._cluster.topics}

    def create(self, topics: Sequence[NewTopic], timeout_s: float) -> None:
        with self._cluster.lock:
            self._cluster.answer()
            for new in topics:
                self._cluster.topics.setdefault(new.name, _Topic(TopicInfo(new.partitions, 1, dict(new.config))))

    def delete_before(self, feeds: Mapping[Feed, int], timeout_s: float) -> None:
        with self._cluster.lock:
            self._cluster.answer()
            for feed, before in feeds.items():
                self._cluster.topics[feed.topic].begins[feed.partition] = before

    def cluster_id(self, timeout_s: float) -> str:
        self._cluster.answer()
        return "memory"

    def close(self) -> None: ...


class MemoryDriver(Driver):
    """A client library for a cluster in memory."""

    name = "memory"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def writer(self, transactional_id: str, timeout_s: float) -> Writer:
        return MemoryWriter(self._cluster, transactional_id)

    def reader(self, *, uncommitted: bool = False) -> Reader:
        assert not uncommitted
        return MemoryReader(self._cluster)

    def admin(self) -> Admin:
        return MemoryAdmin(self._cluster)

    def close(self) -> None: ...


def cluster_for_all(patch: pytest.MonkeyPatch) -> Cluster:
    """Make a cluster that every ``kafka://`` URL of this process is about, for as long as the patch holds."""
    cluster = Cluster()

    def make(_: Address) -> MemoryDriver:
        return MemoryDriver(cluster)

    patch.setattr(opening, "make_driver", make)
    patch.setattr(log, "SILENT_AFTER_S", SILENT_AFTER_S)
    patch.setattr(opening, "SILENT_AFTER_S", SILENT_AFTER_S)
    return cluster
