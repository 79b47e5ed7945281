"""A view on the log: it counts events, and says how far, in one append."""

from __future__ import annotations

from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.persistence import StoredEvent, Tracking
from eventsourcing.tests.projection import EventCountersView

from gasoline_es.persistence import GasolineProcessRecorder


class CountersOnTheLog(GasolineProcessRecorder, EventCountersView):
    """Each count is the version of the last event of its counter."""

    def get_created_event_counter(self) -> int:
        return self._count("created")

    def get_subsequent_event_counter(self) -> int:
        return self._count("subsequent")

    def incr_created_event_counter(self, tracking: Tracking) -> None:
        self._count_one("created", tracking)

    def incr_subsequent_event_counter(self, tracking: Tracking) -> None:
        self._count_one("subsequent", tracking)

    def _count(self, name: str) -> int:
        last = self.select_events(_counter(name), desc=True, limit=1)
        return last[0].originator_version if last else 0

    def _count_one(self, name: str, tracking: Tracking) -> None:
        counted = StoredEvent(_counter(name), self._count(name) + 1, "counted", b"")
        self.insert_events([counted], tracking=tracking)


def _counter(name: str) -> UUID:
    return uuid5(NAMESPACE_URL, f"/counters/{name}")
