"""One workflow on the pure core: its code, its recorded events, a virtual time in integers. No runtime, no I/O, no asyncio.

It does what the runtime does with a body, in the plainest way: every call that changes something drives the body as far as
it goes, one append at a time. A crash (:meth:`World.crash`) folds the state anew from the encoded events.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

from gasoline_es import WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core.codec import Envelope, decode
from gasoline_es.core.commands import Cancel, Decidable, Dispatch, Recover, Reply, SendSignal, TellOutput, Wake
from gasoline_es.core.decide import AttemptFailed, activity_completed, activity_failed, decide
from gasoline_es.core.ending import cancelled
from gasoline_es.core.folding import fold_facts, fold_without, superseded_in
from gasoline_es.core.location import Location, format_location
from gasoline_es.core.replay import Died, End, Returned, Run
from gasoline_es.core.starting_over import Plan, copied, fork, plan
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.steps import ActivityPlan
from gasoline_es.core.values import dump_json
from gasoline_es.core.waits import Wait, WaitActivity, WaitListen, WaitOutput, WaitSleep

Body = Callable[[WorkflowContext], Coroutine[Any, Any, Any]]

WORKFLOW_ID = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
OTHER_ID = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a40"
START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


PLANS: dict[str, ActivityPlan] = {}
"""The activities of the scripts by name, for what forgotten iterations gave to be rolled back with."""

When = Literal["before", "after"]


def do_nothing(_when: When) -> None:
    """The hook of a world in which nothing goes wrong."""


class World:
    """``up`` is False while no worker runs: then nothing drives the body, but signals are still received.

    ``around_append`` is called before and after each append. If it raises before, nothing of the append happens.
    """

    def __init__(self, body: Body, around_append: Callable[[When], None] = do_nothing) -> None:
        self.body = body
        self.around_append = around_append
        self.now_us = START_US
        self.lines: list[bytes] = []
        self.events: list[ev.EventData] = []
        self.state = WorkflowState(WORKFLOW_ID)
        self.run: Run | None = None
        self.up = True
        self.complaints: list[str] = []
        self._batch: list[tuple[bytes, ev.EventData]] = []
        self._signals = 0
        self._envelope = Envelope(
            namespace="test",
            workflow_id=WORKFLOW_ID,
            workflow="told",
            ray_id="ray",
            partition=3,
            epoch=1,
            worker="w1",
        )

    # --- what one asks of it ------------------------------------------------------------------------------------------

    def dispatch(self) -> Reply:
        return self._decide(Dispatch(WORKFLOW_ID, "told", b"null"))

    def signal(self, name: str, body: bytes, signal_id: str | None = None) -> Reply:
        self._signals += 1
        given = f"s{self._signals}" if signal_id is None else signal_id
        return self._decide(SendSignal(WORKFLOW_ID, given, name, body, by_caller=True))

    def tell_output(self, output: bytes, *, at: Location) -> Reply:
        """Let the other workflow complete whose output it waits for at the location."""
        wait = next(wait for wait in self.waits if wait.location == at)
        assert isinstance(wait, WaitOutput)
        step = wait.step
        return self._decide(
            TellOutput(WORKFLOW_ID, format_location(at), step.version, step.workflow_id, step.name, output)
        )

    def wake(self) -> Reply:
        return self._decide(Wake(WORKFLOW_ID, "operator"))

    def cancel(self, *, now: bool = False) -> Reply:
        return self._decide(Cancel(WORKFLOW_ID, "operator", now))

    def recover(self) -> Reply:
        return self._decide(Recover(WORKFLOW_ID, "operator"))

    def told(self, at: Location, output: bytes | None) -> Reply:
        """Let it be told what became of the workflow whose output it waits for; None: it was cancelled."""
        return self._decide(TellOutput(WORKFLOW_ID, format_location(at), 1, OTHER_ID, "pack", output))

    def advance(self, us: int) -> None:
        self.now_us += us
        self.drive()

    def complete(self, output: Any, document: bytes | None = None, *, at: Location | None = None) -> None:
        """Let an activity it waits for succeed: the one at the location, or the only one."""
        self.finish({self.waiting_activity(at).location: output}, document)

    def fail(self, kind: str, message: str = "", *, final: bool = False, at: Location | None = None) -> None:
        """Let an activity it waits for fail: the one at the location, or the only one."""
        self.finish({self.waiting_activity(at).location: AttemptFailed(ev.ErrorInfo(kind, message), final)})

    def answer(self, data: ev.EventData) -> None:
        """Let a fact be recorded that somebody else decided: a signal was sent, an output came."""
        self._record(data)
        self._append()
        self.drive()

    def finish(
        self,
        outcomes: Mapping[Location, Any],
        document: bytes | None = None,
        *,
        before: ev.EventData | None = None,
        behind: ev.EventData | None = None,
    ) -> None:
        """Let activities end, each with its output or an :class:`AttemptFailed`, in this order and in one append.

        ``before`` and ``behind``: what is decided around that, in the same append. What ephemeral ones gave is not appended
        for its own sake.
        """
        hurry = before is not None or behind is not None
        if before is not None:
            self._record(before)
        for location, outcome in outcomes.items():
            wait = self.waiting_activity(location)
            if isinstance(outcome, AttemptFailed):
                failed = activity_failed(wait, self.now_us, outcome, self.now_us, 0.0)
                self._record(failed)
                hurry = hurry or not failed.final
            else:
                self._record(activity_completed(wait, self.now_us, dump_json(outcome), document))
            hurry = hurry or not wait.step.ephemeral
        if behind is not None:
            self._record(behind)
        if hurry:
            self._append()
        self.drive()

    def suspend(self) -> None:
        """Let it leave memory, as the runtime does with a body that has waited for long."""
        deadlines: list[int] = []
        signals: set[str] = set()
        outputs: set[str] = set()
        for wait in self.waits:
            match wait:
                case WaitActivity(not_before_us=deadline_us):
                    assert deadline_us is not None, "an activity runs"
                case WaitSleep(deadline_us=deadline_us):
                    pass
                case WaitListen(deadline_us=deadline_us):
                    signals.update(wait.step.decoders)
                case WaitOutput():
                    outputs.add(wait.step.workflow_id)
                    deadline_us = None
                case _:
                    raise AssertionError(f"nobody here answers {wait}")
            if deadline_us is not None:
                deadlines.append(deadline_us)
        assert deadlines or signals or outputs, "it waits for nothing"
        retry = any(isinstance(wait, WaitActivity) for wait in self.waits)
        until, others = min(deadlines, default=None), tuple(sorted(outputs))
        self._record(ev.WorkflowSuspended(until, tuple(sorted(signals)), retry=retry, outputs=others))
        self._append()
        self.stop()

    def stop(self) -> None:
        """Take the body out of memory; nothing is recorded."""
        self.up = False
        self.close()
        if self._batch:
            self._undo()

    def close(self) -> None:
        run, self.run = self.run, None
        if run is not None:
            run.close()
            self.complaints += run.complaints

    def crash(self, body: Body | None = None) -> None:
        """Lose everything but the events; read them back. ``body``: the code of the process that comes next."""
        if body is not None:
            self.body = body
        self.close()
        self._undo()
        self.events[:] = [decode(line).data for line in self.lines]

    def restart(self, body: Body | None = None) -> None:
        """Crash, and come back."""
        self.crash(body)
        self.up = True
        self.drive()

    def rerun(self, start: Location) -> Plan:
        """Let it start over from a step. Raises: RerunRefused: nothing happened."""
        assert not self._batch
        facts = self.facts()
        planned = plan(facts, start)
        rerun = planned.fact("operator", f"rerun {planned.generation}")
        self.close()
        seq = len(facts) + 1
        following = (WORKFLOW_ID, seq, self.now_us, rerun, "ray", "w1")
        self.state = fold_without(superseded_in([*facts, following]), WORKFLOW_ID, facts)
        self._record(rerun)
        self._append()
        self.drive()
        return planned

    def fork(self, start: Location, body: Body | None = None) -> World:
        """Return a world of a copy that starts over from a step; nothing runs in it before it is driven."""
        planned = plan(self.facts(), start)
        other = World(self.body if body is None else body)
        for now_us, data in copied(planned, WORKFLOW_ID, "fork"):
            other.now_us = now_us
            other._record(data)
        other.now_us = self.now_us
        other._record(fork(planned, "operator", f"rerun {planned.generation}"))
        other._append()
        other.up = False
        return other

    def facts(self) -> list[ev.Fact]:
        """All that is recorded."""
        return [decode(line).fact for line in self.lines]

    # --- what it does -------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> list[Wait]:
        """All it waits for, in order of their locations."""
        return [] if self.run is None else sorted(self.run.waits.values(), key=lambda wait: wait.location)

    @property
    def wait(self) -> Wait | None:
        """The only thing it waits for, if it waits."""
        if not self.waits:
            return None
        (wait,) = self.waits
        return wait

    @property
    def status(self) -> str:
        return self.state.summary.status

    def waiting_activity(self, at: Location | None = None) -> WaitActivity:
        """The activity it waits for at the location, or the only one."""
        found = [wait for wait in self.waits if isinstance(wait, WaitActivity) and at in (None, wait.location)]
        assert len(found) == 1, f"it waits for no such activity but for {[(w.location, w.step) for w in self.waits]!r}"
        return found[0]

    def drive(self) -> None:
        """Resume the body until it waits for something outside of it, or has ended."""
        while self.up and self.status in ("running", "sleeping"):
            run, durable_seq = self.run, len(self.events)
            if run is None:
                run = self._start(durable_seq)
            else:
                run.advance(self.now_us, durable_seq)
            rides = run.end is None and run.unhurried
            run.fresh.clear()  # the worlds of these tests see to what is in `waits`
            run.given_up.clear()
            if run.end is not None:
                self._finish(run.end)
            if not self._batch or rides:
                return
            self._append()
        if self.status == "cancelled":
            self.close()

    def _start(self, durable_seq: int) -> Run:
        self.run = run = Run(self.state, self._record, PLANS.get)
        run.start(lambda strand: self.body(WorkflowContext(strand)), self.now_us, durable_seq)
        return run

    def _finish(self, end: End) -> None:
        if self.state.cancel_seq is not None and not (isinstance(end, Died) and end.code_at_fault):
            for data in cancelled(self.state, end.error if isinstance(end, Died) else None):
                self._record(data)
            self.close()
            return
        match end:
            case Returned(value):
                if self.state.queue:
                    self._record(ev.SignalDiscarded(tuple(self.state.queue)))
                self._record(ev.WorkflowCompleted(dump_json(value), self.state.document))
            case Died(error, code_at_fault, failures):
                if code_at_fault:
                    self._undo()
                self._record(ev.WorkflowFailed(error, failures=failures))
            case _:
                raise AssertionError("nobody cancelled it")
        self.close()

    def _undo(self) -> None:
        """Take back what was not appended."""
        self._batch.clear()
        self.state = fold_facts(WORKFLOW_ID, self.facts)

    def _decide(self, command: Decidable) -> Reply:
        events, reply = decide(self.state if self.events else None, command)
        for data in events:
            self._record(data)
        self._append()
        self.drive()
        return reply

    def _record(self, data: ev.EventData) -> None:
        seq = self.state.summary.seq + 1
        self._batch.append((self._envelope.encode(seq, self.now_us, data), data))
        self.state.apply(seq, self.now_us, data, "ray", "w1")

    def _append(self) -> None:
        """One append: all of it, or (a crash) nothing."""
        if not self._batch:
            return
        self.around_append("before")
        for line, data in self._batch:
            self.lines.append(line)
            self.events.append(data)
        self._batch.clear()
        self.around_append("after")
