"""One branch of a run: places each step in the branch's history and answers it once its answer is recorded.

Nothing here resumes a body (that is ``core.replay``). A step is *taken* once, which finds its place and may record what the
step decides by itself (a sleep's start, a version check); then it is *looked at*, as often as something may have changed,
until its answer is recorded. A fact that answers a step is recorded by one look and delivered by a later one, when it is
durable: the runtime looks again only then (design §1.1, §1.5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from gasoline_es.core import events as ev
from gasoline_es.core.cursor import Cursor
from gasoline_es.core.durations import add_us
from gasoline_es.core.history import (
    TIMED_LISTEN,
    ActivityEntry,
    Signal,
    SignalsEntry,
    SleepEntry,
    VersionEntry,
)
from gasoline_es.core.location import Location, format_location
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.steps import ActivityStep, CheckVersionStep, ListenStep, RemovedStep, SleepStep, Step
from gasoline_es.errors import ActivityFailed, ActivityMaxFailuresReached, HistoryDiverged

TAKEN_CHARACTERS_MAX: Final = 200_000
"""One listen stops taking signals when their ids grow beyond this, so that its event stays within a record's limit."""

Record = Callable[[ev.EventData], None]
"""Applies a fact to the workflow's state at once, and queues it for the next append."""


class Pending:
    """The answer is not recorded yet."""

    __slots__ = ()


PENDING: Final = Pending()


@dataclass(slots=True, eq=False)
class WaitActivity:
    """An attempt of an activity is to run, now or at ``not_before_us``."""

    location: Location
    step: ActivityStep
    attempt: int = 1
    first_started_us: int | None = None
    not_before_us: int | None = None


@dataclass(slots=True, eq=False)
class WaitSleep:
    """The deadline is to pass."""

    location: Location
    step: SleepStep
    deadline_us: int


@dataclass(slots=True, eq=False)
class WaitListen:
    """``location``: where an untimed listen's signals go; a timed one has ``sleep`` and ``deadline_us`` instead."""

    step: ListenStep
    location: Location | None = None
    sleep: Location | None = None
    deadline_us: int | None = None


Wait = WaitActivity | WaitSleep | WaitListen


class Branch:
    """The steps of one branch against its recorded history. ``clock_us`` is the time of the last event delivered."""

    __slots__ = ("_record", "_state", "clock_us", "cursor", "version", "wait")

    def __init__(self, state: WorkflowState, record: Record, prefix: Location, version: int, clock_us: int) -> None:
        self._state = state
        self._record = record
        self.cursor = Cursor(state.history, prefix, version)
        self.version = version
        self.clock_us = clock_us
        self.wait: Wait | None = None

    def take(self, step: Step, now_us: int) -> Any:
        """Place a step that the body awaits, and return its answer or ``PENDING`` (then ``wait`` tells for what).

        Raises: ActivityFailed: its recorded final failure, to be raised into the body.
            HistoryDiverged: the step does not fit what is recorded here; the history is untouched.
            ValueError: a deadline that cannot be represented; nothing is recorded.
        """
        if isinstance(step, ActivityStep):
            location, entry = self.cursor.place(step, "activity", step.plan.name)
            if entry is not None and isinstance(entry, ActivityEntry) and entry.output is not None:
                return self._activity_output(step, entry, entry.output)
            self.wait = WaitActivity(location, step)
            if entry is None:
                return PENDING
        elif isinstance(step, SleepStep):
            self.wait = self._take_sleep(step, now_us)
        elif isinstance(step, ListenStep):
            self.wait = self._take_listen(step, now_us)
        elif isinstance(step, RemovedStep):
            return self._removed(step, now_us)
        elif isinstance(step, CheckVersionStep):
            return self._check_version(step, now_us)
        else:
            raise AssertionError(f"no such step: {step!r}")
        return self.look(now_us)

    def look(self, now_us: int) -> Any:
        """Return the answer of the step that was taken last, once it is recorded; else ``PENDING``.

        May record the answer itself: a deadline that has passed, signals that are queued. Raises like :meth:`take`.
        """
        wait = self.wait
        if isinstance(wait, WaitActivity):
            answer = self._look_activity(wait)
        elif isinstance(wait, WaitSleep):
            answer = self._look_sleep(wait, now_us)
        else:
            assert wait is not None, "nothing was taken"
            answer = self._look_timed(wait, now_us) if wait.sleep is not None else self._look_listen(wait)
        if answer is not PENDING:
            self.wait = None
        return answer

    # --- activities ---------------------------------------------------------------------------------------------------

    def _look_activity(self, wait: WaitActivity) -> Any:
        entry = self._state.history.at(wait.location)
        if entry is None:
            return PENDING
        assert isinstance(entry, ActivityEntry)
        if entry.output is not None:
            return self._activity_output(wait.step, entry, entry.output)
        last = entry.failures[-1]
        if last.final:
            self._pass(entry.location, entry.time_us)
            self.wait = None
            raise _activity_failure(wait.location, last)
        wait.attempt = last.attempt + 1
        wait.first_started_us = entry.first_started_us
        wait.not_before_us = last.retry_us
        return PENDING

    def _activity_output(self, step: ActivityStep, entry: ActivityEntry, output: bytes) -> Any:
        self.cursor.advance(entry.location)
        self.clock_us = entry.time_us
        try:
            return step.plan.decode(output)
        except Exception as error:
            self._misfit(step, entry.location, f"output of {entry.activity!r}", error)

    # --- sleeps -------------------------------------------------------------------------------------------------------

    def _take_sleep(self, step: SleepStep, now_us: int) -> WaitSleep:
        location, entry = self.cursor.place(step, "sleep", None)
        if entry is None:
            deadline_us = _deadline(step, now_us)
            assert deadline_us is not None
            self._record(ev.SleepStarted(location, step.version, deadline_us))
        return WaitSleep(location, step, self._sleep(location).deadline_us)

    def _look_sleep(self, wait: WaitSleep, now_us: int) -> Any:
        entry = self._sleep(wait.location)
        if entry.outcome is not None:
            self._pass(entry.location, entry.time_us)
            return None
        if now_us >= entry.deadline_us:
            self._record(ev.SleepFinished(wait.location, "normal"))
        return PENDING

    def _sleep(self, location: Location) -> SleepEntry:
        entry = self._state.history.at(location)
        assert isinstance(entry, SleepEntry)
        return entry

    # --- signals ------------------------------------------------------------------------------------------------------

    def _take_listen(self, step: ListenStep, now_us: int) -> WaitListen:
        if step.timeout_us is None and step.until_us is None:
            return WaitListen(step, location=self.cursor.place(step, "listen", None)[0])
        location, recorded = self.cursor.place(step, TIMED_LISTEN, None)
        if recorded is None:
            deadline_us = _deadline(step, now_us)
            assert deadline_us is not None
            self._record(ev.SleepStarted(location, step.version, deadline_us, listen=True))
        entry = self._sleep(location)
        self._pass(location, entry.time_us)
        return WaitListen(step, sleep=location, deadline_us=entry.deadline_us)

    def _look_listen(self, wait: WaitListen) -> Any:
        assert wait.location is not None
        entry = self._state.history.at(wait.location)
        if entry is not None:
            return self._signals(wait.step, entry)
        taken = self._queued(wait.step)
        if taken:
            self._record(ev.SignalConsumed(wait.location, wait.step.version, taken))
        return PENDING

    def _look_timed(self, wait: WaitListen, now_us: int) -> Any:
        assert wait.sleep is not None
        sleep = self._sleep(wait.sleep)
        if sleep.outcome is None:
            # The queue comes first: a listen that has run out looks once more before it says so (semantics.md §5).
            taken = self._queued(wait.step)
            if taken:
                location, _ = self.cursor.place(wait.step, "listen", None)
                self._record(ev.SleepFinished(wait.sleep, "interrupted"))
                self._record(ev.SignalConsumed(location, wait.step.version, taken))
            elif now_us >= sleep.deadline_us:
                self._record(ev.SleepFinished(wait.sleep, "uninterrupted"))
            return PENDING
        if sleep.outcome == "interrupted":
            return self._signals(wait.step, self.cursor.place(wait.step, "listen", None)[1])
        self.clock_us = sleep.time_us
        return None if wait.step.limit is None else []

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
        self._pass(entry.location, entry.time_us)
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

    # --- the evolution of code ----------------------------------------------------------------------------------------

    def _removed(self, step: RemovedStep, now_us: int) -> None:
        place = self.cursor.place_removed(step.kind, step.name)
        if place is None:
            return
        location, recorded = place
        if recorded is None:
            self._record(ev.StepRemoved(location, step.version, step.kind, step.name))
        entry = self._state.history.at(location)
        assert entry is not None
        self._pass(entry.location, entry.time_us)
        if isinstance(entry, SleepEntry) and entry.outcome == "interrupted":
            rest = self.cursor.current
            assert isinstance(rest, SignalsEntry)
            self._pass(rest.location, rest.time_us)

    def _check_version(self, step: CheckVersionStep, now_us: int) -> int:
        (location, recorded), before = self.cursor.place_version_check()
        if recorded is None:
            version, value = (step.version, step.latest) if before is None else (before + 1, before)
            self._record(ev.VersionChecked(location, version, value))
        entry = self._state.history.at(location)
        assert isinstance(entry, VersionEntry)
        self._pass(entry.location, entry.time_us)
        return entry.value - step.context_version + 1

    # ------------------------------------------------------------------------------------------------------------------

    def _pass(self, location: Location, time_us: int) -> None:
        self.cursor.advance(location)
        self.clock_us = time_us

    def _decode(self, step: Step, decode: Callable[[bytes], Any], raw: bytes, location: Location, what: str) -> Any:
        try:
            return decode(raw)
        except Exception as error:
            self._misfit(step, location, what, error)

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


def _deadline(step: SleepStep | ListenStep, now_us: int) -> int | None:
    if isinstance(step, SleepStep):
        relative, absolute, what = step.duration_us, step.until_us, "ctx.sleep"
    else:
        relative, absolute, what = step.timeout_us, step.until_us, "the timeout of ctx.listen"
    return absolute if relative is None else add_us(now_us, relative, what)


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
