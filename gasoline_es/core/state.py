"""The fold of a workflow's events (design §4): ``Summary`` is what lists and wake queues need, ``WorkflowState`` all of it.

One fold serves everybody: the engine that decides, the projections that answer questions, and replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

from gasoline_es.core import events as ev
from gasoline_es.core.history import (
    ActivityEntry,
    BranchEntry,
    History,
    LoopEntry,
    OutputEntry,
    PlacedEntry,
    RemovedEntry,
    SentEntry,
    Signal,
    SignalsEntry,
    SleepEntry,
    SpawnedEntry,
    VersionEntry,
)
from gasoline_es.core.location import Location

_ANSWERS: Final = (
    ev.ActivityCompleted,
    ev.ActivityFailed,
    ev.SleepFinished,
    ev.SignalConsumed,
    ev.SignalSent,
    ev.WorkflowSpawned,
    ev.OutputReceived,
)
"""What a step that waits may be answered by."""

Status = Literal["running", "sleeping", "complete", "dead", "unreadable"]
NULL = b"null"

_STEPS: Final = frozenset(get_args(ev.LocatedData))

RETAGGED_MAX = 100
"""So many changes of a workflow's tags are remembered, for its body to see each time those of the time."""
SIGNALS_REMEMBERED = 10_000
"""Ids of at least this many of a workflow's newest signals are remembered, and all of the last day's (design §5)."""
SIGNALS_REMEMBERED_US = 24 * 3600 * 1_000_000


class Summary:
    """Where a workflow stands, without payloads: small enough to keep for every workflow in memory."""

    __slots__ = (
        "completed_us",
        "created_us",
        "error",
        "id",
        "name",
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
        self.waiting: ev.WorkflowSuspended | None = None
        self.worker = ""

    @property
    def incomplete(self) -> bool:
        """Whether signals and unique dispatches can still meet it (semantics.md §5, §6)."""
        return self.completed_us is None

    def apply(self, seq: int, time_us: int, data: ev.EventData, ray_id: str, worker: str) -> None:
        """Fold the next event. A ``seq`` that is not the next one sets the workflow aside: an event is lost or repeated."""
        if seq != self.seq + 1 and self.status != "unreadable":
            self.set_aside(f"event {seq} follows event {self.seq}: events are missing or repeated")
        self.seq = seq
        self.updated_us = time_us
        self.worker = worker
        if self.status == "unreadable":
            return
        if type(data) in _STEPS:
            # Its body goes on, maybe in new code: what it waited for when it was suspended does not hold any more.
            self.status, self.waiting = "running", None
            return
        match data:
            case ev.SignalReceived():
                if self.waiting is not None and data.name in self.waiting.signals:
                    self.status, self.waiting = "running", None
            case ev.WorkflowDispatched():
                self.name, self.tags, self.ray_id, self.created_us = data.name, data.tags, ray_id, time_us
            case ev.WorkflowTagsUpdated():
                self.tags = data.tags
            case ev.WorkflowSuspended():
                self.status, self.waiting = "sleeping", data
            case ev.WorkflowCompleted():
                self.status, self.completed_us, self.waiting, self.error = "complete", time_us, None, None
            case ev.WorkflowFailed():
                self.status, self.error, self.waiting = "dead", data.error, None
            case ev.WorkflowWoken():
                self.status, self.waiting, self.error = "running", None, None
            case ev.Unreadable():
                self.set_aside(f"event {seq} of type {data.type}: {data.reason}")
            case _:
                pass

    def set_aside(self, why: str) -> None:
        """Its history makes no sense to this code: it is shown, never run, and its partition goes on."""
        self.status, self.waiting = "unreadable", None
        self.error = ev.ErrorInfo("Unreadable", why)


class WorkflowState:
    """Everything the engine decides from: the summary, the payloads, the signal queue and the history for replay."""

    __slots__ = (
        "dispatched",
        "document",
        "forgotten_us",
        "history",
        "known",
        "news",
        "output",
        "queue",
        "retagged",
        "summary",
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
        self.forgotten_us: int | None = None
        """The newest time of a signal id no longer remembered, if any was dropped."""
        self.waiters: dict[tuple[str, Location], int] = {}
        """Who waits for its output: the workflow and where it waits → the version of that step."""
        self.retagged: list[tuple[int, Mapping[str, str]]] = []
        """By which event its tags were changed, and to what."""
        self.history = History()
        self.news: list[Location] | None = None
        """Where something was recorded since it was last emptied; None while nobody asks."""

    def apply(self, seq: int, time_us: int, data: ev.EventData, ray_id: str, worker: str) -> None:
        """Fold the next event."""
        self.summary.apply(seq, time_us, data, ray_id, worker)
        if self.summary.status == "unreadable":
            return
        try:
            self._fold(data, seq, time_us)
            if self.news is not None and isinstance(data, _ANSWERS):
                self.news.append(data.location)
        except (AssertionError, KeyError) as error:
            self.summary.set_aside(f"event {seq} of type {data.TYPE} does not fit what is recorded before it: {error}")

    def _fold(self, data: ev.EventData, seq: int, time_us: int) -> None:
        if isinstance(data, ev.ActivityCompleted):  # what nearly every event is
            at = data.location
            branch = self.history.branch(at[:-1])
            if not branch or branch[-1].location < at:  # as every first attempt of a live run is
                branch.append(ActivityEntry(at, data.version, seq, time_us, data.name, data.started_us, data.output))
            else:
                self._activity(data, seq, time_us).output = data.output
            if data.state is not None:
                self.document = data.state
            return
        match data:
            case ev.SignalReceived():
                self.queue[data.signal_id] = Signal(data.signal_id, data.name, data.body)
                self._remember(data.signal_id, time_us)
            case ev.SignalConsumed():
                taken = tuple(self.queue.pop(signal_id) for signal_id in data.signal_ids)
                self.history.add(SignalsEntry(data.location, data.version, seq, time_us, taken))
            case ev.ActivityFailed():
                self._activity(data, seq, time_us).failures += (data,)
            case ev.SleepStarted():
                self.history.add(SleepEntry(data.location, data.version, seq, time_us, data.deadline_us, data.listen))
            case ev.SleepFinished():
                self._finish_sleep(data, seq, time_us)
            case ev.WorkflowDispatched():
                self.dispatched = data
            case ev.WorkflowTagsUpdated():
                # Bounded, for loops that run for ever: what is far back stands in iterations that are forgotten.
                self.retagged = [*self.retagged[-RETAGGED_MAX:], (seq, data.tags)]
            case ev.WorkflowCompleted():
                self.output, self.document = data.output, data.state
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
            case ev.SignalSent():
                at, version = data.location, data.version
                self.history.add(SentEntry(at, version, seq, time_us, data.name, data.signal_id, data.target))
            case ev.WorkflowSpawned():
                at, version = data.location, data.version
                self.history.add(SpawnedEntry(at, version, seq, time_us, data.name, data.workflow_id))
            case ev.OutputReceived():
                self.history.add(_output_entry(data, seq, time_us))
            case ev.WaiterAdded():
                self.waiters[data.waiter, data.waiting_at] = data.version
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

    def _commit_loop(self, data: ev.LoopCommitted, seq: int, time_us: int) -> None:
        entry = self.history.at(data.location)
        if entry is None:
            entry = LoopEntry(data.location, data.version, seq, time_us, data.iteration, data.state, data.output)
            self.history.add(entry)
            return
        assert isinstance(entry, LoopEntry), f"no loop at {data.location}"
        entry.seq, entry.time_us = seq, time_us
        entry.iteration, entry.state, entry.output = data.iteration, data.state, data.output
        self.history.forget(data.location, data.iteration)

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


def _output_entry(data: ev.OutputReceived, seq: int, time_us: int) -> OutputEntry:
    return OutputEntry(data.location, data.version, seq, time_us, data.name, data.workflow_id, data.output, data.error)
