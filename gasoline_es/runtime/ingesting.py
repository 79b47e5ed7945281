"""Reads foreign topics and has done what their records lead to, each once (design §6).

A partition of a foreign topic is read by the owner of one partition of the namespace, always the same. How far it was read
goes into that partition's registry, in the append of what the records led to: all of it counts, or nothing. The owner is
fenced, so whoever it was before records nothing more. One batch is under way at a time: nothing is read ahead of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal

from gasoline_es.core.commands import Asked
from gasoline_es.core.events import ErrorInfo
from gasoline_es.core.ids import partition_of_slot
from gasoline_es.core.letters import Letter
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import DefinitionError, LogError, TopicRefused
from gasoline_es.log.port import Named, Position, Source
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.partition import Partition

_log = EngineLog(__name__)

BATCH_FIRST: Final = 16
BATCH_MAX: Final = 200
BATCH_BYTES: Final = 4_000_000
"""A batch is made smaller where the last one was larger."""
AGAIN_S: Final = 2.0
"""A partition that could not be read, or whose append failed, is tried again so much later."""
LOOK_AGAIN_S: Final = 1.0
LAG_AGAIN_S: Final = 5.0

Led = tuple[Sequence[Asked], ErrorInfo | None]
"""What a record leads to, or why it is a dead letter."""
MapAll = Callable[[Sequence[Named]], Awaitable[Sequence[Led]]]


class Ingesting:
    """One pipeline in one process: reads what belongs to the partitions that this process owns."""

    def __init__(
        self,
        node: Node,
        pipeline: str,
        topic: str,
        dead_letters: str,
        map_all: MapAll,
        start: Literal["earliest", "latest"],
        *,
        past_lost: bool,
    ) -> None:
        self._node: Final = node
        self._pipeline: Final = pipeline
        self._topic: Final = topic
        self._dead_letters: Final = dead_letters
        self._map_all: Final = map_all
        self._start: Final[Literal["earliest", "latest"]] = start
        self._past_lost: Final = past_lost
        self._count = 0
        self._letter_partitions = 1
        self._tasks: set[asyncio.Task[None]] = set()
        self._news: set[asyncio.Event] = set()
        self._endings: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Begin. Raises: DefinitionError: it runs already. TopicRefused: one of the two topics is closed, or not there."""
        node = self._node
        if self._pipeline in node.pipelines:
            raise DefinitionError(f"this process already ingests by the name {self._pipeline!r}: give another `name=`")
        self._count = await node.log.partitions_of(self._topic, reading=True)
        self._letter_partitions = await node.log.partitions_of(self._dead_letters)
        node.pipelines.add(self._pipeline)
        self._endings = [node.on_change(self._heard), node.on_taken(self._taken)]

    async def stop(self) -> None:
        """Read no more. What was handed to an append already still counts, with its position."""
        for end in self._endings:
            end()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._node.pipelines.discard(self._pipeline)
        for number in range(self._count):
            self._node.recording.ingest_lag.pop((self._pipeline, number), None)

    def _heard(self) -> None:
        for news in self._news:
            news.set()

    def _taken(self, partition: Partition) -> None:
        topics, count = self._node.topics, self._node.log.partition_count
        for number in range(self._count):
            if partition_of_slot(topics.source_slot(self._pipeline, self._topic, number), count) == partition.index:
                task = self._node.spawn(self._keep_reading(partition, number), f"gasoline-ingest-{number}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _owns(self, partition: Partition) -> bool:
        return not partition.lost and self._node.partitions.get(partition.index) is partition

    async def _keep_reading(self, partition: Partition, number: int) -> None:
        while self._owns(partition):
            try:
                await self._read(partition, number)
            except (LogError, TopicRefused) as error:
                if not self._owns(partition) or self._node.failure is not None:
                    return
                _log.error(
                    "pipeline %s cannot go on in %s[%d], and tries again: %s",
                    self._pipeline,
                    self._topic,
                    number,
                    error,
                    extra={"pipeline": self._pipeline, "topic": self._topic, "error": str(error)},
                )
                await asyncio.sleep(AGAIN_S)

    async def _read(self, partition: Partition, number: int) -> None:
        key = self._node.topics.source_key(self._pipeline, self._topic, number)
        position = partition.position_of(key)
        # Also after its partition was taken anew because nothing could be written there any more.
        self._letter_partitions = await self._node.log.partitions_of(self._dead_letters)
        source = await self._node.log.source(self._topic, number, position, past_lost=self._past_lost)
        news = asyncio.Event()
        self._news.add(news)
        try:
            if position is None and self._start == "latest":
                await source.skip()
                await self._record(partition, (), key, source.position)
            await self._go_on(partition, number, source, key, news)
        finally:
            self._news.discard(news)
            self._node.recording.ingest_lag.pop((self._pipeline, number), None)
            await source.close()

    async def _go_on(self, partition: Partition, number: int, source: Source, key: str, news: asyncio.Event) -> None:
        size, lag_at_s = BATCH_FIRST, 0.0
        while self._owns(partition):
            news.clear()
            came = await source.poll(size)
            if self._node.clock.monotonic() >= lag_at_s:
                lag_at_s = self._node.clock.monotonic() + LAG_AGAIN_S
                self._node.recording.ingest_lag[self._pipeline, number] = await source.waiting() + len(came)
            if came:
                led = await self._map_all(came)
                ingested = [
                    (commands, self._letter(named, number), reason)
                    for named, (commands, reason) in zip(came, led, strict=True)
                ]
                if not self._owns(partition):
                    return
                await self._record(partition, ingested, key, source.position)
                mean = sum(len(named.record.value or b"") for named in came) // len(came)
                size = max(1, min(2 * size, BATCH_MAX, BATCH_BYTES // max(mean, 1)))
            elif not source.waits:
                try:
                    async with asyncio.timeout(LOOK_AGAIN_S):  # what this process itself writes is no news of the log
                        await news.wait()
                except TimeoutError:
                    pass

    async def _record(
        self,
        partition: Partition,
        ingested: Sequence[tuple[Sequence[Asked], Letter, ErrorInfo | None]],
        key: str,
        position: Position,
    ) -> None:
        """Have it decided and appended; return once that is durable. Raises: LogError: none of it is."""
        durable: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()

        def done(error: LogError | None) -> None:
            if not durable.done():
                durable.set_result(error)

        reasons = partition.take_in(ingested, key, position)
        partition.when_durable(done)
        error = await durable
        if error is not None:
            raise error
        self._node.recording.ingested[self._pipeline] += len(ingested)
        if reasons:
            self._tell(reasons, len(ingested))

    def _tell(self, reasons: Sequence[ErrorInfo], count: int) -> None:
        told = {"pipeline": self._pipeline, "topic": self._topic, "dead_letters": len(reasons), "records": count}
        last = f"{reasons[-1].type}: {reasons[-1].message}"
        if len(reasons) == count > 1:
            _log.error(
                "pipeline %s: each of %d records of %s became a dead letter, the last because of %s",
                self._pipeline,
                count,
                self._topic,
                last,
                extra=told,
            )
        else:
            _log.warning(
                "pipeline %s: %d of %d records of %s became dead letters, the last because of %s",
                self._pipeline,
                len(reasons),
                count,
                self._topic,
                last,
                extra=told,
            )

    def _letter(self, named: Named, number: int) -> Letter:
        record = named.record
        headers: Mapping[str, str] = dict(record.headers or {})
        return Letter(
            self._dead_letters,
            number % self._letter_partitions,
            self._pipeline,
            self._topic,
            number,
            named.name,
            record.time_us,
            record.key,
            headers,
            record.value,
        ).fitting()
