"""What docs/semantics.md says in a clause, and no test of a whole subject holds (see docs/design/semantics-proofs.md)."""

from __future__ import annotations

import asyncio

import pytest

from gasoline_es import WorkflowContext, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.history import TAKEN_CHARACTERS_MAX
from gasoline_es.errors import NoOwner
from gasoline_es.runtime import calls
from gasoline_es.runtime.worker import EVICT_AFTER_S, MAX_CONCURRENCY, STOP_LIMIT_S
from tests.engine.harness import World, consumed, has, soon
from tests.engine.workflows import Note, echo, one_note


@workflow
async def twice(ctx: WorkflowContext, _: None) -> list[str]:
    first = await ctx.listen(Note, timeout=60.0)
    second = await ctx.listen(Note)
    return ["nothing" if first is None else first.text, second.text]


@workflow
async def takes_many(ctx: WorkflowContext, _: None) -> list[int]:
    taken: list[int] = []
    while sum(taken) < 1_500:
        taken.append(len(await ctx.listen_n(Note, limit=10_000)))
    return taken


@workflow
async def dies(ctx: WorkflowContext, _: None) -> None:
    raise RuntimeError("broken")


async def test_signal_behind_a_recorded_timeout_waits_for_another_listen(any_world: World) -> None:
    """semantics.md §5: once it is recorded that the time is up, a later signal is for a later listen."""
    process = await any_world.worker(twice)
    handle = await process.gasoline.dispatch(twice, None)
    await process.advance(61)
    await process.until(handle.id, has("sleep.finished"))
    await handle.signal(Note(text="late"))
    assert await soon(handle.output()) == ["nothing", "late"]


async def test_listen_n_takes_fewer_where_their_ids_are_long(any_world: World) -> None:
    """semantics.md §5: fewer if their ids grow beyond about 200,000 characters; the next takes the rest, in order."""
    assert TAKEN_CHARACTERS_MAX == 200_000
    process = await any_world.process()
    handle = await process.gasoline.dispatch(takes_many, None)
    ids = [f"{number:0280}" for number in range(1_500)]
    await soon(asyncio.gather(*(handle.signal(Note(), id=one) for one in ids)))
    await process.work(takes_many)
    taken: list[int] = await soon(handle.output())
    assert sum(taken) == 1_500
    assert len(taken) > 2
    assert all(280 * count <= TAKEN_CHARACTERS_MAX + 280 for count in taken)
    assert consumed(await handle.history()) == ids


async def test_dead_workflow_stays_in_the_tag_index(any_world: World) -> None:
    """semantics.md §6: it is incomplete: found by tags, met by a unique dispatch."""
    process = await any_world.worker(dies)
    handle = await process.gasoline.dispatch(dies, None, tags={"a": 1})
    await process.status(handle.id, "dead")
    found = await process.gasoline.find(dies, tags={"a": 1})
    assert found is not None
    assert found.id == handle.id
    assert (await process.gasoline.dispatch(dies, None, tags={"a": 1}, unique=True)).id == handle.id


async def test_waiting_workflow_stays_in_memory_for_five_seconds(any_world: World) -> None:
    """semantics.md §7: not less; then its suspension is recorded, and it leaves."""
    assert EVICT_AFTER_S == 5.0
    process = await any_world.worker(one_note)
    handle = await process.gasoline.dispatch(one_note, None)
    await process.evict(4.9)
    assert process.in_memory(handle.id)
    assert not has("workflow.suspended")(await handle.history())
    await process.evict(0.1)
    assert not process.in_memory(handle.id)
    assert isinstance((await handle.history())[-1].data, ev.WorkflowSuspended)


async def test_owner_that_does_not_answer_is_no_owner_and_may_carry_the_command_out_later(
    any_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """semantics.md §8: after 30 s without an answer NoOwner; the command is durable, and is decided once somebody reads it."""
    assert calls.REPLY_TIMEOUT_S == 30.0
    worker = await any_world.worker(echo)
    caller = await any_world.process()
    await worker.settle()
    worker.log.open_gate.clear()  # it lives, and cannot write
    monkeypatch.setattr(calls, "REPLY_TIMEOUT_S", 0.1)
    with pytest.raises(NoOwner, match="did not answer") as caught:
        await caller.gasoline.dispatch(echo, "late", key="k")
    assert caught.value.fields["command_id"]
    worker.log.open_gate.set()
    monkeypatch.setattr(calls, "REPLY_TIMEOUT_S", 30.0)
    handle = await soon(caller.gasoline.dispatch(echo, "late", key="k"))
    assert await soon(handle.output()) == "late"
    assert [event.type for event in await handle.history()].count("workflow.dispatched") == 1


def test_limits_are_those_that_are_written_down() -> None:
    """semantics.md §8."""
    assert (MAX_CONCURRENCY, STOP_LIMIT_S) == (1_000, 30.0)
