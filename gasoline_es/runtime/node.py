"""One process's part in a log: the partitions it owns, its appends, and everybody in it who waits for something.

Owning is separate from driving (design §5): a process that only dispatches takes partitions nobody owns and decides
there; bodies run only where a worker has been attached, and a process without one yields to a process that has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gasoline_es.clock import Clock
from gasoline_es.core.commands import Asked, Reply, Request, Yield, encode_request
from gasoline_es.core.events import PruneRule
from gasoline_es.core.ids import partition_of
from gasoline_es.core.ports import (
    ViewKeeper,
)
from gasoline_es.core.topics import Topics
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import Fenced, LogError, LogFailed, NoSpace, PartitionOwned
from gasoline_es.log.moved import check_not_moved
from gasoline_es.log.port import Log, NewRecord, Owner, Ownership
from gasoline_es.operating import Operations
from gasoline_es.runtime.activities import Attempt
from gasoline_es.runtime.appender import make_appender
from gasoline_es.runtime.batch import Batch
from gasoline_es.runtime.clearing import Clearing
from gasoline_es.runtime.driver import Driver
from gasoline_es.runtime.fitting import require_fit
from gasoline_es.runtime.live import Live
from gasoline_es.runtime.messages import Messages
from gasoline_es.runtime.outbox import Outbox
from gasoline_es.runtime.partition import Partition
from gasoline_es.runtime.recording import Recording
from gasoline_es.runtime.timers import Timers
from gasoline_es.runtime.unparking import Unparking
from gasoline_es.runtime.viewing import Viewing
from gasoline_es.runtime.waiting_letters import WaitingLetters
from gasoline_es.runtime.watching import Watches

if TYPE_CHECKING:
    from gasoline_es.runtime.tracing import Tracing

_log = EngineLog(__name__)
_T = TypeVar("_T")

ROLL_BACK_WAIT_S = 0.5
"""How long after an append that found no space the engine tries to go on."""


FLUSH_LIMIT_S = 5.0
"""So long the end of a process waits for servers that do not answer; they have answered within milliseconds, or are away."""

YIELD_WAIT_S = 2.0
"""A process that yielded a partition to a worker does not take it back within this time."""


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
        self.viewing = Viewing(self, keeper)
        self._letters = WaitingLetters(self)
        """The views of all partitions, owned or not."""
        self.recording = Recording()
        self.projected: Callable[[], Mapping[str, Mapping[tuple[str, int], int]]] = dict
        """Tells how far the projections are that this process keeps up: by name, topic and partition."""
        self._clearing = Clearing(self) if log.cleared_by_key else None
        self._appender = make_appender(log, self._log_failed, self.recording)
        self._outbox = Outbox(self._appender, self._posted)
        self._locks = [asyncio.Lock() for _ in range(log.partition_count)]
        """Held by who takes or releases a partition. They give calls their order, and go with a caller that is cancelled."""
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
        if self._clearing is not None:
            self._clearing.start()

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
        async with self.viewing.folding[index]:
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
        views = await self.viewing.taken_over(ownership)
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
        if views.registry.letters:
            self._letters.look_after(partition)
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
        self._appender.leave(partition)
        if self.driver is not None:
            self.driver.forget(partition, [*gone, *partition.lives.values()])
            self.driver.runner.abandon(lambda workflow_id: self.index_of(workflow_id) in self.partitions)
        if not partition.lost:
            partition.let_go(None, why)

    def projections_behind(self) -> dict[str, int]:
        """Return by how many durable records of owned partitions the tables of projections are behind, of views and users'."""
        found = self.viewing.stored_behind()
        for name, reached in self.projected().items() if self.partitions else ():
            found[name] = sum(
                max(self.log.end(topic, index) - offset, 0)
                for (topic, index), offset in reached.items()
                if index in self.partitions
            )
        return found

    async def given_up(self, index: int) -> None:
        """Return once whoever gives a partition up, if anybody does, has done so."""
        async with self._locks[index]:
            return

    @property
    def taking(self) -> Iterable[int]:
        """The partitions that are being taken."""
        return self._taking

    def reloaded(self) -> None:
        """Views were loaded anew: what they passed without folding it has told nobody of tags."""
        self._unparking.wait_all()

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
        if not partition.lost:
            self._appender.ask(partition)

    def changed(self, batch: Batch) -> None:
        if self.tracing is not None:
            self.tracing.durable(batch)
        self.recording.durable(batch)
        self.watches.durable(batch)
        self.viewing.changed()
        if self._clearing is not None:
            self._clearing.durable(batch)

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

    def prune_rule(self, name: str) -> PruneRule:
        definition = None if self.driver is None else self.driver.registry.get(name)
        return "none" if definition is None else definition.prune.value

    def buried(self, pipeline: str) -> None:
        self.recording.dead_letters[pipeline] += 1

    def letters_wait(self, partition: Partition) -> None:
        if self.partitions.get(partition.index) is partition:
            self._letters.look_after(partition)

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

    async def flushed(self) -> bool:
        """Do as :meth:`flush`; whether it came to an end. Where servers have to answer, that is waited for only so long."""
        try:
            async with asyncio.timeout(FLUSH_LIMIT_S if self.log.remote else None):
                await self.flush()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Append what is left, release every partition, close the log."""
        closed = LogError(f"{self.log.url} was closed")
        if self.failure is None:
            self.failure = closed  # new calls are refused from here on
            for partition in self.partitions.values():
                partition.leave()
            if not await self.flushed():
                _log.warning("the log is closed without what was decided last: its servers do not answer")
                await self.log.close()  # only then the append that waits for them comes to an end
        self._alarms.close()
        self._unparking.close()
        self.viewing.stop()
        tasks = [*self._tasks, *self._taking.values(), *self._releasing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        owned = list(self.partitions)
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
        await self.viewing.close(owned)

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
