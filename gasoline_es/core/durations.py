"""Times and durations as integer microseconds: what a user gives, what is recorded, and back, exactly.

Wall times count from 1970-01-01 in UTC and reach from year 1 to year 9999. No sum or product of microseconds goes
through a float, which would be off by whole microseconds beyond the year 2255.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

MICROSECONDS = 1_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_US = timedelta(microseconds=1)

MIN_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _ONE_US
MAX_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _ONE_US

# Seven thousand years: added to any time before the year 2999 it can be represented, so that a duration which is too long
# is told by itself, at the call, and not only by the time at which a step comes to it.
DURATION_US_MAX = 7_000 * 365 * 86_400 * MICROSECONDS

_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_SECOND = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")


# --- what users give --------------------------------------------------------------------------------------------------


def duration_us(value: float | timedelta, what: str) -> int:
    """Turn seconds or a timedelta into microseconds, rounded to the nearest one (ties to even). Zero is allowed.

    ``what`` names the value in the error. Raises: TypeError for another type (bool included); ValueError if it is
    negative, NaN, infinite, or longer than 7,000 years.
    """
    if isinstance(value, timedelta):
        us = (value.days * 86_400 + value.seconds) * MICROSECONDS + value.microseconds
    elif isinstance(value, bool) or not isinstance(value, int | float):  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
        raise TypeError(f"{what} must be seconds (int or float) or a timedelta, not {type(value).__name__}")
    elif isinstance(value, int):
        us = value * MICROSECONDS
    elif math.isfinite(value):
        numerator, denominator = value.as_integer_ratio()
        us = _divide_rounding(numerator * MICROSECONDS, denominator)
    else:
        raise ValueError(f"{what} must be finite, not {value!r}")
    if us < 0 or (isinstance(value, float) and value < 0):
        raise ValueError(f"{what} must not be negative")
    if us > DURATION_US_MAX:
        raise ValueError(f"{what} is too long: at most 7,000 years can be waited")
    return us


def deadline_us(value: datetime, what: str) -> int:
    """Turn an aware datetime into microseconds since 1970-01-01 in UTC.

    Raises: TypeError if it is no datetime; ValueError if it is naive, or outside the years 1 to 9999 in UTC.
    """
    if not isinstance(value, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
        raise TypeError(f"{what} must be an aware datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise ValueError(
            f"{what} is a naive datetime, which is another instant on every machine: add a time zone, as in "
            "datetime.now(UTC) or value.replace(tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    return _checked(from_datetime(value), what)


def add_us(now_us: int, duration_us: int, what: str) -> int:
    """Add a duration to a wall time. Raises: ValueError if the result is after the year 9999 (or before year 1)."""
    return _checked(now_us + duration_us, what)


def _checked(us: int, what: str) -> int:
    if not MIN_US <= us <= MAX_US:
        raise ValueError(f"{what} cannot be represented: it is outside the years 1 to 9999 in UTC")
    return us


def _divide_rounding(numerator: int, denominator: int) -> int:
    quotient, rest = divmod(numerator, denominator)
    twice = rest * 2
    if twice > denominator or (twice == denominator and quotient & 1):
        quotient += 1
    return quotient


# --- datetimes --------------------------------------------------------------------------------------------------------


def to_datetime(us: int) -> datetime:
    """Give the aware datetime in UTC. Raises: OverflowError outside the years 1 to 9999."""
    return _EPOCH + timedelta(microseconds=us)


def from_datetime(value: datetime) -> int:
    """Give the microseconds since 1970-01-01 in UTC of an aware datetime. Raises: TypeError if it is naive."""
    return (value - _EPOCH) // _ONE_US


# --- RFC 3339 ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _second_prefix(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).isoformat()[:19]


def format_time(us: int) -> str:
    """Write a wall time in RFC 3339: UTC, six decimals, ``Z``: ``2026-01-01T00:00:00.000000Z``.

    Called for every event, so the part down to the second is cached. Raises: OverflowError outside years 1 to 9999.
    """
    second, fraction = divmod(us, MICROSECONDS)
    return f"{_second_prefix(second)}.{fraction:06d}Z"


@lru_cache(maxsize=4096)
def parse_second(text: str) -> int:
    """Read what :func:`format_time` writes before the fraction. Raises: ValueError for any other text."""
    if _SECOND.fullmatch(text) is None:
        raise ValueError(f"not a time to the second: {text!r}")
    return from_datetime(datetime.fromisoformat(f"{text}+00:00"))


def parse_time(text: str) -> int:
    """Read an RFC 3339 time with any offset; the exact inverse of :func:`format_time`.

    Digits beyond the microsecond are cut off. Raises: ValueError for any other text, for a leap second (``:60``), and
    for an instant outside the years 1 to 9999 in UTC.
    """
    if len(text) == 27 and text[26] == "Z" and text[19] == "." and text[10] == "T":
        digits = text[20:26]  # as format_time writes it
        if digits.isascii() and digits.isdigit():
            return parse_second(text[:19]) + int(digits)
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"not an RFC 3339 time: {text[:100]!r}")
    date, time, fraction, sign, hours, minutes = match.groups()
    us = parse_second(f"{date}T{time}")
    if fraction:
        us += int(fraction[:6].ljust(6, "0"))
    if sign is None:
        return us
    if int(hours) > 23 or int(minutes) > 59:
        raise ValueError(f"not an RFC 3339 offset: {text!r}")
    offset_us = (int(hours) * 60 + int(minutes)) * 60 * MICROSECONDS
    return _checked(us - offset_us if sign == "+" else us + offset_us, text)
