"""What the Kafka log needs of a client library, and no more. Everything here blocks; the log calls it in threads.

A driver makes writers, readers and an admin. Each of them is used by one thread at a time, but for what says
otherwise; different ones may be used by as many threads at once as there are. Times are in seconds, offsets are Kafka's.
Topics are whole names, as the broker knows them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from gasoline_es.errors import LogError

FIRST: Final = -2
"""Where a reader starts that wants whatever the broker still has. An offset that it has no more is an error otherwise."""

FETCH_WAIT_MS: Final = 100
"""How long a broker holds a reader's request that it has nothing for. Meanwhile the reader can ask for nothing else."""

REQUEST_BYTES_MAX: Final = 1024 * 1024
"""What a writer sends at once, and so the largest record that it takes: just below what brokers take, unless set otherwise.

What the client itself refuses leaves the records beside it alone.
"""


class Feed(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Out(NamedTuple):
    """A record to write. ``value`` None: a tombstone."""

    feed: Feed
    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    time_ms: int


class In(NamedTuple):
    """A record as read."""

    feed: Feed
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    """Anybody may have written one without a value."""
    time_ms: int


# --- what becomes of a transaction --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """All of it is there, and visible. ``offsets``: of each record, in order."""

    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing of it is there, nor ever will be: this writer was fenced.

    By another one with its transactional id, or by the broker, for a transaction that was open for too long.
    """

    why: str


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Nothing of it is there, nor ever will be; the same may be tried again. ``too_large``: the broker takes no such record."""

    why: str
    too_large: bool = False
    refused: str | None = None
    """The topic that has refused a record for what it is: for its time, say. So it will again, until somebody changes that."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may be there, may not, or may come. It is certain once the transactional id was fenced again and that was read."""

    why: str
    fenced: bool = False
    """That has happened already, as for :class:`Refused`: it is for the other one to read, which fencing again would fence."""


Fate = Committed | Refused | NotWritten | Unknown


class BrokerError(LogError):
    """The broker was not reached in time, or has refused what was asked. Nothing is known about what was asked."""

    retryable = True


class NotAllowed(BrokerError):
    """The cluster's permissions keep this process from what was asked. Of a topic that may not be seen, it may not be there."""


class OffsetNotTold(Exception):
    """A client gave no offset, and no error: the partition has no leader, say. It is asked again; never seen outside."""


def told(feed: Feed, spec: int, offset: int) -> int:
    """Return the offset that a client gave for a begin, an end (``spec`` below 0) or a time, for which there may be none: -1.

    Raises: OffsetNotTold: taken for an offset, it would make a partition look empty.
    """
    if offset < (0 if spec < 0 else -1):
        raise OffsetNotTold(f"topic {feed.topic!r}, partition {feed.partition}: no offset was told ({offset})")
    return offset


class OffsetGone(BrokerError):
    """A reader is to read on where the broker has nothing: its records were deleted, or there have never been so many.

    Fields: ``topic``, ``partition``, ``offset``, ``begin``, ``end``.
    """

    retryable = False


class Writer(ABC):
    """Writes transactions under one transactional id. After anything but :class:`Committed` it is of no more use: close it."""

    @abstractmethod
    def fence(self) -> None:
        """Make every other writer of this transactional id unable to commit, and end what it has left open.

        On return its last transaction is committed or aborted. To be called once, first. Raises: BrokerError.
        """

    @abstractmethod
    def commit(self, records: Sequence[Out]) -> Fate:
        """Write the records in one transaction; returns when its fate is known, or within the writer's timeout.

        Records of one feed get ascending offsets, one after the other without a hole. Never raises for what the broker says.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of it, at once: nothing is flushed, nothing is waited for. May be called from any thread; again: nothing."""


class Reader(ABC):
    """Reads feeds and tells how far: committed records only, unless asked for the others too.

    Offsets that hold no record (markers, aborted, compacted) are passed. A reader has caught up with what was written
    before a call of :meth:`ends` when :meth:`position` is no less than what that returned.
    """

    @abstractmethod
    def assign(self, starts: Mapping[Feed, int]) -> None:
        """Read these feeds and no others from now on. Where one was read already, it goes on; the number is for new ones.

        A start may be :data:`FIRST`. One that the broker does not have is an error that :meth:`poll` raises.
        """

    @abstractmethod
    def seek(self, feed: Feed, offset: int) -> None:
        """Read a feed that is assigned from another offset on, or from :data:`FIRST`."""

    @abstractmethod
    def poll(self, max_records: int, timeout_s: float) -> Sequence[In]:
        """Return records that came, of any feeds, each feed's in order; [] after the timeout or a :meth:`wake`.

        Passing a marker is no reason to return: who waits for a position polls for short times.

        Raises: OffsetGone; it can go on after a :meth:`seek`. BrokerError: the broker says what does not pass by itself. One
        that is away is not an error: it is waited for.
        """

    @abstractmethod
    def position(self, feed: Feed) -> int:
        """Return the offset from which an assigned feed is read on: all before it was returned by a poll, or is no record."""

    @abstractmethod
    def ends(self, feeds: Sequence[Feed], timeout_s: float) -> Mapping[Feed, int]:
        """Return the high watermarks, as of now: with what open transactions wrote. From any thread. Raises: BrokerError."""

    @abstractmethod
    def stable_ends(self, feeds: Sequence[Feed], timeout_s: float) -> Mapping[Feed, int]:
        """Return the last stable offsets, as of now: up to the first open transaction. From any thread. Raises: BrokerError."""

    @abstractmethod
    def begins(self, feeds: Sequence[Feed], timeout_s: float) -> Mapping[Feed, int]:
        """Return the first offsets that the broker still has. From any thread. Raises: BrokerError."""

    @abstractmethod
    def since(self, feeds: Mapping[Feed, int], timeout_s: float) -> Mapping[Feed, int]:
        """Return for each feed the first offset whose time is at or after these milliseconds; its end where there is none.

        A marker of a transaction has a time too, the broker's, and may be the first. From any thread. Raises: BrokerError.
        """

    @abstractmethod
    def wake(self) -> None:
        """Let a poll that waits return soon (where the client cannot do that: within 50 ms). From any thread."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the broker has it. ``config``: its settings by name, those that are defaults included."""

    partitions: int
    replication: int
    config: Mapping[str, str]
    allowed: frozenset[str] = frozenset()
    """What this process may do there, by Kafka's words in capitals; empty: the broker does not say."""

    def may(self, operation: Literal["READ", "WRITE"]) -> bool:
        """Whether nothing is known that keeps this process from it."""
        return not self.allowed or operation in self.allowed


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to make. ``replication`` -1: as the broker is set."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


class Admin(ABC):
    """Makes topics and looks at them. May be used by many threads at once."""

    @abstractmethod
    def describe(self, topics: Sequence[str], timeout_s: float, *, settings: bool = True) -> Mapping[str, TopicInfo]:
        """Return those of the topics that exist. ``settings`` False: with an empty ``config``, which takes another permission.

        Raises: NotAllowed: one of them may not be seen. BrokerError.
        """

    @abstractmethod
    def create(self, topics: Sequence[NewTopic], timeout_s: float) -> None:
        """Make topics; one that exists is left as it is. On return every one can be written and read. Raises: BrokerError."""

    @abstractmethod
    def delete_before(self, feeds: Mapping[Feed, int], timeout_s: float) -> None:
        """Remove the records before these offsets, from feeds whose policy is not compaction alone. Raises: BrokerError."""

    @abstractmethod
    def cluster_id(self, timeout_s: float) -> str:
        """Return what the cluster calls itself. Raises: BrokerError: no broker was reached."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


class Driver(ABC):
    """One client library, set up for one cluster. May be used by many threads at once."""

    name: str

    @abstractmethod
    def writer(self, transactional_id: str, timeout_s: float) -> Writer:
        """Make a writer. ``timeout_s``: for each commit, and the broker's own limit for its transactions."""

    @abstractmethod
    def reader(self, *, uncommitted: bool = False) -> Reader:
        """Make a reader. ``uncommitted``: of every record, also of those that are aborted or undecided. Raises: BrokerError."""

    @abstractmethod
    def admin(self) -> Admin:
        """Make an admin. Raises: BrokerError."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what its readers share. To be called last."""
