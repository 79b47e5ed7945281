"""The log port: what every log (memory, file, Kafka) promises to the layers above.

A log is a set of *topics*, each split into the same number of *partitions*. Two kinds of reading exist:

* **single-writer** topics (``events``, ``index``, ``registry`` of a partition): written only by the partition's owner,
  fenced by its epoch, numbered by ascending offsets from 0 (dense on memory and file until compaction);
* **many-writer** topics (``inbox``, ``replies``, ``messages``): written by anyone, read behind an opaque :class:`Position`.

A record is single-writer exactly when its section has an epoch and its partition is the section's partition.

Reads return what was published as of the call; on a log that is ``remote``, what has come of it: :meth:`Log.refresh` first.

Threading: a log belongs to one event loop. ``append``, ``acquire``, ``release`` and ``changed`` are coroutines; every
``read*``, ``end`` and ``owner`` is a plain blocking call that only touches the operating system's page cache in the common
case, and may be called from one other thread at a time while appends go on.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, NewType, Protocol

from gasoline_es.core.topics import is_reserved, is_topic_name
from gasoline_es.errors import HorizonMoved, LogCorrupt, LogError, RecordTooLarge, TopicRefused

Offset = NewType("Offset", int)
Epoch = NewType("Epoch", int)
Position = NewType("Position", dict[str, Any])
"""How far a many-writer topic's partition was read: a JSON object only the log understands. ``{}`` is the start."""

RECORD_BYTES_MAX: Final = 1_000_000
"""One limit everywhere: the encoded record (its line in the file log) must not be longer. Fits Kafka's default."""

ABOUT_BYTES_MAX: Final = 256
"""What a process tells the others about itself must not be longer, as JSON."""

PAYLOAD_BYTES_MAX: Final = RECORD_BYTES_MAX - 20_000
"""One payload (an input, a signal's body, an output) may be so long: the rest is for what else its records hold."""


class NewRecord(NamedTuple):
    """A record to append (a tuple, because one is made for every event).

    ``value`` is JSON text in UTF-8 without a line feed, or None for a tombstone.
    """

    topic: str
    partition: int
    key: str
    value: bytes | None
    time_us: int
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read. ``offset`` is None in a many-writer topic."""

    topic: str
    partition: int
    offset: Offset | None
    key: str
    value: bytes | None
    time_us: int
    headers: Mapping[str, str] | None = None
    place: int = field(default=0, compare=False)
    """Where the record lies, as only the log understands it: gives :meth:`Log.read_at` a short way. 0: not told."""


class Named(NamedTuple):
    """A record of a many-writer topic and its name: no other record of its topic's partition ever has that one.

    However far the topic is read again, and by whom. Of Kafka, the offset.
    """

    name: str
    record: Record


Wanted = Callable[[Record], bool]
"""Whether a record is one that is looked for."""


@dataclass(frozen=True, slots=True)
class Section:
    """What one append writes for one partition: all or nothing by itself, independent of its neighbours.

    ``epoch`` None: a client's commands, which count once published. Its records may go to any topic and partition.
    """

    partition: int
    epoch: Epoch | None
    records: Sequence[NewRecord]


@dataclass(frozen=True, slots=True)
class Appended:
    """The section is durable and counts. ``offsets``: topic → offset of the section's first single-writer record there."""

    offsets: Mapping[str, Offset]
    place: int = field(default=0, compare=False)
    """The :attr:`Record.place` of every record of the section."""


Outcome = Appended | LogError
"""What became of a section: :class:`Appended`, or the error (``Fenced``, ``NoSpace``, ``LogFailed``, ``AppendUnknown``)."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """A partition taken by this process. ``ends``: topic → the offset its next record gets."""

    partition: int
    epoch: Epoch
    ends: Mapping[str, Offset]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a partition. ``alive`` False: free to take at once. ``mine``: this very log handle."""

    partition: int
    epoch: Epoch
    incarnation: str
    alive: bool
    mine: bool
    released: bool
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A process that told the others about itself, lives, and moves. ``about``: what it told, a JSON object."""

    incarnation: str
    about: Mapping[str, Any]
    mine: bool
    """Whether it is this very log handle."""
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment of a file log, for ``log info``. Bytes are the file's length; counts are of published batches."""

    number: int
    writer: str
    bytes: int
    batches: int
    records: int
    closed: bool
    compacted: bool = False
    """Whether the cleaner has written it anew. Then records are those that are left."""


@dataclass(frozen=True, slots=True)
class LogInfo:
    """What ``log info`` shows."""

    url: str
    log_id: str
    namespaces: Mapping[str, int]
    segments: Sequence[SegmentInfo] = ()
    owners: Sequence[Owner] = ()
    torn: Sequence[str] = field(default_factory=tuple)
    problems: Sequence[str] = field(default_factory=tuple)
    """Damage that was met so far. Only :meth:`Log.verify` looks for all of it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing ``verify`` found. ``position`` is a byte of the segment; without one, ``reason`` names the file."""

    segment: int | None
    position: int
    reason: str


CONSUMED: Final = "consumed"
"""Why a command goes: the owner has consumed it, durably."""
VOID: Final = "void"
"""Why a record goes that never counted."""


class Rules(Protocol):
    """What may be removed from a log; the log itself knows nothing of what records mean.

    The log first shows what it holds (:meth:`observe`), as often as :meth:`again` asks for that, and then asks of each record
    that may be removed whether it is to be. Only records that count are shown; in what order is not promised, but those
    of one segment come in theirs, and what is not sealed comes last.
    """

    def observes(self, topic: str) -> bool:
        """Whether records of this topic are to be shown, in this pass."""
        ...

    def observe(self, record: Record, *, sealed: bool) -> None:
        """Take note of a record. ``sealed`` False: it is durable and counts, and nothing may rest on it being there yet."""
        ...

    def again(self) -> bool:
        """Whether all are to be shown once more. Called when all were shown."""
        ...

    def judges(self, topic: str) -> bool:
        """Whether any record of this topic may ever be given up."""
        ...

    def gives_up(self, record: Record) -> str | None:
        """Return why a record may go, None if it stays. ``TOMBSTONE`` (core/retention.py): the horizon is raised first."""
        ...

    def consumed(self, topic: str, partition: int) -> Mapping[str, Any] | None:
        """Return the position up to which a many-writer topic's partition was consumed for good; None: it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class Compaction:
    """What :meth:`Log.compact` did, or would do."""

    by: Literal["log", "broker", "another"] = "log"
    """Who cleans: this call did; the broker does by itself; or another cleaner is at work, and nothing was done."""
    dry_run: bool = False
    segments: int = 0
    """How many were looked at, which nobody will write to any more."""
    open: int = 0
    """How many were left alone, as they may still be written to, or it is not decided yet what of them counts."""
    rewritten: int = 0
    emptied: int = 0
    """How many of those rewritten have no record left."""
    bytes_before: int = 0
    bytes_after: int = 0
    """Of all segments that were looked at."""
    removed: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """Topic → why → how many records."""


class Tail(ABC):
    """Reads a many-writer topic's partition forward, from a position."""

    @abstractmethod
    def poll(self, max_records: int = 10_000) -> list[Record]:
        """Return the records published since the last poll, oldest first per writer; [] when there are none now.

        Includes what this very log handle wrote, once published. A record of an undecided section holds back only the
        rest of its own writer's segment (filelog.md §4.7).
        """

    @abstractmethod
    def waiting(self) -> int:
        """Return how many records are published that no poll has returned; those of undecided sections count.

        Reads no record: its work grows with the batches they are in.
        """

    def skip(self) -> None:
        """Pass everything that is published now: the next poll returns only what comes after."""
        while self.poll():
            pass

    @property
    @abstractmethod
    def position(self) -> Position:
        """How far the polls have come: store it, and give it to :meth:`Log.tail` to go on from there."""


class NamingTail(Tail):
    """A tail that can tell the names of its records, as those do of a log that has everything at hand."""

    @abstractmethod
    def poll_named(self, max_records: int) -> list[Named]:
        """Do as :meth:`poll`, and name each record."""


class Source(ABC):
    """Reads a partition of any many-writer topic forward, for :meth:`Log.source`: also one that is not of the namespace."""

    waits: bool = False
    """Whether :meth:`poll` itself waits for a while where there is nothing; else who polls waits for :meth:`Log.changed`."""

    @abstractmethod
    async def poll(self, max_records: int) -> list[Named]:
        """Return the next records, oldest first; [] when there are none now. Nothing more is read ahead than one answer.

        Raises: LogError: what comes next is not there any more, or the log's servers do not answer.
        """

    @property
    @abstractmethod
    def position(self) -> Position:
        """How far the polls have come: store it, and give it to :meth:`Log.source` to go on from there."""

    @abstractmethod
    async def skip(self) -> None:
        """Pass everything that is published now."""

    @abstractmethod
    async def waiting(self) -> int:
        """Return how many records are published that no poll has returned, at most: offsets without a record may count."""

    async def close(self) -> None:
        """Let go of it."""
        return


class TailSource(Source):
    """The source of a log that has everything at hand: nothing that was published there is ever gone."""

    def __init__(self, tail: NamingTail) -> None:
        self._tail = tail

    async def poll(self, max_records: int) -> list[Named]:
        """Return the next records."""
        return self._tail.poll_named(max_records)

    @property
    def position(self) -> Position:
        """How far the polls have come."""
        return self._tail.position

    async def skip(self) -> None:
        """Pass everything that is published now."""
        self._tail.skip()

    async def waiting(self) -> int:
        """Return how many records are published that no poll has returned."""
        return self._tail.waiting()


class Log(ABC):
    """A log opened for one namespace (``reads`` of others go by full topic name)."""

    url: str
    log_id: str
    namespace: str
    partition_count: int
    writable: bool
    remote: bool = False
    """Whether what others publish comes over a network: reads show what has come, and :meth:`refresh` waits for the rest."""
    appends_apart: bool = False
    """Whether each partition's sections are served on their own, so that nothing is won by appending them together."""
    cleared_by_key: bool = False
    """Whether what is given up has to be taken back key by key, by tombstones, for a cleaner that knows nothing else."""
    time_unit_us: int = 1
    """Times of records are kept to so many microseconds."""
    derived: str | None = None
    """A directory on this machine for what is derived from the namespace, as its views; None: there is none."""
    incarnation: str
    """Names this handle among all that ever opened the log. Unique for ever."""

    @property
    @abstractmethod
    def damage(self) -> LogCorrupt | None:
        """The first damage this handle knows of; it knows of what it has read or been told of so far."""

    @abstractmethod
    async def append(self, sections: Sequence[Section]) -> list[Outcome]:
        """Append the sections in one group; an outcome for each, in order, given when its fate is known.

        On ``Appended`` the section is durable (survives power loss) and counts. At most one section per
        ``(partition, epoch)``. Calls are served one after the other, or those for one partition where it
        :attr:`appends_apart`. ``RecordTooLarge`` is raised for the whole call,
        before anything is written; a log that failed raises :class:`LogFailed` likewise.
        """

    @property
    def ready(self) -> bool:
        """Whether :meth:`append_now` may be called: nothing is being appended, and an append of a little takes little time."""
        return False

    def append_now(self, sections: Sequence[Section]) -> list[Outcome]:
        """Append as :meth:`append` does, before this returns. Only while the log is :attr:`ready`, in the event loop's place.

        Whatever interrupts it in the middle makes the log fail for this handle.
        """
        raise NotImplementedError

    async def partitions_of(self, topic: str, *, reading: bool = False) -> int:
        """Return how many partitions a topic of others has, one that an owner's section may emit records to.

        ``reading``: one that is to be read. Memory, file: as many as the namespace, and any topic is there. Kafka: as the
        cluster has it, as of a minute ago at most.

        Raises: TopicRefused: it is not there, this process may not write (or read) there, or it is one of a namespace's own.
            LogError: its servers do not answer.
        """
        check_foreign(topic, self.namespace)
        return self.partition_count

    @abstractmethod
    async def acquire(self, partition: int) -> Ownership:
        """Take the partition as a new epoch; on return its begin is durable and this handle is the owner.

        Raises: PartitionOwned: its owner lives (file: holds its lock and its heartbeat is younger than 10 s).
        """

    @abstractmethod
    async def release(self, partition: int) -> None:
        """Give the partition up, durably; others can take it at once. A partition not owned: does nothing."""

    @abstractmethod
    def owner(self, partition: int) -> Owner | None:
        """Return who holds the partition now, or None if nobody ever did."""

    @abstractmethod
    def announce(self, about: Mapping[str, Any] | None) -> None:
        """Tell the other processes on this namespace about this one, for as long as it lives; None: nothing any more.

        A JSON object of at most 256 bytes, in place of what was told before. Nothing durable: it is gone with the process.
        May be called from any thread: a process whose event loop stands still has something to tell.
        Raises: ValueError: it is longer. LogError.
        """

    @abstractmethod
    def members(self) -> list[Member]:
        """Return the processes that have told something about themselves, by incarnation; with this one, if it has.

        File: those that hold their lock, and whose heartbeat is younger than 10 s. What another process told shows at
        once; nobody is woken by it.
        """

    @abstractmethod
    def others(self) -> list[Member]:
        """Return the other handles that have the namespace open for writing, as far as is known, by incarnation.

        Memory and file: all whose processes live, also one that does not move. Kafka: those that have :meth:`shown` themselves
        or taken a partition, and gave a sign of life lately.
        """

    async def shown(self) -> None:
        """On return this handle is among the :meth:`others` of every handle that refreshes after that.

        Raises: LogError: its servers do not answer.
        """
        return

    async def refresh(self, *feeds: tuple[str, int]) -> None:
        """See to it that reads of these topics' partitions have everything that was published before this call.

        So do owners and members, if no feed is named. Of a log that is not :attr:`remote` they have anyway.
        Raises: LogError: its servers do not answer.
        """
        return

    @abstractmethod
    def read(self, topic: str, partition: int, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        """Yield the counted records of a single-writer topic with ``start <= offset < stop``, in order of offset.

        ``stop`` None: up to :meth:`end` as of the call. Raises: LogCorrupt at damage, after everything before it; with
        ``stop`` None also if damage, wherever it is, may have cost this partition records.
        """

    @abstractmethod
    def read_at(
        self, topic: str, partition: int, offsets: Sequence[int], places: Sequence[int] | None = None
    ) -> list[Record]:
        """Return the records at these ascending offsets. Raises: LogError if one is not there.

        ``places``: one for each offset, as told when they were appended or read. They only save time: a wrong or
        outdated one costs a search.
        """

    @abstractmethod
    def end(self, topic: str, partition: int) -> Offset:
        """Return the offset after the last counted record of a single-writer topic (0 when empty)."""

    def undecided(self, topic: str, partition: int) -> bool:
        """Whether somebody takes the partition over, and has yet to say how much of its last owner's records counts.

        As of the last :meth:`end` of the topic's partition. While it is so, that may be short of what was acknowledged,
        if this handle has not counted it before. It does not last: the taker begins, or dies, or is taken for dead.
        """
        return False

    @abstractmethod
    def tail(self, topic: str, partition: int, position: Position | None = None) -> Tail:
        """Open a many-writer topic's partition for reading from ``position`` (None: from its start)."""

    @abstractmethod
    async def source(
        self, topic: str, partition: int, position: Position | None = None, *, past_lost: bool = False
    ) -> Source:
        """Open a partition of any many-writer topic for reading from ``position`` (None: from the first that is there).

        Raises: LogError: the topic is not there; or records after the position are gone, unless ``past_lost``: then it goes
        on with the first that is there.
        """

    @abstractmethod
    def newest(self, topic: str, partition: int, since_us: int, wanted: Wanted) -> Record | None:
        """Return the record of a many-writer topic's partition that has the latest time, of those that are wanted.

        None: there is none at or after ``since_us``. What is published counts, as for :meth:`tail`. Reading goes backwards,
        and no further than that time or than the last one that is wanted, so the work does not grow with the topic; the times
        of one writer's records are taken to ascend. Raises: LogCorrupt: damage may have cost it.
        """

    @abstractmethod
    async def changed(self) -> None:
        """Return once another handle may have published something, or an owner may have changed, since the last return.

        The first call returns at once. One waiter at a time. Spurious returns are allowed; a missed change is not, nor
        is a delay of more than a few milliseconds for what another process published.
        """

    def horizon(self, topic: str, partition: int) -> Offset:
        """Return the offset below which tombstones of a single-writer topic may have been removed; 0: none was.

        Whoever has read the topic's partition from before, up to an offset below it, may believe in what was taken back:
        that is to be thrown away, and read from the start.
        """
        del topic, partition
        return Offset(0)

    async def compact(
        self,
        rules: Rules,
        *,
        dry_run: bool = False,
        bytes_per_s: float | None = None,
        gain_min: float = 0.0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Compaction:
        """Remove what the rules give up, and what never counted. Others may read and write meanwhile.

        Offsets and positions stay what they are, and no offset is given again. ``dry_run``: only say what would be removed.
        ``bytes_per_s``: read and write no more than that. ``gain_min``: leave a segment alone unless so great a part of it
        would go. ``progress``: told how much of how much is done. Cancelled: what was done stays, and the next call does
        the rest.
        Kafka: the broker's own cleaner works by the topics' policies, and this does nothing.
        Raises: LogCorrupt: the log is damaged. NoSpace: there is no room for what is left of a segment. LogError.
        """
        del rules, bytes_per_s, gain_min, progress
        return Compaction("broker", dry_run)

    @abstractmethod
    def info(self) -> LogInfo:
        """Return what ``log info`` shows."""

    @abstractmethod
    def verify(self) -> Iterator[Problem | SegmentInfo]:
        """Check every published byte; yield each segment when done with it and each problem when met, in file order."""

    def checkpoint(self) -> bytes:
        """Return a digest of all that is published, one line of JSON: to hold the log to it later (:meth:`against`).

        Raises: LogCorrupt. LogError: of this log there are no bytes to check.
        """
        raise LogError(f"{self.url} has no bytes to check: a checkpoint is taken of a log in files")

    def against(self, checkpoint: bytes) -> Iterator[Problem]:
        """Yield each place where the log is neither what it was at a checkpoint, nor that without what the cleaner removed.

        Whatever was appended since is no matter. Raises: LogError: it is not a checkpoint of this log.
        """
        del checkpoint
        raise LogError(f"{self.url} has no bytes to check: a checkpoint is taken of a log in files")

    @abstractmethod
    async def close(self) -> None:
        """Release every partition, finish the writer's segment, let go of the log. Idempotent."""


def about_json(about: Mapping[str, Any]) -> str:
    """Render what a process tells about itself. Raises: ValueError: it is too long."""
    text = json.dumps(about, separators=(",", ":"))
    if len(text.encode()) > ABOUT_BYTES_MAX:
        raise ValueError(f"a process may tell {ABOUT_BYTES_MAX} bytes about itself, not {len(text.encode())}: {text}")
    return text


# --- what every log checks --------------------------------------------------------------------------------------------


def horizon_moved(topic: str, partition: int, start: int, horizon: int) -> HorizonMoved:
    """Return the error of a read from ``start`` on while tombstones below ``horizon`` were removed."""
    return HorizonMoved(
        f"tombstones of topic {topic!r}, partition {partition}, below offset {horizon} were removed while it was read from "
        f"offset {start} on: read it again",
        topic=topic,
        partition=partition,
        horizon=horizon,
    )


def check_partition(partition: int, count: int, namespace: str) -> None:
    """Raises: LogError unless a namespace of so many partitions has this one."""
    if not 0 <= partition < count:
        raise LogError(
            f"partition {partition} is not one of the {count} of namespace {namespace!r}", partition=partition
        )


def check_foreign(topic: str, namespace: str | None = None) -> None:
    """Raises: TopicRefused unless a topic of this name is not ours; ``namespace``: nor below this one."""
    if not is_topic_name(topic):
        raise TopicRefused(
            f"{topic[:300]!r} cannot be the name of a topic: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'", topic=topic
        )
    if is_reserved(topic) or (namespace is not None and topic.startswith(f"{namespace}.")):
        raise TopicRefused(
            f"topic {topic!r} is named as gasoline's own are, which only it writes: those of a namespace begin with its "
            f"name and a dot. Choose another name",
            topic=topic,
        )


def check_sections(sections: Sequence[Section]) -> None:
    """Raises: ValueError: two sections are for the same partition and epoch."""
    if len(sections) > 1:
        owned = [(section.partition, section.epoch) for section in sections if section.epoch is not None]
        if len(set(owned)) != len(owned):
            raise ValueError("two sections of one append are for the same partition and epoch")


def check_value(topic: str, key: str, value: bytes) -> None:
    """Raises: ValueError: a record's value has a line feed."""
    if b"\n" in value:
        raise ValueError(f"the value of record {key[:300]!r} for topic {topic!r} has a line feed")


def check_size(topic: str, partition: int, key: str, size: int, *, exact: bool = False) -> None:
    """Raises: RecordTooLarge: a record takes more bytes than :data:`RECORD_BYTES_MAX`."""
    if size > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record for topic {topic!r}, key {key[:300]!r}, takes {'' if exact else 'about '}{size} bytes; "
            f"the limit is {RECORD_BYTES_MAX}: keep large values elsewhere and record where",
            topic=topic,
            partition=partition,
            key=key,
            bytes=size,
        )
