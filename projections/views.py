"""All views of one partition, folded together from its events in order of offset (design §7).

In memory until stores with checkpoints come; the log is read from its start by whoever needs them first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gasoline_es.core.codec import read_fact
from gasoline_es.core.events import (
    ActivityCompleted,
    EventData,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowDispatched,
    WorkflowRerun,
    WorkflowSilenced,
    WorkflowTagsUpdated,
)
from gasoline_es.core.ports import Located, OnTagged, Received, Tally
from gasoline_es.core.state import Summary
from gasoline_es.log.port import Record
from projections.current import CurrentState
from projections.history import HistoryIndex
from projections.parked import ParkedView
from projections.queues import SignalQueues
from projections.schedules import ScheduleView
from projections.stored import StoredView
from projections.tags import TagIndex
from projections.wake import WakeQueue


class PartitionViews:
    """What the engine and its clients ask of a partition's past. Only durable events ever reach it."""

    def __init__(self) -> None:
        self.next_offset = 0
        """The offset of the next event to fold."""
        self._current = CurrentState()
        self._history = HistoryIndex()
        self._tags = TagIndex()
        self._wake = WakeQueue()
        self._queues = SignalQueues()
        self.schedules = ScheduleView()
        self.parked = ParkedView()
        self.stored = StoredView()
        """These are folded from topics of their own: see there."""
        self.on_tagged: OnTagged | None = None
        """Called with the name and the tags of a workflow, for each event that gives it some."""

    def apply(
        self,
        offset: int,
        place: int,
        workflow_id: str,
        seq: int,
        time_us: int,
        data: EventData,
        ray_id: str,
        worker: str,
    ) -> None:
        """Fold the event at ``offset``, whose record lies at ``place``."""
        summary = self._current.apply(workflow_id, seq, time_us, data, ray_id, worker)
        self._history.apply(workflow_id, seq, time_us, offset, place, data)
        self.next_offset = offset + 1
        if type(data) is ActivityCompleted and self._wake.runs(workflow_id):
            return  # most events: they change no queue, no tag and no wake-up
        if summary.status == "unreadable":
            self._history.needs_all(workflow_id)
        self._queues.apply(workflow_id, time_us, data)
        self._wake.apply(summary)
        if isinstance(data, WorkflowDispatched):
            self._tags.put(workflow_id, summary.name, summary.tags, offset)
            self._tagged(summary.name, summary.tags)
        elif isinstance(data, WorkflowRerun):
            self._history.needs_all(workflow_id)  # what loops have forgotten may hold again
            self._tags.put(workflow_id, summary.name, summary.tags, self._history.located(workflow_id).first)
            self._tagged(summary.name, summary.tags)
        elif isinstance(data, WorkflowTagsUpdated):
            self._tags.change(workflow_id, summary.tags)
            self._tagged(summary.name, summary.tags)
        elif isinstance(data, WorkflowCompleted | WorkflowCancelled | WorkflowSilenced):
            self._tags.remove(workflow_id)

    def _tagged(self, name: str, tags: Mapping[str, str]) -> None:
        if self.on_tagged is not None:
            self.on_tagged(name, tags)

    def fold(self, records: Iterable[Record]) -> None:
        """Fold events as they are read from the log, from :attr:`next_offset` on."""
        for record in records:
            if record.value is not None and record.offset is not None:
                self.apply(record.offset, record.place, *read_fact(record.key, record.value))

    def summary(self, workflow_id: str) -> Summary | None:
        return self._current.get(workflow_id)

    def summaries(self) -> Iterator[Summary]:
        """Yield all summaries in order of dispatch."""
        return iter(self._current)

    def located(self, workflow_id: str) -> Located:
        """Return where those events of a workflow lie that its replay needs."""
        return self._history.located(workflow_id)

    def received(self, workflow_id: str) -> Received:
        """Return where the signals lie whose ids a workflow remembers, among other events of it."""
        return self._history.received(workflow_id)

    def needs_all(self, workflow_id: str) -> None:
        """Forget nothing more of a workflow: its replay needs the complete history from now on."""
        self._history.needs_all(workflow_id)

    def running(self) -> list[str]:
        """Return the ids of the workflows that are to run now."""
        return self._wake.running

    def signalled(self) -> list[str]:
        """Return the ids of the workflows that sleep in a listen although signals are queued for them."""
        found: list[str] = []
        for workflow_id in self._queues:
            summary = self._current.get(workflow_id)
            if summary is not None and summary.waiting is not None and summary.waiting.signals:
                found.append(workflow_id)
        return found

    def tally(self) -> Tally:
        """Return counts and ages, kept while folding: asking costs what there are names."""
        current, queues = self._current, self._queues
        return Tally(dict(current.counts), self._wake.running_since(), dict(queues.counts), queues.since)

    def deadlines(self) -> Mapping[str, int]:
        """Return when each sleeping workflow that has a deadline is due: id → microseconds UTC."""
        return self._wake.deadlines

    def find(self, name: str, tags: Mapping[str, str]) -> Iterator[str]:
        """Yield the incomplete workflows of this name with these tags, oldest first."""
        return self._tags.find(name, tags)

    def queued(self, workflow_id: str) -> Mapping[str, str]:
        """Return a workflow's queued signals: id → name, oldest first."""
        return self._queues.queued(workflow_id)
