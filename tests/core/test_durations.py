"""Durations, deadlines and their texts are exact integers of microseconds (B12, design §3)."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.durations import (
    MAX_US,
    MIN_US,
    add_us,
    deadline_us,
    duration_us,
    format_time,
    from_datetime,
    parse_time,
    to_datetime,
)

NOW_US = 1_767_225_600_000_000
DAY_US = 86_400_000_000
TIMES = st.integers(MIN_US, MAX_US)


@pytest.mark.parametrize(
    ("value", "us"),
    [
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        (30, 30_000_000),
        (0.1, 100_000),
        (0.0000005, 0),  # a tie goes to the even microsecond
        (0.0000015, 2),
        (1e-9, 0),
        (timedelta(0), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(days=25), 25 * DAY_US),
        (timedelta(days=50), 50 * DAY_US),
        (timedelta(days=300 * 366, microseconds=1), 300 * 366 * DAY_US + 1),
    ],
)
def test_duration_is_exact(value: float | timedelta, us: int) -> None:
    """B12: 25 days, 50 days, 300 years; the stored time is exact."""
    assert duration_us(value, "sleep") == us


@given(st.floats(0, 1e11))
def test_duration_of_a_float_is_the_nearest_microsecond(seconds: float) -> None:
    assert duration_us(seconds, "sleep") == round(Fraction(seconds) * 1_000_000)


UNREPRESENTABLE: list[Any] = [math.inf, -math.inf, math.nan, -1, -1e-9, timedelta(microseconds=-1)]
UNREPRESENTABLE.extend([timedelta.max, timedelta.min, 1e300, 10**30, pytest.param(10**6000, id="a huge int")])


@pytest.mark.parametrize("value", UNREPRESENTABLE)
def test_duration_that_cannot_be_represented_is_a_value_error(value: Any) -> None:
    """B12: the largest timedelta, inf and NaN raise ValueError before anything is recorded."""
    with pytest.raises(ValueError, match="the sleep"):
        duration_us(value, "the sleep")


@pytest.mark.parametrize("value", [True, "5", None, 1j, datetime(2026, 1, 1, tzinfo=UTC)])
def test_duration_of_another_type_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="the sleep must be seconds"):
        duration_us(value, "the sleep")


def test_deadline_after_the_year_9999_is_a_value_error() -> None:
    """B12: sleep_until year 9999 is fine; what lies beyond is not."""
    last = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert deadline_us(last, "until") == MAX_US
    assert add_us(NOW_US, MAX_US - NOW_US, "sleep") == MAX_US
    with pytest.raises(ValueError, match="sleep cannot be represented"):
        add_us(NOW_US, MAX_US - NOW_US + 1, "sleep")
    with pytest.raises(ValueError, match="until cannot be represented"):
        deadline_us(last.replace(tzinfo=timezone(timedelta(hours=-1))), "until")


def test_deadline_counts_in_utc_whatever_its_zone() -> None:
    berlin = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    assert deadline_us(berlin, "until") == deadline_us(datetime(2026, 7, 1, 10, tzinfo=UTC), "until")
    hour = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))  # happens twice
    assert deadline_us(hour.replace(fold=1), "until") - deadline_us(hour, "until") == 3_600_000_000


def test_naive_deadline_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"until is a naive datetime.*datetime\.now\(UTC\)"):
        deadline_us(datetime(2026, 1, 1), "until")  # noqa: DTZ001


@pytest.mark.parametrize("value", [5, 5.0, "2026-01-01T00:00:00Z", date(2026, 1, 1), None])
def test_deadline_of_another_type_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="until must be an aware datetime"):
        deadline_us(value, "until")


@given(TIMES)
def test_time_comes_back_exactly_from_its_text_and_its_datetime(us: int) -> None:
    assert parse_time(format_time(us)) == us
    assert from_datetime(to_datetime(us)) == us
    assert datetime.fromisoformat(format_time(us)) == to_datetime(us)
    assert len(format_time(us)) == 27


@given(TIMES, TIMES)
def test_texts_of_times_sort_as_the_times_do(one: int, other: int) -> None:
    assert (format_time(one) < format_time(other)) is (one < other)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1970-01-01t01:00:00.5+01:00", 500_000),
        ("1969-12-31 19:00:00-05:00", 0),
        ("1970-01-01T00:00:00.123456789z", 123_456),
        ("1970-01-01T00:00:00-00:00", 0),
        ("9999-12-31T23:59:59.999999Z", MAX_US),
        ("0001-01-01T00:00:00.000000Z", MIN_US),
    ],
)
def test_any_rfc_3339_time_is_read(text: str, us: int) -> None:
    assert parse_time(text) == us


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00.Z",
        "2026-W01-1T00:00:00.000000Z",
        "2026-01-01T00:00:0٠.000000Z",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:00:01Z",
        "2026-01-01T00:00:60Z",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00+01:60",
        "2026-01-01T00:00:00+0100",
        "２026-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z\n",
        "20260101T000000Z",
        "9999-12-31T23:59:59-00:01",
        "0001-01-01T00:00:00+00:01",
        "2026-01-01T00:00:00,5Z",
    ],
)
def test_other_text_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_time(text)
