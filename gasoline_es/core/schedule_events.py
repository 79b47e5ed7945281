"""What the stream of a schedule is made of, and how it is written: see ``core.standing`` (design §4).

They are records of the topic ``<namespace>.schedules``; ``"schedule":"nightly"`` in the envelope is its name, and of
``gasoline.schedule.fired.v1`` the data is ``{"due":"…Z","workflow_id":"…","next":"…Z"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, get_args

import orjson
from pydantic_core import to_json

from gasoline_es.core.durations import format_time, parse_time
from gasoline_es.core.standing import StandingEvent, Unreadable, read, write
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


ScheduleUnreadable = Unreadable

ScheduleData = (
    ScheduleSet
    | SchedulePaused
    | ScheduleResumed
    | ScheduleFired
    | ScheduleSkipped
    | ScheduleRemoved
    | ScheduleUnreadable
)


class ScheduleEvent(StandingEvent[ScheduleData]):
    """A fact with its envelope: what ``schedule.history()`` gives, in order of ``seq`` (from 1, gap-free per schedule)."""

    __slots__ = ()

    @property
    def schedule_id(self) -> str:
        """Whose it is."""
        return self.subject


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_schedule_event(event: ScheduleEvent, namespace: str) -> bytes:
    """Render the event as one line of JSON."""
    return write(event, _data(event.data), namespace, "schedule")


def _data(data: ScheduleData) -> dict[str, Any]:
    match data:
        case ScheduleSet():
            return set_members(data)
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


def set_members(data: ScheduleSet) -> dict[str, Any]:
    """Return what a schedule is as a JSON object."""
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
    return read(raw, "schedule", ScheduleEvent, _READERS)


def read_set(d: _Read) -> ScheduleSet:
    """Read what :func:`set_members` wrote. Raises: KeyError, TypeError, ValueError: it is none."""
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
    ScheduleSet.TYPE: read_set,
    SchedulePaused.TYPE: lambda d: SchedulePaused(d["by"]),
    ScheduleResumed.TYPE: lambda d: ScheduleResumed(d["by"], _read_maybe(d["next"])),
    ScheduleFired.TYPE: _read_fired,
    ScheduleSkipped.TYPE: _read_skipped,
    ScheduleRemoved.TYPE: lambda d: ScheduleRemoved(d["by"]),
}
