"""Schedules: where each one of a partition stands, by id (design §7)."""

from __future__ import annotations

from gasoline_es.core.schedule_events import ScheduleEvent, decode_schedule_event
from gasoline_es.core.schedules import Schedule, fold_schedule_event
from projections.standing import StandingRow, StandingView


class ScheduleView(StandingView[ScheduleEvent, Schedule]):
    """Schedules by id, removed ones too, in the order in which they were first made."""

    def __init__(self, *, kept: bool = False) -> None:
        super().__init__(decode_schedule_event, fold_schedule_event, kept=kept)
        self._made: dict[str, int] = {}

    def apply(self, offset: int, event: ScheduleEvent) -> None:
        """Fold the event at ``offset``."""
        super().apply(offset, event)
        self._made.setdefault(event.subject, offset)

    def since(self, subject: str) -> int:
        """Return the offset at which it was first made."""
        return self._made[subject]

    def restore(self, row: StandingRow[Schedule]) -> None:
        super().restore(row)
        self._made[row.id] = row.since
