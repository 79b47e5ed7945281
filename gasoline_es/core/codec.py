"""How an event is written: one structured CloudEvent 1.0 in JSON, readable without this library (design §4).

    {"specversion":"1.0","id":"<workflow id>/<seq>","source":"/gasoline/<namespace>","type":"gasoline.<type>.v1",
     "subject":"<workflow id>","time":"…Z","datacontenttype":"application/json","seq":5,"partition":3,"epoch":2,
     "workflow":"fulfil","rayid":"…","worker":"…","traceparent":"00-…","data":{…}}

``traceparent`` is there only where a dispatch or a signal came with one (``core.traceparent``).

Payloads are embedded as the JSON they are. Reading goes through pydantic-core's parser, which keeps integers of any size
exact (``orjson.loads`` reads 2^64 as a float); a payload counts by value, so its re-rendered form is as good as its text.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final, cast

import orjson
from pydantic_core import from_json

from gasoline_es.core import events as ev
from gasoline_es.core.durations import format_time, parse_second, parse_time
from gasoline_es.core.fact_reading import READERS, Data
from gasoline_es.core.fact_writing import DATA_OF, activity_completed, inner
from gasoline_es.core.location import Location, parse_location
from gasoline_es.core.memo import Memo
from gasoline_es.core.shared import shared
from gasoline_es.core.traceparent import readable

_dumps = orjson.dumps
_DATA_TEXT: Final = ',"data":'
_TRACED: Final = (ev.WorkflowDispatched, ev.SignalReceived)
"""The facts that a ``traceparent`` is kept with."""


class Envelope:
    """The part of the CloudEvent that is the same for every event of one workflow under one epoch: rendered once."""

    __slots__ = ("_id", "_tail", "_time", "_type")

    def __init__(
        self, *, namespace: str, workflow_id: str, workflow: str, ray_id: str, partition: int, epoch: int, worker: str
    ) -> None:
        # Ids and names come from outside too: escaped, here and once, they cannot break the line.
        workflow_id = inner(workflow_id)
        self._id = f'{{"specversion":"1.0","id":"{workflow_id}/'
        self._type = f'","source":"/gasoline/{inner(namespace)}","type":"gasoline.'
        self._time = f'.v1","subject":"{workflow_id}","time":"'
        self._tail = (
            f',"partition":{partition},"epoch":{epoch},"workflow":"{inner(workflow)}","rayid":"{inner(ray_id)}",'
            f'"worker":"{inner(worker)}","data":'
        )

    def encode(self, seq: int, time_us: int, data: ev.EventData) -> bytes:
        """Render the event as one line of JSON."""
        head = (
            f"{self._id}{seq}{self._type}{data.TYPE}{self._time}{format_time(time_us)}"
            f'","datacontenttype":"application/json","seq":{seq}{self._tail}'
        )
        if isinstance(data, ev.ActivityCompleted):
            return activity_completed(head, data)
        if isinstance(data, _TRACED) and data.traceparent is not None:
            head = f'{head.removesuffix(_DATA_TEXT)},"traceparent":"{data.traceparent}"{_DATA_TEXT}'
        return b"%b%b}" % (head.encode(), _dumps(DATA_OF[type(data)](data)))


# --- reading ----------------------------------------------------------------------------------------------------------

_Origin = tuple[str, str, str, int, int, str]
"""What is the same for every event of one workflow under one epoch: its id, its name, ray id, partition, epoch, worker."""
_Decoded = tuple[_Origin, int, int, ev.EventData]


def decode(raw: bytes) -> ev.Event:
    """Read one event. What this code cannot understand comes back as :class:`~gasoline_es.core.events.Unreadable` data.

    Raises: ValueError: the text is not a CloudEvent of ours at all (no id, no sequence number).
    """
    return _event(_sliced(raw) or _parsed(raw))


# How a line begins that this library wrote (see `Envelope`). Any other is decoded to see what it is.
_HEAD: Final = re.compile(
    rb'\{"specversion":"1\.0","id":"[^"\\]*+","source":"[^"\\]*+","type":"gasoline\.([a-z._]+)\.v1","subject":"'
)


def type_of(value: bytes) -> bytes | None:
    """Return the type of an event of the version that this one writes, decoding nothing; None: it has to be decoded."""
    line = _HEAD.match(value)
    return None if line is None else line[1]


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
        data = _read_data(cloud["type"], cloud["data"])
        if "traceparent" in cloud:
            data = _traced(data, readable(cloud["traceparent"]))
        return origin, cloud["seq"], parse_time(cloud["time"]), data
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event of gasoline_es: {error!r} in {raw[:200]!r}") from error


def _origin_of(workflow_id: str, cloud: Data) -> _Origin:
    ray_id = cloud["rayid"]
    if ray_id == workflow_id:
        ray_id = workflow_id  # one text for both: they are kept for as long as the workflow is known
    name, worker = shared(cloud["workflow"]), shared(cloud["worker"])
    return workflow_id, name, ray_id, cloud["partition"], cloud["epoch"], worker


def _traced(data: ev.EventData, traceparent: str | None) -> ev.EventData:
    return replace(data, traceparent=traceparent) if isinstance(data, _TRACED) else data


def _read_data(cloud_type: str, data: Data) -> ev.EventData:
    prefix, _, name = cloud_type.partition(".")
    name, _, version = name.rpartition(".v")
    reader = READERS.get(name)
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
_DATA: Final = _DATA_TEXT.encode()
_TRACEPARENT: Final = b',"traceparent":"'
_CLOSED: Final = ord("}")
_ACTIVITY_COMPLETED: Final = b"gasoline.activity.completed.v1"

_LINE: Final = re.compile(
    rb'\{"specversion":"1\.0","id":"([^"]{36}+)/([1-9][0-9]{0,17}+)","source":"/gasoline/[a-z0-9-]*+",'
    rb'"type":"([a-z0-9.]*+)","subject":"\1","time":"%b","datacontenttype":"application/json","seq":\2,'
    rb'("partition":%b,"epoch":%b,"workflow":%b,"rayid":%b,"worker":%b)(?:%b[0-9a-f-]*+")?+,"data":'
    rb'(?:\{"location":"([^"]*+)",("version":%b,"name":%b,"attempt":%b),"started":"%b","input":(?s:(.*))\}\}\Z)?+'
    % (_TIME, _INT, _INT, _TEXT, _TEXT, _TEXT, _TRACEPARENT, _INT, _TEXT, _INT, _TIME)
)


def _sliced(raw: bytes) -> _Decoded | None:
    """Read a line that has the layout of :class:`Envelope`; None for any other."""
    line = _LINE.match(raw)
    if line is None:
        return None
    workflow_id, seq, cloud_type, second, fraction, rest, location, call, started, started_fraction, call_data = (
        line.groups()
    )
    try:
        origin = _origins[workflow_id, rest]
        second_us = _seconds[second]
        time_us = second_us + int(fraction)
        if cloud_type != _ACTIVITY_COMPLETED or location is None:
            if raw[-1] != _CLOSED:
                return None
            head_end = line.end(6)
            start = raw.index(_DATA, head_end)
            data = _read_data(cloud_type.decode(), from_json(raw[start + len(_DATA) : -1]))
            if start > head_end:  # a traceparent stands between
                data = _traced(data, readable(raw[head_end + len(_TRACEPARENT) : start - 1].decode()))
            return origin, int(seq), time_us, data
        # These marks may stand in a payload too. Then what is cut out here is no JSON.
        input, mark, rest = call_data.partition(b',"output":')
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
