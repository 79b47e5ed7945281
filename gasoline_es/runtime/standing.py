"""What stands beside workflows in an owned partition: decided from what is durable and what is on its way to the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from gasoline_es.core.ports import StandingView
from gasoline_es.core.standing import StandingEvent, Stands

E = TypeVar("E", bound=StandingEvent[Any])
S = TypeVar("S", bound=Stands)


class Standing(Generic[E, S]):
    """``view`` holds durable facts only; what is decided here runs ahead of it."""

    def __init__(self, view: StandingView[E, S], fold: Callable[[S | None, E], S]) -> None:
        self._view = view
        self._fold = fold
        self._ahead: dict[str, S] = {}

    def get(self, subject: str) -> S | None:
        """Return where a subject stands, with what is not durable yet."""
        return self._ahead.get(subject) or self._view.get(subject)

    def decided(self, event: E) -> None:
        """Let an event count that is on its way to the log."""
        self._ahead[event.subject] = self._fold(self.get(event.subject), event)

    def durable(self, events: Sequence[E], first_offset: int) -> None:
        """Fold what has become durable."""
        for offset, event in enumerate(events, first_offset):
            self._view.apply(offset, event)
            ahead = self._ahead.get(event.subject)
            if ahead is not None and ahead.seq <= event.seq:
                del self._ahead[event.subject]

    def roll_back(self) -> None:
        """Forget what is not durable: it did not happen."""
        self._ahead.clear()
