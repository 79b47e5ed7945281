"""Schedules: where each one of a partition stands, by id (design §7)."""

from __future__ import annotations

from typing import Protocol

from gasoline_es.core.schedule_events import ScheduleEvent, decode_schedule_event
from gasoline_es.core.schedules import Schedule, fold_schedule_event
from projections.standing import StandingRow, StandingView


class KeptSchedules(Protocol):
    """What a store holds of one partition's schedules."""

    def schedule(self, its_id: str, /) -> StandingRow[Schedule] | None: ...


class ScheduleView(StandingView[ScheduleEvent, Schedule]):
    """Schedules by id. Those that were removed leave memory once a store has them; then it is asked."""

    def __init__(self, kept: KeptSchedules | None = None) -> None:
        super().__init__(decode_schedule_event, fold_schedule_event, kept=kept is not None)
        self._store = kept
        self._last: dict[str, int] = {}
        """The offset of the last event of each that is in memory."""
        self._ahead: dict[str, int] = {}
        """Up to which offset some stand here already."""

    def apply(self, offset: int, event: ScheduleEvent) -> None:
        """Fold the event at ``offset``."""
        its_id = event.subject
        if its_id not in self._subjects and (row := self._elsewhere(its_id)) is not None:
            if row.since >= offset:
                # Another process stores, and is ahead: then the schedule stands here as it does there.
                self._ahead[its_id] = row.since
            self.restore(row)
        if self._ahead and offset <= self._ahead.get(its_id, -1):
            self.next_offset = offset + 1
            return
        self._ahead.pop(its_id, None)
        super().apply(offset, event)
        self._last[its_id] = offset

    def get(self, subject: str) -> Schedule | None:
        found = self._subjects.get(subject)
        if found is None and (row := self._elsewhere(subject)) is not None:
            return row.state
        return found

    def _elsewhere(self, its_id: str) -> StandingRow[Schedule] | None:
        return None if self._store is None else self._store.schedule(its_id)

    # --- the store ----------------------------------------------------------------------------------------------------

    def since(self, subject: str) -> int:
        """Return the offset of its last event."""
        return self._last[subject]

    def restore(self, row: StandingRow[Schedule]) -> None:
        super().restore(row)
        self._last[row.id] = row.since

    def saved(self, stored_to: int, told: None = None) -> None:
        """The rows are in the store: what was removed leaves memory."""
        for its_id in self._saving:
            if its_id not in self._changed and self._subjects[its_id].removed:
                del self._subjects[its_id], self._last[its_id]
        super().saved(stored_to)
