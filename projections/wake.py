"""Wake queue: which workflows run, and when each sleeping one is due (design §7)."""

from __future__ import annotations

from collections.abc import Mapping

from gasoline_es.core.state import Summary


class WakeQueue:
    """``running``: ids that are to run now, in order. ``deadlines``: sleeping ids that have one → microseconds UTC."""

    def __init__(self) -> None:
        self._running: dict[str, str] = {}
        """By id, the name."""
        self._deadlines: dict[str, int] = {}
        self._since: dict[str, dict[str, int]] = {}
        """By name, since when each of the running ones is, longest first: microseconds UTC."""

    @property
    def running(self) -> list[str]:
        return list(self._running)

    @property
    def deadlines(self) -> Mapping[str, int]:
        return self._deadlines

    def running_since(self) -> Mapping[str, int]:
        """Return since when the first of the running ones of each name is, without a pause: microseconds UTC."""
        return {name: next(iter(since.values())) for name, since in self._since.items()}

    def since(self, summary: Summary) -> int | None:
        """Return since when a workflow has been running, without a pause: microseconds UTC; None: it does not run."""
        return self._since[summary.name][summary.id] if summary.id in self._running else None

    def restore(self, summary: Summary, since_us: int | None) -> None:
        """Know of a workflow again what :meth:`since` returned. To be called in this order: the longest running first."""
        self.apply(summary)
        if since_us is not None:
            self._since[summary.name][summary.id] = since_us

    def runs(self, workflow_id: str) -> bool:
        """Whether a workflow is to run now."""
        return workflow_id in self._running

    def apply(self, summary: Summary) -> None:
        """Follow a workflow's summary after an event."""
        workflow_id = summary.id
        if summary.status == "running":
            if workflow_id not in self._running:
                self._running[workflow_id] = summary.name
                self._since.setdefault(summary.name, {})[workflow_id] = summary.updated_us
                self._deadlines.pop(workflow_id, None)
            return
        name = self._running.pop(workflow_id, None)
        if name is not None:
            since = self._since[name]
            del since[workflow_id]
            if not since:
                del self._since[name]
        waiting = summary.waiting
        if waiting is not None and waiting.deadline_us is not None:
            self._deadlines[workflow_id] = waiting.deadline_us
        else:
            self._deadlines.pop(workflow_id, None)
