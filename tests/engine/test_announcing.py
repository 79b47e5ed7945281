"""A worker's word on the log about what it runs: written without an append of its own, taken back when it stops."""

from __future__ import annotations

import pytest

from gasoline_es import ActivityContext, WorkflowContext, activity, workflow
from gasoline_es.core.announced import WORKER, Announced
from gasoline_es.errors import NoSpace
from tests.engine.harness import Process, World, soon
from tests.engine.workflows import nap


@activity
async def weigh(ctx: ActivityContext, parcel: str) -> int:
    return 3


@workflow
async def ship(ctx: WorkflowContext, parcel: str) -> int:
    return await ctx.activity(weigh, parcel)


def said(process: Process) -> list[Announced | None]:
    """What is durable of it, over all partitions, in order of each; None: a tombstone."""
    log = process.log
    found: list[Announced | None] = []
    for partition in range(log.partition_count):
        for record in log.read(process.node.topics.registry, partition):
            if record.key.startswith(WORKER):
                assert record.key == f"{WORKER}{log.incarnation}"
                found.append(None if record.value is None else Announced.read(record.value))
    return found


async def test_worker_says_what_it_runs_in_the_first_append_that_comes(any_world: World) -> None:
    """design §5: the registry names definitions; nobody waits for it."""
    process = await any_world.worker(ship, nap)
    assert process.log.count == 0
    await process.settle()
    (told,) = said(process)
    assert told is not None
    assert (told.worker, told.workflows, told.activities) == (process.log.incarnation, ("nap", "ship"), ("weigh",))
    assert told.started.startswith("2")
    before = process.log.count
    await process.settle()
    assert process.log.count == before, "once is enough"


async def test_worker_that_nobody_gives_work_asks_for_the_append_itself(world: World) -> None:
    """Its chores look after it: no worker is missing for long."""
    process = await world.worker(ship)
    assert process.worker is not None
    process.worker._announcement.see_to()
    await soon(process.node._appender.flush())
    assert len(said(process)) == 1


async def test_announcement_that_found_no_space_is_made_again(world: World) -> None:
    """design §1: none of the append is visible; the next look begins anew."""
    process = await world.worker(ship)
    assert process.worker is not None
    process.log.always = NoSpace
    process.worker._announcement.see_to()
    await soon(process.node._appender.flush())
    assert said(process) == []
    process.log.always = None
    for _ in range(2):
        process.worker._announcement.see_to()
        await soon(process.node._appender.flush())
    assert len(said(process)) == 1


async def test_stopped_worker_takes_it_back_and_a_second_one_says_it_anew(any_world: World) -> None:
    """design §5: a tombstone, so that compaction can remove it."""
    process = await any_world.worker(ship)
    await process.settle()
    assert process.worker is not None
    await process.worker.stop()
    assert [one is None for one in said(process)] == [False, True]
    await process.work(nap)
    await process.settle()
    told = said(process)
    assert [one is None for one in told] == [False, True, False]
    assert told[-1] is not None
    assert told[-1].workflows == ("nap",)


async def test_worker_that_was_never_asked_for_anything_leaves_nothing_behind_when_it_stops(world: World) -> None:
    process = await world.worker(ship)
    assert process.worker is not None
    await process.worker.stop()
    assert [one is None for one in said(process)] == [False, True]


async def test_partition_that_is_stolen_with_the_word_in_it_lets_it_be_said_in_another(world: World) -> None:
    """design §5: whoever is fenced was not heard."""
    process = await world.worker(ship)
    inner = process.log.inner
    assert not hasattr(inner, "directory")
    inner.steal(0)  # type: ignore[union-attr]  # a memory log
    assert process.worker is not None
    for _ in range(3):
        process.worker._announcement.see_to()
        await soon(process.node._appender.flush())
    assert len([one for one in said(process) if one is not None]) == 1
    assert process.worker._announcement._durable


@pytest.mark.parametrize(
    "raw", [b"[]", b"3", b"{}", b'{"worker":"w"}', b'{"workflows":3,"activities":[]}', b"nonsense"]
)
def test_what_is_no_announcement_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Announced.read(raw)
