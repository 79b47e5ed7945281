"""What the stream of a schedule is made of, and how it is written: structured CloudEvents 1.0 in JSON (design §4).

    {"specversion":"1.0","id":"<schedule id>/<seq>","source":"/gasoline/<namespace>","type":"gasoline.schedule.fired.v1",
     "subject":"<schedule id>","time":"…Z","datacontenttype":"application/json","seq":5,"partition":3,"epoch":2,
     "schedule":"nightly","worker":"…","data":{"due":"…Z","workflow_id":"…","next":"…Z"}}

They are records of a topic of their own, ``<namespace>.schedules``, with the key ``<schedule id>/<seq>``: whoever reads
workflows from ``<namespace>.events`` meets nothing else there. Times are integer microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, cast, get_args

import orjson
from pydantic_core import from_json, to_json

from gasoline_es.core.durations import format_time, parse_time, to_datetime
from gasoline_es.core.timetable import Cron, Every, Timetable

Missed = Literal["latest", "all", "skip"]
"""What is done about times that passed while nobody could start anything: the newest of them counts, all do, or none."""
Overlap = Literal["allow", "skip"]
"""Whether a workflow is started while one that the schedule started before is not over."""
SkipReason = Literal["missed", "overlap", "refused"]

MISSED: Final[tuple[str, ...]] = get_args(Missed)
OVERLAPS: Final[tuple[str, ...]] = get_args(Overlap)


@dataclass(frozen=True, slots=True)
class ScheduleSet:
    """The schedule is this from here on: made, or changed. ``next_us``: when it is due next; None: never again."""

    TYPE: ClassVar[str] = "schedule.set"
    name: str
    workflow: str
    input: bytes
    tags: Mapping[str, str]
    timetable: Timetable
    missed: Missed
    overlap: Overlap
    next_us: int | None
    by: str


@dataclass(frozen=True, slots=True)
class SchedulePaused:
    """It starts nothing until it is resumed."""

    TYPE: ClassVar[str] = "schedule.paused"
    by: str


@dataclass(frozen=True, slots=True)
class ScheduleResumed:
    """It goes on. What was due while it was paused is not made up for."""

    TYPE: ClassVar[str] = "schedule.resumed"
    by: str
    next_us: int | None


@dataclass(frozen=True, slots=True)
class ScheduleFired:
    """It started a workflow, in the same append. ``due_us``: for which time; None: because ``by`` asked for it."""

    TYPE: ClassVar[str] = "schedule.fired"
    due_us: int | None
    workflow_id: str
    next_us: int | None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class ScheduleSkipped:
    """It started nothing for ``count`` times from ``first_us`` to ``last_us``. ``more``: at least so many."""

    TYPE: ClassVar[str] = "schedule.skipped"
    first_us: int
    last_us: int
    count: int
    more: bool
    reason: SkipReason
    next_us: int | None


@dataclass(frozen=True, slots=True)
class ScheduleRemoved:
    """It is over. One of the same name that is made later goes on with this stream."""

    TYPE: ClassVar[str] = "schedule.removed"
    by: str


@dataclass(frozen=True, slots=True)
class ScheduleUnreadable:
    """An event of a type or version that this code does not know: the schedule is set aside, the others go on."""

    TYPE: ClassVar[str] = "unreadable"
    type: str
    reason: str


ScheduleData = (
    ScheduleSet
    | SchedulePaused
    | ScheduleResumed
    | ScheduleFired
    | ScheduleSkipped
    | ScheduleRemoved
    | ScheduleUnreadable
)


@dataclass(frozen=True, slots=True)
class ScheduleEvent:
    """A fact with its envelope: what ``schedule.history()`` gives, in order of ``seq`` (from 1, gap-free per schedule)."""

    schedule_id: str
    seq: int
    time_us: int
    name: str
    partition: int
    epoch: int
    worker: str
    data: ScheduleData

    @property
    def type(self) -> str:
        """As ``schedule.fired``."""
        return self.data.type if isinstance(self.data, ScheduleUnreadable) else self.data.TYPE

    @property
    def time(self) -> datetime:
        """When it was decided, UTC."""
        return to_datetime(self.time_us)


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_schedule_event(event: ScheduleEvent, namespace: str) -> bytes:
    """Render the event as one line of JSON."""
    return orjson.dumps(
        {
            "specversion": "1.0",
            "id": f"{event.schedule_id}/{event.seq}",
            "source": f"/gasoline/{namespace}",
            "type": f"gasoline.{event.type}.v1",
            "subject": event.schedule_id,
            "time": format_time(event.time_us),
            "datacontenttype": "application/json",
            "seq": event.seq,
            "partition": event.partition,
            "epoch": event.epoch,
            "schedule": event.name,
            "worker": event.worker,
            "data": _data(event.data),
        }
    )


def _data(data: ScheduleData) -> dict[str, Any]:
    match data:
        case ScheduleSet():
            return {
                "name": data.name,
                "workflow": data.workflow,
                "input": orjson.Fragment(data.input),
                "tags": dict(data.tags),
                **_times(data.timetable),
                "missed": data.missed,
                "overlap": data.overlap,
                "next": _maybe(data.next_us),
                "by": data.by,
            }
        case SchedulePaused() | ScheduleRemoved():
            return {"by": data.by}
        case ScheduleResumed():
            return {"by": data.by, "next": _maybe(data.next_us)}
        case ScheduleFired():
            fired: dict[str, Any] = {"workflow_id": data.workflow_id, "next": _maybe(data.next_us)}
            if data.due_us is not None:
                fired["due"] = format_time(data.due_us)
            if data.by is not None:
                fired["by"] = data.by
            return fired
        case ScheduleSkipped():
            return {
                "first": format_time(data.first_us),
                "last": format_time(data.last_us),
                "count": data.count,
                "more": data.more,
                "reason": data.reason,
                "next": _maybe(data.next_us),
            }
        case ScheduleUnreadable():
            raise AssertionError("what was not understood is never written")


def _times(timetable: Timetable) -> dict[str, Any]:
    if isinstance(timetable, Cron):
        return {"cron": timetable.expression, "timezone": timetable.timezone}
    return {"interval_us": timetable.interval_us, "anchor": format_time(timetable.anchor_us)}


def _maybe(time_us: int | None) -> str | None:
    return None if time_us is None else format_time(time_us)


# --- reading ----------------------------------------------------------------------------------------------------------

_Read = dict[str, Any]


def decode_schedule_event(raw: bytes) -> ScheduleEvent:
    """Read an event; what this code cannot understand comes back as :class:`ScheduleUnreadable` data.

    Raises: ValueError: the text is no event of a schedule at all (no id, no sequence number).
    """
    cloud = cast(_Read, from_json(raw))
    try:
        schedule_id, seq = cloud["subject"], cloud["seq"]
        if type(seq) is not int or not isinstance(schedule_id, str):
            raise TypeError("seq is a number, subject a text")
        return ScheduleEvent(
            schedule_id,
            seq,
            parse_time(cloud["time"]),
            cloud["schedule"],
            cloud["partition"],
            cloud["epoch"],
            cloud["worker"],
            _read_data(cloud["type"], cloud["data"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event of a schedule: {error!r} in {raw[:200]!r}") from error


def _read_data(cloud_type: str, data: _Read) -> ScheduleData:
    prefix, _, name = cloud_type.partition(".")
    name, _, version = name.rpartition(".v")
    reader = _READERS.get(name)
    if reader is None or prefix != "gasoline":
        return ScheduleUnreadable(cloud_type, "this version of gasoline_es does not know the type")
    if version != "1":
        return ScheduleUnreadable(cloud_type, "written by a newer version of gasoline_es")
    try:
        return reader(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return ScheduleUnreadable(cloud_type, f"its data does not read as that type: {error!r}")


def _read_set(d: _Read) -> ScheduleSet:
    timetable: Timetable = (
        Cron(d["cron"], d["timezone"]) if "cron" in d else Every(d["interval_us"], parse_time(d["anchor"]))
    )
    if d["missed"] not in MISSED or d["overlap"] not in OVERLAPS:
        raise ValueError(f"missed {d['missed']!r}, overlap {d['overlap']!r}")
    return ScheduleSet(
        name=d["name"],
        workflow=d["workflow"],
        input=to_json(d["input"]),
        tags=d["tags"],
        timetable=timetable,
        missed=d["missed"],
        overlap=d["overlap"],
        next_us=_read_maybe(d["next"]),
        by=d["by"],
    )


def _read_fired(d: _Read) -> ScheduleFired:
    return ScheduleFired(_read_maybe(d.get("due")), d["workflow_id"], _read_maybe(d["next"]), d.get("by"))


def _read_skipped(d: _Read) -> ScheduleSkipped:
    return ScheduleSkipped(
        parse_time(d["first"]), parse_time(d["last"]), d["count"], d["more"], d["reason"], _read_maybe(d["next"])
    )


def _read_maybe(text: str | None) -> int | None:
    return None if text is None else parse_time(text)


_READERS: Final[dict[str, Callable[[_Read], ScheduleData]]] = {
    ScheduleSet.TYPE: _read_set,
    SchedulePaused.TYPE: lambda d: SchedulePaused(d["by"]),
    ScheduleResumed.TYPE: lambda d: ScheduleResumed(d["by"], _read_maybe(d["next"])),
    ScheduleFired.TYPE: _read_fired,
    ScheduleSkipped.TYPE: _read_skipped,
    ScheduleRemoved.TYPE: lambda d: ScheduleRemoved(d["by"]),
}
