"""What the cleaner may make different in rows of the engine's views, though they say the same (decision 0045).

Two things. Where a record lies in its file is a hint for who reads it, and moves when the file is written anew. And once the
mark of a pruning is removed, a fresh fold cannot make the row that says only that there was a workflow; nor, after a tombstone,
the one of a worker that says nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from gasoline_es.core.topics import Topics
from gasoline_es.log.port import Log
from projections.history import KeptEvents, without_places

Row = Mapping[str, Any]
"""A row by its columns."""


def gone_rows(log: Log) -> Mapping[str, Callable[[Row], bool]]:
    """Return by table which rows say only that there was something of which the log may hold nothing any more."""
    topics = Topics(log.namespace)

    def pruned(row: Row) -> bool:
        return bool(row["pruned"] == "all" and row["last_offset"] < log.horizon(topics.events, row["partition"]))

    def left(row: Row) -> bool:
        return row["said"] is None and row["problem"] is None and log.horizon(topics.registry, row["partition"]) > 0

    return {"workflow_rows": pruned, "worker_rows": left}


def same_but_for_places(table: str, one: Row, other: Row) -> bool:
    """Whether two rows differ in nothing but where records lie in their files."""
    strip = _STRIP.get(table)
    return strip is not None and strip(one) == strip(other)


def _workflow(row: Row) -> Row:
    more: dict[str, Any] = {} if row["more"] is None else orjson.loads(row["more"])
    kept = KeptEvents(row["first_offset"], row["last_offset"], bytes(row["positions"]), more)
    return {**row, "positions": without_places(kept), "more": None}


def _stored_record(row: Row) -> Row:
    return {**row, "place": 0}


_STRIP: Final[Mapping[str, Callable[[Row], Row]]] = {
    "workflow_rows": _workflow,
    "stored_record_rows": _stored_record,
}
