"""What stands beside workflows in an owned partition: decided from what is durable and what is on its way to the log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gasoline_es.core.ports import StandingView
from gasoline_es.core.standing import StandingEvent, Stands, Told
from gasoline_es.core.topics import Topics

if TYPE_CHECKING:
    from gasoline_es.runtime.partition import Partition

D = TypeVar("D", bound=Told)
E = TypeVar("E", bound=StandingEvent[Any])
S = TypeVar("S", bound=Stands)


@dataclass(frozen=True, slots=True)
class Described(Generic[D, E, S]):
    """One kind of things that stand beside workflows: the topic of its events, how they are made, written and folded.

    ``name_of``: what one of them is called, by which its events are found; empty where it does not tell.
    """

    topic: Callable[[Topics], str]
    made: Callable[[str, int, int, str, int, int, str, D], E]
    encode: Callable[[E, str], bytes]
    fold: Callable[[S | None, E], S]
    name_of: Callable[[S], str]


class Standing(ABC, Generic[D, E, S]):
    """All of one kind in one partition. The view holds durable facts only; what is decided here runs ahead of it."""

    def __init__(self, partition: Partition, view: StandingView[E, S], described: Described[D, E, S]) -> None:
        self.described = described
        self._partition = partition
        self._view = view
        self._ahead: dict[str, S] = {}

    @property
    def view(self) -> StandingView[E, S]:
        """What is durable."""
        return self._view

    def get(self, subject: str) -> S | None:
        """Return where a subject stands, with what is not durable yet."""
        return self._ahead.get(subject) or self._view.get(subject)

    def record(self, subject: str, data: D, name: str = "") -> None:
        """Decide a fact: it counts from here on, and is on its way to the log. ``name``: of what stands there from now on.

        Raises: RecordTooLarge: nothing happened.
        """
        stands = self.get(subject)
        seq, known = (1, "") if stands is None else (stands.seq + 1, self.described.name_of(stands))
        event = self._partition.record_beside(self.described, subject, seq, known or name, data)
        self._ahead[subject] = self.described.fold(stands, event)

    def durable(self, events: Sequence[E], first_offset: int, place: int) -> None:
        """Fold what has become durable. It is small enough to be kept whole, so where it lies is of no interest."""
        for offset, event in enumerate(events, first_offset):
            self._view.apply(offset, event)
            ahead = self._ahead.get(event.subject)
            if ahead is not None and ahead.seq <= event.seq:
                del self._ahead[event.subject]

    def roll_back(self) -> None:
        """Forget what is not durable: it did not happen."""
        self._ahead.clear()

    @abstractmethod
    def arm_all(self) -> None:
        """See that all are looked after: the partition was taken over, or decisions were dropped."""

    def disarm_all(self) -> None:
        """See to none of them any more."""
        for subject in {*self._ahead, *self._armed()}:
            self._partition.alarm(subject, None)

    @abstractmethod
    def _armed(self) -> Iterator[str]:
        """Yield the durable subjects that may have an alarm."""
