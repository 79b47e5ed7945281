"""Where a branch's replay stands, and how the next step compares with what is recorded there (semantics.md §2, §3)."""

from __future__ import annotations

from gasoline_es.core.history import ActivityEntry, Entry, History, RemovedEntry, RollbackEntry, VersionEntry
from gasoline_es.core.location import Coordinate, Location, format_location, insert_between, next_location
from gasoline_es.core.steps import ActivityStep, Step
from gasoline_es.errors import HistoryDiverged, LatentHistoryFound

_ROLLED_BACK = (
    "The workflow was rolled back here, and what was undone cannot be gone on with: put the code back that failed, or start "
    "it over from its checkpoint, or a step before: `gasoline workflow rerun`"
)

_NAMED = {
    "activity": "@activity(name={0!r})",
    "signal": "class …(Signal, name={0!r})",
    "message": "class …(Message, name={0!r})",
    "emit": "ctx.emit({0!r}, …)",
}
"""How the name that the log has for what a step names is kept, by the step's kind; by default a workflow's."""

Placement = tuple[Location, Entry | None]
"""The answer to a comparison: the step's location, and the entry recorded there (None: it is new or an insertion)."""


class Cursor:
    """Walks one branch, over what was recorded on it when the walk began.

    Between two recorded entries sits the *previous* coordinate, after which an insertion goes. Placing a step passes it:
    the cursor moves on, whether the step is recorded by then or not, so that a join can place its steps one after the
    other before any of them is. After an insertion the entry that was current stays current, because the inserted one
    stands just before it.
    """

    __slots__ = ("_entries", "_index", "_previous", "_version", "prefix")

    def __init__(self, history: History, prefix: Location, version: int = 1) -> None:
        """``version``: that of the branch's context, to which ``ctx.v(n)`` in the hints is relative."""
        self.prefix = prefix
        self._version = version
        self._entries = list(history.branch(prefix))
        self._index = 0
        self._previous: Coordinate | None = None

    @property
    def current(self) -> Entry | None:
        return self._entries[self._index] if self._index < len(self._entries) else None

    @property
    def last_location(self) -> Location:
        """The location of the last step passed on this branch; the branch itself before the first."""
        return self.prefix if self._previous is None else (*self.prefix, self._previous)

    def place(self, step: Step, kind: str, name: str | None) -> Placement:
        """Compare a step with what is recorded here (the five rules of semantics.md §3), and pass it.

        Raises: HistoryDiverged: what is recorded here is newer than the step, or another step; nothing is passed.
        """
        entries = self._entries
        if self._index == len(entries):
            return self._new(), None
        entry = entries[self._index]
        if step.version > entry.version:
            return self._inserted(entry), None
        if step.version < entry.version:
            raise self._diverged(
                step, kind, name, entry, f"version {entry.version} is recorded, the code has {step.version}"
            )
        if entry.kind != kind or entry.name != name:
            raise self._diverged(step, kind, name, entry, "another step")
        return self._passed(entry), entry

    def recorded_activity(self, step: ActivityStep) -> ActivityEntry | None:
        """Pass a step that is recorded here as a completed activity: what nearly every step of a replay is.

        None: nothing is passed, and :meth:`place` says what the step is.
        """
        index = self._index
        if index == len(self._entries):
            return None
        entry = self._entries[index]
        if type(entry) is not ActivityEntry or entry.output is None:
            return None
        if entry.version != step.version or entry.activity != step.plan.name:
            return None
        self._index = index + 1
        self._previous = entry.location[-1]
        return entry

    def place_removed(self, kind: str, name: str | None) -> Placement | None:
        """Look whether a removed step's place is here: new (no entry), recorded (entry), or None: not here, stay."""
        entry = self.current
        if entry is None:
            return self._new(), None
        if isinstance(entry, RemovedEntry):
            matches = entry.removed_kind == kind and entry.removed_name == name
        else:
            matches = entry.removable == kind and entry.name == name
        return (self._passed(entry), entry) if matches else None

    def place_version_check(self) -> tuple[Placement, int | None]:
        """Return the place of a version check, and the version of the entry it is to be inserted before, if any."""
        entry = self.current
        if entry is None:
            return (self._new(), None), None
        if isinstance(entry, VersionEntry):
            return (self._passed(entry), entry), None
        return (self._inserted(entry), None), entry.version

    def finish(self) -> None:
        """Check that the branch may return here.

        Raises: LatentHistoryFound: recorded entries remain that the code never visited.
        """
        rest = self._entries[self._index :]
        if not rest:
            return
        rolled_back = next((entry for entry in rest if isinstance(entry, RollbackEntry)), None)
        fix = "Put the steps back, or write `await ctx.removed(kind, name)` where each was deleted, then wake the workflow"
        if rolled_back is not None:
            fix = _ROLLED_BACK
        shown = "; ".join(entry.describe() for entry in rest[:10]) + ("; …" if len(rest) > 10 else "")
        raise LatentHistoryFound(
            f"the body returned although {len(rest)} recorded step{'s remain' if len(rest) > 1 else ' remains'}: {shown}. "
            f"Nothing was changed in the history. {fix}",
            locations=[format_location(entry.location) for entry in rest],
            recorded=[entry.describe() for entry in rest],
            fix="ctx.removed" if rolled_back is None else "rerun",
        )

    def _new(self) -> Location:
        location = next_location(self.prefix, self._previous)
        self._previous = location[-1]
        return location

    def _inserted(self, current: Entry) -> Location:
        self._previous = insert_between(self._previous, current.coordinate)
        return (*self.prefix, self._previous)

    def _passed(self, entry: Entry) -> Location:
        self._index += 1
        location = entry.location
        self._previous = location[-1]
        return location

    def _diverged(self, step: Step, kind: str, name: str | None, entry: Entry, why: str) -> HistoryDiverged:
        found = f"{kind} {name!r}" if name is not None else kind
        fix = self._fix(step, kind, name, entry)
        return HistoryDiverged(
            f"history diverged at {format_location(entry.location)}: recorded is {entry.shown} (version "
            f"{entry.version}), the code has {found} (version {step.version}) in {step.file}:{step.line}: {why}. {fix} "
            f"Nothing was changed in the history: after the code is fixed, wake the workflow",
            location=format_location(entry.location),
            recorded=entry.describe(),
            attempted=found,
            file=step.file,
            line=step.line,
            fix=fix,
        )

    def _fix(self, step: Step, kind: str, name: str | None, entry: Entry) -> str:
        """Say what to write. Each hint works as it stands: tests/replay/scripts/hint_*.txt follow them."""
        n = entry.version - self._version + 2
        added = f"ctx.v({n}).{step.verb}(…)"
        if isinstance(entry, VersionEntry):
            return f"Put `await ctx.check_version(…)` back where it stood; a step added before it is `{added}`."
        # Once what is recorded here is passed over, a step stands before what comes next: it has to be above that too.
        following = self._entries[self._index : self._index + 3]
        instead = f"ctx.v({max(behind.version for behind in following) - self._version + 2}).{step.verb}(…)"
        if isinstance(entry, RollbackEntry):
            return f"{_ROLLED_BACK}."
        if isinstance(entry, RemovedEntry):
            removed = _removed(entry.removed_kind, entry.removed_name)
            return f"Put `{removed}` back where it stood; a step that was added, or put back after it, is `{instead}`."
        if step.version < entry.version and (entry.kind, entry.name) == (kind, name):
            return (
                f"The recorded step was written by newer code; if this code is right, mark the step "
                f"`ctx.v({n - 1}).{step.verb}(…)`, or run the newer code."
            )
        hints = [f"If the step was added, write `{added}`"]
        if step.version < entry.version:
            hints.insert(0, "The recorded step was written by newer code: run that")
        elif entry.kind == kind and entry.name is not None:
            kept = _NAMED.get(kind, "@workflow(name={0!r})").format(entry.name)
            hints.insert(0, f"If the {kind} was only renamed, keep its recorded name: `{kept}`")
        hints.append(
            f"if it replaces the recorded one, write two lines, `{_removed(entry.removable, entry.name)}` and then "
            f"`await {instead}`"
        )
        hints.append(f"to keep both ways, branch on `await ctx.check_version({n}) >= {n}`")
        return "; ".join([hints[0], *(hint[0].lower() + hint[1:] for hint in hints[1:])]) + "."


def _removed(kind: str, name: str | None) -> str:
    return f"await ctx.removed({kind!r}{f', {name!r}' if name is not None else ''})"
