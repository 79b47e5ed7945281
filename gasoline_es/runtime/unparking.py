"""Looks for the workflows that parked signals wait for, in all partitions, for those of the partitions owned here.

A parked signal is looked after once when it is durable (or its partition taken over), and from then on whenever an event
gives a workflow of its name the tags that it wants; at its deadline once more. So what is dispatched at the same time in
another process is found by the first look, or tells of itself afterwards. Where nothing is parked, nothing of this runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from gasoline_es.core.ids import partition_of_slot
from gasoline_es.core.parked import Parked, parked_slot
from gasoline_es.core.state import Summary
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError, NoOwner
from gasoline_es.runtime.partition import Partition

if TYPE_CHECKING:
    from gasoline_es.runtime.node import Node

_log = EngineLog(__name__)

LOOK_SOONEST_S: Final = 0.01
"""What others write is looked at no sooner than this after the last time, however often the log changes."""
AGAIN_S: Final = 0.5
"""How long after a look that failed the next one is."""
TURN: Final = 50
"""After so many look-ups others have a turn."""


class Unparking:
    """One process's part in it: for the parked signals of the partitions that it owns."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._marked: dict[int, set[str]] = {}
        """Those to be looked after, by partition."""
        self._wake = asyncio.Event()
        self._heard = False
        """Whether others may have written something that is not folded here."""
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._running = False
        self._indexes: dict[str, int] = {}

    @property
    def running(self) -> bool:
        """Whether anything is parked in a partition of this process."""
        return self._running

    def waits(self, partition: Partition, parked_ids: Iterable[str]) -> None:
        """Look after these, and go on with it for as long as any are there."""
        self._marked.setdefault(partition.index, set()).update(parked_ids)
        self._wake.set()
        if not self._running and self._needed():
            self._running = True
            _ = self._node.spawn(self._run(), "gasoline-unpark")

    def wait_all(self) -> None:
        """Look after all that are parked here, if any are looked after."""
        if self._running:
            for partition in list(self._node.partitions.values()):
                self.waits(partition, [parked.id for parked in partition.views.parked.live()])

    def close(self) -> None:
        """Look no further."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _needed(self) -> bool:
        return any(partition.views.parked.any_live() for partition in self._node.partitions.values())

    async def _run(self) -> None:
        node = self._node
        unsubscribe = node.on_change(self._changed)
        node.viewing.on_tagged(self._tagged)
        try:
            while self._needed():
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._catch_up()
                    await self._look()
                except (LogError, NoOwner) as error:
                    if node.failure is not None:
                        return
                    _log.info(
                        "parked signals are looked after again in %g s: %s", AGAIN_S, error, extra={"error": str(error)}
                    )
                    self._hear_in(AGAIN_S)
        finally:
            unsubscribe()
            node.viewing.on_tagged(None)
            self._running = False
            self._marked.clear()
            self.close()

    # --- hearing ------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        node = self._node
        if len(node.partitions) < node.log.partition_count:
            self._hear_in(self._heard_at + LOOK_SOONEST_S - asyncio.get_running_loop().time())

    def _hear_in(self, wait_s: float) -> None:
        if self._timer is not None:
            return
        if wait_s > 0:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._hear)
        else:
            self._hear()

    def _hear(self) -> None:
        self._timer = None
        self._heard_at = asyncio.get_running_loop().time()
        self._heard = True
        self._wake.set()

    def _tagged(self, name: str, tags: Mapping[str, str]) -> None:
        """A workflow of this name has these tags, durably: whoever waits for it is to be looked after."""
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = partition_of_slot(parked_slot(name), self._node.log.partition_count)
        partition = self._node.partitions.get(index)
        if partition is None:
            return
        waiting = [parked.id for parked in partition.views.parked.waiting_for(name, tags)]
        if waiting:
            self.waits(partition, waiting)

    async def _catch_up(self) -> None:
        """Fold what others have written: what it tells of comes to :meth:`_tagged`."""
        if not self._heard:
            return
        self._heard = False
        current = await self._node.viewing.asked(others_only=True)
        for index in range(self._node.log.partition_count):
            if index not in self._node.partitions:
                await self._node.viewing.views(index, current)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look once after each that is marked, in the order in which they were parked."""
        now_us = self._node.clock.now_us()
        if any(parked.signal.until_us <= now_us for _, parked in self._marked_now()):
            await self._node.decide_all_sent()
        marked = self._marked_now()
        self._marked.clear()  # before the looks: who is marked meanwhile wants another one
        done = 0
        try:
            for partition, parked in marked:
                if not await self._look_for(partition, parked.id, now_us):
                    self._wake.set()
                    break
                done += 1
                if done % TURN == 0:
                    await asyncio.sleep(0)
        finally:
            for partition, parked in marked[done:]:
                self._marked.setdefault(partition.index, set()).add(parked.id)

    def _marked_now(self) -> list[tuple[Partition, Parked]]:
        """Return those that are marked and still wait, in the order in which they were parked."""
        found: list[tuple[Partition, Parked]] = []
        for index, marked in self._marked.items():
            partition = self._node.partitions.get(index)
            if partition is not None:
                order, view = self._order(partition, marked), partition.parked.view
                waiting = [(partition, parked) for parked in map(view.get, order) if isinstance(parked, Parked)]
                found += sorted(waiting, key=lambda one: order[one[1].id])
        return found

    def _order(self, partition: Partition, parked_ids: Iterable[str]) -> dict[str, int]:
        """Return the places of those that still wait in the order in which they were parked."""
        view = partition.parked.view
        live = (parked for parked in map(view.get, parked_ids) if parked is not None and parked.live)
        return {parked.id: view.order(parked.id) for parked in live}

    def _overtakes(self, partition: Partition, parked_id: str) -> bool:
        """Whether one that was parked before has been marked since the looks began: what was folded for a look tells of it."""
        marked = self._marked.get(partition.index)
        if not marked:
            return False
        order = self._order(partition, (*marked, parked_id))
        return parked_id in order and min(order.values()) < order[parked_id]

    async def _look_for(self, partition: Partition, parked_id: str, as_of_us: int) -> bool:
        """Offer it to the oldest workflow that it is for, or discard it if its time was over before this look.

        Returns False if it would overtake another one, which is to be looked after before it.
        """
        refused: set[str] = set()
        while True:
            parked = partition.parked.get(parked_id)
            if not isinstance(parked, Parked) or partition.lost:
                return True
            if parked.status == "offered" and parked.target is not None:
                await self._see_to(parked.target)
            if parked.status != "parked":
                return True
            signal = parked.signal
            found = await self._first(signal.workflow, signal.tags, {*parked.passed, *refused})
            if partition.parked.get(parked_id) != parked or partition.lost:
                continue
            if self._overtakes(partition, parked_id):
                return False
            if found is None or found.created_us > signal.until_us:
                if signal.until_us <= as_of_us:
                    partition.parked.discard(parked)
                return True
            if partition.parked.offer(parked, found.id):
                return True
            refused.add(found.id)

    async def _first(self, name: str, tags: Mapping[str, str], passed: set[str]) -> Summary | None:
        """Return the oldest workflow that it is for, of all that were durable before this one was.

        One partition is looked into after the other: a workflow that is found may be younger than one that came to a
        partition behind the look at it. Whoever looks again once it was found finds that one.
        """
        node, known = self._node, None
        while True:
            found = await node.viewing.first(name, tags, passed)
            if found is None or found.id == known or len(node.partitions) == node.log.partition_count:
                return found
            known = found.id

    async def _see_to(self, target: str) -> None:
        """See that somebody decides where an offer has gone: this process, if nobody alive owns that partition."""
        with contextlib.suppress(LogError):
            await self._node.own(self._node.index_of(target))
