"""Prunes the histories of workflows that are over, by an operator's hand (semantics.md §10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gasoline_es.core.commands import Prune
from gasoline_es.core.ports import Prunable, Views
from gasoline_es.core.state import Summary, ended
from gasoline_es.runtime.archiving import archive_all
from gasoline_es.runtime.calls import Calls
from gasoline_es.runtime.node import Node

if TYPE_CHECKING:
    from gasoline_es.log.archive import Archive

AT_A_TIME: Final = 100
"""So many are pruned by one call of the log: durable together, before the next are asked for."""


@dataclass(frozen=True, slots=True)
class PruneInfo:
    """What a pruning did, or with ``dry_run`` would do.

    ``workflows``: how many lost their history. ``names``: how many of each name they are. ``events``: how many events gave
    these histories up, which the log's cleaner may remove.
    """

    dry_run: bool
    workflows: int
    names: Mapping[str, int]
    events: int


async def prune_history(
    node: Node,
    calls: Calls,
    by: str,
    wanted: Prunable,
    reason: str | None,
    archive: Archive | None = None,
    *,
    dry_run: bool,
) -> PruneInfo:
    """Prune the histories of those that match now, some at a time. Each is looked at again where its owner decides it.

    ``archive``: each is durable there before, and pruned only if it is then what was archived.

    Raises: NoOwner, LogError, RecordTooLarge: as of any call. Those of the times before are pruned.
    """
    names: Counter[str] = Counter()
    events = 0
    async for index, views, some in _matching(node, wanted):
        done = some
        if not dry_run:
            archived = {} if archive is None else await archive_all(archive, node, index, views, some)
            commands = [
                Prune(one.id, by, wanted.before_us, by_rule=False, reason=reason, seq=archived.get(one.id))
                for one in some
            ]
            replies = await calls.decide_many(commands)
            for reply in replies:
                if reply.error is not None:
                    raise reply.error
            done = [one for one, reply in zip(some, replies, strict=True) if reply.created]
        names.update(one.name for one in done)
        events += sum(one.seq - 2 for one in done)  # all but its dispatch and its end
    return PruneInfo(dry_run, names.total(), dict(names.most_common()), events)


async def _matching(node: Node, wanted: Prunable) -> AsyncIterator[tuple[int, Views, list[Summary]]]:
    for index in range(node.log.partition_count):
        after = (-1, "")
        while some := (views := await node.viewing.views(index)).prunable(wanted, after, AT_A_TIME):
            yield index, views, some
            after = ended(some[-1])
