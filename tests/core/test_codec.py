"""Every event comes back from its line as it was; what is not understood is set aside, never guessed (design §4)."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from gasoline_es.core import events as ev
from gasoline_es.core.codec import Envelope, decode, read_fact
from gasoline_es.core.durations import MAX_US, MIN_US
from gasoline_es.core.values import dump_json

WORKFLOW_ID = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"

# Text as hostile as JSON allows: quotes, escapes, controls, NUL, U+2028, right-to-left overrides, beyond the BMP.
text = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ['"', "\\", '","data":{"x":1}}', "\x00\x1b[2J\r\n\x9b", "\u2028\u202e", "😀", "{1}", "null", "\ufeff"]
)
names = st.from_regex(r"[a-z0-9_]{1,20}", fullmatch=True)
numbers = (
    st.integers() | st.sampled_from([2**63, 2**64, -(2**64), 10**40]) | st.floats(allow_nan=False, allow_infinity=False)
)
trees = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
payloads = trees.map(dump_json)
times = st.integers(MIN_US, MAX_US)
counts = st.integers(1, 2**53)
coordinates = st.lists(st.integers(0, 10**17), min_size=1, max_size=4).map(tuple)
locations = st.lists(coordinates, min_size=1, max_size=4).map(tuple)
traceparents = st.from_regex(r"00-[0-9a-f]{31}1-[0-9a-f]{15}1-[0-9a-f]{2}", fullmatch=True)
errors = st.builds(ev.ErrorInfo, text, text, text, st.none() | payloads)
ids = st.lists(text, max_size=4).map(tuple)
places = st.lists(locations, max_size=3).map(tuple)
rules = st.sampled_from(["all", "history", "none"])
handlers = st.lists(st.builds(ev.RollbackHandler, names, payloads, counts), max_size=3).map(tuple)

STRATEGIES: dict[type[Any], st.SearchStrategy[Any]] = {
    ev.WorkflowDispatched: st.builds(
        ev.WorkflowDispatched,
        names,
        payloads,
        st.dictionaries(text, text, max_size=4),
        st.booleans(),
        st.none() | text,
        st.none() | text,
        st.none() | text,
        traceparent=st.none() | traceparents,
    ),
    ev.WorkflowSuspended: st.builds(
        ev.WorkflowSuspended, st.none() | times, st.lists(names).map(tuple), st.booleans(), ids
    ),
    ev.WorkflowCompleted: st.builds(ev.WorkflowCompleted, payloads, payloads, rules),
    ev.WorkflowFailed: st.builds(ev.WorkflowFailed, errors, st.booleans(), places),
    ev.WorkflowRecovered: st.builds(ev.WorkflowRecovered, text, places),
    ev.WorkflowCancelRequested: st.builds(ev.WorkflowCancelRequested, text),
    ev.WorkflowCancelled: st.builds(ev.WorkflowCancelled, payloads, st.none() | errors, rules),
    ev.WorkflowPruned: st.builds(ev.WorkflowPruned, text, reason=st.none() | text)
    | st.builds(
        ev.WorkflowPruned,
        text,
        st.lists(counts, min_size=1, max_size=3).map(tuple),
        st.builds(
            ev.Remains,
            st.sampled_from(["complete", "cancelled"]),
            times,
            st.dictionaries(text, text, max_size=4),
            st.none() | errors,
        ),
        st.none() | text,
    ),
    ev.WorkflowSilenced: st.builds(ev.WorkflowSilenced, text),
    ev.WorkflowRerun: st.builds(
        ev.WorkflowRerun,
        text,
        locations,
        counts,
        st.lists(st.tuples(counts, counts), max_size=3).map(tuple),
        places,
        st.dictionaries(text, text, max_size=4),
        st.lists(st.tuples(text, names), max_size=3).map(tuple),
    ),
    ev.WorkflowTagsUpdated: st.builds(ev.WorkflowTagsUpdated, st.dictionaries(text, text, max_size=4)),
    ev.WorkflowWoken: st.builds(ev.WorkflowWoken, text),
    ev.ActivityStarted: st.builds(ev.ActivityStarted, locations, counts, names, counts),
    ev.ActivityCompleted: st.builds(
        ev.ActivityCompleted, locations, counts, names, counts, times, payloads, payloads, st.none() | payloads
    ),
    ev.ActivityFailed: st.builds(
        ev.ActivityFailed,
        locations,
        counts,
        names,
        counts,
        times,
        payloads,
        errors,
        st.none() | times,
        st.booleans(),
        st.booleans(),
        st.none() | payloads,
    ),
    ev.SignalReceived: st.builds(ev.SignalReceived, text, names, payloads, st.none() | text, st.none() | traceparents),
    ev.SignalDiscarded: st.builds(ev.SignalDiscarded, ids, st.none() | text),
    ev.SignalConsumed: st.builds(ev.SignalConsumed, locations, counts, ids),
    ev.SleepStarted: st.builds(ev.SleepStarted, locations, counts, times, st.booleans()),
    ev.SleepFinished: st.builds(
        ev.SleepFinished, locations, st.sampled_from(["normal", "uninterrupted", "interrupted"])
    ),
    ev.StepRemoved: st.builds(ev.StepRemoved, locations, counts, names, st.none() | names),
    ev.StepPlaced: st.builds(ev.StepPlaced, locations, counts, names, st.none() | names),
    ev.StepInterrupted: st.builds(ev.StepInterrupted, locations, counts, names, st.none() | names),
    ev.VersionChecked: st.builds(ev.VersionChecked, locations, counts, counts),
    ev.BranchOpened: st.builds(
        ev.BranchOpened, locations, counts, st.sampled_from(["closure", "run", "race"]), st.none() | names
    ),
    ev.RaceDecided: st.builds(ev.RaceDecided, locations, st.none() | counts, payloads),
    ev.SignalSent: st.builds(ev.SignalSent, locations, counts, text, names, payloads, st.none() | text),
    ev.MessageSent: st.builds(
        ev.MessageSent, locations, counts, names, st.dictionaries(text, text, max_size=4), payloads
    ),
    ev.RecordEmitted: st.builds(
        ev.RecordEmitted,
        locations,
        counts,
        names,
        text,
        st.none() | payloads.filter(lambda raw: raw != b"null"),
        counts,
    ),
    ev.WorkflowSpawned: st.builds(
        ev.WorkflowSpawned,
        locations,
        counts,
        text,
        names,
        st.dictionaries(text, text, max_size=4),
        st.booleans(),
        st.booleans(),
    ),
    ev.OutputReceived: st.builds(
        ev.OutputReceived, locations, counts, text, names, st.none() | payloads, st.none() | errors
    ),
    ev.WaiterAdded: st.builds(ev.WaiterAdded, text, locations, counts),
    ev.LoopCommitted: st.builds(
        ev.LoopCommitted, locations, counts, counts, payloads, st.none() | payloads, handlers, st.booleans()
    ),
    ev.CheckpointReached: st.builds(ev.CheckpointReached, locations, counts),
    ev.RollbackStarted: st.builds(ev.RollbackStarted, locations, counts, errors),
}
every_event = st.one_of(*STRATEGIES.values())


def envelope(**other: Any) -> Envelope:
    fields: dict[str, Any] = {
        "namespace": "default",
        "workflow_id": WORKFLOW_ID,
        "workflow": "fulfil",
        "ray_id": "ray",
        "partition": 3,
        "epoch": 2,
        "worker": "w1",
    }
    return Envelope(**{**fields, **other})


def cloud(event: ev.EventData, /, **changes: Any) -> dict[str, Any]:
    return {**json.loads(envelope().encode(5, 0, event)), **changes}


def read(cloud: Any) -> ev.Event:
    return decode(json.dumps(cloud).encode())


def test_every_kind_of_event_is_generated() -> None:
    assert set(STRATEGIES) | {ev.Unreadable} == set(ev.EventData.__args__)


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_event_comes_back_from_its_line(kind: type[Any], data: st.DataObject) -> None:
    event: ev.EventData = data.draw(STRATEGIES[kind])
    line = envelope().encode(5, 7, event)
    assert b"\n" not in line
    read = decode(line)
    assert read == ev.Event(WORKFLOW_ID, 5, 7, "fulfil", "ray", 3, 2, "w1", event)
    assert read.id == f"{WORKFLOW_ID}/5"
    assert read.type == kind.TYPE


@given(every_event, st.integers(1, 2**53), times, text, text, text)
def test_envelope_is_a_cloud_event_whatever_its_texts(
    data: ev.EventData, seq: int, time_us: int, workflow: str, ray_id: str, worker: str
) -> None:
    line = envelope(workflow=workflow, ray_id=ray_id, worker=worker).encode(seq, time_us, data)
    shown = json.loads(line)
    assert shown["specversion"] == "1.0"
    assert shown["id"] == f"{WORKFLOW_ID}/{seq}"
    assert shown["source"] == "/gasoline/default"
    assert shown["subject"] == WORKFLOW_ID
    assert shown["type"] == f"gasoline.{data.TYPE}.v1"
    event = decode(line)
    assert (event.seq, event.time_us, event.workflow, event.ray_id, event.worker) == (
        seq,
        time_us,
        workflow,
        ray_id,
        worker,
    )


@pytest.mark.parametrize(
    "kind",
    [
        "gasoline.activity.paused.v1",
        "gasoline.activity.completed.v2",
        "gasoline.workflow.woken.v01",
        "gasoline..v1",
        "gasoline.v1",
        "gasoline",
        "activity.completed.v1",
        "other.activity.completed.v1",
        "x.v1",
        "",
    ],
)
def test_unknown_type_or_version_is_unreadable_with_its_type(kind: str) -> None:
    event = read(cloud(ev.WorkflowWoken("me"), type=kind))
    assert isinstance(event.data, ev.Unreadable)
    assert event.data.type == kind
    assert event.data.reason
    assert (event.workflow_id, event.seq) == (WORKFLOW_ID, 5)


@pytest.mark.parametrize("data", [None, 1, "text", [], {}, [["by", "me"]]])
def test_data_of_another_shape_is_unreadable(data: Any) -> None:
    for event in (ev.SleepStarted(((1,),), 1, 0), ev.SignalReceived("s1", "paid", b"{}"), ev.WorkflowSuspended(0)):
        if data == {} and isinstance(event, ev.WorkflowSuspended):
            continue  # it needs nothing
        assert isinstance(read(cloud(event, data=data)).data, ev.Unreadable)


@pytest.mark.parametrize("tags", [{"a": []}, {"a": 1}, {"a": None}, [], "text", None])
@pytest.mark.parametrize("kind", [ev.WorkflowDispatched("order", b"null", {}), ev.WorkflowTagsUpdated({})])
def test_tags_that_are_no_texts_set_their_workflow_aside(kind: ev.EventData, tags: Any) -> None:
    """design §4: views look workflows up by them, so what cannot be looked up must not reach those of a partition."""
    odd = cloud(kind)
    odd["data"] = {**odd["data"], "tags": tags}
    assert isinstance(read(odd).data, ev.Unreadable)


def test_name_that_is_no_text_sets_its_workflow_aside() -> None:
    """design §4."""
    odd = cloud(ev.WorkflowDispatched("order", b"null", {}))
    odd["data"] = {**odd["data"], "name": ["order"]}
    assert isinstance(read(odd).data, ev.Unreadable)


@given(every_event, st.data())
def test_damaged_data_is_read_or_set_aside_and_never_stops_the_partition(
    event: ev.EventData, data: st.DataObject
) -> None:
    damaged = cloud(event)
    fields = damaged["data"]
    assume(fields)
    name = data.draw(st.sampled_from(sorted(fields)))
    if data.draw(st.booleans()):
        del fields[name]
    else:
        fields[name] = data.draw(trees)
    assert read(damaged).seq == 5


@given(trees)
def test_what_is_no_event_of_ours_is_a_value_error(tree: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(dump_json(tree))


@pytest.mark.parametrize("missing", ["id?", "subject", "seq", "time", "type", "data", "workflow", "rayid", "partition"])
def test_event_without_its_envelope_is_a_value_error(missing: str) -> None:
    line = cloud(ev.WorkflowWoken("me"))
    if missing == "id?":
        line = {"specversion": "1.0", "id": "x", "type": "other.thing.v1"}
    else:
        del line[missing]
    with pytest.raises(ValueError, match="not an event of gasoline_es"):
        read(line)


@pytest.mark.parametrize(
    ("name", "odd"), [("type", 5), ("type", None), ("time", 5), ("time", "yesterday"), ("data", None)]
)
def test_odd_envelope_is_a_value_error_or_unreadable(name: str, odd: Any) -> None:
    line = cloud(ev.WorkflowWoken("me"), **{name: odd})
    if name == "data":
        assert isinstance(read(line).data, ev.Unreadable)
    else:
        with pytest.raises(ValueError, match=r"."):
            read(line)


@pytest.mark.parametrize("line", [b"", b"{", b"\xff", b"[]", b"null", b'"text"', b"1", b"{}"])
def test_bytes_that_are_no_event_are_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(line)


# --- lines as this library writes them are sliced; any other spelling of the same JSON is parsed ----------------------

MARKS = [
    ',"output":',
    ',"state":',
    '"input":',
    '"data":',
    ',"data":{"location":"{1}"',
    "}}",
    '","time":"',
    "/5",
    "\\",
    '\\"',
]
marks = st.sampled_from(MARKS)
marked_trees = st.recursive(
    trees | marks | st.lists(marks, max_size=3).map("".join),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["input", "output", "state", "data", "a"]) | marks, inner, max_size=4)
    ),
    max_leaves=8,
)
marked = marked_trees.map(dump_json)
written_otherwise = st.sampled_from(
    [b"1E22", b"-0.0", b"1.50", b'"\\u0041\\/"', b'{"a":1,"a":2}', b"[1,\t2 ]", b"1e400"]
)
completions = st.builds(
    ev.ActivityCompleted,
    locations,
    counts,
    names | text,
    counts,
    times,
    marked | written_otherwise,
    marked | written_otherwise,
    st.none() | marked | written_otherwise,
)
PAYLOADS = {"input", "output", "state", "body", "details"}


def by_value(value: Any) -> Any:
    """An event with its payloads as what they say: their text is another one where they were rendered anew."""
    if not dataclasses.is_dataclass(value):
        return value
    members = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return type(value), {
        name: repr(from_json(member)) if name in PAYLOADS and member is not None else by_value(member)
        for name, member in members.items()
    }


def outcome(line: bytes) -> Any:
    try:
        event = decode(line)
    except ValueError:
        return ValueError
    return by_value(event)


def parsed(line: bytes) -> Any:
    """What the parser makes of a line: a space at its end is not this library's."""
    return outcome(line + b" ")


def pieces_of(line: bytes) -> list[bytes]:
    first, *others = line.split(b',"')
    return [first, *(b',"' + other for other in others)]


@st.composite
def odd_lines(draw: st.DrawFn) -> bytes:
    """Lines that were cut, spliced, doubled, reordered or respelled somewhere; some of them are still events."""
    line = envelope(worker=draw(text), workflow_id=draw(st.just(WORKFLOW_ID) | text)).encode(
        draw(st.integers(1, 200)), draw(times), draw(completions if draw(st.integers(0, 3)) else every_event)
    )
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(max(0, line.find(b'"input":') if draw(st.booleans()) else 0), len(line)))
        end = draw(st.integers(at, min(at + 12, len(line))))
        pieces = pieces_of(line)
        one, other = (draw(st.integers(0, len(pieces) - 1)) for _ in range(2))
        match draw(st.integers(0, 8)):
            case 0:
                line = line[:at]
            case 1:
                line = line[:at] + line[end:]
            case 2:
                line = line[:end] + line[at:]
            case 3:
                new = [b" ", b"}", b"}}", b'"', b"\\", b",", b"0", b"-", b"\n", b"\xff", b"NaN", b"null", b"2"]
                line = line[:at] + draw(st.sampled_from([*new, *(mark.encode() for mark in MARKS)])) + line[end:]
            case 4:
                pieces[one], pieces[other] = pieces[other], pieces[one]
                line = b"".join(pieces)
            case 5:
                line = b"".join([*pieces[:one], pieces[other], *pieces[one:]])
            case 6:
                line = b"".join([*pieces[:one], *pieces[one + 1 :]])
            case 7:
                old, new = draw(
                    st.sampled_from(
                        [
                            (b".v1", b".v2"),
                            (b"gasoline.", b"other."),
                            (b'":', b'" :'),
                            (b".completed", b".failed"),
                            (b'"{', b'"{0'),
                            (b'"seq":', b'"seq":1'),
                            (b'"time":"', b'"time":"0'),
                            (b"Z", b"+00:00"),
                            (b"}}", b',"more":1}}'),
                            (b"}}", b"}}}"),
                            (b'"id"', b'"ID"'),
                        ]
                    )
                )
                line = line.replace(old, new)
            case _:
                line = json.dumps(json.loads(line), sort_keys=True).encode() if parsed(line) is not ValueError else line
    return line


@given(completions, text, text, text, counts, times)
def test_sliced_completion_is_the_parsed_one(
    event: ev.ActivityCompleted, workflow: str, ray_id: str, worker: str, seq: int, time_us: int
) -> None:
    line = envelope(workflow=workflow, ray_id=ray_id, worker=worker).encode(seq, time_us, event)
    assert outcome(line) == parsed(line)
    assert by_value(decode(line).data) == by_value(event)


@settings(max_examples=settings().max_examples * 4)
@given(odd_lines())
def test_odd_line_is_read_as_the_parser_reads_it(line: bytes) -> None:
    assert outcome(line) == parsed(line)


@given(completions)
def test_line_cut_short_is_no_event(event: ev.ActivityCompleted) -> None:
    line = envelope().encode(5, 7, event)
    for end in range(line.find(b'"input":'), len(line)):
        assert outcome(line[:end]) is ValueError


@pytest.mark.parametrize("spoilt", [0, 1, 2])
@pytest.mark.parametrize(
    "payload", [b"", b" ", b"1 2", b"1,2", b"{", b'"', b"[1", b"1]", b"tru", b"01", b'1,"more":2', b"\xff"]
)
def test_completion_with_a_payload_that_is_no_json_is_no_event(spoilt: int, payload: bytes) -> None:
    payloads = [b"{}", b"[]", b"null"]
    payloads[spoilt] = payload
    line = envelope().encode(5, 7, ev.ActivityCompleted(((1,),), 1, "charge", 1, 0, *payloads))
    assert outcome(line) == parsed(line)


def test_payloads_keep_their_text_in_lines_of_ours() -> None:
    event = ev.ActivityCompleted(((1,),), 1, "charge", 1, 0, b"1E+22", b'{"a":1.50}', b"[1.0e1]")
    assert decode(envelope().encode(5, 0, event)).data == event
    assert parsed(envelope().encode(5, 0, event)) == by_value(decode(envelope().encode(5, 0, event)))


@given(every_event | completions)
def test_fact_of_a_record_is_its_event(data: ev.EventData) -> None:
    line = envelope().encode(5, 7, data)
    event = decode(line)
    assert read_fact("", line) == (WORKFLOW_ID, 5, 7, event.data, "ray", "w1")


def test_fact_of_what_is_no_event_is_unreadable_by_its_key() -> None:
    workflow_id, seq, _, data, _, _ = read_fact(f"{WORKFLOW_ID}/5", b"{}")
    assert (workflow_id, seq, type(data)) == (WORKFLOW_ID, 5, ev.Unreadable)
    with pytest.raises(ValueError, match="not an event"):
        read_fact("", b"{}")


# --- the traceparent of dispatches and signals ------------------------------------------------------------------------

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACED: list[ev.WorkflowDispatched | ev.SignalReceived] = [
    ev.WorkflowDispatched("fulfil", b"null", {}),
    ev.SignalReceived("s1", "paid", b"{}"),
]


@pytest.mark.parametrize("event", TRACED, ids=lambda event: event.TYPE)
def test_traceparent_is_an_attribute_of_the_cloud_event_and_not_of_its_data(event: ev.EventData) -> None:
    """design §4: written as the CloudEvents extension for distributed tracing has it."""
    assert isinstance(event, ev.WorkflowDispatched | ev.SignalReceived)
    plain = cloud(event)
    traced = cloud(dataclasses.replace(event, traceparent=TRACEPARENT))
    assert traced == {**plain, "traceparent": TRACEPARENT}
    assert read(traced).traceparent == TRACEPARENT
    assert read(plain).traceparent is None


@pytest.mark.parametrize("event", TRACED, ids=lambda event: event.TYPE)
def test_line_without_a_traceparent_is_the_one_of_a_version_that_knows_none(event: ev.EventData) -> None:
    line = envelope().encode(5, 0, event)
    assert b"trace" not in line
    assert line.startswith(
        b'{"specversion":"1.0","id":"%b/5","source":"/gasoline/default","type":"gasoline.%b.v1","subject":"%b",'
        b'"time":"1970-01-01T00:00:00.000000Z","datacontenttype":"application/json","seq":5,"partition":3,"epoch":2,'
        b'"workflow":"fulfil","rayid":"ray","worker":"w1","data":{'
        % (WORKFLOW_ID.encode(), event.TYPE.encode(), WORKFLOW_ID.encode())
    )


def test_lines_with_a_traceparent_are_sliced_as_all_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [envelope().encode(5, 0, dataclasses.replace(event, traceparent=TRACEPARENT)) for event in TRACED]
    monkeypatch.setattr("gasoline_es.core.codec._parsed", None)
    assert [decode(line).traceparent for line in lines] == [TRACEPARENT, TRACEPARENT]


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "00",
        TRACEPARENT.upper(),
        f"{TRACEPARENT}-extra",
        TRACEPARENT.replace("00-", "01-", 1),
        TRACEPARENT.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        f"{TRACEPARENT}\n",
        " " + TRACEPARENT,
        TRACEPARENT.replace("4", "\u0664"),
        f'{TRACEPARENT}","data":{{"x":1}}',
        5,
        None,
        [TRACEPARENT],
        {"a": TRACEPARENT},
    ],
)
@pytest.mark.parametrize("event", TRACED, ids=lambda event: event.TYPE)
def test_odd_traceparent_costs_the_trace_and_not_the_event(event: ev.EventData, odd: object) -> None:
    """W3C Trace Context: who cannot read a traceparent goes on without it."""
    found = read(cloud(event, traceparent=odd))
    assert found.data == event
    assert found.traceparent is None
    member = json.dumps(odd, ensure_ascii=False, separators=(",", ":")).encode()
    line = envelope().encode(5, 0, event).replace(b',"data":', b',"traceparent":%b,"data":' % member, 1)
    assert decode(line) == found


def test_traceparent_of_another_kind_of_event_is_passed_over() -> None:
    completed = ev.ActivityCompleted(((1,),), 1, "charge", 1, 0, b"1", b"2")
    for event in (completed, ev.WorkflowWoken("me")):
        line = (
            envelope().encode(5, 0, event).replace(b',"data":', b',"traceparent":"%b","data":' % TRACEPARENT.encode())
        )
        assert decode(line).data == event
        assert decode(line).traceparent is None
