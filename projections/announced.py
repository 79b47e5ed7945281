"""What workers have said in a partition's registry about what they run (design §5, §7). Only a store remembers it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from gasoline_es.core.announced import WORKER
from gasoline_es.log.port import Record
from projections.kept_feed import KeptFeed

Said = tuple[int, bytes | None]
"""When, in microseconds UTC, and what: None: it takes back what it said."""


class Written(Protocol):
    """A record of the registry that is durable."""

    @property
    def key(self) -> str: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def time_us(self) -> int: ...


class AnnouncedChanges:
    """What is to be stored: of each worker the last thing it said."""

    def __init__(self, view: AnnouncedView, said: Mapping[str, Said]) -> None:
        self.next_offset, self.stored_to = view.next_offset, view.stored_to
        self.last_place, self.last_record = view.last_place, view.last_record
        self.said = said

    def __len__(self) -> int:
        return 0

    def make(self, count: int) -> None:
        """Do nothing: they are made."""


class AnnouncedView(KeptFeed):
    """What was said since it was stored last. The registry has other records, too, which are passed."""

    def __init__(self, *, kept: bool = False) -> None:
        super().__init__(kept=kept)
        self._said: dict[str, Said] = {}
        self._saving: dict[str, Said] = {}

    def apply(self, records: Iterable[Written], first_offset: int, place: int) -> None:
        """Fold records that have become durable one after the other, all at ``place``."""
        self.next_offset = first_offset
        for record in records:
            self._note(record)
            self.stands_at(place, record.key, record.value)
            self.next_offset += 1

    def fold(self, records: Iterable[Record]) -> None:
        """Fold records as they are read from the log, from :attr:`next_offset` on."""
        for record in records:
            if record.offset is not None:
                self._note(record)
                self.stands_at(record.place, record.key, record.value)
                self.next_offset = record.offset + 1

    def _note(self, record: Written) -> None:
        if self._kept and record.key.startswith(WORKER):
            self._said[record.key.removeprefix(WORKER)] = record.time_us, record.value

    def load(self, next_offset: int) -> None:
        """Begin where the store stands."""
        assert not self.next_offset, "what was folded before is known"
        self.next_offset = self.stored_to = next_offset

    @property
    def unsaved(self) -> int:
        """Of how many workers something is not stored."""
        return len(self._said)

    def changes(self) -> AnnouncedChanges:
        """Begin to bring the store up to where this stands now. To be ended by :meth:`saved` or :meth:`not_saved`."""
        assert not self._saving, "the rows of one save at a time"
        self._saving, self._said = self._said, {}
        return AnnouncedChanges(self, self._saving)

    def saved(self, stored_to: int, told: None = None) -> None:
        """The rows are in the store, which stands at ``stored_to``."""
        self._saving = {}
        self.stored_to = max(self.stored_to, stored_to)

    def not_saved(self) -> None:
        """The rows are not in the store."""
        self._said = {**self._saving, **self._said}
        self._saving = {}

    def saved_elsewhere(self, stored_to: int) -> None:
        """Another process has stored rows. There is next to nothing here to let go of."""
