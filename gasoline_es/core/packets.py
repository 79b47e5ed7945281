"""How a message is written on the topic of messages: one structured CloudEvent 1.0 in JSON (semantics.md §9, design §5).

    {"specversion":"1.0","id":"<request id>","source":"/gasoline/<namespace>","type":"gasoline.message.v1","subject":"moved",
     "time":"…Z","datacontenttype":"application/json","rayid":"…","data":{"topic":{"map":"a"},"body":{…}}}

The subject is the message's name, which is the record's key too. Anybody may write there, so what is read is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson
from pydantic_core import from_json, to_json

from gasoline_es.core.durations import format_time, parse_time
from gasoline_es.core.ids import check_name
from gasoline_es.core.tags import check_tags
from gasoline_es.core.values import check_depth
from gasoline_es.errors import GasolineError

_TYPE: Final = "gasoline.message.v1"


@dataclass(frozen=True, slots=True)
class Packet:
    """A message on its way. ``topic``: canonical tags. ``body`` is JSON text; ``time_us``: when it was made."""

    name: str
    topic: Mapping[str, str]
    body: bytes
    ray_id: str
    request_id: str
    time_us: int


def encode_packet(packet: Packet, namespace: str) -> bytes:
    """Render a message as one line of JSON."""
    return orjson.dumps(
        {
            "specversion": "1.0",
            "id": packet.request_id,
            "source": f"/gasoline/{namespace}",
            "type": _TYPE,
            "subject": packet.name,
            "time": format_time(packet.time_us),
            "datacontenttype": "application/json",
            "rayid": packet.ray_id,
            "data": {"topic": dict(packet.topic), "body": orjson.Fragment(packet.body)},
        }
    )


def decode_packet(raw: bytes) -> Packet:
    """Read a message. Raises: ValueError: it is none of ours, or of a newer version."""
    try:
        cloud = cast(dict[str, Any], from_json(raw))
        if cloud["type"] != _TYPE:
            raise TypeError(f"type {cloud['type']!r}")
        data, ray_id, request_id = cloud["data"], cloud["rayid"], cloud["id"]
        if not isinstance(ray_id, str) or not isinstance(request_id, str):
            raise TypeError("id and rayid are texts")
        topic = data["topic"]
        if check_tags(topic, "a message") != topic:
            raise TypeError("the topic is not canonical")
        body = to_json(data["body"])
        check_depth(body)
        return Packet(
            check_name("message", cloud["subject"]), topic, body, ray_id, request_id, parse_time(cloud["time"])
        )
    except (KeyError, TypeError, AttributeError, GasolineError) as error:
        raise ValueError(f"not a message of gasoline_es: {error!r} in {raw[:200]!r}") from error
