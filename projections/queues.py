"""Signal queues: the signals each workflow has received and not yet taken, oldest first (semantics.md §5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gasoline_es.core.events import EventData, SignalConsumed, SignalDiscarded, SignalReceived, WorkflowRerun


class SignalQueues:
    """Signal ids → names, by workflow id. Bodies stay in the log."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, str]] = {}

    def apply(self, workflow_id: str, data: EventData) -> None:
        match data:
            case SignalReceived():
                self._queues.setdefault(workflow_id, {})[data.signal_id] = data.name
            case SignalConsumed() | SignalDiscarded():
                # A workflow with an unreadable event may have consumed what this fold never saw.
                queue = self._queues.get(workflow_id, {})
                for signal_id in data.signal_ids:
                    queue.pop(signal_id, None)
                if not queue:
                    self._queues.pop(workflow_id, None)
            case WorkflowRerun() if data.returned:
                # They were received before those that are still here, but for such as nobody listened for.
                self._queues[workflow_id] = {**dict(data.returned), **self._queues.get(workflow_id, {})}
            case _:
                pass

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of the workflows that have queued signals."""
        return iter(self._queues)

    def queued(self, workflow_id: str) -> Mapping[str, str]:
        """Return a workflow's queued signals: id → name, oldest first."""
        return self._queues.get(workflow_id, {})
