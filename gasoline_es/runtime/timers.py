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

STALE_MAX: Final = 64
"""So many entries that count no more may lie in the queue besides as many as there are of those that do."""


class Timers:
    """A queue of (deadline, key): ``due`` is called with each key once its deadline has passed.

    A key has one deadline, the last it was armed with: whoever waits for several things arms for the first of them, and
    again for the next when that is over. What is called may find that it is too early all the same (the clock may step
    back in between): then it arms again.

    Arming for later and disarming leave the queue as it is, because most waits end long before their time. What lies there
    is looked at when its turn comes, or thrown out with all that count no more once these are the most: so both cost
    O(log n) in the long run, and memory follows what is armed.
    """

    def __init__(self, clock: Clock, due: Callable[[str], None]) -> None:
        self._clock = clock
        self._due = due
        # A virtual clock tells of every change, and a year of it must not be walked through in steps.
        self._look_again_s = math.inf if isinstance(clock, VirtualClock) else LOOK_AGAIN_S
        self._armed: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        """For each armed key an entry at its deadline or, as ``_early`` says, before it; and others that count no more."""
        self._early: dict[str, int] = {}
        """Where the entry of a key lies that was armed for later since, or disarmed."""
        self._handle: asyncio.TimerHandle | None = None
        self._handle_us = 0
        self._closed = False
        if isinstance(clock, VirtualClock):
            clock.on_change.append(self._look)

    def __len__(self) -> int:
        """Return how many keys are armed."""
        return len(self._armed)

    def arm(self, key: str, deadline_us: int) -> None:
        """See that ``due(key)`` is called once the wall clock has reached this deadline, in place of any other."""
        early = self._early.pop(key, None)
        entry_us = self._armed.get(key) if early is None else early
        self._armed[key] = deadline_us
        if entry_us is not None and entry_us <= deadline_us:
            if entry_us < deadline_us:
                self._early[key] = entry_us
            return
        heapq.heappush(self._heap, (deadline_us, key))
        if self._handle is None or deadline_us < self._handle_us:
            self._schedule()
        self._throw_out()

    def disarm(self, key: str) -> None:
        """Do not call ``due(key)``: there is nothing to wait for."""
        deadline_us = self._armed.pop(key, None)
        if deadline_us is not None:
            self._early.setdefault(key, deadline_us)
            self._throw_out()

    def close(self) -> None:
        """Call nothing any more."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if isinstance(self._clock, VirtualClock) and self._look in self._clock.on_change:
            self._clock.on_change.remove(self._look)

    def _throw_out(self) -> None:
        """Make the queue anew once most of it counts no more: it is paid for by those that were armed to fill it."""
        if len(self._heap) > 2 * len(self._armed) + STALE_MAX:
            self._early.clear()
            self._heap = [(deadline_us, key) for key, deadline_us in self._armed.items()]
            heapq.heapify(self._heap)
            self._schedule()

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
            entry_us, key = heapq.heappop(self._heap)
            deadline_us = self._armed.get(key)
            if entry_us != self._early.get(key, deadline_us):
                continue  # another entry, before this one, stands for the key
            self._early.pop(key, None)
            if deadline_us is None:
                continue
            if deadline_us <= now_us:
                del self._armed[key]
                due.append(key)
            else:
                heapq.heappush(self._heap, (deadline_us, key))
        # Only then: who arms again for what has passed by now has its turn after everybody else on the loop.
        for key in due:
            self._due(key)
        self._schedule()
