"""Sequences of stored events: how they are written, when they may be stored, by what they are found (design §4, §7)."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Collection, Sequence

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.commands import Reply, Request, decode_request, encode_request, repeated
from gasoline_es.core.stored_events import (
    RECORD_BYTES,
    TYPES,
    DecisionStored,
    EventStored,
    Numbered,
    Stored,
    StoredData,
    StoredEnvelope,
    TrackingStored,
    decode_some,
    decode_stored,
    embed,
    extract,
)
from gasoline_es.core.storing import Condition, Query, Store, checked, conflict, versions_of
from gasoline_es.errors import StoreConflict
from gasoline_es.log.port import Offset, Record
from projections.stored import StoredView

ID = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"
NOW = 1_800_000_000_000_000

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**63) + 1, 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
states = st.binary(max_size=40) | texts.map(str.encode) | json_values.map(lambda value: json.dumps(value).encode())
payloads = states.map(embed)
events = st.builds(EventStored, texts, st.booleans(), numbers, texts, payloads)
decisions = st.builds(DecisionStored, texts, st.lists(texts, max_size=3).map(tuple), payloads)
query_items = st.lists(st.tuples(st.lists(texts, max_size=2), st.lists(texts, max_size=2)), max_size=2)
trackings = st.builds(TrackingStored, texts, numbers)


def event(version: int, originator: str = "a", topic: str = "t", state: bytes = b"{}") -> EventStored:
    return EventStored(originator, False, version, topic, embed(state))


def decision(kind: str, *tags: str) -> DecisionStored:
    return DecisionStored(kind, tags, embed(b""))


def view_of(sequence: str, *stored: StoredData, at_once: int = 1) -> StoredView:
    """Return a view of events, so many of them in each record."""
    view = StoredView()
    for number, first in enumerate(range(0, len(stored), at_once), 1):
        held = stored[first : first + at_once]
        view.apply(10 * number, 1000 + number, Stored(sequence, first + 1, NOW, ID, held))
    return view


# --- states -----------------------------------------------------------------------------------------------------------


@given(states)
def test_a_state_comes_back_as_the_same_bytes(state: bytes) -> None:
    payload = embed(state)

    assert extract(payload) == state
    assert b"\n" not in payload
    orjson.loads(b"{%b}" % payload)


@pytest.mark.parametrize(
    ("state", "written"),
    [
        (b'{"a": 1.0}', b'"state":{"a": 1.0}'),
        (b"[1,2]", b'"state":[1,2]'),
        (b"state1", b'"text":"state1"'),
        (b"", b'"text":""'),
        (b'{"a":\n1}', b'"text":"{\\"a\\":\\n1}"'),
        (b"NaN", b'"text":"NaN"'),
        (b"\xff\x00", b'"base64":"/wA="'),
        (b'"\\ud800"', b'"text":"\\"\\\\ud800\\""'),
    ],
)
def test_a_state_is_readable_wherever_it_can_be(state: bytes, written: bytes) -> None:
    assert embed(state) == written


def test_a_state_that_nests_too_deeply_for_a_parser_is_kept_as_text() -> None:
    state = b"[" * 500 + b"]" * 500

    assert embed(state).startswith(b'"text":')
    assert extract(embed(state)) == state


@pytest.mark.parametrize("payload", [b'"text":1', b'"base64":"?"', b'"base64":1', b'"other":1', b""])
def test_what_no_state_is_written_as_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"state|base64"):
        extract(payload)


# --- events -----------------------------------------------------------------------------------------------------------


some_events = (
    st.lists(events, min_size=1, max_size=4)
    | st.lists(decisions, min_size=1, max_size=4)
    | st.lists(trackings, min_size=1, max_size=2)
)


@given(some_events, st.integers(1, 10**12))
def test_events_come_back_as_they_were_written(written: Sequence[StoredData], first: int) -> None:
    stored = Stored("events", first, NOW, ID, written)

    ((held, line),) = StoredEnvelope("es-shop", 0, 3, "w").encode(stored)

    assert held == decode_stored(line) == stored
    cloud = json.loads(line)
    assert (cloud["specversion"], cloud["source"], cloud["id"]) == ("1.0", "/gasoline/es-shop", stored.key)
    assert (cloud["type"], cloud["seq"]) == (f"gasoline.{TYPES[type(written[0])]}.v1", first)
    assert (cloud["partition"], cloud["epoch"], cloud["worker"]) == (0, 3, "w")
    assert [one["seq"] for one in cloud["data"]["events"]] == list(range(first, first + len(written)))
    wanted = range(first, first + len(written), 2)
    assert decode_some(line, wanted) == [Numbered(seq, written[seq - first]) for seq in wanted]


hostile = ',"state":{}},"data":{"bytes":[1],"events":[{"state":1'


@pytest.mark.parametrize(
    "data",
    [
        EventStored(hostile, False, 1, hostile, embed(hostile.encode())),
        DecisionStored(hostile, (hostile, "state"), embed(orjson.dumps({"state": hostile}))),
        TrackingStored(hostile, 1),
    ],
    ids=["event", "decision", "tracking"],
)
def test_a_text_that_looks_like_the_line_around_it_does_not_break_it(data: StoredData) -> None:
    stored = Stored("events", 1, NOW, hostile, [data, data])

    assert [decode_stored(line) for _, line in StoredEnvelope("es", 0, 1, hostile).encode(stored)] == [stored]


@given(st.lists(st.integers(0, RECORD_BYTES + 10), min_size=1, max_size=8))
def test_many_events_take_several_records_none_of_which_is_long_for_more_than_one_event(sizes: list[int]) -> None:
    stored = Stored("events", 5, NOW, ID, [event(n, state=b"1" * (size + 1)) for n, size in enumerate(sizes)])

    written = StoredEnvelope("es", 0, 1, "w").encode(stored)

    seq = 5
    for held, line in written:
        assert held == decode_stored(line)
        assert held.first == seq
        assert len(held.events) == 1 or len(line) < RECORD_BYTES + 1_000
        seq += len(held.events)
    assert [data for held, _ in written for data in held.events] == stored.events


def line_of(*data: StoredData) -> bytes:
    ((_, line),) = StoredEnvelope("es", 0, 1, "w").encode(Stored("events", 1, NOW, ID, data))
    return line


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("events.stored.v1", "events.stored.v2"),
        ("events.stored", "events.forgotten"),
        ('"seq":1,"partition"', '"seq":"1","partition"'),
        ('"seq":2', '"seq":3'),
        ('"sequence":"events"', '"sequence":1'),
        ('"bytes":[', '"bytes":[1,'),
        ('"bytes":[', '"bytes":["1",'),
        ('"bytes":[', '"lengths":['),
        ('"events":[', '"things":['),
        ('"topic":"t"', '"about":"t"'),
        ("]}}", "]}} "),
    ],
)
def test_what_is_of_a_newer_version_or_none_of_ours_is_refused(before: str, after: str) -> None:
    line = line_of(event(1), event(2))
    assert before.encode() in line

    with pytest.raises(ValueError, match=r"newer version|not an event|unexpected|expected"):
        decode_stored(line.replace(before.encode(), after.encode()))


@pytest.mark.parametrize("seq", [0, 3, -1])
def test_an_event_that_is_not_in_a_record_is_not_read_from_it(seq: int) -> None:
    with pytest.raises(ValueError, match="not an event"):
        decode_some(line_of(event(1), event(2)), [seq])


def test_a_view_that_cannot_read_an_event_says_so_and_goes_on() -> None:
    lines = [
        line
        for seq in (1, 2)
        for _, line in StoredEnvelope("es", 0, 1, "w").encode(Stored("events", seq, NOW, ID, [event(seq)]))
    ]
    lines[0] = lines[0].replace(b".v1", b".v2")
    view = StoredView()

    view.fold([Record("es.stored", 0, Offset(at), "k", line, NOW) for at, line in enumerate(lines)])

    assert view.next_offset == 2
    assert view.unreadable is not None
    assert "offset 0" in view.unreadable


def test_a_page_of_what_there_is_copies_no_more_than_the_page() -> None:
    """A subscription that catches up asks for page after page: each costs what is in it."""
    view = view_of("events", *(event(version) for version in range(50_000)), at_once=10_000)
    decided = view_of("decisions", *([decision("t", "tag")] * 50_000), at_once=10_000)
    query = Query(((("t",), ()),))

    def pages() -> list[list[int]]:
        return [view.of_kinds("events", ["t"], 100, None, 10), decided.matching("decisions", query, 99, 10)]

    pages()
    tracemalloc.start()
    try:
        assert pages() == [list(range(100, 110))] * 2
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000, "a copy of what comes behind has 400,000 bytes"


# --- the command ------------------------------------------------------------------------------------------------------


@given(st.lists(events, min_size=1, max_size=3), st.none() | trackings)
def test_a_command_of_events_survives_the_inbox(some: list[EventStored], tracking: TrackingStored | None) -> None:
    command = Store(ID, "events", tuple(some), tracking, at=7)

    read = decode_request(encode_request(Request("r", "c", command))).command

    assert read == Store(ID, "events", list(some), tracking, at=7)


@given(st.lists(decisions, min_size=1, max_size=3), query_items)
def test_a_command_of_decisions_survives_the_inbox(
    some: list[DecisionStored], items: list[tuple[list[str], list[str]]]
) -> None:
    condition = Condition(Query(tuple((tuple(types), tuple(tags)) for types, tags in items)), 5)
    command = Store(ID, "decisions", tuple(some), condition=condition)

    read = decode_request(encode_request(Request("r", "c", command))).command

    assert read == Store(ID, "decisions", list(some), condition=condition)


@pytest.mark.parametrize(
    "command",
    [
        Store(ID, "events"),
        Store(ID, "Events", (event(1),)),
        Store(ID, "tracking", (event(1),)),
        Store(ID, "decisions", (event(1),)),
        Store(ID, "events", (decision("t"),)),
        Store(ID, "events", (event(2**63),)),
        Store(ID, "events", (event(True),)),
        Store(ID, "events", (event(1, "\ud800"),)),
        Store(ID, "events", (), TrackingStored("a", 2**63)),
        Store(ID, "events", (event(1),), at=-1),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused_before_it_is_sent(command: Store) -> None:
    with pytest.raises((ValueError, TypeError)):
        raise_value_error_for_names(command)


def raise_value_error_for_names(command: Store) -> None:
    from gasoline_es.errors import DefinitionError

    try:
        checked(command)
    except DefinitionError as error:
        raise ValueError(str(error)) from error


@pytest.mark.parametrize(
    "members",
    [
        {"events": [["a", False, 1, "t", '"state":{}\n']]},
        {"events": [["a", False, 1, "t", '"state":{},"more":1']]},
        {"events": [["a", False, 1, "t"]]},
        {"events": [["a", "no", 1, "t", '"state":{}']]},
        {"events": 5},
        {"store_id": "../../x"},
    ],
)
def test_what_no_client_would_send_is_refused(members: dict[str, object]) -> None:
    sent = orjson.loads(encode_request(Request("r", "c", Store(ID, "events", (event(1),)))))

    with pytest.raises(ValueError, match=r"not a request|newer|state|64 bits"):
        decode_request(orjson.dumps(sent | members))


def test_a_command_asked_again_says_where_it_may_be_found() -> None:
    command = Store(ID, "events", (event(1),))

    assert repeated(command, Reply(ID, position=41)) == Store(ID, "events", (event(1),), at=41)
    assert repeated(command, Reply(error=None)) is command


# --- whether it may be stored -----------------------------------------------------------------------------------------


class Known:
    """A view with nothing ahead of it."""

    def __init__(self, view: StoredView) -> None:
        self.view = view

    def first_known(self, sequence: str, originator: str, versions: Collection[int]) -> int | None:
        return self.view.first_known(sequence, originator, versions)

    def tracked(self, application: str) -> int | None:
        return self.view.tracked(application)

    def matching(self, sequence: str, condition: Condition) -> int | None:
        return next(iter(self.view.matching(sequence, condition.query, condition.after, 1)), None)


def refused(command: Store, known: Known) -> StoreConflict | None:
    return conflict(command, known, versions_of(command.events))


@pytest.mark.parametrize(
    ("new", "may"),
    [
        ([event(3)], True),
        ([event(2)], True),
        ([event(1)], False),
        ([event(5)], False),
        ([event(3), event(3)], False),
        ([event(3), event(5)], False),
        ([event(1, "b"), event(5, "b")], True),
    ],
)
def test_a_version_is_stored_once(new: list[EventStored], may: bool) -> None:
    known = Known(view_of("events", event(1), event(5)))

    assert (refused(Store(ID, "events", new), known) is None) is may
    assert refused(Store(ID, "snapshots", [event(1)]), known) is None


@pytest.mark.parametrize(("number", "may"), [(6, True), (5, False), (4, False)])
def test_tracking_only_ascends(number: int, may: bool) -> None:
    known = Known(view_of("tracking", TrackingStored("up", 5)))

    assert (refused(Store(ID, "events", (), TrackingStored("up", number)), known) is None) is may
    assert refused(Store(ID, "events", (), TrackingStored("other", number)), known) is None


# --- by what they are found -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 2, 4])
@pytest.mark.parametrize(
    ("above", "up_to", "newest_first", "limit", "found"),
    [
        (None, None, False, None, [2, 1, 4]),
        (None, None, True, 1, [4]),
        (1, None, False, None, [1, 4]),
        (1, 2, False, None, [1]),
        (None, 2, True, None, [1, 2]),
        (9, None, False, None, []),
    ],
)
def test_an_originators_events_are_found_in_order_of_version(
    above: int | None, up_to: int | None, newest_first: bool, limit: int | None, found: list[int], at_once: int
) -> None:
    view = view_of("events", event(2), event(1), event(7, "b"), event(3), at_once=at_once)

    assert view.of_originator("events", "a", above, up_to, newest_first=newest_first, limit=limit) == found


def test_events_are_found_by_topic() -> None:
    view = view_of("events", *(event(n, topic=topic) for n, topic in enumerate("xyxzx", 1)), at_once=2)

    assert view.of_kinds("events", [], 2, 5, 2) == [2, 3]
    assert view.of_kinds("events", ["x", "z", "none"], 2, None, 10) == [3, 4, 5]
    assert view.of_kinds("other", [], 1, None, 10) == []
    assert view.located("events", [1, 2, 5]) == ([10, 30], [1001, 1003], [[1, 2], [5]])
    assert view.located("events", [3]) == ([20], [1002], [[3]])


kinds, tags = st.sampled_from("ABC"), st.lists(st.sampled_from("xyz"), max_size=3)
queries = st.builds(
    Query, st.lists(st.tuples(st.lists(kinds, max_size=2).map(tuple), tags.map(tuple)), max_size=3).map(tuple)
)


@given(
    st.lists(st.tuples(kinds, tags), max_size=12),
    queries,
    st.integers(0, 12),
    st.none() | st.integers(0, 5),
    st.integers(1, 5),
)
def test_decisions_are_found_as_a_look_at_each_would_find_them(
    stored: list[tuple[str, list[str]]], query: Query, after: int, limit: int | None, at_once: int
) -> None:
    view = view_of("decisions", *(decision(kind, *having) for kind, having in stored), at_once=at_once)

    found = view.matching("decisions", query, after, limit)

    each = [seq for seq, (kind, having) in enumerate(stored, 1) if seq > after and query.matches(kind, having)]
    assert found == each[:limit]
