"""Histories that make no sense, or hold what only a newer version knows: they are set aside, and the others go on."""

from __future__ import annotations

import pytest

from gasoline_es.core import events as ev
from gasoline_es.core.codec import Envelope
from gasoline_es.errors import GasolineError, WorkflowFailed
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Appended, NewRecord, Section
from tests.engine.harness import World, rehandle, soon, types
from tests.engine.workflows import Note, echo, notes


async def append_event(world: World, workflow_id: str, seq: int, kind: str = ev.SignalReceived.TYPE) -> None:
    """Append a signal's event (or one of another type) to a history in partition 0, as nobody should."""
    log = await open_log(world.url)
    ownership = await log.acquire(0)
    envelope = Envelope(
        namespace="default",
        workflow_id=workflow_id,
        workflow="notes",
        ray_id=workflow_id,
        partition=0,
        epoch=ownership.epoch,
        worker=log.incarnation,
    )
    value = envelope.encode(seq, world.clock.now_us(), ev.SignalReceived("odd", "note", b'{"text":"odd"}'))
    value = value.replace(f"gasoline.{ev.SignalReceived.TYPE}.".encode(), f"gasoline.{kind}.".encode())
    record = NewRecord("default.events", 0, f"{workflow_id}/{seq}", value, world.clock.now_us())
    (outcome,) = await log.append([Section(0, ownership.epoch, [record])])
    assert isinstance(outcome, Appended)
    await log.release(0)
    await log.close()


async def three_workflows(world: World) -> tuple[str, str, str]:
    """Dispatch three workflows that wait for two notes each, and signal each once; all in partition 0."""
    client = await world.process(partitions=1)
    handles = [await client.gasoline.dispatch(notes, 2) for _ in range(3)]
    for handle in handles:
        await handle.signal(Note(text="first"))
    await client.stop()
    return handles[0].id, handles[1].id, handles[2].id


ODD = {"a gap": 4, "a repeat": 2, "the first again": 1, "far ahead": 1_000_000}


@pytest.mark.parametrize("odd", ODD)
async def test_gap_or_repeat_in_one_history_sets_that_workflow_aside_and_the_others_run(
    any_world: World, odd: str
) -> None:
    """design §4: seq is gap-free; a history in which it is not is shown as unreadable, and its partition goes on."""
    before, bad, after = await three_workflows(any_world)
    await append_event(any_world, bad, ODD[odd])
    process = await any_world.worker(notes, echo)
    gasoline = process.gasoline
    for workflow_id in (before, after):
        await gasoline.signal(Note(text="second"), to=workflow_id)
        assert await soon(gasoline.handle(workflow_id, notes).output()) == ["first", "second"]
    assert await soon((await gasoline.dispatch(echo, "new")).output()) == "new"
    with pytest.raises(WorkflowFailed, match="unreadable"):
        await soon(gasoline.handle(bad, notes).output())
    await process.settle()
    assert process.node.failure is None
    assert (await gasoline.get(bad)).status == "unreadable"
    await process.stop()


@pytest.mark.parametrize("payloads", [False, True])
@pytest.mark.parametrize("odd", ODD)
async def test_reader_shows_the_workflow_with_a_gap_or_repeat_and_all_others(
    any_world: World, odd: str, payloads: bool
) -> None:
    """design §4: list, get and history of a reader name what is odd, and show the rest as it is."""
    before, bad, after = await three_workflows(any_world)
    await append_event(any_world, bad, ODD[odd])
    async with any_world.reader() as reader:
        listed = {info.id: info async for info in reader.list(payloads=payloads)}
        assert {workflow_id: info.status for workflow_id, info in listed.items()} == {
            before: "running",
            bad: "unreadable",
            after: "running",
        }
        info = await reader.get(bad)
        assert info.status == "unreadable"
        assert info.error is not None
        assert "missing or repeated" in info.error.message
        assert types(await reader.history(bad)) == ["workflow.dispatched", "signal.received", "signal.received"]
        assert (await reader.get(after)).status == "running"


async def test_signal_to_an_unreadable_workflow_is_refused_each_time(any_world: World) -> None:
    """semantics.md §7: it is left as it is, so a signal is neither queued nor, under the caller's id, queued twice."""
    _, bad, fine = await three_workflows(any_world)
    await append_event(any_world, bad, 3, kind="payment.made")
    process = await any_world.worker(notes)
    gasoline = process.gasoline
    assert (await gasoline.get(bad)).status == "unreadable"
    before = await gasoline.history(bad)
    for _ in range(2):
        with pytest.raises(GasolineError, match="takes no signals"):
            await gasoline.signal(Note(text="x"), to=bad, id="mine")
    with pytest.raises(GasolineError, match="cannot run"):
        await gasoline.wake(bad)
    assert await gasoline.history(bad) == before
    await gasoline.signal(Note(text="second"), to=fine)
    assert await soon(gasoline.handle(fine, notes).output()) == ["first", "second"]


async def test_signal_through_an_inbox_to_an_unreadable_workflow_is_refused(any_world: World) -> None:
    """semantics.md §7: the same when another process asks."""
    _, bad, fine = await three_workflows(any_world)
    await append_event(any_world, bad, 3, kind="payment.made")
    worker = await any_world.worker(notes)
    client = await any_world.process()
    with pytest.raises(GasolineError, match="takes no signals"):
        await soon(client.gasoline.signal(Note(text="x"), to=bad, id="mine"))
    await soon(client.gasoline.signal(Note(text="second"), to=fine))
    assert await soon(rehandle(client, worker.gasoline.handle(fine, notes), notes).output()) == ["first", "second"]
