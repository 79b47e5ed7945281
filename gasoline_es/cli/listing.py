"""Which workflows there are: the fold of a namespace's events, and one row for each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gasoline_es.cli import render
from gasoline_es.cli.escape import escape
from gasoline_es.cli.output import Output
from gasoline_es.cli.reading import Reading
from gasoline_es.core import events as ev
from gasoline_es.core.durations import format_time
from gasoline_es.core.events import ErrorInfo
from gasoline_es.core.filters import Filters
from gasoline_es.core.state import Summary
from projections.current import CurrentState
from projections.queues import SignalQueues

if TYPE_CHECKING:
    from gasoline_es.cli.stored import Stored

_WIDE: Final = 110
"""From so many columns on a row shows when a workflow was created; below, how long ago that is."""
_PRUNES: Final = b"workflow.pruned"
_BETWEEN: Final = " · "
_INDENT: Final = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One workflow: where it stands, in which partition, and the signals it has not taken (id → name)."""

    summary: Summary
    partition: int
    queued: Mapping[str, str]

    @property
    def created(self) -> tuple[int, str]:
        """What rows are ordered by."""
        return self.summary.created_us, self.summary.id


def find(reading: Reading, filters: Filters) -> list[Row]:
    """Return the matching workflows of all partitions, in order of creation, as of what is durable now."""
    rows: list[Row] = []
    for partition in range(reading.log.partition_count):
        rows += reading.looked_up(lambda stored, at=partition: _matching(reading, stored, at, filters))  # type: ignore[misc]
    rows.sort(key=lambda row: row.created)
    return rows


def find_as_of(reading: Reading, filters: Filters, moment_us: int) -> list[Row]:
    """Return the matching workflows as they stood at a time: by each partition's events before the first that is younger.

    The log is folded from its start.
    """
    parts = (_fold(reading, None, partition, moment_us) for partition in range(reading.log.partition_count))
    return sorted(
        (row for part in parts for row in part.values() if filters.match(row.summary)), key=lambda row: row.created
    )


def _matching(reading: Reading, stored: Stored, partition: int, filters: Filters) -> list[Row]:
    since = _fold(reading, stored, partition)
    rows = [
        Row(row.summary, partition, row.queue) for row in stored.rows(partition, filters) if row.summary.id not in since
    ]
    rows += (row for row in since.values() if filters.match(row.summary))
    return rows


def going_on(reading: Reading, partition: int) -> list[Row]:
    """Return the workflows of a partition that are not over, and maybe some that are."""

    def look(stored: Stored) -> list[Row]:
        since = _fold(reading, stored, partition)
        rows = stored.going_on(partition)
        kept = [Row(row.summary, partition, row.queue) for row in rows if row.summary.id not in since]
        return [*kept, *since.values()]

    return reading.looked_up(look)


def _fold(reading: Reading, stored: Stored | None, partition: int, moment_us: int | None = None) -> dict[str, Row]:
    """Fold those of a partition's events that are not in the stored views, up to the first that is younger than a time.

    ``stored`` None: all of them. Payloads are passed over. Returns the workflows they are of, by id.
    """
    current = CurrentState()
    queues = SignalQueues()
    gaps: dict[str, str] = {}
    """What is missing of workflows, unless they turn out to be pruned."""
    start = 0 if stored is None else stored.next_offset(partition)
    later = False
    for record in reading.records(reading.events_topic, partition, start):
        if later and (record.value is None or _PRUNES not in record.value):
            continue
        event = reading.decode(record)
        if event is None:
            continue
        workflow_id, data = event.workflow_id, event.data
        if later or (moment_us is not None and event.time_us > moment_us):
            later = True  # what was pruned since is told as it is known now, whether or not the log was cleaned
            if isinstance(data, ev.WorkflowPruned) and current.get(workflow_id) is not None:
                gaps.pop(workflow_id, None)
                if data.remains is not None and moment_us is not None and data.remains.completed_us > moment_us:
                    data = ev.WorkflowPruned(data.by)
                current.apply(workflow_id, event.seq, event.time_us, data, event.ray_id, event.worker)
            continue
        if stored is not None and workflow_id not in current and (row := stored.get(workflow_id)) is not None:
            current.restore(row.summary)
            queues.restore({workflow_id: row.queued} if row.queued else {})
        known = current.get(workflow_id)
        expected = 1 if known is None else known.seq + 1
        begins = isinstance(data, ev.WorkflowDispatched) and (known is None or known.pruned == "all")
        if isinstance(data, ev.WorkflowPruned):
            gaps.pop(workflow_id, None)
        elif event.seq != expected and not begins:
            gaps.setdefault(workflow_id, f"workflow {workflow_id}: event {event.seq} stands where {expected} should")
            continue
        current.apply(workflow_id, event.seq, event.time_us, data, event.ray_id, event.worker)
        queues.apply(workflow_id, event.time_us, data)
    for gap in gaps.values():
        reading.note(gap)
    return {one.id: Row(one, partition, queues.queued(one.id)) for one in current}


# --- JSON -------------------------------------------------------------------------------------------------------------


def members(row: Row) -> dict[str, Any]:
    """Return a workflow as a JSON object: the fields of ``WorkflowInfo`` that are no payloads."""
    summary = row.summary
    waiting = summary.waiting
    return {
        "id": summary.id,
        "name": summary.name,
        "status": summary.status,
        "tags": dict(summary.tags),
        "error": None if summary.error is None else error_members(summary.error),
        "created": format_time(summary.created_us),
        "completed": None if summary.completed_us is None else format_time(summary.completed_us),
        "ray_id": summary.ray_id,
        "waiting_for": None if waiting is None else str(waiting),
        "waiting_until": None if waiting is None or waiting.deadline_us is None else format_time(waiting.deadline_us),
        "queued": dict(row.queued),
        "partition": row.partition,
        "worker": summary.worker,
        "events": summary.seq,
    }


def error_members(error: ErrorInfo) -> dict[str, Any]:
    """Return an error as a JSON object, as events hold it."""
    from gasoline_es.cli.output import fragment

    return {
        "type": error.type,
        "message": error.message,
        "traceback": error.traceback,
        "details": fragment(error.details),
    }


# --- text -------------------------------------------------------------------------------------------------------------


def show(rows: Sequence[Row], output: Output) -> None:
    """Print one line per workflow, cut at the terminal's width, and how many there are.

    The tags of a dead one stand whole on lines of their own below it, where its error leaves no room: by them one finds what
    it belongs to.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    console = output.console
    wide = console.width >= _WIDE
    now_us = time.time_ns() // 1000
    head = ("ID", "NAME", "STATUS", "CREATED" if wide else "AGE", "DETAILS", "")
    lines = [_cells(row, wide, now_us) for row in rows]
    widths = [max(cell_len(line[column]) for line in (head, *lines)) for column in range(4)]
    widths[1] = min(widths[1], 40 if wide else 16)
    for number, line in enumerate((head, *lines)):
        text = Text(style="bold" if number == 0 else "")
        for column, cell in enumerate(line[:4]):
            shown = cell if cell_len(cell) <= widths[column] else set_cell_size(cell, widths[column] - 1) + "…"
            style = render.STYLES.get(cell, "") if column == 2 and number else ""
            text.append(set_cell_size(shown, widths[column]) + "  ", style)
        text.append(line[4])
        text.rstrip()
        below = line[5] if number else ""
        if below and text.cell_len + cell_len(below) + len(_BETWEEN) <= console.width:
            text.append(f"{_BETWEEN}{below}")
            below = ""
        console.print(text, no_wrap=True, overflow="ellipsis")
        if below:
            for part in Text(below).wrap(console, console.width - _INDENT, overflow="fold"):
                part.rstrip()
                console.print(Text(" " * _INDENT).append_text(part), no_wrap=True)
    by_status = Counter(row.summary.status for row in rows)
    counts = ", ".join(f"{by_status[status]:,} {status}" for status in render.STYLES if by_status[status])  # type: ignore[index]
    console.print(Text(f"{render.count(len(rows), 'workflow')}{': ' if counts else ''}{counts}", style="dim"))


def _cells(row: Row, wide: bool, now_us: int) -> tuple[str, ...]:
    summary = row.summary
    created = render.second(summary.created_us) if wide else render.age(now_us - summary.created_us)
    tags, note = render.tags(summary.tags), render.note(summary)
    if summary.error is None:
        details, below = _BETWEEN.join(filter(None, (tags, note))), ""
    else:  # what stands last may be cut: of a dead workflow that must be neither its error nor its tags
        details, below = note, render.tags(summary.tags, full=True)
    return (escape(summary.id), escape(summary.name), summary.status, created, details, below)
