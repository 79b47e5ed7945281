"""How it is found out whether what was written is there, for each kind of writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as Late
from typing import Final

from gasoline_es.log.kafka.drivers.port import BrokerError, Feed, Out
from gasoline_es.log.kafka.follower import Follower
from gasoline_es.log.kafka.kept import Kept
from gasoline_es.log.kafka.others import Others
from gasoline_es.log.kafka.sender import Evidence

WAIT_S: Final = 15.0
"""So long the broker has to answer; then it is asked again. Open transactions of others end within their own limit."""
SENT: Final = "gasoline-sent"
"""The header by which a process finds again what it has sent."""


class Settling(Evidence):
    """What the kinds share: reading feeds to their end."""

    def __init__(self, follower: Follower) -> None:
        self._follower: Final = follower

    def _read_up(self, *feeds: Feed) -> None:
        try:
            self._follower.catch_up(*feeds).result(WAIT_S)
        except Late:
            raise BrokerError(f"the broker did not answer in {WAIT_S:g} s") from None


class OfOwner(Settling):
    """An owner's appends to its partition. Nobody else writes to its own feeds, so what comes there is what it has sent."""

    def __init__(
        self,
        follower: Follower,
        kept: Kept,
        workers: Feed,
        own_feeds: Sequence[Feed],
        holds: Callable[[], bool],
        others: Others,
    ) -> None:
        super().__init__(follower)
        self._kept: Final = kept
        self._workers: Final = workers
        self._own_feeds: Final = own_feeds
        self._holds: Final = holds
        self._others: Final = others
        self._ends: dict[Feed, int] = {}

    def begin(self) -> None:
        """Note where its feeds end. Not when it looks for what it has sent: the follower may have met that before."""
        self._ends = {feed: self._kept.mirror.end(feed) for feed in self._own_feeds}

    def still_mine(self) -> bool:
        """Whether no newer epoch was begun."""
        self._read_up(self._workers)
        return self._holds()

    def refused(self, topic: str, why: str) -> bool:
        """Have it known of a topic of others: bodies that emit to it end, and the rest goes on."""
        return self._others.refused(topic, why)

    def hopeless(self, records: Sequence[Out]) -> str | None:
        """Look whether topics of others are still there, and open to this process: bodies emit to them."""
        return self._others.why_not(records)

    def find(self, records: Sequence[Out]) -> Sequence[int] | None:
        """Look in its own feeds, beyond what was there before."""
        mirror = self._kept.mirror
        self._read_up(*self._own_feeds)
        self._follower.leave(*self._own_feeds)
        came = {
            feed: [one.offset or 0 for one in mirror.read(feed, end, mirror.end(feed))]
            for feed, end in self._ends.items()
        }
        if not any(came.values()):
            return None
        taken = {feed: iter(offsets) for feed, offsets in came.items()}
        return [next(taken[record.feed], -1) if record.feed in taken else -1 for record in records]


class OfClient(Settling):
    """A client's commands, with a marker among the replies, which it reads anyway."""

    def __init__(self, follower: Follower, kept: Kept) -> None:
        super().__init__(follower)
        self._kept: Final = kept

    def still_mine(self) -> bool:
        """Nobody else has this process's name."""
        return True

    def find(self, records: Sequence[Out]) -> Sequence[int] | None:
        """Look for the marker, which is the last of them."""
        marker = records[-1]
        wanted = dict(marker.headers)[SENT].decode()
        recent, _ = self._kept.keep_from(marker.feed, 0)
        self._read_up(marker.feed)
        key = marker.key.decode()
        for record in recent.after(0, 1 << 62)[0]:
            if record.key == key and record.headers is not None and record.headers.get(SENT) == wanted:
                return [-1] * len(records)
        return None


class OfSigns(Evidence):
    """Signs of life: the next one says the same."""

    def still_mine(self) -> bool:
        """Nobody else has this process's name."""
        return True

    def find(self, records: Sequence[Out]) -> Sequence[int] | None:
        """It does not matter: it is sent again."""
        return None
