"""Requests and replies come back from their lines as they were; what is none is refused (design §5)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.commands import (
    Dispatch,
    Reply,
    Request,
    SendSignal,
    Wake,
    Yield,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from gasoline_es.errors import GasolineError, KeyReused, RecordTooLarge, WorkflowNotFound
from tests.core.test_codec import TRACEPARENT, names, payloads, text, traceparents, trees

workflow_ids = st.uuids().map(str)
caller_ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=300)
commands = st.one_of(
    st.builds(
        Dispatch,
        workflow_ids,
        names,
        payloads,
        st.dictionaries(text, text, max_size=3),
        st.booleans(),
        st.none() | caller_ids,
        st.none() | workflow_ids,
        st.just("") | workflow_ids,
        traceparent=st.none() | traceparents,
    ),
    st.builds(
        SendSignal,
        workflow_ids,
        caller_ids,
        names,
        payloads,
        st.just(True),
        st.none() | workflow_ids,
        st.none() | workflow_ids,
        st.none() | traceparents,
    ),
    st.builds(Wake, workflow_ids, text),
    st.builds(Yield, text),
)
requests = st.builds(Request, text, text, commands)


@given(requests)
def test_request_comes_back_from_its_line(request: Request) -> None:
    line = encode_request(request)
    assert b"\n" not in line
    assert decode_request(line) == request


@given(text, text, st.booleans())
def test_reply_comes_back_from_its_line(request_id: str, found: str, created: bool) -> None:
    assert decode_reply(encode_reply(request_id, Reply(found, created))) == (request_id, Reply(found, created))


@pytest.mark.parametrize(
    "error",
    [
        WorkflowNotFound("no such workflow", workflow_id="x"),
        KeyReused("another input", workflow_id="x", key="k"),
        RecordTooLarge("too large", size=2_000_000),
        GasolineError("something"),
    ],
)
def test_error_of_a_reply_comes_back_with_its_type_and_fields(error: GasolineError) -> None:
    request_id, reply = decode_reply(encode_reply("r", Reply(error=error)))
    assert request_id == "r"
    assert type(reply.error) is type(error)
    assert str(reply.error) == str(error)
    assert reply.error is not None
    assert reply.error.fields == error.fields


@pytest.mark.parametrize("kind", ["NoSuchError", "ClassVar", "annotations", "_rebuild", "Cancelled", "NotRetryable"])
def test_error_of_an_unknown_type_is_an_error_of_ours(kind: str) -> None:
    line = json.loads(encode_reply("r", Reply(error=GasolineError("it says"))))
    line["error"]["type"] = kind
    error = decode_reply(json.dumps(line).encode())[1].error
    assert type(error) is GasolineError
    assert str(error) == "it says"


@given(trees)
def test_what_is_no_request_is_a_value_error(tree: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_request(json.dumps(tree).encode())


@pytest.mark.parametrize("line", [b"", b"{", b"\xff", b"null", b"[1]", b'"wake"'])
def test_bytes_that_are_no_request_are_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_request(line)


@given(requests, st.data())
def test_request_that_lacks_or_adds_something_is_read_or_refused(request: Request, data: st.DataObject) -> None:
    fields = json.loads(encode_request(request))
    name = data.draw(st.sampled_from(sorted(fields)))
    if data.draw(st.booleans()):
        del fields[name]
    else:
        fields[f"{name}_of_a_newer_version"] = 1
    try:
        decode_request(json.dumps(fields).encode())
    except ValueError:
        return
    assert name in (
        "tags",
        "unique",
        "key",
        "parent",
        "ray_id",
        "by_caller",
        "sender",
        "schedule",
        "parked",
        "traceparent",
        "workflow_id",
    )


def test_command_of_a_newer_version_is_refused() -> None:
    fields = json.loads(encode_request(Request("r", "c", Wake("0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f", "me"))))
    for change in ({"command": "teleport"}, {"command": ["wake"]}, {"priority": 1}):
        with pytest.raises(ValueError, match="not a request of gasoline_es"):
            decode_request(json.dumps({**fields, **change}).encode())


# --- the traceparent of a request -------------------------------------------------------------------------------------

WORKFLOW = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"


@pytest.mark.parametrize(
    ("command", "members"),
    [
        (
            Dispatch(WORKFLOW, "fulfil", b"1"),
            ["workflow_id", "name", "input", "tags", "unique", "key", "parent", "ray_id"],
        ),
        (
            SendSignal(WORKFLOW, "s1", "paid", b"{}"),
            ["workflow_id", "signal_id", "name", "body", "by_caller", "sender"],
        ),
    ],
)
def test_request_without_a_traceparent_is_that_of_a_version_which_knows_none(
    command: Dispatch | SendSignal, members: list[str]
) -> None:
    line = encode_request(Request("r", "c", command))
    assert list(json.loads(line)) == [*members, "request_id", "client", "command"]
    assert decode_request(line).command == command


@pytest.mark.parametrize(
    "odd", ["", "00-xyz", TRACEPARENT.upper(), f"{TRACEPARENT}-", f"{TRACEPARENT}\n", 7, True, None, [], {"a": 1}]
)
@pytest.mark.parametrize("command", [Dispatch(WORKFLOW, "fulfil", b"1"), SendSignal(WORKFLOW, "s1", "paid", b"{}")])
def test_odd_traceparent_of_a_request_is_dropped_and_the_request_counts(
    command: Dispatch | SendSignal, odd: object
) -> None:
    """An inbox is open to everybody: nothing unreadable is recorded, and no dispatch is lost for its trace's sake."""
    fields = json.loads(encode_request(Request("r", "c", command)))
    assert decode_request(json.dumps({**fields, "traceparent": odd}).encode()).command == command


def test_traceparent_of_a_command_that_takes_none_is_refused_as_any_member_it_does_not_have() -> None:
    fields = json.loads(encode_request(Request("r", "c", Wake(WORKFLOW, "me"))))
    with pytest.raises(ValueError, match="traceparent"):
        decode_request(json.dumps({**fields, "traceparent": TRACEPARENT}).encode())
