"""A unique dispatch looks when it is its turn among the calls of its client (design §5)."""

from __future__ import annotations

import asyncio

from gasoline_es import WorkflowHandle
from gasoline_es.errors import NoSpace
from tests.engine.harness import World, soon, types
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


async def test_match_among_a_clients_own_dispatches_is_answered_when_that_one_is_durable(any_world: World) -> None:
    """design §1.1, semantics.md §6: nothing that is not on the log is acknowledged, whoever's dispatch it was."""
    process = await any_world.process()
    process.log.open_gate.clear()
    calls = [
        asyncio.ensure_future(process.gasoline.dispatch(one_note, None, tags=tags, unique=True))
        for tags in ({"k": 1, "z": 2}, {"k": 1}, {"k": 1, "z": 2})
    ]
    await soon(process.log.asked.wait())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not any(call.done() for call in calls)
    process.log.open_gate.set()
    assert len({handle.id for handle in await soon(asyncio.gather(*calls))}) == 1


async def test_match_among_a_clients_own_dispatches_that_fails_is_no_match(any_world: World) -> None:
    """required.md B04: the first finds no space; the next one of its kind is dispatched itself, and so on."""
    process = await any_world.process()
    process.log.script = {1: NoSpace}
    calls = [process.gasoline.dispatch(one_note, None, tags={"k": 1}, unique=True) for _ in range(5)]
    first, *others = await soon(asyncio.gather(*calls, return_exceptions=True))
    assert isinstance(first, NoSpace)
    assert len({handle.id for handle in others}) == 1
    assert types(await others[0].history()) == ["workflow.dispatched"]


async def test_match_among_a_clients_own_dispatches_whose_caller_went_away_is_no_match(any_world: World) -> None:
    """Whoever was cancelled decides nothing for the others: the workflow may be there or not, and they find out."""
    process = await any_world.process()
    process.log.open_gate.clear()
    first, second = [
        asyncio.ensure_future(process.gasoline.dispatch(one_note, None, tags={"k": 1}, unique=True)) for _ in range(2)
    ]
    await soon(process.log.asked.wait())
    for _ in range(50):
        await asyncio.sleep(0)
    first.cancel()
    process.log.open_gate.set()
    handle = await soon(second)
    assert [info.id async for info in process.gasoline.list()] == [handle.id]
