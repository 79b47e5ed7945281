"""What a process counts of its own work, for whoever watches it: plain numbers, read and never pushed (design 0025).

Nothing here knows of metrics or of a library for them. Counting is on the path of every step, so it is a few operations on
dictionaries and lists for each append, none for each event but what C code does over all of them at once. Only the event
loop's thread counts, and reads.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, get_args

from gasoline_es.core import events as ev
from gasoline_es.log.port import Appended, Outcome, Section
from gasoline_es.runtime.batch import Batch

WORKFLOWS_MAX: Final = 100
ERRORS_MAX: Final = 30
ACTIVITIES_MAX: Final = 100
SIGNALS_MAX: Final = 100
"""So many different names are told apart; the others count together. What a worker registered is always told apart."""
OTHER: Final = "other"
NAME_CHARACTERS_MAX: Final = 100

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
APPEND_SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0)

STEPS: Final = frozenset(get_args(ev.LocatedData))
"""The events that stand at a place in a workflow's history."""

_TOLD_APART: Final = frozenset(
    {
        ev.WorkflowDispatched,
        ev.WorkflowCompleted,
        ev.WorkflowFailed,
        ev.WorkflowCancelled,
        ev.WorkflowSilenced,
        ev.WorkflowPruned,
        ev.SignalReceived,
    }
)
"""The events that are counted by a name, too."""


class Names:
    """Keeps the values of a label few: the first ``limit`` names that are seen, and those that are admitted."""

    __slots__ = ("_known", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._known: dict[str, str] = {}

    def admit(self, names: Iterable[str]) -> None:
        """Tell these apart, however many were seen before. For names that the code itself bounds."""
        for name in names:
            self._known[name] = name

    def bounded(self, name: str) -> str:
        """Return the name itself, or ``other`` where there are too many."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= self._limit:
                return OTHER
            # A lone surrogate, which JSON and Prometheus refuse, may come with the name of an error.
            known = self._known[name] = name[:NAME_CHARACTERS_MAX].encode("utf-8", "replace").decode()
        return known


class Histogram:
    """Counts of values by upper bound, ``bounds`` ascending; what exceeds them all is counted at the end."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Final = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        made = Histogram(self.bounds)
        made.counts, made.total = list(self.counts), self.total
        return made


class Recording:
    """The counts of one opened log since it was opened, in this process."""

    def __init__(self) -> None:
        self.workflows = Names(WORKFLOWS_MAX)
        self.errors = Names(ERRORS_MAX)
        self.activities = Names(ACTIVITIES_MAX)
        self.signals = Names(SIGNALS_MAX)
        self.events: Counter[type] = Counter()
        """Durable events by their kind."""
        self.dispatched: Counter[str] = Counter()
        self.completed: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.silenced: Counter[str] = Counter()
        self.pruned: Counter[str] = Counter()
        """By what was pruned: all, history."""
        self.died: Counter[tuple[str, str]] = Counter()
        """By workflow and type of error."""
        self.received: Counter[str] = Counter()
        """Signals by name."""
        self.attempts: dict[tuple[str, str], Histogram] = {}
        """Seconds that attempts took, by activity and outcome."""
        self.append_s = Histogram(APPEND_SECONDS)
        self.append_records = Histogram(SIZES)
        self.append_sections = Histogram(SIZES)
        self.append_bytes = 0
        self.sections_failed: Counter[str] = Counter()
        """Sections that were not recorded, by type of error."""
        self.taken: Counter[str] = Counter()
        """Partitions taken, by what their last owner had done: none, released, dead."""
        self.given_up: Counter[str] = Counter()
        """Partitions given up to other workers, by why: share, version, pressure."""
        self.ingested: Counter[str] = Counter()
        """Records of foreign topics that are durably dealt with here, by pipeline; dead letters are among them."""
        self.dead_letters: Counter[str] = Counter()
        """Dead letters that were decided here, by the pipeline that they come from."""
        self.ingest_lag: dict[tuple[str, int], int] = {}
        """How many records are yet to be read, by pipeline and partition of its topic, of those that are read here."""
        self.cleaned_bytes = 0
        """By how much the log got shorter when this process cleaned it."""
        self.cleaned_us: int | None = None
        """When it began to do so last, of those times that came to an end."""
        self.lost = 0
        """Partitions that were found to be somebody else's, or went with the log."""
        self.weight = 1.0
        """How much this worker counts in the sharing: below 1 it is under pressure."""
        self.waits_for = 0
        """How many partitions it is to drive that others still own."""
        self.late_s = 0.0
        """By how much the event loop came too late when it was last looked."""

    def durable(self, batch: Batch) -> None:
        """Count the events of a batch that is durable."""
        kinds = Counter(map(type, batch.facts))
        self.events.update(kinds)
        if kinds.keys() & _TOLD_APART:
            self._tell_apart(batch)

    def _tell_apart(self, batch: Batch) -> None:
        workflows = self.workflows.bounded
        for live, data in zip(batch.lives, batch.facts, strict=True):
            match data:
                case ev.WorkflowDispatched():
                    self.dispatched[workflows(data.name)] += 1
                case ev.WorkflowCompleted():
                    self.completed[workflows(live.state.summary.name)] += 1
                case ev.WorkflowFailed():
                    self.died[workflows(live.state.summary.name), self.errors.bounded(data.error.type)] += 1
                case ev.WorkflowCancelled():
                    self.cancelled[workflows(live.state.summary.name)] += 1
                case ev.WorkflowSilenced():
                    self.silenced[workflows(live.state.summary.name)] += 1
                case ev.WorkflowPruned():
                    self.pruned[data.variant] += 1
                case ev.SignalReceived():
                    self.received[self.signals.bounded(data.name)] += 1
                case _:
                    pass

    def attempt(self, activity: str, outcome: str, seconds: float) -> None:
        """Count an attempt that is over: ``completed``, ``failed``, ``timed_out`` or ``given_up``."""
        key = (self.activities.bounded(activity), outcome)
        took = self.attempts.get(key)
        if took is None:
            took = self.attempts[key] = Histogram(SECONDS)
        took.observe(seconds)

    def appended(self, sections: Sequence[Section], outcomes: Sequence[Outcome], began_s: float) -> None:
        """Count an append that began at ``began_s`` of :func:`now_s`."""
        self.append_s.observe(now_s() - began_s)
        self.append_sections.observe(len(sections))
        self.append_records.observe(sum([len(section.records) for section in sections]))
        for section, outcome in zip(sections, outcomes, strict=True):
            if isinstance(outcome, Appended):
                self.append_bytes += sum([len(record.value) for record in section.records if record.value is not None])
            else:
                self.sections_failed[type(outcome).__name__] += 1


now_s = time.perf_counter
"""The seconds of a clock that only measures: it is real, whatever time the engine is told."""
