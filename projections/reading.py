"""Reading a projection from code: as of now, or not before it has come somewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Protocol

from gasoline_es.core.ids import check_workflow_id, partition_of
from gasoline_es.errors import ProjectionNotBuilt
from gasoline_es.log.ends import decided_end
from gasoline_es.log.port import Log
from projections.definition import Projection
from projections.stores.port import START, AnyStore, Feed, Position, Snapshot, nothing

_LOOK_FIRST_S: Final = 0.005
_LOOK_MAX_S: Final = 0.2


class HasId(Protocol):
    """A workflow's handle."""

    id: str


class ProjectionView:
    """The tables of a projection, to read. Made by ``gasoline.projection(…)``."""

    def __init__(
        self, log: Log, store: AnyStore, projection: Projection, wake: Callable[[str], None] = nothing
    ) -> None:
        """``wake``: called with the projection's name when somebody waits for it."""
        self._log: Final = log
        self._store: Final = store
        self._projection: Final = projection
        self._wake: Final = wake

    def snapshot(self) -> Snapshot[Any]:
        """Open the tables as of now: ``.db`` to read, ``.positions`` and ``.meta`` to know what is in them. Close it.

        Raises: ProjectionNotBuilt: nobody has built it yet, or it is being built and there is nothing older.
        """
        return self._store.snapshot(self._projection.name)

    @contextmanager
    def read(self) -> Generator[Any]:
        """Give a connection that shows the tables as of one moment, for as long as the block lasts.

        A generation is seen whole: the old one or the new one, however long the block. Raises: as :meth:`snapshot`.
        """
        with self.snapshot() as opened:
            yield opened.db

    async def wait_for(
        self, *targets: HasId | str | Mapping[Feed, Position], timeout: float | timedelta | None = None
    ) -> None:
        """Return once the tables hold what is durable now of these workflows (handles, or ids); of all, if none is given.

        A target may also be positions, such as another snapshot's.

        Raises: ValueError: positions of what this projection does not fold. WorkflowNotFound: what cannot be an id; of one
            that nobody has nothing is waited for but what its partition holds. TimeoutError: not within ``timeout`` seconds;
            it says how far they are. NoOwner: a partition is taken over, and whoever does that does not come to it; until
            then nobody knows what is durable there.
        """
        limit_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        wait_s = _LOOK_FIRST_S
        loop = asyncio.get_running_loop()
        until = None if limit_s is None else loop.time() + limit_s
        try:
            async with asyncio.timeout_at(until):
                wanted = await self._wanted(targets)
        except TimeoutError:
            raise TimeoutError(
                f"projection {self._projection.name!r}: in {limit_s:g} s it did not show what is durable: a partition is being "
                f"taken over"
            ) from None
        while True:
            stands = await asyncio.to_thread(self._stands)
            if stands is not None and not _missing(stands, wanted):
                return
            self._wake(self._projection.name)
            if until is not None and loop.time() >= until:
                raise TimeoutError(self._told(limit_s, stands, wanted))
            await asyncio.sleep(wait_s if until is None else max(min(wait_s, until - loop.time()), 0))
            wait_s = min(wait_s * 2, _LOOK_MAX_S)

    async def _wanted(self, targets: tuple[HasId | str | Mapping[Feed, Position], ...]) -> dict[Feed, int]:
        """Return up to which offset each feed has to be folded; those that are empty need nothing."""
        count = self._log.partition_count
        wanted: dict[Feed, int] = {}
        partitions: set[int] = set() if targets else set(range(count))
        topics = self._projection.topics_of(self._log.namespace)
        for one in targets:
            if isinstance(one, Mapping):
                for feed, position in one.items():
                    self._require_folded(feed, topics)
                    wanted[feed] = max(wanted.get(feed, START.offset), position.offset)
            else:
                partitions.add(partition_of(check_workflow_id(one if isinstance(one, str) else one.id), count))
        feeds = [Feed(topic, partition) for topic in topics for partition in sorted(partitions)]
        if feeds:
            await self._log.refresh(*((feed.topic, feed.partition) for feed in feeds))
        for feed in feeds:
            end = await decided_end(self._log, feed.topic, feed.partition, current=True)
            wanted[feed] = max(wanted.get(feed, START.offset), end - 1)
        return {feed: offset for feed, offset in wanted.items() if offset >= 0}

    def _require_folded(self, feed: Feed, topics: Collection[str]) -> None:
        """Refuse a position that is never reached. Raises: ValueError."""
        if feed.topic not in topics or not 0 <= feed.partition < self._log.partition_count:
            raise ValueError(
                f"projection {self._projection.name!r} does not fold partition {feed.partition} of topic {feed.topic!r}, so "
                f"it never comes to a position there: it folds {', '.join(topics)}, {self._log.partition_count} partitions each"
            )

    def _stands(self) -> Mapping[Feed, Position] | None:
        try:
            with self.snapshot() as opened:
                return opened.positions
        except ProjectionNotBuilt:
            return None

    def _told(self, limit_s: float | None, stands: Mapping[Feed, Position] | None, targets: dict[Feed, int]) -> str:
        name = self._projection.name
        said = f"projection {name!r} did not come there in {limit_s:g} s: "
        if stands is None:
            stuck = self._stuck(())
            return said + ("it is not built yet" if stuck is None else f"it is not built yet, for {stuck}")
        feed = _missing(stands, targets)[0]
        at, to = stands.get(feed, START).offset, targets[feed]
        stuck = self._stuck(_missing(stands, targets))
        if stuck is not None:
            return f"{said}{stuck}"
        return (
            f"{said}it is at offset {at} of {feed.topic!r}, partition {feed.partition}, and that is {to}. Somebody has to run "
            f"it: a worker with projections=[…], or `gasoline projections run`; `gasoline projections status` shows how it does"
        )

    def _stuck(self, missing: Collection[Feed]) -> str | None:
        """Return what stands in the way of these feeds, if that is known: an event, or why nobody goes on."""
        name = self._projection.name
        with suppress(Exception):  # it is told besides
            current = next((info for info in self._store.generations(name) if info.current), None)
            for feed in missing:
                if current is not None and (stop := current.stops.get(feed)) is not None:
                    return (
                        f"it stands before event {stop.event} at offset {stop.offset} of {feed.topic!r}, partition "
                        f"{feed.partition}, which it could not apply: {stop.error}. Mend its code: it is tried again after a "
                        f"while, and by the next version"
                    )
            if (failure := self._store.failure(name)) is not None:
                return f"it cannot be kept up: {failure.error}"
        return None


def _missing(stands: Mapping[Feed, Position], targets: Mapping[Feed, int]) -> list[Feed]:
    return [feed for feed, target in targets.items() if stands.get(feed, START).offset < target]
