"""Runs attempts of activities: ``async def`` as tasks, ``def`` in threads, each under its timeout (semantics.md §4).

A runner decides nothing and records nothing. It keeps the outcome of an attempt until the engine says it is durable, so
that an append that failed for want of space costs no second execution.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from gasoline_es.activity_context import ActivityContext, idempotency_key
from gasoline_es.core.decide import AttemptFailed
from gasoline_es.core.error_info import error_info
from gasoline_es.core.events import ErrorInfo
from gasoline_es.core.location import Location, format_location
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.values import codec_for
from gasoline_es.core.waits import WaitActivity
from gasoline_es.definitions import Activity
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import DefinitionError, InvalidTags, NotRetryable, NotSerializable, RecordTooLarge
from gasoline_es.operating import Operations, at_work
from gasoline_es.runtime.live import Live
from gasoline_es.runtime.recording import Recording
from gasoline_es.runtime.turns import Turns
from gasoline_es.threads import DaemonThreads

if TYPE_CHECKING:
    from gasoline_es.runtime.partition import Partition
    from gasoline_es.runtime.tracing import AttemptSpan, Tracing

_log = EngineLog(__name__)

Outcome = bytes | AttemptFailed
"""The output as JSON, or how the attempt failed."""

_NOT_MENDED_BY_TIME = (DefinitionError, NotSerializable, InvalidTags, RecordTooLarge)


IDLE_LIMITS_MAX: Final = 100
"""So many time limits keep their timer although no attempt is under them."""


def key_at(state: WorkflowState, location: Location) -> str:
    """Name an attempt's place: what its idempotency key is, too."""
    return idempotency_key(state.summary.id, format_location(location), state.generation_at(location))


class Attempt:
    """One attempt of one activity, from its start until its outcome is durable.

    ``live`` is the workflow in memory, by which whoever records the outcome finds its way back. ``document`` is the
    workflow's new state, where a successful attempt changed it.
    """

    __slots__ = (
        "context",
        "definition",
        "document",
        "heart",
        "key",
        "launched_s",
        "live",
        "number",
        "outcome",
        "running",
        "span",
        "started_us",
        "task",
        "timeout_us",
        "wait",
    )

    def __init__(self, live: Live, key: str, wait: WaitActivity, context: ActivityContext, started_us: int) -> None:
        plan = wait.step.plan
        self.live = live
        self.key = key
        self.wait = wait
        self.number = wait.attempt
        self.definition: Activity[Any, Any] = plan.definition
        self.timeout_us = plan.timeout_us
        self.context = context
        self.started_us = started_us
        self.launched_s = 0.0
        """When it got its turn, on the loop's clock."""
        self.task: asyncio.Future[Any] | None = None
        self.running = False
        self.outcome: Outcome | None = None
        self.document: bytes | None = None
        self.heart: asyncio.TimerHandle | None = None
        """The timer by which the next heartbeat is missed, while it runs and is to give some."""
        self.span: AttemptSpan | None = None


class TimeLimits:
    """Calls ``expired`` for each attempt that is still there when its time is up.

    Attempts of one limit expire in the order they came, so one timer of the event loop serves them all: an attempt that
    ends in time costs two operations on a dictionary instead of a timer of its own. The timer of a limit that no attempt
    is under any more stays for the next one; where code computes its limits, the idle ones go once they are the most.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[Attempt], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._by_limit: dict[int, dict[Attempt, float]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._limits_max = IDLE_LIMITS_MAX

    def add(self, attempt: Attempt, limit_us: int) -> None:
        """Let an attempt begin now."""
        attempts = self._by_limit.get(limit_us)
        if attempts is None:
            attempts = self._by_limit[limit_us] = {}
        attempt.launched_s = now_s = self._loop.time()
        attempts[attempt] = now_s + limit_us / 1e6
        if limit_us not in self._timers:
            self._timers[limit_us] = self._loop.call_at(attempts[attempt], self._look, limit_us)
            if len(self._timers) > self._limits_max:
                self._let_idle_go()

    def _let_idle_go(self) -> None:
        for limit_us in [limit_us for limit_us, attempts in self._by_limit.items() if not attempts]:
            self._timers.pop(limit_us).cancel()
            del self._by_limit[limit_us]
        # Twice as many as are used: so each look at them all is paid for by as many that came.
        self._limits_max = 2 * len(self._timers) + IDLE_LIMITS_MAX

    def discard(self, attempt: Attempt, limit_us: int) -> None:
        attempts = self._by_limit.get(limit_us)
        if attempts is not None:
            attempts.pop(attempt, None)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _look(self, limit_us: int) -> None:
        # What expires below may let another attempt of this limit start, which must not start a timer of its own.
        timer = self._timers[limit_us]
        attempts = self._by_limit[limit_us]
        now = self._loop.time()
        for attempt, until in list(attempts.items()):
            if until > now:
                break
            del attempts[attempt]
            self._expired(attempt)
        if self._timers.get(limit_us) is not timer:
            return  # closed meanwhile
        if attempts:
            self._timers[limit_us] = self._loop.call_at(next(iter(attempts.values())), self._look, limit_us)
        else:
            del self._timers[limit_us], self._by_limit[limit_us]


class ActivityRunner:
    """Runs at most ``max_concurrency`` attempts at a time; the others wait for their turn (``runtime.turns``)."""

    def __init__(
        self,
        max_concurrency: int,
        finished: Callable[[Attempt], None],
        operations: Operations | None = None,
        recording: Recording | None = None,
    ) -> None:
        """``operations``: who runs those that attempts call. ``recording``: counts the attempts."""
        self._recording = recording or Recording()
        self.turns = Turns(max_concurrency)
        self._operations = operations
        self._finished = finished
        self._attempts: dict[str, Attempt] = {}
        self._threads = DaemonThreads()
        self._loop = asyncio.get_running_loop()
        self._limits = TimeLimits(self._loop, self._timed_out)
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self.stopping = False
        self.stand_in: Callable[[Activity[Any, Any]], Activity[Any, Any]] | None = None
        """Says what runs in an activity's place, in a test. Asked for each attempt."""
        self.tracing: Tracing | None = None

    @property
    def in_threads(self) -> list[Attempt]:
        """The attempts that run in threads right now."""
        return [attempt for attempt in self.under_way if not attempt.definition.is_async]

    @property
    def under_way(self) -> list[Attempt]:
        """The attempts that run right now. May be read from any thread."""
        return [attempt for attempt in list(self._attempts.values()) if attempt.running]

    @property
    def running(self) -> int:
        """How many attempts run right now."""
        return self.turns.running

    def start(self, live: Live, wait: WaitActivity, now_us: int) -> None:
        """Run an attempt. If this very attempt runs already, or its outcome is kept, that one is used instead."""
        state, summary = live.state, live.state.summary
        location, generation = format_location(wait.location), state.generation_at(wait.location)
        key = idempotency_key(summary.id, location, generation)
        known = self._attempts.get(key)
        if known is not None and known.number == wait.attempt:
            known.live, known.wait = live, wait
            if known.outcome is not None:
                self._finished(known)
            return
        if self.stopping:
            return
        context = ActivityContext()  # filled one by one: to pass twelve keywords takes twice as long as all of this
        context.workflow_id = summary.id
        context.workflow_name = summary.name
        context.name = wait.step.plan.name
        context.ray_id = summary.ray_id
        context.attempt = wait.attempt
        context.first_attempt_us = wait.first_started_us or now_us
        context.attempt_us = now_us
        context.location = location
        context.state_json = state.document
        context.heartbeat_json = wait.heartbeat or b"null"
        context.alone = wait.alone
        context.generation = generation
        context.given_tags = summary.tags
        context._operations = self._operations  # pyright: ignore[reportPrivateUsage] -- made for the runtime
        attempt = self._attempts[key] = Attempt(live, key, wait, context, now_us)
        if self.stand_in is not None:
            attempt.definition = self.stand_in(attempt.definition)
        if self.turns.ask(attempt):
            self._launch(attempt)

    def holds(self, key: str) -> bool:
        """Whether an attempt runs there, or its outcome is not durable yet."""
        return key in self._attempts

    def runs(self, key: str) -> bool:
        """Whether an attempt runs there right now."""
        attempt = self._attempts.get(key)
        return attempt is not None and attempt.running

    def count_in(self, partition: Partition) -> int:
        """How many attempts run in a partition, or have an outcome there that is not durable yet."""
        return sum(attempt.live.partition is partition for attempt in self._attempts.values())

    def withdraw(self, partition: Partition) -> None:
        """Forget what waits for its turn in a partition, and never began."""
        for attempt in self.turns.withdraw(lambda one: one.live.partition is partition):
            self.forget(attempt)

    def forget(self, attempt: Attempt) -> None:
        """The attempt's outcome is durable, or no longer wanted."""
        if self._attempts.get(attempt.key) is attempt:
            del self._attempts[attempt.key]

    def cancel(self, key: str) -> None:
        """Nobody waits for the attempt there any more."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            self.forget(attempt)
            if not attempt.running and attempt.outcome is None:
                self.turns.withdraw(lambda one: one is attempt)
            if attempt.outcome is None:
                self._give_up(attempt)

    def cancel_all(self, workflow_id: str, unwanted: Callable[[str, Location], bool]) -> None:
        """Nobody waits any more for those of a workflow's attempts whose key and place are ``unwanted``."""
        for key, attempt in list(self._attempts.items()):
            if attempt.live.id == workflow_id and unwanted(key, attempt.wait.location):
                self.cancel(key)

    def forget_all(self, attempts: Iterable[Attempt]) -> None:
        """The outcomes of these attempts are durable."""
        kept = self._attempts
        for attempt in attempts:
            if kept.get(attempt.key) is attempt:
                del kept[attempt.key]

    def abandon(self, wanted: Callable[[str], bool]) -> None:
        """Give up the attempts of workflows that this process no longer owns."""
        # The waiting ones first: what ends makes room, and they must not be the ones to take it.
        self.turns.withdraw(lambda attempt: not wanted(attempt.live.id))
        for attempt in list(self._attempts.values()):
            if not wanted(attempt.live.id):
                self.forget(attempt)
                if attempt.outcome is None:
                    self._give_up(attempt)

    def start_no_more(self) -> None:
        """Start nothing any more; what waits for its turn is forgotten."""
        self.stopping = True
        for attempt in self.turns.withdraw(lambda _: True):
            self.forget(attempt)

    async def until_idle(self) -> None:
        """Wait until nothing runs."""
        await self._idle.wait()

    def give_up_all(self) -> int:
        """Start nothing any more, and give up what runs. Returns how many that were."""
        self.start_no_more()
        running = [attempt for attempt in self._attempts.values() if attempt.outcome is None]
        for attempt in running:
            self.forget(attempt)
            self._give_up(attempt)
        return len(running)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()
        self._limits.close()

    # --- one attempt --------------------------------------------------------------------------------------------------

    def _launch(self, attempt: Attempt) -> None:
        self._idle.clear()
        attempt.running = True
        if self.tracing is not None:
            attempt.span = self.tracing.attempt(attempt)
        self._limits.add(attempt, attempt.timeout_us)
        heartbeat_us = attempt.wait.step.plan.heartbeat_timeout_us
        if heartbeat_us is not None:
            attempt.context.start_beating()
            attempt.heart = self._loop.call_later(
                heartbeat_us / 1e6, self._listen_for_heart, attempt, heartbeat_us / 1e6
            )
        if attempt.definition.is_async:
            # Named, because it helps who looks at the loop's tasks; and counting up a name costs more than giving one.
            attempt.task = asyncio.Task(self._run_async(attempt), loop=self._loop, name=attempt.definition.name)
        else:
            attempt.task = self._threads.submit(partial(_call, attempt))
            attempt.task.add_done_callback(partial(self._thread_done, attempt))

    async def _run_async(self, attempt: Attempt) -> None:
        at_work.set(attempt.context)
        if attempt.span is not None:
            attempt.span.enter()
        try:
            definition = attempt.definition
            value = await definition.fn(attempt.context, definition.input_codec.decode(attempt.wait.step.input))
            outcome: Outcome = definition.output_codec.encode(value, "output")
            attempt.document = attempt.context.changed_state()
        except asyncio.CancelledError as error:
            if attempt.outcome is not None or self._attempts.get(attempt.key) is not attempt:
                raise  # timed out or given up: somebody has decided already
            outcome = AttemptFailed(error_info(error))  # it cancelled itself: a failure like any other
        except (KeyboardInterrupt, SystemExit) as error:
            outcome = AttemptFailed(error_info(error))
        except BaseException as error:
            outcome = _failed(attempt, error)
        self._settle(attempt, outcome)

    def _thread_done(self, attempt: Attempt, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._settle(attempt, future.result())
        else:
            self._settle(attempt, _failed(attempt, error))

    def _timed_out(self, attempt: Attempt) -> None:
        """The attempt is over now, whatever its code goes on doing: a late result is dropped (required case B16)."""
        seconds = attempt.timeout_us / 1e6
        error = ErrorInfo("TimeoutError", f"attempt {attempt.number} took longer than its timeout of {seconds:g} s")
        failed = AttemptFailed(error, final=not attempt.wait.step.plan.retry_on_timeout)
        self._settle(attempt, failed, "timed_out")
        self._cancel(attempt)

    def _listen_for_heart(self, attempt: Attempt, limit_s: float) -> None:
        """Look when a heartbeat was due, and again when the next one is: beating costs the activity next to nothing."""
        if attempt.outcome is not None or self._attempts.get(attempt.key) is not attempt:
            return
        silent_s = attempt.context.silent_s()
        if silent_s < limit_s:
            attempt.heart = self._loop.call_later(limit_s - silent_s, self._listen_for_heart, attempt, limit_s)
            return
        error = ErrorInfo("TimeoutError", f"attempt {attempt.number} gave no heartbeat for {limit_s:g} s")
        failed = AttemptFailed(error, final=not attempt.wait.step.plan.retry_on_timeout)
        self._settle(attempt, failed, "timed_out")
        self._cancel(attempt)

    def _settle(self, attempt: Attempt, outcome: Outcome, how: str = "failed") -> None:
        if attempt.outcome is not None or self._attempts.get(attempt.key) is not attempt:
            return
        attempt.outcome = outcome
        self._count(attempt, "completed" if isinstance(outcome, bytes) else how)
        self._ended(attempt)
        self._finished(attempt)

    def _count(self, attempt: Attempt, how: str) -> None:
        self._recording.attempt(attempt.context.name, how, self._loop.time() - attempt.launched_s)

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.running:
            self._count(attempt, "given_up")
            self._ended(attempt)
            self._cancel(attempt)

    def _cancel(self, attempt: Attempt) -> None:
        attempt.context._cancel()  # pyright: ignore[reportPrivateUsage] -- made for the runtime
        if attempt.task is not None:
            attempt.task.cancel()

    def _ended(self, attempt: Attempt) -> None:
        attempt.running = False
        self._limits.discard(attempt, attempt.timeout_us)
        if attempt.heart is not None:
            attempt.heart.cancel()
            attempt.heart = None
        if attempt.span is not None:
            attempt.span.end(attempt.outcome)
        following = self.turns.ended(attempt)
        if following is not None:
            self._launch(following)
        if self.turns.running == 0:
            self._idle.set()


def _call(attempt: Attempt) -> Outcome:
    """Run a ``def`` activity, in its thread."""
    at_work.set(attempt.context)
    if attempt.span is not None:
        attempt.span.enter()
    definition = attempt.definition
    try:
        value = definition.fn(attempt.context, definition.input_codec.decode(attempt.wait.step.input))
        output = definition.output_codec.encode(value, "output")
        attempt.document = attempt.context.changed_state()
        return output
    except BaseException as error:
        return _failed(attempt, error)


def _failed(attempt: Attempt, error: BaseException) -> AttemptFailed:
    info, kind = error_info(error), type(error)  # not ``isinstance``, which asks the error itself
    if issubclass(kind, NotRetryable):
        return AttemptFailed(_with_details(attempt, info, cast(NotRetryable, error)), final=True)
    # A mistake in the code, or a result that cannot be kept, is not mended by doing the side effect once more.
    return AttemptFailed(info, final=issubclass(kind, _NOT_MENDED_BY_TIME))


def _with_details(attempt: Attempt, info: ErrorInfo, error: NotRetryable) -> ErrorInfo:
    try:
        if not error.details:
            return info
        details = codec_for(Any, "details of NotRetryable").encode(list(error.details), "details")
    except Exception:  # the details cannot be kept: the message still is
        told = {"location": attempt.context.location, "activity": attempt.context.name, "attempt": attempt.number}
        _log.warning("details of an error could not be kept", extra={**attempt.live.fields, **told, "error": str(info)})
        return info
    return ErrorInfo(info.type, info.message, info.traceback, details)
