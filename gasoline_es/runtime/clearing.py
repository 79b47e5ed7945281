"""Takes back, key by key, what prunings have given up, for a cleaner that knows nothing but keys: Kafka's (design §8, 0049).

Each owned partition's events are followed for ``workflow.pruned``, behind everything else. How far that has come stands in the
registry and goes with the tombstones, in their append: so whoever takes the partition over goes on where the last one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from gasoline_es.core.codec import read_fact
from gasoline_es.core.events import WorkflowPruned
from gasoline_es.core.pruning import PRUNES, taken_back
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError
from gasoline_es.log.port import Position, Record
from gasoline_es.runtime.batch import Batch
from gasoline_es.runtime.partition import Partition

if TYPE_CHECKING:
    from gasoline_es.runtime.node import Node

_log = EngineLog(__name__)

CHUNK: Final = 500
"""So many tombstones go with one append."""
READ_AT_ONCE: Final = 500
"""So many events are looked at; then others have a turn."""
NOTED_EVERY: Final = 10_000
"""Where nothing is pruned it is noted each so many events that there was nothing: a take-over looks at no more than that."""
AGAIN_S: Final = 1.0
"""So long after an append that was not recorded it is tried again."""


class _Followed:
    """How far a partition's events were looked at. ``seq``: at ``offset`` is one that prunes, and up to this is taken back.

    ``noted``: the offset that the registry has, or will have with the tombstones.
    """

    __slots__ = ("news", "noted", "offset", "partition", "seq")

    def __init__(self, partition: Partition) -> None:
        self.partition: Final = partition
        self.news: Final = asyncio.Event()
        self.stands_at(0, 0)

    def stands_at(self, offset: int, seq: int) -> None:
        """It is noted to stand there."""
        self.offset = self.noted = offset
        self.seq = seq


class Clearing:
    """Follows the partitions that a process owns. ``node``: its ``Node``, which hands on what :meth:`durable` is to know."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._followed: dict[int, _Followed] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._passed = 0

    def start(self) -> None:
        """Follow each partition from when it is taken."""
        self._node.on_taken(self._taken)

    def durable(self, batch: Batch) -> None:
        """Look again where a workflow was pruned, or much else has happened."""
        self._passed += len(batch.facts)
        if WorkflowPruned in map(type, batch.facts) or self._passed >= NOTED_EVERY:
            self._passed = 0
            for one in self._followed.values():
                one.news.set()

    def _taken(self, partition: Partition) -> None:
        former = self._tasks.get(partition.index)
        if former is not None:
            former.cancel()
        one = self._followed[partition.index] = _Followed(partition)
        self._tasks[partition.index] = self._node.spawn(self._follow(one), "gasoline-clear")

    def _owns(self, partition: Partition) -> bool:
        return self._node.partitions.get(partition.index) is partition

    async def _follow(self, one: _Followed) -> None:
        """Take back what was given up, from where the last owner stopped, until the partition is somebody else's."""
        partition, known = one.partition, False
        while self._owns(partition):
            one.news.clear()
            try:
                if not known:
                    noted = partition.position_of(self._node.topics.cleared_key(partition.index)) or Position({})
                    one.stands_at(int(noted.get("offset", 0)), int(noted.get("seq", 0)))
                    known = True
                await self._catch_up(one)
            except LogError as error:
                if self._node.failure is not None or not self._owns(partition):
                    return
                known = False  # what was decided of it may not be there
                _log.warning(
                    "what was pruned in partition %d is not taken back for now: %s",
                    partition.index,
                    error,
                    extra={"partition": partition.index, "error": str(error)},
                )
                await asyncio.sleep(AGAIN_S)
                continue
            await one.news.wait()

    async def _catch_up(self, one: _Followed) -> None:
        """Take back what was given up by the events that were not looked at yet. Raises: LogError."""
        log, topic, partition = self._node.log, self._node.topics.events, one.partition
        start, within, stop = one.offset, one.seq, int(log.end(topic, partition.index))
        records = log.read(topic, partition.index, start, stop)
        keys: list[str] = []
        while some := list(islice(records, READ_AT_ONCE)):
            for offset, number, key in _given_up(some, start, within):
                keys.append(key)
                if len(keys) == CHUNK:
                    await self._append(one, keys, offset, number)
                    keys = []
            await asyncio.sleep(0)
        if keys or within or stop - one.noted >= NOTED_EVERY:
            await self._append(one, keys, stop)
        one.offset, one.seq = stop, 0

    async def _append(self, one: _Followed, keys: list[str], offset: int, seq: int = 0) -> None:
        """Have it appended; return once that is durable. Raises: LogError: none of it is."""
        partition = one.partition
        if not self._owns(partition):
            raise LogError(f"partition {partition.index} is not owned any more", partition=partition.index)
        durable: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()

        def done(error: LogError | None) -> None:
            if not durable.done():
                durable.set_result(error)

        partition.clear(keys, Position({"offset": offset, "seq": seq} if seq else {"offset": offset}))
        partition.when_durable(done)
        error = await durable
        if error is not None:
            raise error
        one.stands_at(offset, seq)


def _given_up(records: Iterable[Record], start: int, within: int) -> Iterator[tuple[int, int, str]]:
    """Yield the key of each event that is given up, with its number and the offset of the event that says so.

    Of the one at ``start`` only those whose numbers are above ``within``.
    """
    for record in records:
        if record.offset is None or record.value is None or PRUNES not in record.value:
            continue
        workflow_id, seq, _, data, _, _ = read_fact(record.key, record.value)
        if isinstance(data, WorkflowPruned):
            for number in taken_back(data, seq, within if record.offset == start else 0):
                yield record.offset, number, f"{workflow_id}/{number}"
