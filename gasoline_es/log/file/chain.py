"""The epochs of a partition that count, from the newest down, as far down as anybody has asked.

There are as many as the partition ever had owners; nearly all questions are about the last few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gasoline_es.log.file.begins import Begun
from gasoline_es.log.file.lines import Begin, Place


@dataclass(frozen=True, slots=True)
class Link:
    """One epoch that counts: its sections in its writer's segments, up to and including ``limit``."""

    epoch: int
    writer: str
    limit: Place
    begin: Begin
    start: int
    """The segment in which it begins."""


class Chain:
    """See the module. What it says does not change, but for the limit of the newest epoch."""

    def __init__(
        self,
        top: int,
        begun: Callable[[int], Begun | None] = lambda _: None,
        last: Callable[[Begun], Place] | None = None,
    ) -> None:
        """``begun``: the begin of an epoch. ``last``: the last place that its writer published."""
        self._begun: Final = begun
        self._last: Final = last
        self._links: list[Link] = []
        """The newest first."""
        self._places: dict[int, int] = {}
        """epoch → where it is in ``_links``."""
        self._next = top
        """The epoch that comes next; 0: there is none."""
        self._limit: Place | None = None

    @property
    def newest(self) -> Link | None:
        """Return the newest epoch that counts."""
        return self._links[0] if self._links or self._extend() else None

    def publish(self, limit: Place) -> None:
        """Let the newest epoch count up to ``limit``."""
        newest = self._links[0]
        self._links[0] = Link(newest.epoch, newest.writer, limit, newest.begin, newest.start)

    def limit(self, epoch: int) -> Place | None:
        """Return up to where an epoch counts; None: it does not."""
        while self._next >= epoch and self._extend():
            pass
        at = self._places.get(epoch)
        return None if at is None else self._links[at].limit

    def down_to(self, topic: str, start: int) -> list[Link]:
        """Return the epochs in which a topic's records from the offset ``start`` on can be, the oldest of them first."""
        at = 0
        while at < len(self._links) or self._extend():
            if self._links[at].begin.offsets.get(topic, 0) <= start:
                return self._links[at::-1]
            at += 1
        return self._links[::-1]

    def all(self) -> list[Link]:
        """Return all epochs that count, the oldest first."""
        while self._extend():
            pass
        return self._links[::-1]

    def _extend(self) -> bool:
        while self._next > 0:
            begun = self._begun(self._next)
            if begun is None:
                # Its segment is damaged or gone: show what can be read below; `View.broken` stops whoever passes here.
                self._next, self._limit = self._next - 1, None
                continue
            assert self._last is not None
            limit = self._last(begun) if self._limit is None else self._limit
            self._places[self._next] = len(self._links)
            self._links.append(Link(self._next, begun.writer, limit, begun.begin, begun.place.segment))
            after = begun.begin.after
            if after is None:
                self._next = 0
            else:
                self._next, self._limit = min(self._next - 1, after.epoch), after.place
            return True
        return False
