"""What is folded from one topic of a partition, and stored as rows with the position it stands at (design §7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from gasoline_es.log.port import Record


class Pending(Protocol):
    """What is to be stored of a feed so that the store stands where the fold stood when this was made.

    ``stored_to``: from there on it is all there is. ``last_place`` and ``last_record``: of the last record that was folded.
    """

    next_offset: int
    stored_to: int
    last_place: int
    last_record: tuple[str, bytes | None]

    def __len__(self) -> int:
        """Return how many rows are still to be made."""
        ...

    def make(self, count: int, /) -> None:
        """Make so many more rows, or fewer where they are large: at least one, if any is left."""


class Feed(Protocol):
    """A fold that a store can be brought up to. :meth:`changes` is ended by :meth:`saved` or by :meth:`not_saved`."""

    next_offset: int
    stored_to: int

    @property
    def storable_to(self) -> int:
        """The offset up to which :meth:`changes` goes."""
        ...

    @property
    def unsaved(self) -> int:
        """How many rows of the store are older than what is folded here."""
        ...

    def fold(self, records: Iterable[Record], /) -> None: ...

    def changes(self) -> Pending: ...

    def saved(self, stored_to: int, told: Any = None, /) -> None:
        """The rows are in the store, which stands at ``stored_to``. ``told``: what the table said as they were written."""

    def not_saved(self) -> None: ...


class KeptFeed:
    """What the folds of small topics have in common: where they stand, and where the store does."""

    def __init__(self, *, kept: bool) -> None:
        """``kept``: in a store. Else nobody asks what has changed."""
        self.next_offset = 0
        """The offset of the next record to fold."""
        self.stored_to = 0
        """Before this offset everything is in the store, as far as is known here."""
        self.last_place = 0
        self.last_record: tuple[str, bytes | None] = ("", None)
        """Where the last record lies that was folded; its key and its value."""
        self._kept = kept

    def stands_at(self, place: int, key: str, value: bytes | None) -> None:
        """Say which record was folded last, where that was not told before."""
        self.last_place, self.last_record = place, (key, value)

    @property
    def storable_to(self) -> int:
        """The offset up to which it can be stored."""
        return self.next_offset
