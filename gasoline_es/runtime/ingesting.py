"""Reads foreign topics and has done what their records lead to, each once (design §6).

A partition of a foreign topic is read by the owner of one partition of the namespace, always the same. How far it was read
goes into that partition's registry, in the append of what the records led to: all of it counts, or nothing. The owner is
fenced, so whoever it was before records nothing more. One batch is under way at a time: nothing is read ahead of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Literal

from gasoline_es.core.commands import Asked
from gasoline_es.core.events import ErrorInfo
from gasoline_es.core.ids import partition_of_slot
from gasoline_es.core.letters import Letter
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import DefinitionError, LogError, TopicRefused
from gasoline_es.log.port import Named, Position, Source
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.partition import Partition
from gasoline_es.runtime.sharing import peers_of

_log = EngineLog(__name__)

BATCH_FIRST: Final = 16
BATCH_MAX: Final = 200
BATCH_BYTES: Final = 4_000_000
"""A batch is made smaller where the last one was larger."""
AGAIN_S: Final = 2.0
"""A partition that could not be read, or whose append failed, is tried again so much later."""
LOOK_AGAIN_S: Final = 1.0
COUNT_AGAIN_S: Final = 60.0
"""A topic may be given more partitions: so often it is looked how many it has."""
LAG_AGAIN_S: Final = 5.0
READERS_AGAIN_S: Final = 10.0
"""So often it is looked whether the workers that are to read do."""

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
        self._count_first = 0
        """So many partitions the topic had when this began; of what was added since, nothing has been passed by."""
        self._letter_partitions = 1
        self._tasks: set[asyncio.Task[None]] = set()
        self._news: set[asyncio.Event] = set()
        self._endings: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Begin. Raises: DefinitionError: it runs already. TopicRefused: one of the two topics is closed, or not there."""
        node = self._node
        if self._pipeline in node.pipelines:
            raise DefinitionError(f"this process already ingests by the name {self._pipeline!r}: give another `name=`")
        self._count = self._count_first = await node.log.partitions_of(self._topic, reading=True)
        self._letter_partitions = await node.log.partitions_of(self._dead_letters)
        node.pipelines.add(self._pipeline)
        self._endings = [node.on_change(self._heard), node.on_taken(self._taken)]
        self._spawn(self._count_again(), "gasoline-ingest-count")
        self._spawn(self._look_for_readers(), "gasoline-ingest-readers")

    async def stop(self) -> None:
        """Read no more. What was handed to an append already still counts, with its position."""
        if not self._endings:
            return  # it has not begun: the name may be another's
        endings, self._endings = self._endings, []
        for end in endings:
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
        self._begin(partition, range(self._count))

    def _begin(self, partition: Partition, numbers: range) -> None:
        for number in numbers:
            if self._partition_of(number) == partition.index:
                self._spawn(self._keep_reading(partition, number), f"gasoline-ingest-{number}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._node.spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_for_readers(self) -> None:
        """Say which partitions of the topic nobody reads, because the workers that should do not ingest."""
        before, told = frozenset[str](), frozenset[str]()
        while True:
            await asyncio.sleep(READERS_AGAIN_S)
            lacking = self._workers_without()
            # Only who is found twice: one that starts may be about to.
            idle = frozenset(lacking) & before
            if idle - told:
                workers, unread = ", ".join(sorted(idle)), sorted(n for one in idle for n in lacking[one])
                _log.warning(
                    "pipeline %s: %d of %d partitions of %s are read by nobody, because %s would have to and does not "
                    "ingest by this name: let every worker ingest",
                    self._pipeline,
                    len(unread),
                    self._count,
                    self._topic,
                    workers,
                    extra={"pipeline": self._pipeline, "topic": self._topic, "unread": unread, "workers": sorted(idle)},
                )
            before, told = frozenset(lacking), idle

    def _workers_without(self) -> dict[str, list[int]]:
        """Return the workers that own a partition whose owner is to read, and do not ingest; with what they should read."""
        log = self._node.log
        without = {
            peer.incarnation
            for peer in peers_of(log.members())
            if peer.pipelines is not None and self._pipeline not in peer.pipelines
        }
        found: dict[str, list[int]] = {}
        for number in range(self._count) if without else ():
            owner = log.owner(self._partition_of(number))
            if owner is not None and owner.alive and owner.incarnation in without:
                found.setdefault(owner.incarnation, []).append(number)
        return found

    def _partition_of(self, number: int) -> int:
        """Return whose owner reads a partition of the topic."""
        slot = self._node.topics.source_slot(self._pipeline, self._topic, number)
        return partition_of_slot(slot, self._node.log.partition_count)

    async def _count_again(self) -> None:
        while self._node.failure is None:
            await asyncio.sleep(COUNT_AGAIN_S)
            try:
                count = await self._node.log.partitions_of(self._topic, reading=True)
            except (LogError, TopicRefused):
                continue  # those that read it say so
            before, self._count = self._count, max(self._count, count)
            for partition in list(self._node.partitions.values()):
                self._begin(partition, range(before, self._count))

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
        # Where there is no place for dead letters the append of one would cost the partition, and all that goes on there.
        self._letter_partitions = await self._node.log.partitions_of(self._dead_letters)
        source = await self._node.log.source(self._topic, number, position, past_lost=self._past_lost)
        news = asyncio.Event()
        self._news.add(news)
        try:
            if position is None and self._start == "latest" and number < self._count_first:
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
