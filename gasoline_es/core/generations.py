"""Generations: what starting over from a step does to what comes after it (semantics.md §4, "Starting over").

A generation is a number: 0 for what a workflow did at first, and one more each time it starts over. Every place of its
history belongs to one, so that what is derived from a place (ids, keys, draws) is another one when the place is used again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gasoline_es.core.location import Coordinate, Location

_BRANCH_START: Final = (0,)


@dataclass(frozen=True, slots=True)
class Generation:
    """The places that belong to a generation, unless to a later one: ``start``, and what comes after it.

    ``beside``: branches that stand behind ``start`` and stayed. ``before``: where on the branch of ``start`` its last step
    is that stayed, None if there is none. ``seed``: whose draws these are. ``rerun_id``: of the command.
    """

    number: int
    start: Location
    beside: tuple[Location, ...]
    before: Coordinate | None
    seed: str
    rerun_id: str

    def holds(self, location: Location) -> bool:
        """Whether a step at the location belongs to it."""
        for ours, its in zip(self.start, location, strict=False):
            if its != ours:
                return its > ours and not is_below(location, self.beside)
        return len(location) >= len(self.start)

    def holds_draw(self, here: Location) -> bool:
        """Whether a number that is drawn behind ``here`` belongs to it: what is drawn right before the step does, too."""
        start = self.start
        if here == ():
            here = (_BRANCH_START,)
        if here[:-1] == start[:-1] and here[-1] == (self.before or _BRANCH_START):
            return True
        # Behind a branch that holds the step stands what goes on after that branch.
        return start[: len(here)] == here or self.holds(here)


def is_below(location: Location, branches: Iterable[Location]) -> bool:
    """Whether a location is one of these or below one of them."""
    return any(location[: len(branch)] == branch for branch in branches)


class Superseded:
    """The numbers of the events that hold no more, and by which generation they were superseded."""

    __slots__ = ("_firsts", "_spans")

    def __init__(self, reruns: Iterable[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        """Take the number of each generation and the spans of events that it superseded."""
        self._spans = sorted((first, last, number) for number, spans in reruns for first, last in spans)
        self._firsts = [first for first, _, _ in self._spans]

    def __bool__(self) -> bool:
        return bool(self._spans)

    def __contains__(self, seq: int) -> bool:
        return self.by(seq) is not None

    def by(self, seq: int) -> int | None:
        """Return the generation that superseded an event; None: it holds."""
        index = bisect_right(self._firsts, seq) - 1
        if index < 0:
            return None
        _, last, number = self._spans[index]
        return number if seq <= last else None
