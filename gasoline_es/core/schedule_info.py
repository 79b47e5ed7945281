"""What is shown of a schedule: the one list of it, for the client's handles as for the command line (api.md, "Outside")."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gasoline_es.core.durations import to_datetime
from gasoline_es.core.schedule_events import Missed, Overlap
from gasoline_es.core.schedules import Schedule, ScheduleStatus


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """Where a schedule stands. Times are aware datetimes in UTC.

    ``status``: active, paused, finished (never due again), or unreadable (``problem`` says why). ``when``: its cron
    expression, or ``every …``; ``timezone``: of a cron expression. ``next``: when it is due next; None while it is paused.
    ``last``: for which time it started a workflow last; ``last_run``: which one. ``fired``, ``skipped``: how many times it did
    so, and how many it passed.
    """

    name: str
    id: str
    status: ScheduleStatus
    workflow: str
    when: str
    timezone: str | None
    next: datetime | None
    last: datetime | None
    last_run: str | None
    fired: int
    skipped: int
    missed: Missed
    overlap: Overlap
    tags: dict[str, str]
    created: datetime
    problem: str | None
    partition: int
    input: Any


def info_of(schedule: Schedule, partition: int, input: Any) -> ScheduleInfo:
    """Return what is shown of it. ``input``: in the form in which who asks shows it."""
    given = schedule.set
    return ScheduleInfo(
        name=given.name,
        id=schedule.id,
        status=schedule.status,
        workflow=given.workflow,
        when=given.timetable.when,
        timezone=given.timetable.timezone,
        next=_moment(schedule.due_us),
        last=_moment(schedule.last_due_us),
        last_run=schedule.last_run,
        fired=schedule.fired,
        skipped=schedule.skipped,
        missed=given.missed,
        overlap=given.overlap,
        tags=dict(given.tags),
        created=to_datetime(schedule.created_us),
        problem=schedule.problem,
        partition=partition,
        input=input,
    )


def _moment(time_us: int | None) -> datetime | None:
    return None if time_us is None else to_datetime(time_us)
