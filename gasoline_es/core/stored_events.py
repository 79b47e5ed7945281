"""Events of applications that are event-sourced by themselves, kept in numbered sequences, and how they are written.

A namespace may hold sequences beside workflows: ``events`` and ``snapshots`` of aggregates, ``decisions`` that are found by
type and tags, ``tracking``, which says how far other sequences were processed. Each is numbered from 1 without gaps, by the
partition's owner. What one command stores in a sequence is one record, several only where that would be large, in a topic of
its own, as a structured CloudEvent 1.0 in JSON:

    {"specversion":"1.0","id":"events/17","source":"/gasoline/<namespace>","type":"gasoline.events.stored.v1",
     "time":"…Z","datacontenttype":"application/json","seq":17,"partition":0,"epoch":2,"sequence":"events",
     "request":"<uuid>","worker":"…","data":{"bytes":[…,…],"events":[E,E]}}

| type | each of ``events``, behind its number ``seq`` |
|---|---|
| ``events.stored`` | ``originator``, ``uuid`` (whether that is one), ``version``, ``topic``, and its state |
| ``decisions.stored`` | ``type``, ``tags``, and its data |
| ``tracking.stored`` | ``application``, ``notification_id`` |

A state is bytes and comes back as the same bytes. It is the last member of its event: as ``state`` where it is JSON of one
line, verbatim; as ``text`` where it is other text; else as ``base64``. ``bytes`` says how long the text of each event is, so
that it can be cut out without being parsed. ``seq`` of the envelope is the number of the first. A record's key is
``<sequence>/<seq>``: no two are equal, so that compaction by key takes no event away. ``request`` names the command.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, cast

import orjson

from gasoline_es.core.durations import format_time, parse_time
from gasoline_es.core.fact_writing import inner
from gasoline_es.core.faults import DEPTH_MAX
from gasoline_es.core.values import check_depth

EVENTS: Final = "events"
DECISIONS: Final = "decisions"
TRACKING: Final = "tracking"

RECORD_BYTES: Final = 64 * 1024
"""Where a record's events are as long as that, the next ones begin another: each is read whole, for whichever event."""

_EVENTS: Final = b',"events":['
"""In a record of ours this stands before the events and nowhere before: inside of a JSON string, quotes are escaped."""
_STATE: Final = b',"state":'
"""The same of an event's text and a state that is JSON."""
_END: Final = b"]}}"
_DEEP: Final = 2 * DEPTH_MAX
"""What is no longer than that cannot nest too deeply: it opens and closes."""
_loads: Final = orjson.loads
_TYPE: Final = re.compile(r"gasoline\.([a-z.]+)\.v([0-9]+)")


class EventStored(NamedTuple):
    """An event of an aggregate. ``payload``: its state as :func:`embed` made it. Versions are unique for each originator."""

    originator: str
    uuid: bool
    version: int
    topic: str
    payload: bytes


class DecisionStored(NamedTuple):
    """An event that belongs to no one aggregate: it is found by its type and its tags."""

    type: str
    tags: tuple[str, ...]
    payload: bytes


class TrackingStored(NamedTuple):
    """All of an application's notifications up to this one were processed here."""

    application: str
    notification_id: int


StoredData = EventStored | DecisionStored | TrackingStored

TYPES: Final[dict[type[StoredData], str]] = {
    EventStored: "events.stored",
    DecisionStored: "decisions.stored",
    TrackingStored: "tracking.stored",
}
"""What a record of such events is called. (Tuples all of them, because one is made for every event.)"""
_KINDS: Final = {name: kind for kind, name in TYPES.items()}


class Stored(NamedTuple):
    """Events in their places: what one record holds, all of one kind, numbered one after the other in their sequence.

    ``first``: the number of the first, from 1. ``request``: of the command they came with.
    """

    sequence: str
    first: int
    time_us: int
    request: str
    events: Sequence[StoredData]

    @property
    def key(self) -> str:
        return f"{self.sequence}/{self.first}"


class Numbered(NamedTuple):
    """An event as it is read: with its number in its sequence."""

    seq: int
    data: StoredData


# --- states -----------------------------------------------------------------------------------------------------------


def embed(state: bytes) -> bytes:
    """Write a state as a member of a JSON object, from which :func:`extract` gets the same bytes."""
    if b"\n" not in state:
        try:
            _loads(state)
            if len(state) > _DEEP:
                check_depth(state)
        except ValueError:
            pass
        else:
            return b'"state":' + state
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


# --- writing ----------------------------------------------------------------------------------------------------------


class StoredEnvelope:
    """What is the same in every record that one owner of a partition writes: rendered once."""

    __slots__ = ("_type", "_where", "_worker")

    def __init__(self, namespace: str, partition: int, epoch: int, worker: str) -> None:
        self._type = f'","source":"/gasoline/{inner(namespace)}","type":"gasoline.'
        self._where = f',"partition":{partition},"epoch":{epoch},"sequence":"'
        self._worker = f'","worker":"{inner(worker)}","data":{{"bytes":['

    def encode(self, stored: Stored) -> list[tuple[Stored, bytes]]:
        """Render events as the values of records, each one line of JSON: one record, or more where they are long in sum."""
        sequence, first, time_us, request, events = stored
        texts = _texts(first, events)
        about = (
            f'{self._type}{TYPES[type(events[0])]}.v1","time":"{format_time(time_us)}",'
            f'"datacontenttype":"application/json","seq":'
        )
        where = f'{self._where}{sequence}","request":"{inner(request)}{self._worker}'
        written: list[tuple[Stored, bytes]] = []
        for start, stop in _parts(texts):
            seq, part = first + start, texts[start:stop]
            lengths = ",".join(map(str, map(len, part)))
            head = f'{{"specversion":"1.0","id":"{sequence}/{seq}{about}{seq}{where}{lengths}]'
            line = b"".join((head.encode(), _EVENTS, b",".join(part), _END))
            held = stored if len(part) == len(events) else Stored(sequence, seq, time_us, request, events[start:stop])
            written.append((held, line))
        return written


def _parts(texts: Sequence[bytes]) -> Iterable[tuple[int, int]]:
    """Return which of the texts go into one record: as many as are not too long together, and always one."""
    return ((0, len(texts)),) if sum(map(len, texts)) <= RECORD_BYTES else _long_parts(texts)


def _long_parts(texts: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    start, size = 0, 0
    for at, text in enumerate(texts):
        size += len(text)
        if size > RECORD_BYTES and at > start:
            yield start, at
            start, size = at, len(text)
    yield start, len(texts)


class _Inner(dict[str, bytes]):
    """Texts as they stand between the quotes of a JSON string: events of one append have many of them alike."""

    def __missing__(self, text: str) -> bytes:
        found = self[text] = orjson.dumps(text)[1:-1]
        return found


def _texts(first: int, events: Sequence[StoredData]) -> list[bytes]:
    match events[0]:
        case EventStored():
            return _event_texts(first, cast(Sequence[EventStored], events))
        case DecisionStored():
            inner = _Inner()
            return [
                b'{"seq":%d,"type":"%b","tags":%b,%b}' % (seq, inner[kind], orjson.dumps(tags), payload)
                for seq, (kind, tags, payload) in enumerate(cast(Sequence[DecisionStored], events), first)
            ]
        case TrackingStored():
            return [
                b'{"seq":%d,"application":%b,"notification_id":%d}' % (seq, orjson.dumps(application), notification_id)
                for seq, (application, notification_id) in enumerate(cast(Sequence[TrackingStored], events), first)
            ]


def _event_texts(first: int, events: Sequence[EventStored]) -> list[bytes]:
    inner = _Inner()
    texts: list[bytes] = []
    last, before, behind = None, b"", b""
    for seq, (originator, uuid, version, topic, payload) in enumerate(events, first):
        alike = (originator, uuid, topic)
        if alike != last:
            last = alike
            before = b',"originator":"%b","uuid":%b,"version":' % (inner[originator], b"true" if uuid else b"false")
            behind = b',"topic":"%b",' % inner[topic]
        texts.append(b'{"seq":%d%b%d%b%b}' % (seq, before, version, behind, payload))
    return texts


# --- reading ----------------------------------------------------------------------------------------------------------


class _Opened(NamedTuple):
    """A record, of which nothing but what stands before the events is parsed. ``starts``: of each event's text, and the end."""

    cloud: dict[str, Any]
    kind: type[StoredData]
    first: int
    starts: list[int]


def decode_stored(raw: bytes) -> Stored:
    """Read a record's value. Raises: ValueError: it is none of ours, or was written by a newer version."""
    cloud, kind, first, starts = _open(raw)
    try:
        sequence, time_us, request = cloud["sequence"], parse_time(cloud["time"]), cloud["request"]
    except (KeyError, TypeError, AttributeError) as error:
        raise _no_event(raw, error) from error
    if not isinstance(sequence, str) or not isinstance(request, str):
        raise ValueError(f"not an event of a sequence: {raw[:200]!r}")
    return Stored(sequence, first, time_us, request, _read(raw, kind, first, starts, range(len(starts) - 1)))


def decode_some(raw: bytes, seqs: Collection[int]) -> list[Numbered]:
    """Read the events of these numbers, all of which must be in a record. Raises: ValueError, as :func:`decode_stored`."""
    _, kind, first, starts = _open(raw)
    found = _read(raw, kind, first, starts, [seq - first for seq in seqs])
    return [Numbered(seq, data) for seq, data in zip(seqs, found, strict=True)]


def _open(raw: bytes) -> _Opened:
    at = raw.find(_EVENTS)
    try:
        cloud = cast(dict[str, Any], orjson.loads(raw if at < 0 else b"%b}}" % raw[:at]))
        first, known = cloud["seq"], _TYPE.fullmatch(cloud["type"])
        kind = None if known is None or known[2] != "1" else _KINDS.get(known[1])
        if kind is None:
            raise ValueError(f"an event of type {cloud['type']!r} is of a newer version of gasoline_es")
        if type(first) is not int:
            raise TypeError("seq is a number")
        at += len(_EVENTS)
        starts = list(accumulate([length + 1 for length in cloud["data"]["bytes"]], initial=at))
        if len(starts) < 2 or starts[-1] - 1 != len(raw) - len(_END) or not raw.endswith(_END):
            raise TypeError("the events are not as long as it says")
        return _Opened(cloud, kind, first, starts)
    except (KeyError, TypeError, AttributeError) as error:
        raise _no_event(raw, error) from error


def _read(raw: bytes, kind: type[StoredData], first: int, starts: list[int], wanted: Sequence[int]) -> list[StoredData]:
    """Read events by their place in the record."""
    events: list[StoredData] = []
    try:
        for index in wanted:
            if index < 0:
                raise IndexError(index)
            start, stop = starts[index], starts[index + 1] - 1
            at = raw.find(_STATE, start, stop)
            members = orjson.loads(raw[start:stop] if at < 0 else raw[start:at] + b"}")
            if members["seq"] != first + index:
                raise ValueError(f"not an event of a sequence: its number is not {first + index} in {raw[:200]!r}")
            payload = raw[at + 1 : stop - 1] if at >= 0 else b""
            if kind is EventStored:
                events.append(
                    EventStored(
                        members["originator"],
                        members["uuid"],
                        members["version"],
                        members["topic"],
                        payload or _payload(members),
                    )
                )
            elif kind is DecisionStored:
                events.append(DecisionStored(members["type"], tuple(members["tags"]), payload or _payload(members)))
            else:
                events.append(TrackingStored(members["application"], members["notification_id"]))
    except (KeyError, TypeError, IndexError) as error:
        raise _no_event(raw, error) from error
    return events


def _payload(members: dict[str, Any]) -> bytes:
    name = "text" if "text" in members else "base64"
    return b'"%b":%b' % (name.encode(), orjson.dumps(members[name]))


def _no_event(raw: bytes, error: Exception) -> ValueError:
    return ValueError(f"not an event of a sequence: {error!r} in {raw[:200]!r}")
