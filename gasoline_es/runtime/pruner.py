"""Prunes what is old enough, beside a worker's work: in chunks, in the partitions that its process owns (semantics.md §10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gasoline_es.core import events as ev
from gasoline_es.core.commands import Prune
from gasoline_es.core.ports import Prunable
from gasoline_es.core.state import OVER, Summary, ended
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError
from gasoline_es.runtime.archiving import archive_all
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.partition import Partition

if TYPE_CHECKING:
    from gasoline_es.log.archive import Archive

_log = EngineLog(__name__)

CHUNK: Final = 100
"""So many workflows are pruned in one append; then others have a turn."""
LOOK_FIRST_S: Final = 1.0
LOOK_MAX_S: Final = 60.0
"""A worker looks for what is old enough a tenth of the age after it looked last, within these bounds."""
WALK_AGAIN_S: Final = 3_600.0
"""So often all that ended is walked anew, for what could not be pruned when its turn came: a parent was not over, say."""
_BEGIN: Final = (-1, "")


class Pruner:
    """Prunes the workflows that ended ``age_us`` ago, as their definitions say. Each is looked at once, and each hour again.

    ``archive``: what is to be pruned is durable there before that is recorded (0046).
    """

    def __init__(self, node: Node, age_us: int, archive: Archive | None = None) -> None:
        self._node = node
        self._archive = archive
        self._age_us = age_us
        self._after: dict[int, tuple[int, str]] = {}
        """By partition, the last workflow that was looked at: when it ended, and its id."""
        self._walk_again = 0.0
        self.every_s: Final = min(max(age_us / 1e7, LOOK_FIRST_S), LOOK_MAX_S)

    def close(self) -> None:
        """Let go of the archive's file."""
        if self._archive is not None:
            self._archive.close()

    async def look(self) -> int:
        """Prune what may be pruned now; return how many workflows were. What fails is logged, and tried again."""
        node = self._node
        if node.clock.monotonic() >= self._walk_again:
            self._walk_again = node.clock.monotonic() + WALK_AGAIN_S
            self._after.clear()
        wanted = Prunable(node.clock.now_us() - self._age_us)
        count = 0
        for partition in list(node.partitions.values()):
            try:
                count += await self._look_in(partition, wanted)
            except LogError as error:
                if node.failure is not None:
                    return count
                self._after.pop(partition.index, None)
                _log.warning(
                    "nothing more was pruned in partition %d for now: %s",
                    partition.index,
                    error,
                    extra={"partition": partition.index, "error": str(error)},
                )
        if count:
            _log.info("%d workflows were pruned", count, extra={"workflows": count})
        return count

    async def _look_in(self, partition: Partition, wanted: Prunable) -> int:
        count = 0
        while self._node.partitions.get(partition.index) is partition:
            after = self._after.get(partition.index, _BEGIN)
            some = partition.views.prunable(wanted, after, CHUNK)
            if not some:
                break
            count += await self._prune(partition, some, wanted)
            self._after[partition.index] = ended(some[-1])
            await asyncio.sleep(0)
        return count

    async def _prune(self, partition: Partition, some: Sequence[Summary], wanted: Prunable) -> int:
        """Prune some workflows, durable on return. Raises: LogError."""
        ready = [one for one in some if await self._may_go(partition, one)]
        archived: dict[str, int] = {}
        if ready and self._archive is not None:
            archived = await archive_all(self._archive, self._node, partition.index, partition.views, ready)
        if not ready or self._node.partitions.get(partition.index) is not partition:
            return 0
        by = f"worker {self._node.log.incarnation}"
        replies = [
            partition.decide(Prune(one.id, by, wanted.before_us, by_rule=True, seq=archived.get(one.id)))
            for one in ready
        ]
        durable: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()

        def done(error: LogError | None) -> None:
            if not durable.done():
                durable.set_result(error)

        partition.when_durable(done)
        error = await durable
        if error is not None:
            raise error
        for one, reply in zip(ready, replies, strict=True):
            if reply.error is not None:
                _log.warning(
                    "workflow %s %s is not pruned: %s",
                    one.name,
                    one.id,
                    reply.error,
                    extra={"workflow_id": one.id, "workflow": one.name, "error": str(reply.error)},
                )
        return sum(reply.created for reply in replies)

    async def _may_go(self, partition: Partition, one: Summary) -> bool:
        """Whether nobody is yet to get its output: the workflow that dispatched it is over. Where that stays, nobody minds."""
        if one.prune != "all":
            return True
        (_, _, _, data, _, _), _ = partition.ends_of(one.id)
        if not isinstance(data, ev.WorkflowDispatched) or data.parent is None:
            return True
        parent = await self._node.viewing.look_up(data.parent)
        return parent is None or parent.status in OVER
