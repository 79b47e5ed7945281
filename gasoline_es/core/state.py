"""The fold of a workflow's events (design §4): ``Summary`` is what lists and wake queues need, ``WorkflowState`` all of it.

One fold serves everybody: the engine that decides, the projections that answer questions, and replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from gasoline_es.core import events as ev
from gasoline_es.core.generations import Generation
from gasoline_es.core.history import (
    ActivityEntry,
    BranchEntry,
    CheckpointEntry,
    EmittedEntry,
    History,
    InterruptedEntry,
    LoopEntry,
    MessageEntry,
    OutputEntry,
    PlacedEntry,
    RemovedEntry,
    RollbackEntry,
    SentEntry,
    Signal,
    SignalsEntry,
    SleepEntry,
    SpawnedEntry,
    VersionEntry,
)
from gasoline_es.core.location import Location
from gasoline_es.core.shared import shared, shared_tags

_ANSWERS: Final = (
    ev.ActivityCompleted,
    ev.ActivityFailed,
    ev.SleepFinished,
    ev.SignalConsumed,
    ev.SignalSent,
    ev.RecordEmitted,
    ev.WorkflowSpawned,
    ev.OutputReceived,
)
"""What a step that waits may be answered by."""

Status = Literal["running", "sleeping", "complete", "cancelled", "silenced", "dead", "unreadable"]
OVER: Final[frozenset[Status]] = frozenset({"complete", "cancelled", "silenced"})
"""Where a workflow stands that will not run again by itself, nor be woken (semantics.md §7)."""
NULL = b"null"

_STEPS: Final = frozenset(get_args(ev.LocatedData))

RETAGGED_MAX = 1_000
"""So many changes of a workflow's tags are remembered, for its body to see each time those of the time."""
SIGNALS_REMEMBERED = 10_000
"""Ids of at least this many of a workflow's newest signals are remembered, and all of the last day's (design §5)."""
SIGNALS_REMEMBERED_US = 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Started:
    """An activity was recorded as started, ``times`` times since it last ended; the last time at ``time_us``."""

    name: str
    times: int
    time_us: int


class Summary:
    """Where a workflow stands, without payloads: small enough to keep for every workflow in memory."""

    __slots__ = (
        "completed_us",
        "created_us",
        "error",
        "failures",
        "id",
        "name",
        "prune",
        "pruned",
        "ray_id",
        "seq",
        "status",
        "tags",
        "updated_us",
        "waiting",
        "worker",
    )

    def __init__(self, workflow_id: str) -> None:
        self.id = workflow_id
        self.seq = 0
        self.name = ""
        self.status: Status = "running"
        self.tags: Mapping[str, str] = {}
        self.ray_id = ""
        self.created_us = 0
        self.updated_us = 0
        self.completed_us: int | None = None
        self.error: ev.ErrorInfo | None = None
        self.failures = 0
        """While it is dead: so many final failures of activities left its body. They stay final when it is woken."""
        self.waiting: ev.WorkflowSuspended | None = None
        self.worker = ""
        self.prune: ev.PruneRule | None = None
        """Once it is over: what may go of it; None where nothing is left to go, or nobody may take it (silenced ones)."""
        self.pruned: Literal["all", "history"] | None = None
        """What has gone of it. "all": there is no such workflow any more; only ``seq`` and ``updated_us`` mean something."""

    @property
    def incomplete(self) -> bool:
        """Whether signals and unique dispatches can still meet it (semantics.md §5, §6)."""
        return self.completed_us is None

    def apply(self, seq: int, time_us: int, data: ev.EventData, ray_id: str, worker: str) -> None:
        """Fold the next event. A ``seq`` that is not the next one sets the workflow aside: an event is lost or repeated."""
        if type(data) is ev.WorkflowPruned:
            self._prune(data, time_us)
        elif seq != self.seq + 1 and self.status != "unreadable" and not self._may_begin(data):
            self.set_aside(f"event {seq} follows event {self.seq}: events are missing or repeated")
        self.seq = seq
        self.updated_us = time_us
        self.worker = worker
        if self.status == "unreadable":
            return
        if type(data) in _STEPS:
            # Its body goes on, maybe in new code: what it waited for when it was suspended does not hold any more. The dead
            # stay dead, though: an output may still come for one, and only an operator wakes it.
            if self.completed_us is None and self.error is None:
                self.status, self.waiting = "running", None
            return
        match data:
            case ev.SignalReceived():
                if self.waiting is not None and data.name in self.waiting.signals:
                    self.status, self.waiting = "running", None
            case ev.WorkflowDispatched():
                self.name, self.tags = shared(data.name), shared_tags(data.tags)
                self.ray_id, self.created_us = ray_id, time_us
                self.status, self.completed_us, self.pruned = "running", None, None
            case ev.WorkflowTagsUpdated():
                self.tags = shared_tags(data.tags)
            case ev.WorkflowRerun():
                self.status, self.waiting, self.error, self.completed_us = "running", None, None, None
                self.failures, self.prune = 0, None
                self.tags = shared_tags(data.tags)
            case ev.WorkflowSuspended():
                self.status, self.waiting = "sleeping", data
            case ev.WorkflowCompleted():
                self.status, self.completed_us, self.waiting, self.error = "complete", time_us, None, None
                self.prune = data.prune
            case ev.WorkflowFailed():
                self.status, self.error, self.waiting, self.failures = "dead", data.error, None, len(data.failures)
            case ev.WorkflowWoken() | ev.WorkflowRecovered():
                self.status, self.waiting, self.error, self.failures = "running", None, None, 0
            case ev.WorkflowCancelRequested():
                # Whatever it waits for: it is to be thrown the cancel. A dead one is cancelled by the next event.
                self.status, self.waiting = "running", None
            case ev.WorkflowCancelled():
                self.status, self.completed_us, self.waiting, self.error = "cancelled", time_us, None, data.error
                self.prune = data.prune
            case ev.WorkflowSilenced():
                # What it died of, if it was dead, is still to be seen.
                self.status, self.completed_us, self.waiting = "silenced", time_us, None
            case ev.Unreadable():
                self.set_aside(f"event {seq} of type {data.type}: {data.reason}")
            case _:
                pass

    def skip(self, seq: int, time_us: int, worker: str) -> None:
        """Pass over the next event: it counts, but what it says does not hold any more."""
        if seq != self.seq + 1 and self.status != "unreadable":
            self.set_aside(f"event {seq} follows event {self.seq}: events are missing or repeated")
        self.seq, self.updated_us, self.worker = seq, time_us, worker

    def _may_begin(self, data: ev.EventData) -> bool:
        """Whether it is a dispatch that nothing before it concerns: numbers go on where all was pruned (design §8)."""
        return isinstance(data, ev.WorkflowDispatched) and (not self.seq or self.pruned == "all")

    def _prune(self, data: ev.WorkflowPruned, time_us: int) -> None:
        """Stand as the event says, whatever was folded before: some of that may have been removed from the log."""
        remains = data.remains
        self.pruned, self.prune, self.waiting, self.failures = data.variant, None, None, 0
        if remains is None:
            self.name, self.tags, self.ray_id, self.created_us = "", {}, self.id, 0
            self.status, self.completed_us, self.error = "complete", time_us, None
        else:
            self.status, self.completed_us, self.error = remains.status, remains.completed_us, remains.error
            self.tags = shared_tags(remains.tags)

    def copy(self) -> Summary:
        """Return another one that stands where this one does."""
        copied = Summary(self.id)
        for name in self.__slots__:
            setattr(copied, name, getattr(self, name))
        return copied

    def set_aside(self, why: str) -> None:
        """Its history makes no sense to this code: it is shown, never run, and its partition goes on."""
        self.status, self.waiting = "unreadable", None
        self.error = ev.ErrorInfo("Unreadable", why)


def created(summary: Summary) -> tuple[int, str]:
    """Return what workflows are listed by: when they were dispatched."""
    return summary.created_us, summary.id


def ended(summary: Summary) -> tuple[int, str]:
    """Return what workflows that are over are pruned by: when they ended."""
    assert summary.completed_us is not None
    return summary.completed_us, summary.id


class WorkflowState:
    """Everything the engine decides from: the summary, the payloads, the signal queue and the history for replay."""

    __slots__ = (
        "cancel_seq",
        "dispatched",
        "document",
        "every_signal_known",
        "failures",
        "forgotten_us",
        "generations",
        "history",
        "known",
        "news",
        "output",
        "queue",
        "retagged",
        "rollback_at",
        "starts",
        "summary",
        "suspended_seq",
        "waiters",
    )

    def __init__(self, workflow_id: str) -> None:
        self.summary = Summary(workflow_id)
        self.dispatched: ev.WorkflowDispatched | None = None
        self.document: bytes = NULL
        """The workflow's state document, as activities see it; starts as null (semantics.md §4)."""
        self.output: bytes | None = None
        self.queue: dict[str, Signal] = {}
        """Signals received and not yet consumed, oldest first."""
        self.known: dict[str, int] = {}
        """Ids of signals received → when: a repeat is answered with its id and changes nothing."""
        self.every_signal_known = True
        """Whether ``known`` holds every id that is to be remembered, see :func:`refold` and :meth:`recall`."""
        self.forgotten_us: int | None = None
        """The newest time of a signal id no longer remembered, if any was dropped."""
        self.cancel_seq: int | None = None
        """The event that asked for it to be cancelled: from there on it can only end so."""
        self.suspended_seq = 0
        """The event by which it was last suspended: all of its bodies had gone on as far as what came before lets them."""
        self.failures: tuple[Location, ...] = ()
        """While it is dead: where the activities are whose final failures left the body."""
        self.rollback_at: Location | None = None
        """Where its rollback began, if it did."""
        self.waiters: dict[tuple[str, Location, int], int] = {}
        """Who waits for its output: the workflow, and where and in which generation it waits → the version of that step."""
        self.generations: list[Generation] = []
        """What it did when it started over, oldest first."""
        self.retagged: list[tuple[int, Mapping[str, str]]] = []
        """By which event its tags were changed, and to what."""
        self.starts: dict[Location, Started] = {}
        """The activities that were recorded as started and have not ended: suspects, if their process died since."""
        self.history = History()
        self.news: list[Location] | None = None
        """Where something was recorded since it was last emptied; None while nobody asks."""

    @property
    def traceparent(self) -> str | None:
        """Of the span that dispatched it, which what it does belongs to."""
        return None if self.dispatched is None else self.dispatched.traceparent

    def apply(self, seq: int, time_us: int, data: ev.EventData, ray_id: str, worker: str) -> None:
        """Fold the next event."""
        self.summary.apply(seq, time_us, data, ray_id, worker)
        if self.summary.status == "unreadable":
            return
        try:
            if isinstance(data, ev.ActivityCompleted):  # what nearly every event is
                self._complete(data, seq, time_us)
            else:
                self._fold(data, seq, time_us)
            if self.news is not None and isinstance(data, _ANSWERS):
                self.news.append(data.location)
        except (AssertionError, KeyError) as error:
            self.summary.set_aside(f"event {seq} of type {data.TYPE} does not fit what is recorded before it: {error}")

    def recall(self, signals: Iterable[tuple[str, int]], forgotten_us: int | None) -> None:
        """Remember the ids of these signals, received so far, oldest first, and no others."""
        self.known, self.forgotten_us, self.every_signal_known = {}, forgotten_us, True
        for signal_id, time_us in signals:
            self._remember(signal_id, time_us)

    def know_as(self, other: WorkflowState) -> None:
        """Remember those ids of signals that another state of this workflow does."""
        self.known, self.forgotten_us, self.every_signal_known = (
            other.known,
            other.forgotten_us,
            other.every_signal_known,
        )

    def takes_outcome(self, location: Location) -> bool:
        """Whether the outcome of an attempt there may be recorded: not once something else is, or it is all over."""
        entry = self.history.at(location)
        if entry is not None and not isinstance(entry, ActivityEntry | PlacedEntry):
            return False  # a cancel was thrown there, or something else was waited for in other code, and came
        return self.summary.incomplete

    def skip(self, seq: int, time_us: int, worker: str) -> None:
        """Pass over the next event, which was superseded (``core.folding``)."""
        self.summary.skip(seq, time_us, worker)

    def generation_at(self, location: Location) -> int:
        """Return the generation that a step at the location belongs to; 0: it was never started over."""
        for generation in reversed(self.generations):
            if generation.holds(location):
                return generation.number
        return 0

    def seed_of_draw(self, here: Location) -> str:
        """Return what the numbers that are drawn behind ``here`` are made of, besides the place and their count."""
        for generation in reversed(self.generations):
            if generation.holds_draw(here):
                return f"{generation.seed}|g{generation.number}"
        first = self.dispatched
        return self.summary.id if first is None or first.seed is None else first.seed

    def _complete(self, data: ev.ActivityCompleted, seq: int, time_us: int) -> None:
        at = data.location
        branch = self.history.branch(at[:-1])
        if not branch or branch[-1].location < at:  # as every first attempt of a live run is
            branch.append(ActivityEntry(at, data.version, seq, time_us, data.name, data.started_us, data.output))
        else:
            self._activity(data, seq, time_us).output = data.output
        if data.state is not None:
            self.document = data.state
        if self.starts:
            self.starts.pop(at, None)

    def _fold(self, data: ev.EventData, seq: int, time_us: int) -> None:
        match data:
            case ev.SignalReceived():
                self.queue[data.signal_id] = Signal(data.signal_id, data.name, data.body, data.traceparent)
                self._remember(data.signal_id, time_us)
            case ev.SignalConsumed():
                taken = tuple(self.queue.pop(signal_id) for signal_id in data.signal_ids)
                self.history.add(SignalsEntry(data.location, data.version, seq, time_us, taken))
            case ev.ActivityFailed():
                self._activity(data, seq, time_us).failures += (data,)
                self.starts.pop(data.location, None)
            case ev.ActivityStarted():
                before = self.starts.get(data.location)
                times = 1 if before is None or before.name != data.name else before.times + 1
                self.starts[data.location] = Started(data.name, times, time_us)
            case ev.SleepStarted():
                self.history.add(SleepEntry(data.location, data.version, seq, time_us, data.deadline_us, data.listen))
            case ev.SleepFinished():
                self._finish_sleep(data, seq, time_us)
            case ev.WorkflowDispatched():
                self.dispatched = data
            case ev.WorkflowPruned():
                self._prune(data)
            case ev.WorkflowTagsUpdated():
                # Bounded, for loops that run for ever: what is far back stands in iterations that are forgotten.
                self.retagged = [*self.retagged[-RETAGGED_MAX:], (seq, data.tags)]
            case ev.WorkflowCompleted():
                self.output, self.document = data.output, data.state
            case ev.WorkflowCancelled():
                self.document = data.state
            case ev.WorkflowFailed():
                self.failures = data.failures
            case ev.WorkflowWoken():
                self.failures = ()
            case ev.WorkflowRecovered():
                self._recover(data, seq, time_us)
            case ev.WorkflowCancelRequested():
                self.cancel_seq = seq
            case ev.StepInterrupted():
                at, entry = data.location, self.history.at(data.location)
                interrupted = InterruptedEntry(at, data.version, seq, time_us, data.kind, data.name, entry)
                self.history.add(interrupted)
            case ev.SignalDiscarded():
                for signal_id in data.signal_ids:
                    self.queue.pop(signal_id, None)
            case ev.StepRemoved():
                self.history.add(RemovedEntry(data.location, data.version, seq, time_us, data.kind, data.name))
            case ev.StepPlaced():
                self.history.add(PlacedEntry(data.location, data.version, seq, time_us, data.kind, data.name))
            case ev.VersionChecked():
                self.history.add(VersionEntry(data.location, data.version, seq, time_us, data.value))
            case ev.BranchOpened():
                self.history.add(BranchEntry(data.location, data.version, seq, time_us, data.kind, data.name))
            case ev.RaceDecided():
                entry = self.history.at(data.location)
                assert isinstance(entry, BranchEntry), f"no race at {data.location}"
                entry.seq, entry.time_us, entry.decided, entry.winner = seq, time_us, True, data.winner
            case ev.LoopCommitted():
                self._commit_loop(data, seq, time_us)
            case ev.CheckpointReached():
                self.history.add(CheckpointEntry(data.location, data.version, seq, time_us))
            case ev.RollbackStarted():
                self.rollback_at = data.location
                self.history.add(RollbackEntry(data.location, data.version, seq, time_us, data.error))
            case ev.SignalSent():
                at, version = data.location, data.version
                self.history.add(SentEntry(at, version, seq, time_us, data.name, data.signal_id, data.target))
            case ev.MessageSent():
                self.history.add(MessageEntry(data.location, data.version, seq, time_us, data.name))
            case ev.RecordEmitted():
                self.history.add(EmittedEntry(data.location, data.version, seq, time_us, data.topic))
            case ev.WorkflowSpawned():
                at, version = data.location, data.version
                self.history.add(SpawnedEntry(at, version, seq, time_us, data.name, data.workflow_id))
            case ev.OutputReceived():
                self.history.add(_output_entry(data, seq, time_us))
            case ev.WaiterAdded():
                self.waiters[data.waiter, data.waiting_at, data.generation] = data.version
            case ev.WorkflowRerun():
                self._start_over(data)
            case ev.WorkflowSuspended():
                self.suspended_seq = seq
            case _:
                pass

    def _activity(self, data: ev.ActivityCompleted | ev.ActivityFailed, seq: int, time_us: int) -> ActivityEntry:
        entry = self.history.at(data.location)
        if entry is None or isinstance(entry, PlacedEntry):
            entry = ActivityEntry(data.location, data.version, seq, time_us, data.name, data.started_us)
            self.history.add(entry)
        assert isinstance(entry, ActivityEntry), f"{entry.describe()} takes no activity's result"
        entry.seq, entry.time_us = seq, time_us
        return entry

    def _recover(self, data: ev.WorkflowRecovered, seq: int, time_us: int) -> None:
        """Open the activities that failed for good, and the races which nobody won because of them."""
        self.failures = ()
        for location in data.locations:
            entry = self.history.at(location)
            if entry is None:
                continue  # it stood in an iteration that was forgotten since, and is not loaded
            assert isinstance(entry, ActivityEntry), f"no activity at {location}"
            self.history.add(PlacedEntry(location, entry.version, seq, time_us, entry.kind, entry.name))
            for depth in range(1, len(location)):
                above = self.history.at(location[:depth])
                if isinstance(above, BranchEntry) and above.winner is None:
                    above.decided = False

    def _commit_loop(self, data: ev.LoopCommitted, seq: int, time_us: int) -> None:
        entry = self.history.at(data.location)
        if entry is None:
            entry = LoopEntry(data.location, data.version, seq, time_us, data.iteration, data.state, data.output)
            self.history.add(entry)
        assert isinstance(entry, LoopEntry), f"no loop at {data.location}"
        entry.seq, entry.time_us = seq, time_us
        entry.iteration, entry.state, entry.output = data.iteration, data.state, data.output
        if data.checkpoint:
            entry.handlers, entry.checkpoint = data.handlers, True
        elif data.handlers:
            entry.handlers += data.handlers
        self.history.forget(data.location, data.iteration)

    def _start_over(self, data: ev.WorkflowRerun) -> None:
        """Begin a generation. (What it superseded was skipped: ``core.folding``.)"""
        branch = self.history.branches().get(data.start[:-1], ()) if data.start else ()
        stayed = [entry.coordinate for entry in branch if entry.location < data.start]
        seed = self.summary.id if data.seed is None else data.seed
        before = stayed[-1] if stayed else None
        self.generations.append(Generation(data.generation, data.start, data.beside, before, seed, data.rerun_id))

    def _prune(self, data: ev.WorkflowPruned) -> None:
        """Forget what may be gone: all of it, or all but its input, its state and its output."""
        fresh = WorkflowState(self.summary.id)
        if data.remains is not None:
            fresh.dispatched, fresh.document, fresh.output = self.dispatched, self.document, self.output
        for name in self.__slots__:
            if name not in ("summary", "news"):
                setattr(self, name, getattr(fresh, name))

    def _finish_sleep(self, data: ev.SleepFinished, seq: int, time_us: int) -> None:
        entry = self.history.at(data.location)
        assert isinstance(entry, SleepEntry), f"no sleep at {data.location}"
        entry.outcome, entry.seq, entry.time_us = data.outcome, seq, time_us

    def _remember(self, signal_id: str, time_us: int) -> None:
        self.known[signal_id] = time_us
        while len(self.known) > SIGNALS_REMEMBERED:
            oldest = next(iter(self.known))
            when = self.known[oldest]
            if when > time_us - SIGNALS_REMEMBERED_US:
                return
            del self.known[oldest]
            self.forgotten_us = when if self.forgotten_us is None else max(self.forgotten_us, when)


def refold(summary: Summary, facts: Iterable[tuple[int, int, ev.EventData]]) -> WorkflowState:
    """Fold those facts of a workflow that its replay needs: the same comes of them as of its complete history.

    ``summary`` is of the complete history, ``facts`` are seq, time and fact, in order of seq. What a loop has forgotten
    need not be among them (semantics.md §4), nor what concerns nothing but the summary. The ids of signals whose listens
    are forgotten are not known then: see :meth:`WorkflowState.recall`.
    """
    state = WorkflowState(summary.id)
    for seq, time_us, data in facts:
        state.summary.seq = seq - 1
        state.apply(seq, time_us, data, summary.ray_id, summary.worker)
    found, state.summary = state.summary, summary.copy()
    if found.status == "unreadable":
        state.summary.status, state.summary.waiting, state.summary.error = found.status, None, found.error
    state.every_signal_known = False
    return state


def _output_entry(data: ev.OutputReceived, seq: int, time_us: int) -> OutputEntry:
    return OutputEntry(data.location, data.version, seq, time_us, data.name, data.workflow_id, data.output, data.error)
