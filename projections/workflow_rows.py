"""One workflow as a row of a store: all that the views know of it, so that it can leave memory and come back (design §7).

A row is the state of a fold, not a change of it: whoever writes one that was folded further puts it in the place of the
former, and nothing is counted twice. ``COLUMNS`` says what stands in a row, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import orjson

from gasoline_es.core.events import ErrorInfo, PruneRule, WorkflowSuspended
from gasoline_es.core.shared import shared, shared_names, shared_tags
from gasoline_es.core.state import Status, Summary
from projections.history import KeptEvents
from projections.queues import QueuedSignal

COLUMNS: Final = (
    "id",
    "partition",
    "name",
    "status",
    "tags",
    "created_us",
    "updated_us",
    "completed_us",
    "ray_id",
    "events",
    "worker",
    "error_type",
    "error_message",
    "error",
    "failures",
    "waiting",
    "deadline_us",
    "queued",
    "findable",
    "running_since_us",
    "first_offset",
    "last_offset",
    "positions",
    "more",
    "prune",
    "pruned",
)


@dataclass(frozen=True, slots=True)
class WorkflowRow:
    """``findable``: whether it is found by its name and tags. ``running_since_us``: since when it runs without a pause.

    ``summary`` is nobody else's: it does not change.
    """

    summary: Summary
    events: KeptEvents
    queued: Sequence[QueuedSignal]
    findable: bool
    running_since_us: int | None

    @property
    def queue(self) -> dict[str, str]:
        """The queued signals: id → name, oldest first."""
        return {one.id: one.name for one in self.queued}


def values_of(row: WorkflowRow, partition: int) -> tuple[Any, ...]:
    """Return what stands in the columns of a row."""
    s = row.summary
    error, waiting, events = s.error, s.waiting, row.events
    return (
        s.id,
        partition,
        s.name,
        s.status,
        _json(dict(s.tags)) if s.tags else "{}",
        s.created_us,
        s.updated_us,
        s.completed_us,
        s.ray_id,
        s.seq,
        s.worker,
        None if error is None else error.type,
        None if error is None else error.message,
        None if error is None else _json([error.traceback, None if error.details is None else error.details.decode()]),
        s.failures,
        None if waiting is None else _json([waiting.signals, waiting.retry, waiting.outputs]),
        None if waiting is None else waiting.deadline_us,
        _json([tuple(one) for one in row.queued]) if row.queued else None,
        int(row.findable),
        row.running_since_us,
        events.first,
        events.last,
        events.positions,
        _json(events.more) if events.more else None,
        s.prune,
        s.pruned,
    )


def row_of(values: Sequence[Any]) -> WorkflowRow:
    """Make a row again of what stands in its columns."""
    summary = summary_of(values)
    more: dict[str, Any] = {} if values[23] is None else orjson.loads(values[23])
    queued = [] if values[17] is None else [QueuedSignal(*one) for one in orjson.loads(values[17])]
    events = KeptEvents(values[20], values[21], bytes(values[22]), more)
    return WorkflowRow(summary, events, queued, bool(values[18]), values[19])


def summary_of(values: Sequence[Any]) -> Summary:
    """Make the summary alone of what stands in a row's columns."""
    summary = Summary(values[0])
    summary.name, summary.status = shared(values[2]), cast(Status, shared(values[3]))
    summary.tags = shared_tags(orjson.loads(values[4]))
    summary.created_us, summary.updated_us, summary.completed_us = values[5], values[6], values[7]
    summary.ray_id = summary.id if values[8] == summary.id else values[8]
    summary.seq, summary.worker = values[9], shared(values[10])
    if values[11] is not None:
        traceback, details = orjson.loads(values[13])
        summary.error = ErrorInfo(values[11], values[12], traceback, None if details is None else details.encode())
    summary.failures = values[14]
    if values[15] is not None:
        signals, retry, outputs = orjson.loads(values[15])
        summary.waiting = WorkflowSuspended(values[16], shared_names(tuple(signals)), retry, tuple(outputs))
    summary.prune = cast("PruneRule | None", _word(values[24]))
    summary.pruned = cast("Literal['all', 'history'] | None", _word(values[25]))
    return summary


def _word(value: str | None) -> str | None:
    return None if value is None else shared(value)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
