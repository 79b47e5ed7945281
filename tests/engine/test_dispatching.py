"""Dispatch, tags, unique and key through the engine (semantics.md §6, design §5)."""

from __future__ import annotations

import asyncio

import pytest

from gasoline_es import WorkflowHandle
from gasoline_es.errors import DefinitionError, InvalidTags, KeyReused, NoSpace, RecordTooLarge
from tests.engine.harness import World, soon, types
from tests.engine.workflows import Note, echo, nap, one_note


async def test_unique_dispatches_at_once_give_one_workflow(any_world: World) -> None:
    """semantics.md §6, required.md B15 within a process: 50 callers, one id, one creation event, no error."""
    process = await any_world.process()
    for number in range(5):
        tags = {"round": number}
        handles = await asyncio.gather(
            *(process.gasoline.dispatch(one_note, None, tags=tags, unique=True) for _ in range(50))
        )
        assert len({handle.id for handle in handles}) == 1
        found = [info async for info in process.gasoline.list(name="one_note", tags=tags)]
        assert [info.id for info in found] == [handles[0].id]
        assert types(await handles[0].history()) == ["workflow.dispatched"]


async def test_unique_dispatch_matches_incomplete_workflows_by_subset_of_tags(any_world: World) -> None:
    """semantics.md §6: the existing id for a subset, any incomplete one without tags, a new one after completion."""
    process = await any_world.worker(one_note, echo)
    gasoline = process.gasoline
    wide = await gasoline.dispatch(one_note, None, tags={"k": "1", "z": "2"})
    assert (await gasoline.dispatch(one_note, None, tags={"k": "1"}, unique=True)).id == wide.id
    assert (await gasoline.dispatch(one_note, None, unique=True)).id == wide.id
    other = await gasoline.dispatch(one_note, None, tags={"k": "2"}, unique=True)
    assert other.id != wide.id
    await wide.signal(Note(text="done"))
    await soon(wide.output())
    again = await gasoline.dispatch(one_note, None, tags={"k": "1"}, unique=True)
    assert again.id not in (wide.id, other.id)
    assert (await gasoline.dispatch(echo, "x", unique=True)).id not in (wide.id, other.id, again.id)


async def test_unique_dispatch_holds_across_a_restart(any_world: World) -> None:
    """semantics.md §6."""
    first = await any_world.process()
    handle = await first.gasoline.dispatch(one_note, None, tags={"k": 1}, unique=True)
    await first.kill()
    second = await any_world.process()
    assert (await second.gasoline.dispatch(one_note, None, tags={"k": 1}, unique=True)).id == handle.id


async def test_same_key_gives_the_same_workflow_complete_or_not(any_world: World) -> None:
    """design §5: the same key with the same input gives the existing workflow; with another input it is an error."""
    process = await any_world.worker(echo, nap)
    gasoline = process.gasoline
    handle = await gasoline.dispatch(echo, "a", key="order 42")
    again = await gasoline.dispatch(echo, "a", key="order 42")
    assert again.id == handle.id
    assert await soon(handle.output()) == "a"
    assert (await gasoline.dispatch(echo, "a", key="order 42")).id == handle.id
    for _ in range(2):
        with pytest.raises(KeyReused) as caught:
            await gasoline.dispatch(echo, "b", key="order 42")
        assert caught.value.key == "order 42"
    assert (await gasoline.dispatch(echo, "b", key="order 43")).id != handle.id
    assert (await gasoline.dispatch(nap, 1.0, key="order 42")).id != handle.id, "a key belongs to a name"
    assert types(await handle.history()).count("workflow.dispatched") == 1


async def test_same_key_at_once_gives_one_workflow(any_world: World) -> None:
    """design §5."""
    process = await any_world.process()
    handles = await asyncio.gather(*(process.gasoline.dispatch(echo, "a", key="k") for _ in range(20)))
    assert len({handle.id for handle in handles}) == 1


async def test_repeated_dispatch_leaves_a_running_workflow_alone(any_world: World) -> None:
    """design §5: a repeat records nothing and changes nothing; the sleep still ends in time."""
    process = await any_world.worker(nap)
    handle = await process.gasoline.dispatch(nap, 10.0, key="k")
    await process.settle()
    before = await handle.history()
    assert (await process.gasoline.dispatch(nap, 10.0, key="k")).id == handle.id
    assert await handle.history() == before
    await process.advance(10)
    assert (await handle.get()).status == "complete"


async def test_unique_and_key_together_are_refused(world: World) -> None:
    """api.md."""
    process = await world.process()
    with pytest.raises(ValueError, match="not both"):
        await process.gasoline.dispatch(echo, "a", unique=True, key="k")
    assert process.log.count == 0


async def test_tags_are_kept_as_strings_of_scalars_and_others_refused(any_world: World) -> None:
    """semantics.md §6: matching on the string form; a value that is no scalar is InvalidTags, nothing recorded."""
    process = await any_world.process()
    gasoline = process.gasoline
    handle = await gasoline.dispatch(one_note, None, tags={"i": 1, "f": 1.5, "b": True, "s": "x"})
    assert (await handle.get()).tags == {"i": "1", "f": "1.5", "b": "true", "s": "x"}
    found = await gasoline.find(one_note, tags={"i": "1", "b": "true"})
    assert found is not None
    assert found.id == handle.id
    before = process.log.count
    for bad in ([1], None, {"a": 1}, float("nan"), b"x"):
        with pytest.raises(InvalidTags):
            await gasoline.dispatch(one_note, None, tags={"bad": bad})  # type: ignore[dict-item]
        with pytest.raises(InvalidTags):
            await gasoline.signal(Note(), one_note, tags={"bad": bad})  # type: ignore[dict-item]
    assert process.log.count == before


async def test_dispatch_beyond_the_record_limit_is_refused_and_recorded_nowhere(any_world: World) -> None:
    """design §6: one stated limit, checked before anything is recorded."""
    process = await any_world.worker(echo)
    before = process.log.count
    with pytest.raises(RecordTooLarge):
        await process.gasoline.dispatch(echo, "x" * 1_000_000)
    assert process.log.count == before
    assert [info async for info in process.gasoline.list()] == []
    assert await soon((await process.gasoline.dispatch(echo, "x" * 490_000)).output()) == "x" * 490_000


@pytest.mark.parametrize("owner", ["this process", "another process"])
async def test_largest_payloads_with_the_longest_ids_are_recorded_or_refused_never_break_the_process(
    any_world: World, owner: str
) -> None:
    """design §6: whatever fits the check at the call must fit the log, here and through an inbox."""
    client = await any_world.process()
    working = client if owner == "this process" else await any_world.worker(nap)
    handle = await (client if owner == "this process" else working).gasoline.dispatch(one_note, None)
    key = "\U0001f600" * 300
    for size in (990_000, 995_000, 997_500, 997_900, 997_985):
        try:
            await soon(client.gasoline.signal(Note(text="x" * size), to=handle.id, id=f"{key[:290]}{size}"))
        except RecordTooLarge:
            continue
    for size in (990_000, 995_000, 997_500, 997_900, 997_990):
        try:
            await soon(client.gasoline.dispatch(echo, "x" * size, key=f"{key[:290]}{size}"))
        except RecordTooLarge:
            continue
    assert client.node.failure is None
    assert working.node.failure is None
    await soon(client.gasoline.signal(Note(), to=handle.id))


async def test_dispatch_is_durable_when_it_returns(any_world: World) -> None:
    """design §1.1: killed right after, the workflow is there."""
    process = await any_world.process()
    handle = await process.gasoline.dispatch(one_note, None, tags={"a": "b"})
    await process.kill()
    again = await any_world.process()
    info = await again.gasoline.get(handle.id)
    assert (info.name, info.status, info.tags, info.input) == ("one_note", "running", {"a": "b"}, None)


async def test_dispatch_that_found_no_space_left_no_trace(any_world: World) -> None:
    """required.md B04: the call gets NoSpace; the key is free, the id unknown."""
    process = await any_world.process()
    await process.gasoline.dispatch(echo, "first")
    process.log.always = NoSpace
    with pytest.raises(NoSpace):
        await process.gasoline.dispatch(echo, "a", key="k", tags={"a": 1})
    with pytest.raises(NoSpace):
        await process.gasoline.dispatch(echo, "a", tags={"a": 1}, unique=True)
    process.log.always = None
    assert await process.gasoline.find(echo, tags={"a": 1}) is None
    handle = await process.gasoline.dispatch(echo, "b", key="k")
    assert len([info async for info in process.gasoline.list()]) == 2
    await process.work(echo)
    assert await soon(handle.output()) == "b"


async def test_what_cannot_be_dispatched_is_refused_at_once(world: World) -> None:
    """api.md: a DefinitionError that says so."""
    process = await world.process()
    with pytest.raises(DefinitionError, match="@workflow"):
        await process.gasoline.dispatch(echo.fn, "x")  # type: ignore[arg-type]
    assert process.log.count == 0


async def test_list_filters_by_name_tags_status_error_and_time(any_world: World) -> None:
    """api.md: list; in order of creation; payloads only where asked for."""
    process = await any_world.worker(echo, one_note)
    gasoline = process.gasoline
    made: list[WorkflowHandle[str]] = []
    for number in range(6):
        any_world.clock.advance(1)
        workflow = echo if number % 2 else one_note
        made.append(await gasoline.dispatch(workflow, "x" if number % 2 else None, tags={"n": number % 3}))  # type: ignore[arg-type]
    await process.settle()
    ids = [handle.id for handle in made]
    assert [info.id async for info in gasoline.list()] == ids
    assert [info.id async for info in gasoline.list(name="echo")] == ids[1::2]
    assert [info.id async for info in gasoline.list(tags={"n": 0})] == [ids[0], ids[3]]
    assert [info.id async for info in gasoline.list(status="complete")] == ids[1::2]
    since = (await made[4].get()).created
    assert [info.id async for info in gasoline.list(since=since)] == ids[4:]
    assert [info.output async for info in gasoline.list(name="echo")] == [None] * 3
    assert [info.output async for info in gasoline.list(name="echo", payloads=True)] == ["x"] * 3
    assert [info async for info in gasoline.list(error="nothing of the kind")] == []


async def test_ray_id_is_the_dispatchers_or_the_workflows_own(world: World) -> None:
    """semantics.md §7: ray id is queryable; the id of the request that started the chain."""
    process = await world.process()
    first = await process.gasoline.dispatch(echo, "x")
    assert (await first.get()).ray_id == first.id
    second = await process.gasoline.dispatch(echo, "x", ray_id=first.id)
    assert (await second.get()).ray_id == first.id
    with pytest.raises(ValueError, match="ray_id"):
        await process.gasoline.dispatch(echo, "x", ray_id="../x")
