"""An AsyncAPI 3.0 document of a namespace's public topics: where they are, how they are set, and what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from gasoline_es.contract.schemas import EVOLUTION, EventSchema, all_schemas
from gasoline_es.log.kafka.records import STRUCTURED
from gasoline_es.log.kafka.topics import PUBLIC_TOPICS, Wanted

Document = dict[str, Any]

_CONTENT_TYPE: Final = STRUCTURED.decode()
_BINDING: Final = "0.5.0"
_ABOUT: Final[Mapping[str, str]] = {
    "events": "Every event of every workflow, each once.",
    "schedules": "Events of schedules.",
    "parked": "Events of parked signals.",
    "stored": "Events of applications that are event-sourced by themselves, and their snapshots.",
}
_KEYS: Final[Mapping[str, str]] = {
    "events": "<workflow id>/<seq>: no two events have the same.",
    "schedules": "<schedule's id>/<seq>: no two events have the same.",
    "parked": "<parked signal's id>/<seq>: no two events have the same.",
    "stored": "<sequence>/<seq of the first event>: no two records have the same.",
}
_READING: Final = (
    "Read with isolation.level=read_committed: what a process that failed has left is aborted, and never happened. A record "
    "without a value is a tombstone, of what was removed: pass over it. Order holds within a partition."
)


def asyncapi(topics: Sequence[Wanted], *, namespace: str, servers: Sequence[str], protocol: str = "kafka") -> Document:
    """Return the document. ``topics``: all of the namespace; those that are public are in it.

    ``servers``: brokers, as ``host:port``; none: where the cluster is stays open. ``protocol``: ``kafka``, or ``kafka-secure``
    for one that is reached by TLS.
    """
    schemas = all_schemas()
    public = [topic for topic in topics if topic.kind in PUBLIC_TOPICS]
    document: Document = {
        "asyncapi": "3.0.0",
        "info": {
            "title": f"gasoline_es: namespace {namespace}",
            "version": version("gasoline_es"),
            "description": f"What the workflows of a namespace have recorded. {_READING}\n\n{EVOLUTION}",
        },
        "defaultContentType": _CONTENT_TYPE,
    }
    if servers:
        document["servers"] = {
            f"broker-{number}": {"host": host, "protocol": protocol} for number, host in enumerate(servers, 1)
        }
    document["channels"] = {topic.kind: _channel(topic, schemas) for topic in public}
    document["operations"] = {f"record-{topic.kind}": _operation(topic, schemas) for topic in public}
    document["components"] = {
        "messages": {_name(one): _message(one) for one in schemas},
        "schemas": _schemas(schemas),
    }
    return document


def _name(one: EventSchema) -> str:
    """What a message is called in the document: one type stands in two topics."""
    return f"{one.topic}.{one.type}"


def _channel(topic: Wanted, schemas: Sequence[EventSchema]) -> Document:
    return {
        "address": topic.name,
        "description": f"{_ABOUT[topic.kind]} {_READING}",
        "messages": {
            _name(one): {"$ref": f"#/components/messages/{_name(one)}"} for one in schemas if one.topic == topic.kind
        },
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": {"cleanup.policy": topic.policy["cleanup.policy"].split(",")},
                "bindingVersion": _BINDING,
            }
        },
    }


def _operation(topic: Wanted, schemas: Sequence[EventSchema]) -> Document:
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{topic.kind}"},
        "summary": f"Workers record here. {_ABOUT[topic.kind]}",
        "messages": [
            {"$ref": f"#/channels/{topic.kind}/messages/{_name(one)}"} for one in schemas if one.topic == topic.kind
        ],
    }


def _message(one: EventSchema) -> Document:
    message: Document = {
        "name": one.cloud_type,
        "title": one.cloud_type,
        "summary": one.schema["description"],
        "contentType": _CONTENT_TYPE,
        "payload": {"$ref": f"#/components/schemas/{_name(one)}"},
        "bindings": {"kafka": {"key": {"type": "string", "description": _KEYS[one.topic]}, "bindingVersion": _BINDING}},
    }
    if one.topic == "events":
        message["headers"] = {
            "type": "object",
            "properties": {
                "content-type": {"type": "string", "const": _CONTENT_TYPE},
                "ce_type": {"type": "string", "const": one.cloud_type},
                "ce_subject": {"type": "string", "description": "The workflow's id."},
            },
        }
    return message


def _schemas(schemas: Sequence[EventSchema]) -> Document:
    """The schemas with what they refer to beside them, because references are to the whole document here."""
    found: Document = {}
    for one in schemas:
        schema = {name: value for name, value in one.schema.items() if name not in ("$schema", "$id", "$defs")}
        found[_name(one)] = _referring(schema)
        for name, definition in one.schema.get("$defs", {}).items():
            found[name] = _referring(definition)  # one may refer to another
    return found


def _referring(value: Any) -> Any:
    match value:
        case {"$ref": str(ref)}:
            return {"$ref": ref.replace("#/$defs/", "#/components/schemas/")}
        case dict():
            return {name: _referring(inner) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_referring(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
