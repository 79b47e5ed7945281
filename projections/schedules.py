"""Schedules: where each one of a partition stands, by id (design §7)."""

from __future__ import annotations

from gasoline_es.core.schedule_events import ScheduleEvent, decode_schedule_event
from gasoline_es.core.schedules import Schedule, fold_schedule_event
from projections.standing import StandingView


class ScheduleView(StandingView[ScheduleEvent, Schedule]):
    """Schedules by id, removed ones too, in the order in which they were first made."""

    def __init__(self) -> None:
        super().__init__(decode_schedule_event, fold_schedule_event)
