"""What stands beside workflows: where each subject stands, by id (design §7). The same folds as the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from gasoline_es.core.standing import StandingEvent, Stands
from gasoline_es.log.port import Record
from projections.kept_feed import KeptFeed

E = TypeVar("E", bound=StandingEvent[Any])
S = TypeVar("S", bound=Stands)


@dataclass(frozen=True, slots=True)
class StandingRow(Generic[S]):
    """Where a subject stands, for a store; ``state`` None: it is forgotten. ``since``: the offset that it is ordered by."""

    id: str
    since: int
    state: S | None


class StandingChanges(Generic[S]):
    """The rows that are to be stored: what they tell never changes, so they are of one moment as they are."""

    def __init__(self, view: StandingView[Any, S], rows: Sequence[StandingRow[S]]) -> None:
        self.view = view
        self.next_offset, self.stored_to = view.next_offset, view.stored_to
        self.last_place, self.last_record = view.last_place, view.last_record
        self.rows = rows

    def __len__(self) -> int:
        return 0

    def make(self, count: int) -> None:
        """Do nothing: they are made."""


class StandingView(KeptFeed, Generic[E, S]):
    """Subjects by id. Folded from durable events only, in order of offset."""

    def __init__(self, decode: Callable[[bytes], E], fold: Callable[[S | None, E], S], *, kept: bool = False) -> None:
        super().__init__(kept=kept)
        self._decode = decode
        self._fold = fold
        self._subjects: dict[str, S] = {}
        self._changed: dict[str, None] = {}
        """Those whose rows are older than what is folded here."""
        self._saving: dict[str, None] = {}
        """Those that are being stored."""

    def apply(self, offset: int, event: E) -> None:
        """Fold the event at ``offset``."""
        assert offset >= self.next_offset, "an event is folded once"
        self._subjects[event.subject] = self._fold(self._subjects.get(event.subject), event)
        self.next_offset = offset + 1
        self._note(event.subject)

    def _note(self, subject: str) -> None:
        if self._kept:
            self._changed[subject] = None

    def fold(self, records: Iterable[Record]) -> None:
        """Fold events as they are read from the log, from :attr:`next_offset` on."""
        for record in records:
            if record.value is not None and record.offset is not None:
                self.apply(record.offset, self._decode(record.value))
                self.stands_at(record.place, record.key, record.value)

    def get(self, subject: str) -> S | None:
        return self._subjects.get(subject)

    def __iter__(self) -> Iterator[S]:
        """Yield all that are in memory, also what is over."""
        return iter(self._subjects.values())

    # --- the store ----------------------------------------------------------------------------------------------------

    def since(self, subject: str) -> int:
        """Return the offset that a subject is ordered by among those like it."""
        raise NotImplementedError

    def restore(self, row: StandingRow[S]) -> None:
        """Take a subject from its row. They come in order of ``since``."""
        assert row.state is not None
        self._subjects[row.id] = row.state

    def load(self, next_offset: int, rows: Iterable[StandingRow[S]]) -> None:
        """Begin where the store stands."""
        assert not self.next_offset, "what was folded before is known"
        self.next_offset = self.stored_to = next_offset
        for row in rows:
            self.restore(row)

    @property
    def unsaved(self) -> int:
        """How many rows of the store are older than what is folded here."""
        return len(self._changed)

    def changes(self) -> StandingChanges[S]:
        """Begin to bring the store up to where this stands now. To be ended by :meth:`saved` or :meth:`not_saved`."""
        assert not self._saving, "the rows of one save at a time"
        self._saving, self._changed = self._changed, {}
        rows = [StandingRow(one, self.since(one), self._subjects.get(one)) for one in self._saving]
        return StandingChanges(self, rows)

    def saved(self, stored_to: int, told: None = None) -> None:
        """The rows are in the store, which stands at ``stored_to``, by this process or by another one that is ahead."""
        self._saving = {}
        self.stored_to = max(self.stored_to, stored_to)

    def not_saved(self) -> None:
        """The rows are not in the store."""
        self._changed = dict.fromkeys(chain(self._saving, self._changed))
        self._saving = {}

    def saved_elsewhere(self, stored_to: int) -> None:
        """Another process has stored rows. All that is here stays: it is small, and may be asked for at any time."""
        if stored_to >= self.next_offset and not self._saving:
            self._changed = {}
            self.stored_to = max(self.stored_to, stored_to)
