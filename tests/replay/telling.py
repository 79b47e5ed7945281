"""How the scripts show what happened: one line for each event, what it waits for, how it ended."""

from __future__ import annotations

from typing import assert_never

from gasoline_es.core import events as ev
from gasoline_es.core.location import Location, format_location
from gasoline_es.core.waits import Wait, WaitActivity, WaitListen, WaitOutput, WaitSend, WaitSleep
from tests.replay.world import START_US


def time(us: int) -> str:
    """A time as the seconds since the story began: ``+3600s``."""
    seconds, rest = divmod(us - START_US, 1_000_000)
    return f"+{seconds}s" if rest == 0 else f"+{seconds}.{rest:06d}".rstrip("0") + "s"


def event(seq: int, data: ev.EventData) -> str:
    return f"{seq:>2} {_event(data)}"


def _event(data: ev.EventData) -> str:
    match data:
        case ev.WorkflowDispatched():
            return f"dispatched {data.name}"
        case ev.WorkflowSuspended():
            until = "" if data.deadline_us is None else f" until {time(data.deadline_us)}"
            signals = f" for {', '.join(data.signals)}" if data.signals else ""
            return f"suspended{signals}{until}"
        case ev.WorkflowCompleted():
            return f"completed -> {data.output.decode()}"
        case ev.WorkflowFailed():
            return f"dead: {short(data.error)}"
        case ev.WorkflowWoken():
            return f"woken by {data.by}"
        case ev.WorkflowRecovered():
            return f"recovered by {data.by} {', '.join(map(format_location, data.locations))}"
        case ev.WorkflowCancelRequested():
            return f"cancel by {data.by}"
        case ev.WorkflowCancelled():
            return f"cancelled{'' if data.error is None else f': {short(data.error)}'}"
        case ev.WorkflowSilenced():
            return f"silenced by {data.by}"
        case ev.WorkflowRerun():
            spans = ", ".join(f"{first}-{last}" for first, last in data.superseded)
            return f"rerun {data.generation} by {data.by} from {format_location(data.start)} without {spans}"
        case ev.WorkflowTagsUpdated():
            return f"tags {dict(data.tags)}"
        case ev.ActivityStarted():
            return f"{_at(data)} activity {data.name} attempt {data.attempt} starts"
        case ev.ActivityCompleted():
            return f"{_at(data)} activity {data.name}({data.input.decode()}) -> {data.output.decode()}"
        case ev.ActivityFailed():
            again = "for good" if data.retry_us is None else f"again at {time(data.retry_us)}"
            attempt = f"attempt {data.attempt} failed: {data.error}, {again}"
            return f"{_at(data)} activity {data.name}({data.input.decode()}) {attempt}"
        case ev.SignalReceived():
            return f"signal {data.signal_id} {data.name} {data.body.decode()}"
        case ev.SignalDiscarded():
            return f"discarded {', '.join(data.signal_ids)}"
        case ev.SignalConsumed():
            return f"{_at(data)} took {', '.join(data.signal_ids)}"
        case ev.SleepStarted():
            return f"{_at(data)} {'listen' if data.listen else 'sleep'} until {time(data.deadline_us)}"
        case ev.SleepFinished():
            return f"{format_location(data.location)} over: {data.outcome}"
        case ev.StepRemoved():
            return f"{_at(data)} removed {data.kind}{'' if data.name is None else f' {data.name}'}"
        case ev.StepPlaced():
            return f"{_at(data)} placed {data.kind}{'' if data.name is None else f' {data.name}'}"
        case ev.StepInterrupted():
            return f"{_at(data)} interrupted {data.kind}{'' if data.name is None else f' {data.name}'}"
        case ev.VersionChecked():
            return f"{_at(data)} version {data.value}"
        case ev.SignalSent():
            target = "nobody" if data.target is None else data.target
            return f"{_at(data)} sent {data.signal_id} {data.name} {data.body.decode()} to {target}"
        case ev.MessageSent():
            topic = f" to {dict(data.topic)}" if data.topic else ""
            return f"{_at(data)} message {data.name} {data.body.decode()}{topic}"
        case ev.RecordEmitted():
            value = "tombstone" if data.value is None else data.value.decode()
            return f"{_at(data)} emitted {data.topic} {data.key} {value}"
        case ev.WorkflowSpawned():
            return f"{_at(data)} dispatched {data.name} {data.workflow_id}"
        case ev.OutputReceived():
            told = data.output.decode() if data.output is not None else f"error: {data.error}"
            return f"{_at(data)} output of {data.name} {data.workflow_id} -> {told}"
        case ev.WaiterAdded():
            return f"{data.waiter} waits at {format_location(data.waiting_at)}"
        case ev.BranchOpened():
            return f"{_at(data)} {data.kind}{'' if data.name is None else f' {data.name}'}"
        case ev.RaceDecided():
            return f"{_at(data)} won by {data.winner} -> {data.value.decode()}"
        case ev.LoopCommitted():
            over = "" if data.output is None else f" over -> {data.output.decode()}"
            return f"{_at(data)} loop after {data.iteration}: {data.state.decode()}{over}"
        case ev.CheckpointReached():
            return f"{_at(data)} checkpoint"
        case ev.RollbackStarted():
            return f"{_at(data)} rollback: {short(data.error)}"
        case ev.WorkflowPruned():
            return f"pruned by {data.by}, keeps {data.keeps}"
        case ev.Unreadable():
            return f"unreadable {data.type}"
        case _:
            assert_never(data)


def wait(wait: Wait) -> str:
    match wait:
        case WaitActivity():
            later = "" if wait.not_before_us is None else f" not before {time(wait.not_before_us)}"
            given = f"{wait.step.plan.name}({wait.step.input.decode()})"
            kind = "ephemeral activity" if wait.step.ephemeral else "activity"
            return f"waits: {kind} {given} {format_location(wait.location)}, attempt {wait.attempt}{later}"
        case WaitSleep():
            return f"waits: sleep {format_location(wait.location)} until {time(wait.deadline_us)}"
        case WaitSend():
            return f"waits: {wait.step.verb} {wait.step.name} {format_location(wait.location)}"
        case WaitOutput():
            return f"waits: output of {wait.step.name} {wait.step.workflow_id} {format_location(wait.location)}"
        case WaitListen():
            names = ", ".join(sorted(wait.step.decoders))
            until = "" if wait.deadline_us is None else f" until {time(wait.deadline_us)}"
            return f"waits: listen for {names} {format_location(wait.location)}{until}"
        case _:
            assert_never(wait)


def short(error: ev.ErrorInfo) -> str:
    """The type, and the message's first sentence."""
    first = error.message.partition(". ")[0]
    return f"{error.type}: {first}" if first else error.type


def _at(data: ev.LocatedData) -> str:
    location: Location = data.location
    version = 1 if isinstance(data, ev.SleepFinished | ev.RaceDecided) else data.version
    return format_location(location) + ("" if version == 1 else f" v{version}")
