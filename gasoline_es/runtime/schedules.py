"""The schedules of an owned partition: decided from what is durable and what is on its way to the log (design §4, §5)."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gasoline_es.core.commands import ChangeSchedule, Reply, SetSchedule
from gasoline_es.core.ports import StandingView
from gasoline_es.core.schedule_events import ScheduleData, ScheduleEvent, encode_schedule_event
from gasoline_es.core.schedules import Schedule, change_schedule, due_now, fold_schedule_event, refused, set_schedule
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import RecordTooLarge
from gasoline_es.runtime.standing import Described, Standing

if TYPE_CHECKING:
    from gasoline_es.runtime.partition import Partition

_log = EngineLog(__name__)

AT_ONCE_MAX: Final = 100
"""So many times that were missed are made up for in a row (``missed="all"``) before others have a turn."""


SCHEDULES: Final = Described(
    attrgetter("schedules"),
    ScheduleEvent,
    encode_schedule_event,
    fold_schedule_event,
    lambda schedule: schedule.set.name,
)


class Schedules(Standing[ScheduleData, ScheduleEvent, Schedule]):
    """See :class:`Standing`."""

    def __init__(self, partition: Partition, view: StandingView[ScheduleEvent, Schedule]) -> None:
        super().__init__(partition, view, SCHEDULES)

    def decide(self, command: SetSchedule | ChangeSchedule) -> Reply:
        """Decide a command now. The reply may be told once it is durable."""
        self.due(command.schedule_id)  # what is due by now is due by what it was so far
        schedule, now_us = self.get(command.schedule_id), self._partition.now_us()
        if isinstance(command, SetSchedule):
            events, reply = set_schedule(schedule, command, now_us)
        else:
            events, reply, dispatch = change_schedule(schedule, command, now_us)
            if dispatch is not None:
                started = self._partition.decide(dispatch)
                if started.error is not None:
                    return started
        try:
            for data in events:
                self.record(command.schedule_id, data, command.name)
        except RecordTooLarge as error:
            return Reply(error=error)
        self.arm(command.schedule_id)
        return reply

    def due(self, schedule_id: str) -> None:
        """Start what is due. What is missed and to be made up for comes in turns, with others between."""
        for _ in range(AT_ONCE_MAX):
            schedule = self.get(schedule_id)
            busy = (
                schedule is not None
                and schedule.set.overlap == "skip"
                and any(map(self._partition.goes_on, schedule.runs))
            )
            due = None if schedule is None else due_now(schedule, self._partition.now_us(), busy=busy)
            if schedule is None or due is None:
                break
            if due.skipped is not None:
                self._tell_skipped(schedule, due.skipped.count, due.skipped.reason)
                self.record(schedule_id, due.skipped)
            if due.fired is not None and due.dispatch is not None:
                started = self._partition.decide(due.dispatch)
                if started.error is None:
                    self.record(schedule_id, due.fired)
                else:
                    _log.error(
                        "schedule %s could not start a workflow: %s",
                        schedule.set.name,
                        started.error,
                        extra={"schedule": schedule.set.name, "workflow": schedule.set.workflow},
                    )
                    self.record(schedule_id, refused(schedule, due.fired))
        self.arm(schedule_id)

    def arm(self, schedule_id: str) -> None:
        """See that it is looked at again when it is due next, and not before."""
        schedule = self.get(schedule_id)
        if schedule is not None:
            self._partition.alarm(schedule_id, schedule.due_us)

    def arm_all(self) -> None:
        """The same for every schedule: the partition was taken over, or decisions were dropped."""
        for schedule in self.view:
            self.arm(schedule.id)

    def _armed(self) -> Iterator[str]:
        return (schedule.id for schedule in self.view)

    def _tell_skipped(self, schedule: Schedule, count: int, reason: str) -> None:
        name = schedule.set.name
        told = {"schedule": name, "workflow": schedule.set.workflow}
        if reason == "overlap":  # as was asked for, at every time that comes while one goes on
            _log.info("schedule %s passes %d times that were due: what it started goes on", name, count, extra=told)
        else:
            _log.warning("schedule %s passes %d times that were due: %s", name, count, reason, extra=told)
