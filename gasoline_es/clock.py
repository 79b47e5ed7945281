"""Time as an argument: the wall clock that deadlines are written in, and the monotonic one that waits are measured by.

The two are kept apart because a wall clock may be stepped in either direction while a wait goes on. The core never
reads a clock (design §1.4); the runtime takes one of these, and tests take :class:`VirtualClock`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """What the runtime asks of a clock."""

    def now_us(self) -> int:
        """Give the wall time as microseconds since 1970-01-01 in UTC. It may step backwards."""
        ...

    def monotonic(self) -> float:
        """Give seconds since an arbitrary start. It never steps backwards and ignores changes of the wall clock."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def now_us(self) -> int:
        """Give the machine's wall time in microseconds since 1970-01-01 in UTC."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Give the machine's monotonic time in seconds."""
        return time.monotonic()


class VirtualClock:
    """A clock that moves only when a test moves it.

    ``on_change`` holds callbacks called after each change, in the order they were added, so that timers can be armed
    again. A callback may add or remove callbacks; that counts from the next change on.
    """

    __slots__ = ("_monotonic_us", "_wall_us", "on_change")

    def __init__(self, wall_us: int = 1_767_225_600_000_000, monotonic: float = 0.0) -> None:
        """Start at ``wall_us`` (2026-01-01T00:00:00Z unless given)."""
        self._wall_us = wall_us
        # Kept as an integer, as a float of seconds would lose microseconds after the longest sleeps.
        self._monotonic_us = round(monotonic * 1_000_000)
        self.on_change: list[Callable[[], None]] = []

    def now_us(self) -> int:
        """Give the wall time last set, in microseconds since 1970-01-01 in UTC."""
        return self._wall_us

    def monotonic(self) -> float:
        """Give the seconds advanced so far."""
        return self._monotonic_us / 1_000_000

    def advance(self, seconds: float) -> None:
        """Let time pass: both clocks go forward by ``seconds``.

        Raises: ValueError if ``seconds`` is negative; use :meth:`jump_wall` to step the wall clock back.
        """
        if seconds < 0:
            raise ValueError(f"advance({seconds!r}): time passes forward only; jump_wall() steps the wall clock back")
        step_us = round(seconds * 1_000_000)
        self._wall_us += step_us
        self._monotonic_us += step_us
        self._changed()

    def set_wall(self, us: int) -> None:
        """Set the wall clock alone, as an operator or a time server does."""
        self._wall_us = us
        self._changed()

    def jump_wall(self, seconds: float) -> None:
        """Step the wall clock alone, forward or (with negative ``seconds``) back."""
        self._wall_us += round(seconds * 1_000_000)
        self._changed()

    def _changed(self) -> None:
        for callback in tuple(self.on_change):
            callback()
