"""Unique dispatches in great number (semantics.md §6): what one costs does not grow with how many there are."""

from __future__ import annotations

import asyncio

import pytest

from gasoline_es.core.commands import Dispatch
from gasoline_es.core.ids import new_workflow_id
from gasoline_es.core.state import Summary, WorkflowState
from tests.engine.harness import PATIENCE_S, World, soon
from tests.engine.workflows import notes

MANY = 1_000


async def test_unique_dispatches_in_one_gather_are_not_compared_with_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """semantics.md §6, design §10: a thousand in one append take linear time."""
    process = await world.process(partitions=1)
    looks = 0

    def incomplete(self: Summary) -> bool:
        nonlocal looks
        looks += 1
        return self.completed_us is None

    monkeypatch.setattr(Summary, "incomplete", property(incomplete))
    gasoline = process.gasoline
    process.log.open_gate.clear()  # a slow disk: all of them are on their way to the log at once
    calls = [
        asyncio.ensure_future(gasoline.dispatch(notes, 1, tags={"number": number % MANY}, unique=True))
        for number in range(MANY + 100)
    ]
    async with asyncio.timeout(PATIENCE_S):
        while process.node.partitions.keys() != {0} or len(process.node.partitions[0].lives) < MANY:
            await asyncio.sleep(0)
    process.log.open_gate.set()
    handles = await soon(asyncio.gather(*calls))
    assert len({handle.id for handle in handles}) == MANY
    assert [handle.id for handle in handles[MANY:]] == [handle.id for handle in handles[:100]]
    assert looks < 20 * MANY


async def test_unique_dispatches_that_name_fewer_tags_find_what_is_on_its_way_to_the_log(world: World) -> None:
    """semantics.md §6: subset on string form, the oldest first, also among those of the same append."""
    process = await world.process(partitions=1)
    gasoline = process.gasoline
    one, two, either, named, other = await asyncio.gather(
        gasoline.dispatch(notes, 1, tags={"a": 1, "b": 1}),
        gasoline.dispatch(notes, 1, tags={"a": 1, "b": 2}),
        gasoline.dispatch(notes, 1, tags={"a": 1}, unique=True),
        gasoline.dispatch(notes, 1, tags={"b": 2}, unique=True),
        gasoline.dispatch(notes, 1, tags={"a": 2}, unique=True),
    )
    assert one.id != two.id
    assert either.id == one.id
    assert named.id == two.id
    assert other.id not in (one.id, two.id)


async def test_repeats_of_unique_dispatches_load_no_history(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """design §5: a repeat is answered from the views; the history of what it found is not read."""
    client = await world.process(partitions=1)
    handles = [await client.gasoline.dispatch(notes, 1, tags={"number": number}) for number in range(20)]
    await client.stop()
    process = await world.process()
    partition = await process.node.own(0)
    assert partition is not None

    def refused(*_: object) -> WorkflowState:
        raise AssertionError("a history was read")

    monkeypatch.setattr("gasoline_es.runtime.partition.fold", refused)
    for number, handle in enumerate(handles):
        workflow_id = new_workflow_id(world.clock.now_us(), bytes([number] * 8))
        reply = partition.decide(Dispatch(workflow_id, "notes", b"1", {"number": str(number)}, unique=True))
        assert reply.id == handle.id
    assert not partition.lives
