"""Takes dead letters that wait in the registry to their topics, once those can be written (decision 0038).

A letter and the end of its wait are one append, so it is there once, whoever is killed. One task for each partition in which
letters wait; it looks again until none does, or until the partition is somebody else's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gasoline_es.core.letters import waits_for
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError, TopicRefused
from gasoline_es.log.port import NewRecord
from gasoline_es.runtime.partition import Partition

if TYPE_CHECKING:
    from gasoline_es.runtime.node import Node

_log = EngineLog(__name__)

AT_ONCE: Final = 100
BYTES_AT_ONCE: Final = 1_000_000
"""Of letters in one append: at most so many, and no more than one beyond so many bytes."""
AGAIN_S: Final = 5.0
"""So long after a topic could not be written it is tried again; each time twice as long, up to :data:`REST_MAX_S`."""
REST_MAX_S: Final = 600.0
"""A topic that refuses what it is given costs the partition each time it is tried: it is taken over, and goes on."""


class WaitingLetters:
    """Of all partitions of one process."""

    def __init__(self, node: Node) -> None:
        self._node: Final = node
        self._tasks: Final[dict[int, asyncio.Task[None]]] = {}
        """By partition, the last one."""
        self._rests: Final[dict[str, tuple[float, float]]] = {}
        """By topic that could not be written: until when it is left alone, and for how long after the next time."""

    def look_after(self, partition: Partition) -> None:
        """See that the letters of a partition go where they are to go."""
        known = self._tasks.get(partition.index)
        if known is None or known.done() or known.get_name() != _name(partition):
            self._tasks[partition.index] = self._node.spawn(self._send_all(partition), _name(partition))

    async def _send_all(self, partition: Partition) -> None:
        letters = partition.views.registry.letters
        while letters and not partition.lost:
            sent = 0
            for topic in dict.fromkeys(map(waits_for, letters)):
                sent += await self._send(partition, topic)
            if not sent:
                await asyncio.sleep(AGAIN_S)

    async def _send(self, partition: Partition, topic: str) -> int:
        """Send some of the letters that wait for a topic; return how many went."""
        node = self._node
        now_s = node.loop.time()
        until_s, rest_s = self._rests.get(topic, (0.0, AGAIN_S))
        if now_s < until_s:
            return 0
        found: list[tuple[str, NewRecord]] = []
        try:
            partitions = await node.log.partitions_of(topic)
            found = self._some(partition, topic, partitions)
            error: Exception | None = await self._sent(partition, found) if found else None
        except (LogError, TopicRefused) as refused:
            error = refused
        if error is not None:
            self._rests[topic] = now_s + rest_s, min(2 * rest_s, REST_MAX_S)
            if not partition.lost and node.failure is None:
                waiting = sum(waits_for(key) == topic for key in partition.views.registry.letters)
                _log.error(
                    "%d dead letters wait in partition %d for %s, which cannot be written: %s",
                    waiting,
                    partition.index,
                    topic,
                    error,
                    extra={"partition": partition.index, "topic": topic, "waiting": waiting, "error": str(error)},
                )
            return 0
        self._rests.pop(topic, None)
        return len(found)

    def _some(self, partition: Partition, topic: str, partitions: int) -> list[tuple[str, NewRecord]]:
        """Read letters that wait for a topic, the oldest first. Raises: LogError."""
        found: list[tuple[str, NewRecord]] = []
        size, now_us = 0, self._node.clock.now_us()
        for key in partition.views.registry.letters:
            if waits_for(key) != topic:
                continue
            letter = partition.waiting_letter(key)
            if letter is None:
                _log.error(
                    "what waits under the key %s in partition %d of the registry is no dead letter, and stays there",
                    key,
                    partition.index,
                    extra={"partition": partition.index, "key": key},
                )
                continue
            at = letter.to_partition % partitions
            found.append((key, NewRecord(topic, at, letter.key, letter.value, now_us)))
            size += len(letter.value)
            if len(found) == AT_ONCE or size >= BYTES_AT_ONCE:
                break
        return found

    async def _sent(self, partition: Partition, letters: list[tuple[str, NewRecord]]) -> LogError | None:
        durable: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()

        def done(error: LogError | None) -> None:
            if not durable.done():
                durable.set_result(error)

        partition.send_waiting(letters, done)
        return await durable


def _name(partition: Partition) -> str:
    return f"gasoline-letters-{partition.index}-{partition.epoch}"
