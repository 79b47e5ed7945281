"""When a schedule is due: cron in a time zone, also where its clocks change, and intervals (``core.timetable``)."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.durations import MAX_US, MICROSECONDS, format_time, parse_time
from gasoline_es.core.timetable import COUNTED_MAX, Cron, Every, Timetable, check_cron, check_interval

DAY_US = 86_400 * MICROSECONDS
BERLIN = "Europe/Berlin"


def at(text: str) -> int:
    return parse_time(f"{text}:00Z")


def times(timetable: Timetable, after: str, count: int) -> list[str]:
    """The next times, as ``2026-01-01T03:00``, UTC."""
    found: list[str] = []
    time_us = at(after)
    for _ in range(count):
        due_us = timetable.next_after(time_us)
        assert due_us is not None
        assert due_us > time_us
        time_us = due_us
        found.append(format_time(due_us)[:16])
    return found


def test_a_cron_expression_is_due_on_the_clocks_of_its_time_zone() -> None:
    assert times(check_cron("0 3 * * *", "UTC"), "2026-01-01T03:00", 2) == ["2026-01-02T03:00", "2026-01-03T03:00"]
    assert times(check_cron("0 3 * * *", BERLIN), "2026-01-01T03:00", 1) == ["2026-01-02T02:00"]
    assert times(check_cron("0 3 * * MON", BERLIN), "2026-07-01T00:00", 1) == ["2026-07-06T01:00"]
    assert times(check_cron("@hourly", "UTC"), "2026-01-01T03:00", 1) == ["2026-01-01T04:00"]
    assert times(check_cron("*/20 0 3 * * *", "UTC"), "2026-01-01T02:59", 1) == ["2026-01-01T03:00"]


def test_where_clocks_go_forward_what_would_be_skipped_is_due_after_it_and_once() -> None:
    nightly = check_cron("30 2 * * *", BERLIN)  # on 2026-03-29 there is no half past two
    assert times(nightly, "2026-03-28T00:00", 3) == ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"]


def test_where_clocks_go_back_a_given_hour_is_due_once_and_every_hour_goes_on() -> None:
    nightly = check_cron("30 2 * * *", BERLIN)  # on 2026-10-25 there are two
    assert times(nightly, "2026-10-24T12:00", 2) == ["2026-10-25T00:30", "2026-10-26T01:30"]
    hourly = check_cron("0 * * * *", BERLIN)
    assert times(hourly, "2026-10-24T23:00", 4) == [f"2026-10-25T0{hour}:00" for hour in range(4)]


@pytest.mark.parametrize("expression", ["30 2 * * *", "*/7 * * * *", "0 */2 * * *", "15 2,3 29 * *", "0 0 29 2 *"])
@given(start_us=st.integers(at("2024-01-01T00:00"), at("2027-01-01T00:00")), length_us=st.integers(0, 40 * DAY_US))
def test_the_newest_time_found_backwards_is_the_last_one_found_forwards(
    expression: str, start_us: int, length_us: int
) -> None:
    cron, end_us = Cron(expression, BERLIN), start_us + length_us % (2 * DAY_US if "*/7" in expression else 40 * DAY_US)
    walked: list[int] = []
    due_us = cron.next_after(start_us)
    while due_us is not None and due_us <= end_us:
        walked.append(due_us)
        due_us = cron.next_after(due_us)
    assert cron.newest(start_us, end_us) == (walked[-1] if walked else None)
    count, more = cron.count(start_us, end_us + 1)
    assert (count, more) == (min(len(walked), COUNTED_MAX), len(walked) > COUNTED_MAX)


def test_the_newest_of_a_million_missed_times_is_found_without_walking_through_them() -> None:
    cron = Cron("* * * * * *", "UTC")
    start_us, end_us = at("2000-01-01T00:00"), at("2026-01-01T00:00") + 1
    assert cron.newest(start_us, end_us) == at("2026-01-01T00:00")
    assert cron.count(start_us, end_us) == (COUNTED_MAX, True)


@given(
    interval_us=st.integers(MICROSECONDS, 400 * DAY_US),
    anchor_us=st.integers(-(10**15), 10**15),
    after_us=st.integers(-(10**15), 10**15),
    length_us=st.integers(0, 10**15),
)
def test_an_interval_is_due_at_whole_multiples_after_its_anchor(
    interval_us: int, anchor_us: int, after_us: int, length_us: int
) -> None:
    every, end_us = Every(interval_us, anchor_us), after_us + length_us
    next_us = every.next_after(after_us)
    assert next_us is not None
    assert next_us > max(after_us, anchor_us)
    assert (next_us - anchor_us) % interval_us == 0
    assert next_us - interval_us <= max(after_us, anchor_us)
    newest_us = every.newest(after_us, end_us)
    assert (newest_us is None) == (next_us > end_us)
    if newest_us is not None:
        assert (newest_us - anchor_us) % interval_us == 0
        assert end_us - interval_us < newest_us <= end_us
        assert every.count(after_us, newest_us) == ((newest_us - next_us) // interval_us, False)


def test_there_is_no_time_beyond_the_calendar() -> None:
    assert Every(MICROSECONDS, 0).next_after(MAX_US) is None
    assert Cron("0 0 1 1 *", "UTC").next_after(MAX_US - DAY_US) is None
    assert Cron("0 0 1 1 *", BERLIN).newest(MAX_US - 400 * DAY_US, MAX_US) == at("9998-12-31T23:00")


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "no cron expression"),
        ("* * * *", "no cron expression"),
        ("61 * * * *", "Bad minute"),
        ("@never", "no cron expression"),
        ("0 0 31 4 *", "Bad day-of-month|never due"),
        ("\x1b[31m * * * *", r"no cron expression"),
        ("0 " * 400, "too long"),
        ("٣ * * * *", "no cron expression"),
    ],
)
def test_what_is_no_cron_expression_is_refused_and_it_is_said_how_one_looks(expression: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_cron(expression, "UTC")


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Base", "../../etc/passwd", "/etc/passwd", "UTC\0", "europe", "localtime", "Factory", "posixrules"],
)
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        check_cron("* * * * *", zone)


@pytest.mark.parametrize("interval", [0, 0.5, -1, float("nan"), float("inf"), 1e18])
def test_an_interval_is_at_least_a_second_and_can_be_waited(interval: float) -> None:
    with pytest.raises(ValueError, match="interval of a schedule"):
        check_interval(interval)


def test_timetables_say_what_they_are() -> None:
    shown = [str(one) for one in (Cron("0 3 * * *", BERLIN), *(Every(s * MICROSECONDS, 0) for s in (1, 90, 120, 7200)))]
    assert shown == ["0 3 * * * (Europe/Berlin)", "every 1 s", "every 90 s", "every 2 min", "every 2 h"]
    assert list(islice(map(str, [Every(3 * DAY_US, 0)]), 1)) == ["every 3 d"]
