"""A run that can be asked, when it stands still, how much of the history it has passed, and which error ended it.

The checker's own kinds of run, branch and cursor: the engine's pay nothing for it.
"""

from __future__ import annotations

from gasoline_es.core.branch import Branch, Record
from gasoline_es.core.cursor import Cursor
from gasoline_es.core.history import sleep_of
from gasoline_es.core.location import Location
from gasoline_es.core.replay import Run, no_plan
from gasoline_es.core.rollback import PlanOf
from gasoline_es.core.state import WorkflowState


class WatchedCursor(Cursor):
    """A cursor that tells what it has not passed."""

    __slots__ = ()

    @property
    def left(self) -> int:
        """How many recorded entries of the branch were not passed."""
        return len(self._entries) - self._index


class WatchedBranch(Branch):
    """A branch that is known to its run, as all below it are."""

    __slots__ = ("run",)

    cursor: WatchedCursor

    def __init__(
        self,
        state: WorkflowState,
        record: Record,
        prefix: Location,
        version: int,
        clock_us: int,
        run: WatchedRun,
    ) -> None:
        super().__init__(state, record, prefix, version, clock_us)
        self.run = run
        self.cursor = self.watch(state, prefix, version)
        run.seen[prefix] = self

    def watch(self, state: WorkflowState, prefix: Location, version: int) -> WatchedCursor:
        """Make the branch's cursor."""
        return WatchedCursor(state.history, prefix, version)

    def below(self, prefix: Location, version: int) -> Branch:
        """Return a branch below this one, watched too."""
        branch = type(self)(self._state, self._record, prefix, version, self.clock_us, self.run)
        branch.seq = self.seq
        return branch


class WatchedRun(Run):
    """A run over a finished history, which nobody goes on recording."""

    __slots__ = ("_recorded_seq", "error", "seen")

    def __init__(
        self,
        state: WorkflowState,
        record: Record,
        branches: type[WatchedBranch] = WatchedBranch,
        *,
        plan_of: PlanOf = no_plan,
    ) -> None:
        super().__init__(state, record, plan_of)
        self.error: BaseException | None = None
        """What ended it, as it was raised."""
        self.seen: dict[Location, WatchedBranch] = {}
        """The branches it came to, by location."""
        self._recorded_seq = state.summary.seq
        self.branch = self._root.branch = branches(state, record, (), 1, state.summary.created_us, self)

    def die(self, error: BaseException, *, code_at_fault: bool = False) -> None:
        """End the run with this error, and keep it."""
        if self.end is None:
            self.error = error
        super().die(error, code_at_fault=code_at_fault)

    def left(self) -> int:
        """Count the recorded steps that the code has not come to."""
        left = sum(branch.cursor.left for branch in self.seen.values())
        history = self.state.history
        for prefix, entries in history.branches().items():
            # Below a sleep stands what a timed listen in a join took: no branch of its own.
            if prefix not in self.seen and sleep_of(history.at(prefix)) is None:
                left += sum(1 for entry in entries if entry.seq <= self._recorded_seq)
        return left
