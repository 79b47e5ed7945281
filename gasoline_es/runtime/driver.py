"""Drives the bodies of the workflows a worker has registered, in the partitions its process owns (design §3, §5).

One *turn* resumes a body as far as what is durable lets it go, records what it decided, and arranges for what it waits
for: an activity to run, a deadline to pass, a signal to come. A body that waits long leaves memory.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from gasoline_es.clock import Clock
from gasoline_es.context import WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core.decide import AttemptFailed, activity_completed, activity_failed
from gasoline_es.core.ending import cancelled, discarded
from gasoline_es.core.error_info import error_info, shortened
from gasoline_es.core.location import format_location
from gasoline_es.core.replay import Died, End, Returned, Run
from gasoline_es.core.shared import shared_names
from gasoline_es.core.waits import WaitActivity, WaitListen, WaitOutput, WaitSend, WaitSleep
from gasoline_es.definitions import Workflow
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import DefinitionError, GasolineError, HistoryDiverged, LogError, RecordTooLarge, TopicRefused
from gasoline_es.log.port import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX
from gasoline_es.registry import Registry
from gasoline_es.runtime.activities import ActivityRunner, Attempt, key_at
from gasoline_es.runtime.fitting import ERROR_BYTES_LEAST, LINE_BYTES_SPARE, in_a_line, too_large
from gasoline_es.runtime.live import Live
from gasoline_es.runtime.partition import Partition
from gasoline_es.runtime.sends import Sends
from gasoline_es.runtime.suspects import Suspects
from gasoline_es.runtime.timers import Timers

if TYPE_CHECKING:
    from gasoline_es.runtime.node import Node

_log = EngineLog(__name__)


class Driver:
    """The bodies of one worker."""

    def __init__(
        self, registry: Registry, clock: Clock, max_concurrency: int, evict_after_s: float, node: Node
    ) -> None:
        self.registry = registry
        self.runner = ActivityRunner(max_concurrency, self._activity_finished, node.operations, node.recording)
        self.runner.tracing = node.tracing
        self.suspects = Suspects(self.runner, clock)
        self.timers = Timers(clock, self._due)
        self.sends = Sends(node, self._asked, self._refused, node.broke)
        self.at: Live | None = None
        """Whose body runs at this moment; for the thread that watches the event loop."""
        self.stopping = False
        self.closed = False
        self.leaving: dict[int, float] = {}
        """The partitions that are being given up, since when: no body goes on there, what runs is waited for."""
        self.fewer: Callable[[], None] = lambda: None
        """Called when attempts have ended while partitions are leaving."""
        self.jitter: Callable[[], float] = random.random
        """Spreads retries, keeps no secret: numbers in [0, 1)."""
        self._clock = clock
        self._home = node
        self._evict_after_s = evict_after_s
        self._idle: dict[Live, float] = {}
        self._unregistered: set[str] = set()
        self._met: set[object] = set()
        self._answered: dict[Live, None] = {}
        """Those that go on with answers which are not durable yet, at the event loop's next turn."""

    # --- turns --------------------------------------------------------------------------------------------------------

    def turn(self, partition: Partition, live: Live) -> None:
        """Resume the workflow's body if it can go on, and see to what it waits for."""
        if live.blocked_on is not None:
            return
        state = live.state
        status = state.summary.status
        run = live.run
        if status in ("cancelled", "silenced") and run is not None:
            # Somebody ended it, and did not let its body clean up.
            live.drop_run()
            self._cancel_given_up(live, run)
            run = None
        if (
            self.stopping
            or (self.leaving and partition.index in self.leaving)
            or status not in ("running", "sleeping")
            or (run is None and not self._registered(state.summary.name))
        ):
            self._rest(partition, live)
            return
        if live.suspended_at is not None and self._suspend(partition, live):
            return
        if run is None and status == "sleeping" and self._sleeps_on(live):
            self._rest(partition, live)
            return
        seq, now_us = state.summary.seq, self._clock.now_us()
        if live.idle:
            self._idle.pop(live, None)
            live.idle = False
        self.at = live
        try:
            if run is None:
                run = self._start(partition, live, now_us)
                if partition.suspects and live.id in partition.suspects:
                    self.suspects.expect(live, run, now_us)
            else:
                run.advance(now_us, live.durable_seq)
            end = run.end
        except Exception as error:  # a bug of ours, or a history that makes no sense: it concerns this workflow alone
            self._end(partition, live, Died(error_info(error), code_at_fault=True), seq)
            _log.exception("the engine stumbled over workflow %s", live.id, extra=live.fields)
            return
        finally:
            self.at = None
        if end is not None:
            self._end(partition, live, end, seq)
        else:
            if state.summary.seq != seq:
                run.rests_on = state.summary.seq
            if live.durable_seq >= run.rests_on:
                self._arrange(partition, live, run, now_us)
            else:
                self._run_ahead(partition, live, run, now_us)

    def _end(self, partition: Partition, live: Live, end: End, seq: int) -> None:
        """Record how a turn ended that began at ``seq``."""
        if isinstance(end, Died) and end.code_at_fault and live.state.summary.seq != seq:
            # What the turn recorded before it met the mistake must not stand in the mended code's way.
            partition.undo(live, seq)
        self._finish(partition, live, end)

    def wake(self, partition: Partition, workflow_ids: Iterable[str]) -> None:
        """Load workflows and give each a turn."""
        for workflow_id in workflow_ids:
            live = partition.load(workflow_id)
            if live is not None:
                self.turn(partition, live)

    def arm(self, deadlines: Iterable[tuple[str, int]]) -> None:
        """Wake these workflows at their deadlines."""
        for workflow_id, deadline_us in deadlines:
            self.timers.arm(workflow_id, deadline_us)

    def _registered(self, name: str) -> bool:
        if self.registry.get(name) is not None:
            return True
        if name not in self._unregistered:
            self._unregistered.add(name)
            _log.warning("workflows %r wait: this worker has not registered that name", name, extra={"workflow": name})
        return False

    def _start(self, partition: Partition, live: Live, now_us: int) -> Run:
        definition: Workflow[Any, Any] = self.registry[live.state.summary.name]

        def record(data: ev.EventData) -> None:
            partition.record(live, data, hurry=False)  # whatever the turn comes to: it rides with that
            if type(data) is ev.MessageSent:
                partition.publish(live, data)

        run = live.run = Run(live.state, record, self.registry.plan_of)
        dispatched = live.state.dispatched
        assert dispatched is not None
        try:
            given = definition.input_codec.decode(dispatched.input)
        except Exception as error:
            misfit = HistoryDiverged(
                f"the recorded input of workflow {live.id} does not read as the type {definition.name!r} takes "
                f"now: {error}. Give the type a default or a validator that reads the old form, then wake the workflow"
            )
            run.end = Died(error_info(misfit), code_at_fault=True)
            return run
        run.start(lambda strand: definition.fn(WorkflowContext(strand), given), now_us, live.durable_seq)
        return run

    def _finish(self, partition: Partition, live: Live, end: End) -> None:
        """Record how the body ended. A dead run leaves the recorded steps as they are."""
        state = live.state
        is_cancelled = state.cancel_seq is not None and not (isinstance(end, Died) and end.code_at_fault)
        if is_cancelled:
            self._finish_cancelled(partition, live, end)
        elif isinstance(end, Returned):
            try:
                definition = self.registry[state.summary.name]
                output = definition.output_codec.encode(end.value, "output")
                completed = ev.WorkflowCompleted(output, state.document, definition.prune.value)
                # Before the signals are discarded: a run that dies of its output may be mended, and keeps its queue.
                size = len(output) + len(state.document)
                if size > RECORD_BYTES_MAX - 2 * LINE_BYTES_SPARE:
                    raise too_large("the output with the state", size)
                # A workflow that waits for it records it as well, at a place and under names of its own.
                if len(output) > PAYLOAD_BYTES_MAX:
                    raise too_large("the output", len(output), PAYLOAD_BYTES_MAX)
                for left in discarded(tuple(state.queue)):
                    partition.record(live, left)
                partition.record(live, completed)
                partition.tell_waiters(live)
            except GasolineError as error:
                end = Died(error_info(error))
        if isinstance(end, Died) and not is_cancelled:
            partition.record(live, ev.WorkflowFailed(end.error, failures=end.failures))
            error_text = in_a_line(end.error)
            place = {"location": format_location(end.failures[0])} if end.failures else {}
            _log.error(
                "workflow %s %s died: %s",
                state.summary.name,
                live.id,
                error_text,
                extra={**live.fields, **place, "error": error_text, "error_type": end.error.type},
            )
        live.blocked_on = state.summary.seq
        self.timers.disarm(live.id)
        run = live.run
        live.drop_run()
        if run is not None:
            self._cancel_given_up(live, run)

    def _finish_cancelled(self, partition: Partition, live: Live, end: End) -> None:
        """Record that the body is done with its clean-up, in whatever way. What it returned is nobody's concern."""
        state, error = live.state, None
        if isinstance(end, Died):
            error_text = in_a_line(end.error)
            _log.warning(
                "workflow %s %s was cancelled, and left its clean-up with %s",
                state.summary.name,
                live.id,
                error_text,
                extra={**live.fields, "error": error_text, "error_type": end.error.type},
            )
            room = (RECORD_BYTES_MAX - 3 * LINE_BYTES_SPARE - len(state.document)) // 3
            error = shortened(end.error, room) if room > ERROR_BYTES_LEAST else None
        rule = self._home.prune_rule(state.summary.name)
        for data in cancelled(state, error, rule):
            partition.record(live, data)
        partition.tell_waiters(live)

    def _arrange(self, partition: Partition, live: Live, run: Run, now_us: int) -> None:
        """Nothing more can be decided now: start activities, or wait for times and signals."""
        self._cancel_given_up(live, run)
        fresh, run.fresh = run.fresh, []
        for wait in fresh:
            if wait.over:
                continue  # a race was decided meanwhile
            match wait:
                case WaitActivity():
                    if wait.not_before_us is not None:
                        run.retrying[wait.location] = wait
                    elif not self._start_activity(partition, live, wait, now_us):
                        return
                case WaitSleep() | WaitListen():
                    pass  # for its deadline, with all the others
                case WaitSend() | WaitOutput():
                    self.sends.start(live, wait)
                case _:
                    assert_never(wait)
        for wait in list(run.retrying.values()):
            if wait.not_before_us is None or now_us >= wait.not_before_us:
                del run.retrying[wait.location]
                if not self._start_activity(partition, live, wait, now_us):
                    return
        self._arm_for(live, run.next_deadline_us())
        if run.busy > len(run.retrying):
            return
        self._wait(partition, live)

    def _arm_for(self, live: Live, deadline_us: int | None) -> None:
        """Wake it at its next deadline, and at no other: one that it waits for no more is taken back."""
        if deadline_us is None:
            self.timers.disarm(live.id)
        else:
            self.timers.arm(live.id, deadline_us)

    def _run_ahead(self, partition: Partition, live: Live, run: Run, now_us: int) -> None:
        """What it rests on is not durable yet: whatever is to start waits for that, but for ephemeral activities."""
        if run.ephemeral and run.unhurried and not self._retry_is_due(run, now_us):
            fresh, run.fresh = run.fresh, []
            for wait in fresh:
                if not wait.over:
                    assert isinstance(wait, WaitActivity), wait
                    if not self._start_activity(partition, live, wait, now_us):
                        return
            self._arm_for(live, run.next_deadline_us())
            return
        live.blocked_on = run.rests_on
        partition.hurry()

    def _retry_is_due(self, run: Run, now_us: int) -> bool:
        return any(now_us >= (wait.not_before_us or 0) for wait in run.retrying.values())

    def _cancel_given_up(self, live: Live, run: Run) -> None:
        """Stop the activities that nobody waits for any more: of a race's losers, or of a run that is over."""
        for given_up in run.given_up:
            key = key_at(live.state, given_up.location)
            self.runner.cancel(key)
            self.suspects.ended(key)
        run.given_up.clear()

    def leave(self, old: Live, new: Live) -> None:
        """A workflow starts over: let go of its body, and of the activities that belong to what holds no more."""
        old.drop_run()
        self._idle.pop(old, None)
        self.suspects.move(old, new)
        self.runner.cancel_all(old.id, lambda key, location: key != key_at(new.state, location))

    def _wait(self, partition: Partition, live: Live) -> None:
        """Nothing runs for it: it may leave memory after a while."""
        if live.state.summary.status == "sleeping":
            # Woken for nothing, and suspended already: it leaves memory as soon as what woke it is durable.
            live.suspended_at = live.state.summary.seq
            if live.settled:
                self._suspend(partition, live)
            return
        live.idle = True
        self._idle[live] = self._clock.monotonic()

    def _sleeps_on(self, live: Live) -> bool:
        """Whether a suspended workflow has nothing to wake for: no deadline that has passed, no signal it waits for."""
        waiting = live.state.summary.waiting
        assert waiting is not None
        if waiting.signals and live.state.queue:
            return False  # the code may listen for other names by now than when it was suspended
        if waiting.deadline_us is not None and self._clock.now_us() >= waiting.deadline_us:
            return False
        self._arm_for(live, waiting.deadline_us)
        return True

    def _rest(self, partition: Partition, live: Live) -> None:
        """It does not run here, now: a body is closed, and memory let go once everything is durable."""
        run = live.run
        partition.hurry()
        if live.state.summary.status not in ("running", "sleeping"):
            self.timers.disarm(live.id)
        if run is not None and any(
            isinstance(wait, WaitActivity) and self.runner.holds(key_at(live.state, wait.location))
            for wait in run.waits.values()
        ):
            return  # a result is still to be recorded
        if live.settled:
            self._idle.pop(live, None)
            live.idle = False
            partition.drop(live)

    # --- activities ---------------------------------------------------------------------------------------------------

    def _start_activity(self, partition: Partition, live: Live, wait: WaitActivity, now_us: int) -> bool:
        """Start an attempt; False: the definition is wrong, which was the end of the workflow."""
        definition = wait.step.plan.definition
        if definition not in self._met:
            try:
                self.registry.meet(definition)
            except DefinitionError as error:
                self._finish(partition, live, Died(error_info(error), code_at_fault=True))
                return False
            self._met.add(definition)
        suspects = self.suspects
        if not ((suspects.expected or suspects.held) and suspects.holds(live, wait)):
            self.runner.start(live, wait, now_us)
        return True

    def _activity_finished(self, attempt: Attempt) -> None:
        """Record the outcome of an attempt. The runner keeps it until it is durable."""
        live = attempt.live
        partition = live.partition
        if live.run is None or partition.lost:
            return  # rolled back or lost meanwhile: the next turn asks the runner again
        if not live.state.takes_outcome(attempt.wait.location):
            self.runner.forget(attempt)
            return
        outcome = attempt.outcome
        try:
            if isinstance(outcome, bytes):
                outcome = self._record_output(partition, live, attempt, outcome)
            if outcome is not None:
                self._record_failure(partition, live, attempt, outcome)
            partition.recorded(attempt)
            if self.suspects.under_way:
                self.suspects.ended(attempt.key)
            if attempt.wait.step.ephemeral:
                self._go_on_soon(live)
        except Exception as error:
            # The event loop calls this: an error must not be lost in a log line while the workflow stands still.
            self._home.broke(error)

    def _go_on_soon(self, live: Live) -> None:
        """Give the workflow a turn before its answer is durable. Not at once: its turn may be what led here."""
        if not self._answered:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._answered[live] = None

    def _go_on(self) -> None:
        answered, self._answered = self._answered, {}
        for live in answered:
            try:
                if live.run is not None and not live.partition.lost:
                    self.turn(live.partition, live)
            except Exception as error:
                self._home.broke(error)  # as above

    def _record_output(self, partition: Partition, live: Live, attempt: Attempt, output: bytes) -> AttemptFailed | None:
        """Record that an attempt succeeded; or say how it failed after all, if what it gave is too large."""
        hurry = not attempt.wait.ephemeral
        try:
            completed = activity_completed(attempt.wait, attempt.started_us, output, attempt.document)
            tags = attempt.context.changed_tags()
            if tags is not None:
                # Before the result, so that whoever is given that sees the new tags; but not without it.
                partition.require_room(live, completed)
                partition.record(live, ev.WorkflowTagsUpdated(tags), hurry=hurry)
            partition.record(live, completed, hurry=hurry)
        except RecordTooLarge as error:
            return AttemptFailed(error_info(error), final=True)
        return None

    def _record_failure(self, partition: Partition, live: Live, attempt: Attempt, outcome: AttemptFailed) -> None:
        room = RECORD_BYTES_MAX - 3 * LINE_BYTES_SPARE - len(attempt.wait.step.input)
        beat = attempt.context.last_beat()
        if beat is not None:
            room -= len(beat)
        failure = AttemptFailed(shortened(outcome.error, room // 3), outcome.final, beat)
        now_us = self._clock.now_us()
        failed = activity_failed(attempt.wait, attempt.started_us, failure, now_us, self.jitter())
        partition.record(live, failed, hurry=not (attempt.wait.ephemeral and failed.final))
        self._tell(live, failed, now_us)

    def _tell(self, live: Live, failed: ev.ActivityFailed, now_us: int) -> None:
        error_text = in_a_line(failed.error)
        again = "no more" if failed.retry_us is None else f"again in {(failed.retry_us - now_us) / 1e6:.1f} s"
        _log.info(
            "activity %s of workflow %s %s failed in attempt %d, %s: %s",
            failed.name,
            live.state.summary.name,
            live.id,
            failed.attempt,
            again,
            error_text,
            extra={
                **live.fields,
                "location": format_location(failed.location),
                "activity": failed.name,
                "attempt": failed.attempt,
                "error": error_text,
                "error_type": failed.error.type,
            },
        )

    # --- waiting, and leaving memory ----------------------------------------------------------------------------------

    def _due(self, workflow_id: str) -> None:
        if self._home.log.remote:
            _ = self._home.spawn(self._due_elsewhere(workflow_id), "gasoline-due")
        else:
            self._fire(workflow_id)

    async def _due_elsewhere(self, workflow_id: str) -> None:
        """Fire once everything that was sent before is here. While that does not come the deadline waits, as all else does."""
        partition = self._home.partition_of(workflow_id)
        if partition is not None:
            try:
                await self._home.log.refresh((self._home.topics.inbox, partition.index))
            except LogError:
                # The log has failed, or is away for longer than it waits. It is still due then.
                self.timers.arm(workflow_id, self._clock.now_us() + DUE_AGAIN_US)
                return
        self._fire(workflow_id)

    def _fire(self, workflow_id: str) -> None:
        partition = self._home.partition_of(workflow_id)
        if partition is None or self.stopping or partition.index in self.leaving:
            return
        if workflow_id not in partition.lives:
            summary = partition.views.summary(workflow_id)
            if summary is None or summary.status not in ("running", "sleeping"):
                return  # it ended before its deadline
        try:
            # What was sent before the deadline is decided before the deadline (design §5, "Order").
            partition.consume_inbox()
            if not partition.lost:
                self.wake(partition, (workflow_id,))
        except Exception as error:
            self._home.broke(error)  # as above

    def _asked(self, live: Live) -> None:
        """The workflow whose output it waits for knows."""
        if live.blocked_on is None and live.run is not None and not self.stopping:
            self.turn(live.partition, live)

    def _refused(self, live: Live, error: TopicRefused) -> None:
        """A step cannot be carried out as things are: the run is over, and nothing of the step is recorded."""
        told = TopicRefused(f"{error.message}; then wake the workflow", **error.fields)
        told = told.with_traceback(error.__traceback__)
        self._finish(live.partition, live, Died(error_info(told), code_at_fault=True))

    @property
    def next_eviction(self) -> float | None:
        """When the first of those that wait may leave memory, on the monotonic clock."""
        since = next(iter(self._idle.values()), None)
        return None if since is None else since + self._evict_after_s

    def evict_idle(self) -> None:
        """Suspend what has waited longer than the limit; it leaves memory once that is durable."""
        until = self._clock.monotonic() - self._evict_after_s
        for live, since in list(self._idle.items()):
            if since > until:
                return  # in order of waiting since
            del self._idle[live]
            live.idle = False
            partition = self._home.partition_of(live.id)
            if partition is None or live.run is None or live.blocked_on is not None or not live.settled:
                continue  # it has a turn when what was decided is durable
            partition.record(live, _suspended(live.run))
            live.suspended_at = live.blocked_on = live.state.summary.seq

    def _suspend(self, partition: Partition, live: Live) -> bool:
        """Let it leave memory, if nothing has come up since the suspension was decided."""
        at = live.suspended_at
        if live.state.summary.seq != at or live.state.summary.status != "sleeping":
            live.suspended_at = None
            return False
        if not live.settled:
            return True  # what woke it is not durable yet: then it is looked at again
        live.suspended_at = None
        waiting = live.state.summary.waiting
        self._arm_for(live, None if waiting is None else waiting.deadline_us)
        partition.drop(live)
        return True

    def let_leave(self, partition: Partition, now_s: float) -> None:
        """Let no body of a partition go on, and nothing more start there."""
        self.leaving[partition.index] = now_s
        self.suspects.hand_back(partition)
        self.runner.withdraw(partition)
        for live in list(partition.lives.values()):
            self.turn(partition, live)

    def stay(self, partition: Partition) -> None:
        """Let a partition's bodies go on after all, made anew: what was withdrawn is then asked for again."""
        del self.leaving[partition.index]
        for live in partition.lives.values():
            live.drop_run()

    def forget(self, partition: Partition, gone: Sequence[Live]) -> None:
        """The partition is not this process's any more, and ``gone`` were in memory: nothing is waited for there."""
        for live in gone:
            self._idle.pop(live, None)
            self.timers.disarm(live.id)
        for workflow_id in partition.views.deadlines():
            self.timers.disarm(workflow_id)
        self.suspects.forget(gone)

    def close(self) -> None:
        """Stop the timers and let the threads end."""
        self.closed = True
        self.suspects.close()
        self.timers.close()
        self.sends.close()
        self.runner.close()


DUE_AGAIN_US = 1_000_000
"""What is due while the log does not answer is due again after so long."""
OUTPUTS_SHOWN_MAX = 1_000
"""So many of the workflows that a suspended one waits for are named: each wakes it, named or not."""


def _suspended(run: Run) -> ev.WorkflowSuspended:
    deadlines: list[int] = []
    signals: set[str] = set()
    outputs: set[str] = set()
    for wait in run.waits.values():
        match wait:
            case WaitActivity(not_before_us=deadline_us):
                pass
            case WaitSleep(deadline_us=deadline_us):
                pass
            case WaitListen(deadline_us=deadline_us):
                signals.update(wait.step.decoders)
            case WaitOutput():
                outputs.add(wait.step.workflow_id)
                deadline_us = None
            case WaitSend():
                raise AssertionError("a send is under way")
            case _:
                assert_never(wait)
        if deadline_us is not None:
            deadlines.append(deadline_us)
    assert deadlines or signals or outputs, "nothing to wait for"
    shown = tuple(sorted(outputs))[:OUTPUTS_SHOWN_MAX]
    names = shared_names(tuple(sorted(signals)))
    return ev.WorkflowSuspended(min(deadlines, default=None), names, bool(run.retrying), shown)
