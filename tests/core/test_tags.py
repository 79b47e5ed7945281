"""Tags: scalars in their string form, matched by subset (semantics.md §6)."""

from __future__ import annotations

import json
import math
from enum import Enum, IntEnum, StrEnum
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.tags import canonical, check_tags, matches
from gasoline_es.errors import InvalidTags

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TAGS = st.dictionaries(TEXT, TEXT)


class Shade(StrEnum):
    DARK = "dark"


class Level(IntEnum):
    LOW = 1


class Plain(Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""),
        ("../../x", "../../x"),
        ("a\x00b", "a\x00b"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-(2**70), str(-(2**70))),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e300, "1e+300"),
        (Shade.DARK, "dark"),
        (Level.LOW, "1"),
    ],
)
def test_scalar_has_one_string_form(value: Any, text: str) -> None:
    """Semantics §6; B23: strings are data, kept exactly."""
    (found,) = check_tags({"tag": value}, "tags").values()
    assert (found, type(found)) == (text, str)


STRANGE: list[Any] = [None, [], {}, (1,), b"x", math.nan, math.inf, object(), Plain.ONE, 1j, "\ud800"]
STRANGE.append(pytest.param(10**5000, id="an int that Python does not print"))


@pytest.mark.parametrize("value", STRANGE)
def test_value_that_is_no_scalar_is_invalid(value: Any) -> None:
    with pytest.raises(InvalidTags, match="tags of fulfil: tag 'order'"):
        check_tags({"order": value}, "tags of fulfil")


@pytest.mark.parametrize("tags", [{1: "a"}, {None: "a"}, {b"a": "a"}, ["a"], "a", 5])
def test_tags_that_are_no_mapping_of_names_are_invalid(tags: object) -> None:
    with pytest.raises(InvalidTags, match="tags of fulfil"):
        check_tags(cast(Any, tags), "tags of fulfil")


def test_no_tags_are_the_empty_mapping() -> None:
    assert check_tags(None, "tags") == check_tags({}, "tags") == {}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [({}, True), ({"a": "1"}, True), ({"a": "1", "b": "2"}, True), ({"a": "2"}, False), ({"c": "1"}, False)],
)
def test_tags_match_by_subset(wanted: dict[str, str], found: bool) -> None:
    """Semantics §6."""
    assert matches({"a": "1", "b": "2"}, wanted) is found


@given(TAGS, TAGS)
def test_canonical_text_is_equal_for_equal_tags_only(one: dict[str, str], other: dict[str, str]) -> None:
    assert (canonical(one) == canonical(other)) is (one == other)
    assert canonical(dict(reversed(one.items()))) == canonical(one)
    assert json.loads(canonical(one)) == one
    assert matches({**other, **one}, one)
