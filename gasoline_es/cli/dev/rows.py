"""The rows of the live tree: what is shown of a picture in so many rows. Pure, and never more work than rows.

Who has an activity under way is shown first, then who did something last; a sub-workflow below its parent. What does not
fit is counted. While many workflows live, their steps are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

from gasoline_es.cli import render
from gasoline_es.cli.dev.picture import STEPS_MAX, Life, Picture
from gasoline_es.cli.dev.reports import Running, UnderWay
from gasoline_es.cli.escape import escape
from gasoline_es.cli.lines import BAD, FAINT, Line, step_lines
from gasoline_es.core.location import format_location

DEAD_MAX: Final = 5
"""So many of the dead are shown, those that died last."""
_DEPTH_MAX: Final = 8
"""Below so many parents a sub-workflow is shown; one that is deeper stands at the top."""


@dataclass(frozen=True, slots=True)
class Scene:
    """All there is to show. ``registered``: the workflows the worker runs; None: no worker runs."""

    picture: Picture
    running: Running
    now_us: int
    registered: frozenset[str] | None = None


@dataclass(slots=True)
class _Node:
    life: Life
    under_way: list[UnderWay] = field(default_factory=list[UnderWay])
    below: list[_Node] = field(default_factory=list["_Node"])


def rows(scene: Scene, rows_max: int) -> list[Line]:
    """Return the rows, as lines with those below them: together at most ``rows_max``, each to be shown in one row."""
    shown = _dead(scene.picture, max(min(DEAD_MAX + 1, rows_max // 3), 2))
    left = rows_max - len(shown)
    lives = len(scene.picture.lives)
    if not lives:
        return shown
    detail = next((detail for detail in range(STEPS_MAX, 0, -1) if lives * (1 + detail) <= left), 0)
    nodes = _chosen(scene, left - (lives > left), detail)
    budget = _Budget(left - (lives > left))  # then the last is for how many more there are
    roots = [_grown(node, scene, detail, budget) for node in _trees(nodes)]
    more = lives - budget.workflows
    shown += [line for line in roots if line is not None]
    if more > 0:
        shown.append(Line(f"… and {render.count(more, 'more workflow')}", title_style=FAINT))
    return shown


def count(lines: Iterable[Line]) -> int:
    """Return how many rows these lines take."""
    return sum(1 + count(line.below) for line in lines)


def _dead(picture: Picture, rows_max: int) -> list[Line]:
    """Return the rows of the dead, the newest first."""
    if not picture.dead:
        return []
    room = rows_max if len(picture.dead) <= rows_max else rows_max - 1
    newest = list(islice(reversed(picture.dead.values()), room))
    lines = [_dead_line(life) for life in newest]
    if len(picture.dead) > len(newest):
        more = render.count(len(picture.dead) - len(newest), "more dead workflow")
        lines.append(Line(f"… and {more}: gasoline workflow list --status dead shows them", title_style=FAINT))
    return lines


def _dead_line(life: Life) -> Line:
    summary = life.summary
    title = f"{escape(summary.name)} {escape(summary.id)} {summary.status}"
    return Line(title, render.note(summary), title_style=render.STYLES[summary.status], rest_style=BAD)


def _chosen(scene: Scene, rows_max: int, detail: int) -> dict[str, _Node]:
    """Return those that are shown, by id, with the parents above them."""
    lives = scene.picture.lives
    nodes: dict[str, _Node] = {}
    busy = (one.workflow_id for one in scene.running.attempts)
    for workflow_id in chain(busy, reversed(lives)):
        if (len(nodes) + 1) * (1 + detail) > rows_max + detail:
            break
        for one in _upwards(workflow_id, lives):
            if one in nodes:
                break
            nodes[one] = _Node(lives[one])
    for attempt in scene.running.attempts:
        if attempt.workflow_id in nodes:
            nodes[attempt.workflow_id].under_way.append(attempt)
    return nodes


def _upwards(workflow_id: str, lives: Mapping[str, Life]) -> Iterator[str]:
    """Yield a workflow and the parents above it, as far as they live."""
    at: str | None = workflow_id
    for _ in range(_DEPTH_MAX):
        if at is None or at not in lives:
            return
        yield at
        at = lives[at].parent


def _trees(nodes: Mapping[str, _Node]) -> list[_Node]:
    """Put each below its parent; return those at the top. All in order of creation."""
    roots: list[_Node] = []
    depths: dict[str, int] = {}
    for node in sorted(nodes.values(), key=lambda node: (node.life.summary.created_us, node.life.summary.id)):
        parent = node.life.parent
        depth = depths.get(parent, 0) + 1 if parent is not None else 1
        if parent is None or parent not in depths or depth > _DEPTH_MAX:  # made before it, so it was placed before it
            roots.append(node)
            depth = 1
        else:
            nodes[parent].below.append(node)
        depths[node.life.summary.id] = depth
    return roots


class _Budget:
    """How many rows are left, and how many workflows were shown."""

    def __init__(self, rows_left: int) -> None:
        self.rows_left = rows_left
        self.workflows = 0

    def take(self) -> bool:
        """Take a row, if one is left."""
        self.rows_left -= 1
        return self.rows_left >= 0


def _grown(node: _Node, scene: Scene, detail: int, budget: _Budget) -> Line | None:
    """Return a workflow's row with those below it; None: there is no room for it."""
    if not budget.take():
        return None
    budget.workflows += 1
    line = _head(node, scene, steps=detail > 0)
    line.below += [one for one in _steps(node, scene, detail) if budget.take()]
    below = (_grown(child, scene, detail, budget) for child in node.below)
    line.below += [one for one in below if one is not None]
    return line


def _head(node: _Node, scene: Scene, *, steps: bool) -> Line:
    """Return a workflow's own row. Without ``steps`` below it, it tells what is under way, too."""
    summary = node.life.summary
    waits = "" if summary.waiting is None else f", {render.waiting(summary.waiting)}"
    rest, style = f"{summary.status}{waits}", render.STYLES[summary.status]
    if node.under_way and not steps:
        oldest = _attempt(node.under_way[0], scene)
        rest = f"{rest}, {oldest.title}  {oldest.rest}"
    if scene.registered is not None and summary.name not in scene.registered:
        rest, style = f"{rest}; the code has no workflow of this name", "yellow"
    return Line(f"{escape(summary.name)} {escape(summary.id)}", rest, title_style="bold", rest_style=style)


def _attempt(one: UnderWay, scene: Scene) -> Line:
    title = f"{escape(one.location)} activity {escape(one.name)}"
    rest = f"attempt {one.attempt} runs for {_seconds(scene.now_us - one.started_us)}"
    return Line(title, rest, title_style="bold", rest_style="blue")


def _steps(node: _Node, scene: Scene, detail: int) -> Sequence[Line]:
    """Return the rows of its last steps, then of what runs right now."""
    if not detail:
        return []
    busy = {one.location for one in node.under_way}
    lines: list[Line] = []
    for location, events in scene.picture.steps(node.life.summary.id):
        if format_location(location) not in busy:
            step = step_lines(location, events, {}, False)
            lines.append(Line(step.title, step.rest, title_style="", rest_style=step.rest_style))
    lines += [_attempt(one, scene) for one in node.under_way]
    return lines[-detail:]


def _seconds(us: int) -> str:
    """Write a duration that goes on: no finer than it is shown."""
    return f"{max(us, 0) // 1_000_000} s" if us < 60_000_000 else render.duration(us)
