"""Archives histories before they are pruned (docs/design/0046)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gasoline_es.core.ports import Views
from gasoline_es.core.state import Summary
from gasoline_es.runtime.histories import records_of
from gasoline_es.runtime.node import Node

if TYPE_CHECKING:
    from gasoline_es.log.archive import Archive


async def archive_all(
    archive: Archive, node: Node, partition: int, views: Views, some: Sequence[Summary]
) -> dict[str, int]:
    """Archive the histories of these, durable on return; return the number of the last event of each.

    Raises: LogError, NoSpace: none of them counts as archived.
    """
    last: dict[str, int] = {}
    try:
        for one in some:
            async for record in records_of(one.id, node.log, node.topics.events, partition, views):
                archive.add(record, node.clock.now_us())
                last[one.id] = int(record.key.rpartition("/")[2])
        await asyncio.to_thread(archive.sync, node.clock.now_us())
    except BaseException:
        archive.give_up()
        raise
    missing = [one.id for one in some if one.id not in last]
    assert not missing, f"nothing was read of {missing}, which would be pruned"
    return last
