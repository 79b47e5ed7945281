"""History index: at which offsets of its partition's events a workflow's history lies (design §7).

Eight bytes an event in memory; cold histories are read through it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class HistoryIndex:
    """Offsets by workflow id, ascending, one for each event."""

    def __init__(self) -> None:
        self._offsets: dict[str, array[int]] = {}

    def apply(self, workflow_id: str, offset: int) -> None:
        offsets = self._offsets.get(workflow_id)
        if offsets is None:
            self._offsets[workflow_id] = array("q", (offset,))
        else:
            offsets.append(offset)

    def offsets(self, workflow_id: str) -> Sequence[int]:
        """Return the offsets of a workflow's events; empty for one that is not known."""
        return self._offsets.get(workflow_id, ())
