"""Reads one partition of any topic of the cluster, by a reader of its own that holds no more than it is asked for.

What is read of the namespace's topics is kept for whoever asks again; of a foreign topic nobody asks twice, and it may be as
large as it likes. Only committed records are seen. Tombstones are records; offsets that hold none are passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import Driver, Feed, OffsetGone, Reader
from gasoline_es.log.kafka.records import from_kafka
from gasoline_es.log.port import Named, Position, Source

POLL_S: Final = 0.5
ASK_S: Final = 10.0
T = TypeVar("T")


class KafkaSource(Source):
    """Position: ``{"offset": where to go on}``."""

    waits = True

    def __init__(self, driver: Driver, prefix: str, feed: Feed, position: Position | None, *, past_lost: bool) -> None:
        offset: object = None if position is None else position.get("offset")
        if position is not None and (not isinstance(offset, int) or offset < 0):
            raise LogError(f"not a position in a topic of this log: {position!r}", position=position)
        self._driver: Final = driver
        self._prefix: Final = prefix
        self._feed: Final = feed
        self._wanted: Final = offset if isinstance(offset, int) else None
        self._past_lost: Final = past_lost
        self._offset = 0
        self._reader: Reader | None = None
        # One thread: a reader takes no more. Its own, so that sources do not wait for each other's polls.
        self._thread: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gasoline-kafka-source")

    async def open(self) -> None:
        """Look where it begins. Raises: LogError: see :meth:`gasoline_es.log.port.Log.source`."""
        await self._do(self._open)

    def _open(self) -> None:
        reader = self._reader = self._driver.reader()
        begin = reader.begins([self._feed], ASK_S)[self._feed]
        end = reader.ends([self._feed], ASK_S)[self._feed]
        offset = begin if self._wanted is None else self._wanted
        if offset > end:
            if not self._past_lost:
                raise self._lost(
                    offset,
                    f"ends at offset {end}, and was read to {offset}: the topic was made anew, or the broker has lost records",
                )
            offset = begin  # of another topic, all of which is new
        if offset < begin:
            if not self._past_lost:
                raise self._lost(offset, f"begins at offset {begin}: the {begin - offset} offsets before it are gone")
            offset = begin
        self._offset = offset
        reader.assign({self._feed: offset})

    def _lost(self, offset: int, what: str) -> LogError:
        return LogError(
            f"partition {self._feed.partition} of topic {self._feed.topic!r} is to be read from offset {offset} on, and "
            f"{what}. Nothing more is read there. If what is gone may be missed, read on with `past_lost=True`",
            topic=self._feed.topic,
            partition=self._feed.partition,
            offset=offset,
        )

    async def poll(self, max_records: int) -> list[Named]:
        """Return the next records, after half a second at the latest."""
        return await self._do(lambda: self._poll(max_records))

    def _poll(self, max_records: int) -> list[Named]:
        reader = self._opened
        try:
            came = reader.poll(max_records, POLL_S)
        except OffsetGone as gone:
            raise self._lost(self._offset, f"has nothing there any more ({gone.message})") from gone
        # Beyond what is not a record, too: who goes on from there need not pass it again.
        self._offset = max(self._offset, reader.position(self._feed))
        return [Named(str(one.offset), from_kafka(one, self._prefix, owned=False)) for one in came]

    @property
    def position(self) -> Position:
        """How far the polls have come."""
        return Position({"offset": self._offset})

    async def skip(self) -> None:
        """Pass everything that is published now: what an open transaction has written counts as published."""
        await self._do(self._skip)

    def _skip(self) -> None:
        self._offset = self._opened.ends([self._feed], ASK_S)[self._feed]
        self._opened.seek(self._feed, self._offset)

    async def waiting(self) -> int:
        """Return how many offsets there are that no poll has passed."""
        return await self._do(lambda: max(self._opened.ends([self._feed], ASK_S)[self._feed] - self._offset, 0))

    @property
    def _opened(self) -> Reader:
        assert self._reader is not None
        return self._reader

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError:  # it was closed
            raise LogError(f"partition {self._feed.partition} of topic {self._feed.topic!r} is read no more") from None

    async def close(self) -> None:
        """Let go of it. What is under way ends first, in its thread: also an opening, whose reader nobody has yet."""
        with suppress(RuntimeError):  # it was closed before
            self._thread.submit(self._end)
        if self._reader is not None:
            self._reader.wake()
        self._thread.shutdown(wait=False)

    def _end(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
