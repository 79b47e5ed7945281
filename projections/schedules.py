"""Schedules: where each one of a partition stands, by id (design §7)."""

from __future__ import annotations

from gasoline_es.core.schedule_events import ScheduleEvent, decode_schedule_event
from gasoline_es.core.schedules import Schedule, fold_schedule
from projections.standing import StandingView


class ScheduleView(StandingView[ScheduleEvent, Schedule]):
    """Schedules by id, removed ones too, in the order in which they were first made."""

    def __init__(self) -> None:
        super().__init__(decode_schedule_event, _folded)


def _folded(before: Schedule | None, event: ScheduleEvent) -> Schedule:
    return fold_schedule(before, event.schedule_id, event.seq, event.time_us, event.data)
