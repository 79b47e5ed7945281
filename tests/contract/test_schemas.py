"""The published schemas are those of the events that are written, and no other (docs/kafka-contract.md)."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gasoline_es.contract.schemas import EventSchema, all_schemas
from gasoline_es.core.codec import Envelope
from gasoline_es.core.events import EventData
from gasoline_es.core.parked_events import (
    ParkedData,
    ParkedDiscarded,
    ParkedEvent,
    SignalOffered,
    SignalParked,
    SignalReturned,
    SignalUnparked,
    encode_parked_event,
)
from gasoline_es.core.schedule_events import (
    ScheduleData,
    ScheduleEvent,
    ScheduleFired,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleSet,
    ScheduleSkipped,
    encode_schedule_event,
)
from gasoline_es.core.stored_events import (
    TYPES,
    DecisionStored,
    EventStored,
    Stored,
    StoredData,
    StoredEnvelope,
    TrackingStored,
    embed,
)
from gasoline_es.core.timetable import Cron, Every
from tests.contract.published import SCHEMAS, problems, validator
from tests.core.test_codec import STRATEGIES, WORKFLOW_ID, names, payloads, text, times, traceparents

ALL = all_schemas()
ENVELOPE = Envelope(
    namespace="shop", workflow_id=WORKFLOW_ID, workflow="fulfil", ray_id=WORKFLOW_ID, partition=3, epoch=2, worker="w"
)

maybe_times = st.none() | times
tags = st.dictionaries(text, text, max_size=3)
timetables = st.builds(Cron, st.just("0 3 * * *"), st.just("UTC")) | st.builds(Every, st.integers(1, 2**40), times)
SCHEDULES: dict[type[Any], st.SearchStrategy[Any]] = {
    ScheduleSet: st.builds(
        ScheduleSet,
        text,
        names,
        payloads,
        tags,
        timetables,
        st.sampled_from(["latest", "all", "skip"]),
        st.sampled_from(["allow", "skip"]),
        maybe_times,
        text,
    ),
    SchedulePaused: st.builds(SchedulePaused, text),
    ScheduleResumed: st.builds(ScheduleResumed, text, maybe_times),
    ScheduleFired: st.builds(ScheduleFired, maybe_times, text, maybe_times, st.none() | text),
    ScheduleSkipped: st.builds(
        ScheduleSkipped,
        times,
        times,
        st.integers(1, 2**53),  # of times a second apart there are fewer in ten thousand years
        st.booleans(),
        st.sampled_from(["missed", "overlap", "refused"]),
        maybe_times,
    ),
    ScheduleRemoved: st.builds(ScheduleRemoved, text),
}
PARKED: dict[type[Any], st.SearchStrategy[Any]] = {
    SignalParked: st.builds(
        SignalParked, text, names, payloads, names, tags, times, st.booleans(), text, st.none() | traceparents
    ),
    SignalOffered: st.builds(SignalOffered, text),
    SignalReturned: st.builds(SignalReturned, text, text),
    SignalUnparked: st.builds(SignalUnparked, text),
    ParkedDiscarded: st.builds(ParkedDiscarded, text, st.none() | text),
}
states = (st.binary(max_size=40) | payloads).map(embed)
STORED: dict[type[Any], st.SearchStrategy[Any]] = {
    EventStored: st.builds(EventStored, text, st.booleans(), st.integers(1, 2**53), names, states),
    DecisionStored: st.builds(DecisionStored, names, st.lists(text, max_size=3).map(tuple), states),
    TrackingStored: st.builds(TrackingStored, text, st.integers(1, 2**53)),
}


def test_what_is_published_is_what_is_made() -> None:
    """After a change: python -m tests.contract.publish, and look at the difference: readers will."""
    published = {str(file.relative_to(SCHEMAS)): file.read_text(encoding="utf-8") for file in SCHEMAS.rglob("*.json")}
    assert published == {one.file: one.text for one in ALL}


def test_every_type_of_event_that_is_written_has_one_schema() -> None:
    unions: dict[str, Any] = {"events": EventData, "schedules": ScheduleData, "parked": ParkedData}
    wanted = {
        (topic, kind.TYPE) for topic, union in unions.items() for kind in get_args(union) if kind.TYPE != "unreadable"
    }
    wanted |= {("stored", name) for name in TYPES.values()}
    assert sorted((one.topic, one.type) for one in ALL) == sorted(wanted)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.file)
def test_every_schema_is_one_and_tells_what_the_event_means(one: EventSchema) -> None:
    Draft202012Validator.check_schema(one.schema)
    assert one.schema["description"]
    assert "#/$defs/" not in json.dumps(one.schema) or one.schema["$defs"]


@pytest.mark.parametrize("kind", sorted(STRATEGIES, key=str), ids=lambda kind: kind.TYPE)
@settings(max_examples=4)
@given(data=st.data())
def test_every_event_of_a_workflow_is_as_its_schema_says(kind: type[Any], data: st.DataObject) -> None:
    fact = data.draw(STRATEGIES[kind])
    assert problems("events", ENVELOPE.encode(data.draw(st.integers(1, 2**53)), data.draw(times), fact)) == []


@settings(max_examples=40)
@given(st.one_of(*SCHEDULES.values()))
def test_every_event_of_a_schedule_is_as_its_schema_says(fact: ScheduleData) -> None:
    event = ScheduleEvent("nightly", 1, 0, "nightly", 0, 1, "w", fact)
    assert problems("schedules", encode_schedule_event(event, "shop")) == []


@settings(max_examples=40)
@given(st.one_of(*PARKED.values()))
def test_every_event_of_a_parked_signal_is_as_its_schema_says(fact: ParkedData) -> None:
    assert problems("parked", encode_parked_event(ParkedEvent("p", 1, 0, "paid", 0, 1, "w", fact), "shop")) == []


@settings(max_examples=40)
@given(st.one_of(*(st.lists(one, min_size=1, max_size=4) for one in STORED.values())))
def test_every_record_of_stored_events_is_as_its_schema_says(events: list[StoredData]) -> None:
    written = StoredEnvelope("shop", 0, 1, "w").encode(Stored("events", 1, 0, "r", events))
    assert [problems("stored", line) for _, line in written] == [[]] * len(written)


def test_every_type_is_among_those_that_are_held_against_their_schemas() -> None:
    drawn = {("events", kind.TYPE) for kind in STRATEGIES} | {("schedules", kind.TYPE) for kind in SCHEDULES}
    drawn |= {("parked", kind.TYPE) for kind in PARKED} | {("stored", TYPES[kind]) for kind in STORED}
    assert drawn == {(one.topic, one.type) for one in ALL}


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.file)
def test_an_event_that_lacks_something_or_has_another_type_is_none(one: EventSchema) -> None:
    """The schemas refuse what they are there to refuse; that they do not refuse what is new is below."""
    event = _made(one)
    assert problems(one.topic, event) == []
    for name in one.schema["required"]:
        assert problems(one.topic, {**event, name: None} if name != "type" else {**event, "id": "no seq"}), name
        if name != "type":
            assert problems(one.topic, {key: value for key, value in event.items() if key != name}), name
    for name in one.schema["properties"]["data"]["required"]:
        broken = {key: value for key, value in event["data"].items() if key != name}
        assert problems(one.topic, {**event, "data": broken}), name


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.file)
def test_members_that_are_new_are_no_problem(one: EventSchema) -> None:
    """The rule of evolution: a reader has to pass over them, and the schemas do."""
    event = _made(one)
    assert problems(one.topic, event | {"newmember": 1, "data": event["data"] | {"new_member": {"x": 1}}}) == []


def test_a_time_is_one_and_a_location_is_one() -> None:
    event = _made(next(one for one in ALL if one.type == "sleep.started"))
    for name, wrong in (("deadline", "tomorrow"), ("location", "{01}"), ("location", "1, 2"), ("version", "1")):
        assert problems("events", event | {"data": event["data"] | {name: wrong}}), (name, wrong)


def _made(one: EventSchema) -> dict[str, Any]:
    """An event with what its schema requires."""
    return _value(validator(one.topic, one.cloud_type).schema, one.schema.get("$defs", {}))  # type: ignore[return-value]


def _value(schema: Any, definitions: Any) -> Any:
    match schema:
        case {"const": value}:
            return value
        case {"enum": [first, *_]}:
            return first
        case {"$ref": str(ref)}:
            return _value(definitions[ref.rpartition("/")[2]], definitions)
        case {"anyOf": [first, *_]}:
            return _value(first, definitions)
        case {"type": "object", "properties": members}:
            wanted = [*schema["required"], *(schema["oneOf"][0]["required"] if "oneOf" in schema else ())]
            return {name: _value(members[name], definitions) for name in wanted}
        case {"type": "object"}:
            return {"key": "value"}
        case {"type": "array"}:
            return [_value(schema["items"], definitions)] * schema.get("minItems", 1)
        case {"format": "date-time"}:
            return "2026-01-01T00:00:00.000000Z"
        case {"type": "string", "pattern": pattern}:
            known = {"/[1-9][0-9]*$": "x/1", "^/gasoline/[a-z0-9-]+$": "/gasoline/shop"}
            return known.get(pattern, "{1, 2}")
        case {"type": "string"}:
            return "text"
        case {"type": "integer"}:
            return 1
        case {"type": "boolean"}:
            return True
        case _:
            return {"any": "thing"}
