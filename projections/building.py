"""Builds a generation from the log's start, beside the one that is read, and swaps it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gasoline_es.errors import HorizonMoved, ProjectionStopped
from gasoline_es.log.port import Log
from projections.definition import Projection, setup_of
from projections.generation_fold import GenerationFold
from projections.known import begun
from projections.parallel import RECORDS_WORTH_IT, fold_all, shares
from projections.partition_fold import CHUNK_MAX
from projections.stores.port import AnyGeneration, AnyStore, Feed, Position


@dataclass(frozen=True, slots=True)
class Progress:
    """How far long work has come: records done, of how many."""

    projection: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Built:
    """What a rebuild came to: of so many records."""

    projection: str
    generation: int
    records: int


OnProgress = Callable[[Progress], None]

_AGAIN_MAX: Final = 3
LITTLE: Final = CHUNK_MAX
"""So many records are folded while others wait for it."""


class Build:
    """A generation that is being built, step by step. Made with the store's ``building`` lock held until it is swapped in.

    It is folded to where the log ended as it began; then to where it ends by then, and so on while that gets less. Once it is
    little, it is swapped in: the swap folds what the old generation has and it has not, with the old one's writers waiting. So
    a build comes to an end however much is appended meanwhile, and has what there was as it began.
    """

    def __init__(self, log: Log, store: AnyStore, fold: GenerationFold) -> None:
        self.fold: Final = fold
        self._store: Final = store
        self._partitions: Final = range(log.partition_count)
        self._ends = self._goal = fold.ends(self._partitions)
        self._total: Final = sum(fold.behind(self._partitions).values())
        """What there was to fold as it began, in offsets: where the log was cleaned there are fewer records."""
        self._left = self._total
        self.by_others: int | None = 0
        """So many records other processes have folded; None: nobody knows, as one has died."""
        self._came: int | None = None
        """How many records came while it was folded to the ends before these; None: these are the first."""

    @property
    def progress(self) -> Progress:
        """How far it is, of what there was to fold as it began: in offsets, so the bar goes to its end over gaps."""
        done = min(max(self._total - self._left, 0), self._total)
        return Progress(self.fold.projection.name, done, self._total)

    def look(self, on_progress: OnProgress | None) -> None:
        """Tell how far other processes have come that fold into it."""
        reached = self.fold.generation.positions()
        self._left = self._short({feed: position.next_offset for feed, position in reached.items()})
        if on_progress is not None:
            on_progress(self.progress)

    def step(self) -> bool:
        """Fold a chunk of each partition; return True if it is to be swapped in instead."""
        if self._is_near():
            return True
        folded = self.fold.step(self._partitions)
        self._left = self._short(self.fold.reached())
        return folded == 0

    def _short(self, reached: Mapping[Feed, int]) -> int:
        """Return by how many offsets that falls short of where the log ended as this began."""
        return sum(max(end - reached.get(feed, 0), 0) for feed, end in self._goal.items())

    @property
    def records(self) -> int:
        """Of how many records it was built; where that is not known, of how many offsets."""
        if self.by_others is None:
            return sum(position.next_offset for position in self.fold.generation.positions().values())
        return self.fold.folded + self.by_others

    def _is_near(self) -> bool:
        if self.fold.left(self._ends):
            return False
        self._ends = self.fold.ends(self._partitions)
        came, before = self.fold.left(self._ends), self._came
        self._came = came
        return came <= LITTLE or (before is not None and came >= before)

    def swap(self) -> None:
        """Make it the current generation. Raises: ProjectionStopped: an event that the old one applied cannot be."""
        self._store.swap(self.fold.generation, self._catch_up)
        self._left = 0

    def _catch_up(self, positions: Mapping[Feed, Position]) -> None:
        self.fold.catch_up(positions)


def rebuild(
    log: Log,
    store: AnyStore,
    projection: Projection,
    on_progress: OnProgress | None = None,
    *,
    jobs: int = 1,
    url: str | None = None,
) -> Built:
    """Build a new generation from the start, beside the current one, and swap it in.

    Waits for whoever builds one now. What others fold into the old one meanwhile is in the new one too, once. ``jobs``: in so
    many processes, if that is worth it; ``url`` is that of the store, as it was opened with.

    Where the log is cleaned meanwhile, so that what was folded may have been taken back since, it begins again.

    Raises: ProjectionStopped: an event cannot be applied that is in the old one; that stays. ProjectionError: the store failed.
        HorizonMoved: the log is cleaned faster than it can be folded.
    """
    for _ in range(_AGAIN_MAX - 1):
        with suppress(HorizonMoved):
            return _rebuild(log, store, projection, on_progress, jobs, url)
    return _rebuild(log, store, projection, on_progress, jobs, url)


def _rebuild(
    log: Log, store: AnyStore, projection: Projection, on_progress: OnProgress | None, jobs: int, url: str | None
) -> Built:
    told: list[ProjectionStopped] = []
    with store.building(projection.name):
        generation = store.create(projection.name, projection.version, setup_of(projection))
        fold = GenerationFold(projection, generation, log, told.append)
        try:
            build = Build(log, store, fold)
            if build.progress.total >= RECORDS_WORTH_IT:
                given = shares(log, url, generation.meta, projection, jobs)
                if given:
                    build.by_others = fold_all(given, lambda: build.look(on_progress))
                    fold.begin_anew()
            while not build.step():
                if on_progress is not None:
                    on_progress(build.progress)
            build.swap()
        except BaseException:
            fold.close()
            store.abandon(generation)  # nobody goes on with it
            raise
        try:
            if on_progress is not None:
                on_progress(build.progress)
            return Built(projection.name, generation.meta.generation, build.records)
        finally:
            fold.close()


def begin(
    log: Log, store: AnyStore, projection: Projection, fold_into: Callable[[AnyGeneration], GenerationFold]
) -> Build:
    """Go on with the build of one that died in it, or begin one. With the store's ``building`` lock held."""
    found = begun(store, projection.name, projection.version, log)
    generation = found or store.create(projection.name, projection.version, setup_of(projection))
    return Build(log, store, fold_into(generation))
