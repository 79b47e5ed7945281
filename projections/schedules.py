"""Schedules: where each one of a partition stands, by id (design §7). The same fold as the engine's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gasoline_es.core.schedule_events import ScheduleEvent, decode_schedule_event
from gasoline_es.core.schedules import Schedule, fold_schedule
from gasoline_es.log.port import Record


class ScheduleView:
    """Schedules by id, in the order in which they were first made. Folded from durable events only, in order of offset."""

    def __init__(self) -> None:
        self.next_offset = 0
        """The offset of the next event to fold."""
        self._schedules: dict[str, Schedule] = {}

    def apply(self, offset: int, event: ScheduleEvent) -> None:
        """Fold the event at ``offset``."""
        before = self._schedules.get(event.schedule_id)
        self._schedules[event.schedule_id] = fold_schedule(
            before, event.schedule_id, event.seq, event.time_us, event.data
        )
        self.next_offset = offset + 1

    def fold(self, records: Iterable[Record]) -> None:
        """Fold events as they are read from the log, from :attr:`next_offset` on."""
        for record in records:
            if record.value is not None and record.offset is not None:
                self.apply(record.offset, decode_schedule_event(record.value))

    def get(self, schedule_id: str) -> Schedule | None:
        return self._schedules.get(schedule_id)

    def __iter__(self) -> Iterator[Schedule]:
        """Yield all schedules, removed ones too."""
        return iter(self._schedules.values())
