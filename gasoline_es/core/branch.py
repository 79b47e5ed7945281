"""One branch of a run: places each step in the branch's history and answers it once its answer is recorded.

Nothing here resumes a body (that is ``core.strand``). A step that is answered from outside is placed, which may record what
it decides by itself (a sleep's start); its answer is recorded by :meth:`Branch.decide` or by the runtime, and delivered
when it is durable: the run sees to that (design §1.1, §1.5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from gasoline_es.core import events as ev
from gasoline_es.core.cursor import Cursor
from gasoline_es.core.decide import not_found
from gasoline_es.core.durations import add_us
from gasoline_es.core.history import (
    TAKEN_CHARACTERS_MAX,
    TIMED_LISTEN,
    ActivityEntry,
    BranchEntry,
    CheckpointEntry,
    EmittedEntry,
    Entry,
    InterruptedEntry,
    LoopEntry,
    MessageEntry,
    OutputEntry,
    PlacedEntry,
    RollbackEntry,
    SentEntry,
    Signal,
    SignalsEntry,
    SleepEntry,
    SpawnedEntry,
    VersionEntry,
    sleep_of,
)
from gasoline_es.core.location import Location, format_location
from gasoline_es.core.rollback import Carried
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.steps import (
    ActivityStep,
    CheckpointStep,
    CheckVersionStep,
    DispatchStep,
    EmitStep,
    ListenStep,
    LoopStep,
    MessageStep,
    OutputStep,
    RemovedStep,
    RollbackStep,
    SignalStep,
    SleepStep,
    Step,
)
from gasoline_es.core.waits import (
    Asker,
    Wait,
    WaitActivity,
    WaitListen,
    WaitOutput,
    WaitSend,
    WaitSleep,
    made_cancel,
)
from gasoline_es.errors import (
    ActivityFailed,
    ActivityMaxFailuresReached,
    HistoryDiverged,
    WorkflowCancelled,
    WorkflowNotFound,
    WorkflowSilenced,
)

RECORDED: Final = (ActivityFailed, WorkflowNotFound, WorkflowCancelled, WorkflowSilenced)
"""The errors that are recorded as the answers of steps: a body may catch them, as it will again on every replay."""

Record = Callable[[ev.EventData], None]
"""Applies a fact to the workflow's state at once, and queues it for the next append."""


_FIRST: Final = (1,)

_ANSWERS: Final[dict[type, tuple[type[Entry], ...]]] = {
    WaitActivity: (ActivityEntry,),
    WaitSleep: (SleepEntry,),
    WaitListen: (SignalsEntry, SleepEntry),
    WaitSend: (SentEntry, SpawnedEntry, EmittedEntry),
    WaitOutput: (OutputEntry,),
}
"""What may be recorded at the place of each kind of wait, as its answer."""


class Branch:
    """The steps of one branch against its recorded history. ``seq`` and ``clock_us`` are of the last event delivered."""

    __slots__ = ("_record", "_state", "clock_us", "cursor", "seq", "version")

    def __init__(self, state: WorkflowState, record: Record, prefix: Location, version: int, clock_us: int) -> None:
        self._state = state
        self._record = record
        self.cursor = Cursor(state.history, prefix, version)
        self.version = version
        self.clock_us = clock_us
        self.seq = 0

    def below(self, prefix: Location, version: int) -> Branch:
        """Return a branch below this one, whose clock starts where this one's is."""
        branch = Branch(self._state, self._record, prefix, version, self.clock_us)
        branch.seq = self.seq
        return branch

    def catch_up(self, below: Branch) -> None:
        """What a branch below was given, this one has seen, too."""
        self.clock_us = max(self.clock_us, below.clock_us)
        self.seq = max(self.seq, below.seq)

    def tags(self) -> Mapping[str, str]:
        """The workflow's tags as of the last event delivered: a replay must not see what was changed later."""
        state = self._state
        tags: Mapping[str, str] = {} if state.dispatched is None else state.dispatched.tags
        for seq, changed in state.retagged:
            if seq <= self.seq:
                tags = changed
        return tags

    # --- steps that wait ----------------------------------------------------------------------------------------------

    def wait_for(self, step: Step, asker: Asker, now_us: int, *, joined: bool) -> Wait:
        """Place a step that is answered from outside. ``joined``: other steps are placed on the branch meanwhile.

        Raises: HistoryDiverged: the step does not fit what is recorded here; the history is untouched.
            ValueError: a deadline that cannot be represented; nothing is recorded.
        """
        if isinstance(step, ActivityStep):
            return WaitActivity(self._placed(step, "activity", step.plan.name, joined=joined), step, asker)
        if isinstance(step, SleepStep):
            location, entry = self.cursor.place(step, "sleep", None)
            if entry is None:
                self._record(ev.SleepStarted(location, step.version, _deadline(step, now_us)))
            return WaitSleep(location, step, asker, self._sleep(location).deadline_us)
        if isinstance(step, SignalStep):
            return WaitSend(self._placed(step, "signal", step.name, joined=joined), step, asker)
        if isinstance(step, DispatchStep):
            return WaitSend(self._placed(step, "dispatch", step.name, joined=joined), step, asker)
        if isinstance(step, EmitStep):
            return WaitSend(self._placed(step, "emit", step.topic, joined=joined), step, asker)
        if isinstance(step, OutputStep):
            # Placed also when it waits alone: the other workflow knows the place, and answers there.
            return WaitOutput(self._placed(step, "output", step.name, joined=True), step, asker)
        assert isinstance(step, ListenStep), step
        if step.timeout_us is None and step.until_us is None:
            return WaitListen(self._placed(step, "listen", None, joined=joined), step, asker)
        location, entry = self.cursor.place(step, TIMED_LISTEN, None)
        if entry is None:
            self._record(ev.SleepStarted(location, step.version, _deadline(step, now_us), listen=True))
        sleep = self._sleep(location)
        return WaitListen(location, step, asker, sleep.deadline_us, self._taken_at(step, sleep, joined=joined))

    def _placed(self, step: Step, kind: str, name: str | None, *, joined: bool) -> Location:
        """Place a step that is recorded only once it is answered. In a join its place is: a neighbour may be answered first."""
        location, entry = self.cursor.place(step, kind, name)
        if entry is None and joined:
            self._record(ev.StepPlaced(location, step.version, kind, name))
        return location

    def _taken_at(self, step: ListenStep, sleep: SleepEntry, *, joined: bool) -> Location | None:
        """Where a timed listen's signals are, or are to be; None: at the next location. The code may have been joined since."""
        below = (*sleep.location, _FIRST)
        if sleep.outcome != "interrupted":
            return below if joined else None
        if self._state.history.at(below) is not None:
            return below
        return self.cursor.place(step, "listen", None)[0]

    def answered(self, wait: Wait) -> int | None:
        """Return the ``seq`` of the event that answers it, if it is recorded; an activity learns of its last attempt."""
        entry = self._state.history.at(wait.location)
        if entry is None or isinstance(entry, PlacedEntry):
            return None
        if isinstance(entry, InterruptedEntry):
            return entry.seq
        if not isinstance(entry, _ANSWERS[type(wait)]):
            raise self._other_answer(wait, entry)
        if isinstance(wait, WaitActivity):
            assert isinstance(entry, ActivityEntry)
            if entry.output is not None:
                return entry.seq
            last = entry.failures[-1]
            wait.attempt = last.attempt + 1
            wait.first_started_us = entry.first_started_us
            wait.not_before_us = last.retry_us
            wait.heartbeat = last.heartbeat
            return entry.seq if last.final else None
        if isinstance(entry, SleepEntry) and entry.outcome is None:
            return None
        return entry.seq

    def deliver(self, wait: Wait) -> Any:
        """Return the recorded answer.

        Raises: one of RECORDED: what is recorded is an error, to be raised into the body. Cancelled: a cancel is.
            HistoryDiverged: what is recorded cannot be given to this code.
        """
        entry = self._state.history.at(wait.location)
        assert entry is not None
        self.clock_us, self.seq = entry.time_us, entry.seq
        if isinstance(entry, InterruptedEntry):
            raise made_cancel()
        if isinstance(wait, WaitActivity):
            assert isinstance(entry, ActivityEntry)
            if entry.output is not None:
                return self.output(wait.step, entry)
            raise _activity_failure(wait.location, entry.failures[-1])
        if isinstance(wait, WaitSleep):
            return None
        if isinstance(wait, WaitSend):
            return self._sent(wait.step, entry)
        if isinstance(wait, WaitOutput):
            assert isinstance(entry, OutputEntry)
            return self._output_of(wait.step, entry)
        if wait.deadline_us is None:
            return self._signals(wait.step, entry)
        assert isinstance(entry, SleepEntry)
        if entry.outcome == "interrupted":
            assert wait.taken_at is not None
            return self._signals(wait.step, self._state.history.at(wait.taken_at))
        return None if wait.step.limit is None else []

    def decide(self, wait: WaitSleep | WaitListen, now_us: int) -> None:
        """Record the answer if there is one by now: a deadline that has passed, signals that are queued."""
        entry = self._state.history.at(wait.location)
        if isinstance(wait, WaitSleep):
            assert isinstance(entry, SleepEntry)
            if entry.outcome is None and now_us >= entry.deadline_us:
                self._record(ev.SleepFinished(wait.location, "normal"))
            return
        if isinstance(entry, SignalsEntry) or (isinstance(entry, SleepEntry) and entry.outcome is not None):
            return
        # The queue comes first: a listen that has run out looks once more before it says so (semantics.md §5).
        taken = self._queued(wait.step)
        if wait.deadline_us is None:
            if taken:
                self._record(ev.SignalConsumed(wait.location, wait.step.version, taken))
        elif taken:
            if wait.taken_at is None:
                wait.taken_at, _ = self.cursor.place(wait.step, "listen", None)
            self._record(ev.SleepFinished(wait.location, "interrupted"))
            self._record(ev.SignalConsumed(wait.taken_at, wait.step.version, taken))
        elif now_us >= wait.deadline_us:
            self._record(ev.SleepFinished(wait.location, "uninterrupted"))

    def interrupt(self, wait: WaitActivity | WaitSleep | WaitListen | WaitOutput) -> int:
        """Let a cancel be the answer, whatever it would have been; return the event's ``seq``."""
        at, step, name = wait.location, wait.step, None
        if not isinstance(self._state.history.at(at), InterruptedEntry):
            if isinstance(wait, WaitActivity):
                kind, name = "activity", wait.step.plan.name
            elif isinstance(wait, WaitOutput):
                kind, name = "output", wait.step.name
            elif isinstance(wait, WaitSleep):
                kind = "sleep"
            else:
                kind = "listen" if wait.deadline_us is None else TIMED_LISTEN
            self._record(ev.StepInterrupted(at, step.version, kind, name))
        entry = self._state.history.at(at)
        assert entry is not None
        return entry.seq

    def output(self, step: ActivityStep, entry: ActivityEntry) -> Any:
        """Give an activity's recorded output to the body. Raises: HistoryDiverged."""
        assert entry.output is not None
        self.clock_us, self.seq = entry.time_us, entry.seq
        try:
            return step.plan.decode(entry.output)
        except Exception as error:
            self._misfit(step, entry.location, f"output of {entry.activity!r}", error)

    def _sent(self, step: SignalStep | DispatchStep | EmitStep, entry: Entry) -> Any:
        if isinstance(step, EmitStep):
            assert isinstance(entry, EmittedEntry)
            return None
        if isinstance(step, DispatchStep):
            assert isinstance(entry, SpawnedEntry)
            return step.made(entry.workflow_id)
        assert isinstance(entry, SentEntry)
        if entry.target is not None:
            return entry.signal_id
        if step.graceful:
            return None
        if step.to is not None:
            raise not_found(step.to, "no such workflow, or it is complete")
        raise WorkflowNotFound(
            f"no incomplete workflow {step.workflow!r} has the tags {dict(step.tags)}",
            workflow=step.workflow,
            tags=dict(step.tags),
        )

    def _output_of(self, step: OutputStep, entry: OutputEntry) -> Any:
        if entry.error is not None:
            for ended in (WorkflowCancelled, WorkflowSilenced):
                if entry.error.type == ended.__name__:
                    raise ended(entry.error.message, workflow_id=entry.workflow_id, workflow=entry.workflow)
            raise WorkflowNotFound(entry.error.message, workflow_id=entry.workflow_id)
        assert entry.output is not None
        return self._decode(step, step.decode, entry.output, entry.location, f"output of workflow {entry.workflow!r}")

    def _sleep(self, location: Location) -> SleepEntry:
        entry = sleep_of(self._state.history.at(location))
        assert entry is not None
        return entry

    # --- signals ------------------------------------------------------------------------------------------------------

    def _queued(self, step: ListenStep) -> tuple[str, ...]:
        limit = 1 if step.limit is None else step.limit
        taken: list[str] = []
        size = 0
        for signal in self._state.queue.values():
            if signal.name in step.decoders:
                taken.append(signal.id)
                if len(taken) == limit:
                    break
                size += len(signal.id.encode()) + 3  # quotes and a comma
                if size > TAKEN_CHARACTERS_MAX:
                    break
        return tuple(taken)

    def _signals(self, step: ListenStep, entry: object) -> Any:
        assert isinstance(entry, SignalsEntry)
        if step.limit is None and len(entry.signals) > 1:
            raise self._too_many(step, entry)
        values = [self._signal(step, signal, entry.location) for signal in entry.signals]
        self.clock_us, self.seq = entry.time_us, entry.seq
        return values[0] if step.limit is None else values

    def _signal(self, step: ListenStep, signal: Signal, location: Location) -> Any:
        decode = step.decoders.get(signal.name)
        if decode is None:
            at = format_location(location)
            n = step.version - self.version + 2
            raise HistoryDiverged(
                f"history diverged at {at}: recorded is the signal {signal.name!r}, the code listens for "
                f"{', '.join(sorted(step.decoders))} in {step.file}:{step.line}. Listen for {signal.name!r} here again, or "
                f"branch on `await ctx.check_version({n}) >= {n}`. Nothing was changed in the history: after the code is "
                f"fixed, wake the workflow",
                location=at,
                recorded=f"signal {signal.name!r}",
                attempted=f"listen for {', '.join(sorted(step.decoders))}",
                file=step.file,
                line=step.line,
                fix="ctx.check_version",
            )
        return self._decode(step, decode, signal.body, location, f"body of signal {signal.name!r}")

    def _too_many(self, step: ListenStep, entry: SignalsEntry) -> HistoryDiverged:
        n = entry.version - self.version + 2
        return HistoryDiverged(
            f"history diverged at {format_location(entry.location)}: recorded is {entry.shown} with "
            f"{len(entry.signals)} signals, `ctx.{step.verb}(…)` in {step.file}:{step.line} would give one of them and lose "
            f"the rest. Write `ctx.listen_n(…)` again, or branch on `await ctx.check_version({n}) >= {n}`. Nothing was "
            f"changed in the history: after the code is fixed, wake the workflow",
            location=format_location(entry.location),
            recorded=entry.describe(),
            attempted=f"ctx.{step.verb}",
            file=step.file,
            line=step.line,
            fix="ctx.listen_n",
        )

    # --- steps that decide by themselves ------------------------------------------------------------------------------

    def removed(self, step: RemovedStep) -> None:
        """Pass the place of a step that the code no longer has."""
        place = self.cursor.place_removed(step.kind, step.name)
        if place is None:
            return
        location, recorded = place
        if recorded is None:
            self._record(ev.StepRemoved(location, step.version, step.kind, step.name))
        entry = self._state.history.at(location)
        assert entry is not None
        self.clock_us, self.seq = entry.time_us, entry.seq
        sleep = sleep_of(entry)
        if sleep is not None and sleep.outcome == "interrupted":
            rest = self._state.history.at((*location, _FIRST))  # it was in a join
            if rest is None:
                rest = self.cursor.current
                self.cursor.place_removed("listen", None)
            assert isinstance(rest, SignalsEntry)
            self.clock_us, self.seq = rest.time_us, rest.seq

    def check_version(self, step: CheckVersionStep) -> int:
        """Answer a version check, for ever."""
        (location, recorded), before = self.cursor.place_version_check()
        if recorded is None:
            version, value = (step.version, step.latest) if before is None else (before + 1, before)
            self._record(ev.VersionChecked(location, version, value))
        entry = self._state.history.at(location)
        assert isinstance(entry, VersionEntry)
        self.clock_us, self.seq = entry.time_us, entry.seq
        return entry.value - step.context_version + 1

    def checkpoint(self, step: CheckpointStep) -> None:
        """Pass a checkpoint. Raises: HistoryDiverged."""
        entry = self._opened(step, "checkpoint", None, lambda at: ev.CheckpointReached(at, step.version))
        assert isinstance(entry, CheckpointEntry)
        self.clock_us, self.seq = entry.time_us, entry.seq

    def send(self, step: MessageStep) -> MessageEntry:
        """Place a message; record that it is sent, which sends it. Raises: HistoryDiverged.

        Whoever goes on behind it does so once that is durable, and shows it the event: :meth:`pass_sent`.
        """
        entry = self._opened(
            step, "message", step.name, lambda at: ev.MessageSent(at, step.version, step.name, step.topic, step.body)
        )
        assert isinstance(entry, MessageEntry)
        return entry

    def pass_sent(self, entry: MessageEntry) -> None:
        """Go on behind a message that was sent."""
        self.clock_us, self.seq = entry.time_us, entry.seq

    def open_rollback(self, step: RollbackStep, error: ev.ErrorInfo) -> RollbackEntry:
        """Place the branch on which the workflow is rolled back. Raises: HistoryDiverged: the body had more to do, once."""
        entry = self._opened(step, "rollback", None, lambda at: ev.RollbackStarted(at, step.version, error))
        assert isinstance(entry, RollbackEntry)
        return entry

    def open(self, step: Step, kind: ev.BranchKind, name: str | None = None) -> BranchEntry:
        """Place a closure, an inline workflow or a race; record that it is there. Raises: HistoryDiverged."""
        entry = self._opened(step, kind, name, lambda at: ev.BranchOpened(at, step.version, kind, name))
        assert isinstance(entry, BranchEntry)
        return entry

    def _opened(
        self, step: Step, kind: str, name: str | None, first: Callable[[Location], ev.EventData]
    ) -> Entry | None:
        """Place a step whose first record says no more than that it was reached; record that, unless it is recorded."""
        location, entry = self.cursor.place(step, kind, name)
        if entry is None:
            self._record(first(location))
            entry = self._state.history.at(location)
        return entry

    def decide_race(self, step: Step, entry: BranchEntry, winner: int | None, value: bytes) -> None:
        """Record how a race ended. Raises: HistoryDiverged: another end is recorded."""
        if not entry.decided:
            self._record(ev.RaceDecided(entry.location, winner, value))
        elif entry.winner != winner:
            raise self.other_winner(step, entry, f"competitor {winner} wins")
        self.clock_us = max(self.clock_us, entry.time_us)
        self.seq = max(self.seq, entry.seq)

    def check_winner(self, step: Step, entry: BranchEntry, competitors: int) -> None:
        """Check that a race's recorded winner is among the code's competitors. Raises: HistoryDiverged."""
        if entry.winner is not None and entry.winner >= competitors:
            raise self.other_winner(step, entry, f"it has {competitors} competitors")

    def open_loop(self, step: LoopStep) -> LoopEntry:
        """Place a loop; record that it is there, with its first state. Raises: HistoryDiverged."""
        entry = self._opened(step, "loop", None, lambda at: ev.LoopCommitted(at, step.version, 0, step.state))
        assert isinstance(entry, LoopEntry)
        return entry

    def commit(self, entry: LoopEntry, iteration: int, state: bytes, output: bytes | None, carried: Carried) -> int:
        """Record how far a loop has come; return the event's ``seq``."""
        checkpoint, given = carried.next()
        self._record(ev.LoopCommitted(entry.location, entry.version, iteration, state, output, given, checkpoint))
        self.clock_us, self.seq = entry.time_us, entry.seq
        return entry.seq

    def loop_state(self, step: LoopStep, entry: LoopEntry) -> Any:
        """Return a loop's state as of its last commit. Raises: HistoryDiverged."""
        return self._decode(step, step.decode_state, entry.state, entry.location, "state of the loop")

    def loop_output(self, step: LoopStep, entry: LoopEntry, output: bytes) -> Any:
        """Return what a loop gave. Raises: HistoryDiverged."""
        return self._decode(step, step.decode, output, entry.location, "output of the loop")

    # ------------------------------------------------------------------------------------------------------------------

    def _decode(self, step: Step, decode: Callable[[bytes], Any], raw: bytes, location: Location, what: str) -> Any:
        try:
            return decode(raw)
        except Exception as error:
            self._misfit(step, location, what, error)

    def other_winner(self, step: Step, entry: BranchEntry, found: str) -> HistoryDiverged:
        """Give the error for a race that ends otherwise than is recorded."""
        at = format_location(entry.location)
        recorded = "nobody won" if entry.winner is None else f"competitor {entry.winner} won"
        return HistoryDiverged(
            f"history diverged at {at}: recorded is that {recorded} the race, with the code in {step.file}:{step.line} "
            f"{found} (competitors are counted from 0). Put its competitors back as they were. Nothing was changed in the "
            f"history: after the code is fixed, wake the workflow",
            location=at,
            recorded=recorded,
            attempted=found,
            file=step.file,
            line=step.line,
            fix="ctx.race",
        )

    def _other_answer(self, wait: Wait, entry: Entry) -> HistoryDiverged:
        """Give the error for what was recorded meanwhile, for code that waited here for something else."""
        step, at, n = wait.step, format_location(wait.location), entry.version - self.version + 2
        return HistoryDiverged(
            f"history diverged at {at}: recorded is {entry.shown}, which code before this one waited for, and now "
            f"`ctx.{step.verb}(…)` in {step.file}:{step.line} waits here. Put `ctx.{entry.kind}(…)` back where it stood; a "
            f"step added before it is `ctx.v({n}).{step.verb}(…)`. Nothing was changed in the history: after the code is "
            f"fixed, wake the workflow",
            location=at,
            recorded=entry.describe(),
            attempted=f"ctx.{step.verb}",
            file=step.file,
            line=step.line,
            fix=f"ctx.{entry.kind}",
        )

    def _misfit(self, step: Step, location: Location, what: str, error: Exception) -> NoReturn:
        at = format_location(location)
        raise HistoryDiverged(
            f"history diverged at {at}: the recorded {what} does not read as the type the code has now in "
            f"{step.file}:{step.line}: {error}. Give the type a default or a validator that reads the old form, then wake "
            f"the workflow. Nothing was changed in the history",
            location=at,
            recorded=what,
            attempted=f"ctx.{step.verb}",
            file=step.file,
            line=step.line,
            fix="the type",
        ) from error


def _deadline(step: SleepStep | ListenStep, now_us: int) -> int:
    if isinstance(step, SleepStep):
        relative, absolute, what = step.duration_us, step.until_us, "ctx.sleep"
    else:
        relative, absolute, what = step.timeout_us, step.until_us, "the timeout of ctx.listen"
    if relative is not None:
        return add_us(now_us, relative, what)
    assert absolute is not None
    return absolute


def _activity_failure(location: Location, failed: ev.ActivityFailed) -> ActivityFailed:
    at = format_location(location)
    kind = ActivityMaxFailuresReached if failed.exhausted else ActivityFailed
    tried = f"failed {failed.attempt} times, the last time with" if failed.attempt > 1 else "failed with"
    return kind(
        f"activity {failed.name!r} at {at} {tried} {failed.error}",
        activity=failed.name,
        location=at,
        attempts=failed.attempt,
        error=failed.error,
    )
