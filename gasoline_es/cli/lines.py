"""The lines of a history's tree: one for each step, with its attempts and payloads below it, and one for the rest.

Everything here is text that is safe to show; :class:`Line` turns into what rich prints only in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gasoline_es.cli import render
from gasoline_es.cli.escape import escape
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event
from gasoline_es.core.location import Location, format_location

if TYPE_CHECKING:
    from rich.text import Text

Signals = Mapping[str, Event]
"""A workflow's signals by id, as they were received."""

# What the tree is drawn with: after a line break it would look like a line of the tree's own.
_GUIDES = {ord(character): f"\\u{ord(character):04x}" for character in "│├└─"}

BAD = "red"
FAINT = "dim"


@dataclass(slots=True)
class Line:
    """A title, the rest of the line behind it, and the lines below."""

    title: str
    rest: str = ""
    below: list[Line] = field(default_factory=list["Line"])
    title_style: str = ""
    rest_style: str = ""

    def text(self) -> Text:
        """Return what rich prints: long words are folded, nothing is left out."""
        from rich.text import Text

        text = Text(overflow="fold").append(self.title.translate(_GUIDES), self.title_style)
        if self.rest:
            text.append("  ").append(self.rest.translate(_GUIDES), self.rest_style)
        return text


def step_lines(
    location: Location, events: Sequence[Event], signals: Signals, full: bool, *, cancelled: bool = False
) -> Line:
    """Return the line of a step from all that is recorded at its location, and of the workflow while it lasted.

    ``cancelled``: a cancel came to a step below it, so a race that nobody won gave the cancel.
    """
    line = _step(events, signals, full)
    for event in events:
        if cancelled and isinstance(event.data, ev.RaceDecided) and event.data.winner is None:
            line.rest, line.rest_style = f"cancelled {_at(event)}", "yellow"
    return _placed(location, line)


def _placed(location: Location, line: Line) -> Line:
    line.title = f"{format_location(location)} {line.title}"
    line.title_style = "bold"
    return line


def _step(events: Sequence[Event], signals: Signals, full: bool) -> Line:
    if not events:
        return Line("branch")
    located = [event for event in events if isinstance(event.data, ev.LocatedData)]
    line = _answered(located, events, signals, full)
    last = located[-1]
    if isinstance(last.data, ev.StepInterrupted):
        line.rest, line.rest_style = f"cancelled {_at(last)}", "yellow"
    return line


def _answered(located: Sequence[Event], events: Sequence[Event], signals: Signals, full: bool) -> Line:
    """Show a step by what is recorded of it, but for a cancel."""
    telling = [event for event in located if not isinstance(event.data, ev.StepPlaced | ev.ActivityStarted)]
    event = telling[0] if telling else located[0]
    first = event.data
    match first:
        case ev.ActivityCompleted() | ev.ActivityFailed():
            return _activity(first, events, signals, full)
        case ev.SignalConsumed():
            return _listen(first, events, signals, full)
        case ev.SleepStarted():
            return _sleep(first, events, signals, full)
        case ev.BranchOpened():
            return _race(first, events, signals, full) if first.kind == "race" else _branch(first, event)
        case ev.LoopCommitted():
            return _loop(first, events, signals, full)
        case ev.StepPlaced() | ev.ActivityStarted() | ev.StepInterrupted():
            return _placed_only(first, events, signals, full)
        case ev.SignalSent() | ev.WorkflowSpawned() | ev.OutputReceived():
            return _other(first, event, full)
        case ev.MessageSent():
            return _message(first, event, full)
        case ev.RecordEmitted():
            return _emitted(first, event, full)
        case ev.CheckpointReached():
            return Line(f"checkpoint{_version(first.version)}", _at(event), rest_style=FAINT)
        case ev.RollbackStarted():
            line = Line(f"rollback{_version(first.version)}", _at(event), title_style=BAD, rest_style=FAINT)
            line.below.append(Line("error:", render.error(first.error, full=full), title_style=BAD))
            return line
        case ev.StepRemoved():
            named = f" {escape(first.name)}" if first.name is not None else ""
            title = f"removed {escape(first.kind)}{named}{_version(first.version)}"
            return Line(title, _at(event), rest_style=FAINT)
        case ev.VersionChecked():
            title = f"check_version answers {first.value}{_version(first.version)}"
            return Line(title, _at(event), rest_style=FAINT)
        case _:
            return Line(escape(event.type), _at(event), rest_style=FAINT)


def _version(version: int) -> str:
    return "" if version == 1 else f" v{version}"


def _at(event: Event) -> str:
    return render.moment(event.time_us)


def _payload(label: str, raw: bytes, full: bool) -> Line:
    return Line(f"{label}:", render.payload(raw, full=full), title_style=FAINT)


# --- activities -------------------------------------------------------------------------------------------------------


def _activity(
    first: ev.ActivityCompleted | ev.ActivityFailed, events: Sequence[Event], signals: Signals, full: bool
) -> Line:
    line = Line(f"activity {escape(first.name)}{_version(first.version)}")
    line.below.extend(_attempts(events, signals, full))
    line.below.append(_payload("input", first.input, full))
    last = next(event for event in reversed(events) if isinstance(event.data, ev.LocatedData))
    match last.data:
        case ev.ActivityCompleted() as done:
            took = render.duration(last.time_us - first.started_us)
            line.rest, line.rest_style = f"{render.moment(first.started_us)}, took {took}", FAINT
            line.below.append(_payload("output", done.output, full))
            if done.state is not None:
                line.below.append(_payload("state", done.state, full))
        case ev.ActivityFailed() as failed:
            attempts = render.count(failed.attempt, "attempt")
            line.rest, line.rest_style = f"failed for good after {attempts}", BAD
            if not failed.final:
                line.rest, line.rest_style = f"{attempts} failed, another is to come", "yellow"
        case _:
            pass
    return line


def _attempts(events: Sequence[Event], signals: Signals, full: bool) -> Iterable[Line]:
    """Yield a line for each failed attempt, for the one that succeeded after them, and for what happened between."""
    for event in events:
        data = event.data
        match data:
            case ev.ActivityFailed():
                yield _failed_attempt(data, event, full)
            case ev.StepPlaced() | ev.StepInterrupted():
                pass
            case ev.ActivityStarted():
                yield _started(data, event)
            case ev.ActivityCompleted():
                if data.attempt > 1:
                    took = render.duration(event.time_us - data.started_us)
                    yield Line(f"attempt {data.attempt}", f"succeeded {_at(event)} after {took}", rest_style=FAINT)
            case _:
                yield from life(event, signals, full)


def _started(data: ev.ActivityStarted, event: Event) -> Line:
    what = f"started again {_at(event)}, with care: the process that ran it before had died"
    return Line(f"attempt {data.attempt}", what, rest_style="yellow")


def _failed_attempt(data: ev.ActivityFailed, event: Event, full: bool) -> Line:
    took = render.duration(event.time_us - data.started_us)
    line = Line(f"attempt {data.attempt} failed", render.error(data.error, full=full), title_style=BAD)
    again = "no more" if data.retry_us is None else f"next {render.duration(data.retry_us - event.time_us)} later"
    line.below.append(Line(f"{_at(event)}, after {took}; {again}", title_style=FAINT))
    if data.error.details is not None:
        line.below.append(_payload("details", data.error.details, full))
    if full:
        line.below.extend(traceback(data.error))
    return line


def traceback(error: ev.ErrorInfo) -> Iterable[Line]:
    """Yield the lines of a traceback."""
    for text in error.traceback.rstrip("\n").split("\n") if error.traceback else ():
        yield Line(escape(text), title_style=FAINT)


# --- listens and sleeps -----------------------------------------------------------------------------------------------


def _listen(data: ev.SignalConsumed, events: Sequence[Event], signals: Signals, full: bool) -> Line:
    taken = f"took {render.count(len(data.signal_ids), 'signal')} {_at(events[-1])}"
    line = Line(f"listen{_version(data.version)}", taken, rest_style=FAINT)
    line.below.extend(_between(events, signals, full))
    for signal_id in data.signal_ids:
        received = signals.get(signal_id)
        line.below.append(Line(escape(signal_id)) if received is None else _signal(received, full))
    return line


def _placed_only(
    data: ev.StepPlaced | ev.ActivityStarted | ev.StepInterrupted, events: Sequence[Event], signals: Signals, full: bool
) -> Line:
    """Show a step that is not answered: of a join, an activity under suspicion, or one at which a cancel came."""
    kind = "activity" if isinstance(data, ev.ActivityStarted) else escape(data.kind)
    named = f" {escape(data.name)}" if data.name is not None else ""
    line = Line(f"{kind}{named}{_version(data.version)}", f"since {_at(events[0])}", rest_style="yellow")
    line.below.extend(_between(events, signals, full))
    return line


def _between(events: Sequence[Event], signals: Signals, full: bool) -> Iterable[Line]:
    """Yield what happened to the workflow while a step was not answered."""
    for event in events:
        if isinstance(event.data, ev.ActivityStarted):
            yield _started(event.data, event)
        elif not isinstance(event.data, ev.LocatedData):
            yield from life(event, signals, full)


def _signal(event: Event, full: bool) -> Line:
    assert isinstance(event.data, ev.SignalReceived)
    sender = "" if event.data.sender is None else f", sent by {escape(event.data.sender)}"
    line = Line(f"signal {escape(event.data.name)}", f"received {_at(event)}{sender}", rest_style=FAINT)
    line.below.append(Line("id:", escape(event.data.signal_id), title_style=FAINT))
    line.below.append(_payload("body", event.data.body, full))
    return line


def _sleep(data: ev.SleepStarted, events: Sequence[Event], signals: Signals, full: bool) -> Line:
    title = f"{'listen with a timeout' if data.listen else 'sleep'}{_version(data.version)}"
    line = Line(title, f"until {render.moment(data.deadline_us)}", rest_style=FAINT)
    for event in events:
        match event.data:
            case ev.SleepStarted():
                line.below.append(Line("started", _at(event), rest_style=FAINT))
            case ev.SleepFinished() as finished:
                words = {"normal": "over", "uninterrupted": "ran out", "interrupted": "a signal came"}
                told = f"{finished.outcome}: {words[finished.outcome]}"
                line.below.append(Line(told, _at(event), rest_style=FAINT))
            case ev.StepInterrupted():
                pass
            case _:
                line.below.extend(life(event, signals, full))
    return line


# --- other workflows --------------------------------------------------------------------------------------------------


def _other(data: ev.SignalSent | ev.WorkflowSpawned | ev.OutputReceived, event: Event, full: bool) -> Line:
    """Show a step that has to do with another workflow: what it is called, and its id below."""
    version = _version(data.version)
    match data:
        case ev.SignalSent():
            target = "there was nobody to take it" if data.target is None else _at(event)
            line = Line(f"signal {escape(data.name)}{version}", target, rest_style=FAINT)
            if data.target is not None:
                line.below.append(Line("to:", escape(data.target), title_style=FAINT))
            line.below.append(Line("id:", escape(data.signal_id), title_style=FAINT))
            line.below.append(_payload("body", data.body, full))
        case ev.WorkflowSpawned():
            found = "" if data.created else ", which was there"
            line = Line(f"dispatch {escape(data.name)}{version}", f"{_at(event)}{found}", rest_style=FAINT)
            line.below.append(Line("id:", escape(data.workflow_id), title_style=FAINT))
            if data.tags:
                line.below.append(Line("tags:", render.tags(data.tags, full=full), title_style=FAINT))
        case ev.OutputReceived():
            line = Line(f"output {escape(data.name)}{version}", _at(event), rest_style=FAINT)
            line.below.append(Line("of:", escape(data.workflow_id), title_style=FAINT))
            if data.output is not None:
                line.below.append(_payload("output", data.output, full))
            if data.error is not None:
                line.below.append(Line("error:", render.error(data.error, full=full), title_style=BAD))
    return line


def _message(data: ev.MessageSent, event: Event, full: bool) -> Line:
    line = Line(f"message {escape(data.name)}{_version(data.version)}", _at(event), rest_style=FAINT)
    if data.topic:
        line.below.append(Line("topic:", render.tags(data.topic, full=full), title_style=FAINT))
    line.below.append(_payload("body", data.body, full))
    return line


def _emitted(data: ev.RecordEmitted, event: Event, full: bool) -> Line:
    line = Line(f"emit {escape(data.topic)}{_version(data.version)}", _at(event), rest_style=FAINT)
    line.below.append(Line("key:", escape(data.key), title_style=FAINT))
    if data.value is None:
        line.below.append(Line("tombstone", title_style=FAINT))
    else:
        line.below.append(_payload("value", data.value, full))
    return line


# --- branches, races, loops -------------------------------------------------------------------------------------------


def _branch(data: ev.BranchOpened, event: Event) -> Line:
    named = "" if data.name is None else f" {escape(data.name)}"
    return Line(f"{data.kind}{named}{_version(data.version)}", _at(event), rest_style=FAINT)


def _race(data: ev.BranchOpened, events: Sequence[Event], signals: Signals, full: bool) -> Line:
    line = Line(f"race{_version(data.version)}", "not decided yet", rest_style="yellow")
    for event in events:
        match event.data:
            case ev.BranchOpened():
                line.below.append(Line("started", _at(event), rest_style=FAINT))
            case ev.RaceDecided(winner=None):
                line.rest, line.rest_style = f"every competitor failed {_at(event)}", BAD
            case ev.RaceDecided() as decided:
                line.rest, line.rest_style = f"competitor {decided.winner} won {_at(event)}", FAINT
                line.below.append(_payload("value", decided.value, full))
            case _:
                line.below.extend(life(event, signals, full))
    return line


def competitor_lines(location: Location, decided: ev.RaceDecided | None) -> Line:
    """Return the line of a race's competitor, which has no event of its own: its index, and how it did."""
    index = location[-1][0] - 1
    line = Line(f"competitor {index}")
    if decided is not None and decided.winner is not None:
        line.rest, line.rest_style = ("won", "green") if decided.winner == index else ("lost", FAINT)
    return _placed(location, line)


def _loop(data: ev.LoopCommitted, events: Sequence[Event], signals: Signals, full: bool) -> Line:
    """Show where a loop stands; each of its commits only if ``full``, as a long loop has many."""
    line = Line(f"loop{_version(data.version)}", rest_style=FAINT)
    commits = [(event, event.data) for event in events if isinstance(event.data, ev.LoopCommitted)]
    event, last = commits[-1]
    iterations = render.count(last.iteration, "iteration")
    if last.output is not None:
        line.rest = f"over after {iterations} {_at(event)}"
    elif last.iteration:
        line.rest = f"{iterations} committed {_at(event)}"
    else:
        line.rest = "nothing committed yet"
    for event, commit in commits if full else commits[:1]:
        told = f"committed up to iteration {commit.iteration:,}" if commit.iteration else "started"
        line.below.append(Line(told, _at(event), rest_style=FAINT))
        if full and commit.state != b"null":
            line.below[-1].below.append(_payload("state", commit.state, full))
    if not full and last.state != b"null":
        line.below.append(_payload("state", last.state, full))
    if last.output is not None:
        line.below.append(_payload("output", last.output, full))
    line.below.extend(_between(events, signals, full))
    return line


def iteration_lines(location: Location, committed: int) -> Line:
    """Return the line of a loop's iteration; those up to the one ``committed`` are no more looked at by replay."""
    number = location[-1][0]
    return _placed(location, Line("iteration", "forgotten by replay" if number <= committed else "", rest_style=FAINT))


def folded(first: Location, last: Location, iterations: int, events: int, forgotten: bool) -> Line:
    """Return the one line that stands for iterations which are not shown."""
    what = f"{render.count(iterations, 'iteration')}, {render.count(events, 'event')}"
    known = ", forgotten by replay" if forgotten else ""
    title = f"{format_location(first)} … {format_location(last)}" if iterations > 1 else format_location(first)
    return Line(title, f"{what}{known}; --full shows them", title_style="bold", rest_style=FAINT)


# --- the life of the workflow -----------------------------------------------------------------------------------------


def life(event: Event, signals: Signals, full: bool) -> Iterable[Line]:
    """Yield the line of an event that is no step."""
    data = event.data
    match data:
        case ev.WorkflowDispatched():
            yield _dispatched(data, event, full)
        case ev.WorkflowSuspended():
            yield Line("suspended", f"{_at(event)}, {render.waiting(data)}", rest_style=FAINT)
        case ev.WorkflowWoken():
            yield Line("woken", f"{_at(event)} by {escape(data.by)}", rest_style=FAINT)
        case ev.WorkflowRecovered():
            yield Line("recovered", f"{_at(event)} by {escape(data.by)}", rest_style=FAINT)
        case ev.WorkflowCancelRequested():
            yield Line("cancel requested", f"{_at(event)} by {escape(data.by)}", title_style="yellow", rest_style=FAINT)
        case ev.WorkflowCancelled():
            yield from _cancelled(data, event, full)
        case ev.WorkflowSilenced():
            yield Line("silenced", f"{_at(event)} by {escape(data.by)}", title_style="bold", rest_style=FAINT)
        case ev.WorkflowPruned():
            why = "" if data.reason is None else f": {escape(data.reason)}"
            yield Line(
                "history pruned", f"{_at(event)} by {escape(data.by)}{why}", title_style="bold", rest_style=FAINT
            )
        case ev.WorkflowCompleted():
            line = Line("completed", _at(event), title_style="bold green", rest_style=FAINT)
            line.below.append(_payload("output", data.output, full))
            if data.state != b"null":
                line.below.append(_payload("state", data.state, full))
            yield line
        case ev.WorkflowFailed():
            line = Line("failed", render.error(data.error, full=full), title_style="bold red")
            line.below.append(Line(_at(event), title_style=FAINT))
            if full:
                line.below.extend(traceback(data.error))
            yield line
        case ev.WorkflowRerun():
            yield _rerun(data, event)
        case ev.WorkflowTagsUpdated():
            line = Line("tags", _at(event), rest_style=FAINT)
            line.below.append(Line("now:", render.tags(data.tags, full=full) or "none", title_style=FAINT))
            yield line
        case ev.SignalReceived():
            yield _signal(event, full)
        case ev.SignalDiscarded():
            by = "" if data.by is None else f" by {escape(data.by)}"
            line = Line(f"{render.count(len(data.signal_ids), 'signal')} discarded{by}", _at(event), rest_style=FAINT)
            received = [signals[signal_id] for signal_id in data.signal_ids if signal_id in signals]
            line.below.extend(_signal(one, full) for one in received)
            yield line
        case ev.Unreadable():
            yield Line(
                "unreadable",
                escape(f"event {event.seq} of type {data.type}: {data.reason}"),
                title_style="bold magenta",
            )
        case _:
            yield Line(escape(event.type), _at(event), rest_style=FAINT)


def _cancelled(data: ev.WorkflowCancelled, event: Event, full: bool) -> Iterable[Line]:
    line = Line("cancelled", _at(event), title_style="bold yellow", rest_style=FAINT)
    if data.error is not None:
        line.below.append(Line("clean-up failed", render.error(data.error, full=full), title_style=BAD))
        if full:
            line.below.extend(traceback(data.error))
    if data.state != b"null":
        line.below.append(_payload("state", data.state, full))
    yield line


def _rerun(data: ev.WorkflowRerun, event: Event) -> Line:
    line = Line(f"rerun {data.generation} from {format_location(data.start)}", title_style="bold")
    line.rest, line.rest_style = f"{_at(event)} by {escape(data.by)}", FAINT
    if data.returned:
        names = Counter(name for _, name in data.returned)
        told = ", ".join(f"{escape(name)} × {times}" if times > 1 else escape(name) for name, times in names.items())
        line.below.append(Line("queued again:", told, title_style=FAINT))
    if data.beside:
        line.below.append(Line("beside it stays:", " ".join(map(format_location, data.beside)), title_style=FAINT))
    return line


def superseded(generation: int, events: int) -> Line:
    """Return the line above what a workflow did before it started over, and which does not hold any more."""
    return Line(f"superseded by rerun {generation}", render.count(events, "event"))


def _dispatched(data: ev.WorkflowDispatched, event: Event, full: bool) -> Line:
    line = Line("dispatched", _at(event), title_style="bold", rest_style=FAINT)
    if data.tags:
        line.below.append(Line("tags:", render.tags(data.tags, full=full), title_style=FAINT))
    unique = "yes" if data.unique else None
    made_by = (("parent", data.parent), ("fork of", data.forked_from), ("schedule", data.schedule))
    told = (("key", data.key), ("unique", unique), *made_by)
    for label, value in told:
        if value is not None:
            line.below.append(Line(f"{label}:", escape(value), title_style=FAINT))
    line.below.append(_payload("input", data.input, full))
    return line
