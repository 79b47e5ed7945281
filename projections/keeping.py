"""Keeps the engine's views in a store: whoever starts begins where the store stands, and not with the log's first event.

The store may lag behind, never lie: rows, counts and position change in one transaction, and whoever folds on from there comes
to the same views. What cannot be stored stays in memory. Workflows leave memory once their rows are stored; so this process
goes on reading a generation until another one has all that these views rely on, whatever became of it meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, Final, TypeVar

from gasoline_es.core.filters import Filters
from gasoline_es.core.ports import Prunable
from gasoline_es.core.state import Summary
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError, ProjectionError, Superseded
from gasoline_es.log.port import Log
from projections.kept_feed import Feed as KeptFeed
from projections.kept_feed import Pending
from projections.known import open_current, unknown_so_far
from projections.parallel import Share, fold_share
from projections.past import PastView
from projections.stores.port import (
    START,
    AnyGeneration,
    AnyStore,
    Feed,
    Meta,
    Position,
    digest,
    is_damage,
    still_behind,
)
from projections.tables import TOPICS, Tables, make_tables
from projections.views import Beside, PartitionViews
from projections.workflow_rows import WorkflowRow
from projections.workflows import NAME, VERSION, KeptBesideOf, KeptPartition, Workflows

ROWS_AT_ONCE: Final = 100
"""So many rows are made before others have a turn."""
BUILDER_WAIT_S: Final = 10.0
"""Whoever opens a log waits so long for somebody who builds its views, then goes on without."""
BUILDER_LOOK_S: Final = 0.05
LOCK_WAIT_MS: Final = 5_000
"""So long one who stores waits for another; then it is tried again."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0

_log = EngineLog(__name__)
_T = TypeVar("_T")


def keep_in(store: AnyStore, log: Log) -> StoreKeeper:
    """Keep the views of a log's namespace in a store. May wait, so call it outside of an event loop.

    What is there is relied on if it is of this version of the rows, and if the log knows every position of it. An older
    version's stays current, for those who read it, until the new rows have caught up with it. A newer version's stays.

    Raises: ProjectionError, LogError, OSError: it cannot be used by this process, or not now. Nothing was given up for that,
        and nothing was built.
    """
    generation = _current(store, log)
    until = time.monotonic() + BUILDER_WAIT_S
    while generation is None:
        with store.building(NAME, wait=False) as held:
            if held:
                generation = _current(store, log) or _build(store, log)
        if generation is None:
            if time.monotonic() > until:
                raise ProjectionError(
                    "somebody else builds the views, and takes long", projection=NAME, store=store.url
                )
            time.sleep(BUILDER_LOOK_S)
            generation = _current(store, log)
    return StoreKeeper(log, store, generation, keeps=True)


def read_from(store: AnyStore, log: Log) -> StoreKeeper | None:
    """Read the views that others keep of a log that is open for reading; None: there are none to rely on."""
    with suppress(ProjectionError, LogError, OSError):
        generation = store.current(NAME, readonly=True)
        if generation is None:
            return None
        try:
            if generation.meta.version == VERSION and not unknown_so_far(log, generation.meta, generation.positions()):
                keeper = StoreKeeper(log, store, generation, keeps=False)
                generation = None  # it is the keeper's now
                return keeper
        finally:
            if generation is not None:
                generation.close()
    return None


def _current(store: AnyStore, log: Log) -> AnyGeneration | None:
    """Open what is current if it can be relied on. What nobody can rely on is given up.

    Raises: ProjectionError: it cannot be opened by this process, or not now; among them that it is a newer version's.
    """
    generation, why = open_current(store, NAME, log, unknown_so_far)
    if generation is not None:
        if why is None and generation.meta.version == VERSION:
            return generation
        generation.close()
        if why is None and generation.meta.version > VERSION:
            raise _Outdated(
                f"a newer version of this program keeps them, with rows of version {generation.meta.version}, and this one "
                f"writes {VERSION}; `gasoline projections rebuild {NAME}` to go back",
                projection=NAME,
                store=store.url,
            )
    if why is not None:
        _log.warning("the stored views are folded anew, from the log's start: %s", why, extra={"error": why})
        store.discard(NAME)
    return None


def _build(store: AnyStore, log: Log) -> AnyGeneration:
    """Make a generation, or go on with one that somebody has begun; current at once if nothing else is."""
    generation = store.unfinished(NAME, VERSION)
    if generation is not None and unknown_so_far(log, generation.meta, generation.positions()):
        generation.close()
        generation = None
    if generation is None:
        generation = store.create(NAME, VERSION, make_tables)
    current = store.current(NAME)
    if current is None:
        store.swap(generation, lambda _: None)
    else:
        current.close()
    return generation


class _Behind(Exception):
    """A generation does not have all that is relied on."""


class _Outdated(ProjectionError):
    """Another version of this program keeps its views there."""


class StoreKeeper:
    """Keeps the views of a namespace's partitions in a store. Made by :func:`keep_in` and :func:`read_from`.

    The rows of what is over are read by whoever asks, on the thread of the event loop: one takes some microseconds. All that
    may wait for a lock is done on a thread of its own, which alone has the connection that writes.
    """

    def __init__(self, log: Log, store: AnyStore, generation: AnyGeneration, *, keeps: bool) -> None:
        self.keeps = keeps
        """No more once another version of this program keeps its views in the store."""
        self.name = NAME
        self.url = store.url
        self._log = log
        self._store = store
        self._reading = generation
        self._former: list[AnyGeneration] = []
        """What was read before, while somebody reads page after page."""
        self._reads: list[AnyGeneration] = []
        """One for each of those."""
        self._tables = Tables(generation.db)
        self._writing: AnyGeneration | None = None
        """The same generation, for the thread that stores."""
        self._loaded: dict[int, PartitionViews] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gasoline-views")
        self._lock = asyncio.Lock()
        self._closed = False
        self._again = 0.0
        self._wait_s = RETRY_FIRST_S
        self._catching_up = generation.meta.state == "building"

    # --- reading ------------------------------------------------------------------------------------------------------

    async def load(self, index: int, before: PartitionViews | None) -> PartitionViews:
        """Return the views of a partition as the store has them (see the port). Raises: ProjectionError."""
        while self.keeps:
            meta = self._reading.meta
            try:
                # By a connection of its own: rows are asked for by the other one meanwhile, as they are then.
                views = await asyncio.to_thread(self._load_again, meta, index, before)
            except Exception:
                break  # that one is open
            if self._reading.meta.generation == meta.generation:
                self._loaded[index] = views
                return views
        return self.views(index, before)

    def views(self, index: int, before: PartitionViews | None) -> PartitionViews:
        """Return the same before this returns. Raises: ProjectionError."""
        try:
            views = self._load_from(self._reading, index, before)
        except Exception as error:
            raise self._unreadable(error) from error
        self._loaded[index] = views
        return views

    def _load_again(self, meta: Meta, index: int, before: PartitionViews | None) -> PartitionViews:
        with closing(self._store.again(meta)) as generation:
            return self._load_from(generation, index, before)

    def _load_from(self, generation: AnyGeneration, index: int, before: PartitionViews | None) -> PartitionViews:
        tables, beside = Tables(generation.db), Beside(KeptBesideOf(self.ask, index))
        # Rows and positions of one moment: another process may store in between.
        with generation.reading() as positions:
            stands = {topic: positions.get(self._feed(topic, index), START).next_offset for topic in TOPICS}
            if before is not None and any(
                one.next_offset > stands[topic] for topic, one in before.beside.feeds().items()
            ):
                beside = before.beside  # what is not stored yet need not be folded again
            views = PartitionViews(KeptPartition(self, index), beside)
            for topic, one in views.feeds().items():
                if not one.next_offset:
                    tables.load(one, index, stands[topic])
        return views

    def past(self, wanted: Filters) -> PastView:
        """Return a view with nothing folded, of the workflows that match at a time."""
        return PastView(wanted)

    def get(self, workflow_id: str) -> WorkflowRow | None:
        """Return a workflow's row as it is in the store now. Raises: ProjectionError."""
        try:
            return self._tables.workflows.get(workflow_id)
        except Exception as error:
            raise self._unreadable(error) from error

    def matching(self, index: int, wanted: Filters) -> Iterator[Summary]:
        """Yield the workflows of a partition that match, as they are in the store now, in order of creation."""
        generation = self._reading
        self._reads.append(generation)
        try:
            yield from self._tables.workflows.matching(index, wanted)
        except Exception as error:
            raise self._unreadable(error) from error
        finally:
            self._reads.remove(generation)
            self._let_go_of_former()

    def prunable(self, index: int, wanted: Prunable, after: tuple[int, str], limit: int) -> list[Summary]:
        """Return workflows of a partition that may be pruned, as they are in the store now. Raises: ProjectionError."""
        return self.ask(lambda tables: tables.workflows.prunable(index, wanted, after, limit))

    def ask(self, question: Callable[[Tables], _T]) -> _T:
        """Ask the tables as they are in the store now. Raises: ProjectionError."""
        try:
            return question(self._tables)
        except Exception as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ProjectionError:
        """Return what is raised where rows cannot be read: what is over is not in memory, so this process cannot go on.

        Damage is given up, so that whoever starts next folds the log anew.
        """
        if self.keeps and is_damage(error):
            with suppress(RuntimeError):  # it is being closed
                self._thread.submit(self._discard)
        return ProjectionError(
            f"the stored views of {self._log.url} cannot be read: {error}. Nothing of the log is lost: start the process again",
            projection=NAME,
            store=self._store.url,
        )

    def _discard(self) -> None:
        with suppress(Exception):
            self._store.discard(NAME)

    async def stands(self, index: int) -> Mapping[str, int]:
        """Return the offsets up to which a partition's views are stored, by topic, as far as that is known."""
        with suppress(Exception):
            await self._look_for_another()
        with suppress(Exception):  # also where that could not be opened just now
            positions = self._reading.positions()
            return {topic: positions.get(self._feed(topic, index), START).next_offset for topic in TOPICS}
        return {}

    async def _look_for_another(self) -> None:
        """Go on with a newer generation, if somebody has built one that has all that is relied on."""
        opening = asyncio.get_running_loop().run_in_executor(
            None, lambda: self._store.current(NAME, readonly=not self.keeps)
        )
        try:
            current = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        if current is None:
            return
        if self._closed:
            current.close()
            return
        newer = current.meta.generation > self._reading.meta.generation and current.meta.version == VERSION
        if newer and not self._behind(current.positions()):
            self._go_on_with(current)
        else:
            current.close()

    def _behind(self, positions: Mapping[Feed, Position]) -> list[int]:
        """Return the partitions of which something has left memory that is not stored at these positions.

        Views that stand below the horizon are none of them: they are of no use, and whoever asks for them gets others.
        """
        return [
            index
            for index, views in list(self._loaded.items())  # others are loaded meanwhile
            if not 0 < views.next_offset < self._log.horizon(self._feed("events", index).topic, index)
            and any(
                one.stored_to > positions.get(self._feed(topic, index), START).next_offset
                for topic, one in views.feeds().items()
            )
        ]

    def _go_on_with(self, generation: AnyGeneration) -> None:
        self._former.append(self._reading)
        self._reading, self._tables = generation, Tables(generation.db)
        self._let_go_of_former()

    def _let_go_of_former(self) -> None:
        for former in [one for one in self._former if one not in self._reads]:
            self._former.remove(former)
            former.close()

    def _feed(self, topic: str, index: int) -> Feed:
        return Feed(f"{self._log.namespace}.{topic}", index)

    # --- storing ------------------------------------------------------------------------------------------------------

    async def save(self, views: Mapping[int, PartitionViews]) -> None:
        """Store what the views of these partitions have folded since they were stored. Failures are logged: nothing is lost."""
        async with self._lock:
            if not self.keeps or time.monotonic() < self._again:
                return
            changes: dict[Feed, _Change] = {}
            try:
                for index, one in views.items():
                    for topic, feed in one.feeds().items():
                        if feed.storable_to > feed.stored_to:
                            changes[self._feed(topic, index)] = feed, feed.changes()
                if not changes:
                    return
                saved = await self._store_all({feed: pending for feed, (_, pending) in changes.items()})
            except Exception as error:  # of the database, too: whatever it is, nothing of the log is lost
                for feed, _ in changes.values():
                    feed.not_saved()
                await self._failed(error)
            except BaseException:
                for feed, _ in changes.values():
                    feed.not_saved()
                raise
            else:
                self._wait_s = RETRY_FIRST_S
                for at, (feed, _) in changes.items():
                    feed.saved(*saved[at])

    async def renew(self) -> None:
        """Build anew what is stored, if the log does not know it any more. Failures are logged, and the caller goes without.

        As whoever starts does. Who keeps these views too finds the new ones when he stores the next time.
        """
        until = time.monotonic() + BUILDER_WAIT_S
        while True:
            try:
                async with self._lock:
                    generation = await self._in_thread(self._renewed) if self.keeps else None
                    if generation is not None:
                        self._go_on_with(generation)
            except Exception as error:
                # What is being taken over just now cannot be folded yet; or somebody else builds them.
                passes = isinstance(error, _Behind | ProjectionError) and not isinstance(error, _Outdated)
                if passes and time.monotonic() < until:
                    await asyncio.sleep(BUILDER_LOOK_S)
                    continue
                _log.warning(
                    "the views could not be built anew: %r", error, exc_info=error, extra={"error": str(error)}
                )
            return

    def _renewed(self) -> AnyGeneration | None:
        """Return what takes the place of a generation that the log does not know; None: it is known after all."""
        current = _current(self._store, self._log)
        if current is not None:
            current.close()
            if current.meta.generation == self._reading.meta.generation:
                return None
        return self._successor()

    async def _store_all(self, changes: Mapping[Feed, Pending]) -> dict[Feed, _Saved]:
        positions: dict[Feed, Position] = {}
        for feed, one in changes.items():
            while one:
                one.make(ROWS_AT_ONCE)
                await asyncio.sleep(0)
            positions[feed] = Position(one.next_offset - 1, one.last_place, digest(*one.last_record))
        return await self._in_thread(lambda: self._write(changes, positions))

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        try:
            future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError:
            # The interpreter is ending, and starts nothing in threads any more.
            return work()
        return await asyncio.shield(future)

    def _write(self, changes: Mapping[Feed, Pending], positions: Mapping[Feed, Position]) -> dict[Feed, _Saved]:
        """Store it, and return up to where each feed is stored then. Raises: _Behind: the rows would leave a gap."""
        saved: dict[Feed, _Saved] = {}
        generation = self._to_write()
        with generation.writing() as write:
            tables, stored = Tables(write.db), write.positions()
            for feed, one in changes.items():
                before, after, told = stored.get(feed, START), positions[feed], None
                if one.stored_to > before.next_offset:
                    raise _Behind
                if after.offset > before.offset:  # else whoever else folds this partition was faster
                    told = tables.write(feed.partition, one)
                    write.move(feed, before, after)
                saved[feed] = max(after, before).next_offset, told
        if self._catching_up:
            self._catching_up = not self._take_place(generation)
        return saved

    def _to_write(self) -> AnyGeneration:
        meta = self._reading.meta
        if self._writing is None or self._writing.meta.generation != meta.generation:
            if self._writing is not None:
                self._writing.close()
            self._writing = None
            self._writing = self._store.again(meta)
            if isinstance(self._writing.db, sqlite3.Connection):
                self._writing.db.execute(f"PRAGMA busy_timeout = {LOCK_WAIT_MS}")
        return self._writing

    def _take_place(self, generation: AnyGeneration) -> bool:
        """Make these rows the current ones, if they have caught up with those of another version."""
        reached = generation.positions()

        def catch_up(stood: Mapping[Feed, Position]) -> None:
            if still_behind(reached, stood) is not None:
                raise _Behind

        current = self._store.current(NAME)
        stood: Mapping[Feed, Position] = {}
        if current is not None:
            with closing(current):
                if current.meta.version > VERSION:
                    raise _Outdated("a newer version of this program has built them", projection=NAME, store=self.url)
                stood = current.positions()
        with suppress(_Behind):
            catch_up(stood)  # before anybody has to wait for it
            self._store.swap(generation, catch_up)
            return True
        return False

    # --- when it cannot be stored -------------------------------------------------------------------------------------

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, Superseded | _Behind | _Outdated):
            try:
                generation = await self._in_thread(self._successor)
            except _Outdated:
                self.keeps = False
                _log.warning(
                    "another version of this program keeps the stored views now: what ends from here on stays in this "
                    "process's memory until it ends (%s)",
                    error,
                    extra={"error": str(error)},
                )
                return
            except Exception as another:
                error = another
            else:
                self._go_on_with(generation)
                return
        if self._wait_s == RETRY_FIRST_S:
            _log.warning(
                "the views could not be stored; trying again: %r", error, exc_info=error, extra={"error": str(error)}
            )
        self._again = time.monotonic() + self._wait_s
        self._wait_s = min(2 * self._wait_s, RETRY_MAX_S)

    def _successor(self) -> AnyGeneration:
        """Open what took this generation's place, once it has all that is relied on here; what it lacks is folded into it."""
        generation = self._store.current(NAME)
        if generation is not None and generation.meta.version != VERSION:
            generation.close()
            raise _Outdated("another version of this program has built them", projection=NAME, store=self.url)
        if generation is None:
            with self._store.building(NAME, wait=False) as held:
                if not held:
                    raise ProjectionError("somebody else builds the views", projection=NAME, store=self._store.url)
                generation = _current(self._store, self._log) or _build(self._store, self._log)
        try:
            if behind := self._behind(generation.positions()):
                fold_share(Share(self._log.url, self._log.namespace, None, generation.meta, Workflows(), behind))
                if self._behind(generation.positions()):
                    raise _Behind
        except BaseException:
            generation.close()
            raise
        return generation

    async def close(self) -> None:
        """Let go of the store."""
        self._closed = True
        async with self._lock:
            await self._in_thread(self._close_writing)
            self._thread.shutdown()
            for generation in (*self._former, self._reading):
                generation.close()
            self._store.close()

    def _close_writing(self) -> None:
        if self._writing is not None:
            self._writing.close()
            self._writing = None


def _close_opened(opening: asyncio.Future[AnyGeneration | None]) -> None:
    """Let go of what was opened for somebody who is gone."""
    if not opening.cancelled() and opening.exception() is None and (opened := opening.result()) is not None:
        opened.close()


_Change = tuple[KeptFeed, Pending]
"""A fold, and what of it is to be stored."""
_Saved = tuple[int, Any]
"""Up to where a feed is stored, and what it is told of that."""
