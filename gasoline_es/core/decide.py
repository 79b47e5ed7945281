"""What a command or a finished activity makes of a workflow: ``decide(state, command) -> events, reply`` (design §1).

Pure: the state comes in, events go out, nobody is told anything before they are durable. A decision that records nothing
(a repeat, a refusal) has an empty list of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, assert_never

from gasoline_es.core import events as ev
from gasoline_es.core.commands import (
    AwaitOutput,
    Cancel,
    Decidable,
    Dispatch,
    Recover,
    Reply,
    Revive,
    SendSignal,
    Silence,
    TellOutput,
    Wake,
)
from gasoline_es.core.durations import format_time
from gasoline_es.core.ending import cancel, no_more, recover, revive, silence
from gasoline_es.core.ids import time_of
from gasoline_es.core.location import parse_location
from gasoline_es.core.retry import backoff_us
from gasoline_es.core.state import Started, WorkflowState
from gasoline_es.core.values import same_json
from gasoline_es.core.waits import WaitActivity
from gasoline_es.errors import GasolineError, KeyReused, WorkflowCancelled, WorkflowNotFound, WorkflowSilenced

Decision = tuple[list[ev.EventData], Reply]


def decide(state: WorkflowState | None, command: Decidable, request_id: str | None = None) -> Decision:
    """Decide a command against the workflow it names (None: there is no such workflow).

    ``request_id``: of the request by which it came through an inbox, for the dispatch's event to tell.
    """
    match command:
        case Dispatch():
            return _dispatch(state, command, request_id)
        case SendSignal():
            return _signal(state, command)
        case Wake():
            return _wake(state, command)
        case Cancel():
            return ([], Reply(error=not_found(command.workflow_id))) if state is None else cancel(state, command)
        case Silence():
            return ([], Reply(error=not_found(command.workflow_id))) if state is None else silence(state, command)
        case Recover():
            return ([], Reply(error=not_found(command.workflow_id))) if state is None else recover(state, command)
        case Revive():
            return ([], Reply(error=not_found(command.workflow_id))) if state is None else revive(state, command)
        case AwaitOutput():
            return _await_output(state, command)
        case TellOutput():
            return _tell_output(state, command)
        case _:
            assert_never(command)


def _dispatch(state: WorkflowState | None, command: Dispatch, request_id: str | None) -> Decision:
    """A new workflow; or, under an id that exists (a repeat, a caller's key), the one that is there (design §5)."""
    if state is None:
        dispatched = ev.WorkflowDispatched(
            name=command.name,
            input=command.input,
            tags=command.tags,
            unique=command.unique,
            key=command.key,
            parent=command.parent,
            request_id=request_id,
            schedule=command.schedule,
            traceparent=command.traceparent,
        )
        return [dispatched], Reply(command.workflow_id, created=True)
    first = state.dispatched
    if first is not None and not same_json(first.input, command.input):
        return [], Reply(
            error=KeyReused(
                f"the key {command.key!r} belongs to workflow {command.workflow_id} of {first.name!r}, which was dispatched "
                f"with another input: use another key for another input",
                workflow_id=command.workflow_id,
                key=command.key or "",
            )
        )
    return [], Reply(command.workflow_id)


def _signal(state: WorkflowState | None, command: SendSignal) -> Decision:
    if state is None:
        return [], Reply(error=not_found(command.workflow_id))
    if command.signal_id in state.known:
        return [], Reply(command.signal_id)
    if not state.summary.incomplete:
        return [], Reply(error=not_found(command.workflow_id, f"it is {state.summary.status}"))
    if state.summary.status == "unreadable":
        # What it has consumed cannot be told, so neither can a repeat.
        why = f"workflow {command.workflow_id} takes no signals: {state.summary.error}"
        return [], Reply(error=GasolineError(why, workflow_id=command.workflow_id))
    if not command.by_caller and state.forgotten_us is not None and time_of(command.signal_id) <= state.forgotten_us:
        return [], Reply(
            error=GasolineError(
                f"signal {command.signal_id} is older than what workflow {command.workflow_id} remembers, so whether it "
                f"was received before cannot be told: it is refused. Send it anew, with a new id"
            )
        )
    received = ev.SignalReceived(command.signal_id, command.name, command.body, command.sender, command.traceparent)
    return [received], Reply(command.signal_id)


def _wake(state: WorkflowState | None, command: Wake) -> Decision:
    if state is None:
        return [], Reply(error=not_found(command.workflow_id))
    status = state.summary.status
    if status in ("dead", "sleeping"):
        return [ev.WorkflowWoken(command.by)], Reply(command.workflow_id)
    if status == "unreadable":
        error = GasolineError(f"workflow {command.workflow_id} cannot run: {state.summary.error}")
        return [], Reply(error=error)
    if status == "silenced":
        return [], no_more(command.workflow_id)
    return [], Reply(command.workflow_id)  # running or over: there is nothing to wake


def _await_output(state: WorkflowState | None, command: AwaitOutput) -> Decision:
    """The output, if there is one already; else the waiter is told at the end. Asking again changes nothing."""
    if state is None:
        return [], Reply(error=not_found(command.workflow_id))
    if state.output is not None:
        return [], Reply(command.workflow_id, output=state.output)
    if state.summary.status in ("cancelled", "silenced"):
        return [], Reply(error=without_output(command.workflow_id, state.summary.name, state.summary.status))
    waiting_at = parse_location(command.waiting_at)
    if (command.waiter, waiting_at, command.generation) in state.waiters:
        return [], Reply(command.workflow_id)
    added = ev.WaiterAdded(command.waiter, waiting_at, command.version, command.generation)
    return [added], Reply(command.workflow_id)


def _tell_output(state: WorkflowState | None, command: TellOutput) -> Decision:
    """The answer to the step that waits; if it was answered before, or is over without, there is nothing to do."""
    at = parse_location(command.waiting_at)
    if state is None or not state.summary.incomplete or not state.history.open_at(at) or state.history.forgets(at):
        return [], Reply(command.workflow_id)
    if command.generation != state.generation_at(at):
        return [], Reply(command.workflow_id)  # it started over since, and may do something else there
    error = None
    if command.output is None:
        told = without_output(command.of, command.name, "silenced" if command.silenced else "cancelled")
        error = ev.ErrorInfo(type(told).__name__, told.message)
    received = ev.OutputReceived(at, command.version, command.of, command.name, command.output, error)
    return [received], Reply(command.workflow_id)


def not_found(workflow_id: str, why: str = "no such workflow") -> WorkflowNotFound:
    """Return the error for an id that nothing answers to."""
    return WorkflowNotFound(f"workflow {workflow_id} not found: {why}", workflow_id=workflow_id)


def without_output(
    workflow_id: str, name: str, status: Literal["cancelled", "silenced"]
) -> WorkflowCancelled | WorkflowSilenced:
    """Return the error for who waits for the output of a workflow that ended without one, by somebody's wish."""
    kind = WorkflowCancelled if status == "cancelled" else WorkflowSilenced
    told = f"workflow {name!r} {workflow_id} was {status}: it has no output"
    return kind(told, workflow_id=workflow_id, workflow=name)


# --- activities -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """How one attempt of an activity failed. ``final``: it must not be tried again, whatever is left of its attempts.

    ``heartbeat``: the details of its last heartbeat, as JSON.
    """

    error: ev.ErrorInfo
    final: bool = False
    heartbeat: bytes | None = None


def activity_completed(
    wait: WaitActivity, started_us: int, output: bytes, document: bytes | None
) -> ev.ActivityCompleted:
    """Return the fact that an attempt succeeded. ``document``: the workflow's new state, where the activity changed it."""
    step = wait.step
    return ev.ActivityCompleted(
        wait.location, step.version, step.plan.name, wait.attempt, started_us, step.input, output, document
    )


def activity_failed(
    wait: WaitActivity, started_us: int, failure: AttemptFailed, now_us: int, jitter: float
) -> ev.ActivityFailed:
    """Return the fact that an attempt failed: with the time of the next one, or final (semantics.md §4)."""
    step, plan = wait.step, wait.step.plan
    exhausted = wait.attempt >= plan.max_attempts
    final = failure.final or exhausted
    retry_us = None
    if not final:
        retry_us = now_us + backoff_us(plan.backoff_base_us, plan.backoff_doublings, wait.attempt, jitter)
    return ev.ActivityFailed(
        location=wait.location,
        version=step.version,
        name=plan.name,
        attempt=wait.attempt,
        started_us=started_us,
        input=step.input,
        error=failure.error,
        retry_us=retry_us,
        final=final,
        exhausted=exhausted and not failure.final,
        heartbeat=None if final else failure.heartbeat,
    )


STARTS_MAX: Final = 5
"""An activity whose process died so often while it ran as a suspect is not started again (design §5)."""


def process_died(wait: WaitActivity, started: Started) -> ev.ActivityFailed:
    """Return the fact that an activity failed for good because it was under way whenever its process died."""
    step = wait.step
    error = ev.ErrorInfo(
        "ProcessDied",
        f"{started.times} times in a row its process died while this activity ran, the last times with nothing else under "
        f"suspicion beside it; it was last started at {format_time(started.time_us)}. It is not started again. Find out "
        f"what in it ends the process (a crash in native code, more memory than there is, os._exit), mend that, and "
        f"recover the workflow",
    )
    return ev.ActivityFailed(
        location=wait.location,
        version=step.version,
        name=step.plan.name,
        attempt=wait.attempt,
        started_us=started.time_us,
        input=step.input,
        error=error,
        final=True,
    )
