"""Which events of a workflow with loops its replay still needs: a commit forgets the iterations before it (semantics.md §4).

Forgotten with an iteration are the located events below it, the signals its listens took, and the commits of the loops in
it; of each loop the last commit is kept. What an iteration changed for good is not: the workflow's state document, its
tags, its waiters. Suspensions and failures concern only the summary, which is folded from every event anyway.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from gasoline_es.core import events as ev
from gasoline_es.core.location import Location, format_location, parse_location
from gasoline_es.core.ports import Located, Received
from gasoline_es.core.state import RETAGGED_MAX, SIGNALS_REMEMBERED, SIGNALS_REMEMBERED_US
from projections.packing import Parts

Mark = tuple[int, int, int]
"""One event: its seq, its offset, and where its record lies."""


class Odd(Exception):
    """The history is not one of those that can be forgotten in parts: replay needs all of it."""


class _Loop:
    """One loop: its last commit, and what its iterations recorded since, but for the loops among that."""

    __slots__ = ("carries", "carrying", "commit", "events", "highest", "inner")

    def __init__(self, commit: Mark, carries: bool) -> None:
        self.commit = commit
        self.carries = carries
        """Whether that commit carries something to be rolled back."""
        self.carrying: list[Mark] = []
        """Commits before it that do, since the last checkpoint."""
        self.events = array("q")
        """Iteration, seq, offset and place of each event."""
        self.highest = 0
        """No iteration in ``events`` is higher."""
        self.inner: dict[Location, None] = {}
        """The loops that stand in its iterations, but for those that stand in one another."""

    def add(self, iteration: int, mark: Mark) -> None:
        append = self.events.append  # extending an array by a tuple takes twice as long
        append(iteration)
        append(mark[0])
        append(mark[1])
        append(mark[2])
        if iteration > self.highest:
            self.highest = iteration

    def members(self, parts: Parts) -> list[Any]:
        """Return all of it as JSON can hold it, but for the many, which are put to ``parts``."""
        inner = [format_location(at) for at in self.inner]
        return [self.commit, self.carries, list(self.carrying), parts.put(self.events), self.highest, inner]

    @classmethod
    def of_members(cls, members: list[Any], parts: Parts) -> _Loop:
        """Make it again of what :meth:`members` returned."""
        commit, carries, carrying, events, highest, inner = members
        loop = cls(_mark(commit), carries)
        loop.carrying, loop.events, loop.highest = [_mark(mark) for mark in carrying], parts.take(events), highest
        loop.inner = dict.fromkeys(map(parse_location, inner))
        return loop

    def marks(self) -> Iterator[Mark]:
        yield from self.carrying
        yield self.commit
        events = self.events
        yield from zip(events[1::4], events[2::4], events[3::4], strict=True)


class RecentSignals:
    """Where the newest signals lie that were received: as many as the ids a workflow remembers, by the same rule."""

    __slots__ = ("_events", "_head", "forgotten_us")

    def __init__(self) -> None:
        self.forgotten_us: int | None = None
        self._events = array("q")
        """Offset, place and time of each; those before ``_head`` are dropped."""
        self._head = 0

    def add(self, offset: int, place: int, time_us: int) -> None:
        events = self._events
        events.extend((offset, place, time_us))
        while len(events) - self._head > 3 * SIGNALS_REMEMBERED:
            when = events[self._head + 2]
            if when > time_us - SIGNALS_REMEMBERED_US:
                break
            self.forgotten_us = when if self.forgotten_us is None else max(self.forgotten_us, when)
            self._head += 3
        if 2 * self._head > len(events):
            del events[: self._head]
            self._head = 0

    def forget_places(self) -> None:
        """Let every record lie nowhere."""
        _zero(self._events, self._head + 1, 3)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield offset and place of each."""
        return zip(self._events[self._head :: 3], self._events[self._head + 1 :: 3], strict=True)

    def members(self, parts: Parts) -> list[Any]:
        """Return all of it as JSON can hold it, but for the many, which are put to ``parts``."""
        return [self.forgotten_us, parts.put(self._events[self._head :])]

    @classmethod
    def of_members(cls, members: list[Any], parts: Parts) -> RecentSignals:
        """Make it again of what :meth:`members` returned."""
        signals = cls()
        signals.forgotten_us, signals._events = members[0], parts.take(members[1])
        return signals


class LoopedEvents:
    """The events of one workflow since its first loop began. Only what replay needs of them takes memory."""

    __slots__ = (
        "_carried",
        "_document",
        "_failed",
        "_forgotten",
        "_loops",
        "_queued",
        "_rest",
        "_signals",
        "_suspended",
        "_tags",
        "count",
        "first",
        "last",
        "last_place",
    )

    def __init__(self, marks: Sequence[Mark], queued: Mapping[str, tuple[Mark, int]]) -> None:
        """``marks``: its events so far, in order, one at least. ``queued``: its signals that are not taken yet, and when
        they came."""
        self._rest = array("q")
        """Seq, offset and place of each event that stands in no loop, nor in any other of these fields."""
        self._forgotten = 0
        self.count = len(marks)
        self.first, self.last = marks[0][1], marks[-1][1]
        """The offsets of its first event and of its last."""
        self.last_place = marks[-1][2]
        self._loops: dict[Location, _Loop] = {}
        self._queued: dict[str, Mark] = {}
        self._signals: RecentSignals | None = None
        self._tags: deque[Mark] | None = None
        self._document: tuple[Mark, _Loop] | None = None
        """The event that changed the state document last, if it stands in a loop."""
        self._carried: Mark | None = None
        """The same, if it was forgotten there."""
        self._failed: Mark | None = None
        self._suspended: Mark | None = None
        """Where it was last suspended: what its body did before, it did."""
        waiting = {mark for mark, _ in queued.values()}
        for mark in marks:
            if mark not in waiting:
                self._rest.extend(mark)
        for signal_id, (mark, time_us) in queued.items():
            self._receive(signal_id, mark, time_us)

    def apply(self, mark: Mark, time_us: int, data: ev.EventData) -> None:
        """Note the next event. Raises: Odd."""
        self.count += 1
        self.last, self.last_place = mark[1], mark[2]
        match data:
            case ev.ActivityCompleted():
                loop = self._put(data.location, mark)
                if data.state is not None:
                    self._change_document(mark, loop)
            case ev.LoopCommitted():
                self._commit(data, mark)
            case ev.SignalReceived():
                if data.signal_id in self._queued:
                    raise Odd
                self._receive(data.signal_id, mark, time_us)
            case ev.SignalConsumed():
                self._take(data, mark)
            case ev.SignalDiscarded():
                self._forgotten += 1 + sum(self._queued.pop(one, None) is not None for one in data.signal_ids)
            case ev.WorkflowTagsUpdated():
                if self._tags is None:
                    self._tags = deque(maxlen=RETAGGED_MAX + 1)
                self._forgotten += len(self._tags) == self._tags.maxlen
                self._tags.append(mark)
            case ev.WorkflowSuspended():
                self._forgotten += self._suspended is not None
                self._suspended = mark
            case ev.WorkflowWoken():
                self._forgotten += 1
                self._fail(None)
            case ev.WorkflowFailed():
                self._fail(mark)
            case ev.WorkflowRecovered():
                self._rest.extend(mark)
                self._fail(None)
            case ev.WorkflowCompleted() | ev.WorkflowCancelled() | ev.WorkflowSilenced():
                self._rest.extend(mark)
                self._close()
            case _:
                location: Location | None = getattr(data, "location", None)
                if location is None:
                    self._rest.extend(mark)
                else:
                    self._put(location, mark)

    def _fail(self, mark: Mark | None) -> None:
        """Keep the failure it is dead of, which tells what may be recovered."""
        self._forgotten += self._failed is not None
        self._failed = mark

    def _receive(self, signal_id: str, mark: Mark, time_us: int) -> None:
        self._queued[signal_id] = mark
        if self._signals is None:
            self._signals = RecentSignals()
        self._signals.add(mark[1], mark[2], time_us)

    def _take(self, data: ev.SignalConsumed, mark: Mark) -> None:
        for signal_id in data.signal_ids:
            received = self._queued.pop(signal_id, None)
            if received is None:
                raise Odd
            self._put(data.location, received)
        self._put(data.location, mark)

    def _put(self, location: Location, mark: Mark) -> _Loop | None:
        """Keep an event with the innermost loop in whose iterations it stands, and return that."""
        loops = self._loops
        for depth in range(len(location) - 2, 0, -1):
            loop = loops.get(location[:depth])
            if loop is not None:
                loop.add(location[depth][0], mark)
                return loop
        self._rest.extend(mark)
        return None

    def _change_document(self, mark: Mark, loop: _Loop | None) -> None:
        self._forgotten += self._carried is not None
        self._carried = None
        self._document = None if loop is None else (mark, loop)

    # --- forgetting ---------------------------------------------------------------------------------------------------

    def _commit(self, data: ev.LoopCommitted, mark: Mark) -> None:
        at = data.location
        loop = self._loops.get(at)
        if loop is not None:
            if data.checkpoint:
                self._forgotten += len(loop.carrying) + 1
                loop.carrying.clear()
            elif loop.carries:
                loop.carrying.append(loop.commit)
            else:
                self._forgotten += 1
            loop.commit, loop.carries = mark, data.checkpoint or bool(data.handlers)
            self._forget(at, loop, data.iteration)
            return
        if data.iteration:
            raise Odd
        self._loops[at] = _Loop(mark, data.checkpoint or bool(data.handlers))
        for depth in range(len(at) - 2, 0, -1):
            around = self._loops.get(at[:depth])
            if around is not None:
                around.inner[at] = None
                return

    def _forget(self, at: Location, loop: _Loop, iteration: int) -> None:
        """Drop what a loop's iterations recorded, up to this one."""
        for inner in [one for one in loop.inner if one[len(at)][0] <= iteration]:
            del loop.inner[inner]
            self._drop(inner)
        events = loop.events
        if loop.highest > iteration:
            later = array("q")
            for first in range(0, len(events), 4):
                if events[first] > iteration:
                    later.extend(events[first : first + 4])
            loop.events = later
        else:
            loop.events = array("q")
        self._forgotten += (len(events) - len(loop.events)) // 4
        if self._document is not None and self._document[1] is loop:
            self._carry_document(loop)

    def _drop(self, at: Location) -> None:
        loop = self._loops.pop(at)
        self._forgotten += 1 + len(loop.carrying) + len(loop.events) // 4
        loop.events = array("q")
        for inner in loop.inner:
            self._drop(inner)
        if self._document is not None and self._document[1] is loop:
            self._carry_document(loop)

    def _carry_document(self, loop: _Loop) -> None:
        """What the state document is, no commit forgets."""
        assert self._document is not None
        mark, _ = self._document
        if mark[0] not in loop.events[1::4]:
            self._forgotten -= 1
            self._carried, self._document = mark, None

    def _close(self) -> None:
        """It is complete: nothing will be forgotten any more, and what is kept takes less room in one piece."""
        marks = sorted(self.marks())
        self._rest = array("q", chain.from_iterable(marks))
        self._loops, self._queued, self._tags, self._document, self._carried = {}, {}, None, None, None
        self._failed = self._suspended = None

    def forget_places(self) -> None:
        """Let every record lie nowhere: for who compares two of these, and never asks for a record by them."""
        self.last_place = 0
        _zero(self._rest, 2, 3)
        for loop in self._loops.values():
            loop.commit, loop.carrying = _nowhere(loop.commit), [_nowhere(mark) for mark in loop.carrying]
            _zero(loop.events, 3, 4)
        self._queued = {signal_id: _nowhere(mark) for signal_id, mark in self._queued.items()}
        if self._signals is not None:
            self._signals.forget_places()
        if self._tags is not None:
            self._tags = deque(map(_nowhere, self._tags), maxlen=self._tags.maxlen)
        if self._document is not None:
            self._document = _nowhere(self._document[0]), self._document[1]
        self._carried, self._failed, self._suspended = (
            None if mark is None else _nowhere(mark) for mark in (self._carried, self._failed, self._suspended)
        )

    # --- as data ------------------------------------------------------------------------------------------------------

    def members(self, parts: Parts) -> dict[str, Any]:
        """Return all of it as JSON can hold it, but for the many, which are put to ``parts``: it may be a million signals."""
        document = None
        if self._document is not None:
            mark, around = self._document
            document = [mark, next(format_location(at) for at, loop in self._loops.items() if loop is around)]
        return {
            "rest": parts.put(self._rest),
            "forgotten": self._forgotten,
            "count": self.count,
            "first": self.first,
            "last": self.last,
            "last_place": self.last_place,
            "loops": [[format_location(at), *loop.members(parts)] for at, loop in self._loops.items()],
            "queued": dict(self._queued),
            "signals": None if self._signals is None else self._signals.members(parts),
            "tags": None if self._tags is None else list(self._tags),
            "document": document,
            "carried": self._carried,
            "failed": self._failed,
            "suspended": self._suspended,
        }

    @classmethod
    def of_members(cls, members: Mapping[str, Any], parts: Parts) -> LoopedEvents:
        """Make it again of what :meth:`members` returned, as JSON gives it back."""
        made = cls.__new__(cls)
        made._rest = parts.take(members["rest"])
        made._forgotten, made.count = members["forgotten"], members["count"]
        made.first, made.last, made.last_place = members["first"], members["last"], members["last_place"]
        made._loops = {parse_location(at): _Loop.of_members(loop, parts) for at, *loop in members["loops"]}
        made._queued = {signal_id: _mark(mark) for signal_id, mark in members["queued"].items()}
        signals, tags, document = members["signals"], members["tags"], members["document"]
        made._signals = None if signals is None else RecentSignals.of_members(signals, parts)
        made._tags = None if tags is None else deque(map(_mark, tags), maxlen=RETAGGED_MAX + 1)
        made._document = None if document is None else (_mark(document[0]), made._loops[parse_location(document[1])])
        made._carried, made._failed, made._suspended = (
            None if members[name] is None else _mark(members[name]) for name in ("carried", "failed", "suspended")
        )
        return made

    # --- what is kept -------------------------------------------------------------------------------------------------

    def marks(self) -> Iterator[Mark]:
        """Yield those that replay needs, in no order."""
        rest = self._rest
        yield from zip(rest[0::3], rest[1::3], rest[2::3], strict=True)
        for loop in self._loops.values():
            yield from loop.marks()
        yield from self._queued.values()
        yield from self._tags or ()
        if self._carried is not None:
            yield self._carried
        if self._failed is not None:
            yield self._failed
        if self._suspended is not None:
            yield self._suspended

    def located(self) -> Located:
        """Return where the events lie that replay needs."""
        marks = sorted(self.marks())
        seqs, offsets, places = (array("q", column) for column in zip(*marks, strict=True))
        return Located(seqs, offsets, places, self._forgotten, self.first, self.last, before=seqs[0] - 1)

    def received(self) -> Received:
        """Return where the signals lie whose ids are remembered, among other events."""
        marks = {offset: place for _, offset, place in self.marks()}
        if self._signals is None:
            return Received(*_columns(marks), None)
        marks.update(self._signals)
        return Received(*_columns(marks), self._signals.forgotten_us)


def _zero(numbers: array[int], first: int, step: int) -> None:
    numbers[first::step] = array("q", bytes(8 * len(numbers[first::step])))


def _nowhere(mark: Mark) -> Mark:
    return mark[0], mark[1], 0


def _mark(members: Sequence[int]) -> Mark:
    seq, offset, place = members
    return seq, offset, place


def _columns(marks: Mapping[int, int]) -> tuple[Sequence[int], Sequence[int]]:
    offsets = sorted(marks)
    return offsets, [marks[offset] for offset in offsets]
