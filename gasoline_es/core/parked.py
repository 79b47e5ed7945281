"""A parked signal: the fold of its events, and what is decided about it (semantics.md §5; design §4, ``signal.parked``).

Pure. A parked signal is decided by the owner of its partition, which follows from the name of the workflow that it waits for:
all that wait for workflows of a name are in one place, in the order in which they were parked. To a workflow of the same
partition it is given in one append; to another it is *offered*, through that one's inbox, and the answer comes back through
this one's. So each append leaves it either parked, or on its way to one workflow, or in one queue, or discarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, assert_never

from gasoline_es.core.commands import Land, Park, Reply
from gasoline_es.core.durations import MAX_US
from gasoline_es.core.ids import derived_uuid, derived_workflow_id, slot_of
from gasoline_es.core.parked_events import (
    ParkedData,
    ParkedDiscarded,
    ParkedEvent,
    SignalOffered,
    SignalParked,
    SignalReturned,
    SignalUnparked,
)
from gasoline_es.core.standing import Unreadable
from gasoline_es.core.tags import canonical, matches
from gasoline_es.errors import GasolineError, SignalDiscarded

EndedStatus = Literal["delivered", "discarded"]
ParkedStatus = Literal["parked", "offered", "unreadable"] | EndedStatus
"""``offered``: on its way to a workflow. ``unreadable``: this code does not understand its events; nothing happens to it."""

PASSED_KEPT: Final = 100
"""So many workflows that did not take it are not offered it again; those before them are over by far."""
REASON_MAX: Final = 500
ENDED_REMEMBERED: Final = 10_000
"""Of at least this many of a partition's parked signals that ended last the ids are remembered, and all of the last day's."""
ENDED_REMEMBERED_US: Final = 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Parked:
    """Where a parked signal stands. Times are microseconds since the epoch, UTC. ``target``: who gets it, or got it.

    ``passed``: the workflows that did not take it. The body is dropped once it is over.
    """

    id: str
    seq: int
    signal: SignalParked
    parked_us: int
    updated_us: int
    status: ParkedStatus = "parked"
    target: str | None = None
    passed: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def live(self) -> bool:
        """Whether a workflow may still get it."""
        return self.status in ("parked", "offered")

    @property
    def ended(self) -> Ended | None:
        """What is remembered of it, if it is over."""
        if self.status in ("delivered", "discarded"):
            return Ended(self.id, self.seq, self.updated_us, self.status)
        return None

    def takes(self, name: str, tags: Mapping[str, str]) -> bool:
        """Whether it is for a workflow of this name with these tags."""
        return self.signal.workflow == name and matches(tags, self.signal.tags)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is remembered of a parked signal that is over: as little as tells a repeat what became of it."""

    id: str
    seq: int
    ended_us: int
    status: EndedStatus

    @property
    def live(self) -> bool:
        """No workflow gets it any more."""
        return False


def parked_slot(workflow: str) -> int:
    """Give the slot in which all signals meet that are parked for workflows of a name."""
    return slot_of(derived_uuid("parked", workflow))


def parked_id(namespace: str, workflow: str, tags: Mapping[str, str], signal_id: str) -> str:
    """Give the id of the stream of a parked signal; a repeat with the sender's id meets the same one."""
    return derived_workflow_id(parked_slot(workflow), "parked", namespace, workflow, canonical(tags), signal_id)


def fold_parked(before: Parked | Ended | None, event: ParkedEvent) -> Parked:
    """Return where the parked signal stands after its next event. One that does not fit sets it aside, for good.

    After its end it may be parked anew, which is again its event number 1: whoever decided that had forgotten it. How long
    that was remembered is no matter of the log, so a fold that remembers longer reads it the same way.
    """
    data, seq, time_us = event.data, event.seq, event.time_us
    over = before is not None and (isinstance(before, Ended) or before.ended is not None)
    if isinstance(data, SignalParked) and seq == 1 and (before is None or over):
        return Parked(event.subject, seq, data, parked_us=time_us, updated_us=time_us)
    if before is None or isinstance(before, Ended):
        nothing = SignalParked("", event.name, b"null", "", {}, time_us, False, "")
        why = _after_end(event) if over else f"its first event is number {seq}, {data.TYPE}"
        why = data.reason if isinstance(data, Unreadable) else why
        return Parked(event.subject, seq, nothing, time_us, time_us, status="unreadable", problem=why)
    parked = replace(before, seq=seq, updated_us=time_us)
    if before.status == "unreadable":
        return parked
    if over and not isinstance(data, Unreadable):
        return replace(parked, status="unreadable", problem=_after_end(event))
    if seq != before.seq + 1:
        missing = f"event {seq} follows event {before.seq}: events are missing or repeated"
        return replace(parked, status="unreadable", problem=missing)
    match data:
        case SignalParked():
            return replace(parked, status="unreadable", problem=f"event {seq} parks it again")
        case SignalOffered():
            return replace(parked, status="offered", target=data.target)
        case SignalReturned():
            passed = (*before.passed[1 - PASSED_KEPT :], data.target)
            return replace(parked, status="parked", target=None, passed=passed)
        case SignalUnparked():
            return replace(parked, status="delivered", target=data.target, signal=_without_body(before.signal))
        case ParkedDiscarded():
            return replace(parked, status="discarded", target=None, signal=_without_body(before.signal))
        case Unreadable():
            return replace(parked, status="unreadable", problem=f"event {seq} of type {data.type}: {data.reason}")
        case _:
            assert_never(data)


def _after_end(event: ParkedEvent) -> str:
    return f"event {event.seq}, {event.type}, comes after its end"


def _without_body(signal: SignalParked) -> SignalParked:
    return replace(signal, body=b"null")


def park(parked: Parked | Ended | None, command: Park, now_us: int) -> tuple[list[ParkedData], Reply]:
    """Park a signal; one that is or was parked under that id stays as it is, and the reply tells what became of it.

    The reply's error: SignalDiscarded, or a GasolineError for one whose events make no sense: nobody gets it.
    """
    if parked is not None:
        return [], _repeated(parked, command)
    signal = SignalParked(
        command.signal_id,
        command.name,
        command.body,
        command.workflow,
        command.tags,
        min(now_us + command.park_us, MAX_US),
        command.by_caller,
        command.by,
        command.traceparent,
    )
    return [signal], Reply(command.signal_id, created=True)


def _repeated(parked: Parked | Ended, command: Park) -> Reply:
    named = f"signal {command.name!r} with the id {command.signal_id!r}"
    fields = {"signal_id": command.signal_id, "signal": command.name, "workflow": command.workflow}
    match parked.status:
        case "parked" | "offered":
            return Reply(command.signal_id)
        case "delivered":
            return Reply(command.signal_id, stands="delivered")
        case "discarded":
            why = (
                f"{named} was parked before and is discarded: no workflow {command.workflow!r} with its tags came in time, "
                "or somebody took the signal away. A repeat changes nothing: send it with another id"
            )
            return Reply(error=SignalDiscarded(why, **fields))
        case "unreadable":
            why = (
                f"{named} was parked before and nothing happens to it any more: {parked.problem}. "
                "`gasoline signal get` with the id shows what is recorded"
            )
            return Reply(error=GasolineError(why, **fields))
        case _:
            assert_never(parked.status)


def land(parked: Parked | Ended | None, command: Land) -> list[ParkedData]:
    """Take note of what became of an offer. A repeat changes nothing."""
    if not isinstance(parked, Parked) or parked.status != "offered" or parked.target != command.target:
        return []
    if command.refused is None:
        return [SignalUnparked(command.target)]
    return [SignalReturned(command.target, command.refused[:REASON_MAX])]
