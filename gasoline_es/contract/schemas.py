"""JSON Schemas (2020-12) of all events that others may read, made from the facts themselves.

Nothing is listed twice: members, and which of them are always there, are what the codec writes for a fact that has
everything, and for one that has no more than it must; what they are is what the fact's fields are annotated with. Only what
the codec spells in another way than the fact does is said here.

What is written keeps to its schema. A reader has to expect more: see :data:`EVOLUTION`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import cleandoc
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

import orjson

from gasoline_es.core import events as ev
from gasoline_es.core import parked_events as parked
from gasoline_es.core import schedule_events as schedules
from gasoline_es.core import stored_events as stored
from gasoline_es.core.codec import Envelope
from gasoline_es.core.location import LOCATION_PATTERN, Location
from gasoline_es.core.timetable import Every, Timetable

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
EVOLUTION: Final = (
    "New members may appear in any object, and new types of events in any topic: pass over what you do not know. A member is "
    "never renamed, removed from those that are required, or given another meaning within a version; what would need that "
    "gets a new version at the end of the type's name (`.v2`), and has a schema of its own."
)
_TIME: Final[Schema] = {
    "type": "string",
    "format": "date-time",
    "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$",
}
_LOCATION: Final[Schema] = {"type": "string", "pattern": f"^{LOCATION_PATTERN}$"}
_TRACEPARENT: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}

_SAMPLE_ID: Final = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"


@dataclass(frozen=True, slots=True)
class EventSchema:
    """The schema of the events of one type in one topic.

    ``topic``: its name without prefix and namespace. ``type``: as ``activity.completed``. ``schema``: of the whole CloudEvent;
    what it refers to is under its ``$defs``.
    """

    topic: str
    type: str
    schema: Schema

    @property
    def cloud_type(self) -> str:
        """The CloudEvent's ``type``."""
        return f"gasoline.{self.type}.v1"

    @property
    def file(self) -> str:
        """Where it is published, below ``docs/schemas/``."""
        return f"{self.topic}/{self.type}.v1.json"

    @property
    def text(self) -> str:
        """What is published there."""
        return orjson.dumps(self.schema, option=orjson.OPT_INDENT_2).decode() + "\n"


def all_schemas() -> list[EventSchema]:
    """Return the schema of every type of event in every public topic, by topic and type."""
    return [*_of_workflows(), *_of_schedules(), *_of_parked(), *_of_stored()]


# --- the topics -------------------------------------------------------------------------------------------------------


def _of_workflows() -> Iterator[EventSchema]:
    envelope = Envelope(
        namespace="default", workflow_id=_SAMPLE_ID, workflow="w", ray_id=_SAMPLE_ID, partition=0, epoch=1, worker="w"
    )

    def data_of(fact: Any) -> Mapping[str, Any]:
        return _read(envelope.encode(1, 0, fact))

    members: Schema = {"workflow": {"type": "string"}, "rayid": {"type": "string"}}
    for kind in _written(ev.EventData):
        optional = {"traceparent": _TRACEPARENT} if kind in (ev.WorkflowDispatched, ev.SignalReceived) else {}
        yield _event("events", kind, data_of, members, optional)


def _of_schedules() -> Iterator[EventSchema]:
    def data_of(fact: Any) -> Mapping[str, Any]:
        event = schedules.ScheduleEvent("s", 1, 0, "n", 0, 1, "w", fact)
        return _read(schedules.encode_schedule_event(event, "default"))

    for kind in _written(schedules.ScheduleData):
        yield _event("schedules", kind, data_of, {"schedule": {"type": "string"}}, {})


def _of_parked() -> Iterator[EventSchema]:
    def data_of(fact: Any) -> Mapping[str, Any]:
        event = parked.ParkedEvent("s", 1, 0, "n", 0, 1, "w", fact)
        return _read(parked.encode_parked_event(event, "default"))

    for kind in _written(parked.ParkedData):
        yield _event("parked", kind, data_of, {"signal": {"type": "string"}}, {})


def _of_stored() -> Iterator[EventSchema]:
    members: Schema = {"sequence": {"type": "string"}, "request": {"type": "string"}}
    for kind, name in stored.TYPES.items():
        data: Schema = {
            "type": "object",
            "properties": {
                "bytes": {
                    "description": "The length of each event's text in this record, in bytes.",
                    "type": "array",
                    "items": {"type": "integer", "minimum": 1},
                    "minItems": 1,
                },
                "events": {"type": "array", "items": _stored_event(kind), "minItems": 1},
            },
            "required": ["bytes", "events"],
        }
        yield EventSchema("stored", name, _cloud_event("stored", name, kind, data, members, {}, subject=False))


def _stored_event(kind: type[stored.StoredData]) -> Schema:
    """Numbered, with its members by name; a state is one of three, whichever holds it exactly."""
    hints = get_type_hints(kind)
    names = [name for name in hints if name != "payload"]
    event: Schema = {
        "type": "object",
        "properties": {"seq": {"type": "integer", "minimum": 1}, **{name: _of(hints[name], name) for name in names}},
        "required": ["seq", *names],
    }
    if "payload" in hints:
        event["properties"] |= {
            "state": {"description": "JSON, byte for byte as it was stored."},
            "text": {"type": "string", "description": "Any other text."},
            "base64": {"type": "string", "contentEncoding": "base64", "description": "Any other bytes."},
        }
        event["oneOf"] = [{"required": ["state"]}, {"required": ["text"]}, {"required": ["base64"]}]
    return event


# --- one event --------------------------------------------------------------------------------------------------------


def _written(union: Any) -> Iterator[type[Any]]:
    """The facts of a union, but for the one that stands for what could not be read: it is never written."""
    return (kind for kind in get_args(union) if kind.TYPE != ev.Unreadable.TYPE)


def _event(
    topic: str, kind: type[Any], data_of: Callable[[Any], Mapping[str, Any]], members: Schema, optional: Schema
) -> EventSchema:
    data = _data(kind, data_of)
    return EventSchema(topic, kind.TYPE, _cloud_event(topic, kind.TYPE, kind, data, members, optional))


def _cloud_event(
    topic: str, name: str, kind: type[Any], data: Schema, members: Schema, optional: Schema, *, subject: bool = True
) -> Schema:
    """The envelope around data: what CloudEvents 1.0 wants, then what it calls extensions."""
    required: Schema = {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "pattern": "/[1-9][0-9]*$"},
        "source": {"type": "string", "pattern": "^/gasoline/[a-z0-9-]+$"},
        "type": {"const": f"gasoline.{name}.v1"},
        **({"subject": {"type": "string"}} if subject else {}),
        "time": _TIME,
        "datacontenttype": {"const": "application/json"},
        "seq": {"type": "integer", "minimum": 1},
        "partition": _COUNT,
        "epoch": _COUNT,
        **members,
        "worker": {"type": "string"},
    }
    schema: Schema = {
        "$schema": DIALECT,
        "$id": f"urn:gasoline-es:{topic}:{name}:v1",
        "title": f"gasoline.{name}.v1",
        "description": _told(kind),
        "type": "object",
        "properties": {**required, **optional, "data": data},
        "required": [*required, "data"],
    }
    used, definitions = orjson.dumps(data), dict[str, Schema]()
    for called, made in _DEFINITIONS.items():  # each may be used by those before it
        if f"#/$defs/{called}".encode() in used:
            definitions[called] = made()
            used += orjson.dumps(definitions[called])
    return schema | ({"$defs": definitions} if definitions else {})


def _told(kind: type[Any]) -> str:
    """The first paragraph of what is said of a fact."""
    return " ".join(cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def _data(kind: type[Any], data_of: Callable[[Any], Mapping[str, Any]]) -> Schema:
    """An object with the members that are ever written; those are required that always are."""
    samples = list(_samples(kind))
    written = [data_of(sample) for sample in samples]
    everything = {name: None for one in written for name in one}
    always = [name for name in everything if all(name in one for one in written)]
    hints = get_type_hints(kind)
    by_member = {_member(field.name): (field.name, hints[field.name]) for field in fields(kind)}
    properties: Schema = {}
    for name in everything:
        if (kind, name) in _OTHERWISE:
            properties[name] = _OTHERWISE[kind, name]
            continue
        field, hint = by_member[name]
        properties[name] = _of(hint, field, null=name in always)
    return {"type": "object", "properties": properties, "required": always}


_MEMBERS: Final = {"retry_us": "retry_at", "start": "from"}
"""Fields that are written under another name, beside those that end in their unit."""
_OTHERWISE: Final[dict[tuple[type[Any], str], Schema]] = {
    (schedules.ScheduleSet, "cron"): {"type": "string"},
    (schedules.ScheduleSet, "timezone"): {"type": "string"},
    (schedules.ScheduleSet, "interval_us"): {"type": "integer", "minimum": 1},
    (schedules.ScheduleSet, "anchor"): _TIME,
    (ev.WorkflowPruned, "variant"): {"enum": ["all", "history"]},
    (parked.ParkedDiscarded, "signal_ids"): {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "maxItems": 1,
    },
}
"""Members that are no field of their fact."""


def _member(field: str) -> str:
    return _MEMBERS.get(field) or field.removesuffix("_us")


# --- what a field is --------------------------------------------------------------------------------------------------


def _of(hint: Any, field: str, *, null: bool = True) -> Schema:
    """The schema of a field. ``null``: None is written as null, and not left out."""
    if hint == Location:
        return _LOCATION
    inner, maybe = _without_none(hint)
    if maybe:
        schema = _of(inner, field)
        return {"anyOf": [schema, {"type": "null"}]} if null else schema
    if inner is int and field.endswith("_us"):
        return _TIME
    if inner is bytes:
        return {"description": "Any JSON: what the application's own types are written as."}
    if inner in _SIMPLE:
        return dict(_SIMPLE[inner])
    if is_dataclass(inner):
        return {"$ref": f"#/$defs/{_CALLED[cast(type[Any], inner)]}"}
    arguments = get_args(inner)
    match get_origin(inner):
        case origin if origin is Literal:
            return {"enum": list(arguments)}
        case origin if origin is tuple and arguments[-1] is Ellipsis:
            return {"type": "array", "items": _of(arguments[0], field)}
        case origin if origin is tuple and len(set(arguments)) == 1:
            count = len(arguments)
            return {"type": "array", "items": _of(arguments[0], field), "minItems": count, "maxItems": count}
        case origin if origin is not None and issubclass(cast(type[Any], origin), Mapping):
            return {"type": "object", "additionalProperties": _of(arguments[1], field)}
        case _:
            raise AssertionError(f"a field {field!r} of a fact is a {hint!r}: say here what is written for that")


_SIMPLE: Final[dict[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
}
_CALLED: Final = {ev.ErrorInfo: "error", ev.RollbackHandler: "handler", ev.Remains: "remains"}


def _error() -> Schema:
    def data_of(error: Any) -> Mapping[str, Any]:
        envelope = Envelope(
            namespace="default", workflow_id="i", workflow="w", ray_id="r", partition=0, epoch=1, worker="w"
        )
        found: Mapping[str, Any] = _read(envelope.encode(1, 0, ev.WorkflowFailed(error)))["error"]
        return found

    return {"description": _told(ev.ErrorInfo), **_data(ev.ErrorInfo, data_of)}


def _handler() -> Schema:
    def data_of(handler: Any) -> Mapping[str, Any]:
        envelope = Envelope(
            namespace="default", workflow_id="i", workflow="w", ray_id="r", partition=0, epoch=1, worker="w"
        )
        loop = ev.LoopCommitted(((1,),), 1, 1, b"{}", handlers=(handler,))
        found: Mapping[str, Any] = _read(envelope.encode(1, 0, loop))["handlers"][0]
        return found

    return {"description": _told(ev.RollbackHandler), **_data(ev.RollbackHandler, data_of)}


def _remains() -> Schema:
    def data_of(remains: Any) -> Mapping[str, Any]:
        envelope = Envelope(
            namespace="default", workflow_id="i", workflow="w", ray_id="r", partition=0, epoch=1, worker="w"
        )
        found: Mapping[str, Any] = _read(envelope.encode(1, 0, ev.WorkflowPruned("x", (1, 2), remains)))["remains"]
        return found

    return {"description": _told(ev.Remains), **_data(ev.Remains, data_of)}


def _read(line: bytes) -> Mapping[str, Any]:
    """The data of an event as it was written."""
    data: Mapping[str, Any] = orjson.loads(line)["data"]
    return data


_DEFINITIONS: Final[dict[str, Callable[[], Schema]]] = {"remains": _remains, "error": _error, "handler": _handler}


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return what a field holds, and whether it may be None."""
    if get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint):
        (inner,) = (one for one in get_args(hint) if one is not type(None))
        return inner, True
    return hint, False


# --- facts to look at -------------------------------------------------------------------------------------------------


def _samples(kind: type[Any]) -> Iterator[Any]:
    """Yield a fact with everything, and one with no more than it must have; with each timetable, where it has one."""
    hints = get_type_hints(kind)
    bare: dict[str, Any] = {}
    for field in fields(kind):
        if field.default is MISSING and field.default_factory is MISSING:
            inner, maybe = _without_none(hints[field.name])
            bare[field.name] = None if maybe else _sample(inner)
    everything = {field.name: _sample(_without_none(hints[field.name])[0]) for field in fields(kind)}
    yield kind(**everything)
    yield kind(**bare)
    if "timetable" in everything:
        yield kind(**everything | {"timetable": Every(1, 0)})


def _sample(hint: Any) -> Any:
    if hint == Location:
        return ((1,),)
    if hint == Timetable:
        return get_args(Timetable)[0]("0 3 * * *", "UTC")
    simple: Sequence[tuple[Any, Any]] = ((str, "x"), (int, 1), (bool, True), (bytes, b"{}"))
    for kind, sample in simple:
        if hint is kind:
            return sample
    if is_dataclass(hint):
        return next(_samples(cast(type[Any], hint)))
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return arguments[-1]  # the first one may be what is left out
    if get_origin(hint) is tuple:
        return tuple(_sample(one) for one in arguments if one is not Ellipsis)
    return {"x": _sample(arguments[1])}
