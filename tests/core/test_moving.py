"""Where records go when a namespace moves, and who may work where meanwhile (0040)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.commands import Request, SendSignal, Yield, encode_request
from gasoline_es.core.ids import new_workflow_id, partition_of
from gasoline_es.core.moving import Mark, home_of, home_of_command, suspects_of, tracks_histories

COUNTS = st.integers(1, 64)
SLOTS = st.integers(0, 4095)
MARK = Mark("leaving", "abc", "kafka://b:9092/shop", 32, "2026-01-01T00:00:00.000000Z")


def id_at(slot: int) -> str:
    return new_workflow_id(0, b"\0" * 8, slot)


@pytest.mark.parametrize("suspects", [None, (), ("a", "b")])
def test_a_mark_comes_back_as_it_was_written(suspects: tuple[str, ...] | None) -> None:
    mark = replace(MARK, suspects=suspects)
    assert Mark.read(mark.json()) == mark


@pytest.mark.parametrize("raw", [b"{}", b"[]", b"null", b"nonsense", MARK.json().replace(b"leaving", b"flying")])
def test_what_is_no_mark_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"not what a copy leaves|Invalid JSON|expected"):
        Mark.read(raw)


def test_a_place_is_open_in_two_states_only() -> None:
    closed = {
        state: replace(MARK, state=state).closed for state in ("leaving", "left", "staying", "arriving", "arrived")
    }  # type: ignore[arg-type]
    assert closed == {"leaving": True, "left": True, "staying": False, "arriving": True, "arrived": False}


@given(SLOTS, COUNTS, st.sampled_from(["events", "index", "schedules", "parked"]))
def test_what_is_about_a_workflow_goes_where_the_workflow_is(slot: int, count: int, topic: str) -> None:
    key = id_at(slot) if topic == "index" else f"{id_at(slot)}/7"
    assert home_of(topic, key, count) == partition_of(id_at(slot), count)


def test_what_has_no_place_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="'x/1' of events"):
        home_of("events", "x/1", 4)
    with pytest.raises(ValueError, match=r"'events/1' .* one partition, not 4"):
        home_of("stored", "events/1", 4)
    assert home_of("stored", "events/1", 1) == 0


@given(SLOTS, COUNTS, COUNTS)
def test_a_command_goes_to_its_workflow_whatever_its_key(slot: int, before: int, count: int) -> None:
    command = encode_request(Request("r", "c", SendSignal(id_at(slot), "s", "note", b"{}", True)))
    assert home_of_command("", command, 0, before, count) == partition_of(id_at(slot), count)
    # What cannot be read is refused by whoever would have decided it, and answered.
    assert home_of_command(id_at(slot), b"{}", 0, before, count) == partition_of(id_at(slot), count)
    assert 0 <= home_of_command("", b"{}", before - 1, before, count) < count  # type: ignore[operator]


def test_what_asks_for_a_partition_of_the_old_place_means_nothing() -> None:
    assert home_of_command("", encode_request(Request("", "", Yield(to="w"))), 0, 2, 4) is None
    assert home_of_command("k", None, 0, 2, 4) is None


@given(SLOTS, COUNTS, COUNTS)
def test_a_suspect_is_one_at_the_new_place_too(slot: int, before: int, count: int) -> None:
    its, old, new = id_at(slot), partition_of(id_at(slot), before), partition_of(id_at(slot), count)
    told: dict[int, tuple[str, ...] | None] = dict.fromkeys(range(before), ())
    assert suspects_of(new, count, told, before) == ()
    told[old] = (its, "not an id")
    assert [suspects_of(index, count, told, before) for index in range(count)] == [
        (its,) if index == new else () for index in range(count)
    ]
    told[old] = None
    assert suspects_of(new, count, told, before) is None
    if count == before:
        assert [index for index in range(count) if suspects_of(index, count, told, before) is None] == [new]


def test_histories_are_known_among_what_applications_follow() -> None:
    assert tracks_histories(["shop/3"], "shop") == "shop/3"
    assert tracks_histories(["orders", "shop", "other/3", "shop/x"], "shop") is None
