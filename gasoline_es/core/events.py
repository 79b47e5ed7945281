"""The facts a workflow's stream is made of: one dataclass per fact, a closed union (design §4).

Payloads (inputs, outputs, states, signal bodies) are JSON text in UTF-8, never parsed here. Times are integer microseconds
since the epoch, UTC. Locations are tuples of coordinates (semantics.md §2). How a fact is written is in ``core.codec``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal, TypeVar, dataclass_transform

from gasoline_es.core.durations import to_datetime
from gasoline_es.core.location import Location, format_location

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def fact(cls: type[T]) -> type[T]:
    """Make a slotted dataclass that is frozen to the type checkers.

    At run time it is not: to make a frozen one takes three times as long, and one is made for every step.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


SleepOutcome = Literal["normal", "uninterrupted", "interrupted"]
"""How a sleep ended: a plain one, a timed listen that ran out, a timed listen that got a signal."""

PruneRule = Literal["all", "history", "none"]
"""What may go of a workflow that is over, by its definition (semantics.md §1)."""


@fact
class ErrorInfo:
    """An error as data. ``type`` is the class's name; ``details`` is JSON text or None."""

    type: str
    message: str
    traceback: str = ""
    details: bytes | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


# --- life of a workflow -----------------------------------------------------------------------------------------------


@fact
class WorkflowDispatched:
    """The first event of every workflow. ``key`` is the caller's idempotency key; ``request_id`` the deciding command's.

    ``forked_from``: the workflow whose history it goes on with; ``seed``: the one whose draws it repeats up to there.
    ``schedule``: the id of the schedule that started it.
    ``traceparent``: of the span that dispatched it, an attribute of the CloudEvent (``core.traceparent``).
    """

    TYPE: ClassVar[str] = "workflow.dispatched"
    name: str
    input: bytes
    tags: Mapping[str, str]
    unique: bool = False
    key: str | None = None
    parent: str | None = None
    request_id: str | None = None
    forked_from: str | None = None
    seed: str | None = None
    schedule: str | None = None
    traceparent: str | None = None


@fact
class WorkflowSuspended:
    """It left memory. Any of the conditions wakes it: the deadline, a signal of one of the names, an output it waits for.

    ``outputs``: the ids of the workflows whose outputs it waits for, a thousand of them at most.
    """

    TYPE: ClassVar[str] = "workflow.suspended"
    deadline_us: int | None = None
    signals: tuple[str, ...] = ()
    retry: bool = False
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What it waits for, but for the time: ``signal paid or cancelled``."""
        waits: list[str] = []
        if self.signals:
            waits.append(f"signal {' or '.join(self.signals)}")
        if self.outputs:
            shown = ", ".join(self.outputs[:3]) + (", …" if len(self.outputs) > 3 else "")
            waits.append(f"output of {shown}")
        if self.retry:
            waits.append("retry")
        return ", ".join(waits) or "time"


@fact
class WorkflowCompleted:
    """The body returned. ``state`` is the workflow's final state document.

    ``prune``: what its definition says may go; so it is known to an owner that has not registered it.
    """

    TYPE: ClassVar[str] = "workflow.completed"
    output: bytes
    state: bytes
    prune: PruneRule = "all"


@fact
class WorkflowFailed:
    """The workflow is dead: nothing will wake it but an operator (semantics.md §7).

    ``failures``: where the activities are whose final failures left the body, uncaught: what ``recover`` clears.
    """

    TYPE: ClassVar[str] = "workflow.failed"
    error: ErrorInfo
    final: bool = False
    failures: tuple[Location, ...] = ()


@fact
class WorkflowWoken:
    """Somebody asked for it to run again."""

    TYPE: ClassVar[str] = "workflow.woken"
    by: str


@fact
class WorkflowRecovered:
    """Somebody cleared the final failures at these locations, and asked for it to run again: attempts count from 1 there."""

    TYPE: ClassVar[str] = "workflow.recovered"
    by: str
    locations: tuple[Location, ...]


@fact
class WorkflowCancelRequested:
    """From here on it can only end as cancelled: its body is thrown a cancel where it waits, and may clean up."""

    TYPE: ClassVar[str] = "workflow.cancel_requested"
    by: str


@fact
class WorkflowCancelled:
    """It is over, for good. ``error``: what left the body while it cleaned up, if anything did.

    ``prune``: as of ``workflow.completed``; "none" where nobody who decided this knew the definition.
    """

    TYPE: ClassVar[str] = "workflow.cancelled"
    state: bytes
    error: ErrorInfo | None = None
    prune: PruneRule = "all"


@fact
class WorkflowSilenced:
    """Somebody took it out of sight: it is over as it stands, and will not run again."""

    TYPE: ClassVar[str] = "workflow.silenced"
    by: str


@fact
class WorkflowRerun:
    """It starts over from the step at ``start``, with the code of today.

    ``generation`` counts from 1. ``superseded``: the events that hold no more, as pairs of the first and last ``seq`` of
    each run of them. ``beside``: branches of joins that stay, although they stand behind ``start``. ``tags`` are its tags
    from here on; ``returned`` the signals (id, name) that are queued again, oldest first. ``rerun_id``: of the command, so
    that a repeat is recognised. ``seed``: the workflow whose draws these are, in a fork of one that had started over.
    """

    TYPE: ClassVar[str] = "workflow.rerun"
    by: str
    start: Location
    generation: int
    superseded: tuple[tuple[int, int], ...]
    beside: tuple[Location, ...]
    tags: Mapping[str, str]
    returned: tuple[tuple[str, str], ...] = ()
    rerun_id: str = ""
    seed: str | None = None


@fact
class Remains:
    """How a workflow stands whose history is pruned. What carries it may be gone, so the event says it again.

    ``status``: how it ended, ``completed_us`` when. ``tags``: its last. ``error``: of its clean-up, cut; the whole of it is in
    the event of its end, which stays.
    """

    status: Literal["complete", "cancelled"]
    completed_us: int
    tags: Mapping[str, str]
    error: ErrorInfo | None = None


@fact
class WorkflowPruned:
    """Of what came before this event only the events of the numbers ``keeps`` count from now on, for nobody does anything else.

    ``remains`` None: nothing of the workflow is left, and its ``key`` is free. Else its history is gone, and its input, state,
    output or error and tags stay: ``keeps`` are its dispatch and its end. ``reason``: why, as whoever asked for it put it.
    ``first``: the number of its dispatch, where a former workflow of the same id was pruned; None: it is 1.
    """

    TYPE: ClassVar[str] = "workflow.pruned"
    by: str
    keeps: tuple[int, ...] = ()
    remains: Remains | None = None
    reason: str | None = None
    first: int | None = None

    @property
    def variant(self) -> Literal["all", "history"]:
        """What is pruned."""
        return "all" if self.remains is None else "history"


@fact
class WorkflowTagsUpdated:
    """Its tags are these from now on: an activity said so, in the append of its result."""

    TYPE: ClassVar[str] = "workflow.tags_updated"
    tags: Mapping[str, str]


# --- activities -------------------------------------------------------------------------------------------------------


@fact
class ActivityStarted:
    """An attempt starts that may have taken its process down before: only such ones are recorded at their start."""

    TYPE: ClassVar[str] = "activity.started"
    location: Location
    version: int
    name: str
    attempt: int


@fact
class ActivityCompleted:
    """``state`` is the workflow's state document where the activity changed it, else None."""

    TYPE: ClassVar[str] = "activity.completed"
    location: Location
    version: int
    name: str
    attempt: int
    started_us: int
    input: bytes
    output: bytes
    state: bytes | None = None


@fact
class ActivityFailed:
    """One failed attempt. ``retry_us``: when the next one may start; None exactly when ``final``.

    ``heartbeat``: the details of its last heartbeat, as JSON, for the next attempt to read.
    """

    TYPE: ClassVar[str] = "activity.failed"
    location: Location
    version: int
    name: str
    attempt: int
    started_us: int
    input: bytes
    error: ErrorInfo
    retry_us: int | None = None
    final: bool = False
    exhausted: bool = False
    heartbeat: bytes | None = None


# --- signals ----------------------------------------------------------------------------------------------------------


@fact
class SignalReceived:
    """Queued for this workflow from now on. ``traceparent``: of the span that sent it, an attribute of the CloudEvent."""

    TYPE: ClassVar[str] = "signal.received"
    signal_id: str
    name: str
    body: bytes
    sender: str | None = None
    traceparent: str | None = None


@fact
class SignalDiscarded:
    """No listen will take these, which were queued (semantics.md §5).

    ``by``: who took them away; None: they were left when the workflow ended.
    """

    TYPE: ClassVar[str] = "signal.discarded"
    signal_ids: tuple[str, ...]
    by: str | None = None


@fact
class SignalConsumed:
    """A listen took these, in this order. Their names and bodies are in their ``signal.received`` events."""

    TYPE: ClassVar[str] = "signal.consumed"
    location: Location
    version: int
    signal_ids: tuple[str, ...]


# --- sleeps and the evolution of code ---------------------------------------------------------------------------------


@fact
class SleepStarted:
    """``listen``: the sleep is the timeout of a listen, whose signals are at the next location (semantics.md §4)."""

    TYPE: ClassVar[str] = "sleep.started"
    location: Location
    version: int
    deadline_us: int
    listen: bool = False


@fact
class SleepFinished:
    """The sleep at ``location`` is over."""

    TYPE: ClassVar[str] = "sleep.finished"
    location: Location
    outcome: SleepOutcome


@fact
class StepRemoved:
    """A step that the code no longer has was passed for the first time (semantics.md §3)."""

    TYPE: ClassVar[str] = "step.removed"
    location: Location
    version: int
    kind: str
    name: str | None = None


@fact
class StepPlaced:
    """A step of a join has its place, before it starts. ``name``: an activity's.

    Steps beside it may be recorded before it is; a replay finds by this which of them each is, and code that was changed
    meanwhile is held against it. A step that waits alone needs none: nothing is recorded behind it.
    """

    TYPE: ClassVar[str] = "step.placed"
    location: Location
    version: int
    kind: str
    name: str | None = None


@fact
class StepInterrupted:
    """A cancel was thrown into the body at this step, in place of an answer. ``name``: an activity's or a workflow's."""

    TYPE: ClassVar[str] = "step.interrupted"
    location: Location
    version: int
    kind: str
    name: str | None = None


# --- other workflows --------------------------------------------------------------------------------------------------


@fact
class SignalSent:
    """A signal went to ``target``, in the same append; None: there was no workflow to take it (semantics.md §5)."""

    TYPE: ClassVar[str] = "signal.sent"
    location: Location
    version: int
    signal_id: str
    name: str
    body: bytes
    target: str | None


@fact
class MessageSent:
    """A message went out, in the same append, to whoever subscribes to its name and topic (semantics.md §9)."""

    TYPE: ClassVar[str] = "message.sent"
    location: Location
    version: int
    name: str
    topic: Mapping[str, str]
    body: bytes


@fact
class RecordEmitted:
    """A record was written on a topic of others, in the same append (design §6). ``value`` None: a tombstone."""

    TYPE: ClassVar[str] = "record.emitted"
    location: Location
    version: int
    topic: str
    key: str
    value: bytes | None
    partition: int


@fact
class WorkflowSpawned:
    """A workflow was dispatched; ``created`` False: a unique dispatch found it there."""

    TYPE: ClassVar[str] = "workflow.spawned"
    location: Location
    version: int
    workflow_id: str
    name: str
    tags: Mapping[str, str]
    unique: bool = False
    created: bool = True


@fact
class OutputReceived:
    """What became of the workflow that was waited for: its output, or an error (there is no such workflow)."""

    TYPE: ClassVar[str] = "output.received"
    location: Location
    version: int
    workflow_id: str
    name: str
    output: bytes | None = None
    error: ErrorInfo | None = None


@fact
class WaiterAdded:
    """Another workflow waits, at ``waiting_at`` of its own history, for this one's output. It is told at the end.

    ``generation``: of that place, if it started over before.
    """

    TYPE: ClassVar[str] = "waiter.added"
    waiter: str
    waiting_at: Location
    version: int
    generation: int = 0


# --- flow: branches, loops, races -------------------------------------------------------------------------------------

BranchKind = Literal["closure", "run", "race"]


@fact
class BranchOpened:
    """Steps below ``location`` follow: a closure's, another workflow's body run inline (``name``), or a race's."""

    TYPE: ClassVar[str] = "branch.opened"
    location: Location
    version: int
    kind: BranchKind
    name: str | None = None


@fact
class RaceDecided:
    """``winner``: the index of the competitor that succeeded first, with its value; None when all of them failed."""

    TYPE: ClassVar[str] = "race.decided"
    location: Location
    winner: int | None
    value: bytes


@fact
class RollbackHandler:
    """An activity that undoes something, with its input. ``seq``: of the last event its branch had seen when it was given."""

    name: str
    input: bytes
    seq: int


@fact
class LoopCommitted:
    """Iterations up to this one are over and forgotten by replay; 0 is the loop's start. ``output``: it is over.

    ``handlers``: what the iterations since the commit before gave to be rolled back, oldest first, since the last
    checkpoint. ``checkpoint``: one of them has reached that, so nothing that was given before is to be rolled back.
    """

    TYPE: ClassVar[str] = "loop.committed"
    location: Location
    version: int
    iteration: int
    state: bytes
    output: bytes | None = None
    handlers: tuple[RollbackHandler, ...] = ()
    checkpoint: bool = False


@fact
class CheckpointReached:
    """What is given to be rolled back from here on is undone if the workflow fails; what was given before stays."""

    TYPE: ClassVar[str] = "checkpoint.reached"
    location: Location
    version: int


@fact
class RollbackStarted:
    """An error left the body. What was given to be rolled back is undone on the branch below ``location``."""

    TYPE: ClassVar[str] = "rollback.started"
    location: Location
    version: int
    error: ErrorInfo


@fact
class VersionChecked:
    """``value`` is the absolute version this position answers for ever (semantics.md §3)."""

    TYPE: ClassVar[str] = "version.checked"
    location: Location
    version: int
    value: int


@fact
class Unreadable:
    """An event of a type or version this code does not know: its workflow is set aside, its partition goes on."""

    TYPE: ClassVar[str] = "unreadable"
    type: str
    reason: str


EventData = (
    WorkflowDispatched
    | WorkflowSuspended
    | WorkflowCompleted
    | WorkflowFailed
    | WorkflowWoken
    | WorkflowRecovered
    | WorkflowCancelRequested
    | WorkflowCancelled
    | WorkflowSilenced
    | WorkflowRerun
    | WorkflowPruned
    | WorkflowTagsUpdated
    | ActivityStarted
    | ActivityCompleted
    | ActivityFailed
    | SignalReceived
    | SignalDiscarded
    | SignalConsumed
    | SleepStarted
    | SleepFinished
    | StepRemoved
    | StepPlaced
    | StepInterrupted
    | VersionChecked
    | BranchOpened
    | RaceDecided
    | LoopCommitted
    | CheckpointReached
    | RollbackStarted
    | SignalSent
    | MessageSent
    | RecordEmitted
    | WorkflowSpawned
    | OutputReceived
    | WaiterAdded
    | Unreadable
)
LocatedData = (
    ActivityStarted
    | ActivityCompleted
    | ActivityFailed
    | SignalConsumed
    | SleepStarted
    | SleepFinished
    | StepRemoved
    | StepPlaced
    | StepInterrupted
    | VersionChecked
    | BranchOpened
    | RaceDecided
    | LoopCommitted
    | CheckpointReached
    | RollbackStarted
    | SignalSent
    | MessageSent
    | RecordEmitted
    | WorkflowSpawned
    | OutputReceived
)


Fact = tuple[str, int, int, EventData, str, str]
"""What folds take of an event, in the order in which they take it: workflow id, seq, time, fact, ray id, worker."""


@dataclass(frozen=True, slots=True)
class Event:
    """A fact with its envelope: what ``handle.history()`` returns, in order of ``seq`` (from 1, gap-free per workflow)."""

    workflow_id: str
    seq: int
    time_us: int
    workflow: str
    ray_id: str
    partition: int
    epoch: int
    worker: str
    data: EventData

    @property
    def id(self) -> str:
        return f"{self.workflow_id}/{self.seq}"

    @property
    def fact(self) -> Fact:
        """What folds take of it."""
        return self.workflow_id, self.seq, self.time_us, self.data, self.ray_id, self.worker

    @property
    def type(self) -> str:
        """The fact's name, as ``activity.completed``."""
        return self.data.TYPE

    @property
    def location(self) -> str | None:
        """Where in the history the fact stands, as ``{1, 4}``; None for facts of the workflow as a whole."""
        location: Location | None = getattr(self.data, "location", None)
        return None if location is None else format_location(location)

    @property
    def traceparent(self) -> str | None:
        """The span that led to it, in the form of W3C Trace Context; only dispatches and signals can have one."""
        data = self.data
        return data.traceparent if isinstance(data, WorkflowDispatched | SignalReceived) else None

    @property
    def time(self) -> datetime:
        """When it was decided (UTC)."""
        return to_datetime(self.time_us)
