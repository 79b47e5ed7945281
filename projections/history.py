"""History index: at which offsets of its partition's events a workflow's history lies, and where in the log (design §7).

Sixteen bytes an event in memory; cold histories are read through it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_NONE = array("q")


class HistoryIndex:
    """Offsets and places by workflow id, ascending, one of each for each event."""

    def __init__(self) -> None:
        self._events: dict[str, array[int]] = {}

    def apply(self, workflow_id: str, offset: int, place: int) -> None:
        """Note the next event of a workflow. ``place``: where its record lies (``Record.place``)."""
        events = self._events.get(workflow_id)
        if events is None:
            events = self._events[workflow_id] = array("q")
        events.append(offset)
        events.append(place)

    def offsets(self, workflow_id: str) -> Sequence[int]:
        """Return the offsets of a workflow's events; empty for one that is not known."""
        return self._events.get(workflow_id, _NONE)[0::2]

    def places(self, workflow_id: str) -> Sequence[int]:
        """Return where the records of a workflow's events lie, one for each offset."""
        return self._events.get(workflow_id, _NONE)[1::2]
