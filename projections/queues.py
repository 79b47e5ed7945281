"""Signal queues: the signals each workflow has received and not yet taken, oldest first (semantics.md §5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gasoline_es.core.events import (
    EventData,
    SignalConsumed,
    SignalDiscarded,
    SignalReceived,
    WorkflowPruned,
    WorkflowRerun,
)


class QueuedSignal(NamedTuple):
    """A signal that waits in a workflow's queue. ``since_us``: when it came, microseconds UTC."""

    id: str
    name: str
    since_us: int


class SignalQueues:
    """Signal ids → names, by workflow id. Bodies stay in the log."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, str]] = {}
        self._since: dict[tuple[str, str], int] = {}
        """Since when each signal is queued, oldest first: by workflow and id, microseconds UTC."""
        self.counts: dict[str, int] = {}
        """How many are queued, by name."""

    def apply(self, workflow_id: str, time_us: int, data: EventData) -> None:
        match data:
            case SignalReceived():
                queue = self._queues.setdefault(workflow_id, {})
                self._leave(workflow_id, data.signal_id, queue.get(data.signal_id))
                queue[data.signal_id] = data.name
                self._enter(workflow_id, data.signal_id, data.name, time_us)
            case SignalConsumed() | SignalDiscarded():
                # A workflow with an unreadable event may have consumed what this fold never saw.
                queue = self._queues.get(workflow_id, {})
                for signal_id in data.signal_ids:
                    self._leave(workflow_id, signal_id, queue.pop(signal_id, None))
                if not queue:
                    self._queues.pop(workflow_id, None)
            case WorkflowPruned():
                # What took them may have been removed from the log.
                for signal_id, name in self._queues.pop(workflow_id, {}).items():
                    self._leave(workflow_id, signal_id, name)
            case WorkflowRerun() if data.returned:
                # They were received before those that are still here, but for such as nobody listened for.
                queue = self._queues.get(workflow_id, {})
                for signal_id, name in data.returned:
                    if signal_id not in queue:
                        self._enter(workflow_id, signal_id, name, time_us)
                self._queues[workflow_id] = {**dict(data.returned), **queue}
            case _:
                pass

    @property
    def since(self) -> int | None:
        """Since when the oldest of all signals is queued: microseconds UTC; None: there is none."""
        return next(iter(self._since.values()), None)

    def kept(self, workflow_id: str) -> list[QueuedSignal]:
        """Return a workflow's queue as data."""
        queue = self._queues.get(workflow_id)
        if not queue:
            return []
        return [QueuedSignal(one, name, self._since[workflow_id, one]) for one, name in queue.items()]

    def restore(self, queues: Mapping[str, Sequence[QueuedSignal]]) -> None:
        """Have the queues of these workflows again that :meth:`kept` returned."""
        entered: list[tuple[int, str, QueuedSignal]] = []
        for workflow_id, queue in queues.items():
            self._queues[workflow_id] = {one.id: one.name for one in queue}
            entered += ((one.since_us, workflow_id, one) for one in queue)
        for since_us, workflow_id, one in sorted(entered):
            self._enter(workflow_id, one.id, one.name, since_us)

    def _enter(self, workflow_id: str, signal_id: str, name: str, time_us: int) -> None:
        self._since[workflow_id, signal_id] = time_us
        self.counts[name] = self.counts.get(name, 0) + 1

    def _leave(self, workflow_id: str, signal_id: str, name: str | None) -> None:
        if name is None:
            return
        del self._since[workflow_id, signal_id]
        self.counts[name] -= 1
        if not self.counts[name]:
            del self.counts[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of the workflows that have queued signals."""
        return iter(self._queues)

    def queued(self, workflow_id: str) -> Mapping[str, str]:
        """Return a workflow's queued signals: id → name, oldest first."""
        return self._queues.get(workflow_id, {})
