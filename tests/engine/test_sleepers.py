"""What sleeping workflows cost a worker: a bound for each in memory, and no time at all (design §10)."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Self

import pytest

from gasoline_es.core import events as ev
from gasoline_es.core import shared
from gasoline_es.core.codec import Envelope, read_fact
from gasoline_es.core.filters import Filters
from gasoline_es.core.ids import new_workflow_id
from gasoline_es.core.location import Location
from projections.views import PartitionViews
from tests.engine.harness import Process, World, soon
from tests.engine.workflows import Note, echo, nap, one_note

BUDGET_BYTES = 1_000
"""Beyond its payload, which includes its tags: what Python allocates, without what a log keeps."""
YEAR_US = 365 * 24 * 3_600 * 1_000_000
AT: Location = ((1,),)


def recorded(count: int, tagged: bool) -> Iterator[tuple[str, bytes]]:
    """The records of workflows that fell asleep for a year, as they are read from a log."""
    for number in range(count):
        now_us = 1_767_225_600_000_000 + number * 1_000
        workflow_id = new_workflow_id(now_us, number.to_bytes(8))
        envelope = Envelope(
            namespace="default",
            workflow_id=workflow_id,
            workflow="order",
            ray_id=workflow_id,
            partition=0,
            epoch=1,
            worker="19c1a2b3c4d-1f2e-0123456789ab",
        )
        tags = {"order": f"order-{number}", "region": "north"} if tagged else {}
        signals = ("paid", "withdrawn") if tagged else ()
        data = [
            ev.WorkflowDispatched("order", b"%d" % number, tags),
            ev.SleepStarted(AT, 1, now_us + YEAR_US, tagged),
            ev.WorkflowSuspended(now_us + YEAR_US, signals),
        ]
        for seq, fact in enumerate(data, start=1):
            yield f"{workflow_id}/{seq}", envelope.encode(seq, now_us + seq, fact)


def kept_for_each(tagged: bool, few: int = 5_000, many: int = 15_000) -> float:
    """Bytes that views keep for each sleeper: of the later ones, as caches that are bounded are full by then."""
    records = list(recorded(many, tagged))
    views = PartitionViews()
    sizes: list[int] = []
    tracemalloc.start()
    try:
        for offset, (key, value) in enumerate(records):
            views.apply(offset, 500 * offset, *read_fact(key, value))
            if (offset + 1) in (3 * few, 3 * many):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(list(views.find("order", {}))) == many
    return (sizes[1] - sizes[0]) / (many - few)


def test_sleeper_takes_less_than_a_kilobyte() -> None:
    """design §10."""
    assert kept_for_each(tagged=False) < BUDGET_BYTES


def test_sleeper_with_tags_takes_less_than_a_kilobyte_beyond_them() -> None:
    """design §10: equal texts (names, tags, signals) are kept once, a tag that only one workflow has without a dictionary."""
    tags = {"order": "order-12345", "region": "north"}
    payload = sys.getsizeof(tags) + sys.getsizeof(tags["order"])
    assert kept_for_each(tagged=True) < BUDGET_BYTES + payload


def test_equal_texts_of_many_sleepers_are_kept_once() -> None:
    """design §10: however they came, from the log or in commands of other processes."""
    views = PartitionViews()
    shared._texts.clear()  # it begins anew when it is full, and others fill it
    for offset, (key, value) in enumerate(recorded(100, tagged=True)):
        views.apply(offset, 500 * offset, *read_fact(key, value))
    found = list(views.matching(Filters()))
    assert len(found) == 100
    assert len({id(one.name) for one in found}) == 1
    assert len({id(one.worker) for one in found}) == 1
    assert len({id(one.tags["region"]) for one in found}) == 1
    assert len({id(name) for one in found for name in one.tags}) == 2
    assert len({id(one.waiting.signals) for one in found if one.waiting is not None}) == 1
    assert all(one.ray_id is one.id for one in found)


# --- in a worker ------------------------------------------------------------------------------------------------------


class Counting:
    """Counts the calls of Python functions while its block lasts."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *ended: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: object, event: str, arg: object) -> None:
        self.calls += event == "call"


async def asleep(world: World, count: int) -> Process:
    process = await world.worker(nap, one_note, echo)
    for number in range(count):
        await process.gasoline.dispatch(nap, 365 * 24 * 3_600.0)
        await process.gasoline.dispatch(one_note, None, tags={"number": number, "all": "alike"})
    await process.evict()
    assert sum([1 async for _ in process.gasoline.list(status="sleeping")]) == 2 * count
    return process


async def calls_of(process: Process) -> tuple[int, int, int]:
    """What it takes that time passes, that another workflow runs, and that one of the sleepers is woken."""
    gasoline = process.gasoline
    passing, running, waking = Counting(), Counting(), Counting()
    for _ in range(2):
        with passing:
            await process.advance(3_600)
            process.driver.evict_idle()
            assert process.worker is not None
            assert process.worker._rebalancing is not None
            await process.worker._rebalancing.look()
        with running:
            assert await soon((await gasoline.dispatch(echo, "x")).output()) == "x"
    woken = await gasoline.find(one_note, tags={"number": 7})
    assert woken is not None
    with waking:
        await woken.signal(Note(text="good morning"))
        assert await soon(woken.output()) == "good morning"
    return passing.calls, running.calls, waking.calls


@pytest.mark.timeout(120)
async def test_cost_does_not_grow_with_the_number_of_sleepers() -> None:
    """design §10: that time passes, that others run, and that one wakes takes as many steps beside 20 as beside 800."""
    few, many = World(), World()
    beside_few, beside_many = await calls_of(await asleep(few, 10)), await calls_of(await asleep(many, 400))
    await few.end()
    await many.end()
    for with_few, with_many in zip(beside_few, beside_many, strict=True):
        assert with_many < 1.2 * with_few + 100, (beside_few, beside_many)
