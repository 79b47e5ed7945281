"""What stands beside workflows (a schedule, a parked signal) has a small stream of its own, in a topic of its own (design §4).

Its events are structured CloudEvents 1.0 in JSON, like those of workflows, and whoever reads workflows meets none of them:

    {"specversion":"1.0","id":"<subject>/<seq>","source":"/gasoline/<namespace>","type":"gasoline.<name>.v1",
     "subject":"<subject>","time":"…Z","datacontenttype":"application/json","seq":5,"partition":3,"epoch":2,
     "<kind>":"<its name>","worker":"…","data":{…}}

A record's key is ``<subject>/<seq>``. Times are integer microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import orjson
from pydantic_core import from_json

from gasoline_es.core.durations import format_time, parse_time, to_datetime


class Told(Protocol):
    """What an event tells: a fact, by its type."""

    TYPE: ClassVar[str]


D = TypeVar("D", bound=Told)
Readers = Mapping[str, Callable[[dict[str, Any]], D]]


class Stands(Protocol):
    """What such a stream folds to. ``seq``: of the last event in it."""

    @property
    def id(self) -> str: ...

    @property
    def seq(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An event of a type or version that this code does not know: its subject is set aside, the others go on."""

    TYPE: ClassVar[str] = "unreadable"
    type: str
    reason: str


@dataclass(frozen=True, slots=True)
class StandingEvent(Generic[D]):
    """A fact with its envelope, in order of ``seq`` (from 1, gap-free per subject). ``name``: of what stands there."""

    subject: str
    seq: int
    time_us: int
    name: str
    partition: int
    epoch: int
    worker: str
    data: D

    @property
    def type(self) -> str:
        """As ``schedule.fired``."""
        return self.data.type if isinstance(self.data, Unreadable) else self.data.TYPE

    @property
    def time(self) -> datetime:
        """When it was decided, UTC."""
        return to_datetime(self.time_us)


E = TypeVar("E", bound=StandingEvent[Any])


def write(event: StandingEvent[Any], data: dict[str, Any], namespace: str, kind: str) -> bytes:
    """Render the event, with its data as they are written, as one line of JSON. ``kind``: of what stands there."""
    return orjson.dumps(
        {
            "specversion": "1.0",
            "id": f"{event.subject}/{event.seq}",
            "source": f"/gasoline/{namespace}",
            "type": f"gasoline.{event.type}.v1",
            "subject": event.subject,
            "time": format_time(event.time_us),
            "datacontenttype": "application/json",
            "seq": event.seq,
            "partition": event.partition,
            "epoch": event.epoch,
            kind: event.name,
            "worker": event.worker,
            "data": data,
        }
    )


def read(raw: bytes, kind: str, made: Callable[..., E], readers: Readers[Any]) -> E:
    """Read an event, by the reader of its type; what this code cannot understand comes back as :class:`Unreadable` data.

    Raises: ValueError: the text is no such event at all (no id, no sequence number).
    """
    cloud = cast(dict[str, Any], from_json(raw))
    try:
        subject, seq = cloud["subject"], cloud["seq"]
        if type(seq) is not int or not isinstance(subject, str):
            raise TypeError("seq is a number, subject a text")
        return made(
            subject,
            seq,
            parse_time(cloud["time"]),
            cloud[kind],
            cloud["partition"],
            cloud["epoch"],
            cloud["worker"],
            _read_data(cloud["type"], cloud["data"], readers),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event of a {kind}: {error!r} in {raw[:200]!r}") from error


def _read_data(cloud_type: str, data: dict[str, Any], readers: Readers[Any]) -> Any:
    prefix, _, name = cloud_type.partition(".")
    name, _, version = name.rpartition(".v")
    reader = readers.get(name)
    if reader is None or prefix != "gasoline":
        return Unreadable(cloud_type, "this version of gasoline_es does not know the type")
    if version != "1":
        return Unreadable(cloud_type, "written by a newer version of gasoline_es")
    try:
        return reader(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Unreadable(cloud_type, f"its data does not read as that type: {error!r}")
