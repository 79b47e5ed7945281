"""The Kafka log: topics of a cluster behind the log port (design §6).

An owner's section is one transaction of its partition's own transactional id: events, index, outgoing commands, replies and
the inbox position, all or nothing. Taking a partition fences that id, so a former owner can commit nothing more; only then
what is there is read. Reads are local: what a process has read of owners' topics lies in its :mod:`mirror`, and what anyone
writes is kept in memory for as long as it is of use.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakSet

from gasoline_es.core.topics import ANYONES_TOPICS, OWNERS_TOPICS, WORKERS, Topics
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import (
    Fenced,
    LogCorrupt,
    LogError,
    LogFailed,
    LogReadOnly,
    PartitionOwned,
)
from gasoline_es.log.kafka.drivers.port import BrokerError, Committed, Driver, Feed, In, Out, Refused
from gasoline_es.log.kafka.evidence import SENT, OfClient, OfOwner, OfSigns
from gasoline_es.log.kafka.follower import Follower
from gasoline_es.log.kafka.foreign import KafkaSource
from gasoline_es.log.kafka.kept import Kept, owned
from gasoline_es.log.kafka.mirror import Mirror
from gasoline_es.log.kafka.others import Others
from gasoline_es.log.kafka.recent import Recent
from gasoline_es.log.kafka.records import (
    check_topic,
    from_cluster,
    from_kafka,
    in_cluster,
    now_ms,
    read_through,
    to_kafka,
)
from gasoline_es.log.kafka.sender import Evidence, Sender
from gasoline_es.log.kafka.signs import Signs
from gasoline_es.log.kafka.who import Held, Who, owner_key
from gasoline_es.log.port import (
    Appended,
    Epoch,
    Log,
    LogInfo,
    Member,
    Offset,
    Outcome,
    Owner,
    Ownership,
    Position,
    Problem,
    Record,
    Section,
    SegmentInfo,
    Source,
    Tail,
    Wanted,
    about_json,
    check_partition,
    check_sections,
)

_log = EngineLog(__name__)
T = TypeVar("T")

SILENT_AFTER_S: Final = 10.0
"""An owner that gave no sign of life for so long is taken for dead."""
APPEND_LIMIT_S: Final = 10.0
"""So long one transaction may take, by the broker's clock, too."""
SIGN_LIMIT_S: Final = 2.0
"""So long the transaction of a sign of life may take at least."""
SIGN_REST_S: Final = 0.1
"""No more than one sign in this time, however soon somebody is taken for dead: everybody reads them all."""
ASK_LIMIT_S: Final = 60.0
"""A read waits for the broker no longer than this."""
CLOSE_LIMIT_S: Final = 5.0
CLIENT: Final = -1
"""Beside the partitions: whoever sends what anyone may write."""
CLEAN_EVERY_S: Final = 10.0
"""Commands that were consumed are removed from the inboxes so often, and what nobody reads any more is let go of."""


@dataclass(slots=True)
class _Own:
    """A partition that this handle owns."""

    epoch: int
    sender: Sender


class KafkaTail(Tail):
    """Position: ``{"offset": where to go on}``."""

    def __init__(self, log: KafkaLog, feed: Feed, position: Position | None) -> None:
        offset: object = 0 if position is None else position.get("offset", 0)
        if not isinstance(offset, int) or offset < 0:
            raise LogError(f"not a position in a topic of this log: {position!r}", position=position)
        self._log = log
        self._feed = feed
        self._offset = offset
        self._recent: Recent = log.keep(feed, offset, self)

    @property
    def offset(self) -> int:
        """Where it goes on."""
        return self._offset

    def move_to(self, recent: Recent) -> None:
        """Go on in what is kept from an earlier offset on."""
        self._recent = recent

    def poll(self, max_records: int = 10_000) -> list[Record]:
        """Return what was read since the last poll (see the port; :meth:`Log.refresh` tells how current that is)."""
        self._log.check_readable()
        records, self._offset = self._recent.after(self._offset, max_records)
        self._log.passed(self._feed)
        return records

    def waiting(self) -> int:
        """Return how many records were read that no poll has returned."""
        return self._recent.count(self._offset)

    def skip(self) -> None:
        """Pass everything that is published now. Asks the broker."""
        self._log.wait_for(self._feed)
        self._offset = max(self._offset, self._recent.position)
        self._log.passed(self._feed)

    @property
    def position(self) -> Position:
        """How far the polls have come."""
        return Position({"offset": self._offset})


class KafkaLog(Log):
    """See :class:`gasoline_es.log.port.Log`. Made by :func:`gasoline_es.log.kafka.opening.open_kafka_log`."""

    def __init__(
        self,
        url: str,
        driver: Driver,
        mirror: Mirror,
        *,
        namespace: str,
        prefix: str,
        partitions: int,
        readonly: bool,
        silent_after_s: float,
        log_id: str,
        derived: str,
        known: tuple[Sequence[In], int],
    ) -> None:
        """``known``: what was read of who works here, when the log was looked for, and up to which offset."""
        self.url = url
        self.namespace = namespace
        self.partition_count = partitions
        self.writable = not readonly
        self.incarnation = "" if readonly else secrets.token_hex(8)
        self.log_id = log_id
        self.remote = True
        self.appends_apart = True
        self.cleared_by_key = True
        self.time_unit_us = 1_000
        self.derived = derived
        self._driver: Final = driver
        self._prefix: Final = prefix
        self._topics: Final = Topics(namespace)
        self._workers: Final = Feed(f"{prefix}{namespace}.{WORKERS}", 0)
        self._owners_topics: Final = frozenset(f"{prefix}{namespace}.{name}" for name in OWNERS_TOPICS)
        self._who: Final = Who(self.incarnation, silent_after_s)
        self._kept: Final = Kept(prefix, self._workers, self._who, mirror, self._wake, known)
        self._mirror: Final = mirror
        self._follower: Final = Follower(driver.reader, self._kept, self._wake, self._broke, self._hear)
        self._hear_at_s = 0.0
        self._known: Final = {
            Feed(f"{prefix}{namespace}.{name}", partition)
            for name in (*OWNERS_TOPICS, *ANYONES_TOPICS)
            for partition in range(partitions)
        }
        """Feeds that are known to be there."""
        self._others: Final = Others(url, driver, namespace, prefix, self._known, self._in_pool)
        self._own: dict[int, _Own] = {}
        self._taking: dict[int, asyncio.Lock] = {}
        self._appending: Final = {sender: asyncio.Lock() for sender in (CLIENT, *range(partitions))}
        """Held while a partition's sender is at work, or that of what anyone writes: each does one thing at a time."""
        self._tails: dict[Feed, WeakSet[KafkaTail]] = {}
        self._look_for_unread_at_s = time.monotonic() + CLEAN_EVERY_S
        self._loop: Final = asyncio.get_running_loop()
        self._pool: Final = ThreadPoolExecutor(max_workers=min(partitions, 32) + 4, thread_name_prefix="gasoline-kafka")
        self._client: Sender | None = None
        self._senders: Final[WeakSet[Sender]] = WeakSet()
        """All of them, those too that somebody is about to begin or to end with."""
        self._sent = 0
        self._to_clean: dict[Feed, int] = {}
        self._clean_at_s = time.monotonic() + CLEAN_EVERY_S
        self._signs: Signs | None = None
        self._silent_after_s = silent_after_s
        self._failed: LogError | None = None
        self._closed = False
        self._dirty = True
        self._living: frozenset[str] = frozenset()
        """Who lived when :meth:`changed` last returned."""
        self._waiter: asyncio.Future[None] | None = None

    def start(self) -> Future[None]:
        """Begin to follow who works here; the future ends once that is known."""
        self._follower.start()
        return self._follower.catch_up(self._workers)

    def feed(self, topic: str, partition: int) -> Feed:
        """Return a partition of a topic as the cluster calls it."""
        return Feed(in_cluster(topic, self._prefix), partition)

    @property
    def damage(self) -> LogCorrupt | None:
        """What the broker has lost, if it was found out."""
        return self._failed if isinstance(self._failed, LogCorrupt) else None

    # --- appending ----------------------------------------------------------------------------------------------------

    async def append(self, sections: Sequence[Section]) -> list[Outcome]:
        """Append each section as a transaction of its own, side by side (see the port)."""
        self._usable()
        check_sections(sections)
        for section in sections:
            self._check_partition(section.partition)
        rendered = [[to_kafka(record, self._prefix) for record in section.records] for section in sections]
        await self._require({record.feed for records in rendered for record in records})
        sending = [self._append_one(*one) for one in zip(sections, rendered, strict=True)]
        if len(sending) == 1:
            return [await sending[0]]
        return list(await asyncio.gather(*sending))

    async def _append_one(self, section: Section, records: Sequence[Out]) -> Outcome:
        async with self._appending[CLIENT if section.epoch is None else section.partition]:
            try:
                self._usable()  # it may have been closed meanwhile
            except LogError as error:
                return error
            return await self._append_alone(section, records)

    async def _append_alone(self, section: Section, records: Sequence[Out]) -> Outcome:
        try:
            if section.epoch is None:
                if records:
                    await self._in_pool(self._send, records)
                return Appended({})
            own = self._own.get(section.partition)
            if own is None or own.epoch != section.epoch:
                raise self._fenced(section.partition, section.epoch)
            if not records:
                await self.refresh()
                if not self._holds(section.partition, own.epoch):
                    raise self._fenced(section.partition, section.epoch)
                return Appended({})
            return await self._in_pool(self._commit, section, own, records)
        except Fenced as error:
            if section.epoch is not None:
                self._lost(section.partition, section.epoch)
            return error
        except LogError as error:
            return error if error.retryable else LogFailed(error.message)

    async def _in_pool(self, work: Callable[..., T], *args: Any) -> T:
        try:
            waiting = self._loop.run_in_executor(self._pool, work, *args)
        except RuntimeError:  # it has been shut down
            raise LogError(f"{self.url} is closed") from None
        return await waiting

    async def _require(self, feeds: Set[Feed]) -> None:
        """Raises: LogError: one of these is not there. Nothing would be recorded by waiting for it."""
        if not feeds <= self._known:
            await self._in_pool(self._look_for, feeds)

    def _look_for(self, feeds: Set[Feed]) -> None:
        """Do the same, and block for it."""
        new = feeds - self._known
        if not new:
            return  # nobody is to be asked
        with closing(self._driver.admin()) as admin:
            there = admin.describe(sorted({feed.topic for feed in new}), ASK_LIMIT_S, settings=False)
        for feed in new:
            found = there.get(feed.topic)
            if found is None or not 0 <= feed.partition < found.partitions:
                what = f"partition {feed.partition} of topic {feed.topic!r}" if found else f"topic {feed.topic!r}"
                raise LogError(f"{what} is not there: make it before something is sent to it", topic=feed.topic)
        self._known.update(new)

    async def partitions_of(self, topic: str, *, reading: bool = False) -> int:
        """Return how many partitions a topic of the cluster has that is none of ours (see the port)."""
        self._usable()
        return await self._others.partitions_of(topic, reading=reading)

    def _commit(self, section: Section, own: _Own, records: Sequence[Out]) -> Appended:
        """Append an owner's section; in a thread. Its copies are in the mirror on return."""
        mine = [at for at, record in enumerate(records) if self._is_own(record.feed, section.partition)]
        if not mine:  # something has to tell whether it is there
            registry = self.feed(self._topics.registry, section.partition)
            records = [
                *records,
                Out(registry, b"append/%d" % section.partition, b"%d" % time.time_ns(), (), records[0].time_ms),
            ]
            mine = [len(records) - 1]
        offsets = own.sender.send(records)
        read: dict[Feed, list[In]] = {}
        for at in mine:
            record = records[at]
            read.setdefault(record.feed, []).append(
                In(record.feed, offsets[at], record.key, record.value, record.headers, record.time_ms)
            )
        self._kept.add(
            {feed: (copies, self._mirror.position(feed), copies[-1].offset + 1) for feed, copies in read.items()}
        )
        self._consumed(section)
        firsts = {from_cluster(feed.topic, self._prefix): Offset(copies[0].offset) for feed, copies in read.items()}
        return Appended(firsts)

    def _consumed(self, section: Section) -> None:
        """Forget what an owner has consumed of its inbox for good: it has just recorded how far it came."""
        key = self._topics.position_key(section.partition)
        for record in section.records:
            if record.key == key and record.topic == self._topics.registry and record.value is not None:
                offset, feed = json.loads(record.value)["offset"], self.feed(self._topics.inbox, section.partition)
                recent = self._kept.recent(feed)
                if recent is not None:
                    recent.forget(offset)
                self._to_clean[feed] = offset
                now_s = time.monotonic()
                if now_s >= self._clean_at_s:
                    self._clean_at_s = now_s + CLEAN_EVERY_S
                    with suppress(RuntimeError):  # it is being closed
                        self._pool.submit(self._clean)

    def _clean(self) -> None:
        """Remove from the broker what was consumed for good. What cannot be removed now is removed later, or stays."""
        feeds = {
            feed: offset for feed in list(self._to_clean) if (offset := self._to_clean.pop(feed, None)) is not None
        }
        with suppress(LogError), closing(self._driver.admin()) as admin:
            admin.delete_before(feeds, APPEND_LIMIT_S)

    def _send(self, records: Sequence[Out]) -> None:
        """Append a client's records; in a thread. A marker among the replies tells whether they are there."""
        client = self._client
        if client is None:
            evidence = OfClient(self._follower, self._kept)
            client = self._client = self._sender(f"client.{self.incarnation}", APPEND_LIMIT_S, evidence)
        self._sent += 1
        header = ((SENT, b"%d" % self._sent),)
        marker = Out(self._reply_feed, self.incarnation.encode(), None, header, records[0].time_ms)
        client.send([*records, marker])

    @property
    def _reply_feed(self) -> Feed:
        return self.feed(self._topics.replies, self._topics.reply_partition(self.incarnation, self.partition_count))

    def _is_own(self, feed: Feed, partition: int) -> bool:
        return feed.partition == partition and feed.topic in self._owners_topics

    # --- owning -------------------------------------------------------------------------------------------------------

    async def acquire(self, partition: int) -> Ownership:
        """Take the partition as a new epoch (see the port)."""
        self._check_partition(partition)
        self._usable()
        async with self._taking.setdefault(partition, asyncio.Lock()):
            own = self._own.get(partition)
            if own is None:
                await self._caught_up(self._workers)
                self._refuse_owned(partition)
                own = await self._in_pool(self._take, partition)
                if self._closed:
                    own.sender.stop()
                    raise LogError(f"{self.url} is closed")
                self._own[partition] = own
                self._follower.leave(*self._own_feeds(partition))
            return Ownership(partition, Epoch(own.epoch), self._ends(partition))

    def _take(self, partition: int) -> _Own:
        """Fence the partition's id, read what it has written, begin an epoch; in a thread."""
        signs = self._live()
        epoch = 0
        evidence = OfOwner(
            self._follower,
            self._kept,
            self._workers,
            self._own_feeds(partition),
            lambda: self._holds(partition, epoch),
            self._others,
        )
        sender = self._sender(str(partition), APPEND_LIMIT_S, evidence)
        try:
            sender.fence()
            # What the last owner committed is there by now, and nothing of it comes any more.
            self._follower.catch_up(self._workers, *self._own_feeds(partition)).result(ASK_LIMIT_S)
            self._refuse_owned(partition)
            held = self._who.held(partition)
            epoch = 1 if held is None else held.epoch + 1
            # With a sign of life: nobody is to see an owner that has not given one yet.
            fate = sender.begin([self._owner_record(partition, epoch, released=False), signs.sign()])
            if isinstance(fate, Refused):
                raise Fenced(
                    f"partition {partition} of {self.url} was taken by another: {fate.why}", partition=partition
                )
            if not isinstance(fate, Committed):
                raise BrokerError(f"partition {partition} of {self.url} could not be taken: {fate.why}")
            self._follower.catch_up(self._workers).result(ASK_LIMIT_S)
        except TimeoutError:
            sender.stop()
            raise BrokerError(f"{self.url}: the broker did not answer in {ASK_LIMIT_S:g} s") from None
        except BaseException:
            sender.stop()
            raise
        return _Own(epoch, sender)

    def _refuse_owned(self, partition: int) -> None:
        held = self._who.held(partition)
        if (
            held is not None
            and not held.released
            and held.incarnation != self.incarnation
            and self._who.lives(held.incarnation, time.monotonic())
        ):
            raise PartitionOwned(
                f"partition {partition} of namespace {self.namespace!r} is owned by {held.incarnation}, which lives",
                partition=partition,
                owner=held.incarnation,
                epoch=held.epoch,
            )

    async def release(self, partition: int) -> None:
        """Give the partition up (see the port)."""
        self._check_partition(partition)
        self._usable()
        async with self._appending[partition]:
            own = self._own.pop(partition, None)
            if own is not None:
                await self._in_pool(self._give_up, partition, own)

    def _give_up(self, partition: int, own: _Own) -> None:
        with suppress(Fenced):  # somebody has taken it already
            own.sender.send([self._owner_record(partition, own.epoch, released=True)])
        own.sender.stop()
        with suppress(LogError, TimeoutError):
            self._follower.catch_up(self._workers).result(CLOSE_LIMIT_S)

    def _owner_record(self, partition: int, epoch: int, *, released: bool) -> Out:
        held = Held(epoch, self.incarnation, released, socket.gethostname(), os.getpid())
        return Out(self._workers, owner_key(partition), held.json(), (), now_ms())

    def _sender(self, name: str, limit_s: float, evidence: Evidence) -> Sender:
        sender = Sender(self._driver, f"{self._prefix}{self.namespace}.{name}", limit_s, evidence)
        self._senders.add(sender)
        return sender

    def _own_feeds(self, partition: int) -> list[Feed]:
        return [Feed(topic, partition) for topic in sorted(self._owners_topics)]

    def _ends(self, partition: int) -> dict[str, Offset]:
        ends = {feed.topic.removeprefix(self._prefix): self._mirror.end(feed) for feed in self._own_feeds(partition)}
        return {topic: end for topic, end in ends.items() if end}

    def _holds(self, partition: int, epoch: int) -> bool:
        held = self._who.held(partition)
        return held is not None and (held.epoch, held.incarnation, held.released) == (epoch, self.incarnation, False)

    def _lost(self, partition: int, epoch: int) -> None:
        own = self._own.get(partition)
        if own is not None and own.epoch == epoch:
            del self._own[partition]
            own.sender.stop()

    def _fenced(self, partition: int, epoch: int | None) -> Fenced:
        return Fenced(
            f"partition {partition} of namespace {self.namespace!r} is not owned as epoch {epoch}",
            partition=partition,
            epoch=epoch,
        )

    def owner(self, partition: int) -> Owner | None:
        """Return who holds the partition, as far as was heard (see the port)."""
        self._check_partition(partition)
        return self._who.owner(partition, time.monotonic(), mine=partition in self._own)

    # --- who works here -----------------------------------------------------------------------------------------------

    def _live(self) -> Signs:
        """Give signs of life from now on."""
        signs = self._signs
        if signs is None:
            # One that dies in the middle keeps everybody from reading on for so long.
            limit_s = max(self._silent_after_s / 3, SIGN_LIMIT_S)
            sender = self._sender(f"sign.{self.incarnation}", limit_s, OfSigns())
            signs = self._signs = Signs(
                self._workers, self.incarnation, sender, max(self._silent_after_s / 3, SIGN_REST_S)
            )
            signs.start()
        return signs

    def _hear(self) -> None:
        """Ask now and then whether all is read that the others have told: only then their silence is theirs."""
        now_s = time.monotonic()
        if now_s < self._hear_at_s:
            return
        self._hear_at_s = float("inf")  # once this one is answered

        def heard(done: Future[None]) -> None:
            if done.exception() is None:
                self._who.heard(now_s)
            self._hear_at_s = now_s + self._silent_after_s / 4

        self._follower.catch_up(self._workers).add_done_callback(heard)

    def announce(self, about: Mapping[str, Any] | None) -> None:
        """Tell the others about this process, within moments (see the port)."""
        self._usable()
        if about is not None:
            about_json(about)
        self._live().tell(about)

    def members(self) -> list[Member]:
        """Return who has told something and lives (see the port)."""
        self.check_readable()
        return self._who.members(time.monotonic(), None if self._signs is None else self._signs.about)

    def others(self) -> list[Member]:
        """Return the other processes that have shown themselves, and live (see the port)."""
        self.check_readable()
        return self._who.others(time.monotonic())

    async def shown(self) -> None:
        """Give signs of life from now on; on return the first is durable (see the port)."""
        self._usable()
        if not await self._in_pool(self._live().shown.wait, ASK_LIMIT_S):
            raise self._unanswered()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def refresh(self, *feeds: tuple[str, int]) -> None:
        """See to it that reads have everything that was published before this call (see the port)."""
        self.check_readable()
        for topic, _ in feeds:
            check_topic(in_cluster(topic, self._prefix))
        wanted = [feed for topic, partition in feeds if not self._is_current(feed := self.feed(topic, partition))]
        await self._require(set(wanted))
        for feed in wanted:
            if not owned(feed):
                # Many write there, and it is kept for tails: for one that may come now, and no longer if none does.
                self._tails.setdefault(feed, WeakSet())
        if wanted or not feeds:
            await self._caught_up(self._workers, *wanted)

    async def _caught_up(self, *feeds: Feed) -> None:
        before = {feed: self._kept.position(feed) for feed in feeds}
        waiting = self._follower.catch_up(*feeds)
        caught_up = asyncio.wrap_future(waiting)
        try:
            while not (await asyncio.wait([caught_up], timeout=ASK_LIMIT_S))[0]:
                # A long log takes longer than that to be read the first time, and is waited for as long as records come.
                now = before | {feed: self._kept.position(feed) for feed in waiting.behind}
                if now == before:
                    raise self._unanswered()
                before = now
        finally:
            caught_up.cancel()
        await caught_up

    def wait_for(self, feed: Feed) -> None:
        """Do as :meth:`refresh` does, and block for it."""
        if self._is_current(feed):
            return
        try:
            self._follower.catch_up(feed).result(ASK_LIMIT_S)
        except TimeoutError:
            raise self._unanswered() from None

    def _unanswered(self) -> BrokerError:
        return BrokerError(
            f"{self.url}: the broker did not answer in {ASK_LIMIT_S:g} s. Look whether it runs, and try again"
        )

    def _is_current(self, feed: Feed) -> bool:
        """Whether this process is the only one that writes there, and knows all of it."""
        return feed.topic in self._owners_topics and feed.partition in self._own

    def _local(self, topic: str, partition: int) -> Feed:
        """Return a single-writer feed that is kept up here; a first look at one waits until it is."""
        self.check_readable()
        feed = self.feed(topic, partition)
        if not self._is_current(feed) and not self._follower.follows(feed):
            check_topic(feed.topic)
            self._look_for({feed})
            self.wait_for(feed)
        return feed

    def read(self, topic: str, partition: int, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        """Yield the records of a single-writer topic, of what was read so far (see the port)."""
        feed = self._local(topic, partition)
        end = self._mirror.end(feed)
        return self._mirror.read(feed, start, end if stop is None else min(stop, end))

    def read_at(
        self, topic: str, partition: int, offsets: Sequence[int], places: Sequence[int] | None = None
    ) -> list[Record]:
        """Return the records at these ascending offsets (see the port)."""
        self.check_readable()
        # What was read before may be relied on without following the feed: a committed record does not change.
        found = self._mirror.read_at(self.feed(topic, partition), offsets)
        if len(found) != len(offsets):
            found = self._mirror.read_at(self._local(topic, partition), offsets)
        if len(found) != len(offsets):
            there = {record.offset for record in found}
            missing = [offset for offset in offsets if offset not in there]
            raise LogError(
                f"topic {topic!r}, partition {partition} has no record at offset {missing[:3]}",
                topic=topic,
                partition=partition,
                offsets=missing,
            )
        return found

    def end(self, topic: str, partition: int) -> Offset:
        """Return the offset after the last record that was read (see the port)."""
        return self._mirror.end(self._local(topic, partition))

    def tail(self, topic: str, partition: int, position: Position | None = None) -> Tail:
        """Open a many-writer topic's partition for reading (see the port)."""
        self.check_readable()
        feed = self.feed(topic, partition)
        check_topic(feed.topic)
        self._look_for({feed})
        return KafkaTail(self, feed, position)

    async def source(
        self, topic: str, partition: int, position: Position | None = None, *, past_lost: bool = False
    ) -> Source:
        """Open a partition of any topic of the cluster for reading (see the port)."""
        self.check_readable()
        feed = self.feed(topic, partition)
        await self._require({feed})
        source = KafkaSource(self._driver, self._prefix, feed, position, past_lost=past_lost)
        try:
            await source.open()
        except BaseException:
            await source.close()
            raise
        return source

    def keep(self, feed: Feed, first: int, tail: KafkaTail) -> Recent:
        """Keep what is read of a many-writer feed from an offset on, for a tail (for :class:`KafkaTail`)."""
        recent, again = self._kept.keep_from(feed, first)
        if again:
            for other in self._tails.get(feed, ()):
                other.move_to(recent)
            self._follower.restart(feed)
        else:
            self._follower.follow(feed)
        self._tails.setdefault(feed, WeakSet()).add(tail)
        return recent

    def passed(self, feed: Feed) -> None:
        """Forget what no tail of a feed has yet to give. Of an inbox the owner says when (see :meth:`_consumed`)."""
        if feed.topic == self._prefix + self._topics.inbox:
            return
        recent, tails = self._kept.recent(feed), self._tails.get(feed, ())
        if recent is not None and tails:
            recent.forget(min(tail.offset for tail in tails))

    def _leave_unread(self) -> None:
        """Follow no feed whose tails are all gone, of a partition that others own now, say: it would be kept for nobody."""
        now_s = time.monotonic()
        if now_s < self._look_for_unread_at_s:
            return
        self._look_for_unread_at_s = now_s + CLEAN_EVERY_S
        for feed in [feed for feed, tails in self._tails.items() if not tails]:
            del self._tails[feed]
            self._follower.leave(feed)
            if (recent := self._kept.recent(feed)) is not None:
                recent.forget(recent.position)  # who comes again reads from there on, or all of it anew

    def newest(self, topic: str, partition: int, since_us: int, wanted: Wanted) -> Record | None:
        """Return the newest record that is wanted. Asks the broker, and reads what it has since that time (see the port)."""
        self.check_readable()
        feed = self.feed(topic, partition)
        best: Record | None = None
        with closing(self._driver.reader()) as reader:
            start = reader.since({feed: max(since_us, 0) // 1000}, ASK_LIMIT_S)[feed]
            for read in read_through(reader, feed, start, ASK_LIMIT_S):
                record = from_kafka(read, self._prefix, owned=False)
                late = record.time_us >= since_us and (best is None or record.time_us >= best.time_us)
                if late and wanted(record):
                    best = record
        return best

    async def changed(self) -> None:
        """Return once something may have changed since the last call returned (see the port)."""
        self.check_readable()
        if self._waiter is not None:
            raise RuntimeError("only one task at a time may wait for changes of a log")
        while True:
            self._waiter = self._loop.create_future()  # before the look: what comes behind that ends the wait
            try:
                now_s = time.monotonic()
                living = self._who.living(now_s)
                if (
                    self._dirty or self._closed or living != self._living
                ):  # nobody wakes us because of one who fell silent
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._who.silent_in(now_s)):
                        await self._waiter
            finally:
                self._waiter = None
        self._dirty, self._living = False, living
        self._leave_unread()

    def _wake(self) -> None:
        """Let :meth:`changed` return; from any thread."""
        self._dirty = True
        waiter = self._waiter
        if waiter is not None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits
                self._loop.call_soon_threadsafe(_resolve, waiter)

    def info(self) -> LogInfo:
        """Return what ``log info`` shows."""
        self.check_readable()
        owners = [owner for p in range(self.partition_count) if (owner := self.owner(p)) is not None]
        return LogInfo(self.url, self.log_id, {self.namespace: self.partition_count}, (), owners)

    def verify(self) -> Iterator[Problem | SegmentInfo]:
        """Yield nothing: the broker checks its batches itself, by a checksum of each."""
        return iter(())

    # ------------------------------------------------------------------------------------------------------------------

    def _check_partition(self, partition: int) -> None:
        check_partition(partition, self.partition_count, self.namespace)

    def _usable(self) -> None:
        self.check_readable()
        if not self.writable:
            raise LogReadOnly(f"{self.url} was opened for reading")

    def check_readable(self) -> None:
        """Raises: LogError: it is closed, or failed."""
        if self._closed:
            raise LogError(f"{self.url} is closed")
        if self._failed is not None:
            if isinstance(self._failed, LogCorrupt):
                raise self._failed
            raise LogFailed(self._failed.message)

    def _broke(self, error: LogError) -> None:
        self._failed = error
        self._wake()

    def crash(self) -> None:
        """For tests: go away as the end of the process would. Nothing is released."""
        self._closed = True
        self._let_go()
        self._wake()

    def _let_go(self) -> None:
        if self._signs is not None:
            self._signs.stop()
        self._own.clear()
        self._stop_senders()
        self._follower.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._mirror.close()
        self._driver.close()

    def _stop_senders(self) -> None:
        for sender in list(self._senders):
            sender.stop()

    async def close(self) -> None:
        """Release every partition, let go of the cluster. What has waited for the broker for some seconds fails. Idempotent."""
        if self._closed:
            return
        # An append waits as long as an outage does.
        giving_up = self._loop.call_later(CLOSE_LIMIT_S, self._stop_senders)
        async with AsyncExitStack() as stack:
            for appending in self._appending.values():
                await stack.enter_async_context(appending)
            giving_up.cancel()
            if self._closed:
                return
            self._closed = True
            owned, self._own = self._own, {}
            try:
                async with asyncio.timeout(CLOSE_LIMIT_S):
                    await asyncio.gather(*(self._in_pool(self._give_up, *one) for one in owned.items()))
                    if self._signs is not None:
                        await self._in_pool(self._signs.leave)
            except TimeoutError:
                _log.warning(
                    "%s was left without a word: the broker does not answer", self.url, extra={"url": self.url}
                )
            await asyncio.to_thread(self._let_go)
        self._wake()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
