"""What becomes of a signal that is to be discarded: from a workflow's queue, or while it is parked (semantics.md §5).

Pure. A signal that waits can be taken away; one that a listen took stands in the history, which nothing takes away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from gasoline_es.core import events as ev
from gasoline_es.core.commands import Discard, DiscardParked, Reply
from gasoline_es.core.folding import superseded_in
from gasoline_es.core.location import Location, format_location
from gasoline_es.core.parked import Ended, Parked
from gasoline_es.core.parked_events import ParkedDiscarded
from gasoline_es.errors import GasolineError, SignalNotFound


@dataclass(frozen=True, slots=True)
class Became:
    """What became of a signal in a workflow. ``at``: of the listen that took it."""

    stands: Literal["queued", "taken", "discarded"]
    at: Location | None = None


def became(facts: Sequence[ev.Fact], signal_id: str) -> Became | None:
    """Return what became of a signal, given all of a workflow's events in order; None: it never received one of that id."""
    past = superseded_in(facts)
    found: Became | None = None
    for _, seq, _, data, _, _ in facts:
        match data:
            case ev.SignalReceived() if data.signal_id == signal_id:
                found = Became("queued")
            case ev.SignalConsumed() if signal_id in data.signal_ids and seq not in past:
                found = Became("taken", data.location)
            case ev.SignalDiscarded() if signal_id in data.signal_ids and seq not in past:
                found = Became("discarded")
            case _:
                pass
    return found


def not_queued(command: Discard, found: Became | None) -> Reply:
    """Answer for a signal that is not in the queue. The reply's error: SignalNotFound, or a GasolineError: it was taken."""
    workflow_id, signal_id = command.workflow_id, command.signal_id
    if found is None:
        why = (
            f"workflow {workflow_id} has received no signal with the id {signal_id!r}: `gasoline signal list --to "
            f"{workflow_id}` shows what is queued for it"
        )
        return Reply(error=SignalNotFound(why, signal_id=signal_id, workflow_id=workflow_id))
    if found.at is None:
        return Reply(signal_id)
    at = format_location(found.at)
    why = (
        f"signal {signal_id!r} was taken by the listen at {at} of workflow {workflow_id}: that is recorded, and its body gets "
        f"it again in every replay. Mend the code and wake the workflow; or, with its workers stopped, queue the signal again "
        f"with `gasoline workflow rerun {workflow_id} --from '{at}'`, and discard it then"
    )
    return Reply(error=GasolineError(why, signal_id=signal_id, workflow_id=workflow_id, location=at))


def discard_parked(parked: Parked | Ended | None, command: DiscardParked) -> tuple[list[ParkedDiscarded], Reply]:
    """Let go of a signal that waits for a workflow; what was discarded before stays so.

    The reply's error: SignalNotFound, or a GasolineError: a workflow has it, or is about to, or its events make no sense.
    """
    signal_id, name = command.signal_id, command.workflow
    fields = {"signal_id": signal_id, "workflow": name}
    if parked is None:
        why = (
            f"no signal with the id {signal_id!r} is parked for a workflow {name!r} with these tags: `gasoline signal list "
            f"--parked` shows what is, and `gasoline signal get` with the id what became of it"
        )
        return [], Reply(error=SignalNotFound(why, **fields))
    match parked.status:
        case "parked":
            return [ParkedDiscarded(signal_id, command.by)], Reply(signal_id, created=True)
        case "discarded":
            return [], Reply(signal_id)
        case "offered" | "delivered":
            target = None if isinstance(parked, Ended) else parked.target
            whose = f"workflow {name!r}" if target is None else f"workflow {name!r} {target}"
            where = "the id of that workflow" if target is None else target
            was = "is on its way to" if parked.status == "offered" else "was given to"
            why = f"signal {signal_id!r} is parked no more: it {was} {whose}. Discard it there, with `--to` or `to=` {where}"
            return [], Reply(error=GasolineError(why, **fields))
        case "unreadable":
            why = f"signal {signal_id!r} cannot be discarded, and no workflow gets it: {parked.problem}"
            return [], Reply(error=GasolineError(why, **fields))
        case _:
            assert_never(parked.status)
