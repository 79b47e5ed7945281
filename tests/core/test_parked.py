"""What is decided about a parked signal, from the fold of its events (``core.parked``)."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.commands import (
    Land,
    Park,
    Request,
    SendSignal,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from gasoline_es.core.durations import DURATION_US_MAX, MAX_US, MICROSECONDS, MIN_US, parse_time
from gasoline_es.core.ids import partition_of, slot_of
from gasoline_es.core.parked import (
    ENDED_REMEMBERED,
    ENDED_REMEMBERED_US,
    PASSED_KEPT,
    REASON_MAX,
    Parked,
    fold_parked,
    land,
    park,
    parked_id,
    parked_slot,
)
from gasoline_es.core.parked_events import (
    ParkedData,
    ParkedDiscarded,
    ParkedEvent,
    SignalOffered,
    SignalParked,
    SignalReturned,
    SignalUnparked,
    decode_parked_event,
    encode_parked_event,
)
from gasoline_es.core.standing import Unreadable
from gasoline_es.errors import SignalDiscarded
from gasoline_es.log.port import Offset, Record
from projections.parked import ParkedView
from tests.core.test_codec import names, payloads, text

TAGS = {"order": "42"}
ID = parked_id("default", "fulfil", TAGS, "line 1")
ONE, TWO = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f", "0190f3a2-7c1e-7d05-9b3a-5f2c81e40b3f"
NOW = parse_time("2026-01-01T00:00:00Z")
MINUTE = 60 * MICROSECONDS
ENDED_BYTES_MAX = 350
PARK = Park(ID, "line 1", "paid", b'{"cents":9}', "fulfil", TAGS, MINUTE, "me", True)


def event(seq: int, data: ParkedData, time_us: int = NOW, its_id: str = ID) -> ParkedEvent:
    return ParkedEvent(its_id, seq, time_us, "paid", 0, 1, "w", data)


def folded(*facts: ParkedData) -> Parked:
    parked: Parked | None = None
    for seq, data in enumerate(facts, 1):
        parked = fold_parked(parked, event(seq, data))
    assert parked is not None
    return parked


def made(command: Park = PARK) -> SignalParked:
    (data,), reply = park(None, command, NOW)
    assert (reply.id, reply.created, reply.error) == (command.signal_id, True, None)
    assert isinstance(data, SignalParked)
    return data


def test_a_signal_is_parked_until_its_time_is_over() -> None:
    parked = folded(made())
    assert (parked.status, parked.live, parked.signal.until_us) == ("parked", True, NOW + MINUTE)
    assert parked.takes("fulfil", {**TAGS, "more": "x"})
    assert not parked.takes("fulfil", {"order": "43"})
    assert not parked.takes("other", TAGS)


def test_its_time_never_reaches_beyond_what_can_be_written() -> None:
    (data,), _ = park(None, replace(PARK, park_us=DURATION_US_MAX), MAX_US - 1)
    assert isinstance(data, SignalParked)
    assert data.until_us == MAX_US


@pytest.mark.parametrize(
    "after",
    [
        (),
        (SignalOffered(ONE),),
        (SignalOffered(ONE), SignalReturned(ONE, "over")),
        (SignalUnparked(ONE),),
    ],
)
def test_a_repeat_changes_nothing_whatever_became_of_it(after: tuple[ParkedData, ...]) -> None:
    parked = folded(made(), *after)
    for known in (parked, parked.ended or parked):
        events, reply = park(known, replace(PARK, park_us=5, body=b"{}"), NOW + 1)
        assert (events, reply.id, reply.created, reply.error) == ([], "line 1", False, None)
        assert reply.stands == (None if parked.live else "delivered")
        assert decode_reply(encode_reply("r", reply)) == ("r", reply)


def test_a_repeat_of_what_nobody_gets_changes_nothing_and_is_told_so() -> None:
    discarded = folded(made(), ParkedDiscarded("line 1"))
    for known in (discarded, discarded.ended):
        assert known is not None
        events, reply = park(known, PARK, NOW + 1)
        assert (events, reply.created) == ([], False)
        _, told = decode_reply(encode_reply("r", reply))  # also by another process
        for error in (reply.error, told.error):
            assert isinstance(error, SignalDiscarded)
            assert "'paid' with the id 'line 1'" in error.message
            assert "no workflow 'fulfil' with its tags came in time" in error.message
            assert (error.signal_id, error.signal, error.workflow) == ("line 1", "paid", "fulfil")
    events, reply = park(folded(made(), Unreadable("gasoline.signal.frozen.v1", "new")), PARK, NOW + 1)
    assert events == []
    assert reply.error is not None
    assert "nothing happens to it any more: event 2 of type gasoline.signal.frozen.v1: new." in reply.error.message


def test_an_offer_ends_by_what_the_workflow_says() -> None:
    offered = folded(made(), SignalOffered(ONE))
    assert (offered.status, offered.target, offered.live) == ("offered", ONE, True)
    (taken,) = land(offered, Land(ID, ONE))
    assert taken == SignalUnparked(ONE)
    (back,) = land(offered, Land(ID, ONE, "x" * 2 * REASON_MAX))
    assert back == SignalReturned(ONE, "x" * REASON_MAX)
    again = folded(made(), SignalOffered(ONE), back)
    assert (again.status, again.target, again.passed) == ("parked", None, (ONE,))


@pytest.mark.parametrize(
    "before",
    [
        (),
        (SignalOffered(TWO),),
        (SignalOffered(ONE), SignalUnparked(ONE)),
        (SignalOffered(ONE), SignalReturned(ONE, "over")),
        (SignalOffered(ONE), SignalReturned(ONE, "over"), ParkedDiscarded("line 1")),
    ],
)
def test_an_answer_that_is_not_waited_for_changes_nothing(before: tuple[ParkedData, ...]) -> None:
    assert land(folded(made(), *before), Land(ID, ONE)) == []
    assert land(None, Land(ID, ONE)) == []


def test_of_many_that_did_not_take_it_the_last_are_passed_over() -> None:
    facts: list[ParkedData] = [made()]
    for number in range(2 * PASSED_KEPT):
        facts += [SignalOffered(str(number)), SignalReturned(str(number), "over")]
    assert folded(*facts).passed == tuple(map(str, range(PASSED_KEPT, 2 * PASSED_KEPT)))


def test_what_is_over_keeps_no_body() -> None:
    for end in (SignalUnparked(ONE), ParkedDiscarded("line 1")):
        parked = folded(made(), end)
        assert (parked.live, parked.signal.body) == (False, b"null")


@pytest.mark.parametrize("end", [SignalUnparked(ONE), ParkedDiscarded("line 1")])
def test_after_its_end_it_may_be_parked_anew(end: ParkedData) -> None:
    """design §4: whoever had forgotten it begins again with event 1, and who has not reads that as well."""
    over = folded(made(), SignalOffered(TWO), SignalReturned(TWO, "over"), end)
    anew = replace(made(), body=b"{}", until_us=NOW + 3 * MINUTE)
    for known in (over, over.ended):
        again = fold_parked(known, event(1, anew, NOW + MINUTE))
        assert again == Parked(ID, 1, anew, parked_us=NOW + MINUTE, updated_us=NOW + MINUTE)
        for seq, data in ((1, SignalOffered(ONE)), (over.seq + 1, anew), (over.seq + 1, SignalUnparked(ONE))):
            strange = fold_parked(known, event(seq, data))
            assert strange.status == "unreadable"
            assert strange.problem == f"event {seq}, {data.TYPE}, comes after its end"
    assert fold_parked(folded(made()), event(1, anew)).status == "unreadable", "it is not over"


def test_events_that_make_no_sense_set_it_aside_for_good() -> None:
    assert folded(made(), made()).status == "unreadable"
    assert fold_parked(None, event(2, made())).status == "unreadable"
    assert fold_parked(None, event(1, SignalUnparked(ONE))).status == "unreadable"
    gap = fold_parked(folded(made()), event(3, SignalUnparked(ONE)))
    assert (gap.status, gap.live) == ("unreadable", False)
    assert gap.problem is not None
    assert "event 3 follows event 1" in gap.problem
    assert fold_parked(gap, event(4, SignalUnparked(ONE))).status == "unreadable"
    strange = folded(made(), Unreadable("gasoline.signal.frozen.v1", "unknown"))
    assert strange.problem == "event 2 of type gasoline.signal.frozen.v1: unknown"


# --- where it is ------------------------------------------------------------------------------------------------------


@given(st.dictionaries(text, text, max_size=3), text)
def test_all_that_are_parked_for_a_name_meet_in_one_partition(tags: dict[str, str], signal_id: str) -> None:
    its_id = parked_id("default", "fulfil", tags, signal_id)
    assert slot_of(its_id) == parked_slot("fulfil")
    assert partition_of(its_id, 16) == partition_of(ID, 16)
    assert its_id == parked_id("default", "fulfil", dict(reversed(list(tags.items()))), signal_id)


def test_another_namespace_name_tag_or_signal_is_another_one() -> None:
    others = [
        parked_id("other", "fulfil", TAGS, "line 1"),
        parked_id("default", "ship", TAGS, "line 1"),
        parked_id("default", "fulfil", {"order": "43"}, "line 1"),
        parked_id("default", "fulfil", TAGS, "line 2"),
    ]
    assert len({ID, *others}) == 5


# --- its events and commands as lines ---------------------------------------------------------------------------------

times = st.integers(MIN_US, MAX_US)
data = st.one_of(
    st.builds(
        SignalParked, text, names, payloads, names, st.dictionaries(text, text, max_size=3), times, st.booleans(), text
    ),
    st.builds(SignalOffered, text),
    st.builds(SignalReturned, text, text),
    st.builds(SignalUnparked, text),
    st.builds(ParkedDiscarded, text),
)


@given(st.builds(ParkedEvent, text, st.integers(1, 2**53), times, names, st.just(3), st.just(2), text, data))
def test_an_event_comes_back_from_its_line(given_event: ParkedEvent) -> None:
    line = encode_parked_event(given_event, "default")
    assert b"\n" not in line
    assert decode_parked_event(line) == given_event


@pytest.mark.parametrize(
    ("found", "written"),
    [
        (b"signal.unparked.v1", b"signal.frozen.v1"),
        (b"signal.unparked.v1", b"signal.unparked.v2"),
        (b'"target"', b'"aim"'),
        (b"gasoline.signal", b"other.signal"),
    ],
)
def test_an_event_of_a_newer_version_is_unreadable_and_no_error(found: bytes, written: bytes) -> None:
    line = encode_parked_event(event(2, SignalUnparked(ONE)), "default")
    assert found in line
    assert isinstance(decode_parked_event(line.replace(found, written)).data, Unreadable)


@pytest.mark.parametrize("line", [b"null", b"[]", b"{}", b'{"subject":1,"seq":1}', b"{"])
def test_what_is_no_event_at_all_is_an_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_parked_event(line)


@pytest.mark.parametrize("command", [PARK, Land(ID, ONE), Land(ID, ONE, "over")])
def test_a_command_comes_back_from_its_line(command: Park | Land) -> None:
    assert decode_request(encode_request(Request("r", "c", command))).command == command


@pytest.mark.parametrize(
    "command",
    [
        replace(PARK, parked_id="../x"),
        replace(PARK, signal_id=""),
        replace(PARK, name="No Name"),
        replace(PARK, workflow="../x"),
        replace(PARK, tags={"a": 1}),
        replace(PARK, park_us=0),
        replace(PARK, park_us=-1),
        replace(PARK, park_us=1.5),
        replace(PARK, park_us=True),
        replace(PARK, park_us=DURATION_US_MAX + 1),
        replace(PARK, by=5),
        replace(PARK, by_caller="yes"),
        Land("x", ONE),
        Land(ID, "x"),
        replace(Land(ID, ONE), refused=5),
        SendSignal(ONE, "s", "paid", b"{}", parked="x"),
    ],
)
def test_what_no_client_sends_is_refused(command: Any) -> None:
    with pytest.raises(ValueError, match=r"not a request|not allowed"):
        decode_request(encode_request(Request("r", "c", command)))


# --- the view ---------------------------------------------------------------------------------------------------------


def view_of(*events: ParkedEvent) -> ParkedView:
    view = ParkedView()
    lines = [encode_parked_event(one, "default") for one in events]
    view.fold(
        Record("default.parked", 0, Offset(offset), f"{one.parked_id}/{one.seq}", line, one.time_us)
        for offset, (one, line) in enumerate(zip(events, lines, strict=True))
    )
    return view


def wanting(its_id: str, tags: dict[str, str], workflow: str = "fulfil") -> ParkedEvent:
    return event(1, replace(made(), workflow=workflow, tags=tags), its_id=its_id)


def test_the_view_tells_which_ones_a_workflow_would_get_in_the_order_of_parking() -> None:
    view = view_of(
        wanting("a", {"order": "42"}),
        wanting("b", {}),
        wanting("c", {"order": "42", "customer": "7"}),
        wanting("d", {"order": "43"}),
        wanting("e", {"customer": "7"}),
        wanting("f", {"order": "42"}, "ship"),
        event(2, SignalOffered(ONE), its_id="b"),
        event(2, SignalUnparked(ONE), its_id="e"),
    )
    assert [one.id for one in view.waiting_for("fulfil", {"order": "42", "customer": "7"})] == ["a", "b", "c"]
    assert [one.id for one in view.waiting_for("fulfil", {})] == ["b"]
    assert [one.id for one in view.live()] == ["a", "b", "c", "d", "f"]
    assert view.next_offset == 8


def test_ids_of_what_is_over_are_remembered_for_a_day_and_of_ten_thousand_at_least() -> None:
    view = ParkedView()
    offsets = count()

    def ended(number: int, time_us: int) -> None:
        view.apply(next(offsets), event(1, made(), time_us, str(number)))
        view.apply(next(offsets), event(2, ParkedDiscarded("x"), time_us, str(number)))

    for number in range(ENDED_REMEMBERED + 5):
        ended(number, NOW + number)
    assert view.get("0") is not None, "all of the last day"
    ended(ENDED_REMEMBERED + 5, NOW + 3 + ENDED_REMEMBERED_US)
    assert [view.get(str(number)) is None for number in range(6)] == [True, True, True, True, False, False]
    assert not view.any_live()
    ended(0, NOW + 4 + ENDED_REMEMBERED_US)  # forgotten: one of that id is a new one
    assert (found := view.get("0")) is not None
    assert found.status == "discarded"


def test_what_waits_is_not_forgotten_however_much_ends() -> None:
    view = ParkedView()
    offsets = count()
    view.apply(next(offsets), event(1, made(), NOW, "waits"))
    for number in range(ENDED_REMEMBERED + 5):
        view.apply(next(offsets), event(1, made(), NOW + number * MINUTE, str(number)))
        view.apply(next(offsets), event(2, ParkedDiscarded("x"), NOW + number * MINUTE, str(number)))
    assert [one.id for one in view.live()] == ["waits"]


def test_one_that_is_parked_anew_is_remembered_from_its_last_end() -> None:
    """Also by a view that remembers longer than the owner who had forgotten it."""
    view = ParkedView()
    offsets = count()
    facts: list[ParkedData] = [made(), ParkedDiscarded("x")]
    for seq, data in enumerate(facts, 1):
        view.apply(next(offsets), event(seq, data, NOW, "again"))
    view.apply(next(offsets), event(1, made(), NOW + MINUTE, "again"))
    assert [one.id for one in view.live()] == [one.id for one in view.waiting_for("fulfil", TAGS)] == ["again"]

    def others(count: int, time_us: int) -> None:
        for number in range(count):
            for seq, data in enumerate(facts, 1):
                view.apply(next(offsets), event(seq, data, time_us, f"{time_us} {number}"))

    day = ENDED_REMEMBERED_US
    others(ENDED_REMEMBERED, NOW + day)
    assert [one.id for one in view.live()] == ["again"], "its first end does not count"
    view.apply(next(offsets), event(2, SignalUnparked(ONE), NOW + day + MINUTE, "again"))
    others(1, NOW + 2 * day)
    assert (found := view.get("again")) is not None
    assert found.status == "delivered"
    others(ENDED_REMEMBERED, NOW + 3 * day)
    assert view.get("again") is None


def test_what_is_over_takes_a_third_of_a_kilobyte() -> None:
    """design §10: what Python allocates, whatever was parked; a day of them is remembered, however many they are."""
    view, sizes = ParkedView(), list[int]()
    few, many = 2_000, 6_000
    tracemalloc.start()
    try:
        for number in range(many):
            its_id = parked_id("default", "fulfil", TAGS, f"line {number}")
            signal = replace(made(), signal_id=f"line {number}", tags={"order": str(number)}, body=b'"%d"' % number)
            for seq, data in enumerate((signal, SignalOffered(ONE), SignalUnparked(ONE)), 1):
                line = encode_parked_event(event(seq, data, NOW + number, its_id), "default")
                view.fold([Record("default.parked", 0, Offset(3 * number + seq), its_id, line, NOW)])
            if number + 1 in (few, many):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert (sizes[1] - sizes[0]) / (many - few) < ENDED_BYTES_MAX
