"""Whose turn it is: so many attempts at a time in a worker, and of one activity so many as its definition allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gasoline_es.definitions import Activity
    from gasoline_es.runtime.activities import Attempt


class Turns:
    """Attempts wait in the order they came. One whose activity is at its own limit holds up nobody behind it."""

    def __init__(self, limit: int) -> None:
        self.running = 0
        self._limit: Final = limit
        self._waiting: deque[Attempt] = deque()
        self._held: dict[Activity[Any, Any], deque[Attempt]] = {}
        """By activity: those that wait for others of their own kind."""
        self._busy: dict[Activity[Any, Any], int] = {}
        """How many run of each activity that has a limit of its own."""

    @property
    def limit(self) -> int:
        """So many may run at a time."""
        return self._limit

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting) + sum(map(len, self._held.values()))

    @property
    def waits_since_us(self) -> int | None:
        """When the first of those that wait was asked for; None: none waits."""
        first = (queue[0].started_us for queue in (self._waiting, *self._held.values()) if queue)
        return min(first, default=None)

    def ask(self, attempt: Attempt) -> bool:
        """Return whether the attempt may run now, and count it then; otherwise it waits for its turn."""
        if self.running >= self._limit:
            self._waiting.append(attempt)
            return False
        return self._begin(attempt)

    def ended(self, attempt: Attempt) -> Attempt | None:
        """Return whose turn it is now that one has ended, counted as running; None: nobody's."""
        self.running -= 1
        definition = attempt.definition
        if definition.max_concurrency is not None:
            self._busy[definition] -= 1
            held = self._held.get(definition)
            if held:
                self._waiting.appendleft(held.popleft())  # it came before those that wait still
                if not held:
                    del self._held[definition]
        while self._waiting and self.running < self._limit:
            following = self._waiting.popleft()
            if self._begin(following):
                return following
        return None

    def _begin(self, attempt: Attempt) -> bool:
        definition = attempt.definition
        limit = definition.max_concurrency
        if limit is not None:
            busy = self._busy.get(definition, 0)
            if busy >= limit:
                self._held.setdefault(definition, deque()).append(attempt)
                return False
            self._busy[definition] = busy + 1
        self.running += 1
        return True

    def withdraw(self, unwanted: Callable[[Attempt], bool]) -> list[Attempt]:
        """Forget those that wait and are unwanted; return them."""
        gone = [attempt for queue in (self._waiting, *self._held.values()) for attempt in queue if unwanted(attempt)]
        if gone:
            self._waiting = deque(attempt for attempt in self._waiting if not unwanted(attempt))
            held = {kind: deque(one for one in queue if not unwanted(one)) for kind, queue in self._held.items()}
            self._held = {kind: queue for kind, queue in held.items() if queue}
        return gone
