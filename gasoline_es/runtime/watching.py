"""Who waits for the end of a workflow in this process, and how they hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gasoline_es.core.events import (
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowPruned,
    WorkflowSilenced,
)
from gasoline_es.runtime.batch import Batch

ENDS = (WorkflowCompleted, WorkflowCancelled, WorkflowSilenced, WorkflowFailed, WorkflowPruned)


class Watch:
    """Somebody waits for a workflow's end. ``output`` is set when it completed in this process."""

    __slots__ = ("changed", "output")

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.output: bytes | None = None


class Watches:
    """All watches of a process. What it decides sets them directly; for what others own, every change of the log does."""

    def __init__(self) -> None:
        self._by_id: dict[str, set[Watch]] = {}

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._by_id)

    def add(self, workflow_id: str) -> Watch:
        """Return a watch that is set when the workflow may have ended, durably. Give it back: :meth:`discard`."""
        watch = Watch()
        self._by_id.setdefault(workflow_id, set()).add(watch)
        return watch

    def discard(self, workflow_id: str, watch: Watch) -> None:
        """Nobody looks at this one any more."""
        watches = self._by_id.get(workflow_id, set())
        watches.discard(watch)
        if not watches:
            self._by_id.pop(workflow_id, None)

    def durable(self, batch: Batch) -> None:
        """Tell of the ends among what has become durable here."""
        by_id = self._by_id
        if not by_id:
            return
        for live, data in zip(batch.lives, batch.facts, strict=True):
            if type(data) in ENDS:
                for watch in by_id.get(live.id, ()):
                    if not isinstance(data, WorkflowPruned):  # else who has yet to look still gets the output
                        watch.output = data.output if isinstance(data, WorkflowCompleted) else None
                    watch.changed.set()

    def look(self, which: Callable[[str], bool] = lambda workflow_id: True) -> None:
        """Let who waits for these workflows look for themselves."""
        for workflow_id, watches in self._by_id.items():
            if which(workflow_id):
                for watch in watches:
                    watch.changed.set()
