"""A workflow's history as a tree: steps by location, and what happened to the whole workflow between them.

A step holds everything recorded at its location, what happened to the workflow while it was the last step and not ended
(suspended for a retry, woken), and the steps of its branches: a closure's, a race's competitors, a loop's iterations.
Steps stand in order of location, which is the order of history (semantics.md §2); the rest stands behind the last step
there was by then. What does not hold any more, since the workflow started over, stands behind all that does. Of a loop only
the last iterations are shown, the others in a line for all, unless everything is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from gasoline_es.cli.escape import escape
from gasoline_es.cli.lines import Line, competitor_lines, folded, iteration_lines, life, step_lines
from gasoline_es.cli.lines import superseded as superseded_line
from gasoline_es.cli.output import Output
from gasoline_es.cli.render import STYLES, count
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event
from gasoline_es.core.folding import superseded_in
from gasoline_es.core.generations import Superseded
from gasoline_es.core.location import ROOT, Location
from gasoline_es.core.state import Summary

if TYPE_CHECKING:
    from rich.tree import Tree

T = TypeVar("T")

ITERATIONS_SHOWN: Final = 3
"""So many iterations of a loop are shown, the last ones; the others are folded into a line, unless all were asked for."""


@dataclass(slots=True)
class Step:
    """What is recorded at one location and below it. A branch that has no event of its own holds steps only."""

    location: Location
    events: list[Event] = field(default_factory=list[Event])
    after: list[Event] = field(default_factory=list[Event])
    """What happened to the workflow behind this step and before the next one."""
    steps: dict[Location, Step] = field(default_factory=dict[Location, "Step"])
    last: Step | None = None
    """The last of ``steps``."""

    def recorded(self, kind: type[T]) -> T | None:
        """Return the newest fact of a kind at this very location."""
        for event in reversed(self.events):
            if isinstance(event.data, kind):
                return event.data
        return None

    @property
    def branches(self) -> bool:
        """Whether what goes on here goes on in the steps below."""
        return not self.events or isinstance(
            self.events[0].data, ev.BranchOpened | ev.LoopCommitted | ev.RollbackStarted
        )

    @property
    def open(self) -> bool:
        """Whether something is still to be recorded here. The end of a closure is not: it is open with its last step."""
        opened = self.recorded(ev.BranchOpened)
        if opened is not None and opened.kind == "race":
            return self.recorded(ev.RaceDecided) is None
        if self.branches and (committed := self.recorded(ev.LoopCommitted)) is not None:
            return committed.output is None
        if self.branches:
            return self.last is not None and self.last.open
        telling = [event.data for event in self.events if isinstance(event.data, ev.LocatedData | ev.WorkflowRecovered)]
        match telling[-1] if telling else None:
            case ev.ActivityFailed() as failed:
                return not failed.final
            case ev.SleepStarted() | ev.StepPlaced() | ev.ActivityStarted() | ev.WorkflowRecovered():
                return True
            case _:
                return False

    @property
    def cancelled(self) -> bool:
        """Whether a cancel came to a step of this branch, or of one below it."""
        return self.recorded(ev.StepInterrupted) is not None or any(step.cancelled for step in self.steps.values())

    def count(self) -> int:
        """Return how many events this step and those below it hold."""
        return len(self.events) + len(self.after) + sum(step.count() for step in self.steps.values())


@dataclass(slots=True)
class History:
    """A whole workflow: its root branch, and its signals by id as they were received."""

    root: Step = field(default_factory=lambda: Step(ROOT))
    signals: dict[str, Event] = field(default_factory=dict[str, Event])
    faint: bool = False
    """Whether it holds no more."""
    queued: dict[str, Event] = field(default_factory=dict[str, Event])

    def step(self, location: Location) -> Step:
        """Return the step at a location, made if need be, with the branches above it."""
        step = self.root
        for depth in range(1, len(location) + 1):
            prefix = location[:depth]
            if prefix not in step.steps:
                step.steps[prefix] = made = Step(prefix)
                if step.last is None or step.last.location < prefix:
                    step.last = made
            step = step.steps[prefix]
        return step

    def add(self, event: Event) -> None:
        """Put the next event where it belongs."""
        data = event.data
        match data:
            case ev.SignalReceived():
                self.signals[data.signal_id] = self.queued[data.signal_id] = event
                return
            case ev.SignalConsumed() | ev.SignalDiscarded():
                for signal_id in data.signal_ids:
                    self.queued.pop(signal_id, None)
            case _:
                pass
        if isinstance(data, ev.LocatedData):
            self.step(data.location).events.append(event)
            return
        if isinstance(data, ev.WorkflowRecovered):
            for location in data.locations:
                self.step(location).events.append(event)
            return
        ended = isinstance(
            data, ev.WorkflowCompleted | ev.WorkflowCancelled | ev.WorkflowSilenced | ev.WorkflowPruned
        ) or (isinstance(data, ev.SignalDiscarded) and data.by is None)
        step = self.root.last or self.root
        while not ended and step.branches and step.open and step.last is not None:
            step = step.last
        (step.events if step.open and not ended else step.after).append(event)


def fold(events: Iterable[Event]) -> History:
    """Arrange a workflow's events, given in order of ``seq``."""
    return _filled(History(), events)


def _filled(history: History, events: Iterable[Event]) -> History:
    for event in events:
        history.add(event)
    return history


def show(events: Sequence[Event], output: Output, *, full: bool) -> None:
    """Print a workflow's history as a tree."""
    from rich.tree import Tree

    superseded = superseded_in(event.fact for event in events)
    history = fold(event for event in events if event.seq not in superseded)
    tree = Tree(_headline(events).text(), guide_style="dim")
    _grow(tree, history.root, history, full)
    if superseded:
        _grow_superseded(tree, events, superseded, history, full)
    if history.queued:
        queued = tree.add(Line(f"{count(len(history.queued), 'signal')} not taken").text())
        for event in history.queued.values():
            for line in life(event, history.signals, full):
                _add(queued, line)
    output.console.print(tree)


def _grow_superseded(tree: Tree, events: Sequence[Event], superseded: Superseded, history: History, full: bool) -> None:
    """Add what holds no more, by the generation that superseded it."""
    gone: dict[int, list[Event]] = {}
    for event in events:
        generation = superseded.by(event.seq)
        if generation is not None:
            gone.setdefault(generation, []).append(event)
    for generation, its in sorted(gone.items()):
        past = _filled(History(signals=history.signals, faint=True), its)
        _grow(_add(tree, superseded_line(generation, len(its)), faint=True), past.root, past, full)


def _headline(events: Sequence[Event]) -> Line:
    """Name the workflow and say where it stands."""
    if not events:
        return Line("no event of this workflow could be read")
    summary = Summary(events[0].workflow_id)
    for event in events:
        if event.seq == summary.seq + 1:
            summary.apply(event.seq, event.time_us, event.data, event.ray_id, event.worker)
    name = escape(summary.name or events[0].workflow)
    return Line(f"{name} {escape(summary.id)}", summary.status, title_style="bold", rest_style=STYLES[summary.status])


def _grow(tree: Tree, step: Step, history: History, full: bool) -> None:
    """Add what happened behind the start of a branch, then its steps, each followed by what happened behind it."""
    for event in step.after if step.location == ROOT else ():
        for line in life(event, history.signals, full):
            _add(tree, line, faint=history.faint)
    children = [step.steps[location] for location in sorted(step.steps)]
    commit = step.recorded(ev.LoopCommitted)
    if commit is not None and not full:
        _fold(tree, children[:-ITERATIONS_SHOWN], commit.iteration, faint=history.faint)
        children = children[-ITERATIONS_SHOWN:]
    for child in children:
        branch = _add(tree, _line(child, step, history, full), faint=history.faint)
        _grow(branch, child, history, full)
        for event in child.after:
            for behind in life(event, history.signals, full):
                _add(tree, behind, faint=history.faint)


def _line(step: Step, above: Step, history: History, full: bool) -> Line:
    """Return the line of a step, which is a plain one, or an iteration or competitor of what stands above it."""
    commit = above.recorded(ev.LoopCommitted)
    if commit is not None:
        return iteration_lines(step.location, commit.iteration)
    opened = above.recorded(ev.BranchOpened)
    if opened is not None and opened.kind == "race":
        return competitor_lines(step.location, above.recorded(ev.RaceDecided))
    return step_lines(step.location, step.events, history.signals, full, cancelled=step.cancelled)


def _fold(tree: Tree, iterations: Sequence[Step], committed: int, *, faint: bool) -> None:
    """Add a line for iterations that replay has forgotten, and one for those that it has not."""
    for forgotten in (True, False):
        part = [step for step in iterations if (step.location[-1][0] <= committed) == forgotten]
        if part:
            events = sum(step.count() for step in part)
            _add(tree, folded(part[0].location, part[-1].location, len(part), events, forgotten), faint=faint)


def _add(tree: Tree, line: Line, *, faint: bool = False) -> Tree:
    text = line.text()
    if faint:
        text.stylize("dim")
    branch = tree.add(text)
    for below in line.below:
        _add(branch, below, faint=faint)
    return branch
