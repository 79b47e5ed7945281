"""What stands beside workflows: where each subject stands, by id (design §7). The same folds as the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from gasoline_es.core.standing import StandingEvent, Stands
from gasoline_es.log.port import Record

E = TypeVar("E", bound=StandingEvent[Any])
S = TypeVar("S", bound=Stands)


class StandingView(Generic[E, S]):
    """Subjects by id, in the order in which they were first made. Folded from durable events only, in order of offset."""

    def __init__(self, decode: Callable[[bytes], E], fold: Callable[[S | None, E], S]) -> None:
        self.next_offset = 0
        """The offset of the next event to fold."""
        self._decode = decode
        self._fold = fold
        self._subjects: dict[str, S] = {}

    def apply(self, offset: int, event: E) -> None:
        """Fold the event at ``offset``."""
        assert offset >= self.next_offset, "an event is folded once"
        self._subjects[event.subject] = self._fold(self._subjects.get(event.subject), event)
        self.next_offset = offset + 1

    def fold(self, records: Iterable[Record]) -> None:
        """Fold events as they are read from the log, from :attr:`next_offset` on."""
        for record in records:
            if record.value is not None and record.offset is not None:
                self.apply(record.offset, self._decode(record.value))

    def get(self, subject: str) -> S | None:
        return self._subjects.get(subject)

    def __iter__(self) -> Iterator[S]:
        """Yield all of them, also what is over."""
        return iter(self._subjects.values())
