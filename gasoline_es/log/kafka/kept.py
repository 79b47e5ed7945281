"""Where what is read of a namespace's topics is kept: owners' topics in the mirror, anyone's in memory, who works in a fold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gasoline_es.core.topics import OWNERS_TOPICS
from gasoline_es.errors import LogCorrupt
from gasoline_es.log.kafka.drivers.port import Feed, In
from gasoline_es.log.kafka.mirror import Mirror
from gasoline_es.log.kafka.recent import Recent
from gasoline_es.log.kafka.records import from_kafka, now_ms
from gasoline_es.log.kafka.who import Who


def owned(feed: Feed) -> bool:
    """Whether only its owner writes to a feed, of whatever namespace. To all others many write."""
    return feed.topic.rpartition(".")[2] in OWNERS_TOPICS


class Kept:
    """What the follower fills. Feeds by their whole names."""

    def __init__(
        self,
        prefix: str,
        workers: Feed,
        who: Who,
        mirror: Mirror,
        told: Callable[[], None],
        known: tuple[Sequence[In], int],
    ) -> None:
        """``known``: what was there of the workers' feed before this process looked, and up to which offset."""
        self.mirror: Final = mirror
        self.who: Final = who
        self._prefix: Final = prefix
        self._workers: Final = workers
        self._told = told
        self._recent: dict[Feed, Recent] = {}
        self._lock: Final = threading.Lock()
        records, self._workers_position = known
        now_s, wall_ms = time.monotonic(), now_ms()
        for record in records:
            who.fold(record, now_s, (wall_ms - record.time_ms) / 1000)

    def recent(self, feed: Feed) -> Recent | None:
        """Return what is kept of a many-writer feed; None: nothing yet."""
        return self._recent.get(feed)

    def keep_from(self, feed: Feed, first: int) -> tuple[Recent, bool]:
        """Keep a many-writer feed from an offset on; return it, and whether it has to be read again from there."""
        if owned(feed):
            raise ValueError(f"only its owner writes to {feed}: what is read of it is in the mirror")
        with self._lock:
            recent = self._recent.get(feed)
            if recent is not None and recent.first <= first:
                return recent, False
            known = recent is not None
            recent = self._recent[feed] = Recent(first)
            return recent, known

    # --- what the follower calls --------------------------------------------------------------------------------------

    def position(self, feed: Feed) -> int:
        """Return from where a feed has yet to be read."""
        if feed == self._workers:
            return self._workers_position
        return self.mirror.position(feed) if owned(feed) else self._of_many(feed).position

    def begins_at(self, feed: Feed, offset: int) -> None:
        """Learn that the broker has nothing before an offset any more. Raises: LogCorrupt: of what owners write it has all."""
        if feed == self._workers:
            self._workers_position = offset
        elif not owned(feed):
            recent = self._of_many(feed)
            recent.add((), recent.position, offset)  # consumed, or older than anybody looks back
        else:
            raise LogCorrupt(
                f"partition {feed.partition} of topic {feed.topic!r} begins at offset {offset}, and nothing is to be removed "
                f"from its beginning: histories are not whole. Nothing goes on there until somebody has looked",
                segment=feed.topic,
                position=offset,
                reason="records were removed from the beginning of a topic that is compacted only",
            )

    def add(self, read: Mapping[Feed, tuple[Sequence[In], int, int]]) -> None:
        """Take records of feeds, from where each was read, and how far it is read now."""
        copied: dict[Feed, tuple[Sequence[In], int, int]] = {}
        for feed, (records, start, position) in read.items():
            if feed == self._workers:
                self._fold(records)
                self._workers_position = position
                continue
            if owned(feed):
                copied[feed] = (records, start, position)
            else:
                made = [(one.offset, from_kafka(one, self._prefix, owned=False)) for one in records]
                self._of_many(feed).add(made, start, position)
        if copied:
            self.mirror.add(
                {
                    feed: ([from_kafka(one, self._prefix, owned=True) for one in records], start, position)
                    for feed, (records, start, position) in copied.items()
                }
            )

    def _of_many(self, feed: Feed) -> Recent:
        """Return what is kept of a many-writer feed: from its beginning, if nobody has said yet from where."""
        return self._recent.get(feed) or self.keep_from(feed, 0)[0]

    def _fold(self, records: Sequence[In]) -> None:
        now_s = time.monotonic()
        news = [self.who.fold(record, now_s, 0.0) for record in records]
        if any(news):
            self._told()
