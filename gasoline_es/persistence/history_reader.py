"""The events of workflows as one reads them who writes nothing, on the event loop that its log belongs to (decision 0034)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, get_args

from gasoline_es.core.codec import read, type_of
from gasoline_es.core.events import Event, EventData, Unreadable
from gasoline_es.core.pruning import may_prune
from gasoline_es.core.topics import Topics
from gasoline_es.errors import GasolineError, HorizonMoved, LogError
from gasoline_es.log.ends import decided_end
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log, Record

_READ_AT_ONCE: Final = 500
"""So many events are read before the event loop gets a turn."""

_AGAIN_MAX: Final = 5
"""So many times a history is read that the log's cleaner keeps getting ahead of."""
_PASSED_MAX: Final = 1_000
"""So many questions are remembered of which it is known where nothing answers them."""
_TYPES: Final = frozenset(kind.TYPE for kind in get_args(EventData))

Read = tuple[int, Event, bytes]
"""An event with its number in its partition, from 1, and its text."""


class HistoryReader:
    """Reads the partitions of a namespace. An event's number is its offset on the log and one more: nobody gives it anew.

    So numbers ascend, and have gaps: on Kafka (decision 0041), and where the cleaner has removed events of workflows that
    were pruned (0045).
    """

    def __init__(self, log: Log) -> None:
        self.partition_count: Final = log.partition_count
        self._log: Final = log
        self._topic: Final = Topics(log.namespace).events
        self._callbacks: dict[Callable[[], None], None] = {}
        self._failure: LogError | None = None
        self._passed: dict[tuple[int, frozenset[str]], tuple[int, int]] = {}
        """By partition and types: a half-open range of numbers in which there is none of these types: it is not read again."""

    @property
    def failed(self) -> bool:
        """Whether nothing works here any more."""
        return self._failure is not None

    async def on_news(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on this loop whenever there may be more events, by whichever process, or never will be again.

        Returns what ends it, to be called on this loop.
        """
        self._callbacks[callback] = None

        def end() -> None:
            self._callbacks.pop(callback, None)

        return end

    async def follow(self) -> None:
        """Look for changes of the log for ever."""
        try:
            while True:
                await self._log.changed()
                self._tell()
        except (LogError, OSError) as error:
            self._failure = error if isinstance(error, LogError) else LogError(f"{self._log.url}: {error}")
            self._tell()

    def _tell(self) -> None:
        for callback in list(self._callbacks):
            callback()

    async def end(self, partition: int) -> int:
        """Return the number of the last event, 0 if there is none. Raises: LogError."""
        end = await self._end(partition)
        size = 1
        while end > 0 and self._log.damage is None:  # behind the last event may be tombstones, of which nobody is told
            start = max(0, end - size)
            held = [record for record in self._log.read(self._topic, partition, start, end) if record.value is not None]
            if held and held[-1].offset is not None:
                return held[-1].offset + 1
            end, size = start, 2 * size
            await asyncio.sleep(0)
        return end

    async def _end(self, partition: int) -> int:
        """Return the offset at which the partition ends. Raises: LogError."""
        self._check()
        return await decided_end(self._log, self._topic, partition)

    async def select(
        self, partition: int, start: int, stop: int | None, limit: int, types: frozenset[str]
    ) -> list[Read]:
        """Return at most ``limit`` events with ``start <= number < stop`` of these types, of all if there is none, in order.

        Raises: LogError: damage. GasolineError: an event that does not read. Both only where nothing comes before them.
        """
        if limit <= 0:
            self._check()
            return []
        if not types:
            found, _ = await self._select(partition, start, stop, limit, lambda _: True)
            return found
        key = partition, types
        first, behind = self._passed.get(key, (0, 0))
        begin = behind if first <= start < behind else start
        if stop is not None and begin >= stop:
            self._check()
            return []
        unwanted = frozenset(one.encode() for one in _TYPES - types)
        found, reached = await self._select(partition, begin, stop, limit, lambda event: event.type in types, unwanted)
        none_from = found[-1][0] + 1 if found else first if begin == behind else start
        if reached > none_from:
            self._passed.pop(key, None)
            self._passed[key] = none_from, reached
            if len(self._passed) > _PASSED_MAX:
                del self._passed[next(iter(self._passed))]
        return found

    async def of_workflow(self, partition: int, workflow_id: str) -> list[Read]:
        """Return the events of one workflow, all of them. Reads the partition for that, from its start to its end.

        If the workflow is pruned meanwhile they are read again: the log's cleaner may have removed some before they were read.

        Raises: LogError, GasolineError: as :meth:`select`, wherever damage is: nobody asks again from there. HorizonMoved: the
            log is cleaned faster than it can be read.
        """
        tries = 0
        while True:
            tries += 1
            end = await self.end(partition)
            try:
                found, _ = await self._select(
                    partition, 1, None, None, lambda event: event.workflow_id == workflow_id, whole=True
                )
            except HorizonMoved:
                if tries == _AGAIN_MAX:
                    raise
                continue
            if not await self._pruned_since(partition, workflow_id, end):
                return found

    async def _pruned_since(self, partition: int, workflow_id: str, offset: int) -> bool:
        prefix = f"{workflow_id}/"
        records = self._log.read(self._topic, partition, offset, await self.end(partition))
        return any(record.key.startswith(prefix) and may_prune(record.value) for record in records)

    async def _select(
        self,
        partition: int,
        start: int,
        stop: int | None,
        limit: int | None,
        wanted: Callable[[Event], bool],
        unwanted: frozenset[bytes] = frozenset(),
        *,
        whole: bool = False,
    ) -> tuple[list[Read], int]:
        """Return what is wanted, and before which number all was looked at. Events of unwanted types are not decoded."""
        end = await self._end(partition)
        found: list[Read] = []
        reached = start
        # Up to damage there is something to read; what comes behind it nobody knows.
        up_to = end if self._log.damage is None else None
        try:
            for count, record in enumerate(self._log.read(self._topic, partition, start - 1, up_to), 1):
                if stop is not None and record.offset is not None and record.offset + 1 >= stop:
                    break
                if record.value is None and record.offset is not None:
                    reached = record.offset + 2  # it takes back what a pruning gave up
                elif record.value is None or record.offset is None or type_of(record.value) not in unwanted:
                    number, event, _ = one = self._decoded(record)
                    reached = number + 1
                    if wanted(event):
                        found.append(one)
                        if len(found) == limit:
                            break
                else:
                    reached = record.offset + 2
                if count % _READ_AT_ONCE == 0:
                    await asyncio.sleep(0)
        except GasolineError as error:
            # Who selects folds nothing: all that there is was read, and what is gone nobody asks for.
            if whole or not (found or isinstance(error, HorizonMoved)):
                raise
        return found, reached

    def _decoded(self, record: Record) -> Read:
        where = (
            f"{self._log.url}: the event at offset {record.offset} of partition {record.partition} of {record.topic}"
        )
        if record.value is None or record.offset is None:
            raise GasolineError(f"{where} was removed")
        try:
            event = read(record.key, record.value)
        except ValueError as error:
            raise GasolineError(f"{where} does not read: {error}") from error
        if isinstance(event.data, Unreadable):
            raise GasolineError(
                f"{where} does not read: {event.data.reason}. If a newer version of gasoline_es has written it, update this one"
            )
        return record.offset + 1, event, record.value

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


@asynccontextmanager
async def open_histories(url: str, namespace: str) -> AsyncGenerator[HistoryReader]:
    """Open the histories of a namespace, for as long as the block lasts. Nothing is written, and nothing made.

    Raises on entering: LogError: there is no such log or namespace.
    """
    log = await open_log(url, namespace=namespace, readonly=True, final=True)
    reader = HistoryReader(log)
    following = asyncio.create_task(reader.follow(), name="gasoline-follow-histories")
    try:
        yield reader
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await log.close()
