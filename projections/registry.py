"""What stands in a partition's registry (design §5, §7): what workers have said about what they run, which only a store
remembers; and which dead letters wait there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from gasoline_es.core.announced import WORKER
from gasoline_es.core.letters import WAITING
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


class RegistryChanges:
    """What is to be stored: of each worker the last thing it said; of letters where they are, None: they went."""

    def __init__(self, view: RegistryView, said: Mapping[str, Said], letters: Mapping[str, int | None]) -> None:
        self.next_offset, self.stored_to = view.next_offset, view.stored_to
        self.last_place, self.last_record = view.last_place, view.last_record
        self.said, self.letters = said, letters

    def __len__(self) -> int:
        return 0

    def make(self, count: int) -> None:
        """Do nothing: they are made."""


class RegistryView(KeptFeed):
    """What was said since it was stored last, and the letters that wait. There are other records, too, which are passed."""

    def __init__(self, *, kept: bool = False) -> None:
        super().__init__(kept=kept)
        self.letters: dict[str, int] = {}
        """The offsets of letters that wait, by key, in the order in which they came."""
        self._said: dict[str, Said] = {}
        self._moved: dict[str, int | None] = {}
        self._saving: tuple[dict[str, Said], dict[str, int | None]] | None = None

    def apply(self, records: Iterable[Written], first_offset: int, place: int) -> None:
        """Fold records that have become durable one after the other, all at ``place``."""
        self.next_offset = first_offset
        for record in records:
            self._note(record, self.next_offset)
            self.stands_at(place, record.key, record.value)
            self.next_offset += 1

    def fold(self, records: Iterable[Record]) -> None:
        """Fold records as they are read from the log, from :attr:`next_offset` on."""
        for record in records:
            if record.offset is not None:
                self._note(record, record.offset)
                self.stands_at(record.place, record.key, record.value)
                self.next_offset = record.offset + 1

    def _note(self, record: Written, offset: int) -> None:
        key = record.key
        if key.startswith(WAITING):
            self.letters.pop(key, None)  # one that is refused again waits behind those that came meanwhile
            if record.value is not None:
                self.letters[key] = offset
            if self._kept:
                self._moved[key] = self.letters.get(key)
        elif self._kept and key.startswith(WORKER):
            self._said[key.removeprefix(WORKER)] = record.time_us, record.value

    def load(self, next_offset: int, letters: Mapping[str, int]) -> None:
        """Begin where the store stands."""
        assert not self.next_offset, "what was folded before is known"
        self.next_offset = self.stored_to = next_offset
        self.letters.update(letters)

    @property
    def unsaved(self) -> int:
        """Of how many workers and letters something is not stored."""
        return len(self._said) + len(self._moved)

    def changes(self) -> RegistryChanges:
        """Begin to bring the store up to where this stands now. To be ended by :meth:`saved` or :meth:`not_saved`."""
        assert self._saving is None, "the rows of one save at a time"
        self._saving = said, moved = self._said, self._moved
        self._said, self._moved = {}, {}
        return RegistryChanges(self, said, moved)

    def saved(self, stored_to: int, told: None = None) -> None:
        """The rows are in the store, which stands at ``stored_to``."""
        self._saving = None
        self.stored_to = max(self.stored_to, stored_to)

    def not_saved(self) -> None:
        """The rows are not in the store."""
        if self._saving is not None:
            said, moved = self._saving
            self._said, self._moved = {**said, **self._said}, {**moved, **self._moved}
        self._saving = None

    def saved_elsewhere(self, stored_to: int) -> None:
        """Another process has stored rows. There is next to nothing here to let go of."""
