"""Drives a workflow's bodies over what is recorded and on from there (design §3, semantics.md §3–§4).

A :class:`Run` is one life of a workflow in memory: the strands of its body and what they wait for. Answers are delivered
in the order in which they were recorded, on a replay as on the first run, so that strands side by side go on in the same
order each time, whatever they share.
"""

from __future__ import annotations

import contextvars
import heapq
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from gasoline_es.core import events as ev
from gasoline_es.core.branch import RECORDED, Branch, Record
from gasoline_es.core.ending import failures_in
from gasoline_es.core.error_info import error_info
from gasoline_es.core.guard import enter, leave
from gasoline_es.core.history import RollbackEntry
from gasoline_es.core.location import Location, parse_location
from gasoline_es.core.rollback import Handler, Handlers, PlanOf, error_of, steps_of, undo
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.steps import ActivityPlan, RollbackStep
from gasoline_es.core.strand import FATAL, Strand
from gasoline_es.core.waits import (
    Asker,
    Failure,
    Wait,
    WaitActivity,
    WaitCancel,
    WaitCommit,
    WaitListen,
    WaitOutput,
    WaitSend,
    WaitSleep,
)
from gasoline_es.errors import ActivityFailed, Cancelled, GasolineError


@dataclass(frozen=True, slots=True)
class Returned:
    """The body returned ``value``; whoever knows the definition encodes it."""

    value: Any


@dataclass(frozen=True, slots=True)
class Died:
    """The run cannot go on: an error left the body, or code and history do not fit together.

    ``code_at_fault``: the engine ended it over a mistake in the code, which will be mended; then nothing that this turn
    decided is to be recorded, or the mended code could not replay it. ``failures``: where the activities are whose final
    failures the error is.
    """

    error: ev.ErrorInfo
    code_at_fault: bool = False
    failures: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class Unwound:
    """The cancel that was thrown into the body left it."""


End = Returned | Died | Unwound


def no_plan(name: str) -> ActivityPlan | None:
    """Find no activity: the code has none."""
    return None


class Run:
    """From a body's first line to where it waits, ends, or is closed.

    After :meth:`start` and :meth:`advance`, either ``waits`` tells what it waits for or ``end`` how it ended. ``fresh``
    are those of the waits that are new, or changed, since it was last emptied; ``given_up`` the activities nobody waits
    for any more.
    """

    __slots__ = (
        "_answered",
        "_cancel",
        "_heap",
        "_loaded",
        "_passed",
        "_plan_of",
        "_root",
        "_undecided",
        "_undoing",
        "branch",
        "busy",
        "cancelled",
        "closed",
        "complaints",
        "end",
        "ephemeral",
        "fresh",
        "given_up",
        "handlers",
        "loading",
        "now_us",
        "rests_on",
        "retrying",
        "side_by_side",
        "state",
        "violation",
        "waits",
    )

    def __init__(self, state: WorkflowState, record: Record, plan_of: PlanOf = no_plan) -> None:
        """``plan_of``: finds the activities that forgotten iterations gave to be rolled back with."""
        self.state = state
        state.news = []
        self.end: End | None = None
        self.closed = False
        self.complaints: list[str] = []
        """What an operator should hear about how the body was closed; the core itself never logs."""
        self.violation: Exception | None = None
        self.now_us = 0
        self.rests_on = 0
        """The last event that the bodies know of, or decided, and which was not durable by then."""
        self.side_by_side = 0
        """How many joins, races and cancels are under way: while there are any, every answer waits for its turn."""
        self.waits: dict[Location, Wait] = {}
        self._undecided: dict[Location, WaitSleep | WaitListen] = {}
        """Those of them that a turn itself may answer: it must not go through every activity of a large join."""
        self.busy = 0
        """How many of the waits somebody works on: activities, sends, outputs that were not asked for yet."""
        self.ephemeral = 0
        """How many of the waits are for ephemeral activities."""
        self.retrying: dict[Location, WaitActivity] = {}
        """Those of them whose next attempt is not due yet: the runtime keeps them here."""
        self.fresh: list[Wait] = []
        self.given_up: list[WaitActivity] = []
        self._answered: list[tuple[int, int, Wait | WaitCommit | WaitCancel]] = []
        """A heap: the waits whose answers are recorded, by the ``seq`` of the answer."""
        self.handlers = Handlers()
        self._plan_of = plan_of
        self._undoing: Strand | None = None
        self._cancel: WaitCancel | None = None
        self.cancelled = False
        """Whether the cancel's turn has come: what is awaited then gives it."""
        self.loading = False
        """Whether the body is driven over what was recorded before this run began."""
        self._loaded = state.summary.seq
        self._passed: int | None = None
        self.branch = Branch(state, record, (), 1, state.summary.created_us)
        self._root = Strand(self, self, self.branch, contextvars.Context())

    # --- what the runtime asks of it ----------------------------------------------------------------------------------

    def start(
        self, body: Callable[[Strand], Coroutine[Any, Any, Any]], now_us: int, durable_seq: int | None = None
    ) -> None:
        """Make the coroutine and drive it over everything recorded, see :meth:`advance`.

        ``body`` calls the workflow's function with a context that stands on the strand it is given.
        """
        outside = enter()
        durable_seq = self.state.summary.seq if durable_seq is None else durable_seq  # the body records some more
        self.loading = True
        try:
            self.now_us = now_us
            self._expect_cancel()
            self._root.start(body)
            self._go(durable_seq)
        finally:
            self.loading = False
            leave(outside)

    def advance(self, now_us: int, durable_seq: int | None = None) -> None:
        """Go on with what is recorded by now up to the event ``durable_seq`` (None: all of it).

        The answer of an ephemeral activity is given before it is durable, but never before an older one (design §1.1).
        May record answers itself (a deadline that has passed, signals that are queued), for a later call to deliver.
        """
        if self.end is not None or self.closed:
            return
        outside = enter()
        try:
            self.now_us = now_us
            self._go(self.state.summary.seq if durable_seq is None else durable_seq)
        finally:
            leave(outside)

    def _go(self, durable_seq: int) -> None:
        try:
            self._read_news()
            self._expect_cancel()
            answered = self._answered
            while answered and (answered[0][0] <= durable_seq or _is_ephemeral(answered[0][2])) and self.end is None:
                seq, _, wait = heapq.heappop(answered)
                if wait.over or (self.cancelled and self._is_outdated(seq, wait)):
                    continue
                if seq > durable_seq:
                    self.rests_on = seq
                wait.over = True
                if isinstance(wait, WaitCancel):
                    self._throw()
                else:
                    self._deliver(wait)
            if self.end is None:
                self._decide()
        except GasolineError as error:
            self.die(error, code_at_fault=True)

    def _read_news(self) -> None:
        news = self.state.news
        if not news:
            return
        for location in news:
            wait = self.waits.get(location)
            if wait is not None:
                self._look(wait)
        news.clear()

    def _look(self, wait: Wait) -> None:
        """See whether the answer is recorded."""
        seq = wait.asker.branch.answered(wait)
        if seq is not None:
            self._forget(wait)
            self._queue(seq, wait)
        elif isinstance(wait, WaitActivity):
            self.fresh.append(wait)

    def _forget(self, wait: Wait) -> None:
        del self.waits[wait.location]
        if isinstance(wait, WaitSleep | WaitListen):
            del self._undecided[wait.location]
        elif not (isinstance(wait, WaitOutput) and wait.asked):
            self.busy -= 1
            self.retrying.pop(wait.location, None)
            if self.ephemeral and _is_ephemeral(wait):
                self.ephemeral -= 1

    def _queue(self, seq: int, wait: Wait | WaitCommit | WaitCancel) -> None:
        heapq.heappush(self._answered, (seq, id(wait), wait))

    def _deliver(self, wait: Wait | WaitCommit) -> None:
        value, error = None, None
        if not isinstance(wait, WaitCommit):
            try:
                value = wait.asker.branch.deliver(wait)
            except (*RECORDED, Cancelled) as failed:
                error = failed
        wait.asker.answered(value, error)

    def _expect_cancel(self) -> None:
        """Give a cancel its turn among the answers, on a replay as at first; until then every answer waits for its own."""
        seq = self.state.cancel_seq
        if seq is not None and self._cancel is None:
            self._cancel = WaitCancel()
            self._queue(seq, self._cancel)
            self.side_by_side += 1

    def _throw(self) -> None:
        self.cancelled = True
        self.side_by_side -= 1
        self._root.cancel()

    def interrupt(self, wait: Wait) -> None:
        """Let a cancel be the answer of a step. A send is let finish: it may have reached the other side."""
        if wait.over or isinstance(wait, WaitSend):
            return
        seq = wait.asker.branch.interrupt(wait)
        if wait.location in self.waits:
            self._forget(wait)
            if isinstance(wait, WaitActivity):
                self.given_up.append(wait)
        self._queue(seq, wait)

    def _is_outdated(self, seq: int, wait: Wait | WaitCommit | WaitCancel) -> bool:
        """Whether an answer was recorded behind the cancel, which then came first."""
        return not isinstance(wait, WaitCommit | WaitCancel) and wait.asker.branch.answered(wait) != seq

    def _decide(self) -> None:
        for wait in self._undecided.values():
            wait.asker.branch.decide(wait, self.now_us)

    def next_deadline_us(self) -> int | None:
        """Return the first time at which one of the waits is to be looked at, if none is answered before; None: at none."""
        if not self._undecided and not self.retrying:
            return None
        deadlines = [wait.deadline_us for wait in self._undecided.values()]
        deadlines += [wait.not_before_us for wait in self.retrying.values()]
        return min((deadline_us for deadline_us in deadlines if deadline_us is not None), default=None)

    def close(self) -> None:
        """Take the bodies out of memory. Steps in their ``finally`` blocks are refused; what they return is dropped."""
        if self.closed:
            return
        self.closed = True
        self.state.news = None
        self.given_up += [wait for wait in self.waits.values() if isinstance(wait, WaitActivity)]
        self.waits.clear()
        self._undecided.clear()
        self._root.drop()
        if self._undoing is not None:
            self._undoing.drop()

    # --- what strands and nodes ask of it -----------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """Whether nothing goes on beside what is asked for now."""
        expects_cancel = self._cancel is not None and not self.cancelled  # that takes turns, too
        return self.side_by_side == int(expects_cancel)

    def came_past(self, branch: Branch) -> bool:
        """Whether an earlier run of the body went on from where ``branch`` stands now, as far as the history proves it.

        A suspension proves it of all that was recorded before: everything had been driven as far as it went. So does a
        later step, on the branch itself where others go on beside it. Without proof the answer is no: after an unclean
        end the body may never have come so far.
        """
        if not self.loading or branch.seq >= self._loaded:
            return False
        state = self.state
        if branch.seq < state.suspended_seq:
            return True
        if not self.alone:
            return any(
                branch.seq < entry.seq <= self._loaded for entry in state.history.branch(branch.cursor.prefix)[-1:]
            )
        if self._passed is None:
            steps = (entry.seq for entries in state.history.branches().values() for entry in entries)
            self._passed = max((seq for seq in steps if seq <= self._loaded), default=0)
        return branch.seq < self._passed

    @property
    def ended(self) -> bool:
        return self.end is not None

    @property
    def unhurried(self) -> bool:
        """Whether what was decided may wait for an append that something else asks for.

        So it is while an ephemeral activity goes on, and nothing else is to start or to be answered once it is durable.
        """
        if not self.ephemeral or self.given_up or self._answered or self.state.news:
            return False
        if any(not runs_ahead(wait) for wait in self.fresh):
            return False
        return self.ephemeral > sum(wait.ephemeral for wait in self.retrying.values())

    def strand(self, asker: Asker, branch: Branch) -> Strand:
        """Return a strand for a body below this run's, in a copy of the context its workflow's body started with."""
        return Strand(self, asker, branch, self._root.context.copy())

    def wait_for(self, wait: Wait) -> None:
        """Wait for the answer of a step that was placed."""
        seq = wait.asker.branch.answered(wait)
        if seq is not None:
            self._queue(seq, wait)
            return
        if isinstance(wait, WaitActivity):
            wait.alone = self.alone
            if wait.ephemeral:
                self.ephemeral += 1
        if isinstance(wait, WaitSleep | WaitListen):
            self._undecided[wait.location] = wait
        else:
            self.busy += 1
        self.waits[wait.location] = wait
        self.fresh.append(wait)

    def wait_for_commit(self, wait: WaitCommit) -> None:
        """Wait until a commit is durable."""
        self._queue(wait.seq, wait)

    def asked(self, wait: WaitOutput) -> None:
        """Nothing more need be done for this wait: the other workflow knows of it."""
        # The answer may have come first, recorded and not delivered yet: then it is no wait any more.
        if not wait.asked and self.waits.get(wait.location) is wait:
            wait.asked = True
            self.busy -= 1

    def suspect(self, wait: WaitActivity) -> None:
        """Take no answer of this activity before it is durable, although it is ephemeral."""
        if wait.ephemeral:
            self.ephemeral -= 1
        wait.suspect = True

    def give_up(self, wait: Wait) -> None:
        """Nobody waits for this any more."""
        if wait.over:
            return
        wait.over = True
        if wait.location in self.waits:
            self._forget(wait)
            if isinstance(wait, WaitActivity):
                self.given_up.append(wait)

    def answered(self, value: Any, error: Failure | None) -> None:
        """Learn that the workflow's body ended."""
        if error is None:
            self.end = Returned(value)
            return
        if isinstance(error, Cancelled):  # thrown by this run: else it was a mistake
            self.end = Unwound()
            return
        handlers = self.handlers.newest_first()
        # A body that was thrown the cancel cleans up by itself. One that ended before its turn could not.
        if not handlers or self.cancelled:
            self.die(error)
            return
        try:
            self._roll_back(error, handlers)
        except GasolineError as refused:
            self.die(refused, code_at_fault=True)

    def _roll_back(self, error: BaseException, handlers: Sequence[Handler]) -> None:
        step = RollbackStep(self.branch.version, "on_rollback", None, 0)
        steps = steps_of(handlers, step.version, self._plan_of)
        entry = self.branch.open_rollback(step, error_info(error))
        self._undoing = strand = self.strand(_RolledBack(self, entry), self.branch.below(entry.location, entry.version))
        strand.start(lambda port: undo(port, steps))

    def rolled_back(self, entry: RollbackEntry, failed: Sequence[ActivityFailed]) -> None:
        """Learn that everything is undone, but for what failed."""
        failures = tuple(parse_location(one.location) for one in failed)
        self.end = Died(error_of(entry.error, failed), failures=failures)
        self.close()

    def refuse(self, error: Exception) -> None:
        """End the run with this error as soon as a body gives control back, whatever it catches."""
        if self.violation is None:
            self.violation = error

    def die(self, error: BaseException, *, code_at_fault: bool = False) -> None:
        """End the run with this error, and undo nothing.

        ``code_at_fault``: the engine refused something, rather than that the error left a body: a loop's state that cannot
        be kept, say. Nobody could catch that, so mended code need not do what this one did after it.
        """
        if self.end is None:
            failures = failures_in(error, self.state.history)
            self.end = Died(error_info(error), code_at_fault or isinstance(error, FATAL), failures)
            self.close()


class _RolledBack:
    """The asker of the branch on which a workflow is rolled back."""

    def __init__(self, run: Run, entry: RollbackEntry) -> None:
        self.branch = run.branch
        self._run = run
        self._entry = entry

    def answered(self, value: Any, error: Failure | None) -> None:
        if error is None:
            self._run.rolled_back(self._entry, value)
        else:
            self._run.die(error)


def runs_ahead(wait: Wait) -> bool:
    """Whether what a wait asks for may start before everything decided is durable, or needs no start any more."""
    return wait.over or (isinstance(wait, WaitActivity) and wait.ephemeral and wait.not_before_us is None)


def _is_ephemeral(wait: Wait | WaitCommit | WaitCancel) -> bool:
    return isinstance(wait, WaitActivity) and wait.ephemeral
