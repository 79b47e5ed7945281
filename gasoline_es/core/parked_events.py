"""What the stream of a parked signal is made of, and how it is written: see ``core.standing`` (design §4).

They are records of the topic ``<namespace>.parked``; ``"signal":"paid"`` in the envelope is the signal's name, and of
``gasoline.signal.unparked.v1`` the data is ``{"target":"<workflow id>"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import orjson
from pydantic_core import to_json

from gasoline_es.core.durations import format_time, parse_time
from gasoline_es.core.standing import StandingEvent, Unreadable, read, write
from gasoline_es.core.traceparent import readable


@dataclass(frozen=True, slots=True)
class SignalParked:
    """It waits for a workflow of this name with these tags that is dispatched by ``until_us``."""

    TYPE: ClassVar[str] = "signal.parked"
    signal_id: str
    name: str
    body: bytes
    workflow: str
    tags: Mapping[str, str]
    until_us: int
    by_caller: bool
    by: str
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class SignalOffered:
    """It was sent to a workflow in another partition, in the same append; whether it came in time is told there."""

    TYPE: ClassVar[str] = "signal.offered"
    target: str


@dataclass(frozen=True, slots=True)
class SignalReturned:
    """The workflow did not take it (it was over by then): it waits for another one."""

    TYPE: ClassVar[str] = "signal.returned"
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class SignalUnparked:
    """It is in the queue of a workflow, durably."""

    TYPE: ClassVar[str] = "signal.unparked"
    target: str


@dataclass(frozen=True, slots=True)
class ParkedDiscarded:
    """No workflow gets it: nobody came within the time, or somebody took it away (``by``).

    Written with the same data as when a workflow discards what it did not take.
    """

    TYPE: ClassVar[str] = "signal.discarded"
    signal_id: str
    by: str | None = None


ParkedData = SignalParked | SignalOffered | SignalReturned | SignalUnparked | ParkedDiscarded | Unreadable


class ParkedEvent(StandingEvent[ParkedData]):
    """A fact with its envelope, in order of ``seq`` (from 1, gap-free per parked signal). ``name``: the signal's."""

    __slots__ = ()

    @property
    def parked_id(self) -> str:
        """Whose it is."""
        return self.subject


def encode_parked_event(event: ParkedEvent, namespace: str) -> bytes:
    """Render the event as one line of JSON."""
    return write(event, _data(event.data), namespace, "signal")


def _data(data: ParkedData) -> dict[str, Any]:
    match data:
        case SignalParked():
            return parked_members(data)
        case SignalOffered() | SignalUnparked():
            return {"target": data.target}
        case SignalReturned():
            return {"target": data.target, "reason": data.reason}
        case ParkedDiscarded():
            taken_away = {} if data.by is None else {"by": data.by}
            return {"signal_ids": [data.signal_id], **taken_away}
        case Unreadable():
            raise AssertionError("what was not understood is never written")


def parked_members(data: SignalParked) -> dict[str, Any]:
    """Return a signal that is parked as a JSON object."""
    traced = {} if data.traceparent is None else {"traceparent": data.traceparent}
    return {
        "signal_id": data.signal_id,
        "name": data.name,
        "body": orjson.Fragment(data.body),
        "workflow": data.workflow,
        "tags": dict(data.tags),
        "until": format_time(data.until_us),
        "by_caller": data.by_caller,
        "by": data.by,
        **traced,
    }


def decode_parked_event(raw: bytes) -> ParkedEvent:
    """Read an event; what this code cannot understand comes back as :class:`Unreadable` data.

    Raises: ValueError: the text is no event of a parked signal at all (no id, no sequence number).
    """
    return read(raw, "signal", ParkedEvent, _READERS)


def read_parked(d: dict[str, Any]) -> SignalParked:
    """Read what :func:`parked_members` wrote. Raises: KeyError, TypeError, ValueError: it is none."""
    return SignalParked(
        signal_id=d["signal_id"],
        name=d["name"],
        body=to_json(d["body"]),
        workflow=d["workflow"],
        tags=d["tags"],
        until_us=parse_time(d["until"]),
        by_caller=d["by_caller"],
        by=d["by"],
        traceparent=readable(d.get("traceparent")),
    )


def _read_discarded(d: dict[str, Any]) -> ParkedDiscarded:
    (signal_id,) = d["signal_ids"]
    return ParkedDiscarded(signal_id, d.get("by"))


_READERS: Final[dict[str, Callable[[dict[str, Any]], ParkedData]]] = {
    SignalParked.TYPE: read_parked,
    SignalOffered.TYPE: lambda d: SignalOffered(d["target"]),
    SignalReturned.TYPE: lambda d: SignalReturned(d["target"], d["reason"]),
    SignalUnparked.TYPE: lambda d: SignalUnparked(d["target"]),
    ParkedDiscarded.TYPE: _read_discarded,
}
