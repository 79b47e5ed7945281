"""A generation, folded on by this process in some or all partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from gasoline_es.errors import LogError, PositionMoved, ProjectionStopped
from gasoline_es.log.port import Log
from projections.definition import Projection
from projections.partition_fold import PartitionFold
from projections.stores.port import START, AnyGeneration, Feed, Position, Stop

RETRY_FIRST_S: Final = 5.0
RETRY_MAX_S: Final = 300.0
ERROR_CHARACTERS_MAX: Final = 4_000


def wall_us() -> int:
    """Return the time of day in microseconds UTC."""
    return time.time_ns() // 1_000


@dataclass(slots=True)
class Stopped:
    """A feed that stands before an event which could not be applied, and when that is tried again."""

    error: ProjectionStopped
    again: float
    wait_s: float


class GenerationFold:
    """Folds chunks in turn. ``clock``: monotonic seconds; ``now_us``: what a clock on the wall says."""

    def __init__(
        self,
        projection: Projection,
        generation: AnyGeneration,
        log: Log,
        stopped: Callable[[ProjectionStopped], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        self.projection: Final = projection
        self.generation: Final = generation
        self.stops: Final[dict[Feed, Stopped]] = {}
        self.folded = 0
        """How many records were folded here."""
        self._log: Final = log
        self._clock: Final = clock
        self._now_us: Final = now_us
        self._tell: Final = stopped
        self._partitions: Final[dict[int, PartitionFold]] = {}

    def fold_of(self, partition: int) -> PartitionFold:
        """Return the fold of a partition, making it from what the tables hold."""
        fold = self._partitions.get(partition)
        if fold is None:
            fold = self._partitions[partition] = PartitionFold(
                self.projection, self.generation, self._log, partition, self._clock
            )
        return fold

    def step(self, partitions: Collection[int]) -> int:
        """Fold the next chunk of each feed of these partitions; return how many records there were.

        A feed that cannot go on is told of, and left alone for a while; the others go on. Raises: Superseded. LogError, once
        all others had their turn: a feed cannot be read.
        """
        for gone in self._partitions.keys() - set(partitions):
            del self._partitions[gone]
        folded = 0
        unread: LogError | None = None
        for partition in sorted(partitions):
            for feed in self.fold_of(partition).feeds:
                try:
                    folded += self._step(feed)
                except LogError as error:
                    unread = unread or error
        if unread is not None and not folded:
            raise unread
        return folded

    def _step(self, feed: Feed) -> int:
        stop = self.stops.get(feed)
        if stop is not None and stop.again > self._clock():
            return 0
        try:
            folded = self._counted(self.fold_of(feed.partition), feed)
        except PositionMoved:  # another process went on: so does this one, from there
            self._partitions.pop(feed.partition, None)
            return 1
        except ProjectionStopped as error:
            return self._stop(feed, error)
        if folded or stop is not None:
            self.stops.pop(feed, None)
        return folded

    def _counted(self, fold: PartitionFold, feed: Feed, stop: int | None = None) -> int:
        before = fold.folded
        try:
            return fold.step(feed, stop)
        finally:
            self.folded += fold.folded - before

    def _stop(self, feed: Feed, error: ProjectionStopped) -> int:
        """Leave a feed alone for a while; return 0. If another process has applied the event meanwhile, go on from there: 1."""
        known = self.stops.get(feed)
        again = known is not None and known.error.message == error.message
        wait_s = min(known.wait_s * 2, RETRY_MAX_S) if again and known is not None else RETRY_FIRST_S
        if not again:
            stop = Stop(error.offset, error.event, error.cause[:ERROR_CHARACTERS_MAX], self._now_us())
            with self.generation.writing() as write:
                stands = write.stop(feed, stop)
            if not stands:
                self.stops.pop(feed, None)
                self._partitions.pop(feed.partition, None)
                return 1
            self._tell(error)
        self.stops[feed] = Stopped(error, self._clock() + wait_s, wait_s)
        return 0

    def catch_up(self, positions: Mapping[Feed, Position]) -> None:
        """Fold on until each feed stands at least there, whatever was said of trying again. Raises: ProjectionStopped."""
        for feed, position in positions.items():
            while True:
                fold = self.fold_of(feed.partition)
                if feed not in fold.feeds:
                    break  # another version folded another topic
                try:
                    if fold.position(feed).offset >= position.offset:
                        break
                    if not self._counted(fold, feed, position.next_offset):
                        break
                except PositionMoved:
                    self._partitions.pop(feed.partition, None)

    def ends(self, partitions: Collection[int]) -> dict[Feed, int]:
        """Return where the log ends now in each feed."""
        feeds = (feed for partition in sorted(partitions) for feed in self.fold_of(partition).feeds)
        return {feed: self._log.end(feed.topic, feed.partition) for feed in feeds}

    def left(self, ends: Mapping[Feed, int]) -> int:
        """Return how many offsets below these ends are to be folded, but for feeds that stand before an event."""
        return sum(
            max(end - self.fold_of(feed.partition).position(feed).next_offset, 0)
            for feed, end in ends.items()
            if feed not in self.stops
        )

    def fold_to(self, ends: Mapping[Feed, int]) -> None:
        """Fold these feeds' partitions up to there, or as far as it goes."""
        partitions = {feed.partition for feed in ends}
        while self.left(ends) and self.step(partitions):
            pass

    def behind(self, partitions: Collection[int]) -> dict[Feed, int]:
        """Return how many offsets of each feed are not folded: so many records, but where the log was cleaned."""
        folds = [self.fold_of(partition) for partition in sorted(partitions)]
        return {feed: fold.behind(feed) for fold in folds for feed in fold.feeds}

    def position(self, feed: Feed) -> Position:
        """Return where a feed stands."""
        return self.fold_of(feed.partition).position(feed) if feed.partition >= 0 else START

    def reached(self) -> dict[Feed, int]:
        """Return the next offset of each feed that is folded here, without asking anybody."""
        return {feed: fold.position(feed).next_offset for fold in self._partitions.values() for feed in fold.feeds}

    def begin_anew(self) -> None:
        """Go on from where the generation stands: others have folded into it."""
        self._partitions.clear()

    def close(self) -> None:
        """Let go of the generation."""
        self._partitions.clear()
        self.generation.close()
