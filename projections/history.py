"""History index: where in its partition's events the history of each workflow lies that its replay needs (design §7).

Sixteen bytes an event in memory, and none for what a loop has forgotten; cold histories are read through it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gasoline_es.core import events as ev
from gasoline_es.core.ports import Located, Received
from projections.loops import LoopedEvents, Odd
from projections.packing import Parts, packed, unpacked

_LOOKED_AT: Final = frozenset({ev.SignalReceived, ev.SignalConsumed, ev.SignalDiscarded, ev.LoopCommitted})


@dataclass(slots=True)
class _Whole:
    """A workflow of which replay needs every event. There may be millions: they are looked for between two offsets."""

    count: int
    first: int
    last: int


_Events: TypeAlias = "array[int] | LoopedEvents | _Whole"


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
        if type(events) is array:
            events.append(offset)
            events.append(place)
            if type(data) is not ev.ActivityCompleted and type(data) in _LOOKED_AT:
                self._look(workflow_id, events, seq, time_us, data)
        elif events is None:
            self._events[workflow_id] = events = array("q", (offset, place))
            self._look(workflow_id, events, seq, time_us, data)
        elif isinstance(events, LoopedEvents):
            try:
                events.apply((seq, offset, place), time_us, data)
            except Odd:
                self.needs_all(workflow_id)
        elif isinstance(events, _Whole):
            events.count += 1
            events.last = offset

    def _look(self, workflow_id: str, events: array[int], seq: int, time_us: int, data: ev.EventData) -> None:
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
        self, workflow_id: str, events: array[int], seq: int, time_us: int, first_loop: ev.LoopCommitted
    ) -> None:
        queued = self._queued.pop(workflow_id, {})
        if first_loop.iteration or 2 * seq != len(events) or seq == 1:
            self.needs_all(workflow_id)
            return
        marks = list(zip(range(1, seq + 1), events[0::2], events[1::2], strict=True))
        loop = marks.pop()
        looped = LoopedEvents(marks, {name: (marks[number - 1], at_us) for name, (number, at_us) in queued.items()})
        looped.apply(loop, time_us, first_loop)
        self._events[workflow_id] = looped

    def needs_all(self, workflow_id: str) -> None:
        """Forget nothing more of a workflow: its replay needs the complete history from now on."""
        events = self._events.get(workflow_id)
        if isinstance(events, LoopedEvents):
            self._events[workflow_id] = _Whole(events.count, events.first, events.last)
        elif not isinstance(events, _Whole):
            self._unforgetting.add(workflow_id)
            self._queued.pop(workflow_id, None)

    def last(self, workflow_id: str) -> int:
        """Return the offset of the newest event of a workflow that is known."""
        events = self._events[workflow_id]
        return events.last if isinstance(events, LoopedEvents | _Whole) else events[-2]

    # --- leaving memory, and coming back ------------------------------------------------------------------------------

    def kept(self, workflow_id: str) -> KeptEvents:
        """Return all that is known here of a workflow, as data that does not change."""
        events = self._events[workflow_id]
        if isinstance(events, LoopedEvents):
            parts = Parts()
            members = events.members(parts)
            return KeptEvents(events.first, events.last, packed(parts.numbers), {"looped": members})
        if isinstance(events, _Whole):
            return KeptEvents(events.first, events.last, b"", {"whole": events.count})
        more: dict[str, Any] = {}
        if workflow_id in self._unforgetting:
            more["unforgetting"] = True
        if workflow_id in self._queued:
            more["queued"] = dict(self._queued[workflow_id])
        return KeptEvents(events[0], events[-2], packed(events), more)

    def restore(self, workflow_id: str, kept: KeptEvents) -> None:
        """Know of a workflow again what :meth:`kept` returned."""
        events = self._events[workflow_id] = _unpacked(kept)
        if type(events) is array:
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


def _located(events: _Events) -> Located:
    if isinstance(events, LoopedEvents):
        return events.located()
    if isinstance(events, _Whole):
        return Located((), (), (), events.count, events.first, events.last, whole=True)
    return Located(range(1, len(events) // 2 + 1), events[0::2], events[1::2], 0, events[0], events[-2])


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
        return _Whole(kept.more["whole"], kept.first, kept.last)
    return unpacked(kept.positions)
