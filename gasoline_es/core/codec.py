"""How an event is written: one structured CloudEvent 1.0 in JSON, readable without this library (design §4).

    {"specversion":"1.0","id":"<workflow id>/<seq>","source":"/gasoline/<namespace>","type":"gasoline.<type>.v1",
     "subject":"<workflow id>","time":"…Z","datacontenttype":"application/json","seq":5,"partition":3,"epoch":2,
     "workflow":"fulfil","rayid":"…","worker":"…","data":{…}}

Payloads are embedded as the JSON they are. Reading goes through pydantic-core's parser, which keeps integers of any size
exact (``orjson.loads`` reads 2^64 as a float); a payload counts by value, so its re-rendered form is as good as its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, cast

import orjson
from pydantic_core import from_json, to_json

from gasoline_es.core import events as ev
from gasoline_es.core.durations import format_time, parse_second, parse_time
from gasoline_es.core.location import Location, format_location, parse_location
from gasoline_es.core.memo import Memo

_raw = orjson.Fragment
_dumps = orjson.dumps


class Envelope:
    """The part of the CloudEvent that is the same for every event of one workflow under one epoch: rendered once."""

    __slots__ = ("_id", "_tail", "_time", "_type")

    def __init__(
        self, *, namespace: str, workflow_id: str, workflow: str, ray_id: str, partition: int, epoch: int, worker: str
    ) -> None:
        # Ids and names come from outside too: escaped, here and once, they cannot break the line.
        workflow_id = _inner(workflow_id)
        self._id = f'{{"specversion":"1.0","id":"{workflow_id}/'
        self._type = f'","source":"/gasoline/{_inner(namespace)}","type":"gasoline.'
        self._time = f'.v1","subject":"{workflow_id}","time":"'
        self._tail = (
            f',"partition":{partition},"epoch":{epoch},"workflow":"{_inner(workflow)}","rayid":"{_inner(ray_id)}",'
            f'"worker":"{_inner(worker)}","data":'
        )

    def encode(self, seq: int, time_us: int, data: ev.EventData) -> bytes:
        """Render the event as one line of JSON."""
        head = (
            f"{self._id}{seq}{self._type}{data.TYPE}{self._time}{format_time(time_us)}"
            f'","datacontenttype":"application/json","seq":{seq}{self._tail}'
        )
        if isinstance(data, ev.ActivityCompleted):
            return _activity_completed(head, data)
        return b"%b%b}" % (head.encode(), _dumps(_ENCODERS[type(data)](data)))


@lru_cache(maxsize=4096)
def _inner(text: str) -> str:
    """The text as it stands between the quotes of a JSON string."""
    return _dumps(text).decode()[1:-1]


# --- writing ----------------------------------------------------------------------------------------------------------


def _error(error: ev.ErrorInfo) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": error.type, "message": error.message}
    if error.traceback:
        shown["traceback"] = error.traceback
    if error.details is not None:
        shown["details"] = _raw(error.details)
    return shown


def _dispatched(e: ev.WorkflowDispatched) -> dict[str, Any]:
    data: dict[str, Any] = {"name": e.name, "input": _raw(e.input), "tags": dict(e.tags), "unique": e.unique}
    for name in ("key", "parent", "request_id", "forked_from", "seed"):
        value = getattr(e, name)
        if value is not None:
            data[name] = value
    return data


def _suspended(e: ev.WorkflowSuspended) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if e.deadline_us is not None:
        data["deadline"] = format_time(e.deadline_us)
    if e.signals:
        data["signals"] = e.signals
    if e.retry:
        data["retry"] = True
    if e.outputs:
        data["outputs"] = e.outputs
    return data


def _completed(e: ev.WorkflowCompleted) -> dict[str, Any]:
    return {"output": _raw(e.output), "state": _raw(e.state)}


def _failed(e: ev.WorkflowFailed) -> dict[str, Any]:
    data: dict[str, Any] = {"error": _error(e.error), "final": e.final}
    if e.failures:
        data["failures"] = _places(e.failures)
    return data


def _recovered(e: ev.WorkflowRecovered) -> dict[str, Any]:
    return {"by": e.by, "locations": _places(e.locations)}


def _cancelled(e: ev.WorkflowCancelled) -> dict[str, Any]:
    data: dict[str, Any] = {"state": _raw(e.state)}
    if e.error is not None:
        data["error"] = _error(e.error)
    return data


def _rerun(e: ev.WorkflowRerun) -> dict[str, Any]:
    data: dict[str, Any] = {
        "by": e.by,
        "from": format_location(e.start),
        "generation": e.generation,
        "superseded": e.superseded,
        "beside": _places(e.beside),
        "tags": dict(e.tags),
        "returned": e.returned,
    }
    if e.rerun_id:
        data["rerun_id"] = e.rerun_id
    if e.seed is not None:
        data["seed"] = e.seed
    return data


def _places(locations: Iterable[Location]) -> list[str]:
    return [format_location(location) for location in locations]


def _tagged(e: ev.WorkflowTagsUpdated) -> dict[str, Any]:
    return {"tags": dict(e.tags)}


def _by(e: ev.WorkflowWoken | ev.WorkflowCancelRequested) -> dict[str, Any]:
    return {"by": e.by}


def _activity_started(e: ev.ActivityStarted) -> dict[str, Any]:
    return {"location": format_location(e.location), "version": e.version, "name": e.name, "attempt": e.attempt}


def _activity_completed(head: str, e: ev.ActivityCompleted) -> bytes:
    # The event of nearly every step, put together by hand: half the time of a dictionary and its rendering.
    head = (
        f'{head}{{"location":"{format_location(e.location)}","version":{e.version},"name":"{_inner(e.name)}",'
        f'"attempt":{e.attempt},"started":"{format_time(e.started_us)}","input":'
    )
    if e.state is None:
        return b'%b%b,"output":%b}}' % (head.encode(), e.input, e.output)
    return b'%b%b,"output":%b,"state":%b}}' % (head.encode(), e.input, e.output, e.state)


def _activity_failed(e: ev.ActivityFailed) -> dict[str, Any]:
    data: dict[str, Any] = {
        "location": format_location(e.location),
        "version": e.version,
        "name": e.name,
        "attempt": e.attempt,
        "started": format_time(e.started_us),
        "input": _raw(e.input),
        "error": _error(e.error),
        "final": e.final,
    }
    if e.retry_us is not None:
        data["retry_at"] = format_time(e.retry_us)
    if e.exhausted:
        data["exhausted"] = True
    if e.heartbeat is not None:
        data["heartbeat"] = _raw(e.heartbeat)
    return data


def _received(e: ev.SignalReceived) -> dict[str, Any]:
    data: dict[str, Any] = {"signal_id": e.signal_id, "name": e.name, "body": _raw(e.body)}
    if e.sender is not None:
        data["sender"] = e.sender
    return data


def _discarded(e: ev.SignalDiscarded) -> dict[str, Any]:
    return {"signal_ids": e.signal_ids}


def _consumed(e: ev.SignalConsumed) -> dict[str, Any]:
    return {"location": format_location(e.location), "version": e.version, "signal_ids": e.signal_ids}


def _sleep_started(e: ev.SleepStarted) -> dict[str, Any]:
    return {
        "location": format_location(e.location),
        "version": e.version,
        "deadline": format_time(e.deadline_us),
        "listen": e.listen,
    }


def _sleep_finished(e: ev.SleepFinished) -> dict[str, Any]:
    return {"location": format_location(e.location), "outcome": e.outcome}


def _of_kind(e: ev.StepRemoved | ev.StepPlaced | ev.StepInterrupted | ev.BranchOpened) -> dict[str, Any]:
    data: dict[str, Any] = {"location": format_location(e.location), "version": e.version, "kind": e.kind}
    if e.name is not None:
        data["name"] = e.name
    return data


def _checked(e: ev.VersionChecked) -> dict[str, Any]:
    return {"location": format_location(e.location), "version": e.version, "value": e.value}


def _decided(e: ev.RaceDecided) -> dict[str, Any]:
    return {"location": format_location(e.location), "winner": e.winner, "value": _raw(e.value)}


def _sent(e: ev.SignalSent) -> dict[str, Any]:
    return {
        "location": format_location(e.location),
        "version": e.version,
        "signal_id": e.signal_id,
        "name": e.name,
        "body": _raw(e.body),
        "target": e.target,
    }


def _spawned(e: ev.WorkflowSpawned) -> dict[str, Any]:
    return {
        "location": format_location(e.location),
        "version": e.version,
        "workflow_id": e.workflow_id,
        "name": e.name,
        "tags": dict(e.tags),
        "unique": e.unique,
        "created": e.created,
    }


def _output(e: ev.OutputReceived) -> dict[str, Any]:
    data: dict[str, Any] = {
        "location": format_location(e.location),
        "version": e.version,
        "workflow_id": e.workflow_id,
        "name": e.name,
    }
    if e.output is not None:
        data["output"] = _raw(e.output)
    if e.error is not None:
        data["error"] = _error(e.error)
    return data


def _waiter(e: ev.WaiterAdded) -> dict[str, Any]:
    data: dict[str, Any] = {"waiter": e.waiter, "waiting_at": format_location(e.waiting_at), "version": e.version}
    if e.generation:
        data["generation"] = e.generation
    return data


def _loop(e: ev.LoopCommitted) -> dict[str, Any]:
    data: dict[str, Any] = {
        "location": format_location(e.location),
        "version": e.version,
        "iteration": e.iteration,
        "state": _raw(e.state),
    }
    if e.output is not None:
        data["output"] = _raw(e.output)
    if e.handlers:
        data["handlers"] = [{"name": one.name, "input": _raw(one.input), "seq": one.seq} for one in e.handlers]
    if e.checkpoint:
        data["checkpoint"] = True
    return data


def _checkpoint(e: ev.CheckpointReached) -> dict[str, Any]:
    return {"location": format_location(e.location), "version": e.version}


def _rollback(e: ev.RollbackStarted) -> dict[str, Any]:
    return {"location": format_location(e.location), "version": e.version, "error": _error(e.error)}


_ENCODERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    ev.WorkflowDispatched: _dispatched,
    ev.WorkflowSuspended: _suspended,
    ev.WorkflowCompleted: _completed,
    ev.WorkflowFailed: _failed,
    ev.WorkflowWoken: _by,
    ev.WorkflowRecovered: _recovered,
    ev.WorkflowCancelRequested: _by,
    ev.WorkflowCancelled: _cancelled,
    ev.WorkflowRerun: _rerun,
    ev.WorkflowTagsUpdated: _tagged,
    ev.ActivityStarted: _activity_started,
    ev.ActivityFailed: _activity_failed,
    ev.SignalReceived: _received,
    ev.SignalDiscarded: _discarded,
    ev.SignalConsumed: _consumed,
    ev.SleepStarted: _sleep_started,
    ev.SleepFinished: _sleep_finished,
    ev.StepRemoved: _of_kind,
    ev.StepPlaced: _of_kind,
    ev.StepInterrupted: _of_kind,
    ev.VersionChecked: _checked,
    ev.BranchOpened: _of_kind,
    ev.RaceDecided: _decided,
    ev.LoopCommitted: _loop,
    ev.CheckpointReached: _checkpoint,
    ev.RollbackStarted: _rollback,
    ev.SignalSent: _sent,
    ev.WorkflowSpawned: _spawned,
    ev.OutputReceived: _output,
    ev.WaiterAdded: _waiter,
}

# --- reading ----------------------------------------------------------------------------------------------------------

Data = dict[str, Any]


def _read_error(data: Data) -> ev.ErrorInfo:
    details = to_json(data["details"]) if "details" in data else None
    return ev.ErrorInfo(data["type"], data["message"], data.get("traceback", ""), details)


def _read_dispatched(d: Data) -> ev.EventData:
    return ev.WorkflowDispatched(
        name=d["name"],
        input=to_json(d["input"]),
        tags=d["tags"],
        unique=d["unique"],
        key=d.get("key"),
        parent=d.get("parent"),
        request_id=d.get("request_id"),
        forked_from=d.get("forked_from"),
        seed=d.get("seed"),
    )


def _read_suspended(d: Data) -> ev.EventData:
    deadline = parse_time(d["deadline"]) if "deadline" in d else None
    signals, outputs = tuple(d.get("signals", ())), tuple(d.get("outputs", ()))
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


def _read_cancelled(d: Data) -> ev.EventData:
    return ev.WorkflowCancelled(to_json(d["state"]), _read_error(d["error"]) if "error" in d else None)


def _read_rerun(d: Data) -> ev.EventData:
    return ev.WorkflowRerun(
        by=d["by"],
        start=parse_location(d["from"]),
        generation=d["generation"],
        superseded=tuple((first, last) for first, last in d["superseded"]),
        beside=_read_places(d["beside"]),
        tags=d["tags"],
        returned=tuple((signal_id, name) for signal_id, name in d["returned"]),
        rerun_id=d.get("rerun_id", ""),
        seed=d.get("seed"),
    )


def _read_places(texts: Iterable[str]) -> tuple[Location, ...]:
    return tuple(map(parse_location, texts))


_READERS: dict[str, Callable[[Data], ev.EventData]] = {
    "workflow.dispatched": _read_dispatched,
    "workflow.suspended": _read_suspended,
    "workflow.completed": lambda d: ev.WorkflowCompleted(to_json(d["output"]), to_json(d["state"])),
    "workflow.failed": lambda d: ev.WorkflowFailed(
        _read_error(d["error"]), d["final"], _read_places(d.get("failures", ()))
    ),
    "workflow.woken": lambda d: ev.WorkflowWoken(d["by"]),
    "workflow.recovered": lambda d: ev.WorkflowRecovered(d["by"], _read_places(d["locations"])),
    "workflow.cancel_requested": lambda d: ev.WorkflowCancelRequested(d["by"]),
    "workflow.cancelled": _read_cancelled,
    "workflow.rerun": _read_rerun,
    "workflow.tags_updated": lambda d: ev.WorkflowTagsUpdated(d["tags"]),
    "activity.started": lambda d: ev.ActivityStarted(
        parse_location(d["location"]), d["version"], d["name"], d["attempt"]
    ),
    "activity.completed": _read_activity_completed,
    "activity.failed": _read_activity_failed,
    "signal.received": lambda d: ev.SignalReceived(d["signal_id"], d["name"], to_json(d["body"]), d.get("sender")),
    "signal.discarded": lambda d: ev.SignalDiscarded(tuple(d["signal_ids"])),
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
    "workflow.spawned": _read_spawned,
    "output.received": _read_output,
    "waiter.added": lambda d: ev.WaiterAdded(
        d["waiter"], parse_location(d["waiting_at"]), d["version"], d.get("generation", 0)
    ),
    "version.checked": lambda d: ev.VersionChecked(parse_location(d["location"]), d["version"], d["value"]),
}


_Origin = tuple[str, str, str, int, int, str]
"""What is the same for every event of one workflow under one epoch: its id, its name, ray id, partition, epoch, worker."""
_Decoded = tuple[_Origin, int, int, ev.EventData]


def decode(raw: bytes) -> ev.Event:
    """Read one event. What this code cannot understand comes back as :class:`~gasoline_es.core.events.Unreadable` data.

    Raises: ValueError: the text is not a CloudEvent of ours at all (no id, no sequence number).
    """
    return _event(_sliced(raw) or _parsed(raw))


def read(key: str, raw: bytes) -> ev.Event:
    """Read the event of a record. One that is no event at all comes back as unreadable data of the workflow its key names.

    Raises: ValueError: neither the text nor the key is one of ours.
    """
    return _event(_sliced(raw) or _named(key, raw))


def read_fact(key: str, raw: bytes) -> ev.Fact:
    """Read what a fold takes of a record's event; else as :func:`read`."""
    (workflow_id, _, ray_id, _, _, worker), seq, time_us, data = _sliced(raw) or _named(key, raw)
    return workflow_id, seq, time_us, data, ray_id, worker


def _event(decoded: _Decoded) -> ev.Event:
    (workflow_id, workflow, ray_id, partition, epoch, worker), seq, time_us, data = decoded
    return ev.Event(workflow_id, seq, time_us, workflow, ray_id, partition, epoch, worker, data)


def _named(key: str, raw: bytes) -> _Decoded:
    try:
        return _parsed(raw)
    except ValueError as error:
        workflow_id, _, seq = key.rpartition("/")
        if not workflow_id or not seq.isdecimal():
            raise
        unreadable = ev.Unreadable("?", f"it is no event: {error}")
        return (workflow_id, "", "", 0, 0, ""), int(seq), 0, unreadable


def _parsed(raw: bytes) -> _Decoded:
    """Read any JSON object that has the members of an event, in whatever order and spelling."""
    cloud = cast(Data, from_json(raw))
    try:
        origin = _origin_of(cloud["subject"], cloud)
        return origin, cloud["seq"], parse_time(cloud["time"]), _read_data(cloud["type"], cloud["data"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event of gasoline_es: {error!r} in {raw[:200]!r}") from error


def _origin_of(workflow_id: str, cloud: Data) -> _Origin:
    return workflow_id, cloud["workflow"], cloud["rayid"], cloud["partition"], cloud["epoch"], cloud["worker"]


def _read_data(cloud_type: str, data: Data) -> ev.EventData:
    prefix, _, name = cloud_type.partition(".")
    name, _, version = name.rpartition(".v")
    reader = _READERS.get(name)
    if reader is None or prefix != "gasoline":
        return ev.Unreadable(cloud_type, "this version of gasoline_es does not know the type")
    if version != "1":
        return ev.Unreadable(cloud_type, "written by a newer version of gasoline_es")
    try:
        return reader(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return ev.Unreadable(cloud_type, f"its data does not read as that type: {error!r}")


# --- reading what this library wrote ----------------------------------------------------------------------------------
#
# A replay reads a line for every step, and parsing one takes longer than all else the step needs. Lines of the layout that
# Envelope writes are sliced instead. Nothing is guessed: where each piece between a line's fixed parts is JSON by itself,
# the line can be read in one way only, which is the parser's. Where a piece is not, the parser reads the line. (By itself
# a payload may be nested two levels deeper than the parser allows within a line; none is written that deep.)

# The quantifiers are possessive (`*+`): what ends at a quote is never to be tried shorter, and to prepare for that takes time.

_TIME: Final = rb'([^"]{19}+)\.([0-9]{6}+)Z'
_INT: Final = rb"[0-9]++"
_TEXT: Final = rb'"[^"]*+"'
_DATA: Final = b',"data":'
_CLOSED: Final = ord("}")
_ACTIVITY_COMPLETED: Final = b"gasoline.activity.completed.v1"

_LINE: Final = re.compile(
    rb'\{"specversion":"1\.0","id":"([^"]{36}+)/([1-9][0-9]{0,17}+)","source":"/gasoline/[a-z0-9-]*+",'
    rb'"type":"([a-z0-9.]*+)","subject":"\1","time":"%b","datacontenttype":"application/json","seq":\2,'
    rb'("partition":%b,"epoch":%b,"workflow":%b,"rayid":%b,"worker":%b),"data":'
    rb'(?:\{"location":"([^"]*+)",("version":%b,"name":%b,"attempt":%b),"started":"%b","input":)?+'
    % (_TIME, _INT, _INT, _TEXT, _TEXT, _TEXT, _INT, _TEXT, _INT, _TIME)
)


def _sliced(raw: bytes) -> _Decoded | None:
    """Read a line that has the layout of :class:`Envelope`; None for any other."""
    line = _LINE.match(raw)
    if line is None or raw[-1] != _CLOSED:
        return None
    workflow_id, seq, cloud_type, second, fraction, rest, location, call, started, started_fraction = line.groups()
    try:
        origin = _origins[workflow_id, rest]
        second_us = _seconds[second]
        time_us = second_us + int(fraction)
        if cloud_type != _ACTIVITY_COMPLETED or location is None or raw[-2] != _CLOSED:
            data = _read_data(cloud_type.decode(), from_json(raw[line.end(6) + len(_DATA) : -1]))
            return origin, int(seq), time_us, data
        # These marks may stand in a payload too. Then what is cut out here is no JSON.
        input, mark, rest = raw[line.end() : -2].partition(b',"output":')
        if not mark:
            return None
        output, mark, last = rest.rpartition(b',"state":')
        if mark:
            from_json(last)
            state = last
        else:
            output, state = last, None
        from_json(input)
        from_json(output)
        version, name, attempt = _calls[call]
        started_us = (second_us if started == second else _seconds[started]) + int(started_fraction)
        completed = ev.ActivityCompleted(_locations[location], version, name, attempt, started_us, input, output, state)
        return origin, int(seq), time_us, completed
    except ValueError:
        return None


def _make_origin(key: tuple[bytes, bytes]) -> _Origin:
    workflow_id, members = key
    return _origin_of(from_json(b'"%b"' % workflow_id), from_json(b"{%b}" % members))


def _make_call(members: bytes) -> tuple[int, str, int]:
    call = cast(Data, from_json(b"{%b}" % members))
    return call["version"], call["name"], call["attempt"]


_origins: Final = Memo(_make_origin, 4096)
_calls: Final = Memo(_make_call, 4096)
_seconds: Final = Memo[bytes, int](lambda text: parse_second(text.decode()), 4096)
_locations: Final = Memo[bytes, Location](lambda text: parse_location(text.decode()), 16_384)
