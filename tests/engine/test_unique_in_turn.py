"""A unique dispatch looks when it is its turn among the calls of its client (design §5)."""

from __future__ import annotations

import asyncio

from gasoline_es import WorkflowHandle
from tests.engine.harness import World
from tests.engine.workflows import Note, one_note


async def test_unique_dispatch_after_a_plain_one_in_one_gather_finds_it(any_world: World) -> None:
    client = await any_world.process()
    plain, unique, again = await asyncio.gather(
        client.gasoline.dispatch(one_note, None, tags={"case": "1"}),
        client.gasoline.dispatch(one_note, None, tags={"case": "1"}, unique=True),
        client.gasoline.dispatch(one_note, None, unique=True),
    )
    assert plain.id == unique.id == again.id
    assert len([info async for info in client.gasoline.list()]) == 1


async def test_signal_by_tags_finds_a_unique_dispatch_of_the_same_gather(any_world: World) -> None:
    client = await any_world.process()
    handle, sent = await asyncio.gather(
        client.gasoline.dispatch(one_note, None, tags={"case": "2"}, unique=True),
        client.gasoline.signal(Note(text="hello"), one_note, tags={"case": "2"}),
    )
    assert isinstance(handle, WorkflowHandle)
    assert sent in (await handle.get()).queued


async def test_unique_dispatches_of_one_gather_make_one_workflow(any_world: World) -> None:
    """semantics.md §6."""
    client = await any_world.process()
    handles = await asyncio.gather(
        *(client.gasoline.dispatch(one_note, None, tags={"case": "3"}, unique=True) for _ in range(50))
    )
    assert len({handle.id for handle in handles}) == 1
