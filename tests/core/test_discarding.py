"""What taking away a signal decides (semantics.md §5)."""

from __future__ import annotations

import pytest

from gasoline_es.core import events as ev
from gasoline_es.core.commands import Discard, DiscardParked, Request, decode_request, encode_request
from gasoline_es.core.discarding import Became, became, discard_parked, not_queued
from gasoline_es.core.location import Location
from gasoline_es.core.parked import Ended, Parked, ParkedStatus, fold_parked, parked_id
from gasoline_es.core.parked_events import (
    ParkedDiscarded,
    ParkedEvent,
    SignalParked,
    SignalReturned,
    decode_parked_event,
    encode_parked_event,
)
from gasoline_es.core.starting_over import copied, plan
from gasoline_es.errors import GasolineError, SignalNotFound

WORKFLOW_ID = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
FIRST: Location = ((1,),)
DISCARD = Discard(WORKFLOW_ID, "line 1", "me")
TAGS = {"order": "42"}
PARKED = SignalParked("line 1", "paid", b"1", "fulfil", TAGS, 60, True, "sender")
STREAM = parked_id("default", "fulfil", TAGS, "line 1")
DISCARD_PARKED = DiscardParked(STREAM, "line 1", "fulfil", "me")


def facts(*data: ev.EventData) -> list[ev.Fact]:
    first = ev.WorkflowDispatched("fulfil", b"1", {})
    return [(WORKFLOW_ID, seq, seq, one, "ray", "w1") for seq, one in enumerate((first, *data), start=1)]


def received(signal_id: str = "line 1") -> ev.SignalReceived:
    return ev.SignalReceived(signal_id, "paid", b"1")


def taken(signal_id: str = "line 1") -> ev.SignalConsumed:
    return ev.SignalConsumed(FIRST, 1, (signal_id,))


def rerun(*superseded: tuple[int, int], generation: int = 1) -> ev.WorkflowRerun:
    return ev.WorkflowRerun("me", FIRST, generation, superseded, (), {}, (("line 1", "paid"),))


@pytest.mark.parametrize(
    ("history", "found"),
    [
        ((), None),
        ((received("line 2"), taken("line 2")), None),
        ((received(),), Became("queued")),
        ((received(), taken()), Became("taken", FIRST)),
        ((received(), taken(), rerun((3, 3))), Became("queued")),
        ((received(), taken(), rerun((3, 3)), ev.SignalDiscarded(("line 1",), "me")), Became("discarded")),
        ((received(), ev.SignalDiscarded(("line 2", "line 1"))), Became("discarded")),
    ],
)
def test_what_became_of_a_signal_is_told_by_the_events_that_hold(
    history: tuple[ev.EventData, ...], found: Became | None
) -> None:
    assert became(facts(*history), "line 1") == found


def test_one_that_is_not_queued_is_refused_unless_it_was_discarded() -> None:
    unknown = not_queued(DISCARD, None).error
    assert isinstance(unknown, SignalNotFound)
    assert (unknown.signal_id, unknown.workflow_id) == ("line 1", WORKFLOW_ID)
    assert f"`gasoline signal list --to {WORKFLOW_ID}`" in unknown.message
    refused = not_queued(DISCARD, Became("taken", FIRST)).error
    assert isinstance(refused, GasolineError)
    assert refused.location == "{1}"
    assert "was taken by the listen at {1}" in refused.message
    assert f"`gasoline workflow rerun {WORKFLOW_ID} --from '{{1}}'`" in refused.message
    again = not_queued(DISCARD, Became("discarded"))
    assert (again.id, again.created, again.error) == ("line 1", False, None)


def standing(status: ParkedStatus, target: str | None = None) -> Parked:
    return Parked(STREAM, 2, PARKED, 1, 2, status=status, target=target, problem="event 3 is missing")


def test_a_parked_one_is_discarded_once() -> None:
    events, reply = discard_parked(standing("parked"), DISCARD_PARKED)
    assert events == [ParkedDiscarded("line 1", "me")]
    assert (reply.id, reply.created) == ("line 1", True)
    for over in (standing("discarded"), Ended(STREAM, 2, 5, "discarded")):
        events, reply = discard_parked(over, DISCARD_PARKED)
        assert (events, reply.id, reply.created, reply.error) == ([], "line 1", False, None)


@pytest.mark.parametrize(
    ("parked", "why"),
    [
        (standing("offered", WORKFLOW_ID), f"is on its way to workflow 'fulfil' {WORKFLOW_ID}. Discard it there"),
        (standing("delivered", WORKFLOW_ID), f"was given to workflow 'fulfil' {WORKFLOW_ID}. Discard it there"),
        (
            Ended(STREAM, 2, 5, "delivered"),
            "was given to workflow 'fulfil'. Discard it there, with `--to` or `to=` the id",
        ),
        (standing("unreadable"), "cannot be discarded, and no workflow gets it: event 3 is missing"),
        (None, "no signal with the id 'line 1' is parked for a workflow 'fulfil' with these tags"),
    ],
)
def test_a_parked_one_that_somebody_has_or_nobody_knows_is_refused(parked: Parked | Ended | None, why: str) -> None:
    events, reply = discard_parked(parked, DISCARD_PARKED)
    assert events == []
    assert isinstance(reply.error, GasolineError)
    assert isinstance(reply.error, SignalNotFound) == (parked is None)
    assert why in reply.error.message


def test_commands_travel_through_an_inbox_and_bad_ones_do_not() -> None:
    for command in (DISCARD, DISCARD_PARKED):
        request = Request("r", "client", command)
        assert decode_request(encode_request(request)) == request
    for bad in (
        Discard(WORKFLOW_ID, "", "me"),
        Discard("../x", "line 1", "me"),
        Discard(WORKFLOW_ID, "line 1", 5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        DiscardParked(STREAM, "line 1", "Not A Name", "me"),
    ):
        with pytest.raises(ValueError, match=r"not a request of gasoline_es|signal id '' is not allowed"):
            decode_request(encode_request(Request("r", "client", bad)))


def test_event_of_a_parked_one_says_by_whom_and_one_whose_time_was_over_reads_as_ever() -> None:
    for data, written in (
        (ParkedDiscarded("line 1", "me"), b'{"signal_ids":["line 1"],"by":"me"}'),
        (ParkedDiscarded("line 1"), b'{"signal_ids":["line 1"]}'),
    ):
        event = ParkedEvent(STREAM, 2, 5, "paid", 0, 1, "w1", data)
        raw = encode_parked_event(event, "default")
        assert raw.endswith(b'"data":' + written + b"}")
        assert decode_parked_event(raw) == event
    assert fold_parked(standing("parked"), ParkedEvent(STREAM, 3, 5, "paid", 0, 1, "w1", data)).status == "discarded"
    returned = ParkedEvent(STREAM, 4, 5, "paid", 0, 1, "w1", SignalReturned(WORKFLOW_ID, "late"))
    after = fold_parked(Ended(STREAM, 3, 5, "discarded"), returned)
    assert after.status == "unreadable", "an end is an end"


def test_starting_over_does_not_bring_back_what_somebody_took_away() -> None:
    """semantics.md §4, starting over: unlike what was left when the workflow ended."""
    step = ev.SleepStarted(FIRST, 1, 5, False)
    taken_away = facts(received(), received("line 2"), step, ev.SignalDiscarded(("line 1",), "me"))
    planned = plan(taken_away, FIRST)
    assert (planned.spans, planned.returned) == (((4, 4),), ())
    left = facts(received(), step, ev.SignalDiscarded(("line 1",)), ev.WorkflowSilenced("me"))
    assert plan(left, FIRST, fork=True).returned == (("line 1", "paid"),)
    copy = [data for _, data in copied(plan(taken_away, FIRST, fork=True), WORKFLOW_ID, "r")]
    assert ev.SignalDiscarded(("line 1",), "me") in copy
    assert not [
        data
        for _, data in copied(plan(left, FIRST, fork=True), WORKFLOW_ID, "r")
        if isinstance(data, ev.SignalDiscarded)
    ]
