"""A suspect's starts in the tree of its history (docs/operations.md, "A worker that dies again and again")."""

from __future__ import annotations

import io

from rich.console import Console
from rich.tree import Tree

from gasoline_es.cli import lines
from gasoline_es.cli.lines import Line
from gasoline_es.cli.tree import fold
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event

AT = ((1,),)
STARTED = ev.ActivityStarted(AT, 1, "draw", 1)
DONE = ev.ActivityCompleted(AT, 1, "draw", 1, 0, b"13", b'"page"')
DIED = ev.ActivityFailed(AT, 1, "draw", 1, 0, b"13", ev.ErrorInfo("ProcessDied", "5 times"), final=True)


def shown(*facts: ev.EventData) -> str:
    """The step at {1}, as the tree shows it; times are left out."""
    events = [Event("w", seq, seq * 1_000, "render", "w", 0, 1, "me", data) for seq, data in enumerate(facts, start=1)]
    line = lines.step_lines(AT, fold(events).root.steps[AT].events, {}, full=False)
    text = io.StringIO()
    Console(file=text, width=200, color_system=None).print(_grown(line))
    return text.getvalue()


def _grown(line: Line) -> Tree:
    tree = Tree(line.text())
    for below in line.below:
        tree.add(_grown(below))
    return tree


def test_suspect_that_is_under_way_is_shown_as_an_activity_with_its_starts() -> None:
    text = shown(STARTED, STARTED)
    assert text.startswith("{1} activity draw  since ")
    assert text.count("attempt 1  started again ") == 2


def test_suspect_that_ended_is_shown_as_any_activity_with_its_starts_before() -> None:
    text = shown(STARTED, DONE)
    assert text.startswith("{1} activity draw  ")
    assert 'output:  "page"' in text
    assert text.count("started again") == 1


def test_verdict_stands_behind_the_starts() -> None:
    text = shown(STARTED, DIED)
    assert text.startswith("{1} activity draw  failed for good after 1 attempt")
    assert text.index("started again") < text.index("ProcessDied: 5 times")


def test_suspect_in_a_join_keeps_its_place() -> None:
    text = shown(ev.StepPlaced(AT, 1, "activity", "draw"), STARTED)
    assert text.startswith("{1} activity draw  since ")
    assert "started again" in text
