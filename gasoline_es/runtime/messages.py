"""Messages on their way: into the log with the next append, and from there to whoever subscribes (semantics.md §9).

They are on a topic of their own, written by anyone, all of a name in one partition. Nothing of them is kept in memory but
what subscribers have yet to take: the newest of a topic is looked up in the log, backwards from its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Final
from weakref import WeakSet

from gasoline_es.clock import Clock
from gasoline_es.core.packets import Packet, decode_packet
from gasoline_es.core.tags import matches
from gasoline_es.core.topics import Topics
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError
from gasoline_es.log.port import Appended, Log, NewRecord, Outcome, Record, Section, Tail
from gasoline_es.runtime.appender import Appending
from gasoline_es.runtime.batch import Batch
from gasoline_es.runtime.partition import message_record

_log = EngineLog(__name__)

WAITING_MAX: Final = 1_000
WAITING_BYTES_MAX: Final = 4_000_000
"""So many messages, and bytes of them, wait for the next append; who sends more waits until that has begun."""
POLL_MAX: Final = 500
"""So many messages are handed out before the event loop gets a turn."""


class Outgoing:
    """The messages this process sends from outside of bodies: sections without an epoch, and nobody else's."""

    def __init__(self, log: Log, topics: Topics, appender: Appending, published: Callable[[], None]) -> None:
        self._log = log
        self._topics = topics
        self._appender = appender
        self._published = published
        self._open: list[NewRecord] = []
        self._bytes = 0
        self._settled_with: asyncio.Future[None] | None = None
        """Of those that are open: set when their append has ended."""
        self._taken_with: asyncio.Future[None] | None = None
        self._taken = 0
        self.lost = 0
        """How many were not published although they were sent."""
        self._room: asyncio.Future[None] | None = None
        self._order = asyncio.Lock()
        self._failure: LogError | None = None

    async def send(self, packet: Packet, *, wait: bool) -> None:
        """Send a message with the next append; on return, with ``wait``, it is durable and published.

        Without, it may still be lost. Messages go out in the order of the calls. Raises: RecordTooLarge: it is not sent;
        with ``wait`` LogError: it is not, or may not be.
        """
        record = message_record(self._log, self._topics, packet)
        async with self._order:  # fair: who waits for room is not overtaken
            while self._full:
                if self._room is None:
                    self._room = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._room)
            if self._failure is not None:
                raise self._failure
            self._open.append(record)
            self._bytes += 0 if record.value is None else len(record.value)
            if self._settled_with is None:
                self._settled_with = asyncio.get_running_loop().create_future()
            settled = self._settled_with
            self._appender.ask(self)
        if wait:
            await asyncio.shield(settled)

    async def flush(self) -> None:
        """Wait until all that was sent so far is published, or lost."""
        for settled in (self._taken_with, self._settled_with):
            if settled is not None:
                await asyncio.wait((settled,))

    @property
    def _full(self) -> bool:
        return bool(self._open) and (len(self._open) >= WAITING_MAX or self._bytes >= WAITING_BYTES_MAX)

    def take(self) -> tuple[Section, Batch] | None:
        """Hand over what is to be appended now (for the appender)."""
        if not self._open:
            return None
        records, self._open, self._bytes = self._open, [], 0
        self._taken, self._taken_with, self._settled_with = len(records), self._settled_with, None
        self._make_room()
        return Section(records[0].partition, None, records), Batch()

    def settled(self, batch: Batch, outcome: Outcome) -> None:
        """Learn the fate of what was taken (from the appender)."""
        settled, self._taken_with = self._taken_with, None
        if isinstance(outcome, Appended):
            _resolve(settled, None)
            self._published()
            return
        self.lost += self._taken
        _log.warning("messages were lost", extra={"messages": self._taken, "error": str(outcome)})
        _resolve(settled, outcome)

    def fail(self, error: LogError) -> None:
        """Nothing will be sent any more."""
        if self._failure is None:
            self._failure = error
        self._open, self._bytes = [], 0
        for settled in (self._taken_with, self._settled_with):
            _resolve(settled, error)
        self._taken_with = self._settled_with = None
        self._make_room()

    def _make_room(self) -> None:
        room, self._room = self._room, None
        _resolve(room, None)


def _resolve(future: asyncio.Future[None] | None, error: LogError | None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # as a rule nobody waits for it


class Feed:
    """What one subscriber has yet to take: at most ``room`` messages, of which the oldest are dropped for newer ones."""

    def __init__(self, name: str, topic: Mapping[str, str], room: int) -> None:
        self.name = name
        self.topic = topic
        self.lost = 0
        """How many were dropped."""
        self._waiting: deque[Packet] = deque(maxlen=room)
        self._news = asyncio.Event()
        self._over = False
        self._error: LogError | None = None

    def put(self, packet: Packet) -> bool:
        """Let it take this message when it comes to it, if it matches. Return whether another was dropped for it."""
        if not matches(packet.topic, self.topic):
            return False
        if len(self._waiting) == self._waiting.maxlen:
            if not self.lost:
                _log.warning("a subscriber is too slow: its oldest messages are dropped", extra={"subject": self.name})
            self.lost += 1
        dropped = len(self._waiting) == self._waiting.maxlen
        self._waiting.append(packet)
        self._news.set()
        return dropped

    async def next(self) -> Packet | None:
        """Return the next message, once there is one; None: it was ended. Raises: LogError: no more will come."""
        while not self._waiting:
            if self._over:
                return None
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    def end(self, error: LogError | None = None) -> None:
        """Nothing more is put: by its own wish, or because of an error, which comes behind what waits."""
        if error is None:
            self._over = True
            self._waiting.clear()
        elif self._error is None:
            self._error = error
        self._news.set()


class Messages:
    """The messages of one log handle. ``spawn`` starts a task that ends with the engine."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        clock: Clock,
        appender: Appending,
        spawn: Callable[[Coroutine[None, None, None], str], object],
    ) -> None:
        self.outgoing = Outgoing(log, topics, appender, self.heard)
        self._log = log
        self._topics = topics
        self._clock = clock
        self._spawn = spawn
        self._tails: dict[int, Tail] = {}
        self._feeds: dict[int, WeakSet[Feed]] = {}
        """By partition of the topic. A subscriber that was forgotten is forgotten here, too."""
        self._news = asyncio.Event()
        self._follows = False
        self._unreadable_told = False
        self.dropped = 0
        """How many were dropped for subscribers that were too slow."""

    # --- subscribing --------------------------------------------------------------------------------------------------

    def subscribe(self, name: str, topic: Mapping[str, str], room: int) -> Feed:
        """Let a new feed have every message of this name that is published from now on. Raises: LogError."""
        index = self._topics.message_partition(name, self._log.partition_count)
        while self._hand_out(index):  # what came before is for those that were there before
            pass
        if index not in self._feeds:
            tail = self._log.tail(self._topics.messages, index)
            tail.skip()
            self._tails[index], self._feeds[index] = tail, WeakSet()
        feed = Feed(name, topic, room)
        self._feeds[index].add(feed)
        if not self._follows:
            self._follows = True
            self._spawn(self._follow(), "gasoline-messages")
        return feed

    def unsubscribe(self, feed: Feed) -> None:
        """End a feed. Again: nothing."""
        feed.end()
        for index, feeds in list(self._feeds.items()):
            feeds.discard(feed)
            if not feeds:
                del self._feeds[index], self._tails[index]

    def heard(self) -> None:
        """Something may have been published."""
        if self._feeds:
            self._news.set()

    def fail(self, error: LogError) -> None:
        """Nothing is sent any more, and nothing comes."""
        self.outgoing.fail(error)
        for feeds in self._feeds.values():
            for feed in list(feeds):
                feed.end(error)

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            full = list(self._feeds)
            while full := [index for index in full if self._hand_out(index)]:  # noqa: ASYNC110  # nothing is waited for
                await asyncio.sleep(0)

    def _hand_out(self, index: int) -> bool:
        """Give a partition's new messages to its feeds; whether there may be more. Without feeds it is followed no more."""
        feeds = list(self._feeds.get(index, ()))
        if not feeds:
            self._feeds.pop(index, None)
            self._tails.pop(index, None)
            return False
        try:
            records = self._tails[index].poll(POLL_MAX)
        except LogError as error:
            for feed in feeds:
                feed.end(error)
            del self._feeds[index], self._tails[index]
            return False
        names = {feed.name for feed in feeds}
        for record in records:
            packet = self._read(record) if record.key in names else None
            if packet is not None:
                for feed in feeds:
                    if feed.name == packet.name:
                        self.dropped += feed.put(packet)
        return len(records) == POLL_MAX

    # --- the newest ---------------------------------------------------------------------------------------------------

    async def newest(self, name: str, topic: Mapping[str, str], ttl_us: int) -> Packet | None:
        """Return the newest message of a name whose topic contains these tags, if it was made within that time.

        What this process has sent before is published by then. Raises: LogError.
        """
        await self.outgoing.flush()

        def wanted(record: Record) -> bool:
            packet = self._read(record) if record.key == name else None
            return packet is not None and packet.name == name and matches(packet.topic, topic)

        index = self._topics.message_partition(name, self._log.partition_count)
        since_us = self._clock.now_us() - ttl_us
        newest = self._log.newest(self._topics.messages, index, since_us, wanted)
        return None if newest is None else self._read(newest)

    def _read(self, record: Record) -> Packet | None:
        """Read a message; None for what is none: anybody may write there."""
        try:
            return None if record.value is None else decode_packet(record.value)
        except ValueError as error:
            if not self._unreadable_told:
                self._unreadable_told = True
                _log.warning("a record among the messages is none, and is passed", extra={"error": str(error)})
            return None
