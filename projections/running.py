"""Keeps projections up with the log, for as long as it is let: in a worker's thread, or as a process of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gasoline_es.errors import GasolineError, HorizonMoved, ProjectionError, ProjectionStopped, Superseded
from gasoline_es.log.port import Log
from projections.building import Build, Progress, begin
from projections.definition import Projection
from projections.generation_fold import ERROR_CHARACTERS_MAX, GenerationFold, wall_us
from projections.known import Found, Undecided, look
from projections.raised import told
from projections.stores.port import AnyGeneration, AnyStore, Failure, Feed

LOOK_AGAIN_S: Final = 0.5
"""How soon it is looked again where somebody else builds, or a partition is being taken over."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
IDLE_S: Final = 0.2
"""How soon it is looked for new events where nobody says that there are some."""

Standing = Literal["opening", "folding", "building", "waiting", "outdated", "failing"]
"""``waiting``: another process builds it. ``outdated``: a newer version was built, so this code leaves it alone.
``failing``: the store or the log cannot be used; it is tried again."""


Kind = Literal["built", "outdated", "discarded", "stopped", "failing", "recovered"]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that an operator wants to know of a projection, and in words why. ``error``: if it is of the user's code."""

    kind: Kind
    projection: str
    why: str = ""
    extra: Mapping[str, object] = field(default_factory=dict[str, object])
    error: BaseException | None = None


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
        self._failure: str | None = None
        """What was told of why it is failing, until it goes on."""
        self._may_be_kept = True
        """Another process, or one before this, may have kept in the store that it fails."""
        self._stopped_now: list[ProjectionStopped] = []
        """What stopped in this step."""
        self._told_stops: dict[str, set[Feed]] = {}
        """Where it stands still for a reason that was told."""

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
        except (Superseded, HorizonMoved):  # the next look finds another, or that this one is of no use
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
        finally:
            self._tell_stops()
        return done

    def _step(self) -> int:
        if self._build is not None:
            return self._go_on_building(self._build)
        if self._fold is None:
            return self._open()
        self.standing, self.error = "folding", None
        done = self._fold.step(self._partitions())
        self._recovered()
        return done

    def _wait(self, wait_s: float) -> None:
        self._again = self._clock() + wait_s

    def _failed(self, error: Exception) -> None:
        self._wait(self._wait_s)
        self._wait_s = min(self._wait_s * 2, RETRY_MAX_S)
        said = str(error) if isinstance(error, GasolineError) else told(error)
        if said != self._failure:
            of_the_user = None if isinstance(error, GasolineError) else error
            self._say("failing", f"{self.projection.name!r}: {said}", of_the_user, error=type(error).__name__)
            self._keep_failure(Failure(said[:ERROR_CHARACTERS_MAX], self._now_us()))
        self._failure = said
        self.standing, self.error = "failing", error

    def _recovered(self) -> None:
        """It was folded on: what was said of failing is over."""
        self._wait_s = RETRY_FIRST_S
        if self._failure is not None:
            self._failure = None
            self._say("recovered", f"{self.projection.name!r}")
        if self._may_be_kept:
            self._keep_failure(None)

    def _keep_failure(self, failure: Failure | None) -> None:
        """Let those see it who look at the store; which may be just what cannot be used."""
        with suppress(Exception):
            self._store.tell_failure(self.projection.name, failure)
            self._may_be_kept = failure is not None

    def _say(self, kind: Kind, why: str = "", error: BaseException | None = None, /, **extra: object) -> None:
        self._tell(Notice(kind, self.projection.name, why, {"projection": self.projection.name, **extra}, error))

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> int:
        """Find the generation to fold into, or begin to build one."""
        found = self._found()
        if found.generation is not None:
            self._fold = self._fold_into(found.generation)
            self.standing = "folding"
            self._store.remove_old(self.projection.name)  # whoever swapped it in may have died before that
            self._remove_begun(found.generation.meta.generation)
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

    def _remove_begun(self, current: int) -> None:
        """Remove what somebody began to build and left: a rebuild that was killed is gone on with by nobody."""
        name, version = self.projection.name, self.projection.version
        left = [info.meta for info in self._store.generations(name) if info.meta.generation > current]
        if not left or any(meta.version > version for meta in left):  # newer code may go on with its own
            return
        with self._store.building(name, wait=False) as held:
            if held:
                self._store.remove_begun(name)

    def _tell_stopped(self, error: ProjectionStopped) -> None:
        self._stopped_now.append(error)

    def _tell_stops(self) -> None:
        """Tell what stopped in this step: of each reason the first, and how many partitions stand still for it by now."""
        stopped, self._stopped_now = self._stopped_now, []
        if not stopped:
            return
        still = {Feed(error.topic, error.partition) for error in self.stopped}
        self._told_stops = {reason: feeds & still for reason, feeds in self._told_stops.items() if feeds & still}
        known = {reason: set(feeds) for reason, feeds in self._told_stops.items()}
        firsts: dict[str, ProjectionStopped] = {}
        for error in stopped:
            firsts.setdefault(error.cause, error)
            self._told_stops.setdefault(error.cause, set()).add(Feed(error.topic, error.partition))
        for reason, first in firsts.items():
            partitions = len(self._told_stops[reason])
            more = partitions - len(known.get(reason, set())) - 1
            why = first.message
            if reason in known:
                why = f"{self.projection.name!r} stands still in {partitions} partitions by now for the same reason: {reason}"
            elif more:
                why += f". So it is in {count_of(more, 'more partition')}"
            self._say(
                "stopped",
                why,
                None if reason in known else first.__cause__,
                partition=first.partition,
                topic=first.topic,
                offset=first.offset,
                event=first.event,
                partitions=partitions,
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
        self._told_stops = {}
        self._build = begin(self._log, self._store, self.projection, self._fold_into)
        self.standing = "building"
        return 1

    def _go_on_building(self, build: Build) -> int:
        self.standing = "building"
        near = build.step()
        self._recovered()
        if not near:
            return 1
        build.swap()
        self._build, self._fold = None, build.fold
        self._held.close()
        self.standing, self.error = "folding", None
        self._tell_stops()
        total = build.records
        stops = len(build.fold.stops)
        why = f"{self.projection.name!r}, of {total} records"
        if stops:
            why += f", but in {count_of(stops, 'partition')} it stands before an event: what comes from there on is missing"
        self._say("built", why, records=total, stopped=stops)
        return 1

    def close(self) -> None:
        """Let go of everything."""
        for fold in (self._fold, None if self._build is None else self._build.fold):
            if fold is not None:
                fold.close()
        self._fold = self._build = None
        self._held.close()


def count_of(number: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


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
