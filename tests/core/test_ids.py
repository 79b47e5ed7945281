"""Ids carry their route, cannot be forged into paths, and names keep to their alphabet (design §5, B23)."""

from __future__ import annotations

import random
import uuid
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.ids import (
    SLOTS,
    check_caller_id,
    check_name,
    check_workflow_id,
    derived_uuid,
    new_workflow_id,
    partition_of,
    slot_of,
    snake_case,
    unique_slot,
    workflow_id_from_key,
)
from gasoline_es.core.tags import canonical, check_tags
from gasoline_es.errors import DefinitionError, WorkflowNotFound

NOW_US = 1_767_225_600_123_456
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.integers(0, (1 << 48) * 1000 - 1), st.binary(min_size=8, max_size=16), st.none() | st.integers(0, SLOTS - 1))
def test_new_id_is_a_version_7_uuid_that_carries_its_slot(time_us: int, random: bytes, slot: int | None) -> None:
    """RFC 9562 §5.7; design §5."""
    text = new_workflow_id(time_us, random, slot)
    parsed = uuid.UUID(text)
    assert str(parsed) == check_workflow_id(text) == text
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == time_us // 1000
    assert slot_of(text) == (slot if slot is not None else int.from_bytes(random[6:8], "big") & 0xFFF)


def test_new_ids_sort_by_time_down_to_the_microsecond() -> None:
    source = random.Random(1)
    ids = [new_workflow_id(NOW_US + n, source.randbytes(8), 0) for n in range(3000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("time_us", "random", "slot"),
    [(-1, bytes(8), 0), ((1 << 48) * 1000, bytes(8), 0), (0, bytes(7), 0), (0, bytes(8), 4096), (0, bytes(8), -1)],
)
def test_new_id_refuses_what_does_not_fit(time_us: int, random: bytes, slot: int) -> None:
    with pytest.raises(ValueError, match=r"slot|random|time"):
        new_workflow_id(time_us, random, slot)


def test_ids_spread_evenly_over_partitions_and_stay_within_their_range() -> None:
    source = random.Random(2)
    counts = [0] * 16
    for _ in range(16_000):
        counts[partition_of(new_workflow_id(NOW_US, source.randbytes(8)), 16)] += 1
    assert min(counts) > 800
    for count in (1, 3, 16, 32, 4096):
        assert partition_of(new_workflow_id(NOW_US, bytes(8), 0), count) == 0
        assert partition_of(new_workflow_id(NOW_US, bytes(8), SLOTS - 1), count) == count - 1


@given(st.lists(TEXT), st.lists(TEXT))
def test_derived_id_is_version_8_and_depends_on_every_part_and_its_borders(one: list[str], other: list[str]) -> None:
    text = derived_uuid(*one)
    assert (uuid.UUID(text).version, uuid.UUID(text).variant) == (8, uuid.RFC_4122)
    assert check_workflow_id(text) == text
    assert (derived_uuid(*other) == text) is (one == other)


def test_derived_ids_never_change_between_releases() -> None:
    """A key must find its workflow after any upgrade, so these texts are pinned."""
    assert derived_uuid("ab", "c") != derived_uuid("a", "bc")
    assert workflow_id_from_key("default", "fulfil", "order-42") == "3794ef3b-9616-820a-a18b-c46878974d10"
    assert unique_slot("fulfil", canonical(check_tags({"b": 1, "a": "x"}, "tags"))) == 3459


def test_equal_unique_dispatches_meet_in_one_slot() -> None:
    """Design §5: whatever the order and the spelling of their tags."""
    one = canonical(check_tags({"order": "42", "test": True}, "tags"))
    other = canonical(check_tags({"test": "true", "order": 42}, "tags"))
    assert unique_slot("fulfil", one) == unique_slot("fulfil", other)
    assert 0 <= unique_slot("ship", one) < SLOTS


HOSTILE = ["../../x", "..\\x", "/etc/passwd", "a\x00b", ".", "", ".lock", "x" * 300, "\ud800", "a b", "é", "a\n"]


@pytest.mark.parametrize(
    "text",
    [
        *HOSTILE,
        "0190F3A2-7C1E-7D05-9B3A-5F2C81E40A3F",
        "0190f3a27c1e7d059b3a5f2c81e40a3f",
        "{0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f}",
        "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f\n",
        "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3",
        "٠190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f",
        None,
        5,
        b"0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f",
    ],
)
def test_foreign_workflow_id_is_not_found(text: object) -> None:
    """B23: ids of a foreign form are WorkflowNotFound, and cannot flood the message."""
    with pytest.raises(WorkflowNotFound, match="no workflow has the id") as caught:
        check_workflow_id(cast(Any, text))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", [*HOSTILE, "Order", "order-paid", "x" * 101, "a.b", "ａ", None, 5])
def test_name_outside_the_alphabet_is_refused_by_kind_and_name(name: object) -> None:
    """Semantics §1: names match [a-z0-9_]+."""
    with pytest.raises(DefinitionError, match=r"workflow name .*a-z, 0-9 and _"):
        check_name("workflow", cast(Any, name))


@pytest.mark.parametrize("name", ["a", "0", "_", "charge_card_2", "x" * 100])
def test_name_of_the_alphabet_is_returned(name: str) -> None:
    assert check_name("activity", name) == name


@pytest.mark.parametrize(
    ("class_name", "name"),
    [
        ("Paid", "paid"),
        ("OrderPaid", "order_paid"),
        ("HTTPError", "http_error"),
        ("ParseXMLFile", "parse_xml_file"),
        ("V2Paid", "v2_paid"),
        ("A", "a"),
        ("order", "order"),
        ("Order_Paid", "order_paid"),
        ("_Private", "_private"),
    ],
)
def test_class_name_becomes_snake_case(class_name: str, name: str) -> None:
    assert snake_case(class_name) == name


@pytest.mark.parametrize("text", ["a", "order 42/ü", "../../x", "x" * 300, "🙂"])
def test_callers_id_is_data_and_kept(text: str) -> None:
    assert check_caller_id("signal id", text) == text


@pytest.mark.parametrize("text", ["", "x" * 301, "a\x00b", "a\nb", "\x7f", "\x85", "\ud800", None, 5])
def test_callers_id_that_no_record_should_hold_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"signal id .*not allowed"):
        check_caller_id("signal id", cast(Any, text))
