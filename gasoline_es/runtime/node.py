"""One process's part in a log: the partitions it owns, its appends, and everybody in it who waits for something.

Owning is separate from driving (design §5): a process that only dispatches takes partitions nobody owns and decides
there; bodies run only where a worker has been attached, and a process without one yields to a process that has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from gasoline_es.clock import Clock
from gasoline_es.core.commands import Asked, Reply, Request, Yield, encode_request
from gasoline_es.core.filters import Filters
from gasoline_es.core.ids import partition_of
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
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import Fenced, LogCorrupt, LogError, LogFailed, NoSpace, PartitionOwned
from gasoline_es.log.ends import decided_end
from gasoline_es.log.moved import check_not_moved
from gasoline_es.log.port import Log, NewRecord, Owner, Ownership, horizon_moved
from gasoline_es.operating import Operations
from gasoline_es.runtime.activities import Attempt
from gasoline_es.runtime.appender import Appender
from gasoline_es.runtime.batch import Batch
from gasoline_es.runtime.driver import Driver
from gasoline_es.runtime.fitting import require_fit
from gasoline_es.runtime.live import Live
from gasoline_es.runtime.messages import Messages
from gasoline_es.runtime.outbox import Outbox
from gasoline_es.runtime.partition import Partition
from gasoline_es.runtime.recording import Recording
from gasoline_es.runtime.timers import Timers
from gasoline_es.runtime.unparking import Unparking
from gasoline_es.runtime.watching import Watches

if TYPE_CHECKING:
    from gasoline_es.runtime.tracing import Tracing

_log = EngineLog(__name__)
_T = TypeVar("_T")

ROLL_BACK_WAIT_S = 0.5
"""How long after an append that found no space the engine tries to go on."""


YIELD_WAIT_S = 2.0
"""A process that yielded a partition to a worker does not take it back within this time."""

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
LOAD_RATHER_THAN_FOLD = 10_000
"""Views that others have stored so many events further are loaded anew."""


class Node:
    """A log handle at work. Made by ``engine``; used by the client and the worker of one process."""

    def __init__(
        self, log: Log, clock: Clock, keeper: ViewKeeper[Any], entropy: Callable[[int], bytes] = os.urandom
    ) -> None:
        self.log = log
        self.clock = clock
        self.entropy = entropy
        """Gives so many random bytes, for ids."""
        self.topics = Topics(log.namespace)
        self.partitions: dict[int, Partition] = {}
        self.driver: Driver | None = None
        self.tracing: Tracing | None = None
        """Makes spans, if somebody asked for them."""
        self.failure: LogError | None = None
        self._shown = not log.remote
        """Whether the others know that something may come from this process. On one machine they always do."""
        self._keeper = keeper
        self._views: dict[int, Views] = {}
        """Those that were needed so far."""
        self._on_tagged: OnTagged | None = None
        self._saving: asyncio.TimerHandle | None = None
        self._save_rest_s = 0.0
        self._let_go_again = 0.0
        self.recording = Recording()
        self.projected: Callable[[], Mapping[str, Mapping[tuple[str, int], int]]] = dict
        """Tells how far the projections are that this process keeps up: by name, topic and partition."""
        self._appender = Appender(log, self._log_failed, self.recording)
        self._outbox = Outbox(self._appender, self._posted)
        self._locks = [asyncio.Lock() for _ in range(log.partition_count)]
        """Held by who takes or releases a partition. They give calls their order, and go with a caller that is cancelled."""
        self._folding = [asyncio.Lock() for _ in range(log.partition_count)]
        """Held by whoever folds events of a partition that is not owned, or puts other views in the place of its views. A
        take-over holds it itself until the partition is owned: it goes on where its caller is cancelled."""
        self.watches = Watches()
        """Who waits for the end of a workflow."""
        self._log_changed: set[Callable[[], None]] = set()
        self._on_stored: set[Callable[[], None]] = set()
        self.pipelines: set[str] = set()
        """The names of those that read foreign topics here."""
        self._on_taken: set[Callable[[Partition], None]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.messages = Messages(log, self.topics, clock, self._appender, self.spawn)
        self.on_change(self.messages.heard)
        self.operations = Operations()
        self._alarms = Timers(clock, self._due)
        self._unparking = Unparking(self)
        self._yielded: dict[int, float] = {}
        self._former: dict[int, Owner] = {}
        """Who owned the partitions that are being taken."""
        self._leaving: asyncio.Task[None] | None = None
        self._taking: dict[int, asyncio.Task[Partition | None]] = {}
        self._releasing: set[asyncio.Task[None]] = set()
        self.failed = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop
        """Where all of it happens. Set when it starts."""

    def start(self) -> None:
        """Begin to append and to follow the log."""
        self.loop = asyncio.get_running_loop()
        self._appender.start()
        _ = self.spawn(self._follow(), "gasoline-follow")

    # --- partitions ---------------------------------------------------------------------------------------------------

    def index_of(self, workflow_id: str) -> int:
        return partition_of(workflow_id, self.log.partition_count)

    def partition_of(self, workflow_id: str) -> Partition | None:
        """Return the partition of a workflow if this process owns it."""
        return self.partitions.get(self.index_of(workflow_id))

    async def own(self, index: int, *, share: bool = False) -> Partition | None:
        """Return the partition, taking it if nobody alive owns it; None if somebody does.

        ``share``: this worker is to drive it. Anybody else leaves what it has just given up to others, for a while.
        On return everything sent to its inbox before has been decided. Raises: LogError, as of taking it.
        """
        # Always through the lock, which is fair: calls of one partition are decided in the order they were made.
        async with self._locks[index]:
            partition = self.partitions.get(index)
            if partition is not None:
                return partition
            self.check()
            owner = self.log.owner(index)
            if (
                owner is not None
                and not owner.mine
                and (
                    not share and self._left_to_others(index)
                    if owner.released
                    # An epoch of our own without a begin (its append failed) keeps everybody out but us: we take the next.
                    else owner.alive and owner.incarnation != self.log.incarnation
                )
            ):
                return None
            taking = self._taking.get(index)
            if taking is None:
                taking = self._taking[index] = asyncio.get_running_loop().create_task(self._take(index))
                taking.add_done_callback(lambda task: self._taken(index, task))
            try:
                # A task of its own: what the log says we own must not be forgotten because a caller was cancelled.
                return await asyncio.shield(taking)
            except asyncio.CancelledError:
                if taking.cancelled() and not _is_cancelled():  # not the caller, but the node: it is being closed
                    raise LogError(f"{self.log.url} was closed") from None
                raise

    async def _take(self, index: int) -> Partition | None:
        # From the claim on: until it has begun, the log may not say how much of the last owner's records counts.
        async with self._folding[index]:
            return await self._take_alone(index)

    async def _take_alone(self, index: int) -> Partition | None:
        former = self.log.owner(index)
        if former is not None and (former.released or former.incarnation != self.log.incarnation):
            self._former[index] = former  # until it is taken: an epoch of our own without a begin tells nothing
        try:
            ownership = await self.log.acquire(index)
        except (PartitionOwned, Fenced):
            return None  # somebody else's now
        except LogError:
            self.check()  # a log that failed has been closed: it is told why, not that
            raise
        try:
            return await self._take_over(ownership)
        except Exception as error:
            with contextlib.suppress(LogError):
                await self.log.release(index)  # it concerns this partition alone; somebody else may be luckier
            if isinstance(error, LogError):
                self.check()  # as above
            raise

    def _taken(self, index: int, task: asyncio.Task[Partition | None]) -> None:
        self._taking.pop(index, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("partition %d could not be taken: %s", index, error, extra=_about(index, error))

    def _left_to_others(self, index: int) -> bool:
        """Whether the partition was just yielded to a worker, which needs a moment to take it."""
        until = self._yielded.get(index)
        return until is not None and self.clock.monotonic() < until

    async def _take_over(self, ownership: Ownership) -> Partition:
        index = ownership.partition
        views = await self._newest_views(index)
        end = ownership.ends.get(self.topics.events, 0)
        await self._fold(index, end)
        while views.drifted:  # the former owner has stored what was only folded now
            views = await self._load(index, views)
            await self._fold(index, end)
        for view, topic in [*self._beside(index), (views.announced, self.topics.registry)]:
            await self._fold_into(view, topic, index, ownership.ends.get(topic, 0))
        partition = Partition(self.log, ownership, views, self.clock, self, self.log.incarnation)
        former = self._former.pop(index, None)
        try:
            if former is not None:
                partition.suspect(former)
            await self._consume_all_sent(partition)
            self.check()
        except BaseException as error:  # what it has on its way to the log is read there by whoever folds next
            partition.let_go(None, error if isinstance(error, LogError) else LogError(f"not taken over: {error!r}"))
            raise
        taken_from = "none" if former is None else "released" if former.released else "dead"
        if partition.lost:
            return partition  # whoever decides there hears of it
        # Only now: nothing of this process is decided, and nothing is driven, before what others had sent.
        self.partitions[index] = partition
        self.recording.taken[taken_from] += 1
        if self.driver is not None:
            self.drive(partition)
        partition.arm_all()
        for callback in list(self._on_taken):
            callback(partition)
        return partition

    async def _consume_all_sent(self, partition: Partition) -> None:
        """Decide everything that others have sent as of now."""
        await self.log.refresh((self.topics.inbox, partition.index))
        await self._consume_inbox(partition)

    async def _consume_inbox(self, partition: Partition) -> None:
        """Decide everything that others have sent, letting the event loop have a turn now and then."""
        while partition.consume_some():  # noqa: ASYNC110  # nothing is waited for
            await asyncio.sleep(0)

    def drive(self, partition: Partition) -> None:
        """Give every workflow of an owned partition that is to run a turn, and arm the deadlines of the sleeping."""
        assert self.driver is not None
        self.driver.arm(partition.views.deadlines().items())
        _ = self.spawn(self._drive_running(partition), "gasoline-recover")

    async def _drive_running(self, partition: Partition) -> None:
        # Suspended listeners with signals too: the code may listen for other names by now.
        for number, workflow_id in enumerate([*partition.views.running(), *partition.views.signalled()]):
            if number % 50 == 49:
                await asyncio.sleep(0)  # others get a turn between
            if partition.lost or self.driver is None or self.driver.stopping:
                return
            self.driver.wake(partition, (workflow_id,))

    async def release(self, index: int) -> None:
        """Give a partition up, after what was decided there is durable."""
        # A task of its own: what is given up by half, because a caller was cancelled, nobody here decides, nor anybody else.
        releasing = asyncio.get_running_loop().create_task(self._give_up(index), name="gasoline-release")
        self._releasing.add(releasing)
        releasing.add_done_callback(lambda task: self._released(index, task))
        try:
            await asyncio.shield(releasing)
        except asyncio.CancelledError:
            if releasing.cancelled() and not _is_cancelled():  # not the caller, but the node: it is being closed
                return
            raise

    def _released(self, index: int, task: asyncio.Task[None]) -> None:
        self._releasing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("partition %d could not be released: %s", index, error, extra=_about(index, error))

    async def _give_up(self, index: int) -> None:
        async with self._locks[index]:
            if (taking := self._taking.get(index)) is not None:
                await asyncio.wait((taking,))  # whoever began it was cancelled
            partition = self.partitions.get(index)
            if partition is None:
                return
            if self.driver is not None:
                self.driver.suspects.hand_back(partition)
            partition.leave()
            await self._appender.flush()
            self._yielded[index] = self.clock.monotonic() + YIELD_WAIT_S
            # Whoever asked for a decision that is not on its way yet asks the next owner: `Fenced` makes them.
            self._forget(partition, Fenced("the partition was released", partition=index))
            await self._release(index)

    async def _release(self, index: int) -> None:
        while True:
            try:
                await self.log.release(index)
                return
            except NoSpace as error:
                _log.warning("partition %d could not be released yet: %s", index, error, extra=_about(index, error))
                await asyncio.sleep(ROLL_BACK_WAIT_S)

    async def request_partition(self, index: int) -> None:
        """Ask the owner of a partition to release it, if it drives nothing."""
        await self.send(index, Yield(to=self.log.incarnation))

    def _forget(self, partition: Partition, why: LogError, gone: Sequence[Live] = ()) -> None:
        """Let go of a partition. ``gone``: the workflows that were in memory, if it has let go of itself already."""
        self.partitions.pop(partition.index, None)
        if self.driver is not None:
            self.driver.forget(partition, [*gone, *partition.lives.values()])
            self.driver.runner.abandon(lambda workflow_id: self.index_of(workflow_id) in self.partitions)
        if not partition.lost:
            partition.let_go(None, why)

    def behind(self) -> Iterator[tuple[int, int]]:
        """Yield how many durable events are not folded, for each partition that is owned or being taken."""
        for index in sorted({*self.partitions, *self._taking}):
            views = self._views.get(index)
            if views is not None:  # else it is being loaded, and nobody knows yet
                yield index, max(self.log.end(self.topics.events, index) - views.next_offset, 0)

    def projections_behind(self) -> dict[str, int]:
        """Return by how many durable records of owned partitions the tables of projections are behind, of views and users'."""
        found: dict[str, int] = {}
        if not self.partitions:
            return found
        if self._keeper.keeps:
            found[self._keeper.name] = sum(
                max(self.log.end(f"{self.log.namespace}.{topic}", index) - offset, 0)
                for index in self.partitions
                for topic, offset in self._views[index].stored_offsets().items()
            )
        for name, reached in self.projected().items():
            found[name] = sum(
                max(self.log.end(topic, index) - offset, 0)
                for (topic, index), offset in reached.items()
                if index in self.partitions
            )
        return found

    # --- views --------------------------------------------------------------------------------------------------------

    async def views(self, index: int) -> Views:
        """Return a partition's views as of now: those of an owned one are, others are read up to the log's end.

        Raises: LogCorrupt: damage may have cost the partition events. :meth:`readable` has what came before it. NoOwner:
            whoever takes the partition over does not come to it.
        """
        if index not in self.partitions:
            async with self._folding[index]:
                if index not in self.partitions:
                    try:
                        await self._loaded(index)
                        end = await self._decided_end(index, self.topics.events)
                        await self._fold(index, end if self.log.damage is None else None)
                    except LogError:
                        self.check()  # a log that failed has been closed: it is told why, not that
                        raise
        return self._views[index]

    async def _loaded(self, index: int) -> Views:
        """Return the views of a partition, with what is folded so far. By who holds the lock of folding it."""
        views = self._views.get(index)
        if views is None:
            views = await self._load(index, None)
        return views

    async def _load(self, index: int, before: Views | None) -> Views:
        views: Views = await self._keeper.load(index, before)
        views.on_tagged = self._on_tagged
        self._views[index] = views
        if before is not None:
            self._unparking.wait_all()  # what was loaded and not folded has told nobody of tags
        return views

    async def _newest_views(self, index: int) -> Views:
        """Return the views of a partition, loaded anew if that is less work than to fold, or if they are not exact."""
        views = self._views.get(index)
        if views is None:
            return await self._load(index, None)
        if 0 < views.next_offset < self.log.horizon(self.topics.events, index):
            return await self._load(index, None)  # what took back some of it is gone
        stands = await self._keeper.stands(index)
        ahead = stands.get("events", 0) - views.next_offset
        for view, topic in self._beside(index):
            ahead = max(ahead, stands.get(topic.rpartition(".")[2], 0) - view.next_offset)
        return await self._load(index, views) if views.drifted or ahead > LOAD_RATHER_THAN_FOLD else views

    async def _let_go_of_stored(self) -> None:
        """Let workflows leave memory that are over, and that others have stored; if that does not help, not again at once."""
        if self.loop.time() < self._let_go_again:
            return
        for index, views in list(self._views.items()):
            if views.unsaved and index not in self.partitions:
                views.saved_elsewhere((await self._keeper.stands(index)).get("events", 0))
        if self._too_many_unsaved():
            self._let_go_again = self.loop.time() + LET_GO_AGAIN_S

    def _too_many_unsaved(self) -> bool:
        return sum(views.unsaved for views in self._views.values()) >= UNSAVED_MAX

    async def _decided_end(self, index: int, topic: str) -> int:
        return await decided_end(self.log, topic, index, self.clock.monotonic)

    async def schedules(self, index: int) -> ScheduleView:
        """Return a partition's schedules as of now, by what is durable. Raises: as :meth:`views`."""
        return (await self._views_and_beside(index)).schedules

    async def parked(self, index: int) -> ParkedView:
        """Return a partition's parked signals as of now, by what is durable. Raises: as :meth:`views`."""
        return (await self._views_and_beside(index)).parked

    async def stored(self, index: int) -> StoredView:
        """Return a partition's sequences as of now, by what is durable. Raises: as :meth:`views`."""
        if self.log.remote:
            while (partition := self.partitions.get(index)) is not None:
                if await self._still_owned(partition):
                    return self._views[index].stored
        return (await self._views_and_beside(index)).stored

    async def _still_owned(self, partition: Partition) -> bool:
        """Whether a partition is ours as of now. Where a network lies between, another may have it and be writing there."""
        asked: asyncio.Future[LogError | None] = self.loop.create_future()

        def done(error: LogError | None) -> None:
            if not asked.done():
                asked.set_result(error)

        # An append, also of nothing, is answered only if the partition is still ours. What was under way comes before it.
        partition.when_durable(done)
        error = await asked
        if error is None:
            return self.partitions.get(partition.index) is partition
        if not partition.lost:
            raise error
        async with self._locks[partition.index]:  # until whoever gives it up has done so
            self.check()
        return False

    def stored_now(self, index: int) -> StoredView | None:
        """The same without looking at the log, where this process owns the partition; None: it does not, or has to look."""
        at_hand = index in self.partitions and self.failure is None and not self.log.remote
        return self._views[index].stored if at_hand else None

    async def _views_and_beside(self, index: int) -> Views:
        _ = await self.views(index)
        if index not in self.partitions:
            async with self._folding[index]:
                if index not in self.partitions:
                    for view, topic in self._beside(index):
                        await self._fold_into(view, topic, index, await self._decided_end(index, topic))
        return self._views[index]

    def _beside(self, index: int) -> list[tuple[BesideView, str]]:
        """Return the views of what stands beside workflows, each with its topic."""
        views = self._views[index]
        topics = self.topics
        return [(views.schedules, topics.schedules), (views.parked, topics.parked), (views.stored, topics.stored)]

    async def look_up(self, workflow_id: str) -> Summary | None:
        """Return where a workflow stands now: for an owned partition with what is decided and not durable yet."""
        index = self.index_of(workflow_id)
        views = await self.views(index)
        partition = self.partitions.get(index)
        live = None if partition is None else partition.lives.get(workflow_id)
        return views.summary(workflow_id) if live is None else live.state.summary

    async def find(self, name: str, tags: Mapping[str, str], passed: Iterable[str] = ()) -> str | None:
        """Return the oldest incomplete workflow of this name with these tags, over all partitions, not among ``passed``."""
        found = await self.first(name, tags, passed)
        return None if found is None else found.id

    async def first(self, name: str, tags: Mapping[str, str], passed: Iterable[str] = ()) -> Summary | None:
        """The same, with where it stands."""
        best: Summary | None = None
        for index in range(self.log.partition_count):
            views = await self.views(index)
            for workflow_id in views.find(name, tags):
                summary = views.summary(workflow_id)
                if workflow_id in passed or summary is None:
                    continue
                if best is None or (summary.created_us, summary.id) < (best.created_us, best.id):
                    best = summary
                break
        return best

    async def readable(self, index: int) -> tuple[Views, LogCorrupt | None]:
        """Return a partition's views as far as they can be read, and the damage that ends them."""
        try:
            return await self.views(index), None
        except LogCorrupt as damage:
            async with self._folding[index]:
                return await self._loaded(index), damage

    async def counted(self, index: int) -> Views:
        """Return a partition's views as of now, whose counts are exact."""
        views = await self.views(index)
        while views.drifted and index not in self.partitions:
            async with self._folding[index]:
                if self._views[index] is views and index not in self.partitions:
                    await self._load(index, views)
            views = await self.views(index)
        return views

    async def matching_as_of(self, index: int, moment_us: int, wanted: Filters) -> Iterator[Summary]:
        """Return a partition's workflows that matched at a time: by what came before the first event that is younger.

        The log is folded from its start. Raises: as :meth:`views`.
        """
        end = await self._decided_end(index, self.topics.events)
        past = self._keeper.past(wanted)
        records = self.log.read(self.topics.events, index, 0, end)
        while past.fold_until(islice(records, FOLD_CHUNK), moment_us):  # noqa: ASYNC110  # nothing is waited for
            await asyncio.sleep(0)
        return past.matching()

    async def _fold(self, index: int, stop: int | None) -> None:
        """Fold a partition's events up to an offset (None: the end, or damage)."""
        views, more = self._views[index], True
        topic, start = self.topics.events, views.next_offset
        horizon = self.log.horizon(topic, index)
        while more:
            more = await self._fold_some(views, topic, index, stop)
            if start < (now := self.log.horizon(topic, index)) != horizon:
                self._views.pop(index, None)  # they may show what was taken back: the next look begins anew
                raise horizon_moved(topic, index, start, now)
            if self._too_many_unsaved():  # a long log would not fit into memory
                if self._keeper.keeps and not self._owned_elsewhere(index):
                    await self._keeper.save({index: views})
                else:
                    await self._let_go_of_stored()

    def _owned_elsewhere(self, index: int) -> bool:
        """Whether another process owns a partition, and stores its views where this one does."""
        owner = self.log.owner(index)
        if owner is None or not owner.alive or owner.mine:
            return False
        return not self.log.remote or owner.host == socket.gethostname()

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
        records = self.log.read(topic, index, view.next_offset, stop)
        for _ in range(FOLD_CHUNKS):
            before = view.next_offset
            view.fold(islice(records, FOLD_CHUNK))  # at damage, everything before it is folded
            if view.next_offset == before:
                return False
            await asyncio.sleep(0)
        return True

    # --- commands through an inbox ------------------------------------------------------------------------------------

    async def send(self, index: int, command: Yield) -> None:
        """Put a command that needs no reply into a partition's inbox; durable on return."""
        await self.post(index, Request("", "", command), "")

    async def post(self, index: int, request: Request, key: str) -> None:
        """Put a request into a partition's inbox; durable on return. Raises: LogError."""
        self.check()
        value = encode_request(request)
        require_fit(f"the {request.command.TYPE} request", value)
        record = NewRecord(self.topics.inbox, index, key, value, self.clock.now_us())
        if not self._shown:
            # Whoever copies the log elsewhere closes it first, and looks then who is there: one of both sees the other.
            await self.log.shown()
            await check_not_moved(self.log)
            self._shown = True
        await self._outbox.send(record)

    def _posted(self, indexes: set[int]) -> None:
        """What this process sent is no news from the log: where it owns the inbox by now, it looks there itself."""
        for index in indexes:
            partition = self.partitions.get(index)
            if partition is not None:
                _ = self.spawn(self._consume_inbox(partition), "gasoline-own-inbox")

    # --- waiting ------------------------------------------------------------------------------------------------------

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` whenever something may have been published in the log. Returns what ends it."""
        self._log_changed.add(callback)
        return lambda: self._log_changed.discard(callback)

    def on_stored(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` whenever events of sequences may have become durable, here or elsewhere. Returns what ends it."""
        self._on_stored.add(callback)
        elsewhere = self.on_change(callback)

        def end() -> None:
            self._on_stored.discard(callback)
            elsewhere()

        return end

    def on_taken(self, callback: Callable[[Partition], None]) -> Callable[[], None]:
        """Call ``callback`` for each partition that is owned, and for each that will be. Returns what ends it."""
        self._on_taken.add(callback)
        for partition in list(self.partitions.values()):
            callback(partition)
        return lambda: self._on_taken.discard(callback)

    def on_tagged(self, callback: OnTagged | None) -> None:
        """Call ``callback`` for each durable event that gives a workflow tags, when it is folded here; None: nobody."""
        self._on_tagged = callback
        for views in self._views.values():
            views.on_tagged = callback

    def decide_now(self, partition: Partition, commands: Sequence[Asked]) -> tuple[list[Reply], LogError | None] | None:
        """Decide commands, and append that before anything else happens; return what came of both. In the event loop's place.

        None: it cannot be now, nothing was done.
        """
        if partition.lost or self.failure is not None or not self._appender.resting or not self.log.ready:
            return None
        fate: list[LogError | None] = []

        def decide() -> list[Reply]:
            replies = [partition.decide(command) for command in commands]
            partition.when_durable(fate.append)
            return replies

        replies = self._appender.append_now(decide)
        return replies, fate[0]

    async def decide_all_sent(self) -> None:
        """Decide what others have sent here so far, and wait until that is durable, or has failed."""
        for partition in list(self.partitions.values()):
            await self._consume_all_sent(partition)
        await self._appender.flush()

    def check(self) -> None:
        """Raise what made the log unusable for this process, if anything did."""
        if self.failure is not None:
            if not isinstance(self.failure, LogFailed):
                raise LogError(self.failure.message)
            raise LogFailed(f"the log failed in this process: {self.failure}. Open it again") from self.failure

    async def _follow(self) -> None:
        while True:
            try:
                await self.log.changed()
            except LogError:
                if self.failure is not None:
                    return  # it was closed because of that
                raise
            for callback in list(self._log_changed):
                callback()
            # A part of each in turn: one that never runs dry must not keep the others waiting.
            full = list(self.partitions.values())
            while full := [partition for partition in full if partition.consume_some()]:  # noqa: ASYNC110
                await asyncio.sleep(0)
            if self.watches and len(self.partitions) < self.log.partition_count:
                self.watches.look(lambda workflow_id: self.index_of(workflow_id) not in self.partitions)

    # --- what partitions tell -----------------------------------------------------------------------------------------

    def turn(self, partition: Partition, live: Live) -> None:
        if self.driver is not None and partition.index in self.partitions:
            self.driver.turn(partition, live)
        else:
            partition.drop_if_idle(live)

    def ask_append(self, partition: Partition) -> None:
        self._appender.ask(partition)

    def changed(self, batch: Batch) -> None:
        if self.tracing is not None:
            self.tracing.durable(batch)
        self.recording.durable(batch)
        self.watches.durable(batch)
        if self._saving is None and self._keeper.keeps:
            self._saving = self.loop.call_later(max(SAVE_AFTER_S, self._save_rest_s), self._save_soon)

    def _save_soon(self) -> None:
        self._saving = None
        _ = self.spawn(self._save(), "gasoline-save-views")

    async def _save(self) -> None:
        owned = {index: self._views[index] for index in self.partitions}
        began_s = self.loop.time()
        await self._keeper.save(owned)
        self._save_rest_s = min(SAVES_REST * (self.loop.time() - began_s), SAVE_REST_MAX_S)
        if self._saving is None and self.failure is None and any(map(self._is_unsaved, owned)):
            # Something came since; or it could not be stored, and the keeper says when it tries again.
            self._saving = self.loop.call_later(max(SAVE_AFTER_S, SAVE_AGAIN_S, self._save_rest_s), self._save_soon)

    def _is_unsaved(self, index: int) -> bool:
        return bool(self._views[index].unsaved or any(view.unsaved for view, _ in self._beside(index)))

    def attempts_durable(self, attempts: list[Attempt]) -> None:
        if self.driver is not None:
            self.driver.runner.forget_all(attempts)
            if self.driver.leaving:
                self.driver.fewer()

    def leave(self, old: Live, new: Live) -> None:
        if self.driver is not None:
            self.driver.leave(old, new)
        else:
            old.drop_run()

    def published(self) -> None:
        self.messages.heard()

    def stored_here(self) -> None:
        for callback in list(self._on_stored):
            callback()

    def told(self, indexes: set[int]) -> None:
        self._posted(indexes)

    def alarm(self, subject: str, due_us: int | None) -> None:
        if due_us is None:
            self._alarms.disarm(subject)
        else:
            self._alarms.arm(subject, due_us)

    def parked_wait(self, partition: Partition, parked_ids: list[str]) -> None:
        self._unparking.waits(partition, parked_ids)

    def _due(self, subject: str) -> None:
        partition = self.partition_of(subject)
        if partition is None or partition.lost:
            return
        try:
            partition.due(subject)
        except Exception as error:
            self.broke(error)

    def dropped(self, partition: Partition, workflow_ids: list[str], error: LogError) -> None:
        _ = self.spawn(self._go_on(partition, workflow_ids), "gasoline-go-on")
        _log.warning("an append was not recorded; trying again", extra=_about(partition.index, error))

    async def _go_on(self, partition: Partition, workflow_ids: list[str]) -> None:
        await asyncio.sleep(ROLL_BACK_WAIT_S)
        if partition.lost:
            return
        await self._consume_inbox(partition)
        if partition.lost:
            return
        if self.driver is not None:
            self.driver.wake(partition, workflow_ids)
        partition.arm_all()

    def lost(self, partition: Partition, error: LogError, gone: Sequence[Live]) -> None:
        self.recording.lost += 1
        self._forget(partition, error, gone)
        _log.warning(
            "partition %d is not owned any more: %s", partition.index, error, extra=_about(partition.index, error)
        )

    def buried(self, pipeline: str) -> None:
        self.recording.dead_letters[pipeline] += 1

    def yield_to(self, partition: Partition, worker: str) -> None:
        if worker == self.log.incarnation:
            return
        if self.driver is None:
            _ = self.spawn(self.release(partition.index), "gasoline-yield")

    async def release_all(self) -> None:
        """Release every partition: other workers are there to take them."""
        for index in list(self.partitions):
            await self.release(index)

    def _log_failed(self, error: LogError) -> None:
        first = self.failure is None
        if first:
            self.failure = error
            # Others can take over what was ours at once. Not a task of the node's: it must outlive what has failed.
            self._leaving = asyncio.get_running_loop().create_task(self._leave(), name="gasoline-leave")
        for partition in list(self.partitions.values()):
            self._forget(partition, error)
        self._outbox.fail(error)
        self.messages.fail(error)
        self.watches.look()  # whoever waits for an end learns that it will not come
        self.stored_here()  # whoever waits for more learns the same
        self.failed.set()
        if first:
            _log.error(
                "the log failed; this process takes no further part in it: %s", error, extra={"error": str(error)}
            )

    # ------------------------------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        try:
            await self.log.close()
        except LogError as error:
            _log.warning("the log could not be left cleanly: %s", error, extra={"error": str(error)})

    async def flush(self) -> None:
        """Wait until everything decided so far is durable, or has failed."""
        for partition in self.partitions.values():
            partition.hurry()
        await self._appender.flush()

    async def close(self) -> None:
        """Append what is left, release every partition, close the log."""
        closed = LogError(f"{self.log.url} was closed")
        if self.failure is None:
            self.failure = closed  # new calls are refused from here on
            for partition in self.partitions.values():
                partition.leave()
            await self._appender.flush()
        self._alarms.close()
        self._unparking.close()
        if self._saving is not None:
            self._saving.cancel()
        tasks = [*self._tasks, *self._taking.values(), *self._releasing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        owned = {index: self._views[index] for index in self.partitions}
        for partition in list(self.partitions.values()):
            self._forget(partition, closed)
        await self._appender.close()
        self._outbox.fail(closed)
        self.messages.fail(closed)
        self.watches.look()  # whoever waits for an end learns that it will not come
        if self.driver is not None:
            self.driver.close()
        self.operations.close()
        if self._leaving is not None:
            await self._leaving
        await self.log.close()
        # Only then: it may wait for others who store, and nobody is to wait for a partition because of that.
        await self._keeper.save(owned)  # the next start has nothing to fold
        await self._keeper.close()

    def spawn(self, coroutine: Coroutine[None, None, _T], name: str) -> asyncio.Task[_T]:
        """Start a task of the engine: it ends with the node, and an error in it is never lost."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broke(error)

    def broke(self, error: BaseException) -> None:
        """Take no further part in the log: what the engine holds in memory cannot be trusted after this error."""
        self._log_failed(error if isinstance(error, LogError) else LogFailed(f"the engine broke: {error!r}"))
        _log.error("the engine broke", exc_info=error, extra={"error": repr(error)})


def _is_cancelled() -> bool:
    """Whether somebody has asked this task to end; a node that is closed cancels its tasks and what they wait for alike."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _about(index: int, error: BaseException) -> dict[str, object]:
    """What a log record about a partition carries."""
    return {"partition": index, "error": str(error)}
