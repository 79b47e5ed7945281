"""One partition of a projection, folded by this process into one generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from gasoline_es.errors import HorizonMoved, LogError, ProjectionError, ProjectionStopped
from gasoline_es.log.port import Log, Record, horizon_moved
from projections.definition import Projection
from projections.folding import ApplyFailed, Folding, described
from projections.raised import told
from projections.stores.port import START, AnyGeneration, Feed, Position, position_of

CHUNK_MAX: Final = 4_000
_CHUNK_FIRST: Final = 500
_CHUNK_S: Final = 0.1
"""A chunk holds the write lock, and as long as that takes nobody else folds: so many records that it is about so long."""


class PartitionFold:
    """Folds on from where the generation stands. Of no use any more once ``PositionMoved`` or ``Superseded`` was raised."""

    def __init__(
        self,
        projection: Projection,
        generation: AnyGeneration,
        log: Log,
        partition: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.feeds: Final = [Feed(topic, partition) for topic in projection.topics_of(log.namespace)]
        self._projection: Final = projection
        self._generation: Final = generation
        self._log: Final = log
        self._clock: Final = clock
        # Before the fold looks at the tables: what is committed in between then shows as a position that has moved.
        stood = generation.positions()
        self._positions: Final[dict[Feed, Position]] = {feed: stood.get(feed, START) for feed in self.feeds}
        self._folding: Final[Folding] = projection.folding(partition, generation.db)
        self._read: Final[dict[Feed, Iterator[Record]]] = {}
        self._horizons: Final[dict[Feed, int]] = {}
        """Of feeds that are folded from their start here, the horizon before that: below it nothing was left to take back."""
        self._chunk = _CHUNK_FIRST
        self.folded = 0
        """How many records were folded here."""

    def position(self, feed: Feed) -> Position:
        """Return where a feed of this partition stands."""
        return self._positions[feed]

    def behind(self, feed: Feed) -> int:
        """Return how many offsets of a feed are not folded: so many records, but where the log was cleaned."""
        return max(self._log.end(feed.topic, feed.partition) - self._positions[feed].next_offset, 0)

    def step(self, feed: Feed, stop: int | None = None) -> int:
        """Fold the next chunk of a feed, of records below ``stop``; return how many there were, 0 at the end.

        Raises: ProjectionStopped: the next record cannot be applied; those before it are. Superseded, PositionMoved.
            HorizonMoved: what took back something that is folded was removed before it was folded: the tables are of no use.
        """
        limit = self._chunk if stop is None else min(self._chunk, stop - self._positions[feed].next_offset)
        records = self._next_of_all(feed, limit, stop) if limit > 0 else []
        if records:
            begun = self._clock()
            self._fold_as_far_as_it_goes(feed, records)
            self._adapt(len(records), self._clock() - begun)
        return len(records)

    def _next_of_all(self, feed: Feed, limit: int, stop: int | None) -> list[Record]:
        """Read the next records, and make sure that no tombstone among those passed over was removed. Raises: HorizonMoved."""
        start = self._positions[feed].next_offset
        if start == 0:
            self._horizons[feed] = self._log.horizon(feed.topic, feed.partition)
        records = self._next(feed, limit, stop)
        if start < (now := self._log.horizon(feed.topic, feed.partition)) != self._horizons.get(feed, 0):
            self._read.pop(feed, None)
            raise horizon_moved(feed.topic, feed.partition, start, now)
        return records

    def _next(self, feed: Feed, limit: int, stop: int | None) -> list[Record]:
        """Read the next records: what was read ahead is read once."""
        records = self._read.pop(feed, None)
        if records is not None and (chunk := self._taken(feed, records, limit, stop)):
            return chunk
        # What was read ahead ends where the log did then; there may be more by now.
        start = self._positions[feed].next_offset
        if self._log.end(feed.topic, feed.partition) <= start:
            return []
        return self._taken(feed, self._log.read(feed.topic, feed.partition, start), limit, stop)

    def _taken(self, feed: Feed, records: Iterator[Record], limit: int, stop: int | None) -> list[Record]:
        """Take the next of them, below ``stop``, and keep the others if there may be some."""
        chunk: list[Record] = []
        try:
            for record in islice(records, limit):
                if stop is not None and record.offset is not None and record.offset >= stop:
                    return chunk  # offsets have gaps: so many records may reach further
                chunk.append(record)
        except HorizonMoved:  # since this scan began, which is longer ago than what is asked next
            return chunk
        except LogError:  # at damage, what comes before it is folded
            if not chunk:
                raise
            return chunk
        if len(chunk) == limit:
            self._read[feed] = records
        return chunk

    def _adapt(self, count: int, took_s: float) -> None:
        if took_s > 2 * _CHUNK_S:
            self._chunk = max(self._chunk // 2, 1)
        elif took_s < _CHUNK_S / 2 and count >= self._chunk:
            self._chunk = min(self._chunk * 2, CHUNK_MAX)

    def _fold_as_far_as_it_goes(self, feed: Feed, records: Sequence[Record]) -> None:
        """Fold all of it, or what comes before the first record that cannot be applied."""
        try:
            self._fold(feed, records)
        except BaseException as error:
            self._read.pop(feed, None)  # what comes next is no longer what was read ahead
            if isinstance(error, ProjectionError | KeyboardInterrupt):
                raise
            if isinstance(error, ApplyFailed):
                before = [record for record in records if _before(record, error.record)]
                if before:  # which may stop earlier: an error that one event caught can show at the next
                    self._fold_as_far_as_it_goes(feed, before)
                raise self._stopped(feed, error.record, error.event, error.__cause__) from error.__cause__
            if len(records) == 1:
                raise self._stopped(feed, records[0], described(records[0]), error) from error
            middle = len(records) // 2
            self._fold_as_far_as_it_goes(feed, records[:middle])
            self._fold_as_far_as_it_goes(feed, records[middle:])

    def _fold(self, feed: Feed, records: Sequence[Record]) -> None:
        """Apply records and move the position past them, in one transaction."""
        before, after = self._positions[feed], position_of(records[-1])
        try:
            self._folding.prepare(records)
            with self._generation.writing() as write:
                self._folding.apply(records, write.db)
                write.move(feed, before, after)
        except BaseException:
            self._folding.rolled_back()
            raise
        self._positions[feed] = after
        self.folded += len(records)
        self._folding.committed()

    def _stopped(self, feed: Feed, record: Record, event: str, cause: BaseException | None) -> ProjectionStopped:
        name, offset = self._projection.name, record.offset
        why = told(cause)
        return ProjectionStopped(
            f"projection {name!r} stands before event {event} at offset {offset} of {feed.topic!r}, partition "
            f"{feed.partition}, which it could not apply: {why}. Nothing behind it in that partition is folded until it is "
            f"applied; it is tried again after a while, and by the next version of the code",
            projection=name,
            topic=feed.topic,
            partition=feed.partition,
            offset=offset,
            event=event,
            cause=why,
        )


def _before(record: Record, other: Record) -> bool:
    assert record.offset is not None
    assert other.offset is not None
    return record.offset < other.offset
