"""Which positions a cleaned log knows (design §7): those behind the horizon, also where their own record is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gasoline_es.log import open_log
from gasoline_es.log.port import Log
from gasoline_es.testing.log_contract import put
from projections.known import unknown
from projections.stores.port import Feed, Meta, Position, digest_of
from tests.log.cleaned import INDEX, keyed, rules, taken, tombstone


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_a_position_is_known_where_its_record_was_removed_and_not_below_the_horizon(
    tmp_path: Path, kind: str
) -> None:
    url = f"memory:{tmp_path.name}-{kind}" if kind == "memory" else f"file:{tmp_path}"
    log = await open_log(url, partitions=1)
    meta = Meta("p", 1, log.log_id, "default", 1, "live")
    positions = await _filled(log)
    await log.close()
    log = await open_log(url)
    feed = Feed(INDEX, 0)

    def known() -> list[bool]:
        return [unknown(log, meta, {feed: position}) is None for position in positions]

    assert known() == [True] * 5
    await log.compact(rules())
    assert [record.offset for record in log.read(INDEX, 0)] == [2, 3, 4]
    assert known() == [True] * 5, "what it has folded is gone, and it can go on"
    await log.compact(rules())
    assert [record.offset for record in log.read(INDEX, 0)] == [3, 4]
    assert known() == [False, False, True, True, True], "the first two have not heard that k is deleted"
    assert unknown(log, meta, {feed: Position(4, 0, "another")}) is not None
    await log.close()


async def _filled(log: Log) -> list[Position]:
    epoch = await taken(log)
    for record in (keyed("k", 1), keyed("a", 1), tombstone("k"), keyed("a", 2), keyed("b", 1)):
        await put(log, epoch, record)
    return [Position(record.offset or 0, record.place, digest_of(record)) for record in log.read(INDEX, 0)]
