"""Logs that fail: the engine's parts of required cases B03 and B04, and of losing a partition (semantics.md §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gasoline_es import ActivityContext, Gasoline, SignalTo, WorkflowContext, WorkflowHandle, activity, workflow
from gasoline_es.core.commands import Request, SendSignal, encode_request
from gasoline_es.errors import Fenced, LogFailed, NoSpace
from gasoline_es.events import SignalReceived
from gasoline_es.log.memory import MemoryLog
from tests.engine.harness import World, consumed, discarded, failures, has, post, soon, successes, types
from tests.engine.workflows import Add, Note, count_to_three, echo, nap, notes, one_note

# --- B04: no space ----------------------------------------------------------------------------------------------------


async def test_activity_whose_result_found_no_space_is_not_run_again_while_the_process_lives(any_world: World) -> None:
    """required.md B04: neither dead nor half recorded; goes on once there is space."""
    ran: list[int] = []
    go = asyncio.Event()

    @activity
    async def careful(ctx: ActivityContext, number: int) -> int:
        ran.append(number)
        await go.wait()
        return number

    @workflow
    async def careful_flow(ctx: WorkflowContext, _: None) -> int:
        return await ctx.activity(careful, 1) + await ctx.activity(careful, 2)

    process = await any_world.worker(careful_flow)
    handle = await process.gasoline.dispatch(careful_flow, None)
    await process.settle()
    process.log.always = NoSpace
    go.set()
    await soon(process.log.refused.wait())
    await process.settle()
    assert types(await handle.history()) == ["workflow.dispatched"]
    assert (await handle.get()).status == "running"
    process.log.refused.clear()
    await soon(process.log.refused.wait())  # it was tried again, and refused again
    assert ran == [1]
    process.log.always = None
    assert await soon(handle.output()) == 3
    assert ran == [1, 2]
    assert [done.attempt for done in successes(await handle.history())] == [1, 1]


async def test_failed_attempt_that_found_no_space_is_recorded_later(world: World) -> None:
    """required.md B04: the same for a failure; its number does not move."""
    ran: list[int] = []

    @activity(max_attempts=2)
    async def failing(ctx: ActivityContext, _: None) -> str:
        ran.append(ctx.attempt)
        if ctx.attempt == 1:
            raise RuntimeError("first")
        return "second"

    @workflow
    async def failing_flow(ctx: WorkflowContext, _: None) -> str:
        return await ctx.activity(failing, None)

    process = await world.worker(failing_flow)
    process.log.script = {2: NoSpace, 3: NoSpace}
    handle = await process.gasoline.dispatch(failing_flow, None)
    history = await process.until(handle.id, has("activity.failed"))
    assert [failure.attempt for failure in failures(history)] == [1]
    assert ran == [1]
    await process.advance(1)
    assert await soon(handle.output()) == "second"


async def test_calls_get_no_space_and_leave_nothing_behind(any_world: World) -> None:
    """required.md B04: a client's call gets NoSpace; none of it is visible, then or later; a repeat may be made."""
    process = await any_world.worker(notes)
    handle = await process.gasoline.dispatch(notes, 2)
    await process.settle()
    process.log.always = NoSpace
    for call in (
        handle.signal(Note(text="lost"), id="a"),
        process.gasoline.dispatch(echo, "lost"),
        process.gasoline.signal(Note(text="lost"), notes),
    ):
        with pytest.raises(NoSpace) as caught:
            await call
        assert caught.value.retryable
    process.log.always = None
    assert await handle.signal(Note(text="one"), id="a") == "a"
    await handle.signal(Note(text="two"))
    assert await soon(handle.output()) == ["one", "two"]
    assert [info.name async for info in process.gasoline.list()] == ["notes"]


@pytest.mark.parametrize("appends", range(1, 12))
async def test_no_space_at_any_append_ends_in_the_same_history(world: World, appends: int) -> None:
    """required.md B04 over B09's workflow: the k-th append finds no space, and the next one neither."""
    process = await world.worker(count_to_three)
    process.log.script = {appends: NoSpace, appends + 1: NoSpace}

    async def insisting(call: Any) -> Any:
        while True:
            try:
                return await call()
            except NoSpace:
                continue

    handle = await insisting(lambda: process.gasoline.dispatch(count_to_three, None, key="k"))
    ids = [f"add-{number}" for number in range(5)]
    for one in ids[:3]:
        await insisting(lambda one=one: handle.signal(Add(), id=one))
    assert await soon(handle.output()) == 3
    history = await handle.history()
    assert consumed(history) == ids[:3]
    assert discarded(history) == []
    assert [done.output for done in successes(history)] == [b"1", b"2", b"3"]


async def test_sleep_and_timed_wait_survive_a_full_disk(world: World) -> None:
    """required.md B04: what was due while there was no space comes when there is."""
    process = await world.worker(nap)
    handle = await process.gasoline.dispatch(nap, 10.0)
    await process.settle()
    process.log.always = NoSpace
    world.clock.advance(11)
    await soon(process.log.refused.wait())
    assert types(await handle.history())[-1] == "sleep.started"
    process.log.always = None
    assert await soon(handle.output()) == "awake"
    assert types(await handle.history()).count("sleep.finished") == 1


# --- B03: a failed sync -----------------------------------------------------------------------------------------------


async def test_failed_log_acknowledges_nothing_more_and_a_restart_has_all_that_was(any_world: World) -> None:
    """required.md B03: the call raises, later ones too; run() raises LogFailed; what was acknowledged is there."""
    process = await any_world.process()
    gasoline = process.gasoline
    worker = gasoline.worker([one_note, notes])
    running = asyncio.ensure_future(worker.run())
    handle = await gasoline.dispatch(notes, 3)
    acked = [await handle.signal(Note(text=text)) for text in ("a", "b")]
    waiting = asyncio.ensure_future(handle.output())
    await process.settle()
    process.log.always = LogFailed
    with pytest.raises(LogFailed):
        await handle.signal(Note(text="c"))
    with pytest.raises(LogFailed):
        await soon(waiting)
    for call in (gasoline.dispatch(notes, 1), handle.signal(Note()), gasoline.wake(handle.id)):
        with pytest.raises(LogFailed):
            await soon(call)
    with pytest.raises(LogFailed):
        await soon(running)
    process.log.always = None
    with pytest.raises(LogFailed):
        await gasoline.dispatch(notes, 1)
    await process.kill()
    again = await any_world.worker(notes)
    await again.gasoline.signal(Note(text="d"), to=handle.id)
    assert await soon(again.gasoline.handle(handle.id, notes).output()) == ["a", "b", "d"]
    assert consumed(await again.gasoline.history(handle.id))[:2] == acked


@pytest.mark.parametrize("appends", range(1, 9))
async def test_failed_log_at_any_append_loses_nothing_acknowledged(world: World, appends: int) -> None:
    """required.md B03 at the k-th append of B09's workflow."""
    process = await world.worker(count_to_three)
    process.log.script = {appends: LogFailed}
    acked: list[str] = []
    try:
        handle = await process.gasoline.dispatch(count_to_three, None, key="k")
        acked.append("dispatch")
        for number in range(3):
            sent = await handle.signal(Add(), id=f"add-{number}")
            acked.append(sent)
        await soon(handle.output())
    except LogFailed:
        pass
    else:
        assert process.node.failure is None
    await process.kill()
    again = await world.worker(count_to_three)
    infos = [info async for info in again.gasoline.list()]
    assert len(infos) == (1 if acked else 0)
    handle = await again.gasoline.dispatch(count_to_three, None, key="k")
    await again.settle()
    known = consumed(await handle.history()) + list((await handle.get()).queued)
    assert known == acked[1:]
    for number in range(3):
        await again.gasoline.signal(Add(), to=handle.id, id=f"add-{number}")
    assert await soon(handle.output()) == 3


async def test_log_that_breaks_in_an_unknown_way_fails_every_caller_and_lets_the_worker_end(world: World) -> None:
    """design §1.1: nothing is acknowledged that is not durable; nobody is left waiting."""
    process = await world.worker(echo, nap)
    sleeping = await process.gasoline.dispatch(nap, 5.0)

    async def broken(sections: object) -> Any:
        raise ZeroDivisionError("a bug in the log")

    process.log.append = broken  # type: ignore[method-assign]
    waiting = asyncio.ensure_future(sleeping.output())
    calls = [process.gasoline.dispatch(echo, str(number)) for number in range(20)]
    results = await soon(asyncio.gather(*calls, return_exceptions=True))
    assert {type(result) for result in results} == {LogFailed}
    with pytest.raises(LogFailed):
        await soon(waiting)
    assert process.worker is not None
    await soon(process.worker.stop())
    await soon(process.node.close())


# --- losing a partition -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("appends", range(1, 9))
async def test_partition_lost_at_any_append_ends_in_the_same_history(world: World, appends: int) -> None:
    """semantics.md §8: somebody took it and vanished; this process takes it again, folds, and goes on."""
    process = await world.worker(count_to_three)
    inner = process.log.inner
    assert isinstance(inner, MemoryLog)
    append, count = process.log.append, 0

    async def stolen(sections: Any) -> Any:
        nonlocal count
        count += 1
        if count == appends:
            for section in sections:
                inner.steal(section.partition)
        return await append(sections)

    process.log.append = stolen  # type: ignore[method-assign]
    handle = await soon(process.gasoline.dispatch(count_to_three, None, key="k"))
    for number in range(3):
        await soon(handle.signal(Add(), id=f"add-{number}"))
    assert await soon(handle.output()) == 3
    assert consumed(await handle.history()) == ["add-0", "add-1", "add-2"]


# --- a partition that is lost between its take-over and the decision of who asked for it --------------------------------


async def world_with_a_sent_signal(world: World) -> WorkflowHandle[list[str]]:
    """Leave a workflow, and a signal in the inbox of its partition: whoever takes that over appends at once."""
    client = await world.process(partitions=1)
    handle = await client.gasoline.dispatch(notes, 3)
    await client.stop()
    await post(
        world, [encode_request(Request("r", "nobody", SendSignal(handle.id, "sent", "note", b'{"text":"sent"}', True)))]
    )
    return handle


async def test_call_that_waits_for_a_reply_is_told_when_the_log_fails_here(world: World) -> None:
    """required.md B03: no reply comes by a log that failed, so it is not waited for until the time is up."""
    worker = await world.worker(nap)
    handle = await worker.gasoline.dispatch(nap, 600.0)
    await worker.settle()
    worker.log.open_gate.clear()  # it decides, and gets no further
    client = await world.process()
    waking = asyncio.ensure_future(client.gasoline.handle(handle.id, nap).wake())
    while client.log.count < 1 or not worker.log.asked.is_set():
        await asyncio.sleep(0)
    client.log.always = LogFailed
    with pytest.raises(LogFailed):
        await soon(client.gasoline.handle(handle.id, nap).cancel())
    with pytest.raises(LogFailed):
        await soon(waking, 10)
    worker.log.open_gate.set()


CALLS: list[Callable[[Gasoline, str], Awaitable[object]]] = [
    lambda gasoline, one: gasoline.signal(Note(text="x"), to=one, id="x"),
    lambda gasoline, one: gasoline.signal_many([SignalTo(Note(text="x"), one, id="x")]),
    lambda gasoline, one: gasoline.wake(one),
    lambda gasoline, one: gasoline.dispatch(notes, 2, key="k"),
    lambda gasoline, one: gasoline.dispatch(nap, 1.0, unique=True),
    lambda gasoline, one: gasoline.signal(Note(text="x"), notes),
    lambda gasoline, one: gasoline.handle(one, notes).cancel(),
]


@pytest.mark.parametrize("call", CALLS)
async def test_call_whose_partition_is_lost_as_it_is_taken_gets_why_the_log_failed(
    any_world: World, call: Callable[[Gasoline, str], Awaitable[object]]
) -> None:
    """required.md B03: LogFailed, not what a closed log answers; found by a simulated life, seed 1024113655."""
    handle = await world_with_a_sent_signal(any_world)
    process = await any_world.process()
    process.log.script = {1: LogFailed}
    with pytest.raises(LogFailed):
        await soon(call(process.gasoline, handle.id))
    with pytest.raises(LogFailed):
        await soon(process.gasoline.get(handle.id))
    await process.kill()
    again = await any_world.process()
    assert (await again.gasoline.get(handle.id)).queued == {}


@pytest.mark.parametrize("call", CALLS)
async def test_call_whose_partition_is_fenced_as_it_is_taken_takes_it_again(
    any_world: World, call: Callable[[Gasoline, str], Awaitable[object]]
) -> None:
    """semantics.md §8: a fenced owner decides nothing; the call is decided by the next one, here the same process."""
    handle = await world_with_a_sent_signal(any_world)
    process = await any_world.process()
    process.log.script = {1: Fenced, 2: Fenced}
    await soon(call(process.gasoline, handle.id))
    history = await process.gasoline.history(handle.id)
    assert types(history).count("signal.received") <= 2
    received = [event.data.signal_id for event in history if isinstance(event.data, SignalReceived)]
    assert received[0] == "sent"
    assert len(set(received)) == len(received)
