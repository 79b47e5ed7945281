"""The life of a workflow through the engine: dead, woken, complete, waiting for its name (semantics.md §7)."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.schedule_events import ScheduleSet
from gasoline_es.errors import DefinitionError, WorkflowFailed, WorkflowNotFound
from tests.engine.harness import World, consumed, has, soon, types
from tests.engine.workflows import Note, echo, nap, notes, one_note

ran: list[str] = []


@activity
async def remember(ctx: ActivityContext, text: str) -> str:
    ran.append(f"{ctx.workflow_id} {text}")
    return text


@workflow
async def breaking(ctx: WorkflowContext, _: None) -> str:
    await ctx.activity(remember, "before")
    raise LookupError("the shelf is empty")


@workflow(name="breaking")
async def mended(ctx: WorkflowContext, _: None) -> str:
    await ctx.activity(remember, "before")
    return await ctx.activity(remember, "after")


async def test_exception_in_the_body_leaves_a_dead_workflow_with_the_error_kept(any_world: World) -> None:
    """semantics.md §7."""
    process = await any_world.worker(breaking)
    handle = await process.gasoline.dispatch(breaking, None)
    with pytest.raises(WorkflowFailed, match="the shelf is empty") as caught:
        await soon(handle.output())
    assert caught.value.error.type == "LookupError"
    info = await handle.get()
    assert (info.status, info.waiting_for, info.completed) == ("dead", None, None)
    assert info.error is not None
    assert (info.error.type, info.error.message) == ("LookupError", "the shelf is empty")
    assert "breaking" in info.error.traceback


async def test_dead_workflow_does_not_run_again_by_itself(any_world: World) -> None:
    """semantics.md §7: nothing will wake it but an operator: no restart, no signal, no time."""
    process = await any_world.worker(breaking)
    handle = await process.gasoline.dispatch(breaking, None)
    before = await process.status(handle.id, "dead")
    await process.stop()
    again = await any_world.worker(mended)
    await again.advance(86_400)
    sent = await again.gasoline.signal(Note(), to=handle.id)
    await again.settle()
    history = await again.gasoline.history(handle.id)
    assert history[: len(before)] == before
    assert types(history[len(before) :]) == ["signal.received"]
    assert list((await again.gasoline.get(handle.id)).queued) == [sent], "it is incomplete, so it still takes signals"


async def test_woken_workflow_replays_what_is_recorded_and_goes_on(any_world: World) -> None:
    """semantics.md §7, required.md B06: after the code is fixed, waking it goes on from where it was."""
    process = await any_world.worker(breaking)
    handle = await process.gasoline.dispatch(breaking, None)
    await process.status(handle.id, "dead")
    await process.stop()
    again = await any_world.worker(mended)
    await again.gasoline.wake(handle.id)
    assert await soon(again.gasoline.handle(handle.id, mended).output()) == "after"
    assert [line for line in ran if line.startswith(handle.id)] == [f"{handle.id} before", f"{handle.id} after"]
    woken = next(e.data for e in await again.gasoline.history(handle.id) if isinstance(e.data, ev.WorkflowWoken))
    assert woken.by
    assert (await again.gasoline.get(handle.id)).error is None


async def test_wake_without_a_worker_is_done_when_one_starts(any_world: World) -> None:
    """design §5: deciding needs no worker."""
    process = await any_world.worker(breaking)
    handle = await process.gasoline.dispatch(breaking, None)
    await process.status(handle.id, "dead")
    await process.stop()
    client = await any_world.process()
    await client.gasoline.wake(handle.id)
    assert (await client.gasoline.get(handle.id)).status == "running"
    await client.work(mended)
    assert await soon(client.gasoline.handle(handle.id, mended).output()) == "after"


async def test_wake_leaves_running_sleeping_and_complete_workflows_as_they_are(any_world: World) -> None:
    """api.md: a running or complete one is left alone; a sleeping one looks again and sleeps on to its first deadline."""
    process = await any_world.worker(nap, echo)
    running = await process.gasoline.dispatch(nap, 10.0)
    complete = await process.gasoline.dispatch(echo, "x")
    await soon(complete.output())
    await running.wake()
    await complete.wake()
    await process.settle()
    assert types(await complete.history())[-1] == "workflow.completed"
    assert (await complete.get()).status == "complete"
    await process.evict(1)
    await process.evict(5)
    assert (await running.get()).status == "sleeping"
    await running.wake()
    await process.settle()
    assert (await running.get()).status != "complete"
    await process.advance(4)
    assert await soon(running.output()) == "awake"
    assert types(await running.history()).count("sleep.started") == 1
    with pytest.raises(WorkflowNotFound):
        await process.gasoline.wake("00000000-0000-7000-8000-000000000000")


async def test_name_that_is_not_registered_waits_and_is_logged_once(
    any_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """semantics.md §7: it waits, it does not die; a worker that knows it runs it."""
    process = await any_world.worker(echo)
    with caplog.at_level(logging.WARNING, "gasoline_es"):
        handles = [await process.gasoline.dispatch(one_note, None) for _ in range(3)]
        for handle in handles:
            await handle.signal(Note(text="waited"))
        await process.settle()
    told = [r for r in caplog.records if "'one_note' wait" in r.getMessage()]
    assert len(told) == 1
    assert [(await handle.get()).status for handle in handles] == ["running"] * 3
    assert not any(process.in_memory(handle.id) for handle in handles)
    await process.stop()
    again = await any_world.worker(one_note)
    for handle in handles:
        assert await soon(again.gasoline.handle(handle.id, one_note).output()) == "waited"


async def test_error_text_of_any_kind_ends_in_a_dead_workflow_not_a_dead_process(any_world: World) -> None:
    """required.md B22, design §6: control characters take six bytes of JSON each, surrogates cannot be written."""

    @workflow
    async def screaming(ctx: WorkflowContext, text: str) -> None:
        match text:
            case "nul":
                raise ValueError("\x00" * 400_000)
            case "surrogate":
                raise ValueError("\udc80" * 400_000)
            case "emoji":
                raise ValueError("\U0001f600" * 400_000)
            case _:
                raise type("E" * 200_000, (Exception,), {})("x" * 2_000_000)

    process = await any_world.worker(screaming, echo)
    for text in ("nul", "surrogate", "emoji", "long"):
        handle = await process.gasoline.dispatch(screaming, text)
        history = await process.status(handle.id, "dead")
        assert types(history) == ["workflow.dispatched", "workflow.failed"]
    assert process.node.failure is None
    assert await soon((await process.gasoline.dispatch(echo, "lives")).output()) == "lives"


async def test_log_line_of_a_death_is_one_short_line_without_control_characters(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """required.md B24, style.md §10: an error's text cannot forge a line of the worker's log, nor flood it."""

    @workflow
    async def forging(ctx: WorkflowContext, _: None) -> None:
        raise ValueError("first\nERROR forged \x1b[2J\x9b\r\u202e\udc80\x00" + "x" * 100_000)

    process = await world.worker(forging)
    with caplog.at_level(logging.ERROR, "gasoline_es"):
        handle = await process.gasoline.dispatch(forging, None)
        await process.status(handle.id, "dead")
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.isprintable()
    assert len(told) < 1_000
    assert r"ValueError: first\nERROR forged \x1b[2J\x9b\r\u202e\udc80\x00xxx" in told
    assert handle.id in told


async def test_output_times_out_without_harm(any_world: World) -> None:
    """api.md: handle.output(timeout=…)."""
    process = await any_world.worker(one_note)
    handle = await process.gasoline.dispatch(one_note, None)
    with pytest.raises(TimeoutError):
        await handle.output(timeout=0.01)
    await handle.signal(Note(text="later"))
    assert await soon(handle.output(timeout=30)) == "later"


async def test_everything_about_a_workflow_can_be_asked_for_at_any_time(any_world: World) -> None:
    """semantics.md §7: input, state, output, error, tags, times and ray id; also by a process that only reads."""
    process = await any_world.worker(notes)
    handle = await process.gasoline.dispatch(notes, 2, tags={"a": 1})
    created_us = any_world.clock.now_us()
    await process.advance(3)
    await handle.signal(Note(text="one"))
    await process.evict()
    info = await handle.get()
    assert (info.name, info.status, info.input, info.output) == ("notes", "sleeping", 2, None)
    assert info.waiting_for == "signal note"
    assert info.waiting_until is None
    assert info.created.timestamp() * 1e6 == pytest.approx(created_us)
    await handle.signal(Note(text="two"))
    await soon(handle.output())
    await process.stop()
    async with any_world.reader() as reader:
        info = await reader.get(handle.id)
        assert (info.status, info.output, info.queued) == ("complete", ["one", "two"], {})
        assert info.completed is not None
        assert (info.completed - info.created).total_seconds() == pytest.approx(8)
        assert info.events == len(await reader.history(handle.id))


async def test_complete_workflow_leaves_memory(any_world: World) -> None:
    """design §5: a workflow is in memory only while it runs."""
    process = await any_world.worker(echo)
    handles = [await process.gasoline.dispatch(echo, "x") for _ in range(20)]
    for handle in handles:
        await soon(handle.output())
    await process.settle()
    assert not any(partition.lives for partition in process.node.partitions.values())


async def test_signals_to_a_dead_workflow_are_consumed_once_it_is_woken(any_world: World) -> None:
    """semantics.md §5, §7."""
    tries: list[int] = []

    @workflow
    async def once_broken(ctx: WorkflowContext, _: None) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("first time")
        return (await ctx.listen(Note)).text

    process = await any_world.worker(once_broken)
    handle = await process.gasoline.dispatch(once_broken, None)
    await process.status(handle.id, "dead")
    sent = await handle.signal(Note(text="kept"))
    await handle.wake()
    assert await soon(handle.output()) == "kept"
    assert consumed(await handle.history()) == [sent]


async def test_second_worker_in_a_process_is_refused_and_the_next_one_goes_on(any_world: World) -> None:
    """api.md: one worker a process; after its end another may take its place, on the same handle."""
    process = await any_world.worker(nap)
    with pytest.raises(DefinitionError, match="already runs a worker"):
        await process.gasoline.worker([echo]).__aenter__()
    handle = await process.gasoline.dispatch(nap, 5.0)
    await process.until(handle.id, has("sleep.started"))
    assert process.worker is not None
    await process.worker.stop()
    any_world.clock.advance(5)
    await process.work(nap, echo)
    assert await soon(handle.output()) == "awake"
    other = await process.gasoline.dispatch(echo, "too")
    assert await soon(asyncio.shield(other.output())) == "too"


# --- who decides ------------------------------------------------------------------------------------------------------


async def test_events_say_which_operator_decided() -> None:
    """semantics.md §7: an operator's hand; the process itself is named in any case."""
    async with Gasoline.open("memory:", operator="ana@example.org: INC-81") as ana:
        handle = await ana.dispatch(echo, "x")
        await ana.silence(handle.id)
        (by,) = [event.data.by for event in await ana.history(handle.id) if isinstance(event.data, ev.WorkflowSilenced)]
        assert by == f"ana@example.org: INC-81 (client {ana.log.incarnation})"


def test_a_client_that_blocks_says_so_too() -> None:
    with Gasoline.open_sync("memory:", operator="ben") as ben:
        (made,) = [event.data for event in ben.schedule("0 3 * * *", echo, "x").history()]
        assert isinstance(made, ScheduleSet)
        assert re.fullmatch(r"ben \(client \S+\)", made.by)


@pytest.mark.parametrize("operator", ["x" * 201, "a\x1bb", "\ud800", 5])
def test_operator_that_no_event_can_hold_is_refused_at_once(operator: Any) -> None:
    """A rerun's command holds it in 300 characters, with the process's name."""
    with pytest.raises(ValueError, match=r"operator .* is not allowed"):
        Gasoline.open("memory:", operator=operator)
