"""How each fact is read from the ``data`` of its CloudEvent (design §4). The other way round: ``core.fact_writing``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

from pydantic_core import to_json

from gasoline_es.core import events as ev
from gasoline_es.core.durations import parse_time
from gasoline_es.core.location import Location, parse_location
from gasoline_es.core.shared import shared_names

Data = dict[str, Any]

_RULES: Final = get_args(ev.PruneRule)


def _read_error(data: Data) -> ev.ErrorInfo:
    details = to_json(data["details"]) if "details" in data else None
    return ev.ErrorInfo(data["type"], data["message"], data.get("traceback", ""), details)


def _read_text(text: Any) -> str:
    """Views look workflows up by it: what cannot be looked up concerns its workflow alone."""
    if not isinstance(text, str):
        raise TypeError(f"a text was expected, not {type(text).__name__}")
    return text


def _read_tags(tags: Any) -> dict[str, str]:
    return {_read_text(name): _read_text(value) for name, value in tags.items()}


def _read_dispatched(d: Data) -> ev.EventData:
    return ev.WorkflowDispatched(
        name=_read_text(d["name"]),
        input=to_json(d["input"]),
        tags=_read_tags(d["tags"]),
        unique=d["unique"],
        key=d.get("key"),
        parent=d.get("parent"),
        request_id=d.get("request_id"),
        forked_from=d.get("forked_from"),
        seed=d.get("seed"),
        schedule=d.get("schedule"),
    )


def _read_suspended(d: Data) -> ev.EventData:
    deadline = parse_time(d["deadline"]) if "deadline" in d else None
    signals, outputs = shared_names(tuple(d.get("signals", ()))), tuple(d.get("outputs", ()))
    return ev.WorkflowSuspended(deadline, signals, d.get("retry", False), outputs)


def _read_activity_completed(d: Data) -> ev.EventData:
    return ev.ActivityCompleted(
        location=parse_location(d["location"]),
        version=d["version"],
        name=d["name"],
        attempt=d["attempt"],
        started_us=parse_time(d["started"]),
        input=to_json(d["input"]),
        output=to_json(d["output"]),
        state=to_json(d["state"]) if "state" in d else None,
    )


def _read_activity_failed(d: Data) -> ev.EventData:
    return ev.ActivityFailed(
        location=parse_location(d["location"]),
        version=d["version"],
        name=d["name"],
        attempt=d["attempt"],
        started_us=parse_time(d["started"]),
        input=to_json(d["input"]),
        error=_read_error(d["error"]),
        retry_us=parse_time(d["retry_at"]) if "retry_at" in d else None,
        final=d["final"],
        exhausted=d.get("exhausted", False),
        heartbeat=to_json(d["heartbeat"]) if "heartbeat" in d else None,
    )


def _read_sleep_started(d: Data) -> ev.EventData:
    return ev.SleepStarted(parse_location(d["location"]), d["version"], parse_time(d["deadline"]), d["listen"])


def _read_output(d: Data) -> ev.EventData:
    return ev.OutputReceived(
        parse_location(d["location"]),
        d["version"],
        d["workflow_id"],
        d["name"],
        to_json(d["output"]) if "output" in d else None,
        _read_error(d["error"]) if "error" in d else None,
    )


def _read_spawned(d: Data) -> ev.EventData:
    at = parse_location(d["location"])
    return ev.WorkflowSpawned(at, d["version"], d["workflow_id"], d["name"], d["tags"], d["unique"], d["created"])


def _read_sent(d: Data) -> ev.EventData:
    at = parse_location(d["location"])
    return ev.SignalSent(at, d["version"], d["signal_id"], d["name"], to_json(d["body"]), d["target"])


def _read_message(d: Data) -> ev.EventData:
    return ev.MessageSent(parse_location(d["location"]), d["version"], d["name"], d["topic"], to_json(d["body"]))


def _read_emitted(d: Data) -> ev.EventData:
    value = to_json(d["value"]) if "value" in d else None
    return ev.RecordEmitted(parse_location(d["location"]), d["version"], d["topic"], d["key"], value, d["partition"])


def _read_loop(d: Data) -> ev.EventData:
    output = to_json(d["output"]) if "output" in d else None
    handlers = tuple(
        ev.RollbackHandler(one["name"], to_json(one["input"]), one["seq"]) for one in d.get("handlers", ())
    )
    at = parse_location(d["location"])
    state, checkpoint = to_json(d["state"]), d.get("checkpoint", False)
    return ev.LoopCommitted(at, d["version"], d["iteration"], state, output, handlers, checkpoint)


def _read_rollback(d: Data) -> ev.EventData:
    return ev.RollbackStarted(parse_location(d["location"]), d["version"], _read_error(d["error"]))


def _read_completed(d: Data) -> ev.EventData:
    return ev.WorkflowCompleted(to_json(d["output"]), to_json(d["state"]), _read_rule(d))


def _read_cancelled(d: Data) -> ev.EventData:
    error = _read_error(d["error"]) if "error" in d else None
    return ev.WorkflowCancelled(to_json(d["state"]), error, _read_rule(d))


def _read_rule(d: Data) -> ev.PruneRule:
    rule: ev.PruneRule = d.get("prune", "all")
    if rule not in _RULES:
        raise ValueError(f"prune is {rule!r}")
    return rule


def _read_pruned(d: Data) -> ev.EventData:
    remains = None
    if d["variant"] == "history":
        one = d["remains"]
        if one["status"] not in ("complete", "cancelled"):
            raise ValueError(f"status is {one['status']!r}")
        error = _read_error(one["error"]) if "error" in one else None
        remains = ev.Remains(one["status"], parse_time(one["completed"]), _read_tags(one["tags"]), error)
    elif d["variant"] != "all":
        raise ValueError(f"variant is {d['variant']!r}")
    keeps = tuple(d["keeps"])
    if any(type(seq) is not int for seq in keeps) or (remains is None) != (not keeps):
        raise ValueError(f"keeps {keeps!r}")
    first = d.get("first")
    if first is not None and (type(first) is not int or first < 1):
        raise ValueError(f"first is {first!r}")
    return ev.WorkflowPruned(d["by"], keeps, remains, d.get("reason"), first)


def _read_rerun(d: Data) -> ev.EventData:
    return ev.WorkflowRerun(
        by=d["by"],
        start=parse_location(d["from"]),
        generation=d["generation"],
        superseded=tuple((first, last) for first, last in d["superseded"]),
        beside=_read_places(d["beside"]),
        tags=_read_tags(d["tags"]),
        returned=tuple((signal_id, name) for signal_id, name in d["returned"]),
        rerun_id=d.get("rerun_id", ""),
        seed=d.get("seed"),
    )


def _read_places(texts: Iterable[str]) -> tuple[Location, ...]:
    return tuple(map(parse_location, texts))


READERS: Final[dict[str, Callable[[Data], ev.EventData]]] = {
    "workflow.dispatched": _read_dispatched,
    "workflow.suspended": _read_suspended,
    "workflow.completed": _read_completed,
    "workflow.failed": lambda d: ev.WorkflowFailed(
        _read_error(d["error"]), d["final"], _read_places(d.get("failures", ()))
    ),
    "workflow.woken": lambda d: ev.WorkflowWoken(d["by"]),
    "workflow.recovered": lambda d: ev.WorkflowRecovered(d["by"], _read_places(d["locations"])),
    "workflow.cancel_requested": lambda d: ev.WorkflowCancelRequested(d["by"]),
    "workflow.cancelled": _read_cancelled,
    "workflow.silenced": lambda d: ev.WorkflowSilenced(d["by"]),
    "workflow.rerun": _read_rerun,
    "workflow.pruned": _read_pruned,
    "workflow.tags_updated": lambda d: ev.WorkflowTagsUpdated(_read_tags(d["tags"])),
    "activity.started": lambda d: ev.ActivityStarted(
        parse_location(d["location"]), d["version"], d["name"], d["attempt"]
    ),
    "activity.completed": _read_activity_completed,
    "activity.failed": _read_activity_failed,
    "signal.received": lambda d: ev.SignalReceived(d["signal_id"], d["name"], to_json(d["body"]), d.get("sender")),
    "signal.discarded": lambda d: ev.SignalDiscarded(tuple(d["signal_ids"]), d.get("by")),
    "signal.consumed": lambda d: ev.SignalConsumed(parse_location(d["location"]), d["version"], tuple(d["signal_ids"])),
    "sleep.started": _read_sleep_started,
    "sleep.finished": lambda d: ev.SleepFinished(parse_location(d["location"]), d["outcome"]),
    "step.removed": lambda d: ev.StepRemoved(parse_location(d["location"]), d["version"], d["kind"], d.get("name")),
    "step.placed": lambda d: ev.StepPlaced(parse_location(d["location"]), d["version"], d["kind"], d.get("name")),
    "step.interrupted": lambda d: ev.StepInterrupted(
        parse_location(d["location"]), d["version"], d["kind"], d.get("name")
    ),
    "branch.opened": lambda d: ev.BranchOpened(parse_location(d["location"]), d["version"], d["kind"], d.get("name")),
    "race.decided": lambda d: ev.RaceDecided(parse_location(d["location"]), d["winner"], to_json(d["value"])),
    "loop.committed": _read_loop,
    "checkpoint.reached": lambda d: ev.CheckpointReached(parse_location(d["location"]), d["version"]),
    "rollback.started": _read_rollback,
    "signal.sent": _read_sent,
    "message.sent": _read_message,
    "record.emitted": _read_emitted,
    "workflow.spawned": _read_spawned,
    "output.received": _read_output,
    "waiter.added": lambda d: ev.WaiterAdded(
        d["waiter"], parse_location(d["waiting_at"]), d["version"], d.get("generation", 0)
    ),
    "version.checked": lambda d: ev.VersionChecked(parse_location(d["location"]), d["version"], d["value"]),
}
"""Reads the data of each type of fact, by the type's name without ``gasoline.`` and version. Raises KeyError, TypeError,
ValueError or AttributeError for what is none."""
