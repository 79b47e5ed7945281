"""Wakes things at wall-clock times: one timer of the event loop for the earliest of any number of deadlines.

Deadlines are absolute; the loop's own timer only decides when to look next. It never waits longer than
``LOOK_AGAIN_S``, so a wall clock that is stepped (forward or back) is noticed, and no far deadline can overflow anything.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from typing import Final

from gasoline_es.clock import Clock, VirtualClock

LOOK_AGAIN_S: Final = 5.0


class Timers:
    """A queue of (deadline, key): ``due`` is called with each key once its deadline has passed.

    Arming a key again with an earlier deadline makes that one count; a later one is noticed when the earlier fires: the
    receiver looks at its own deadline and arms again. So nothing ever needs to be cancelled, and nothing is lost when
    the clock steps back between the two.
    """

    def __init__(self, clock: Clock, due: Callable[[str], None]) -> None:
        self._clock = clock
        self._due = due
        # A virtual clock tells of every change, and a year of it must not be walked through in steps.
        self._look_again_s = math.inf if isinstance(clock, VirtualClock) else LOOK_AGAIN_S
        self._heap: list[tuple[int, str]] = []
        self._armed: dict[str, int] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._handle_us = 0
        self._closed = False
        if isinstance(clock, VirtualClock):
            clock.on_change.append(self._look)

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, key: str, deadline_us: int) -> None:
        """See that ``due(key)`` is called once the wall clock has reached the deadline, if not earlier."""
        armed = self._armed.get(key)
        if armed is not None and armed <= deadline_us:
            return
        self._armed[key] = deadline_us
        heapq.heappush(self._heap, (deadline_us, key))
        if self._handle is None or deadline_us < self._handle_us:
            self._schedule()

    def close(self) -> None:
        """Call nothing any more."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if isinstance(self._clock, VirtualClock) and self._look in self._clock.on_change:
            self._clock.on_change.remove(self._look)

    def _schedule(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if not self._heap or self._closed:
            return
        self._handle_us = self._heap[0][0]
        wait_s = min(max(self._handle_us - self._clock.now_us(), 0) / 1e6, self._look_again_s)
        self._handle = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        if self._closed:
            return
        now_us = self._clock.now_us()
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now_us:
            deadline_us, key = heapq.heappop(self._heap)
            if self._armed.get(key) == deadline_us:
                del self._armed[key]
                due.append(key)
        # Only then: who arms again for what has passed by now has its turn after everybody else on the loop.
        for key in due:
            self._due(key)
        self._schedule()
