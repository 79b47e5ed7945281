"""Wake queue: which workflows run, and when each sleeping one is due (design §7)."""

from __future__ import annotations

from collections.abc import Mapping

from gasoline_es.core.state import Summary


class WakeQueue:
    """``running``: ids that are to run now, in order. ``deadlines``: sleeping ids that have one → microseconds UTC."""

    def __init__(self) -> None:
        self._running: dict[str, None] = {}
        self._deadlines: dict[str, int] = {}

    @property
    def running(self) -> list[str]:
        return list(self._running)

    @property
    def deadlines(self) -> Mapping[str, int]:
        return self._deadlines

    def runs(self, workflow_id: str) -> bool:
        """Whether a workflow is to run now."""
        return workflow_id in self._running

    def apply(self, summary: Summary) -> None:
        """Follow a workflow's summary after an event."""
        workflow_id = summary.id
        if summary.status == "running":
            self._running[workflow_id] = None
            self._deadlines.pop(workflow_id, None)
            return
        self._running.pop(workflow_id, None)
        waiting = summary.waiting
        if waiting is not None and waiting.deadline_us is not None:
            self._deadlines[workflow_id] = waiting.deadline_us
        else:
            self._deadlines.pop(workflow_id, None)
