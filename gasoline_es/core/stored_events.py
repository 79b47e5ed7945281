"""Events of applications that are event-sourced by themselves, kept in numbered sequences, and how they are written.

A namespace may hold sequences beside workflows: ``events`` and ``snapshots`` of aggregates, ``decisions`` that are found by
type and tags, ``tracking``, which says how far other sequences were processed. Each is numbered from 1 without gaps, by the
partition's owner. One record for each event, in a topic of its own, as a structured CloudEvent 1.0 in JSON:

    {"specversion":"1.0","id":"events/17","source":"/gasoline/<namespace>","type":"gasoline.event.stored.v1",
     "subject":"<originator id>","time":"…Z","datacontenttype":"application/json","seq":17,"partition":0,"epoch":2,
     "sequence":"events","request":"<uuid>","worker":"…","data":{…}}

| type | subject | data |
|---|---|---|
| ``event.stored`` | the originator's id | ``uuid`` (whether that id is one), ``version``, ``topic``, and its state |
| ``decision.stored`` | the type | ``type``, ``tags``, and its data |
| ``tracking.stored`` | the application | ``application``, ``notification_id`` |

A state is bytes and comes back as the same bytes. It is the last member of ``data``: as ``state`` where it is JSON of one
line, verbatim; as ``text`` where it is other text; else as ``base64``. A record's key is ``<sequence>/<seq>``: no two are
equal, so that compaction by key takes no event away. ``request`` names the command that all events of one append came with.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, cast

import orjson

from gasoline_es.core.durations import format_time, parse_time
from gasoline_es.core.fact_writing import inner
from gasoline_es.core.values import check_depth

EVENTS: Final = "events"
DECISIONS: Final = "decisions"
TRACKING: Final = "tracking"

_STATE: Final = b',"state":'
"""In a line of ours this stands before a state that is JSON and nowhere else: inside of a JSON string, quotes are escaped."""
_TYPE: Final = re.compile(r"gasoline\.([a-z.]+)\.v([0-9]+)")


@dataclass(frozen=True, slots=True)
class EventStored:
    """An event of an aggregate. ``payload``: its state as :func:`embed` made it. Versions are unique for each originator."""

    TYPE: ClassVar[str] = "event.stored"
    originator: str
    uuid: bool
    version: int
    topic: str
    payload: bytes

    @property
    def subject(self) -> str:
        return self.originator


@dataclass(frozen=True, slots=True)
class DecisionStored:
    """An event that belongs to no one aggregate: it is found by its type and its tags."""

    TYPE: ClassVar[str] = "decision.stored"
    type: str
    tags: tuple[str, ...]
    payload: bytes

    @property
    def subject(self) -> str:
        return self.type


@dataclass(frozen=True, slots=True)
class TrackingStored:
    """All of an application's notifications up to this one were processed here."""

    TYPE: ClassVar[str] = "tracking.stored"
    application: str
    notification_id: int

    @property
    def subject(self) -> str:
        return self.application


StoredData = EventStored | DecisionStored | TrackingStored


class Stored(NamedTuple):
    """An event in its place (a tuple, because one is made for every event).

    ``seq``: its number in its sequence, from 1. ``request``: of the command it came with.
    """

    sequence: str
    seq: int
    time_us: int
    request: str
    data: StoredData

    @property
    def key(self) -> str:
        return f"{self.sequence}/{self.seq}"


# --- states -----------------------------------------------------------------------------------------------------------


def embed(state: bytes) -> bytes:
    """Write a state as a member of a JSON object, from which :func:`extract` gets the same bytes."""
    if b"\n" not in state:
        try:
            orjson.loads(state)
            check_depth(state)
        except ValueError:
            pass
        else:
            return b'"state":%b' % state
    try:
        return b'"text":%b' % orjson.dumps(state.decode())
    except UnicodeDecodeError:
        return b'"base64":"%b"' % base64.b64encode(state)


def extract(payload: bytes) -> bytes:
    """Return the state of which :func:`embed` made this. Raises: ValueError: it did not."""
    name, _, raw = payload.partition(b":")
    match name:
        case b'"state"':
            return raw
        case b'"text"':
            text = orjson.loads(raw)
            if isinstance(text, str):
                return text.encode()
        case b'"base64"':
            text = orjson.loads(raw)
            if isinstance(text, str):
                try:
                    return base64.b64decode(text, validate=True)
                except binascii.Error as error:
                    raise ValueError(f"not base64: {error}") from error
        case _:
            pass
    raise ValueError(f"not a state: {payload[:200]!r}")


def check_payload(payload: bytes) -> bytes:
    """Return a payload that came from outside, if :func:`embed` could have made it. Raises: ValueError."""
    if b"\n" in payload or embed(extract(payload)) != payload:
        raise ValueError(f"not a state as it is written: {payload[:200]!r}")
    return payload


class _Inner(dict[str, str]):
    """Texts as they stand between the quotes of a JSON string: events of one append have many of them alike."""

    def __missing__(self, text: str) -> str:
        found = self[text] = inner(text)
        return found


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_stored(events: Sequence[Stored], namespace: str, partition: int, epoch: int, worker: str) -> list[bytes]:
    """Render events of one append, each as one line of JSON. What they have in common is rendered once."""
    if not events:
        return []
    inner = _Inner()
    source = f'","source":"/gasoline/{inner[namespace]}","type":"gasoline.'
    where = f',"partition":{partition},"epoch":{epoch},"sequence":"'
    request, worker = inner[events[0].request], inner[worker]
    time_us, time = events[0].time_us, format_time(events[0].time_us)
    lines: list[bytes] = []
    for sequence, seq, at_us, _, data in events:
        if at_us != time_us:
            time_us, time = at_us, format_time(at_us)
        head = (
            f'{{"specversion":"1.0","id":"{sequence}/{seq}{source}{data.TYPE}.v1","subject":"{inner[data.subject]}",'
            f'"time":"{time}","datacontenttype":"application/json","seq":{seq}{where}{sequence}","request":"{request}",'
            f'"worker":"{worker}","data":'
        )
        match data:
            case EventStored():
                uuid = "true" if data.uuid else "false"
                told = f'{{"uuid":{uuid},"version":{data.version},"topic":"{inner[data.topic]}",'
                lines.append(b"%b%b}}" % ((head + told).encode(), data.payload))
            case DecisionStored():
                tags = orjson.dumps(data.tags).decode()
                told = f'{{"type":"{inner[data.type]}","tags":{tags},'
                lines.append(b"%b%b}}" % ((head + told).encode(), data.payload))
            case TrackingStored():
                told = f'{{"application":"{inner[data.application]}","notification_id":{data.notification_id}}}}}'
                lines.append((head + told).encode())
    return lines


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_stored(raw: bytes) -> Stored:
    """Read an event. Raises: ValueError: it is none of ours, or was written by a newer version."""
    at = raw.find(_STATE)
    try:
        cloud = cast(dict[str, Any], orjson.loads(raw if at < 0 else b"%b}}" % raw[:at]))
        sequence, seq, data = cloud["sequence"], cloud["seq"], cloud["data"]
        if type(seq) is not int or not isinstance(sequence, str):
            raise TypeError("seq is a number, sequence a text")
        known = _TYPE.fullmatch(cloud["type"])
        if known is None or known[2] != "1":
            raise ValueError(f"an event of type {cloud['type']!r} is of a newer version of gasoline_es")
        return Stored(
            sequence,
            seq,
            parse_time(cloud["time"]),
            cloud["request"],
            _data(known[1], cloud["subject"], data, raw[at + 1 : -2] if at >= 0 else b""),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event of a sequence: {error!r} in {raw[:200]!r}") from error


def _data(kind: str, subject: str, data: dict[str, Any], payload: bytes) -> StoredData:
    match kind:
        case EventStored.TYPE:
            return EventStored(subject, data["uuid"], data["version"], data["topic"], payload or _payload(data))
        case DecisionStored.TYPE:
            return DecisionStored(data["type"], tuple(data["tags"]), payload or _payload(data))
        case TrackingStored.TYPE:
            return TrackingStored(data["application"], data["notification_id"])
        case _:
            raise ValueError(f"an event of type {kind!r} is of a newer version of gasoline_es")


def _payload(data: dict[str, Any]) -> bytes:
    name = "text" if "text" in data else "base64"
    return b'"%b":%b' % (name.encode(), orjson.dumps(data[name]))
