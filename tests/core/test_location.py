"""Locations and the insertion rules of semantics.md §2, line by line and over any history of insertions."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.location import (
    ROOT,
    Coordinate,
    Location,
    format_location,
    insert_between,
    next_coordinate,
    parse_location,
    read_location,
)


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("{}", ROOT),
        ("{1}", ((1,),)),
        ("{1, 4}", ((1,), (4,))),
        ("{0.1}", ((0, 1),)),
        ("{4, 0.3.1, 0.6}", ((4,), (0, 3, 1), (0, 6))),
        ("{123456789012345678}", ((123456789012345678,),)),
    ],
)
def test_location_is_written_as_the_reference_writes_it_and_read_back(text: str, location: Location) -> None:
    """Semantics §2, notation."""
    assert format_location(location) == text
    assert parse_location(text) == location


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "}",
        "1",
        "{1",
        "{1,2}",
        "{1,  2}",
        "{ 1}",
        "{01}",
        "{-1}",
        "{+1}",
        "{1.}",
        "{.1}",
        "{1..2}",
        "{1, }",
        "{,}",
        "{1}\n",
        "{١}",
        "{1_0}",
        "{a}",
        "{1}{2}",
        "{1e3}",
        "{" + "9" * 19 + "}",
        "{1\x00}",
    ],
)
def test_malformed_location_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a location"):
        parse_location(text)


@given(st.lists(st.lists(st.integers(0, 10**17), min_size=1).map(tuple)).map(tuple))
def test_location_reads_back_as_it_was_written(location: Location) -> None:
    assert parse_location(format_location(location)) == location


def test_locations_sort_as_tuples_of_tuples() -> None:
    """Semantics §2: that order is the order of the history."""
    texts = ["{}", "{0.1}", "{1}", "{1, 0.1}", "{1, 1}", "{1.0.1}", "{1.1}", "{2}", "{2, 9}", "{2.1}", "{10}"]
    assert sorted(texts, key=parse_location) == texts


@pytest.mark.parametrize(
    ("last", "following"), [(None, (1,)), ((1,), (2,)), ((6,), (7,)), ((2, 1), (3,)), ((4,), (5,)), ((0, 1), (1,))]
)
def test_next_coordinate_follows_the_head_ordinate(last: Coordinate | None, following: Coordinate) -> None:
    """Semantics §2: holes and insertions do not matter; after {2.1}, {4} comes {5}."""
    assert next_coordinate(last) == following


@pytest.mark.parametrize(
    ("previous", "current", "inserted"),
    [
        # the rules
        ((2, 1), (2, 1, 1), (2, 1, 0, 1)),
        ((1,), (1, 1), (1, 0, 1)),
        ((1,), (1, 0, 1), (1, 0, 0, 1)),
        ((8,), (9,), (8, 1)),
        ((2, 1), (2, 2), (2, 1, 1)),
        (None, (1,), (0, 1)),
        ((2, 1), (3,), (2, 2)),
        ((2, 2), (3,), (2, 3)),
        # the table
        (None, None, (0, 1)),
        ((1,), (3,), (1, 1)),
        # before an earlier insertion at the left bound
        (None, (0, 1), (0, 0, 1)),
        (None, (0, 0, 1), (0, 0, 0, 1)),
    ],
)
def test_insertion_follows_the_rules(
    previous: Coordinate | None, current: Coordinate | None, inserted: Coordinate
) -> None:
    """Semantics §2, every rule and every row of the table that inserts."""
    assert insert_between(previous, current) == inserted


def test_new_event_after_a_branch_with_holes_follows_the_table() -> None:
    """Semantics §2, table: {1} {3} {6}, after all three, new → {7}."""
    assert next_coordinate((6,)) == (7,)


def test_two_insertions_after_one_event_follow_the_table() -> None:
    """Semantics §2, table: after 2.1, before 3: 2.2, then 2.3. The cursor stays on the recorded one."""
    first = insert_between((2, 1), (3,))
    assert [first, insert_between(first, (3,))] == [(2, 2), (2, 3)]


@pytest.mark.parametrize(
    ("previous", "current"), [((2,), (1,)), ((1,), (1,)), ((1, 1), (1,)), ((1,), (1, 0)), ((5,), None)]
)
def test_insertion_where_nothing_fits_is_refused(previous: Coordinate, current: Coordinate | None) -> None:
    with pytest.raises(ValueError, match="between"):
        insert_between(previous, current)


def replayed_with_changes(history: list[Coordinate], choices: list[bool], more: int) -> list[Coordinate]:
    """Run a changed program over a branch: at each recorded event insert or match, then append ``more`` new ones."""
    after: list[Coordinate] = []
    previous: Coordinate | None = None
    remaining = iter(history)
    current = next(remaining, None)
    for insert in choices:
        if current is None:
            break
        if insert:
            previous = insert_between(previous, current)
        else:
            previous, current = current, next(remaining, None)
        after.append(previous)
    if current is not None:
        after += [current, *remaining]
    for _ in range(more):
        after.append(next_coordinate(after[-1] if after else None))
    return after


def check(history: list[Coordinate]) -> None:
    assert all(a < b for a, b in pairwise(history)), history


@given(st.lists(st.tuples(st.lists(st.booleans(), max_size=30), st.integers(0, 4)), max_size=12))
def test_any_history_of_insertions_stays_ordered_and_free_of_collisions(runs: list[tuple[list[bool], int]]) -> None:
    """Semantics §2, insertion: strictly ascending implies both."""
    history: list[Coordinate] = []
    for choices, more in runs:
        longer = replayed_with_changes(history, choices, more)
        check(longer)
        assert set(history) <= set(longer)
        history = longer


def test_twenty_thousand_random_histories_stay_ordered_and_free_of_collisions() -> None:
    """Semantics §2: checked on 20,000 random ones."""
    seed = 20_000
    source = random.Random(seed)
    for _ in range(20_000):
        history: list[Coordinate] = []
        for _ in range(source.randint(1, 5)):
            choices = [source.random() < 0.5 for _ in range(source.randint(0, 8))]
            history = replayed_with_changes(history, choices, source.randint(0, 3))
        assert all(a < b for a, b in pairwise(history)), f"seed {seed}: {history}"


@pytest.mark.parametrize("text", ["2,5,3", "{2, 5, 3}", " {2,5,3} ", "2, 5,3", "{ 2 , 5 , 3 }"])
def test_location_is_read_as_people_write_it(text: str) -> None:
    assert read_location(text) == ((2,), (5,), (3,))


@pytest.mark.parametrize("given", [((2,), (5,)), 3, None, b"{2}", [2, 5]])
def test_location_of_people_is_text_and_nothing_else(given: Any) -> None:
    with pytest.raises(TypeError, match=r"given as text, as the history shows it: '\{2, 5, 3\}' or '2,5,3', not as "):
        read_location(given)


def test_location_of_people_is_the_root_only_with_braces() -> None:
    assert read_location("{}") == ()
    assert read_location("4.0.1") == ((4, 0, 1),)
    for text in ("", "{", "}", "{1", "1}", "{{1}}", "1,,2", "01", "-1", "1 2"):
        with pytest.raises(ValueError, match="not a location"):
            read_location(text)
