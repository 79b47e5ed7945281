"""Keeps projections up with the log, for as long as it is let: in a worker's thread, or as a process of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gasoline_es.errors import ProjectionError, ProjectionStopped, Superseded
from gasoline_es.log.port import Log
from projections.building import Build, Progress, begin
from projections.definition import Projection
from projections.generation_fold import GenerationFold, wall_us
from projections.known import Found, Undecided, look
from projections.stores.port import AnyGeneration, AnyStore, Feed

LOOK_AGAIN_S: Final = 0.5
"""How soon it is looked again where somebody else builds, or a partition is being taken over."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
IDLE_S: Final = 0.2
"""How soon it is looked for new events where nobody says that there are some."""

Standing = Literal["opening", "folding", "building", "waiting", "outdated", "failing"]
"""``waiting``: another process builds it. ``outdated``: a newer version was built, so this code leaves it alone.
``failing``: the store or the log cannot be used; it is tried again."""


Kind = Literal["built", "outdated", "discarded", "stopped", "failing"]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that an operator wants to know of a projection, and in words why."""

    kind: Kind
    projection: str
    why: str = ""
    extra: Mapping[str, object] = field(default_factory=dict[str, object])


Tell = Callable[[Notice], None]


class KeptUp:
    """One projection, kept up step by step."""

    def __init__(
        self,
        log: Log,
        store: AnyStore,
        projection: Projection,
        partitions: Callable[[], Collection[int]],
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        self.projection: Final = projection
        self.standing: Standing = "opening"
        self.error: Exception | None = None
        """Why it is failing."""
        self.folded_to: Mapping[Feed, int] = {}
        """Up to which offset each feed is folded that this process folds: a new one after each step, for other threads."""
        self._log: Final = log
        self._store: Final = store
        self._partitions: Final = partitions
        self._tell: Final = tell
        self._clock: Final = clock
        self._now_us: Final = now_us
        self._fold: GenerationFold | None = None
        self._build: Build | None = None
        self._held = ExitStack()
        """The lock of whoever builds."""
        self._again = 0.0
        self._wait_s = RETRY_FIRST_S

    @property
    def progress(self) -> Progress | None:
        """How far a build by this process is."""
        return None if self._build is None else self._build.progress

    @property
    def stopped(self) -> list[ProjectionStopped]:
        """What could not be applied, and is to be tried again."""
        fold = self._fold if self._build is None else self._build.fold
        return [] if fold is None else [stop.error for stop in fold.stops.values()]

    def ends(self) -> dict[Feed, int]:
        """Return where the log ends now in the feeds of this process's partitions."""
        topics = self.projection.topics_of(self._log.namespace)
        feeds = (Feed(topic, partition) for topic in topics for partition in self._partitions())
        return {feed: self._log.end(feed.topic, feed.partition) for feed in feeds}

    def reached(self, ends: Mapping[Feed, int]) -> bool:
        """Whether all below these ends is folded, but for feeds that stand before an event that could not be applied."""
        if self._fold is None or self.standing != "folding":
            return False
        mine = self._partitions()
        try:
            return not self._fold.left({feed: end for feed, end in ends.items() if feed.partition in mine})
        except Exception:  # the next step meets it, too, and knows what to do
            return False

    def step(self) -> int:
        """Do the next bit of work; return how much that was, 0 if there is nothing to do now."""
        if self._again > self._clock():
            return 0
        try:
            done = self._step()
            fold = self._fold if self._build is None else self._build.fold
            self.folded_to = {} if fold is None else fold.reached()
        except Superseded:
            self.close()
            self.standing = "opening"
            return 1
        except Undecided:
            self.close()
            self._wait(LOOK_AGAIN_S)
            return 0
        except Exception as error:  # the store's, the log's, or what a setup raised: others go on
            self.close()
            self._failed(error)
            return 0
        self._wait_s = RETRY_FIRST_S if self.standing == "folding" else self._wait_s
        return done

    def _step(self) -> int:
        if self._build is not None:
            return self._go_on_building(self._build)
        if self._fold is None:
            return self._open()
        self.standing, self.error = "folding", None
        return self._fold.step(self._partitions())

    def _wait(self, wait_s: float) -> None:
        self._again = self._clock() + wait_s

    def _failed(self, error: Exception) -> None:
        self._wait(self._wait_s)
        self._wait_s = min(self._wait_s * 2, RETRY_MAX_S)
        if self.standing != "failing" or str(error) != str(self.error):
            self._say("failing", f"{self.projection.name!r}: {error}", error=type(error).__name__)
        self.standing, self.error = "failing", error

    def _say(self, kind: Kind, why: str = "", **extra: object) -> None:
        self._tell(Notice(kind, self.projection.name, why, {"projection": self.projection.name, **extra}))

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> int:
        """Find the generation to fold into, or begin to build one."""
        found = self._found()
        if found.generation is not None:
            self._fold = self._fold_into(found.generation)
            self.standing = "folding"
            self._store.remove_old(self.projection.name)  # whoever swapped it in may have died before that
            return 1
        if found.to_be_built:
            return self._begin_building()
        if self.standing != "outdated":
            assert found.meta is not None, "it was opened"
            self._say(
                "outdated",
                f"{self.projection.name!r} was built by version {found.meta.version}, and this code has version "
                f"{self.projection.version}. To go back, run `gasoline projections rebuild MODULE` with this code",
                built=found.meta.version,
                version=self.projection.version,
            )
        self.standing = "outdated"
        self._wait(LOOK_AGAIN_S)
        return 0

    def _found(self) -> Found:
        """Look at what is current. What nobody can rely on is discarded, which is told."""
        name = self.projection.name
        found = look(self._store, name, self.projection.version, self._log)
        if found.useless:
            if found.state == "foreign" and not self._store.private:
                raise ProjectionError(
                    f"projection {name!r} in {self._store.url} is not this log's: {found.why}. If that log is gone, take the "
                    f"place over with `gasoline projections rebuild MODULE {name}`; otherwise give one of them another store",
                    projection=name,
                    store=self._store.url,
                )
            self._store.discard(name)
            self._say("discarded", f"{name!r}: {found.why}")
        return found

    def _fold_into(self, generation: AnyGeneration) -> GenerationFold:
        return GenerationFold(
            self.projection, generation, self._log, self._tell_stopped, clock=self._clock, now_us=self._now_us
        )

    def _tell_stopped(self, error: ProjectionStopped) -> None:
        self._say(
            "stopped",
            error.message,
            partition=error.partition,
            topic=error.topic,
            offset=error.offset,
            event=error.event,
        )

    # --- building -----------------------------------------------------------------------------------------------------

    def _begin_building(self) -> int:
        held = self._held.enter_context(self._store.building(self.projection.name, wait=False))
        if not held:
            self._held.close()
            self.standing = "waiting"
            self._wait(LOOK_AGAIN_S)
            return 0
        found = self._found()  # somebody may have built it since
        if found.generation is not None:
            found.generation.close()
        if not found.to_be_built:
            self._held.close()
            return 1
        self._build = begin(self._log, self._store, self.projection, self._fold_into)
        self.standing = "building"
        return 1

    def _go_on_building(self, build: Build) -> int:
        self.standing = "building"
        if not build.step():
            return 1
        build.swap()
        self._build, self._fold = None, build.fold
        self._held.close()
        self.standing, self.error = "folding", None
        progress = build.progress
        self._say("built", f"{self.projection.name!r}, of {progress.total} records", records=progress.total)
        return 1

    def close(self) -> None:
        """Let go of everything."""
        for fold in (self._fold, None if self._build is None else self._build.fold):
            if fold is not None:
                fold.close()
        self._fold = self._build = None
        self._held.close()


class Runner:
    """Keeps projections up, all in one thread."""

    def __init__(
        self,
        log: Log,
        store: AnyStore,
        projections: Sequence[Projection],
        *,
        partitions: Callable[[], Collection[int]] | None = None,
        tell: Tell = lambda notice: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``partitions``: which of them this process folds now; None: all."""
        mine = partitions or (lambda: range(log.partition_count))
        self.kept: Final = [KeptUp(log, store, one, mine, tell, clock) for one in projections]
        self._stop: Final = threading.Event()
        self._news: Final = threading.Event()

    def step(self) -> int:
        """Let each projection do its next bit of work; return how much there was."""
        return sum(kept.step() for kept in self.kept)

    def run(self, on_step: Callable[[], Any] | None = None) -> None:
        """Keep them up until :meth:`stop`, which any thread may call."""
        try:
            while not self._stop.is_set():
                self._news.clear()
                done = self.step()
                if on_step is not None:
                    on_step()
                if not done:
                    self._news.wait(IDLE_S)
        finally:
            self.close()

    def run_once(
        self,
        on_step: Callable[[], Any] | None = None,
        *,
        at_end: Callable[[Sequence[KeptUp]], Any] | None = None,
    ) -> None:
        """Fold what there is now, then return, whatever comes meanwhile. What another process builds is left to it.

        ``at_end``: told how each projection does, before they are let go of.
        """
        ends = [kept.ends() for kept in self.kept]
        try:
            while not self._stop.is_set():
                done = sum(kept.step() for kept, to in zip(self.kept, ends, strict=True) if not kept.reached(to))
                if on_step is not None:
                    on_step()
                if not done:
                    if not any(kept.standing == "opening" for kept in self.kept):
                        break
                    self._news.wait(IDLE_S)
            if at_end is not None:
                at_end(self.kept)
        finally:
            self.close()

    def wake(self) -> None:
        """Say that there may be something to do. From any thread."""
        self._news.set()

    def stop(self) -> None:
        """Let :meth:`run` return, after the chunk it is at. From any thread."""
        self._stop.set()
        self._news.set()

    def close(self) -> None:
        for kept in self.kept:
            kept.close()
