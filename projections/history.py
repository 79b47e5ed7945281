"""History index: where in its partition's events the history of each workflow lies that its replay needs (design §7).

Sixteen bytes an event in memory, and none for what a loop has forgotten; cold histories are read through it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias

from gasoline_es.core import events as ev
from gasoline_es.core.ports import Located, Received
from projections.loops import LoopedEvents, Mark, Odd
from projections.packing import Parts, packed, unpacked

_LOOKED_AT: Final = frozenset({ev.SignalReceived, ev.SignalConsumed, ev.SignalDiscarded, ev.LoopCommitted})


@dataclass(slots=True)
class _Whole:
    """A workflow of which replay needs every event. There may be millions: they are looked for between two offsets."""

    count: int
    first: int
    last: int
    first_place: int
    last_place: int
    before: int


class _Marked:
    """Events by seq: of a workflow whose history is pruned, or goes on where another's was, or has gaps."""

    __slots__ = ("marks",)

    def __init__(self, marks: array[int]) -> None:
        self.marks = marks
        """Seq, offset and place of each."""

    def __iter__(self) -> Iterator[Mark]:
        marks = self.marks
        return zip(marks[0::3], marks[1::3], marks[2::3], strict=True)


@dataclass(slots=True)
class _Gone:
    """Nothing is left of a workflow but the event that says so."""

    offset: int


_Events: TypeAlias = "array[int] | LoopedEvents | _Whole | _Marked | _Gone"


@dataclass(frozen=True, slots=True)
class KeptEvents:
    """What the index knows of a workflow, as data. ``first``, ``last``: offsets of its first and of its newest event.

    ``positions``: offset and place of each event, 8 bytes each, unless ``more``, which JSON can hold, says what else it is.
    """

    first: int
    last: int
    positions: bytes
    more: Mapping[str, Any]


class HistoryIndex:
    """Offsets and places by workflow id: of every event, or, once a workflow has begun a loop, of those replay needs."""

    def __init__(self) -> None:
        self._events: dict[str, _Events] = {}
        self._queued: dict[str, dict[str, tuple[int, int]]] = {}
        """Of workflows without loops, the signals that are not taken yet: seq and time."""
        self._unforgetting: set[str] = set()
        """Of those, the ones that must not forget anything when they begin a loop."""

    def apply(self, workflow_id: str, seq: int, time_us: int, offset: int, place: int, data: ev.EventData) -> None:
        """Note the next event of a workflow. ``place``: where its record lies (``Record.place``)."""
        events = self._events.get(workflow_id)
        if type(data) is ev.WorkflowPruned:
            self._prune(workflow_id, data, (seq, offset, place))
        elif type(events) is array:
            if 2 * (seq - 1) != len(events):
                marks = zip(range(1, len(events) // 2 + 1), events[0::2], events[1::2], strict=True)
                self._events[workflow_id] = _Marked(array("q", chain(*marks, (seq, offset, place))))
                self.needs_all(workflow_id)
                return
            events.append(offset)
            events.append(place)
            if type(data) is not ev.ActivityCompleted and type(data) in _LOOKED_AT:
                self._look(workflow_id, events, seq, time_us, data)
        elif events is None or isinstance(events, _Gone):
            events = array("q", (offset, place)) if seq == 1 else _Marked(array("q", (seq, offset, place)))
            self._events[workflow_id] = events
            self._look(workflow_id, events, seq, time_us, data)
        elif isinstance(events, _Marked):
            events.marks.extend((seq, offset, place))
            self._look(workflow_id, events, seq, time_us, data)
        elif isinstance(events, LoopedEvents):
            try:
                events.apply((seq, offset, place), time_us, data)
            except Odd:
                self.needs_all(workflow_id)
        elif isinstance(events, _Whole):
            events.count += 1
            events.last, events.last_place = offset, place

    def _prune(self, workflow_id: str, data: ev.WorkflowPruned, mark: Mark) -> None:
        """Know only of what is left of a workflow."""
        events = self._events.get(workflow_id)
        self._unforgetting.discard(workflow_id)
        self._queued.pop(workflow_id, None)
        if data.remains is None:
            self._events[workflow_id] = _Gone(mark[1])
            return
        kept = [one for one in _marks(events, data.keeps) if one[0] in data.keeps] if events is not None else []
        self._events[workflow_id] = _Marked(array("q", chain(*sorted(kept), mark)))

    def _look(self, workflow_id: str, events: array[int] | _Marked, seq: int, time_us: int, data: ev.EventData) -> None:
        """Follow the signals of a workflow without loops; once it has one, what it forgets is looked after."""
        if workflow_id in self._unforgetting:
            return
        match data:
            case ev.SignalReceived():
                queued = self._queued.setdefault(workflow_id, {})
                if data.signal_id in queued:
                    self.needs_all(workflow_id)  # it was queued so long that its id was not remembered any more
                queued[data.signal_id] = (seq, time_us)
            case ev.SignalConsumed() | ev.SignalDiscarded():
                queued = self._queued.get(workflow_id, {})
                for signal_id in data.signal_ids:
                    if queued.pop(signal_id, None) is None:
                        self.needs_all(workflow_id)
                if not queued:
                    self._queued.pop(workflow_id, None)
            case ev.LoopCommitted():
                self._begin(workflow_id, events, seq, time_us, data)
            case _:
                pass

    def _begin(
        self, workflow_id: str, events: array[int] | _Marked, seq: int, time_us: int, first_loop: ev.LoopCommitted
    ) -> None:
        queued = self._queued.pop(workflow_id, {})
        if isinstance(events, _Marked):
            marks = list(events)
        else:
            marks = list(zip(range(1, len(events) // 2 + 1), events[0::2], events[1::2], strict=True))
        base = marks[0][0] - 1
        if first_loop.iteration or seq - base != len(marks) or len(marks) == 1:
            self.needs_all(workflow_id)
            return
        loop = marks.pop()
        looped = LoopedEvents(
            marks, {name: (marks[number - base - 1], at_us) for name, (number, at_us) in queued.items()}
        )
        looped.apply(loop, time_us, first_loop)
        self._events[workflow_id] = looped

    def needs_all(self, workflow_id: str) -> None:
        """Forget nothing more of a workflow: its replay needs the complete history from now on."""
        events = self._events.get(workflow_id)
        if isinstance(events, LoopedEvents):
            seq, _, place = min(events.marks())
            self._events[workflow_id] = _Whole(
                events.count, events.first, events.last, place, events.last_place, seq - 1
            )
        elif not isinstance(events, _Whole | _Gone):
            self._unforgetting.add(workflow_id)
            self._queued.pop(workflow_id, None)

    def last(self, workflow_id: str) -> int:
        """Return the offset of the newest event of a workflow that is known."""
        events = self._events[workflow_id]
        match events:
            case LoopedEvents() | _Whole():
                return events.last
            case _Gone():
                return events.offset
            case _Marked():
                return events.marks[-2]
            case _:
                return events[-2]

    # --- leaving memory, and coming back ------------------------------------------------------------------------------

    def kept(self, workflow_id: str) -> KeptEvents:
        """Return all that is known here of a workflow, as data that does not change."""
        events = self._events[workflow_id]
        if isinstance(events, LoopedEvents):
            parts = Parts()
            members = events.members(parts)
            return KeptEvents(events.first, events.last, packed(parts.numbers), {"looped": members})
        if isinstance(events, _Whole):
            places = [events.first_place, events.last_place]
            whole = {"whole": events.count, "places": places, "before": events.before}
            return KeptEvents(events.first, events.last, b"", whole)
        if isinstance(events, _Gone):
            return KeptEvents(events.offset, events.offset, b"", {"gone": True})
        more: dict[str, Any] = {"marked": True} if isinstance(events, _Marked) else {}
        if workflow_id in self._unforgetting:
            more["unforgetting"] = True
        if workflow_id in self._queued:
            more["queued"] = dict(self._queued[workflow_id])
        if isinstance(events, _Marked):
            return KeptEvents(events.marks[1], events.marks[-2], packed(events.marks), more)
        return KeptEvents(events[0], events[-2], packed(events), more)

    def restore(self, workflow_id: str, kept: KeptEvents) -> None:
        """Know of a workflow again what :meth:`kept` returned."""
        events = self._events[workflow_id] = _unpacked(kept)
        if isinstance(events, array | _Marked):
            if kept.more.get("unforgetting"):
                self._unforgetting.add(workflow_id)
            if queued := kept.more.get("queued"):
                self._queued[workflow_id] = {signal_id: (seq, at_us) for signal_id, (seq, at_us) in queued.items()}

    def drop(self, workflow_id: str) -> None:
        """Know nothing of a workflow any more."""
        del self._events[workflow_id]
        self._unforgetting.discard(workflow_id)
        self._queued.pop(workflow_id, None)

    # --- where events lie ---------------------------------------------------------------------------------------------

    def located(self, workflow_id: str) -> Located:
        """Return where those events of a workflow lie that its replay needs; none of one that is not known."""
        events = self._events.get(workflow_id)
        return Located((), (), ()) if events is None else _located(events)

    def received(self, workflow_id: str) -> Received:
        """Return where the signals lie whose ids a workflow remembers, among other events of it."""
        events = self._events.get(workflow_id)
        return Received((), (), None) if events is None else _received(events)


def located(kept: KeptEvents) -> Located:
    """Return the same of a workflow that is not in memory."""
    return _located(_unpacked(kept))


def received(kept: KeptEvents) -> Received:
    """Return the same of a workflow that is not in memory."""
    return _received(_unpacked(kept))


def without_places(kept: KeptEvents) -> KeptEvents:
    """Return the same without where the records lie in their files: what is alike of two logs with the same offsets."""
    events, more = _unpacked(kept), dict(kept.more)
    match events:
        case LoopedEvents():
            events.forget_places()
            parts = Parts()
            more["looped"] = events.members(parts)
            return KeptEvents(kept.first, kept.last, packed(parts.numbers), more)
        case _Whole():
            return KeptEvents(kept.first, kept.last, b"", {**more, "places": [0, 0]})
        case _Gone():
            return kept
        case _Marked():
            events.marks[2::3] = array("q", bytes(8 * len(events.marks[2::3])))
            return KeptEvents(kept.first, kept.last, packed(events.marks), more)
        case _:
            events[1::2] = array("q", bytes(8 * len(events[1::2])))
            return KeptEvents(kept.first, kept.last, packed(events), more)


def _located(events: _Events) -> Located:
    if isinstance(events, LoopedEvents):
        return events.located()
    if isinstance(events, _Whole):
        return Located((), (), (), events.count, events.first, events.last, whole=True, before=events.before)
    if isinstance(events, _Gone):
        return Located((), (), ())
    if isinstance(events, _Marked):
        marks = events.marks
        return Located(marks[0::3], marks[1::3], marks[2::3], 0, marks[1], marks[-2], before=marks[0] - 1)
    return Located(range(1, len(events) // 2 + 1), events[0::2], events[1::2], 0, events[0], events[-2])


def _marks(events: _Events, keeps: Sequence[int]) -> Iterable[Mark]:
    """Return the marks of a workflow, those of ``keeps`` at least if they are known: its first event and its last."""
    match events:
        case LoopedEvents():
            return events.marks()
        case _Marked():
            return events
        case _Whole():
            return [(keeps[0], events.first, events.first_place), (keeps[-1], events.last, events.last_place)]
        case _Gone():
            return []
        case _:
            return [(seq, events[2 * seq - 2], events[2 * seq - 1]) for seq in keeps if 2 * seq <= len(events)]


def _received(events: _Events) -> Received:
    if isinstance(events, LoopedEvents):
        return events.received()
    located = _located(events)
    assert not located.whole, "who folds all of a workflow knows its signals"
    return Received(located.offsets, located.places, None)


def _unpacked(kept: KeptEvents) -> _Events:
    if "looped" in kept.more:
        return LoopedEvents.of_members(kept.more["looped"], Parts(unpacked(kept.positions)))
    if "whole" in kept.more:
        first_place, last_place = kept.more["places"]
        return _Whole(kept.more["whole"], kept.first, kept.last, first_place, last_place, kept.more["before"])
    if "gone" in kept.more:
        return _Gone(kept.first)
    if "marked" in kept.more:
        return _Marked(unpacked(kept.positions))
    return unpacked(kept.positions)
