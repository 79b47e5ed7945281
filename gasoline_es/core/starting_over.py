"""Starting over from a step: which recorded events hold no more, and what a copy of the others is (semantics.md §4).

A pure function of the complete history. What stays beside the step, and what came after it, is told by places and by the
order of events: the parts of a join all have their places before any of them goes on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson

from gasoline_es.core import events as ev
from gasoline_es.core.folding import superseded_in
from gasoline_es.core.location import Location, format_location
from gasoline_es.errors import RerunRefused

_NEAR_MAX: Final = 8
"""So many places are named to whoever asks for one where nothing is recorded."""

_SHOWN_MAX: Final = 200
"""So many characters of a place that somebody made up are shown."""

_PLACING: Final = (
    ev.StepPlaced,
    ev.BranchOpened,
    ev.SleepStarted,
    ev.LoopCommitted,
    ev.VersionChecked,
    ev.StepRemoved,
    ev.MessageSent,
)
"""What the first event of a step can be that stands in a join."""

_ENDING: Final = (
    ev.WorkflowSuspended,
    ev.WorkflowCompleted,
    ev.WorkflowFailed,
    ev.WorkflowCancelRequested,
    ev.WorkflowCancelled,
    ev.WorkflowSilenced,
    ev.SignalDiscarded,
)
"""What happened to the workflow as a whole and does not hold when what led to it does not."""


@dataclass(frozen=True, slots=True)
class RerunInfo:
    """What starting over did, or would do. ``id``: the workflow that goes on, the same one or its fork.

    ``start``: from where. ``generation`` counts from 1. ``events``: how many of the workflow's hold no more; ``signals``: the
    ids of those that are queued again; ``beside``: branches of joins that stay, although they stand behind ``start``.
    """

    id: str
    start: str
    generation: int
    events: int
    signals: tuple[str, ...]
    beside: tuple[str, ...]

    def json(self) -> bytes:
        """Write it as JSON."""
        return orjson.dumps(self)

    @classmethod
    def read(cls, raw: bytes) -> RerunInfo:
        """Read what :meth:`json` wrote."""
        told = orjson.loads(raw)
        signals, beside = tuple(told["signals"]), tuple(told["beside"])
        return cls(told["id"], told["start"], told["generation"], told["events"], signals, beside)


@dataclass(frozen=True, slots=True)
class Plan:
    """What starting over from ``start`` means. ``kept`` are the facts that hold, in order; ``spans`` tells the others."""

    start: Location
    generation: int
    spans: tuple[tuple[int, int], ...]
    beside: tuple[Location, ...]
    tags: Mapping[str, str]
    returned: tuple[tuple[str, str], ...]
    kept: list[ev.Fact]

    def info(self, workflow_id: str) -> RerunInfo:
        """Tell it to people; the workflow of this id goes on."""
        events = sum(last - first + 1 for first, last in self.spans)
        signals = tuple(signal_id for signal_id, _ in self.returned)
        beside = tuple(map(format_location, self.beside))
        return RerunInfo(workflow_id, format_location(self.start), self.generation, events, signals, beside)

    def fact(self, by: str, rerun_id: str) -> ev.WorkflowRerun:
        """Return the event that says so."""
        return ev.WorkflowRerun(
            by, self.start, self.generation, self.spans, self.beside, self.tags, self.returned, rerun_id
        )


def plan(facts: Sequence[ev.Fact], start: Location, *, fork: bool = False) -> Plan:
    """Say what starting over from the step at ``start`` does to a workflow, given all of its events in order.

    A place that has no event of its own will do, if there are some below it: an iteration, a race's competitor, ``{}``.
    The place of the signals that a timed listen took stands for the listen. ``fork``: a new workflow is to start over.

    Raises: RerunRefused: there is nothing at or below it, or some of the history is not there any more, or the workflow was
        silenced and is itself to run again.
    """
    if facts and isinstance(facts[-1][3], ev.WorkflowPruned):
        raise RerunRefused(
            f"workflow {facts[-1][0]} cannot start over: its history was pruned", location=format_location(start)
        )
    before = facts[0][1] - 1 if facts and isinstance(facts[0][3], ev.WorkflowDispatched) else 0
    if [fact[1] - before for fact in facts] != list(range(1, len(facts) + 1)):
        last = facts[-1][1] if facts else 0
        raise RerunRefused(
            f"it cannot start over: of its events up to number {last} only {len(facts)} are there, and it takes all of them",
            location=format_location(start),
        )
    if not fork and isinstance(facts[-1][3], ev.WorkflowSilenced):  # nothing follows that
        raise RerunRefused(
            f"workflow {facts[-1][0]} was silenced, so it will not run again: start over in a new one, as a fork of it "
            f"(`--fork`, `fork=True`)",
            location=format_location(start),
        )
    past = superseded_in(facts)
    live = [fact for fact in facts if fact[1] not in past]
    start = _whole_step(live, start)
    gone = _Gone(live, start)
    beside: set[Location] = set()
    superseded: set[int] = set()
    for fact in live:
        if gone.holds_no_more(fact, beside):
            superseded.add(fact[1])
            tagged = facts[fact[1] - before - 2] if isinstance(fact[3], ev.ActivityCompleted) else None
            if tagged is not None and isinstance(tagged[3], ev.WorkflowTagsUpdated):
                superseded.add(tagged[1])  # recorded right before it, by the same attempt
    _require_not_undone(live, superseded, start)
    generations = [fact[3].generation for fact in facts if isinstance(fact[3], ev.WorkflowRerun)]
    return Plan(
        start,
        max(generations, default=0) + 1,
        tuple(_spans(sorted(superseded))),
        tuple(sorted(beside)),
        _tags(fact[3] for fact in live if fact[1] not in superseded),
        tuple(_returned(live, superseded)),
        [fact for fact in live if fact[1] not in superseded],
    )


def _require_not_undone(live: Sequence[ev.Fact], superseded: set[int], start: Location) -> None:
    """Refuse to go on with what a rollback has undone. Raises: RerunRefused."""
    checkpoint: ev.Fact | None = None
    for fact in live:
        if isinstance(fact[3], ev.CheckpointReached):
            checkpoint = fact
        elif isinstance(fact[3], ev.RollbackStarted) and checkpoint is not None and checkpoint[1] not in superseded:
            assert isinstance(checkpoint[3], ev.CheckpointReached)
            at = format_location(checkpoint[3].location)
            raise RerunRefused(
                f"the workflow was rolled back: what it did since its checkpoint at {at} is undone, and starting over from "
                f"{format_location(start)} would go on as if it were not. Start over from {at}, or from a step before",
                location=format_location(start),
                near=[at],
            )


def _whole_step(live: Sequence[ev.Fact], start: Location) -> Location:
    """Return the place of the listen, where ``start`` is that of the signals it took: the two are one step."""
    sleeping: Location | None = None
    for _, _, _, data, _, _ in live:
        if isinstance(data, ev.SignalConsumed) and data.location == start and sleeping is not None:
            return sleeping
        interrupted = isinstance(data, ev.SleepFinished) and data.outcome == "interrupted"
        sleeping = data.location if interrupted and isinstance(data, ev.SleepFinished) else None
    return start


class _Gone:
    """Tells which of the live events stand at, behind, or above and after a step."""

    def __init__(self, live: Sequence[ev.Fact], start: Location) -> None:
        self._start = start
        self._first_at: dict[Location, int] = {}
        """By place, the first event at or below it."""
        self._first_below: dict[Location, int] = {}
        self._own: dict[Location, ev.LocatedData] = {}
        """The first event at this very place."""
        self._over: dict[Location, int] = {}
        """When a race was decided, or a loop went on from its start."""
        for _, seq, _, data, _, _ in live:
            if isinstance(data, ev.LocatedData):
                self._note(seq, data)
        self.first = self._first_at.get(start, 0)
        if not self.first:
            raise _nothing_at(start, self._own)
        cancels = (seq for _, seq, _, data, _, _ in live if isinstance(data, ev.WorkflowCancelRequested))
        self._cancelled = next((seq for seq in cancels if seq > self.first), None)

    def _note(self, seq: int, data: ev.LocatedData) -> None:
        location = data.location
        for depth in range(len(location) + 1):
            self._first_at.setdefault(location[:depth], seq)
            if depth < len(location):
                self._first_below.setdefault(location[:depth], seq)
        if self._own.setdefault(location, data) is not data and isinstance(data, ev.RaceDecided | ev.LoopCommitted):
            self._over.setdefault(location, seq)

    def holds_no_more(self, fact: ev.Fact, beside: set[Location]) -> bool:
        """Whether an event goes; a branch that stays although it stands behind is noted in ``beside``."""
        _, seq, _, data, _, _ = fact
        if isinstance(data, ev.LocatedData):
            if self._cancelled is not None and seq > self._cancelled:
                return True  # wherever it was recorded: the cancel that led to it is taken back
            return self._goes(data.location, seq, beside)
        if isinstance(data, ev.WorkflowRecovered):
            # What it opened and stays is open: a step beside the one that starts over goes on.
            return seq > self.first and all(self._goes(at, seq, set()) for at in data.locations)
        if isinstance(data, ev.SignalDiscarded) and data.by is not None:
            return False  # somebody's wish, and none of what the step led to: what was taken away does not come back
        return isinstance(data, _ENDING) and seq > self.first

    def _goes(self, location: Location, seq: int, beside: set[Location]) -> bool:
        start = self._start
        for depth, (ours, its) in enumerate(zip(start, location, strict=False)):
            if ours == its:
                continue
            if its < ours:
                return False
            branch = location[: depth + 1]
            if self._is_beside(start[: depth + 1], branch):
                beside.add(branch)
                return False
            return True
        return len(location) >= len(start) or seq > self.first

    def _is_beside(self, mine: Location, other: Location) -> bool:
        """Whether two steps of one branch, or two branches of one step, are parts of one join or race."""
        above = self._own.get(mine[:-1])
        if isinstance(above, ev.BranchOpened) and above.kind == "race":
            return True
        if isinstance(above, ev.LoopCommitted) or len(mine) == len(self._start):
            return False  # iterations; or what is recorded behind the step on its own branch
        # In a join every part has its place before any goes on; what comes after a step is placed when that is over.
        placed = self._first_at[other]
        if not self._first_at[mine] < placed < self.first or not isinstance(self._own.get(other), _PLACING):
            return False
        opened = self._own.get(mine)
        if isinstance(opened, ev.BranchOpened) and opened.kind == "race":
            begun = self._over.get(mine)  # its competitors are placed with it
        else:
            begun = min(self._first_below.get(mine, self.first), self._over.get(mine, self.first))
        return begun is None or placed < begun


def _nothing_at(start: Location, recorded: Iterable[Location]) -> RerunRefused:
    known = sorted(recorded)
    asked = format_location(start)
    asked = asked if len(asked) <= _SHOWN_MAX else f"{asked[:_SHOWN_MAX]}…"
    if not known:
        return RerunRefused(f"nothing can start over from {asked}: no step is recorded yet", location=asked)
    at = bisect_left(known, start)
    near = known[max(0, at - _NEAR_MAX // 2) :][:_NEAR_MAX]
    shown = ", ".join(map(format_location, near))
    more = "" if len(near) == len(known) else f" (of {len(known)} places)"
    return RerunRefused(
        f"nothing is recorded at {asked}, so nothing can start over from there: near it are {shown}{more}",
        location=asked,
        near=[format_location(one) for one in near],
    )


def _spans(seqs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of numbers without a gap."""
    first = 0
    for index, seq in enumerate(seqs):
        if index == 0 or seq != seqs[index - 1] + 1:
            first = seq
        if index + 1 == len(seqs) or seqs[index + 1] != seq + 1:
            yield first, seq


def _tags(kept: Iterable[ev.EventData]) -> Mapping[str, str]:
    tags: Mapping[str, str] = {}
    for data in kept:
        if isinstance(data, ev.WorkflowDispatched | ev.WorkflowTagsUpdated):
            tags = data.tags
    return tags


def _returned(live: Sequence[ev.Fact], superseded: set[int]) -> Iterator[tuple[str, str]]:
    """Yield the signals that were taken by what holds no more, in the order in which they were received."""
    back: set[str] = set()
    for _, seq, _, data, _, _ in live:
        if seq in superseded and isinstance(data, ev.SignalConsumed | ev.SignalDiscarded):
            back.update(data.signal_ids)
    for _, _, _, data, _, _ in live:
        if isinstance(data, ev.SignalReceived) and data.signal_id in back:
            yield data.signal_id, data.name


# --- as a new workflow ------------------------------------------------------------------------------------------------

_Copied = (
    ev.LocatedData | ev.SignalReceived | ev.WorkflowTagsUpdated | ev.WorkflowRecovered | ev.WorkflowCancelRequested
)
"""What a copy begins with, behind its dispatch."""


def copied(planned: Plan, original: str, request_id: str) -> Iterator[tuple[int, ev.EventData]]:
    """Yield the events, with their times, that a copy of workflow ``original`` begins with up to the planned step.

    Its draws up to there are the original's: ids that were drawn stand in what is recorded. Its own ``workflow.rerun`` is
    to follow, see :func:`fork`.
    """
    numbers: list[int] = []
    for _, seq, time_us, data, _, _ in planned.kept:
        made = _copy(data, original, request_id, numbers)
        if made is not None:
            numbers.append(seq)
            yield time_us, made


def _copy(data: ev.EventData, original: str, request_id: str, numbers: Sequence[int]) -> ev.EventData | None:
    match data:
        case ev.WorkflowDispatched():
            return ev.WorkflowDispatched(
                data.name,
                data.input,
                data.tags,
                request_id=request_id,
                forked_from=original,
                seed=data.seed or original,
                traceparent=data.traceparent,  # as its ray id: of the chain that it goes on with
            )
        case ev.WorkflowRerun():
            # What it superseded is not copied; where its generation begins still holds.
            return replace(data, superseded=(), returned=(), seed=data.seed or original)
        case ev.ActivityStarted():
            return None  # an attempt of the original's
        case ev.SignalDiscarded():
            # Taken away by somebody, so also from the copy's queue. What was left at an end is superseded with the end.
            return data
        case ev.LoopCommitted() if data.handlers:
            handlers = tuple(replace(one, seq=bisect_right(numbers, one.seq)) for one in data.handlers)
            return replace(data, handlers=handlers)
        case _:
            return data if isinstance(data, _Copied) else None


def fork(planned: Plan, by: str, rerun_id: str) -> ev.WorkflowRerun:
    """Return the event that ends the copied part of a copy's history."""
    return replace(planned.fact(by, rerun_id), superseded=(), returned=())
