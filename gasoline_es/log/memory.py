"""The memory log: the file log's semantics without files, for tests and for programs that need no durability.

Handles of one process on the same name share one store: epochs, fencing, take-overs and tails work between them as between
processes on a directory. A handle that goes away without :meth:`MemoryLog.close` is told so by :meth:`MemoryLog.crash`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakSet

from gasoline_es.core.retention import TOMBSTONE
from gasoline_es.errors import (
    AppendUnknown,
    Fenced,
    LogError,
    LogFailed,
    LogReadOnly,
    NoSpace,
    PartitionOwned,
)
from gasoline_es.log.names import PARTITIONS_DEFAULT, check_namespace, check_partitions, check_wanted
from gasoline_es.log.port import (
    CONSUMED,
    Appended,
    Compaction,
    Epoch,
    Log,
    LogInfo,
    Member,
    Named,
    NamingTail,
    NewRecord,
    Offset,
    Outcome,
    Owner,
    Ownership,
    Position,
    Problem,
    Record,
    Rules,
    Section,
    SegmentInfo,
    Source,
    TailSource,
    Wanted,
    about_json,
    check_partition,
    check_sections,
    check_size,
    check_value,
    horizon_moved,
)

Records = list[Record | None]
"""None: it was removed. So numbers stay what they are."""
Fault = type[NoSpace] | type[LogFailed] | type[Fenced] | type[AppendUnknown]


@dataclass(slots=True)
class _Held:
    """Who holds a partition of a namespace."""

    epoch: int
    incarnation: str
    released: bool = False


@dataclass(slots=True, weakref_slot=True)
class MemoryStore:
    """What handles share. ``lock``: their event loops may run in several threads (``Gasoline.open_sync``)."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    log_id: str = field(default_factory=lambda: secrets.token_hex(16))
    namespaces: dict[str, int] = field(default_factory=dict[str, int])
    owned: dict[tuple[str, int], Records] = field(default_factory=dict[tuple[str, int], "Records"])
    """By offset."""
    shared: dict[tuple[str, int], Records] = field(default_factory=dict[tuple[str, int], "Records"])
    horizons: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    held: dict[tuple[str, int], _Held] = field(default_factory=dict[tuple[str, int], _Held])
    living: set[str] = field(default_factory=set[str])
    told: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Incarnation → its namespace, and what it told about itself as JSON."""
    handles: WeakSet[MemoryLog] = field(default_factory=lambda: WeakSet[MemoryLog]([]))


_stores: dict[str, MemoryStore] = {}


class MemoryTail(NamingTail):
    """Position: ``{"count": records passed}``."""

    def __init__(self, log: MemoryLog, key: tuple[str, int], position: Position | None) -> None:
        self._log = log
        self._key = key
        count: object = position.get("count", 0) if position is not None else 0
        if not isinstance(count, int) or not 0 <= count <= len(log.store.shared.get(key, [])):
            raise LogError(f"not a position in a topic of this log: {position!r}", position=position)
        self._count = count

    def poll(self, max_records: int = 10_000) -> list[Record]:
        """Return the records published since the last poll."""
        return [record for _, record in self.poll_named(max_records)]

    def poll_named(self, max_records: int) -> list[Named]:
        """Do the same, and name each record by its number."""
        all_records, found = self._log.store.shared.get(self._key, []), list[Named]()
        while self._count < len(all_records) and len(found) < max_records:
            record = all_records[self._count]
            if record is not None:
                found.append(Named(str(self._count), record))
            self._count += 1
        return found

    def waiting(self) -> int:
        """Return how many records no poll has returned."""
        records = self._log.store.shared.get(self._key, [])
        return sum(records[number] is not None for number in range(self._count, len(records)))

    @property
    def position(self) -> Position:
        """How far the polls have come."""
        return Position({"count": self._count})


class MemoryLog(Log):
    """See :class:`gasoline_es.log.port.Log`. Made by :func:`open_memory_log`."""

    def __init__(self, store: MemoryStore, url: str, namespace: str, *, readonly: bool) -> None:
        self.store: Final = store
        self.url = url
        self.log_id = store.log_id
        self.namespace = namespace
        self.partition_count = store.namespaces[namespace]
        self.writable = not readonly
        self.incarnation = "" if readonly else secrets.token_hex(8)
        self._closed = False
        self._failed: LogFailed | None = None
        self._faults: deque[Fault] = deque()
        self._dirty = True
        self._waiter: asyncio.Future[None] | None = None
        with store.lock:
            if not readonly:
                store.living.add(self.incarnation)
            store.handles.add(self)

    # --- for tests ----------------------------------------------------------------------------------------------------

    def fail_next(self, fault: Fault) -> None:
        """Make the next append have this outcome for each section; call again for the append after it.

        ``AppendUnknown``: the sections count all the same, as when an answer got lost.
        """
        self._faults.append(fault)

    def crash(self) -> None:
        """Go away as the end of the process would: nothing is released, others can take the partitions at once."""
        with self.store.lock:
            self._closed = True
            self.store.living.discard(self.incarnation)
            self._announce()

    @property
    def damage(self) -> None:
        """Memory is not damaged."""
        return None

    # --- appending ----------------------------------------------------------------------------------------------------

    async def append(self, sections: Sequence[Section]) -> list[Outcome]:
        """Append the sections in one group (see the port)."""
        faulty = bool(self._faults)
        outcomes = self.append_now(sections)
        if faulty:
            return outcomes
        # A real append lets other tasks run; code that relies on the contrary must not pass its tests here.
        await asyncio.sleep(0)
        return outcomes

    @property
    def ready(self) -> bool:
        """Whether :meth:`append_now` may be called: always."""
        return True

    def append_now(self, sections: Sequence[Section]) -> list[Outcome]:
        """Append the sections before this returns (see the port)."""
        self._usable()
        check_sections(sections)
        for section in sections:
            for record in section.records:
                _check(record)
        if self._faults:
            return self._append_with_fault(sections, self._faults.popleft())
        return self._append_sections(sections)

    def _append_with_fault(self, sections: Sequence[Section], fault: Fault) -> list[Outcome]:
        if fault is AppendUnknown:
            self._append_sections(sections)
        error = fault(f"injected into {self.url}")
        if isinstance(error, LogFailed):
            self._failed = error
        return [error] * len(sections)

    def _append_sections(self, sections: Sequence[Section]) -> list[Outcome]:
        with self.store.lock:
            outcomes = [self._append_section(section) for section in sections]
            self._announce()
        return outcomes

    def _append_section(self, section: Section) -> Outcome:
        if section.epoch is not None and not self._holds(section.partition, section.epoch):
            return Fenced(
                f"partition {section.partition} of namespace {self.namespace!r} is not owned as epoch {section.epoch}",
                partition=section.partition,
                epoch=section.epoch,
            )
        firsts: dict[str, Offset] = {}
        for new in section.records:
            key = (new.topic, new.partition)
            offset: Offset | None = None
            if (
                section.epoch is not None
                and new.partition == section.partition
                and new.topic.startswith(self.namespace + ".")
            ):
                records = self.store.owned.setdefault(key, [])
                offset = Offset(len(records))
                firsts.setdefault(new.topic, offset)
            value = None if new.value == b"null" else new.value
            headers = dict(new.headers) if new.headers else None
            record = Record(new.topic, new.partition, offset, new.key, value, new.time_us, headers)
            if offset is not None:
                self.store.owned[key].append(record)
            self.store.shared.setdefault(key, []).append(record)
        return Appended(firsts)

    def _usable(self) -> None:
        self._readable()
        if not self.writable:
            raise LogReadOnly(f"{self.url} was opened for reading")
        if self._failed is not None:
            raise LogFailed(self._failed.message, **self._failed.fields)

    def _readable(self) -> None:
        if self._closed:
            raise LogError(f"{self.url} is closed")

    # --- owning -------------------------------------------------------------------------------------------------------

    def _holds(self, partition: int, epoch: int) -> bool:
        held = self.store.held.get((self.namespace, partition))
        return held is not None and held.epoch == epoch and held.incarnation == self.incarnation and not held.released

    def _check_partition(self, partition: int) -> None:
        check_partition(partition, self.partition_count, self.namespace)

    async def acquire(self, partition: int) -> Ownership:
        """Take the partition as a new epoch (see the port)."""
        self._check_partition(partition)
        self._usable()
        with self.store.lock:
            held = self.store.held.get((self.namespace, partition))
            if held is None or held.released or held.incarnation not in self.store.living:
                held = _Held(1 if held is None else held.epoch + 1, self.incarnation)
                self.store.held[self.namespace, partition] = held
                self._announce()
            elif held.incarnation != self.incarnation:
                raise PartitionOwned(
                    f"partition {partition} of namespace {self.namespace!r} is owned by {held.incarnation}, which lives",
                    partition=partition,
                    owner=held.incarnation,
                    epoch=held.epoch,
                )
            return Ownership(partition, Epoch(held.epoch), self._ends(partition))

    def _ends(self, partition: int) -> dict[str, Offset]:
        return {
            topic: Offset(len(records))
            for (topic, at), records in self.store.owned.items()
            if at == partition and topic.startswith(self.namespace + ".")
        }

    def steal(self, partition: int) -> None:
        """For tests: let somebody else take the partition, as after this process was frozen for too long."""
        with self.store.lock:
            held = self.store.held.get((self.namespace, partition))
            epoch = 1 if held is None else held.epoch + 1
            self.store.held[self.namespace, partition] = _Held(epoch, "stolen")
            self._announce()

    async def release(self, partition: int) -> None:
        """Give the partition up (see the port)."""
        self._check_partition(partition)
        self._usable()
        with self.store.lock:
            held = self.store.held.get((self.namespace, partition))
            if held is not None and held.incarnation == self.incarnation and not held.released:
                held.released = True
                self._announce()

    def announce(self, about: Mapping[str, Any] | None) -> None:
        """Tell the other handles about this one (see the port)."""
        self._usable()
        if about is None:
            self.store.told.pop(self.incarnation, None)
        else:
            self.store.told[self.incarnation] = (self.namespace, about_json(about))

    def members(self) -> list[Member]:
        """Return who told something about itself (see the port)."""
        self._readable()
        return [
            Member(incarnation, json.loads(about), incarnation == self.incarnation)
            for incarnation, (namespace, about) in sorted(self.store.told.items())
            if namespace == self.namespace and incarnation in self.store.living
        ]

    def others(self) -> list[Member]:
        """Return the other handles that may write (see the port)."""
        self._readable()
        found = {
            handle.incarnation
            for handle in list(self.store.handles)
            if handle is not self and handle.namespace == self.namespace and handle.incarnation in self.store.living
        }
        return [Member(incarnation, {}, False) for incarnation in sorted(found)]

    def owner(self, partition: int) -> Owner | None:
        """Return who holds the partition now (see the port)."""
        self._check_partition(partition)
        held = self.store.held.get((self.namespace, partition))
        if held is None:
            return None
        return Owner(
            partition=partition,
            epoch=Epoch(held.epoch),
            incarnation=held.incarnation,
            alive=held.incarnation in self.store.living,
            mine=held.incarnation == self.incarnation and not held.released,
            released=held.released,
        )

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, topic: str, partition: int, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        """Yield the records of a single-writer topic (see the port)."""
        self._readable()
        records = self.store.owned.get((topic, partition), [])
        end = len(records) if stop is None else min(stop, len(records))
        return self._read((topic, partition), records, max(0, start), end, self.horizon(topic, partition))

    def _read(self, feed: tuple[str, int], records: Records, start: int, end: int, horizon: int) -> Iterator[Record]:
        for offset in range(start, end):
            record = records[offset]
            if record is not None:
                yield record
        if start < (now := self.horizon(*feed)) != horizon:
            raise horizon_moved(*feed, start, now)

    def horizon(self, topic: str, partition: int) -> Offset:
        """Return the offset below which tombstones may be gone (see the port)."""
        return Offset(self.store.horizons.get((topic, partition), 0))

    async def compact(
        self,
        rules: Rules,
        *,
        dry_run: bool = False,
        bytes_per_s: float | None = None,
        gain_min: float = 0.0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Compaction:
        """Remove what the rules give up (see the port). All at once: there are no segments."""
        self._usable()
        with self.store.lock:
            feeds = {**self.store.shared}
            while True:
                for (topic, _), records in feeds.items():
                    if rules.observes(topic):
                        for record in list(records):
                            if record is not None:
                                rules.observe(record, sealed=True)
                if not rules.again():
                    break
            removed: dict[str, dict[str, int]] = {}
            for feed, records in sorted(feeds.items()):
                if rules.judges(feed[0]):
                    for reason, count in self._compact(feed, records, rules, dry_run).items():
                        removed.setdefault(feed[0], {})[reason] = count + removed.get(feed[0], {}).get(reason, 0)
            if progress is not None:
                progress(1, 1)
        return Compaction("log", dry_run, removed=removed)

    def _compact(self, feed: tuple[str, int], records: Records, rules: Rules, dry_run: bool) -> Mapping[str, int]:
        position = rules.consumed(*feed)
        passed = 0 if position is None else int(position.get("count", 0))
        removed: Counter[str] = Counter()
        for number, record in enumerate(records):
            if record is None:
                continue
            reason = CONSUMED if number < passed else rules.gives_up(record)
            if reason is None:
                continue
            removed[reason] += 1
            if dry_run:
                continue
            if record.offset is not None and feed in self.store.owned:
                if reason == TOMBSTONE:  # before it goes: others read meanwhile
                    self.store.horizons[feed] = max(self.store.horizons.get(feed, 0), record.offset + 1)
                self.store.owned[feed][record.offset] = None
            records[number] = None
        return removed

    def read_at(
        self, topic: str, partition: int, offsets: Sequence[int], places: Sequence[int] | None = None
    ) -> list[Record]:
        """Return the records at these ascending offsets (see the port)."""
        self._readable()
        records = self.store.owned.get((topic, partition), [])
        found = [records[offset] if 0 <= offset < len(records) else None for offset in offsets]
        missing = [offset for offset, record in zip(offsets, found, strict=True) if record is None]
        if missing:
            raise LogError(
                f"topic {topic!r}, partition {partition} has no record at offset {missing[:3]}",
                topic=topic,
                partition=partition,
                offsets=missing,
            )
        return [record for record in found if record is not None]

    def end(self, topic: str, partition: int) -> Offset:
        """Return the offset after the last record (see the port)."""
        self._readable()
        return Offset(len(self.store.owned.get((topic, partition), [])))

    def tail(self, topic: str, partition: int, position: Position | None = None) -> MemoryTail:
        """Open a many-writer topic's partition for reading (see the port)."""
        self._readable()
        return MemoryTail(self, (topic, partition), position)

    async def source(
        self, topic: str, partition: int, position: Position | None = None, *, past_lost: bool = False
    ) -> Source:
        """Open a partition of any topic for reading (see the port)."""
        return TailSource(self.tail(topic, partition, position))

    def newest(self, topic: str, partition: int, since_us: int, wanted: Wanted) -> Record | None:
        """Return the newest record that is wanted (see the port)."""
        self._readable()
        best: Record | None = None
        # What handles append side by side need not be in order of time to the microsecond: all since then are looked at.
        for record in reversed(self.store.shared.get((topic, partition), ())):
            if record is None:
                continue
            if record.time_us < since_us:
                break
            if (best is None or record.time_us > best.time_us) and wanted(record):
                best = record
        return best

    async def changed(self) -> None:
        """Return once something may have changed since the last call returned (see the port)."""
        self._readable()
        if self._waiter is not None:
            raise RuntimeError("only one task at a time may wait for changes of a log")
        while True:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                if (
                    self._dirty or self._closed
                ):  # looked at last: a change by another thread finds the waiter, or is found
                    break
                await self._waiter
            finally:
                self._waiter = None
        self._dirty = False

    def _announce(self) -> None:
        for handle in list(self.store.handles):
            if handle is not self:
                handle.wake()

    def wake(self) -> None:
        """Let :meth:`changed` return, on whatever loop it waits."""
        self._dirty = True
        waiter = self._waiter
        if waiter is not None:
            waiter.get_loop().call_soon_threadsafe(_resolve, waiter)

    def info(self) -> LogInfo:
        """Return what ``log info`` shows."""
        owners = [owner for p in range(self.partition_count) if (owner := self.owner(p)) is not None]
        return LogInfo(self.url, self.log_id, dict(self.store.namespaces), (), owners)

    def verify(self) -> Iterator[Problem | SegmentInfo]:
        """Yield nothing: there are no bytes to check."""
        return iter(())

    async def close(self) -> None:
        """Release every partition, let go of the log. Idempotent."""
        if self._closed:
            return
        with self.store.lock:
            for held in self.store.held.values():
                if held.incarnation == self.incarnation:
                    held.released = True
            self.crash()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _check(record: NewRecord) -> None:
    """Raises: RecordTooLarge as the file log would, to the byte or a little earlier; ValueError."""
    value = record.value or b"null"
    check_value(record.topic, record.key, value)
    size = len(value) + len(json.dumps(record.topic)) + len(json.dumps(record.key)) + 100
    if record.headers:
        size += len(json.dumps(dict(record.headers)))
    check_size(record.topic, record.partition, record.key, size)


async def open_memory_log(
    name: str = "",
    *,
    namespace: str = "default",
    partitions: int | None = None,
    readonly: bool = False,
    **options: Any,
) -> MemoryLog:
    """Open the memory log of a name, shared in this process, or one of its own if the name is empty."""
    check_namespace(namespace)
    check_wanted(partitions)
    url = f"memory:{name}"
    store = _stores.setdefault(name, MemoryStore()) if name else MemoryStore()
    with store.lock:
        count = check_partitions(store.namespaces, namespace, partitions, url)
        if count is None:
            if readonly:
                raise LogError(f"there is no namespace {namespace!r} in {url}", namespace=namespace)
            store.namespaces[namespace] = PARTITIONS_DEFAULT if partitions is None else partitions
    return MemoryLog(store, url, namespace, readonly=readonly)
