"""A schedule: the fold of its events, and what is decided about it (semantics.md §6, "Dispatch"; design §4, ``schedule.*``).

Pure. A schedule is decided by the owner of its partition, like a workflow, and the workflows that it starts lie in the same
one: that one was started, and for which time, is one append. When it is due next is recorded with each of its events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, assert_never

from gasoline_es.core.commands import ChangeSchedule, Dispatch, Reply, SetSchedule
from gasoline_es.core.durations import format_time
from gasoline_es.core.ids import derived_uuid, derived_workflow_id, slot_of
from gasoline_es.core.schedule_events import (
    ScheduleData,
    ScheduleEvent,
    ScheduleFired,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleSet,
    ScheduleSkipped,
    ScheduleUnreadable,
    SkipReason,
)
from gasoline_es.core.timetable import Every, Timetable
from gasoline_es.core.values import same_json
from gasoline_es.errors import GasolineError, ScheduleExists, ScheduleNotFound

ScheduleStatus = Literal["active", "paused", "finished", "removed", "unreadable"]
"""``finished``: it is never due again. ``unreadable``: this code does not understand its events; it starts nothing."""

GRACE_US: Final = 60_000_000
"""A time counts as missed if it passed longer ago than this (``missed="skip"``)."""
RUNS_KEPT: Final = 100
"""Of so many workflows that a schedule started last it is looked whether they are over (``overlap="skip"``)."""
SCHEDULE_TAG: Final = "schedule"
DUE_TAG: Final = "scheduled_for"
"""The tags that every workflow gets which a schedule starts: the schedule's name, and for which time."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Where a schedule stands. Times are microseconds since the epoch, UTC."""

    id: str
    seq: int
    set: ScheduleSet
    created_us: int
    paused: bool = False
    removed: bool = False
    next_us: int | None = None
    last_due_us: int | None = None
    """For which time it started a workflow last."""
    decided_us: int | None = None
    """The newest time that it was decided about: none up to it is due again, wherever the clock goes."""
    made: int = 1
    """The event that made it: one of a name that was removed before has ids of its own."""
    runs: tuple[str, ...] = ()
    """The workflows that it started last, oldest first."""
    fired: int = 0
    skipped: int = 0
    problem: str | None = None

    @property
    def status(self) -> ScheduleStatus:
        """Where it stands, in a word."""
        if self.removed:
            return "removed"
        if self.problem is not None:
            return "unreadable"
        if self.paused:
            return "paused"
        return "finished" if self.next_us is None else "active"

    @property
    def last_run(self) -> str | None:
        """The workflow that it started last."""
        return self.runs[-1] if self.runs else None

    @property
    def due_us(self) -> int | None:
        """When something is to be decided; None: not before somebody asks for it."""
        return self.next_us if self.status == "active" else None

    def undecided_after(self, now_us: int) -> int:
        """Return after when its times are due from now on: the clock may have been set back since one was decided about."""
        return now_us if self.decided_us is None else max(now_us, self.decided_us)


def schedule_id(namespace: str, name: str) -> str:
    """Give the id of the schedule of a name: a name has one."""
    return derived_uuid("schedule", namespace, name)


def fold_schedule(schedule: Schedule | None, id: str, seq: int, time_us: int, data: ScheduleData) -> Schedule:
    """Return where the schedule stands after its next event. One that does not fit sets it aside until it is removed."""
    if schedule is None:
        if isinstance(data, ScheduleSet) and seq == 1:
            return Schedule(id, seq, data, created_us=time_us, next_us=data.next_us)
        nothing = ScheduleSet("", "", b"null", {}, Every(1, 0), "skip", "skip", None, "")
        why = data.reason if isinstance(data, ScheduleUnreadable) else f"its first event is number {seq}, {data.TYPE}"
        return Schedule(id, seq, nothing, created_us=time_us, problem=why)
    before, schedule = schedule, replace(schedule, seq=seq)
    if before.removed and isinstance(data, ScheduleSet):
        # Another one, but for its name.
        return Schedule(id, seq, data, created_us=time_us, next_us=data.next_us, made=seq)
    if before.problem is not None:
        return replace(schedule, removed=before.removed or isinstance(data, ScheduleRemoved))
    if seq != before.seq + 1:
        missing = f"event {seq} follows event {before.seq}: events are missing or repeated"
        return replace(schedule, problem=missing)
    match data:
        case ScheduleSet():
            return replace(schedule, set=data, next_us=data.next_us)
        case SchedulePaused():
            return replace(schedule, paused=True)
        case ScheduleResumed():
            return replace(schedule, paused=False, next_us=data.next_us)
        case ScheduleFired():
            runs = (*before.runs[1 - RUNS_KEPT :], data.workflow_id)
            last_us = before.last_due_us if data.due_us is None else data.due_us
            return replace(
                schedule,
                next_us=data.next_us,
                last_due_us=last_us,
                decided_us=_later(before.decided_us, data.due_us),
                runs=runs,
                fired=before.fired + 1,
            )
        case ScheduleSkipped():
            skipped, decided_us = before.skipped + data.count, _later(before.decided_us, data.last_us)
            return replace(schedule, next_us=data.next_us, skipped=skipped, decided_us=decided_us)
        case ScheduleRemoved():
            return replace(schedule, removed=True)
        case ScheduleUnreadable():
            return replace(schedule, problem=f"event {seq} of type {data.type}: {data.reason}")
        case _:
            assert_never(data)


def _later(one_us: int | None, other_us: int | None) -> int | None:
    return max((us for us in (one_us, other_us) if us is not None), default=None)


def fold_schedule_event(before: Schedule | None, event: ScheduleEvent) -> Schedule:
    """The same, of the event with its envelope."""
    return fold_schedule(before, event.subject, event.seq, event.time_us, event.data)


# --- commands ---------------------------------------------------------------------------------------------------------


def set_schedule(schedule: Schedule | None, command: SetSchedule, now_us: int) -> tuple[list[ScheduleData], Reply]:
    """Make a schedule, or change the one of that name; the same again changes nothing."""
    there = schedule is not None and not schedule.removed
    timetable, after_us = command.timetable(now_us), now_us
    if there:
        assert schedule is not None
        if schedule.problem is not None:
            return [], Reply(error=_unreadable(schedule))
        difference = _difference(schedule.set, command, timetable)
        if difference is None:
            return [], Reply(schedule.id)
        if not command.replace:
            return [], Reply(
                error=ScheduleExists(
                    f"there is a schedule {command.name!r} with another {difference}. To change it, give its name: "
                    f"`name={command.name!r}`; to have two, give this one another name",
                    schedule=command.name,
                )
            )
        if _same_times(timetable, schedule.set.timetable):
            timetable = schedule.set.timetable  # an interval goes on in its rhythm
        after_us = schedule.undecided_after(now_us)
    made = ScheduleSet(
        name=command.name,
        workflow=command.workflow,
        input=command.input,
        tags=command.tags,
        timetable=timetable,
        missed=command.missed,
        overlap=command.overlap,
        next_us=timetable.next_after(after_us),
        by=command.by,
    )
    return [made], Reply(command.schedule_id, created=not there)


def _difference(there: ScheduleSet, command: SetSchedule, timetable: Timetable) -> str | None:
    """Say in what a schedule differs from the one that is there, or None."""
    if there.workflow != command.workflow:
        return f"workflow ({there.workflow!r})"
    if not _same_times(there.timetable, timetable):
        return f"timetable ({there.timetable})"
    if not same_json(there.input, command.input):
        return "input"
    if dict(there.tags) != dict(command.tags):
        return "set of tags"
    if there.missed != command.missed:
        return f"rule for missed times ({there.missed!r})"
    return f"rule for overlaps ({there.overlap!r})" if there.overlap != command.overlap else None


def _same_times(one: Timetable, other: Timetable) -> bool:
    if isinstance(one, Every) and isinstance(other, Every):
        return one.interval_us == other.interval_us  # whenever they began
    return one == other


def change_schedule(
    schedule: Schedule | None, command: ChangeSchedule, now_us: int
) -> tuple[list[ScheduleData], Reply, Dispatch | None]:
    """Pause, resume, remove, or start a workflow now. What is so already stays so. The dispatch goes into the same append."""
    if schedule is None or (schedule.removed and command.verb != "remove"):
        named = command.name or command.schedule_id
        return [], Reply(error=ScheduleNotFound(f"there is no schedule {named!r}", schedule=named)), None
    done = Reply(schedule.id)
    if command.verb == "remove":
        return [] if schedule.removed else [ScheduleRemoved(command.by)], done, None
    if schedule.problem is not None:
        return [], Reply(error=_unreadable(schedule)), None
    match command.verb:
        case "pause":
            return [] if schedule.paused else [SchedulePaused(command.by)], done, None
        case "resume":
            next_us = schedule.set.timetable.next_after(schedule.undecided_after(now_us))
            return [ScheduleResumed(command.by, next_us)] if schedule.paused else [], done, None
        case "trigger":
            if command.run_id in schedule.runs:
                return [], Reply(command.run_id), None  # asked for again, as its answer was lost
            fired = ScheduleFired(None, command.run_id, schedule.next_us, command.by)
            return [fired], Reply(command.run_id, created=True), _run(schedule, command.run_id, now_us)
        case _:
            assert_never(command.verb)


def _unreadable(schedule: Schedule) -> GasolineError:
    return GasolineError(f"schedule {schedule.id} cannot be used: {schedule.problem}. It can be removed and made anew")


# --- what is due ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Due:
    """What is decided at a time: times that start nothing, and one that starts a workflow, if any does."""

    skipped: ScheduleSkipped | None
    fired: ScheduleFired | None
    dispatch: Dispatch | None


def due_now(schedule: Schedule, now_us: int, *, busy: bool) -> Due | None:
    """Decide what is due; None: nothing is. What is left after it is due at once: decide again.

    ``busy``: a workflow that it started is not over.
    """
    first_us = schedule.due_us
    if first_us is None or first_us > now_us:
        return None
    timetable, missed = schedule.set.timetable, schedule.set.missed
    last_us = first_us if missed == "all" else (timetable.newest(first_us, now_us) or first_us)
    next_us = timetable.next_after(last_us)
    reason: SkipReason | None = None
    if schedule.set.overlap == "skip" and busy:
        reason = "overlap"
    elif missed == "skip" and now_us - last_us > GRACE_US:
        reason = "missed"
    if reason is not None:
        return Due(_skipped(timetable, first_us, last_us, reason, next_us), None, None)
    skipped: ScheduleSkipped | None = None
    if last_us > first_us:
        before, more = timetable.count(first_us, last_us)
        passed_us = timetable.newest(first_us, last_us - 1) or first_us
        skipped = ScheduleSkipped(first_us, passed_us, before + 1, more, "missed", last_us)
    run_id = scheduled_run_id(schedule.id, last_us, schedule.made)
    fired = ScheduleFired(last_us, run_id, next_us)
    return Due(skipped, fired, _run(schedule, run_id, last_us))


def refused(schedule: Schedule, due: ScheduleFired) -> ScheduleSkipped:
    """Return the fact that a workflow could not be started for a time: it is passed, so that others can come."""
    assert due.due_us is not None
    return ScheduleSkipped(due.due_us, due.due_us, 1, False, "refused", due.next_us)


def _skipped(
    timetable: Timetable, first_us: int, last_us: int, reason: SkipReason, next_us: int | None
) -> ScheduleSkipped:
    between, more = timetable.count(first_us, last_us)
    count = 1 if last_us == first_us else between + 2
    return ScheduleSkipped(first_us, last_us, count, more, reason, next_us)


def scheduled_run_id(schedule_id: str, due_us: int, made: int = 1) -> str:
    """Give the id of the workflow that a schedule starts for a time: one for each, in the schedule's own partition.

    ``made``: by which of the events it was made; one that was removed and made anew may start others for the same times.
    """
    anew = () if made == 1 else (str(made),)
    return derived_workflow_id(slot_of(schedule_id), "scheduled", schedule_id, format_time(due_us), *anew)


def _run(schedule: Schedule, run_id: str, time_us: int) -> Dispatch:
    tags = run_tags(schedule.set.name, schedule.set.tags, time_us)
    return Dispatch(run_id, schedule.set.workflow, schedule.set.input, tags, schedule=schedule.id)


def run_tags(name: str, tags: Mapping[str, str], time_us: int) -> dict[str, str]:
    """Return the tags of a workflow that the schedule of this name starts for a time."""
    return {**tags, SCHEDULE_TAG: name, DUE_TAG: format_time(time_us)}
