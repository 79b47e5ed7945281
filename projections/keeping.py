"""Keeps the engine's views in a store: whoever starts begins where the store stands, and not with the log's first event.

The store may lag behind, never lie: rows, counts and position change in one transaction, and whoever folds on from there comes
to the same views. What cannot be stored stays in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from gasoline_es.core.filters import Filters
from gasoline_es.core.state import Summary
from gasoline_es.core.topics import Topics
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError, ProjectionError, Superseded
from gasoline_es.log.port import Log
from projections.known import unknown
from projections.stores.port import START, AnyGeneration, AnyStore, Feed, Position, digest
from projections.views import Changes, PartitionViews
from projections.workflow_rows import WorkflowRow
from projections.workflow_table import WorkflowTable, make_tables
from projections.workflows import NAME, VERSION

ROWS_AT_ONCE: Final = 100
"""So many rows are made before others have a turn."""

_log = EngineLog(__name__)


def keep_in(store: AnyStore, log: Log) -> StoreKeeper:
    """Keep the views of a log's namespace in a store.

    What is there is relied on if it is of this version of the rows, and if the log knows every position of it. Another
    version's stays current, for those who read it, until the new rows have caught up with it.

    Raises: ProjectionError, LogError.
    """
    generation = _current(store, log)
    if generation is None:
        with store.building(NAME):
            generation = _current(store, log) or _build(store, log)
    return StoreKeeper(log, store, generation, store.again(generation.meta))


def read_from(store: AnyStore, log: Log) -> StoreKeeper | None:
    """Read the views that others keep of a log that is open for reading; None: there are none to rely on."""
    with suppress(ProjectionError, LogError):  # a log that is damaged is read without
        generation = store.current(NAME, readonly=True)
        if generation is None:
            return None
        if generation.meta.version == VERSION and _unknown(log, generation) is None:
            return StoreKeeper(log, store, generation, None)
        generation.close()
    return None


def _current(store: AnyStore, log: Log) -> AnyGeneration | None:
    """Open what is current if it can be relied on. What cannot is given up, but for another version's."""
    generation: AnyGeneration | None = None
    try:
        generation = store.current(NAME)
        why = None if generation is None else _unknown(log, generation)
    except ProjectionError as error:
        why = str(error)
    if why is None and generation is not None and generation.meta.version == VERSION:
        return generation
    if generation is not None:
        generation.close()
    if why is not None:
        _log.warning("the stored views are folded anew, from the log's start: %s", why, extra={"error": why})
        store.discard(NAME)
    return None


def _unknown(log: Log, generation: AnyGeneration) -> str | None:
    """Return why what is stored is not of this log as it is now; None if it is, as far as can be known now."""
    positions = {feed: at for feed, at in generation.positions().items() if not log.undecided(*feed)}
    return unknown(log, generation.meta, positions)


def _build(store: AnyStore, log: Log) -> AnyGeneration:
    """Make a generation, or go on with one that somebody has begun; current at once if nothing else is."""
    generation = store.unfinished(NAME, VERSION)
    if generation is not None and _unknown(log, generation) is not None:
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
    """Not everything is folded that was in the generation before."""


class StoreKeeper:
    """Keeps the views of a namespace's partitions in a store. Made by :func:`keep_in`.

    The rows of what is over are read by whoever asks, on the thread of the event loop: one takes some microseconds.
    """

    def __init__(self, log: Log, store: AnyStore, reading: AnyGeneration, writing: AnyGeneration | None) -> None:
        self.keeps = writing is not None
        self._events = Topics(log.namespace).events
        self._log = log
        self._store = store
        self._reading = reading
        """For this thread."""
        self._writing = writing
        """For the one that stores."""
        self._former: list[AnyGeneration] = []
        self._table = WorkflowTable(reading.db)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gasoline-views")
        self._lock = asyncio.Lock()
        self._outdated = False
        """Whether a newer version of this program keeps its views in the store: then no more rows of this one go there."""
        self._failing = False
        self._catching_up = reading.meta.state == "building"

    # --- reading ------------------------------------------------------------------------------------------------------

    def views(self, index: int, before: PartitionViews | None) -> PartitionViews:
        """Return the views of a partition as the store has them (see the port). Raises: ProjectionError."""
        views = PartitionViews(_KeptPartition(self, index), before)
        # Rows and position of one moment: another process may store in between.
        with self._reading.reading() as positions:
            position = positions.get(Feed(self._events, index), START)
            views.load(position.next_offset, self._table.counts(index), self._table.going_on(index))
        return views

    def get(self, workflow_id: str) -> WorkflowRow | None:
        """Return a workflow's row as it is in the store now."""
        return self._table.get(workflow_id)

    def matching(self, index: int, wanted: Filters) -> Iterator[Summary]:
        """Yield the workflows of a partition that match, as they are in the store now, in order of creation."""
        return self._table.matching(index, wanted)

    def fresh(self) -> PartitionViews:
        """Return views with nothing folded, which are not kept."""
        return PartitionViews()

    def stands(self, index: int) -> int:
        """Return the offset up to which a partition's views are stored."""
        current = self._store.current(NAME, readonly=not self.keeps)
        if current is not None:
            if current.meta.generation > self._reading.meta.generation and current.meta.version == VERSION:
                self._go_on_with(current)  # somebody has built the views anew
            else:
                current.close()
        return self._reading.positions().get(Feed(self._events, index), START).next_offset

    # --- storing ------------------------------------------------------------------------------------------------------

    async def save(self, views: Mapping[int, PartitionViews]) -> None:
        """Store what the views of these partitions have folded since they were stored. Failures are logged: nothing is lost."""
        async with self._lock:
            changes: dict[int, Changes] = {}
            try:
                for index, one in views.items():
                    if one.next_offset > one.stored_to and self.keeps and not self._outdated:
                        changes[index] = one.changes()
                if not changes:
                    return
                stands = await self._store_all(changes)
            except Exception as error:  # of the database, too: whatever it is, nothing of the log is lost
                for index in changes:
                    views[index].not_saved()
                self._failed(error)
            except BaseException:
                for index in changes:
                    views[index].not_saved()
                raise
            else:
                self._failing = False
                for index in changes:
                    views[index].saved(stands[index])

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Superseded):
            self._reopen(error)
        elif not self._failing:
            _log.warning(
                "the views could not be stored; trying again: %r", error, exc_info=error, extra={"error": str(error)}
            )
        self._failing = True

    def _reopen(self, error: Superseded) -> None:
        """Go on with the generation that took this one's place: it has all that this one had."""
        current = self._store.current(NAME)
        if current is not None and current.meta.version == VERSION:
            self._go_on_with(current)
            return
        if current is not None:
            current.close()
        self._outdated = True
        _log.warning(
            "another version of this program keeps the stored views now: what ends from here on stays in this process's "
            "memory until it ends (%s)",
            error,
            extra={"error": str(error)},
        )

    def _go_on_with(self, generation: AnyGeneration) -> None:
        self._former.append(self._reading)  # somebody may be reading page after page
        self._reading = generation
        if self._writing is not None:
            self._writing.close()
            self._writing = self._store.again(generation.meta)
        self._table = WorkflowTable(generation.db)

    async def _store_all(self, changes: Mapping[int, Changes]) -> dict[int, int]:
        positions: dict[int, Position] = {}
        for index, one in changes.items():
            while one:
                one.make(ROWS_AT_ONCE)
                await asyncio.sleep(0)
            positions[index] = Position(one.next_offset - 1, one.last_place, digest(*one.last_record))
        try:
            storing = asyncio.get_running_loop().run_in_executor(self._thread, self._write, changes, positions)
        except RuntimeError:
            # The interpreter is ending, and starts nothing in threads any more.
            return self._write(changes, positions)
        return await asyncio.shield(storing)

    def _write(self, changes: Mapping[int, Changes], positions: Mapping[int, Position]) -> dict[int, int]:
        """Store it, and return up to where each partition is stored then."""
        stands: dict[int, int] = {}
        assert self._writing is not None
        with self._writing.writing() as write:
            table, stored = WorkflowTable(write.db), write.positions()
            for index, one in changes.items():
                feed, after = Feed(self._events, index), positions[index]
                before = stored.get(feed, START)
                if after.offset > before.offset:  # else whoever else folds this partition was faster
                    table.write(index, one.rows, one.counts)
                    write.move(feed, before, after)
                stands[index] = max(after, before).next_offset
        if self._catching_up:
            self._catching_up = not self._take_place(self._writing)
        return stands

    def _take_place(self, generation: AnyGeneration) -> bool:
        """Make these rows the current ones, if they have caught up with those of another version."""
        reached = generation.positions()

        def catch_up(stood: Mapping[Feed, Position]) -> None:
            if any(reached.get(feed, START).offset < position.offset for feed, position in stood.items()):
                raise _Behind

        current = self._store.current(NAME)
        if current is not None:
            stood = current.positions()
            current.close()
            with suppress(_Behind):
                catch_up(stood)  # before anybody has to wait for it
                self._store.swap(generation, catch_up)
                return True
            return False
        self._store.swap(generation, catch_up)
        return True

    async def close(self) -> None:
        """Let go of the store."""
        async with self._lock:
            self._thread.shutdown()
            for generation in (*self._former, self._reading, self._writing):
                if generation is not None:
                    generation.close()
            self._store.close()


class _KeptPartition:
    """What the store of a keeper holds of one partition."""

    def __init__(self, keeper: StoreKeeper, index: int) -> None:
        self._keeper = keeper
        self._index = index

    def get(self, workflow_id: str) -> WorkflowRow | None:
        return self._keeper.get(workflow_id)

    def matching(self, wanted: Filters) -> Iterator[Summary]:
        return self._keeper.matching(self._index, wanted)
