"""When a schedule is due: the times of a cron expression in a time zone, or of a fixed interval.

Pure, but for the rules of time zones, which are read from the machine's database (or tzdata's) when one is first named: the
same timetable and the same rules give the same times. As those rules change by law, the next time is recorded with every
event of a schedule and never computed again from the past (``core.schedules``).

Times are integer microseconds since the epoch, UTC. The arithmetic of cron is cronsim's, which follows Debian's cron: where
clocks go forward, what would be due in the hour that does not exist is due when it is over; where they go back, what is due
at a given hour is due once, and what is due every hour or minute goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gasoline_es.core.durations import MAX_US, MICROSECONDS, duration_us, from_datetime, to_datetime

INTERVAL_US_MIN: Final = MICROSECONDS
COUNTED_MAX: Final = 1_000
"""So many times of a cron expression that have passed are counted; of more it is said that there are more."""
_NO_PLACES: Final = ("localtime", "Factory", "posixrules")
"""Files that lie among the time zones, and say what the machine makes of them."""
_STEPS_BACK: Final = 3
_EXPRESSION_CHARACTERS_MAX: Final = 500
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True, slots=True)
class Cron:
    """The times that match a cron expression of five fields, or of six with seconds first, on the clocks of a time zone."""

    expression: str
    timezone: str

    def next_after(self, time_us: int) -> int | None:
        """Return the first time after ``time_us``; None: there is none within fifty years."""
        return next(self._after(time_us), None)

    def newest(self, after_us: int, until_us: int) -> int | None:
        """Return the last time in ``(after_us, until_us]``, or None. Its cost does not grow with how long that is."""
        start_us = after_us
        backwards = self._simulated(until_us, backwards=True)
        for _ in range(_STEPS_BACK):
            # Forward counts: the two directions need not agree where clocks change. So only the start is found backwards.
            start_us = _time_us(next(backwards, None), after_us)
            if start_us <= after_us:
                start_us = after_us
                break
        newest: int | None = None
        for due_us in self._after(start_us):
            if due_us > until_us:
                break
            newest = due_us
        return start_us if newest is None and start_us > after_us else newest

    def count(self, after_us: int, before_us: int) -> tuple[int, bool]:
        """Count the times in ``(after_us, before_us)``; whether there are more than ``COUNTED_MAX``, which is then given."""
        count = 0
        for due_us in self._after(after_us):
            if due_us >= before_us:
                return count, False
            if count == COUNTED_MAX:
                return count, True
            count += 1
        return count, False

    def _after(self, time_us: int) -> Iterator[int]:
        for due in self._simulated(time_us):
            due_us = from_datetime(due)
            if due_us > time_us:
                yield due_us

    def _simulated(self, start_us: int, *, backwards: bool = False) -> Iterator[datetime]:
        from cronsim import CronSim  # not before somebody has a schedule

        try:
            start = to_datetime(start_us).astimezone(_loaded(self.timezone))
            yield from CronSim(self.expression, start, reverse=backwards)
        except (OverflowError, ValueError):
            return  # beyond the years that a calendar has

    @property
    def when(self) -> str:
        """Its times, without the time zone."""
        return self.expression

    def __str__(self) -> str:
        return f"{self.expression} ({self.timezone})"


@dataclass(frozen=True, slots=True)
class Every:
    """The times that lie a whole number of intervals after ``anchor_us``: 1, 2, 3 …"""

    interval_us: int
    anchor_us: int

    def next_after(self, time_us: int) -> int | None:
        """Return the first time after ``time_us``; None: it would be after the year 9999."""
        number = max((time_us - self.anchor_us) // self.interval_us + 1, 1)
        due_us = self.anchor_us + number * self.interval_us
        return due_us if due_us <= MAX_US else None

    def newest(self, after_us: int, until_us: int) -> int | None:
        """Return the last time in ``(after_us, until_us]``, or None."""
        number = (until_us - self.anchor_us) // self.interval_us
        due_us = self.anchor_us + number * self.interval_us
        return due_us if number >= 1 and due_us > after_us else None

    def count(self, after_us: int, before_us: int) -> tuple[int, bool]:
        """Count the times in ``(after_us, before_us)``; there are never too many to count."""
        first = max((after_us - self.anchor_us) // self.interval_us + 1, 1)
        last = (before_us - 1 - self.anchor_us) // self.interval_us
        return max(last - first + 1, 0), False

    @property
    def timezone(self) -> None:
        """An interval has no clock."""
        return None

    @property
    def when(self) -> str:
        """Its times."""
        return str(self)

    def __str__(self) -> str:
        seconds = self.interval_us / MICROSECONDS
        for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
            if seconds >= size and seconds % size == 0:
                return f"every {seconds / size:g} {unit}"
        return f"every {seconds:g} s"


Timetable = Cron | Every


def check_cron(expression: str, timezone: str) -> Cron:
    """Return the timetable of a cron expression. ``@daily`` and its like are written out.

    Raises: ValueError: it is no expression, is never due, or there is no such time zone.
    """
    from cronsim import CronSim, CronSimError

    text = " ".join(expression.split()) if len(expression) <= _EXPRESSION_CHARACTERS_MAX else expression
    text = _MACROS.get(text.lower(), text)
    if len(text) > _EXPRESSION_CHARACTERS_MAX:
        raise ValueError(
            f"a cron expression of {len(text):,} characters is too long: {_EXPRESSION_CHARACTERS_MAX} are allowed"
        )
    zone = _zone(timezone)
    try:
        due = next(CronSim(text, datetime(2001, 1, 1, tzinfo=zone)), None)
    except (CronSimError, ValueError) as error:
        raise ValueError(
            f"{expression!r} is no cron expression: {error}. Write five fields, minute hour day month weekday, as in "
            f"'0 3 * * *' for every day at three, or six with seconds first"
        ) from None
    if due is None:
        raise ValueError(f"the cron expression {expression!r} is never due: no such day comes within fifty years")
    return Cron(text, timezone)


def check_interval(interval: object) -> int:
    """Return an interval in microseconds. Raises: TypeError, ValueError: it is none, or shorter than a second."""
    interval_us = duration_us(interval, "the interval of a schedule")  # type: ignore[arg-type]  # it checks the type
    if interval_us < INTERVAL_US_MIN:
        raise ValueError("the interval of a schedule is at least a second: for less, loop in a workflow")
    return interval_us


def _zone(name: str) -> tzinfo:
    if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
        raise ValueError(f"a time zone is a name such as 'Europe/Berlin' or 'UTC', not {name!r}")
    try:
        if name in _NO_PLACES:
            raise ValueError(name)
        return _loaded(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"there is no time zone {name!r}: give a name of the IANA database, such as 'Europe/Berlin' or 'UTC'"
        ) from None


@lru_cache(maxsize=256)
def _loaded(name: str) -> tzinfo:
    return ZoneInfo(name)


def _time_us(moment: datetime | None, otherwise_us: int) -> int:
    return otherwise_us if moment is None else from_datetime(moment)
