"""All views of one partition, folded together from its events in order of offset (design §7).

In memory are the workflows that may still do something, and those whose rows are not stored yet. What is over leaves memory
once a store has its row: then the store is asked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain
from typing import Final, Protocol

from gasoline_es.core.codec import read_fact
from gasoline_es.core.events import (
    ActivityCompleted,
    EventData,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowDispatched,
    WorkflowPruned,
    WorkflowRerun,
    WorkflowSilenced,
    WorkflowTagsUpdated,
)
from gasoline_es.core.filters import Filters
from gasoline_es.core.ports import Located, OnTagged, Prunable, Received, Tally
from gasoline_es.core.state import Status, Summary, created, ended
from gasoline_es.log.port import Record
from projections.current import CurrentState
from projections.history import HistoryIndex, located, received
from projections.kept_feed import Feed
from projections.parked import ParkedView
from projections.queues import SignalQueues
from projections.registry import RegistryView
from projections.schedules import KeptSchedules, ScheduleView
from projections.stored import KeptSequences, StoredView
from projections.tags import TagIndex
from projections.wake import WakeQueue
from projections.workflow_rows import WorkflowRow

BYTES_AT_ONCE: Final = 256 * 1024
"""A row of a workflow that loops over its signals may be large: after so many bytes others have a turn."""

_MAY_PRUNE: Final = frozenset({WorkflowCompleted, WorkflowCancelled, WorkflowRerun, WorkflowPruned, WorkflowDispatched})
"""The events that change whether a workflow may be pruned."""

Counts = Mapping[tuple[str, Status], int]
"""How many workflows of a name stand somewhere."""


class KeptWorkflows(Protocol):
    """What a store holds of one partition's workflows."""

    def get(self, workflow_id: str) -> WorkflowRow | None: ...

    def matching(self, wanted: Filters) -> Iterator[Summary]:
        """Yield those that match, in order of creation."""
        ...

    def prunable(self, wanted: Prunable, after: tuple[int, str], limit: int) -> list[Summary]:
        """Return at most ``limit`` that may be pruned, in order of their end, behind ``after``."""
        ...


class Changes:
    """The rows that are to be stored so that the store stands where the views stood when this was made.

    They are made one by one: what is folded meanwhile has the row made of a workflow that it is about to change.
    """

    def __init__(self, views: PartitionViews, changed: Iterable[str], next_offset: int, counts: Counts) -> None:
        self.next_offset = next_offset
        self.last_place = views.last_place
        self.last_record: tuple[str, bytes | None] = views.last_record
        """Of the last event that was folded: where it lies, its key and its value."""
        self.counts = counts
        self.drifted, self.stored_to = views.drifted, views.stored_to
        """Whether the counts do not hold, and from where on the rows are all there are."""
        self.rows: list[WorkflowRow] = []
        self._views = views
        self._left = dict.fromkeys(changed)

    def __len__(self) -> int:
        """Return how many rows are still to be made."""
        return len(self._left)

    def __contains__(self, workflow_id: str) -> bool:
        return workflow_id in self._left

    def ids(self) -> Iterator[str]:
        """Yield the workflows whose rows these are."""
        yield from (row.summary.id for row in self.rows)
        yield from self._left

    def make(self, count: int) -> None:
        """Make so many more rows, or fewer where they are large: at least one, if any is left."""
        room = BYTES_AT_ONCE
        while self._left and count and room > 0:
            self.make_of(next(iter(self._left)))
            count -= 1
            room -= len(self.rows[-1].events.positions)

    def make_of(self, workflow_id: str) -> None:
        """Make the row of a workflow that is about to change."""
        del self._left[workflow_id]
        self.rows.append(self._views.row(workflow_id))


class KeptBeside(KeptSchedules, KeptSequences, Protocol):
    """What a store holds of what stands beside one partition's workflows."""


class Beside:
    """What stands beside the workflows of a partition: folded from topics of their own, see there."""

    def __init__(self, kept: KeptBeside | None = None) -> None:
        """``kept``: the store that rows go to; None: everything stays in memory."""
        self.schedules = ScheduleView(kept)
        self.parked = ParkedView(kept=kept is not None)
        self.stored = StoredView(kept)
        self.registry = RegistryView(kept=kept is not None)

    def feeds(self) -> dict[str, Feed]:
        """Return them by the last words of their topics' names."""
        return {
            "schedules": self.schedules,
            "parked": self.parked,
            "stored": self.stored,
            "registry": self.registry,
        }


class PartitionViews:
    """What the engine and its clients ask of a partition's past. Only durable events ever reach it."""

    def __init__(self, kept: KeptWorkflows | None = None, beside: Beside | None = None) -> None:
        """``kept``: the store that rows go to; None: everything stays in memory. ``beside``: what stands beside workflows."""
        self.next_offset = 0
        """The offset of the next event to fold."""
        self.last_place = 0
        self.last_record: tuple[str, bytes | None] = ("", b"")
        """Key and value of the last event that was folded. Whoever calls :meth:`apply` sets it, before others have a turn."""
        self.stored_to = 0
        """Before this offset everything is in the store, as far as is known here."""
        self.drifted = False
        """Whether the store was found to be further than what is folded here, so that the counts do not hold."""
        self._kept = kept
        self._changed: dict[str, None] = {}
        """The workflows whose rows are older than what is folded here."""
        self._saving: Changes | None = None
        self._ahead: dict[str, int] = {}
        """Up to which offset workflows stand here already."""
        self._current = CurrentState()
        self._history = HistoryIndex()
        self._tags = TagIndex()
        self._ended: list[tuple[int, str]] = []
        """When those in memory ended that are over, and who they are; ascending."""
        self._wake = WakeQueue()
        self._queues = SignalQueues()
        self.beside = Beside() if beside is None else beside
        self.schedules, self.parked, self.stored = self.beside.schedules, self.beside.parked, self.beside.stored
        self.registry = self.beside.registry
        self.on_tagged: OnTagged | None = None
        """Called with the name and the tags of a workflow, for each event that gives it some, or once for several of them."""

    # --- folding ------------------------------------------------------------------------------------------------------

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
        assert offset >= self.next_offset, "an event is folded once"
        if self._kept is not None and not self._prepare(self._kept, workflow_id, offset, seq):
            self.next_offset = offset + 1
            self.last_place = place
            return
        if type(data) in _MAY_PRUNE:
            self._not_ended(self._current.get(workflow_id))
        summary = self._current.apply(workflow_id, seq, time_us, data, ray_id, worker)
        self._history.apply(workflow_id, seq, time_us, offset, place, data)
        self.next_offset = offset + 1
        self.last_place = place
        if type(data) is ActivityCompleted and self._wake.runs(workflow_id):
            return  # most events: they change no queue, no tag and no wake-up
        if summary.status == "unreadable":
            self._history.needs_all(workflow_id)
        self._queues.apply(workflow_id, time_us, data)
        self._wake.apply(summary)
        if summary.prune is not None and type(data) in _MAY_PRUNE:
            assert summary.completed_us is not None
            insort(self._ended, (summary.completed_us, workflow_id))
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
        elif isinstance(data, WorkflowCompleted | WorkflowCancelled | WorkflowSilenced | WorkflowPruned):
            self._tags.remove(workflow_id)  # what ended it may have been removed from the log, once it is pruned

    def _not_ended(self, summary: Summary | None) -> None:
        """Let go of when a workflow ended: it changes, or leaves memory."""
        if summary is None or summary.prune is None or summary.completed_us is None:
            return
        entry = summary.completed_us, summary.id
        at = bisect_left(self._ended, entry)
        if at < len(self._ended) and self._ended[at] == entry:
            del self._ended[at]

    def _tagged(self, name: str, tags: Mapping[str, str]) -> None:
        if self.on_tagged is not None:
            self.on_tagged(name, tags)

    def fold(self, records: Iterable[Record]) -> None:
        """Fold events as they are read from the log, from :attr:`next_offset` on."""
        for record in records:
            if record.offset is None:
                continue
            if record.value is None:
                self.passed(record.offset, record.place, record.key)
            else:
                self.last_record = record.key, record.value
                self.apply(record.offset, record.place, *read_fact(record.key, record.value))

    def passed(self, offset: int, place: int, key: str, /) -> None:
        """Pass the tombstone at ``offset``, and what comes before it: what it takes back was given up by an event."""
        assert offset >= self.next_offset
        self.next_offset, self.last_place, self.last_record = offset + 1, place, (key, None)

    # --- the store ----------------------------------------------------------------------------------------------------

    def _prepare(self, kept: KeptWorkflows, workflow_id: str, offset: int, seq: int) -> bool:
        """Have the workflow of the next event in memory as it stands before it; False: the store has folded the event."""
        if self._saving is not None and workflow_id in self._saving:
            self._saving.make_of(workflow_id)
        elif seq > 1 and workflow_id not in self._changed:
            if workflow_id not in self._current and (row := kept.get(workflow_id)) is not None:
                if row.events.last >= offset:
                    # Another process stores, and is ahead: then the workflow stands here as it does there.
                    self.drifted = True
                    self._ahead[workflow_id] = row.events.last
                runs = row.running_since_us is not None
                if row.events.last < offset or _may_go_on(
                    row.summary, findable=row.findable, runs=runs, queued=bool(row.queued)
                ):
                    self._restore(row)
                    # Among the events passed over may be what made it so.
                    if row.findable and row.events.last >= offset:
                        self._tagged(row.summary.name, row.summary.tags)
            if self._ahead and offset <= self._ahead.get(workflow_id, -1):
                return False
        self._ahead.pop(workflow_id, None)
        self._changed[workflow_id] = None
        return True

    def load(self, next_offset: int, counts: Counts, going_on: Iterable[WorkflowRow]) -> None:
        """Begin where the store stands. ``going_on``: the rows of all that are not over, in order of dispatch."""
        assert not self.next_offset, "what was folded before is counted"
        self.next_offset = self.stored_to = next_offset
        self._current.counts.update(counts)
        rows = list(going_on)
        for row in rows:
            self._restore_without_queues(row)
        for row in sorted(rows, key=lambda row: row.running_since_us or 0):
            self._wake.restore(row.summary, row.running_since_us)
        self._queues.restore({row.summary.id: row.queued for row in rows if row.queued})

    def _restore(self, row: WorkflowRow) -> None:
        self._restore_without_queues(row)
        self._wake.restore(row.summary, row.running_since_us)
        self._queues.restore({row.summary.id: row.queued} if row.queued else {})

    def _restore_without_queues(self, row: WorkflowRow) -> None:
        summary = row.summary
        self._current.restore(summary)
        self._history.restore(summary.id, row.events)
        if row.findable:
            self._tags.put(summary.id, summary.name, summary.tags, row.events.first)

    def feeds(self) -> dict[str, Feed]:
        """Return all that is folded, by the last words of its topics' names."""
        return {"events": self, **self.beside.feeds()}

    def stored_offsets(self) -> dict[str, int]:
        """Return the offsets up to which all of it is stored, by the last words of topics' names."""
        return {topic: feed.stored_to for topic, feed in self.feeds().items()}

    @property
    def storable_to(self) -> int:
        """The offset up to which :meth:`changes` goes."""
        return self.next_offset

    @property
    def unsaved(self) -> int:
        """How many rows of the store are older than what is folded here."""
        return len(self._changed)

    def changes(self) -> Changes:
        """Begin to bring the store up to where the views stand now. To be ended by :meth:`saved` or :meth:`not_saved`."""
        assert self._saving is None, "the rows of one save at a time"
        self._saving = Changes(self, self._changed, self.next_offset, dict(self._current.counts))
        self._changed = {}
        return self._saving

    def saved(self, stored_to: int, counts: Counts | None = None) -> None:
        """The rows are in the store, which stands at ``stored_to``, by this process or by another one that is ahead.

        ``counts``: how many workflows stand where, of the moment of the rows, if they were counted anew.
        """
        saving, self._saving = self._saving, None
        assert saving is not None
        assert not saving, "its rows are made"
        if counts is not None:
            self._current.recount(counts, saving.counts)
            self.drifted = False
        for row in saving.rows:
            if row.summary.id not in self._changed:
                self._let_go(row.summary.id)
        self._stands_at(stored_to)

    def not_saved(self) -> None:
        """The rows are not in the store."""
        saving, self._saving = self._saving, None
        assert saving is not None
        self._changed = dict.fromkeys(chain(saving.ids(), self._changed))

    def saved_elsewhere(self, stored_to: int) -> None:
        """Another process has stored rows: the store stands at ``stored_to``."""
        stored_to = min(stored_to, self.next_offset)  # what comes to be folded up to there, the next call lets go of
        if self._saving is None and stored_to > self.stored_to:
            for workflow_id in [one for one in self._changed if self._history.last(one) < stored_to]:
                del self._changed[workflow_id]
                self._let_go(workflow_id)
            self._stands_at(stored_to)

    def _stands_at(self, stored_to: int) -> None:
        self.stored_to = max(self.stored_to, stored_to)

    def _let_go(self, workflow_id: str) -> None:
        """Let a workflow leave memory that is over, and whose row is stored."""
        summary = self._current.get(workflow_id)
        assert summary is not None, "it was changed here, and nobody else lets it go"
        findable, runs = workflow_id in self._tags, self._wake.runs(workflow_id)
        if not _may_go_on(summary, findable=findable, runs=runs, queued=bool(self._queues.queued(workflow_id))):
            self._not_ended(summary)
            self._current.drop(workflow_id)
            self._history.drop(workflow_id)

    def row(self, workflow_id: str) -> WorkflowRow:
        """Return all that is known here of a workflow that is in memory."""
        summary = self._current.get(workflow_id)
        assert summary is not None
        return WorkflowRow(
            summary.copy(),
            self._history.kept(workflow_id),
            self._queues.kept(workflow_id),
            workflow_id in self._tags,
            self._wake.since(summary),
        )

    # --- asking -------------------------------------------------------------------------------------------------------

    def summary(self, workflow_id: str) -> Summary | None:
        summary = self._known(workflow_id)
        return None if summary is None or summary.pruned == "all" else summary

    def _known(self, workflow_id: str) -> Summary | None:
        """Return the same, also of one of which nothing is left."""
        row = self._row_elsewhere(workflow_id)
        return self._current.get(workflow_id) if row is None else row.summary

    def pruned_seq(self, workflow_id: str) -> int:
        """Return the number of the event by which a workflow of this id was pruned, if nothing of it is left; else 0."""
        summary = self._known(workflow_id)
        return 0 if summary is None or summary.pruned != "all" else summary.seq

    def prunable(self, wanted: Prunable, after: tuple[int, str], limit: int) -> list[Summary]:
        """Return at most ``limit`` workflows that may be pruned, in order of their end, behind ``after``.

        It costs what there are of them, not what there is: both are in order of their end.
        """
        here: list[Summary] = []
        for at in range(bisect_right(self._ended, after), bisect_left(self._ended, (wanted.before_us, ""))):
            summary = self._current.get(self._ended[at][1])
            if summary is not None and wanted.match(summary):
                here.append(summary.copy())
                if len(here) == limit:
                    break
        if self._kept is None:
            return here
        stored: list[Summary] = []
        while True:
            # Those in memory are not as the store has them, and more may be behind them.
            page = self._kept.prunable(wanted, after, limit)
            stored += [one for one in page if one.id not in self._current and wanted.match(one)]
            if len(page) < limit or len(stored) >= limit:
                return sorted(here + stored, key=ended)[:limit]
            after = ended(page[-1])

    def in_memory(self) -> list[Summary]:
        """Return the workflows that are in memory."""
        return [one for one in self._current if one.pruned != "all"]

    def matching(self, wanted: Filters) -> Iterator[Summary]:
        """Yield the workflows that match, in order of creation."""
        here = self.in_memory()
        found = sorted((one for one in here if wanted.match(one)), key=created)
        if self._kept is None:
            yield from found
            return
        seen = {one.id for one in self._current}  # those that leave memory meanwhile must not come a second time
        elsewhere = (one for one in self._kept.matching(wanted) if one.id not in seen)
        yield from merge(found, elsewhere, key=created)

    def located(self, workflow_id: str) -> Located:
        """Return where those events of a workflow lie that its replay needs."""
        row = self._row_elsewhere(workflow_id)
        return self._history.located(workflow_id) if row is None else located(row.events)

    def received(self, workflow_id: str) -> Received:
        """Return where the signals lie whose ids a workflow remembers, among other events of it."""
        row = self._row_elsewhere(workflow_id)
        return self._history.received(workflow_id) if row is None else received(row.events)

    def _row_elsewhere(self, workflow_id: str) -> WorkflowRow | None:
        """Return the row of a workflow that is not in memory."""
        return None if self._kept is None or workflow_id in self._current else self._kept.get(workflow_id)

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
        row = self._row_elsewhere(workflow_id)
        return self._queues.queued(workflow_id) if row is None else row.queue


def _may_go_on(summary: Summary, *, findable: bool, runs: bool, queued: bool) -> bool:
    """Whether a workflow is to be in memory, as what comes next may concern it. Stores ask the same in SQL (``_GOING_ON``)."""
    return summary.completed_us is None or summary.waiting is not None or findable or runs or queued
