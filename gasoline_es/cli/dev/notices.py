"""What ``gasoline dev`` tells, one notice for each thing that happened: a line of text, or a JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gasoline_es.cli import render
from gasoline_es.cli.dev.picture import Life
from gasoline_es.cli.escape import escape
from gasoline_es.cli.listing import error_members
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event
from gasoline_es.core.location import format_location

_FILES_SHOWN_MAX: Final = 3
_TRACEBACK_LINES_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class Notice:
    """``text``: one line, safe to show. ``more``: lines that stand below it on a terminal. ``members``: what JSON holds."""

    kind: str
    text: str
    style: str = ""
    more: Sequence[str] = ()
    members: Mapping[str, Any] = field(default_factory=dict[str, Any])


# --- of the worker and its code ---------------------------------------------------------------------------------------


def started(module: str, url: str, namespace: str, watched: Sequence[str], ignored: str | None) -> Notice:
    """The command begins. ``ignored``: what GASOLINE_LOG says, which is not used."""
    place = "" if namespace == "default" else f", namespace {escape(namespace)}"
    unused = "" if ignored is None else f" (GASOLINE_LOG is not used here: --log {escape(ignored)} would name that log)"
    text = f"{escape(module)} on the log {escape(url)}{place}{unused}; watches {escape(', '.join(watched))}"
    members = {"module": module, "log": url, "namespace": namespace, "watched": list(watched)}
    return Notice("started", text, "bold", members=members)


def ready(pid: int, workflows: Sequence[str], woken: int) -> Notice:
    """A worker runs."""
    names = escape(", ".join(workflows))
    again = "" if not woken else f"; {render.count(woken, 'workflow')} that the old code had let die go on"
    members = {"pid": pid, "workflows": list(workflows), "woken": woken}
    return Notice("ready", f"worker {pid} runs {names}{again}", "green", members=members)


def refused(message: str) -> Notice:
    """The code cannot be loaded."""
    text = f"{escape(message)}. Nothing runs until it is saved again"
    return Notice("refused", text, "bold red", members={"message": message})


def reload(files: Sequence[str]) -> Notice:
    """The code was saved."""
    shown = ", ".join(files[:_FILES_SHOWN_MAX]) + (", …" if len(files) > _FILES_SHOWN_MAX else "")
    return Notice("reload", f"saved: {escape(shown)}", "cyan", members={"files": list(files)})


def died(pid: int, status: int, again_s: float) -> Notice:
    """The worker's process ended although nobody had asked it to. ``status``: negative for a signal."""
    how = f"exit status {status}" if status >= 0 else f"signal {-status}"
    text = f"worker {pid} ended by itself ({how}); another starts in {again_s:g} s, or when the code is saved"
    members = {"pid": pid, "status": status, "again_s": again_s}
    return Notice("worker_ended", text, "bold red", members=members)


def killed(pid: int) -> Notice:
    """It did not stop in time."""
    text = f"worker {pid} does not stop and is killed: what ran then is started again with care"
    return Notice("worker_killed", text, "yellow", members={"pid": pid})


def stopping() -> Notice:
    """Somebody asked for the end."""
    text = "stopping: running activities may end; again, and they are given up"
    return Notice("stopping", text, "bold")


def stopped() -> Notice:
    """The end. What was durable is."""
    return Notice("stopped", "stopped", "bold")


# --- of the log -------------------------------------------------------------------------------------------------------


def unreadable(message: str) -> Notice:
    """The log cannot be shown any more; the worker may go on."""
    text = f"what happens cannot be shown: {escape(message)}"
    return Notice("log_unreadable", text, "bold red", members={"message": message})


def shared(host: str, pid: int) -> Notice:
    """Another worker runs on this log."""
    text = f"another worker runs on this log, process {pid} on {escape(host)}: in its own code it takes a share of them all"
    return Notice("log_shared", text, "bold yellow", members={"host": host, "pid": pid})


def left(host: str, pid: int) -> Notice:
    """Another worker that ran on this log is gone."""
    text = f"the other worker, process {pid} on {escape(host)}, is gone: what it ran goes on here"
    return Notice("log_left", text, "yellow", members={"host": host, "pid": pid})


def left_dead(number: int, url: str) -> Notice:
    """Some were dead before of what code can mend."""
    what = render.count(number, "workflow")
    text = (
        f"{what} had died before of code that did not fit: gasoline --log {escape(url)} workflow list --status dead shows "
        "them, workflow revive wakes them"
    )
    return Notice("dead_before", text, "yellow", members={"workflows": number})


def happening(event: Event, life: Life, *, revives: bool, url: str) -> Notice | None:
    """What of an event is told as it happens; None: nothing. ``revives``: the dead are woken by a change of the code."""
    data = event.data
    name = escape(life.summary.name or event.workflow)
    members: dict[str, Any] = {"id": event.workflow_id, "name": life.summary.name or event.workflow}
    whose = f"{name} {escape(event.workflow_id)}"
    match data:
        case ev.WorkflowDispatched():
            below = "" if data.parent is None else f", by {escape(data.parent)}"
            members["parent"] = data.parent
            return Notice("dispatched", f"dispatched {whose}{below}", members=members)
        case ev.WorkflowCompleted():
            return Notice("completed", f"completed {whose}", "green", members=members)
        case ev.WorkflowFailed():
            return _dead(data.error, life, whose, members, revives, url)
        case ev.WorkflowCancelled():
            return Notice("cancelled", f"cancelled {whose}", "yellow", members=members)
        case ev.WorkflowSilenced():
            return Notice("silenced", f"silenced {whose}", members=members)
        case ev.WorkflowWoken() | ev.WorkflowRecovered():
            members["by"] = data.by
            return Notice("woken", f"woken {whose}, by {escape(data.by)}", members=members)
        case ev.WorkflowRerun():
            members |= {"by": data.by, "start": format_location(data.start)}
            return Notice("rerun", f"{whose} starts over from {format_location(data.start)}", members=members)
        case ev.ActivityFailed():
            return _attempt_failed(data, event, whose, members)
        case _:
            return None


def _dead(error: ev.ErrorInfo, life: Life, whose: str, members: dict[str, Any], revives: bool, url: str) -> Notice:
    members["error"] = error_members(error)
    if life.mendable and revives:
        more = ["Mend the code and save it: then it goes on from where it was."]
    else:
        woken = f"gasoline --log {escape(url)} workflow wake {escape(life.summary.id)}"
        more = [f"Once its cause is mended: {woken}"]
    trace = error.traceback.rstrip("\n").split("\n")[-_TRACEBACK_LINES_MAX:] if error.traceback else []
    text = f"dead {whose}: {render.error(error, full=True)}"
    return Notice("dead", text, "bold red", [*map(escape, trace), *more], members)


def _attempt_failed(data: ev.ActivityFailed, event: Event, whose: str, members: dict[str, Any]) -> Notice:
    again = "no more" if data.retry_us is None else f"next {render.duration(data.retry_us - event.time_us)} later"
    what = f"attempt {data.attempt} of {escape(data.name)} {format_location(data.location)} failed"
    members |= {
        "activity": data.name,
        "location": format_location(data.location),
        "attempt": data.attempt,
        "final": data.final,
        "error": error_members(data.error),
    }
    text = f"{what} in {whose}: {render.error(data.error)}; {again}"
    return Notice("attempt_failed", text, "yellow", members=members)
