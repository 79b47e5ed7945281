"""Schedules as they stand on the log, and what happened to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from pydantic_core import from_json

from gasoline_es.cli import render
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Failure
from gasoline_es.cli.output import Facts, Output, fragment
from gasoline_es.cli.reading import Reading
from gasoline_es.core import schedule_events as se
from gasoline_es.core.durations import format_time, from_datetime
from gasoline_es.core.ids import partition_of
from gasoline_es.core.schedule_events import ScheduleEvent, decode_schedule_event
from gasoline_es.core.schedule_info import info_of
from gasoline_es.core.schedules import Schedule, ScheduleStatus, schedule_id
from projections.schedules import ScheduleView

_STYLES: Final[dict[ScheduleStatus, str]] = {
    "active": "green",
    "paused": "yellow",
    "finished": "dim",
    "removed": "dim",
    "unreadable": "bold magenta",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule, and the partition it lies in."""

    schedule: Schedule
    partition: int


def all_of(reading: Reading) -> list[Found]:
    """Return the schedules that were not removed, in order of their names."""
    found = [
        Found(schedule, partition)
        for partition in range(reading.log.partition_count)
        for schedule in _folded(reading, partition)
        if not schedule.removed
    ]
    return sorted(found, key=lambda one: (one.schedule.set.name, one.schedule.id))


def one_of(reading: Reading, name: str, *, removed: bool = False) -> Found:
    """Return the schedule of a name. Raises: Failure: there is none, or it was removed and is not to be shown."""
    its_id = schedule_id(reading.log.namespace, name)
    partition = partition_of(its_id, reading.log.partition_count)
    schedule = _folded(reading, partition).get(its_id)
    if schedule is None or (schedule.removed and not removed):
        gone = (
            "it was removed; `gasoline schedule history` shows it" if schedule else "`gasoline schedule list` shows all"
        )
        raise Failure(
            f"there is no schedule {name!r} in namespace {reading.log.namespace!r} of {reading.log.url}: {gone}"
        )
    return Found(schedule, partition)


def events_of(reading: Reading, name: str) -> list[tuple[ScheduleEvent, bytes]]:
    """Return the events of the schedule of a name with their text, in order. Raises: Failure: there is none."""
    found = one_of(reading, name, removed=True)
    prefix = f"{found.schedule.id}/"
    return [
        (decode_schedule_event(record.value), record.value)
        for record in reading.records(reading.topics.schedules, found.partition)
        if record.key.startswith(prefix) and record.value is not None
    ]


def _folded(reading: Reading, partition: int) -> ScheduleView:
    view = ScheduleView()
    for record in reading.records(reading.topics.schedules, partition):
        try:
            view.fold((record,))
        except ValueError as error:
            reading.note(f"topic {record.topic}, partition {partition}, offset {record.offset}: {error}")
    return view


# --- JSON -------------------------------------------------------------------------------------------------------------


def members(found: Found, *, whole: bool = False) -> dict[str, Any]:
    """Return a schedule as a JSON object; ``whole``: with its input."""
    info = info_of(found.schedule, found.partition, fragment(found.schedule.set.input))
    shown = {field.name: getattr(info, field.name) for field in fields(info)}
    for name, value in shown.items():
        if isinstance(value, datetime):
            shown[name] = format_time(from_datetime(value))
    if not whole:
        del shown["input"]
    return shown


def event_members(event: ScheduleEvent, raw: bytes) -> dict[str, Any]:
    """Return an event as a JSON object, its data as they are recorded."""
    return {
        "seq": event.seq,
        "time": format_time(event.time_us),
        "type": event.type,
        "worker": event.worker,
        "data": from_json(raw)["data"],
    }


# --- text -------------------------------------------------------------------------------------------------------------


def show(found: Sequence[Found], output: Output) -> None:
    """Print one line for each, and how many there are."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("NAME", "STATUS", "NEXT", "WHEN", "WORKFLOW"):
        table.add_column(column, overflow="fold")
    for one in found:
        schedule = one.schedule
        table.add_row(
            Text(escape(schedule.set.name or schedule.id)),
            Text(schedule.status, _STYLES[schedule.status]),
            Text("" if schedule.due_us is None else render.second(schedule.due_us)),
            Text(escape(str(schedule.set.timetable))),
            Text(escape(schedule.set.workflow)),
        )
    if found:
        output.console.print(table)
    output.console.print(Text(render.count(len(found), "schedule"), style="dim"))


def show_one(found: Found, output: Output) -> None:
    """Print all there is to know of a schedule."""
    schedule, given = found.schedule, found.schedule.set
    facts = Facts()
    facts.add("schedule", escape(given.name or schedule.id), "bold")
    facts.add("status", schedule.status, _STYLES[schedule.status])
    if schedule.problem is not None:
        facts.add("problem", escape(schedule.problem))
    facts.add("when", escape(str(schedule.set.timetable)))
    if schedule.due_us is not None:
        facts.add("next", render.moment(schedule.due_us))
    facts.add("workflow", escape(given.workflow))
    facts.add("input", render.payload(given.input, full=True))
    if given.tags:
        facts.add("tags", render.tags(given.tags, full=True))
    facts.add("missed", given.missed)
    facts.add("overlap", given.overlap)
    facts.add("started", render.count(schedule.fired, "workflow"))
    if schedule.last_run is not None:
        facts.add("last run", escape(schedule.last_run))
    if schedule.last_due_us is not None:
        facts.add("last due", render.moment(schedule.last_due_us))
    facts.add("passed", render.count(schedule.skipped, "time"))
    facts.add("created", render.moment(schedule.created_us))
    facts.show(output.console)


def show_events(events: Sequence[ScheduleEvent], output: Output) -> None:
    """Print one line for each event."""
    from rich.text import Text

    for event in events:
        line = Text(f"{event.seq:>4}  {render.moment(event.time_us)}  ", overflow="fold")
        output.console.print(line.append(escape(_said(event.data))), soft_wrap=True)


def _said(data: se.ScheduleData) -> str:
    match data:
        case se.ScheduleSet():
            return f"set: {data.workflow} {data.timetable}, missed {data.missed}, overlap {data.overlap}, by {data.by}"
        case se.SchedulePaused():
            return f"paused by {data.by}"
        case se.ScheduleResumed():
            return f"resumed by {data.by}"
        case se.ScheduleFired():
            why = f"triggered by {data.by}" if data.due_us is None else f"due {render.moment(data.due_us)}"
            return f"started {data.workflow_id}, {why}"
        case se.ScheduleSkipped():
            more = "at least " if data.more else ""
            to = "" if data.first_us == data.last_us else f" to {render.moment(data.last_us)}"
            return f"passed {more}{render.count(data.count, 'time')}, {render.moment(data.first_us)}{to}: {data.reason}"
        case se.ScheduleRemoved():
            return f"removed by {data.by}"
        case se.ScheduleUnreadable():
            return f"unreadable: {data.type}: {data.reason}"
