"""What replay sees of a workflow's past: one entry per location, folded from the located events (semantics.md §2–§4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gasoline_es.core import events as ev
from gasoline_es.core.location import Coordinate, Location, format_location

TIMED_LISTEN: Final = "timed listen"
"""A listen with a timeout: a sleep at its location, and the signals it took, if any, at the next one."""

TAKEN_CHARACTERS_MAX: Final = 200_000
"""One event names no more signals when their ids grow beyond this, so that it stays within a record's limit."""


@dataclass(slots=True, eq=False)
class Entry:
    """What is recorded at one location. ``seq`` and ``time_us`` are those of its last event: when it was answered.

    Answers are given to a body in order of ``seq``, on a replay as on the first run; ``time_us`` is what ``ctx.now()``
    tells after it.
    """

    location: Location
    version: int
    seq: int
    time_us: int

    @property
    def coordinate(self) -> Coordinate:
        return self.location[-1]

    @property
    def kind(self) -> str:
        """What steps are compared by (semantics.md §3, rule 4)."""
        raise AssertionError(type(self))

    @property
    def removable(self) -> str:
        """The kind as ``ctx.removed`` names it."""
        return self.kind

    @property
    def name(self) -> str | None:
        return None

    @property
    def shown(self) -> str:
        """What is recorded, for people: ``activity 'charge'``."""
        named = f" {self.name!r}" if self.name is not None else ""
        return f"{self.kind}{named}"

    def describe(self) -> str:
        """Say what is recorded and where: ``activity 'charge' at {3}``."""
        return f"{self.shown} at {format_location(self.location)}"


@dataclass(slots=True, eq=False)
class ActivityEntry(Entry):
    """``output`` is None until it completed; ``failures`` are the attempts that did not, oldest first."""

    activity: str
    first_started_us: int
    output: bytes | None = None
    failures: tuple[ev.ActivityFailed, ...] = ()

    @property
    def kind(self) -> str:
        return "activity"

    @property
    def name(self) -> str | None:
        return self.activity


@dataclass(slots=True, eq=False)
class SleepEntry(Entry):
    """A sleep, or the timeout of a timed listen. ``outcome`` is None while it lasts."""

    deadline_us: int
    listen: bool
    outcome: ev.SleepOutcome | None = None

    @property
    def kind(self) -> str:
        return TIMED_LISTEN if self.listen else "sleep"

    @property
    def removable(self) -> str:
        return "listen" if self.listen else "sleep"


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal of this workflow's queue. ``body`` is JSON text."""

    id: str
    name: str
    body: bytes
    traceparent: str | None = None


@dataclass(slots=True, eq=False)
class SignalsEntry(Entry):
    """The signals a listen took, in order."""

    signals: tuple[Signal, ...]

    @property
    def kind(self) -> str:
        return "listen"

    @property
    def shown(self) -> str:
        names = ", ".join(sorted({signal.name for signal in self.signals}))
        return f"listen (took {names})"


@dataclass(slots=True, eq=False)
class RemovedEntry(Entry):
    """A step that the code no longer had when this place was first passed."""

    removed_kind: str
    removed_name: str | None

    @property
    def kind(self) -> str:
        return "removed"

    @property
    def name(self) -> str | None:
        return self.removed_name

    @property
    def shown(self) -> str:
        named = f" {self.removed_name!r}" if self.removed_name is not None else ""
        return f"removed {self.removed_kind}{named}"


@dataclass(slots=True, eq=False)
class PlacedEntry(Entry):
    """A step of a join that is not answered yet; what answers it takes its place."""

    placed: str
    placed_name: str | None

    @property
    def kind(self) -> str:
        return self.placed

    @property
    def name(self) -> str | None:
        return self.placed_name


@dataclass(slots=True, eq=False)
class InterruptedEntry(Entry):
    """A step at which a cancel was thrown in place of an answer. ``before``: what was recorded there until then."""

    interrupted: str
    interrupted_name: str | None
    before: Entry | None

    @property
    def kind(self) -> str:
        return self.interrupted

    @property
    def removable(self) -> str:
        return self.interrupted if self.before is None else self.before.removable

    @property
    def name(self) -> str | None:
        return self.interrupted_name


@dataclass(slots=True, eq=False)
class VersionEntry(Entry):
    """The absolute version that a version check answers here."""

    value: int

    @property
    def kind(self) -> str:
        return "check_version"


@dataclass(slots=True, eq=False)
class BranchEntry(Entry):
    """A closure, a workflow run inline, or a race, whose steps are on branches below. ``winner``: of a decided race."""

    opened: ev.BranchKind
    opened_name: str | None
    decided: bool = False
    winner: int | None = None

    @property
    def kind(self) -> str:
        return self.opened

    @property
    def removable(self) -> str:
        return "join" if self.opened == "closure" else self.opened

    @property
    def name(self) -> str | None:
        return self.opened_name


@dataclass(slots=True, eq=False)
class LoopEntry(Entry):
    """A loop as of its last commit: the iterations up to ``iteration`` are over, and their branches gone from here.

    ``handlers``: what they all gave to be rolled back since the last checkpoint; ``checkpoint``: one of them reached one.
    """

    iteration: int
    state: bytes
    output: bytes | None = None
    handlers: tuple[ev.RollbackHandler, ...] = ()
    checkpoint: bool = False

    @property
    def kind(self) -> str:
        return "loop"


@dataclass(slots=True, eq=False)
class CheckpointEntry(Entry):
    """What was given before is not to be rolled back any more."""

    @property
    def kind(self) -> str:
        return "checkpoint"


@dataclass(slots=True, eq=False)
class RollbackEntry(Entry):
    """The workflow was rolled back, on the branch below: its body goes no further."""

    error: ev.ErrorInfo

    @property
    def kind(self) -> str:
        return "rollback"


@dataclass(slots=True, eq=False)
class SentEntry(Entry):
    """A signal that was sent; ``target`` None: nobody was there to take it."""

    signal: str
    signal_id: str
    target: str | None

    @property
    def kind(self) -> str:
        return "signal"

    @property
    def name(self) -> str | None:
        return self.signal


@dataclass(slots=True, eq=False)
class MessageEntry(Entry):
    """A message that was sent."""

    message: str

    @property
    def kind(self) -> str:
        return "message"

    @property
    def name(self) -> str | None:
        return self.message


@dataclass(slots=True, eq=False)
class EmittedEntry(Entry):
    """A record that was written on a topic of others."""

    topic: str

    @property
    def kind(self) -> str:
        return "emit"

    @property
    def name(self) -> str | None:
        return self.topic


@dataclass(slots=True, eq=False)
class SpawnedEntry(Entry):
    """A workflow that was dispatched."""

    workflow: str
    workflow_id: str

    @property
    def kind(self) -> str:
        return "dispatch"

    @property
    def name(self) -> str | None:
        return self.workflow


@dataclass(slots=True, eq=False)
class OutputEntry(Entry):
    """What became of another workflow."""

    workflow: str
    workflow_id: str
    output: bytes | None
    error: ev.ErrorInfo | None

    @property
    def kind(self) -> str:
        return "output"

    @property
    def name(self) -> str | None:
        return self.workflow


class History:
    """Entries by branch, each branch in order of coordinates. A branch is named by its location; the root by ``()``."""

    __slots__ = ("_below", "_branches")

    def __init__(self) -> None:
        self._branches: dict[Location, list[Entry]] = {}
        self._below: dict[Location, dict[Coordinate, None]] = {}
        """By location, the coordinates under which there are entries: what a loop forgets is found by it."""

    def branch(self, prefix: Location) -> list[Entry]:
        """Return the branch's entries in order; the very list, which grows as events are applied."""
        entries = self._branches.get(prefix)
        if entries is None:
            entries = self._branches[prefix] = []
            for depth in range(len(prefix), 0, -1):
                below = self._below.setdefault(prefix[: depth - 1], {})
                if prefix[depth - 1] in below:
                    break
                below[prefix[depth - 1]] = None
        return entries

    def branches(self) -> Mapping[Location, Sequence[Entry]]:
        """Give every branch that has entries, or was asked for, by its location."""
        return self._branches

    def forget(self, loop: Location, iteration: int) -> None:
        """Drop what the iterations of a loop up to this one recorded."""
        for coordinate in list(self._below.get(loop, ())):
            if coordinate[0] <= iteration:
                del self._below[loop][coordinate]
                self._drop((*loop, coordinate))

    def _drop(self, branch: Location) -> None:
        self._branches.pop(branch, None)
        for coordinate in self._below.pop(branch, ()):
            self._drop((*branch, coordinate))

    def at(self, location: Location) -> Entry | None:
        """Return the entry recorded at the location, if any."""
        entries = self._branches.get(location[:-1])
        if not entries:
            return None
        last = entries[-1].location
        if last <= location:  # at or beyond the end, as every step of a live run is
            return entries[-1] if last == location else None
        index = bisect_left(entries, location, key=_location)
        return entries[index] if index < len(entries) and entries[index].location == location else None

    def goes_on(self, loop: Location, iteration: int) -> bool:
        """Whether something is recorded in an iteration of a loop behind this one."""
        if self._branches.get((*loop, (iteration + 1,))):
            return True  # as a rule; a search at each of many iterations would cost their square
        below = self._below.get(loop, ())
        return any(self._branches.get((*loop, at)) or self._below.get((*loop, at)) for at in below if at[0] > iteration)

    def forgets(self, location: Location) -> bool:
        """Whether the location stands in an iteration that a loop has forgotten."""
        for depth in range(1, len(location) - 1):
            entry = self.at(location[:depth])
            if isinstance(entry, LoopEntry) and location[depth][0] <= entry.iteration:
                return True
        return False

    def open_at(self, location: Location) -> bool:
        """Whether what is to be recorded at the location is not recorded yet."""
        entry = self.at(location)
        return entry is None or isinstance(entry, PlacedEntry)

    def add(self, entry: Entry) -> None:
        """Put a new entry into its branch, wherever its coordinate belongs; in the place of what is recorded there."""
        entries = self.branch(entry.location[:-1])
        if not entries or entries[-1].location < entry.location:
            entries.append(entry)
            return
        index = bisect_left(entries, entry.location, key=_location)
        if entries[index].location == entry.location:
            entries[index] = entry
        else:
            entries.insert(index, entry)


def sleep_of(entry: Entry | None) -> SleepEntry | None:
    """Return a recorded sleep, or the timeout of a timed listen, also of one that a cancel ended."""
    if isinstance(entry, InterruptedEntry):
        entry = entry.before
    return entry if isinstance(entry, SleepEntry) else None


def _location(entry: Entry) -> Location:
    return entry.location
