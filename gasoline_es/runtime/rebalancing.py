"""Acts on a worker's share of the partitions: takes what is free, asks clients for theirs, gives up what others are to drive.

A partition is given up when nothing runs there: its bodies go no further, what runs gets its time, and its outcome is
recorded. Commands for it are decided meanwhile. What takes too long keeps its partition, and another one goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError, NoSpace
from gasoline_es.runtime.driver import Driver
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.partition import Partition
from gasoline_es.runtime.sharing import HeldUp, Peer, Pressure, peers_of, shares

_log = EngineLog(__name__)

LOOK_AGAIN_S: Final = 1.0
"""How often a worker looks at the members and the partitions, besides when the log changes."""
LOOK_SOONEST_S: Final = 0.01
"""A log that changes a thousand times a second is looked at no sooner than this: a look costs as much as some steps."""
OLDER_LEAVE_S: Final = 1.0
"""A worker of an older version starts to give up one partition in so many seconds."""
STAYS_S: Final = 60.0
"""A partition that could not be given up in time, because of what runs there, is not tried again for so long."""
WAITS_TOLD_S: Final = 30.0
"""A worker that lacks partitions for so long says so, and again each time."""
PRESSURE_LOOK_S: Final = 0.5


class Rebalancing:
    """One worker's part in the sharing."""

    def __init__(self, node: Node, driver: Driver, version: int, leave_limit_s: float) -> None:
        self.pressure = Pressure()
        self._held_up: HeldUp | None = None
        self._left = False
        self._told: Peer | None = None
        self._announcing = threading.Lock()
        """The thread that watches the event loop announces, too."""
        self._node = node
        self._driver = driver
        self._version = version
        self._leave_limit_s = leave_limit_s
        self._again = asyncio.Event()
        self._asked: dict[int, int] = {}
        self._left_at = -OLDER_LEAVE_S
        self._stays: dict[int, float] = {}
        self._gave_up: dict[str, list[int]] = {}
        """The partitions that this look has given up, by why."""
        self._waiting_for = 0
        self._waits_since = 0.0
        driver.fewer = self._again.set

    def announce(self) -> None:
        """Tell the others that this process is a worker, until it has left. Raises: LogError."""
        with self._announcing:
            if not self._left:
                self._told = me = self._me
                self._node.log.announce(me.about())

    def leave(self) -> None:
        """Tell the others that it is none any more, for good: its share is theirs."""
        # The error of a log that failed or was closed, which says so itself.
        with self._announcing, contextlib.suppress(LogError):
            self._left = True
            self._node.log.announce(None)

    @property
    def others(self) -> bool:
        """Whether another worker is there to take what this one gives up."""
        return any(peer.incarnation != self._me.incarnation for peer in peers_of(self._node.log.members()))

    def held_up(self, told: HeldUp | None) -> None:
        """Tell the others what holds the event loop up; None: it goes on. From another thread than the loop's."""
        self._held_up = told
        with contextlib.suppress(LogError):  # of a log that failed or was closed: then others take over anyway
            self.announce()

    @property
    def _me(self) -> Peer:
        node = self._node
        pipelines = tuple(sorted(node.pipelines))
        return Peer(node.log.incarnation, self._version, self.pressure.weight, self._held_up, pipelines)

    async def go_on(self) -> None:
        """Look again and again, for as long as the worker runs."""
        unsubscribe = self._node.on_change(self._again.set)
        try:
            while True:
                self._again.clear()
                try:
                    await self.look()
                except LogError as error:
                    if not error.retryable:
                        raise
                    _log.warning("partitions could not be taken, trying again: %s", error, extra={"error": str(error)})
                soonest = min(LOOK_SOONEST_S, LOOK_AGAIN_S)
                await asyncio.sleep(soonest)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S - soonest):
                        await self._again.wait()
        finally:
            unsubscribe()

    async def watch_pressure(self) -> None:
        """Take part with less weight while the event loop has more to do than it can."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PRESSURE_LOOK_S
            await asyncio.sleep(PRESSURE_LOOK_S)
            self.pressed(max(loop.time() - due, 0.0), loop.time())

    def pressed(self, late_s: float, now_s: float) -> None:
        """Note by how much the event loop came too late; tell the others if this worker counts more or less for it."""
        recording = self._node.recording
        recording.late_s = late_s
        if self.pressure.observe(late_s, now_s):
            recording.weight = self.pressure.weight
            _log.warning("the event loop %s", self._pressure_told, extra={"weight": self.pressure.weight})
            self.announce()
            self._again.set()

    @property
    def _pressure_told(self) -> str:
        weight = self.pressure.weight
        return f"has {'more to do than it can' if weight < 1 else 'time again'}: this worker counts {weight:g} in the sharing"

    # --- one look -----------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """See who shares, then take, ask for, or give up partitions. Raises: LogError."""
        node, driver = self._node, self._driver
        peers = peers_of(node.log.members())
        if self._told is None or self._told.pipelines != self._me.pipelines:
            self.announce()
        if not any(peer.incarnation == self._me.incarnation for peer in peers):
            self.announce()  # it was frozen, or its heartbeat was just being written
            peers.append(self._me)
        count = node.log.partition_count
        lacks = shares(peers, count)[self._me.incarnation] - sum(
            index not in driver.leaving for index in node.partitions
        )
        newest = all(peer.version <= self._version for peer in peers)
        if lacks < 0:
            self._let_leave(-lacks, newest)
        try:
            for index in list(driver.leaving):
                if lacks > 0:
                    self._stay(index)
                    lacks -= 1
                else:
                    await self._see_off(index, newest)
        finally:
            self._say_given_up()
        if lacks > 0:
            lacks -= await self._take(lacks, peers)
        self._say_waiting(max(lacks, 0))

    async def _take(self, wanted: int, peers: list[Peer]) -> int:
        """Take partitions that are free; ask processes that drive nothing for theirs. Return how many were taken."""
        node, me = self._node, self._me.incarnation
        count, workers = node.log.partition_count, sorted(peer.incarnation for peer in peers)
        first = workers.index(me) * count // len(workers)  # not all of them for the same ones first
        left = [index for index in (*range(first, count), *range(first)) if index not in node.partitions]
        taken = 0
        while left and taken < wanted:
            # Each answer of a server takes its time: there so many are asked for as are lacking, side by side.
            some = left[: wanted - taken if node.log.remote else 1]
            del left[: len(some)]
            for index, partition in zip(some, await self._own(some), strict=True):
                if partition is not None:
                    taken += 1
                else:
                    await self._ask_for(index, workers)
        return taken

    async def _own(self, indexes: Sequence[int]) -> list[Partition | None]:
        if len(indexes) == 1:
            return [await self._node.own(indexes[0], share=True)]
        asked = [self._node.own(index, share=True) for index in indexes]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer  # once all have answered
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _ask_for(self, index: int, workers: Iterable[str]) -> None:
        """Ask whoever owns a partition for it, unless that is a worker, which gives up what is not its share by itself.

        Once for each epoch, not once for each owner: who yielded may have taken it back before anybody else came.
        """
        owner = self._node.log.owner(index)
        if owner is None or not owner.alive or owner.incarnation in workers or self._asked.get(index) == owner.epoch:
            return
        with contextlib.suppress(NoSpace):
            await self._node.request_partition(index)
            self._asked[index] = owner.epoch

    def _let_leave(self, surplus: int, newest: bool) -> None:
        """Let so many more partitions leave: those first where least goes on."""
        driver, now = self._driver, self._node.clock.monotonic()
        if not newest:
            # In old code nothing new is to begin, and what runs is to end: one after the other, so that others keep up.
            surplus = min(surplus, int(now - self._left_at >= OLDER_LEAVE_S))
        candidates = [
            partition
            for index, partition in self._node.partitions.items()
            if index not in driver.leaving and (not newest or now >= self._stays.get(index, now))
        ]
        candidates.sort(
            key=lambda partition: (driver.runner.count_in(partition), len(partition.lives), partition.index)
        )
        for partition in candidates[:surplus]:
            driver.let_leave(partition, now)
            self._left_at = now

    async def _see_off(self, index: int, newest: bool) -> None:
        """Release a partition that is leaving, once nothing runs there."""
        partition = self._node.partitions.get(index)
        if partition is None:
            del self._driver.leaving[index]  # lost meanwhile
        elif self._driver.runner.count_in(partition) == 0:
            await self._release(partition, newest)
        elif newest and self._node.clock.monotonic() - self._driver.leaving[index] >= self._leave_limit_s:
            self._stays[index] = self._node.clock.monotonic() + STAYS_S
            self._stay(index)

    async def _release(self, partition: Partition, newest: bool) -> None:
        try:
            await self._node.release(partition.index)
        finally:
            self._driver.leaving.pop(partition.index, None)
        why = "version" if not newest else "pressure" if self.pressure.weight < 1 else "share"
        self._node.recording.given_up[why] += 1
        self._gave_up.setdefault(why, []).append(partition.index)

    def _say_given_up(self) -> None:
        """Say in a line which partitions one look has given up: there may be hundreds."""
        gave_up, self._gave_up = self._gave_up, {}
        for why, indexes in gave_up.items():
            named = ", ".join(map(str, indexes))
            _log.info(
                "gave up %d partitions to other workers: %s",
                len(indexes),
                named,
                extra={"gave_up": indexes, "why": why},
            )

    def _stay(self, index: int) -> None:
        partition = self._node.partitions.get(index)
        if partition is None:
            del self._driver.leaving[index]
        else:
            self._driver.stay(partition)
            self._node.drive(partition)

    def _say_waiting(self, lacks: int) -> None:
        """Say for how many partitions it waits, whenever that changes."""
        owned, count, now = len(self._node.partitions), self._node.log.partition_count, self._node.clock.monotonic()
        self._node.recording.waits_for = lacks
        told = {"owned": owned, "waits_for": lacks, "partitions": count}
        if lacks != self._waiting_for:
            self._waiting_for, self._waits_since = lacks, now
            if lacks:
                _log.info("owns %d partitions, waits for %d that others own (of %d)", owned, lacks, count, extra=told)
            else:
                _log.info("owns its share: %d of %d partitions", owned, count, extra=told)
        elif lacks and now - self._waits_since >= WAITS_TOLD_S:
            self._waits_since = now
            _log.warning(
                "still waits for %d of %d partitions, which others own and do not give up", lacks, count, extra=told
            )
