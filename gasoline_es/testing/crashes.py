"""Runs a scenario again and again with a crash of the worker at each append: what comes of it must not change."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, Literal, TypeVar, Unpack

from gasoline_es.core import events as ev
from gasoline_es.core.location import Location, format_location
from gasoline_es.definitions import Workflow
from gasoline_es.testing.process import CrashPoint
from gasoline_es.testing.simulation import Settings, Simulation

T = TypeVar("T")

_INCIDENTAL: Final = (ev.WorkflowSuspended, ev.WorkflowWoken, ev.WaiterAdded, ev.ActivityStarted)
"""When somebody leaves memory, or asks before and not after the answer is there, makes no difference to the outcome; nor
does what a crash itself leaves in a history: that an activity was started again."""

_NOT_COMPARED: Final = frozenset(
    {
        "location",
        "signal_id",
        "sender",
        "request_id",
        "key",
        "parent",
        "target",
        "workflow_id",
        "traceback",
        "superseded",
        "returned",
        "by",
        "rerun_id",
        "forked_from",
        "seed",
    }
)
"""Ids and places, and who asked; times are those fields that end in ``_us``."""

_WHEN: Final[tuple[Literal["before"], Literal["after"]]] = ("before", "after")


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    value: T
    histories: Mapping[str, list[str]]
    """By workflow: its name and id."""
    crashed_at: str | None


def crash_everywhere(
    scenario: Callable[[Simulation], T],
    workflows: Iterable[Workflow[Any, Any]],
    *,
    every: int = 1,
    **settings: Unpack[Settings],
) -> T:
    """Run a scenario without a crash, then with one before and one after each append of the worker; return its value.

    A crash is a kill: what was not appended is lost, what was running runs again in the next worker. Each run gets a new
    :class:`Simulation`, so what the scenario shares between runs (a counter in a fake, say) has to be made in it.
    ``every``: crash at each so-manieth append only, where a scenario is long. ``settings``: of each :class:`Simulation`.

    Raises: AssertionError: with some crash, the value is another one, an error comes instead, or a history differs in its
        steps, where they stand or what they hold (times, ids, and when a workflow left memory, are not compared). It
        names the append and shows both histories. What the scenario raises without a crash is raised as it is.
    """
    given = tuple(workflows)
    if every < 1:
        raise ValueError(f"every={every}, where each append is 1")

    def run(crash: CrashPoint | None) -> _Outcome[T]:
        with Simulation(given, crash=crash, **settings) as sim:
            try:
                value = scenario(sim)
            except Exception as error:
                if crash is None or sim.crashed_at is None:
                    raise
                raise AssertionError(f"{_place(crash, sim.crashed_at)}: {type(error).__name__}: {error}") from error
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError("a scenario is a plain function; a coroutine goes in it: `return sim.run(main(sim))`")
            histories = {f"{info.name} {info.id}": comparable(sim, info.id) for info in sim.workflows()}
            return _Outcome(value, histories, sim.crashed_at)

    calm = run(None)
    for append in _counted(every):
        for when in _WHEN:
            crash = CrashPoint(append, when)
            crashed = run(crash)
            if crashed.crashed_at is None:
                return calm.value  # the worker made fewer appends than that
            _compare(calm, crashed, _place(crash, crashed.crashed_at))
    raise AssertionError("appends are endless")


def _counted(every: int) -> Iterator[int]:
    number = 1
    while True:
        yield number
        number += every


def _place(crash: CrashPoint, append: str) -> str:
    return f"with a crash {crash.when} append {crash.append} of the worker ({append})"


def _compare(calm: _Outcome[Any], crashed: _Outcome[Any], place: str) -> None:
    problems: list[str] = []
    if calm.value != crashed.value:
        problems.append(f"the scenario gave {crashed.value!r} instead of {calm.value!r}")
    for workflow in {**calm.histories, **crashed.histories}:
        before, after = calm.histories.get(workflow), crashed.histories.get(workflow)
        if before is None:
            problems.append(f"there is a workflow {workflow} that was not there without it")
        elif after is None:
            problems.append(f"workflow {workflow} is missing")
        elif before != after:
            told = difflib.ndiff(before, after)  # what only one of them has is marked, - without a crash, + with it
            shown = "\n".join(f"  {line}" for line in told if not line.startswith("?"))
            problems.append(f"the history of {workflow} is another one (- without a crash, + with it):\n{shown}")
    if problems:
        raise AssertionError(f"{place}:\n" + "\n".join(problems))


# --- what of a history does not depend on luck ------------------------------------------------------------------------


def comparable(sim: Simulation, workflow_id: str) -> list[str]:
    """Tell a history so that equal outcomes are equal: a line for each fact, in the order of the body's steps.

    That order, and not that of the events: which of two activities side by side ends first is a matter of luck.
    """
    history = [event.data for event in sim.run(sim.gasoline.history(workflow_id), verb="history")]
    signals = {
        data.signal_id: f"{data.name} {_text(data.body)}" for data in history if isinstance(data, ev.SignalReceived)
    }
    kept = [data for data in history if not isinstance(data, _INCIDENTAL)]
    return [_line(data, signals) for data in sorted(kept, key=_order)]


def _order(data: ev.EventData) -> tuple[int, Location]:
    location: Location | None = getattr(data, "location", None)
    if location is not None:
        return (1, location)
    return (0 if isinstance(data, ev.WorkflowDispatched) else 2, ())


def _line(data: ev.EventData, signals: Mapping[str, str]) -> str:
    location: Location | None = getattr(data, "location", None)
    place = "" if location is None else f"{format_location(location)} "
    told: list[str] = []
    for field in fields(data):
        value: Any = getattr(data, field.name)
        if field.name == "signal_ids":
            told.append(f"signals={[signals.get(one, '?') for one in value]}")
        elif isinstance(data, ev.LoopCommitted) and field.name == "handlers":
            # Not the events they were given after: numbers shift when something incidental is recorded.
            told += [f"undone by {handler.name} {_text(handler.input)}" for handler in data.handlers]
        elif field.name not in _NOT_COMPARED and not field.name.endswith("_us") and value not in (None, False):
            told.append(f"{field.name}={_text(value)}")
    return f"{place}{data.TYPE} {' '.join(told)}".rstrip()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
