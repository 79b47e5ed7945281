"""The views of a log's partitions in one process: those that are owned stand as decided, others are read when asked for.

They are loaded from what is stored, folded up to where the log ends, and stored again now and then. Whoever asks gets what is
durable as of the call, wherever the partition's owner is.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Container, Coroutine, Iterable, Iterator, Mapping, Set
from itertools import count, islice
from typing import Any, Protocol, TypeAlias

from gasoline_es.clock import Clock
from gasoline_es.core.filters import Filters
from gasoline_es.core.ports import (
    BesideView,
    Foldable,
    OnTagged,
    ParkedView,
    ScheduleView,
    StoredView,
    ViewKeeper,
    Views,
)
from gasoline_es.core.state import Summary
from gasoline_es.core.topics import Topics
from gasoline_es.errors import HorizonMoved, LogCorrupt, LogError
from gasoline_es.log.ends import decided_end
from gasoline_es.log.port import Log, Ownership, horizon_moved
from gasoline_es.runtime.partition import Partition

FOLD_CHUNK = 500
"""So many events are folded before the event loop gets a turn."""
FOLD_CHUNKS = 20
"""So many times before somebody looks whether too much is in memory."""

SAVE_AFTER_S = 1.0
"""So long after an event became durable its workflow is stored as it stands then: a start folds what came since."""
SAVE_AGAIN_S = 1.0
SAVES_REST = 10
"""After storing, nothing is stored for so many times as long as it took: a large row that keeps changing is written seldom."""
SAVE_REST_MAX_S = 10.0
UNSAVED_MAX = 5_000
"""So many workflows are in this process's memory at most because they are not stored, while views are folded."""
LET_GO_AGAIN_S = 1.0
"""So long after others had not stored enough, one who reads looks again whether they have."""
LOADED_ANEW_MAX = 3
"""So many times views are loaded for one question because the log was cleaned while they were folded."""
LOAD_RATHER_THAN_FOLD = 10_000
"""Views that others have stored so many events further are loaded anew."""

Current: TypeAlias = Set[int]
"""Partitions that were asked about: what was there when the question was put is at hand."""
NONE: Current = frozenset()


class Home(Protocol):
    """Who owns partitions in this process."""

    log: Log
    clock: Clock
    topics: Topics
    partitions: dict[int, Partition]
    failure: LogError | None
    loop: asyncio.AbstractEventLoop

    @property
    def taking(self) -> Iterable[int]:
        """The partitions that are being taken."""
        ...

    def index_of(self, workflow_id: str) -> int:
        """Return the partition of a workflow."""
        ...

    def check(self) -> None:
        """Raise what made the log unusable for this process, if anything did."""

    async def given_up(self, index: int) -> None:
        """Return once whoever gives a partition up, if anybody does, has done so."""

    def reloaded(self) -> None:
        """Views were loaded anew: what they passed without folding it has told nobody of tags."""

    def spawn(self, coroutine: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Start a task of the engine."""
        ...


def _first(views: Views, name: str, tags: Mapping[str, str], passed: Container[str]) -> Summary | None:
    for workflow_id in views.find(name, tags):
        if workflow_id not in passed and (summary := views.summary(workflow_id)) is not None:
            return summary
    return None


class Viewing:
    """Loads, folds and stores views, and answers questions from them. One for each :class:`Home`."""

    def __init__(self, home: Home, keeper: ViewKeeper[Any]) -> None:
        self._home = home
        self._log = home.log
        self._clock = home.clock
        self._topics = home.topics
        self._keeper = keeper
        self.folding = [asyncio.Lock() for _ in range(home.log.partition_count)]
        """Held by whoever folds events of a partition that is not owned, or puts other views in the place of its views. A
        take-over holds it itself until the partition is owned: it goes on where its caller is cancelled."""
        self._views: dict[int, Views] = {}
        """Those that were needed so far."""
        self._on_tagged: OnTagged | None = None
        self._saving: asyncio.TimerHandle | None = None
        self._save_rest_s = 0.0
        self._let_go_again = 0.0

    def behind(self) -> Iterator[tuple[int, int]]:
        """Yield how many durable events are not folded, for each partition that is owned or being taken."""
        for index in sorted({*self._home.partitions, *self._home.taking}):
            views = self._views.get(index)
            if views is not None:  # else it is being loaded, and nobody knows yet
                yield index, max(self._log.end(self._topics.events, index) - views.next_offset, 0)

    def stored_behind(self) -> dict[str, int]:
        """Return by how many durable records of owned partitions what is stored of the views is behind, by its name."""
        if not self._keeper.keeps or not self._home.partitions:
            return {}
        return {
            self._keeper.name: sum(
                max(self._log.end(f"{self._log.namespace}.{topic}", index) - offset, 0)
                for index in self._home.partitions
                for topic, offset in self._views[index].stored_offsets().items()
            )
        }

    async def asked(self, *, beside: bool = False, others_only: bool = False, under_way: bool = True) -> Current:
        """Ask for what there is in all partitions as of now, at once; those that were asked about need not be asked again.

        Where a network lies between, one question takes tens of milliseconds, whatever it is about: who looks into every
        partition asks here first, and hands what this returns to each look. ``beside``: also for what stands beside workflows.
        ``others_only``: not whether those that seem to be owned are. ``under_way`` False: what appends that are under way bring
        need not be there. Raises: as :meth:`views`; of damage each look tells.
        """
        every = range(self._log.partition_count)
        if not self._log.remote:
            if under_way and not others_only:
                await self._know_durable(*every)
            return {*every}  # nobody is to be asked
        owned = [index for index in every if index in self._home.partitions]
        others = [index for index in every if index not in self._home.partitions]
        topics = self._topics
        wanted = [topics.events, *((topics.schedules, topics.parked, topics.stored) if beside else ())]
        asking = [] if others_only else [self._know_durable(*owned, under_way=under_way)]
        if others:
            asking.append(self._log.refresh(*((topic, index) for topic in wanted for index in others)))
        try:
            await asyncio.gather(*asking)
        except LogCorrupt:
            return NONE
        except LogError:
            self._home.check()
            raise
        return {*others, *(index for index in owned if not others_only and index in self._home.partitions)}

    async def views(self, index: int, current: Current = NONE) -> Views:
        """Return a partition's views as of now: those of an owned one are, others are read up to the log's end.

        ``current``: what :meth:`asked` has returned to this caller; of those partitions, as of then.

        Raises: LogCorrupt: damage may have cost the partition events. :meth:`readable` has what came before it. NoOwner:
            whoever takes the partition over does not come to it.
        """
        if index not in current:
            await self._know_durable(index)
        if index not in self._home.partitions:
            async with self.folding[index]:
                if index not in self._home.partitions:
                    try:
                        await self._loaded_and_folded(index, current)
                    except LogError:
                        self._home.check()  # a log that failed has been closed: it is told why, not that
                        raise
        return self._views[index]

    async def _loaded_and_folded(self, index: int, current: Current) -> None:
        """Let a partition's views be as of now. By who holds the lock of folding it."""
        for tries in count(1):
            try:
                await self._loaded(index)
                end = await self._decided_end(index, self._topics.events, current)
                await self._fold(index, end if self._log.damage is None else None)
            except HorizonMoved:  # the log was cleaned meanwhile
                if tries == LOADED_ANEW_MAX:
                    raise
            else:
                return

    async def _loaded(self, index: int) -> Views:
        """Return the views of a partition, with what is folded so far. By who holds the lock of folding it.

        What is stored may miss what took back some of it, where nobody has owned the partition since: it is built anew then.

        Raises: HorizonMoved: that cannot be done here, or the log is cleaned faster than it can be.
        """
        known = self._views.get(index)
        if known is not None and not self._behind_horizon(index, known):
            return known
        self._views.pop(index, None)
        views = await self._load(index, None)
        if self._behind_horizon(index, views):
            self._views.pop(index, None)
            await self._keeper.renew()
            views = await self._load(index, None)
        if self._behind_horizon(index, views):
            self._views.pop(index, None)
            topic = self._topics.events
            raise horizon_moved(topic, index, views.next_offset, self._log.horizon(topic, index))
        if known is not None:
            self._home.reloaded()
        return views

    def _behind_horizon(self, index: int, views: Views) -> bool:
        """Whether what took back some of what they show may be gone from the log."""
        return 0 < views.next_offset < self._log.horizon(self._topics.events, index)

    async def _load(self, index: int, before: Views | None) -> Views:
        views: Views = await self._keeper.load(index, before)
        views.on_tagged = self._on_tagged
        self._views[index] = views
        if before is not None:
            self._home.reloaded()
        return views

    async def taken_over(self, ownership: Ownership) -> Views:
        """Return the views of a partition that is being taken, as of where its topics end. By who holds :attr:`folding`."""
        index = ownership.partition
        views = await self._newest_views(index)
        end = ownership.ends.get(self._topics.events, 0)
        await self._fold(index, end)
        while views.drifted:  # the former owner has stored what was only folded now
            views = await self._load(index, views)
            await self._fold(index, end)
        for view, topic in [*self._beside(index), (views.registry, self._topics.registry)]:
            await self._fold_into(view, topic, index, ownership.ends.get(topic, 0))
        return views

    async def _newest_views(self, index: int) -> Views:
        """Return the views of a partition, loaded anew if that is less work than to fold, or if they are not exact."""
        known = self._views.get(index)
        views = await self._loaded(index)
        if views is not known:
            return views
        stands = await self._keeper.stands(index)
        ahead = stands.get("events", 0) - views.next_offset
        for view, topic in self._beside(index):
            ahead = max(ahead, stands.get(topic.rpartition(".")[2], 0) - view.next_offset)
        return await self._load(index, views) if views.drifted or ahead > LOAD_RATHER_THAN_FOLD else views

    async def _let_go_of_stored(self) -> None:
        """Let workflows leave memory that are over, and that others have stored; if that does not help, not again at once."""
        if self._home.loop.time() < self._let_go_again:
            return
        for index, views in list(self._views.items()):
            if views.unsaved and index not in self._home.partitions:
                views.saved_elsewhere((await self._keeper.stands(index)).get("events", 0))
        if self._too_many_unsaved():
            self._let_go_again = self._home.loop.time() + LET_GO_AGAIN_S

    def _too_many_unsaved(self) -> bool:
        return sum(views.unsaved for views in self._views.values()) >= UNSAVED_MAX

    async def _decided_end(self, index: int, topic: str, current: Current) -> int:
        return await decided_end(self._log, topic, index, self._clock.monotonic, current=index in current)

    async def schedules(self, index: int, current: Current = NONE) -> ScheduleView:
        """Return a partition's schedules as of now, by what is durable. Raises: as :meth:`views`.

        ``current``: as there, of an :meth:`asked` with ``beside``.
        """
        return (await self._views_and_beside(index, current)).schedules

    async def parked(self, index: int) -> ParkedView:
        """Return a partition's parked signals as of now, by what is durable. Raises: as :meth:`views`."""
        return (await self._views_and_beside(index)).parked

    async def stored(self, index: int) -> StoredView:
        """Return a partition's sequences as of now, by what is durable. Raises: as :meth:`views`."""
        return (await self._views_and_beside(index)).stored

    async def _know_durable(self, *indexes: int, under_way: bool = True) -> None:
        """See to it that of these partitions, the views of those that are owned have what was durable when this was called.

        What is under way may be: whoever waits for it elsewhere can have read it from the log before it is told here. Where a
        network lies between, another may have a partition that seems to be owned, and be writing there: who stood still for
        longer than others wait is not told. On return every one that is owned was ours after this call began. No turn of the
        event loop goes by where nothing is to be found out: a thousand looks come at once. ``under_way``: see :meth:`asked`.
        """
        owned = [partition for index in indexes if (partition := self._home.partitions.get(index)) is not None]
        if self._log.remote and owned:
            await self._log.refresh()  # who owns what, as of now
        unknown = [
            partition for partition in owned if (under_way and partition.appending) or not self._is_ours(partition)
        ]
        if unknown:
            await asyncio.gather(*map(self._know_durable_of, unknown))

    def _is_ours(self, partition: Partition) -> bool:
        """Whether a partition is owned, as far as the log was read."""
        if not self._log.remote:
            return True  # who owns it has let everybody know by a lock of the kernel's, or lives in this process
        owner = self._log.owner(partition.index)
        return owner is not None and (owner.incarnation, owner.epoch) == (self._log.incarnation, partition.epoch)

    async def _know_durable_of(self, partition: Partition) -> None:
        told: asyncio.Future[LogError | None] = self._home.loop.create_future()

        def done(error: LogError | None) -> None:
            if not told.done():
                told.set_result(error)

        ours = self._is_ours(partition)
        if not ours:
            partition.when_durable(done)  # an append, also of nothing, finds out
        elif not partition.when_settled(done):
            return
        error = await told
        if not partition.lost:
            if error is not None and not ours:
                raise error
            return
        await self._home.given_up(partition.index)
        self._home.check()

    def stored_now(self, index: int) -> StoredView | None:
        """The same without a wait, where this process owns the partition; None: there is something to wait for."""
        partition = self._home.partitions.get(index)
        if partition is None or partition.appending or self._home.failure is not None or self._log.remote:
            return None
        return self._views[index].stored

    async def _views_and_beside(self, index: int, current: Current = NONE) -> Views:
        _ = await self.views(index, current)
        if index not in self._home.partitions:
            async with self.folding[index]:
                if index not in self._home.partitions:
                    if index not in current:
                        await self._log.refresh(*((topic, index) for _, topic in self._beside(index)))
                    for view, topic in self._beside(index):
                        await self._fold_into(view, topic, index, await self._decided_end(index, topic, {index}))
        return self._views[index]

    def _beside(self, index: int) -> list[tuple[BesideView, str]]:
        """Return the views of what stands beside workflows, each with its topic."""
        views = self._views[index]
        topics = self._topics
        return [(views.schedules, topics.schedules), (views.parked, topics.parked), (views.stored, topics.stored)]

    async def look_up(self, workflow_id: str) -> Summary | None:
        """Return where a workflow stands now: for an owned partition with what is decided and not durable yet."""
        index = self._home.index_of(workflow_id)
        views = await self.views(index)
        partition = self._home.partitions.get(index)
        live = None if partition is None else partition.lives.get(workflow_id)
        if live is None:
            return views.summary(workflow_id)
        return None if live.state.summary.pruned == "all" else live.state.summary

    async def find(self, name: str, tags: Mapping[str, str], passed: Collection[str] = ()) -> str | None:
        """Return the oldest incomplete workflow of this name with these tags, over all partitions, not among ``passed``."""
        found = await self.first(name, tags, passed)
        return None if found is None else found.id

    async def first(self, name: str, tags: Mapping[str, str], passed: Collection[str] = ()) -> Summary | None:
        """The same, with where it stands.

        Of what is under way it waits for no more than what may change the answer: who has to look before it decides, and so
        one after the other, would else decide one thing in each append.
        """
        best: Summary | None = None
        current = await self.asked(under_way=False)
        for index in range(self._log.partition_count):
            found = _first(await self.views(index, current), name, tags, passed)
            partition = self._home.partitions.get(index)
            if partition is not None and partition.may_find_another(found, name, tags, passed):
                await self._know_durable_of(partition)
                still = current if index in self._home.partitions else NONE
                found = _first(await self.views(index, still), name, tags, passed)
            if found is not None and (best is None or (found.created_us, found.id) < (best.created_us, best.id)):
                best = found
        return best

    async def readable(self, index: int, current: Current = NONE) -> tuple[Views, LogCorrupt | None]:
        """Return a partition's views as far as they can be read, and the damage that ends them."""
        try:
            return await self.views(index, current), None
        except LogCorrupt as damage:
            async with self.folding[index]:
                return await self._loaded(index), damage

    async def counted(self, index: int, current: Current = NONE) -> Views:
        """Return a partition's views as of now, whose counts are exact."""
        views = await self.views(index, current)
        while views.drifted and index not in self._home.partitions:
            async with self.folding[index]:
                if self._views[index] is views and index not in self._home.partitions:
                    await self._load(index, views)
            views = await self.views(index, current)
        return views

    async def matching_as_of(
        self, index: int, moment_us: int, wanted: Filters, current: Current = NONE
    ) -> Iterator[Summary]:
        """Return a partition's workflows that matched at a time: by what came before the first event that is younger.

        The log is folded from its start. Raises: as :meth:`views`.
        """
        if index not in current:
            await self._know_durable(index)
        end = await self._decided_end(index, self._topics.events, current)
        past = self._keeper.past(wanted)
        records = self._log.read(self._topics.events, index, 0, end)
        while past.fold_until(islice(records, FOLD_CHUNK), moment_us):  # noqa: ASYNC110  # nothing is waited for
            await asyncio.sleep(0)
        return past.matching()

    async def _fold(self, index: int, stop: int | None) -> None:
        """Fold a partition's events up to an offset (None: the end, or damage)."""
        views, more = self._views[index], True
        topic, start = self._topics.events, views.next_offset
        horizon = self._log.horizon(topic, index)
        if self._behind_horizon(index, views):  # since they were loaded
            self._views.pop(index, None)
            raise horizon_moved(topic, index, start, horizon)
        while more:
            more = await self._fold_some(views, topic, index, stop)
            if start < (now := self._log.horizon(topic, index)) != horizon:
                self._views.pop(index, None)  # they may show what was taken back: the next look begins anew
                raise horizon_moved(topic, index, start, now)
            if self._too_many_unsaved():  # a long log would not fit into memory
                if self._keeper.keeps and not self._owned_elsewhere(index):
                    await self._keeper.save({index: views})
                else:
                    await self._let_go_of_stored()

    def _owned_elsewhere(self, index: int) -> bool:
        """Whether another process owns a partition, and stores its views where this one does."""
        owner = self._log.owner(index)
        if owner is None or not owner.alive or owner.mine:
            return False
        return not self._log.remote or owner.host == socket.gethostname()

    async def _fold_into(self, view: Foldable, topic: str, index: int, stop: int | None) -> None:
        """Let a view fold what it has not seen of a topic. What would not fit into memory is stored on the way."""
        more = True
        while more:
            more = await self._fold_some(view, topic, index, stop)
            if view.unsaved >= UNSAVED_MAX:
                if self._keeper.keeps and not self._owned_elsewhere(index):
                    await self._keeper.save({index: self._views[index]})
                else:
                    stands = await self._keeper.stands(index)
                    view.saved_elsewhere(stands.get(topic.rpartition(".")[2], 0))

    async def _fold_some(self, view: Foldable, topic: str, index: int, stop: int | None) -> bool:
        """Let a view fold some of what it has not seen, letting others have a turn now and then; whether there is more."""
        if stop is not None and view.next_offset >= stop:
            return False
        records = self._log.read(topic, index, view.next_offset, stop)
        for _ in range(FOLD_CHUNKS):
            before = view.next_offset
            view.fold(islice(records, FOLD_CHUNK))  # at damage, everything before it is folded
            if view.next_offset == before:
                return False
            await asyncio.sleep(0)
        return True

    def on_tagged(self, callback: OnTagged | None) -> None:
        """Call ``callback`` for each durable event that gives a workflow tags, when it is folded here; None: nobody."""
        self._on_tagged = callback
        for views in self._views.values():
            views.on_tagged = callback

    # --- storing ------------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Store soon what has become durable: a start folds what came since."""
        if self._saving is None and self._keeper.keeps:
            self._saving = self._home.loop.call_later(max(SAVE_AFTER_S, self._save_rest_s), self._save_soon)

    def stop(self) -> None:
        """Store nothing more but at the end."""
        if self._saving is not None:
            self._saving.cancel()

    async def close(self, owned: Iterable[int]) -> None:
        """Store those of the partitions that were owned to the end: the next start has nothing to fold. The last call."""
        await self._keeper.save({index: self._views[index] for index in owned})
        await self._keeper.close()

    def _save_soon(self) -> None:
        self._saving = None
        _ = self._home.spawn(self._save(), "gasoline-save-views")

    async def _save(self) -> None:
        owned = {index: self._views[index] for index in self._home.partitions}
        began_s = self._home.loop.time()
        await self._keeper.save(owned)
        self._save_rest_s = min(SAVES_REST * (self._home.loop.time() - began_s), SAVE_REST_MAX_S)
        if self._saving is None and self._home.failure is None and any(map(self._is_unsaved, owned)):
            # Something came since; or it could not be stored, and the keeper says when it tries again.
            self._saving = self._home.loop.call_later(
                max(SAVE_AFTER_S, SAVE_AGAIN_S, self._save_rest_s), self._save_soon
            )

    def _is_unsaved(self, index: int) -> bool:
        return bool(self._views[index].unsaved or any(view.unsaved for view, _ in self._beside(index)))
