"""Which calls of ``ctx.v``, ``ctx.removed`` and ``ctx.check_version`` the incomplete histories still need (semantics.md §3).

A replay tells: a call is needed by a history in which something is recorded at its place, or comes next there; it is not
needed by one that has nothing recorded from there on, since the history would then be written by the code without the
call. What cannot be told counts as needed.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from gasoline_es.checking.watch import WatchedBranch, WatchedCursor, WatchedRun
from gasoline_es.core.branch import Record
from gasoline_es.core.cursor import Placement
from gasoline_es.core.history import ActivityEntry, History
from gasoline_es.core.location import Location
from gasoline_es.core.replay import no_plan
from gasoline_es.core.rollback import PlanOf
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.steps import ActivityStep, CheckVersionStep, RemovedStep, Step

Verb = Literal["v", "removed", "check_version"]
Removable = Literal["call", "old_way"]
_KNOWN: Final[dict[str, Verb]] = {"removed": "removed", "check_version": "check_version"}
_PLACELESS: Final = frozenset({"join", "join_all", "catch", "maybe"})
"""Verbs that are recorded nowhere themselves: what ``ctx.v(n)`` is to them no replay can tell."""


Seen = tuple[Verb, str, int]
"""A call that was reached, with the file and the line it stands in."""


@dataclass(slots=True)
class Observed:
    """What the replays of the incomplete histories met: call → by how many histories."""

    needed: Counter[Seen] = field(default_factory=Counter[Seen])
    old_way: Counter[Seen] = field(default_factory=Counter[Seen])
    """Version checks that were answered with less than they ask for."""
    unsure: int = 0
    """How many histories could not be replayed to where they wait: they may need anything."""

    def add(self, other: Observed) -> None:
        """Take in what was seen in another part of the histories."""
        self.needed.update(other.needed)
        self.old_way.update(other.old_way)
        self.unsure += other.unsure


class ObservedRun(WatchedRun):
    """A run that takes note of the calls that stand for changes of the code, where they meet something recorded."""

    __slots__ = ("needed", "old_way")

    def __init__(self, state: WorkflowState, record: Record, *, plan_of: PlanOf = no_plan) -> None:
        self.needed: set[Seen] = set()
        self.old_way: set[Seen] = set()
        super().__init__(state, record, ObservedBranch, plan_of=plan_of)

    def tell(self, observed: Observed, *, sure: bool) -> None:
        """Add up what this history needs. ``sure``: it was replayed to where it waits."""
        observed.needed.update(self.needed)
        observed.old_way.update(self.old_way)
        if not sure:
            observed.unsure += 1


class ObservedCursor(WatchedCursor):
    """Takes note of steps of a raised version that meet something recorded."""

    __slots__ = ("_needed",)

    def __init__(self, history: History, prefix: Location, version: int, needed: set[Seen]) -> None:
        super().__init__(history, prefix, version)
        self._needed = needed

    def place(self, step: Step, kind: str, name: str | None) -> Placement:
        """Compare a step with what is recorded here; note it if it is marked with ``ctx.v``."""
        meets = self.current is not None
        placement = super().place(step, kind, name)
        if meets and step.version > self._version:
            self._needed.add(("v", *_place(step)))
        return placement

    def recorded_activity(self, step: ActivityStep) -> ActivityEntry | None:
        """Pass a step that is recorded as a completed activity; note it as above."""
        entry = super().recorded_activity(step)
        if entry is not None and step.version > self._version:
            self._needed.add(("v", *_place(step)))
        return entry


class ObservedBranch(WatchedBranch):
    """A branch of an observed run."""

    __slots__ = ()

    run: ObservedRun

    def watch(self, state: WorkflowState, prefix: Location, version: int) -> WatchedCursor:
        """Make the branch's cursor."""
        return ObservedCursor(state.history, prefix, version, self.run.needed)

    def removed(self, step: RemovedStep) -> None:
        """Pass the place of a removed step; note whether something is recorded there."""
        before = self.cursor.left
        super().removed(step)
        if self.cursor.left < before:
            self.run.needed.add(("removed", *_place(step)))

    def check_version(self, step: CheckVersionStep) -> int:
        """Answer a version check; note whether something is recorded there, or comes next."""
        meets = self.cursor.current is not None
        answer = super().check_version(step)
        if meets:
            self.run.needed.add(("check_version", *_place(step)))
            if answer < step.latest - step.context_version + 1:
                self.run.old_way.add(("check_version", *_place(step)))
        return answer


def _place(step: Step) -> tuple[str, int]:
    # Not remembered by the code object: two that differ in nothing but their files are equal.
    return step.file, step.line


# --- the calls in the source ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call in the source, and what the histories say of it.

    ``removable``: ``call``: no incomplete history needs it. ``old_way``, of a version check: none takes the way below its
    version any more, but the call has to stay while its answers are recorded. None: it is needed.
    """

    verb: Verb
    call: str
    file: str
    line: int
    line_end: int
    needed_by: int = 0
    removable: Removable | None = None


def judge_sites(sites: Iterable[CallSite], observed: Observed) -> list[CallSite]:
    """Say of each call site whether it is needed. What was observed at no known site is held against all of its file."""
    sites = list(sites)
    judged: list[CallSite] = []
    unplaced = {place for place in observed.needed if not any(_covers(site, place) for site in sites)}
    for site in sites:
        needed = sum(count for place, count in observed.needed.items() if _covers(site, place))
        old_way = sum(count for place, count in observed.old_way.items() if _covers(site, place))
        removable: Removable | None = None
        if not observed.unsure and not any(verb == site.verb and file == site.file for verb, file, _ in unplaced):
            if not needed:
                removable = "call"
            elif site.verb == "check_version" and not old_way:
                removable = "old_way"
        judged.append(CallSite(site.verb, site.call, site.file, site.line, site.line_end, needed, removable))
    return judged


def _covers(site: CallSite, place: Seen) -> bool:
    verb, file, line = place
    return site.verb == verb and site.file == file and site.line <= line <= site.line_end


def call_sites(source: str, file: str) -> list[CallSite]:
    """Find the calls of ``ctx.v``, ``ctx.removed`` and ``ctx.check_version`` in a source, in order of their lines.

    ``ctx`` is any parameter of a function around the call. Left out is what a replay cannot judge: a ``ctx.v(n)`` that is
    not called upon at once, as in ``new = ctx.v(2)``, and one that makes a join.
    """
    tree = ast.parse(source)
    return sorted(_sites(tree, frozenset(), file, source), key=lambda site: (site.line, site.line_end, site.call))


def _sites(node: ast.AST, contexts: frozenset[str], file: str, source: str) -> Iterator[CallSite]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        given = node.args
        contexts |= {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    elif isinstance(node, ast.Call):
        site = _site(node, contexts, file, source)
        if site is not None:
            yield site
    for child in ast.iter_child_nodes(node):
        yield from _sites(child, contexts, file, source)


def _site(call: ast.Call, contexts: frozenset[str], file: str, source: str) -> CallSite | None:
    """Return the site of ``ctx.removed(…)``, ``ctx.check_version(…)``, or ``ctx.v(n).verb(…)``, the whole of it."""
    if not isinstance(call.func, ast.Attribute):
        return None
    on, verb = call.func.value, call.func.attr
    known = _KNOWN.get(verb)
    shown = call
    if known is None:
        if not isinstance(on, ast.Call) or _raised(on) is None or verb in _PLACELESS or verb == "v":
            return None
        known, shown = "v", on
    # A context may be raised before it is asked: ctx.v(2).check_version(3).
    while (raised := _raised(on)) is not None:
        on = raised
    if not isinstance(on, ast.Name) or on.id not in contexts or not shown.args:
        return None
    text = ast.get_source_segment(source, shown) or f"{on.id}.{known}(…)"
    return CallSite(known, " ".join(text.split()), file, call.lineno, call.end_lineno or call.lineno)


def _raised(node: ast.expr) -> ast.expr | None:
    """Return what ``.v(n)`` is called on, if this is such a call."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "v":
        return node.func.value
    return None
