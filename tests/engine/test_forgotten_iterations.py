"""What a workflow that loops for ever costs after a restart, and that nothing it has forgotten is missed (semantics.md §4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pydantic import BaseModel

from gasoline_es import ActivityContext, Break, Signal, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.commands import TellOutput
from gasoline_es.core.ports import Located
from gasoline_es.errors import LogError
from gasoline_es.log.port import Record
from gasoline_es.runtime import viewing
from projections.views import PartitionViews
from tests.engine.harness import Process, ScriptedLog, World, soon, successes, types


class Word(Signal):
    text: str


class Heard(BaseModel):
    last: int = 0


@activity
async def note(ctx: ActivityContext, number: int) -> int:
    ctx.state(Heard).last = number
    return number


@activity
async def look(ctx: ActivityContext, _: None) -> int:
    return ctx.state(Heard).last


async def listen(ctx: WorkflowContext, heard: list[int]) -> Break[int] | None:
    word = await ctx.listen(Word)
    heard[0] += 1
    if word.text == "look":
        return Break(await ctx.activity(look, None))
    await ctx.activity(note, heard[0])
    return None


@workflow
async def listener(ctx: WorkflowContext, _: None) -> int:
    return await ctx.loop(listen, [0], commit_interval=4)


async def talk(process: Process, workflow_id: str, first: int, last: int) -> None:
    handle = process.gasoline.handle(workflow_id, listener)
    for number in range(first, last):
        await handle.signal(Word(text="a word"), id=f"word-{number}")
        await process.settle()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of the events that were asked for by place."""
    asked: list[int] = []
    read_at = ScriptedLog.read_at

    def counted(
        self: ScriptedLog, topic: str, partition: int, offsets: Sequence[int], places: Sequence[int] | None = None
    ) -> list[Record]:
        asked.extend(offsets)
        return read_at(self, topic, partition, offsets, places)

    monkeypatch.setattr(ScriptedLog, "read_at", counted)
    monkeypatch.setattr(viewing, "SAVE_AFTER_S", 3_600.0)  # whoever stores views looks at the last event
    return asked


async def test_replay_after_a_restart_reads_only_the_last_iterations(any_world: World, read: list[int]) -> None:
    """semantics.md §4: the events of iterations before the committed one are no longer loaded for replay."""
    process = await any_world.worker(listener)
    handle = await process.gasoline.dispatch(listener, None)
    await talk(process, handle.id, 0, 62)
    recorded = await handle.history()
    assert len(recorded) > 62 * 3
    await process.kill()
    again = await any_world.worker(listener)
    await again.settle()
    assert again.in_memory(handle.id)
    assert 0 < len(read) <= 10
    assert await again.gasoline.history(handle.id) == recorded, "all of it is kept for audit"
    taken = again.gasoline.handle(handle.id, listener)
    await taken.signal(Word(text="look"))
    assert await soon(taken.output()) == 62
    assert len(successes(await taken.history())) == 63


async def test_a_signal_whose_iteration_is_forgotten_is_known_after_a_restart(any_world: World) -> None:
    """design §5, "Repeats": signal ids are remembered, whatever became of the listens that took them."""
    process = await any_world.worker(listener)
    handle = await process.gasoline.dispatch(listener, None)
    await talk(process, handle.id, 0, 20)
    await process.kill()
    again = await any_world.worker(listener)
    before = await again.gasoline.history(handle.id)
    await talk(again, handle.id, 0, 20)
    assert await again.gasoline.history(handle.id) == before
    await again.evict()
    await talk(again, handle.id, 19, 21)
    assert types((await again.gasoline.history(handle.id))[len(before) :]).count("signal.received") == 1


async def test_a_workflow_that_sleeps_in_a_loop_is_loaded_by_its_last_iterations(
    any_world: World, read: list[int]
) -> None:
    """semantics.md §4, for one that leaves memory in each iteration."""
    process = await any_world.worker(listener)
    handle = await process.gasoline.dispatch(listener, None)
    loads: list[int] = []
    for number in range(40):
        await process.evict()
        assert not process.in_memory(handle.id)
        read.clear()
        assert (await handle.get()).status == "sleeping"
        loads.append(len(read))
        await talk(process, handle.id, number, number + 1)
    assert types(await handle.history()).count("workflow.suspended") == 40
    assert max(loads) == max(loads[:8])
    info = await handle.get()
    assert (info.status, info.state) == ("running", {"last": 40})


async def test_a_workflow_that_needs_all_of_its_history_is_folded_from_all_of_it(world: World) -> None:
    """What was forgotten can come back: a fold of the complete history has the same answers."""
    process = await world.worker(listener)
    handle = await process.gasoline.dispatch(listener, None)
    others = [await process.gasoline.dispatch(listener, None) for _ in range(20)]
    for number in range(10):
        for one in (handle, *others):
            await talk(process, one.id, number, number + 1)
    before = await handle.history()
    views = await process.node.viewing.views(process.node.index_of(handle.id))
    assert isinstance(views, PartitionViews)
    views._history.needs_all(handle.id)
    await process.evict()
    assert not process.in_memory(handle.id)
    assert (await handle.history())[: len(before)] == before
    await talk(process, handle.id, 0, 12)
    await handle.signal(Word(text="look"))
    assert await soon(handle.output()) == 12
    assert len(successes(await handle.history())) == 13


async def test_an_output_that_comes_for_a_forgotten_iteration_is_not_recorded(world: World) -> None:
    """A loop that asks again and again, and does not wait for the answers, must not grow by them."""
    process = await world.worker(listener)
    handle = await process.gasoline.dispatch(listener, None)
    await talk(process, handle.id, 0, 9)
    before = await handle.history()
    partition = process.node.partitions[process.node.index_of(handle.id)]
    for iteration in range(1, 10):
        partition.decide(TellOutput(handle.id, f"{{1, {iteration}, 7}}", 1, "another", "told", b"null"))
    await process.settle()
    told = [event.data for event in (await handle.history())[len(before) :]]
    assert [data.location for data in told if isinstance(data, ev.OutputReceived)] == [((1,), (9,), (7,))]


def stand_in(monkeypatch: pytest.MonkeyPatch, located: Located) -> None:
    def answer(_views: PartitionViews, _workflow_id: str) -> Located:
        return located

    monkeypatch.setattr(PartitionViews, "located", answer)


async def test_an_event_that_is_missing_from_what_replay_needs_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §5: loading asserts that nothing is missing. What a loop has forgotten is accounted for, each event of it."""
    process = await world.worker(listener)
    handle = await process.gasoline.dispatch(listener, None)
    await talk(process, handle.id, 0, 10)
    views = await process.node.viewing.views(process.node.index_of(handle.id))
    located = views.located(handle.id)
    assert located.forgotten
    lost = replace(located, seqs=located.seqs[:-1], offsets=located.offsets[:-1], places=located.places[:-1])
    swapped = replace(located, offsets=[*located.offsets[:-1], located.offsets[-1] - 1])
    for wrong, found in ((lost, "are accounted for"), (swapped, "is to be")):
        stand_in(monkeypatch, wrong)
        with pytest.raises(AssertionError, match=found):
            await handle.get()
    fewer = replace(located, forgotten=located.forgotten - 1)
    stand_in(monkeypatch, fewer)
    with pytest.raises(LogError, match="of workflow"):
        await handle.history()


bank = {"closed": False}


@activity(max_attempts=1)
async def pay(ctx: ActivityContext, number: int) -> int:
    if bank["closed"]:
        raise ConnectionError("the bank is closed")
    return number


async def pay_next(ctx: WorkflowContext, paid: list[int]) -> Break[int] | None:
    word = await ctx.listen(Word)
    paid[0] = await ctx.activity(pay, paid[0] + 1)
    return Break(paid[0]) if word.text == "look" else None


@workflow
async def payer(ctx: WorkflowContext, _: None) -> int:
    return await ctx.loop(pay_next, [0], commit_interval=4)


async def spend(process: Process, workflow_id: str, times: int) -> None:
    for _ in range(times):
        await process.gasoline.signal(Word(text="pay"), to=workflow_id)
        await process.settle()


@pytest.mark.parametrize("killed", [False, True], ids=["in memory", "killed"])
async def test_a_failure_in_a_loop_is_recovered_and_forgotten(any_world: World, killed: bool) -> None:
    """semantics.md §7: what a loop has forgotten does not keep a failure in its last iteration from being cleared."""
    bank["closed"] = False
    process = await any_world.worker(payer)
    handle = await process.gasoline.dispatch(payer, None)
    await spend(process, handle.id, 10)
    bank["closed"] = True
    await spend(process, handle.id, 1)
    assert (await handle.get()).status == "dead"
    bank["closed"] = False
    if killed:
        await process.kill()
        process = await any_world.worker(payer)
    await process.gasoline.recover(handle.id)
    await process.settle()
    await spend(process, handle.id, 9)  # the iteration that failed is forgotten, and the recovery is not
    if killed:
        await process.kill()
        process = await any_world.worker(payer)
        await process.settle()
    handle = process.gasoline.handle(handle.id, payer)
    await handle.signal(Word(text="look"))
    assert await soon(handle.output()) == 21
    assert types(await handle.history()).count("workflow.recovered") == 1


async def test_a_workflow_starts_over_from_an_iteration_that_was_forgotten(any_world: World) -> None:
    """semantics.md §4, rerun: that iteration starts again, from the state before it, also in the next process."""
    process = await any_world.worker(payer)
    handle = await process.gasoline.dispatch(payer, None)
    await spend(process, handle.id, 10)
    await handle.rerun("{1, 3, 2}")
    await process.settle()  # the signals of iterations 4 to 10 are taken again
    assert types(await handle.history()).count("activity.completed") == 10 + 8
    await process.kill()
    process = await any_world.worker(payer)
    await process.settle()
    handle = process.gasoline.handle(handle.id, payer)
    await handle.signal(Word(text="look"))
    assert await soon(handle.output()) == 11
    fork = await handle.rerun("{1, 9}", fork=True)
    assert await soon(fork.output()) == 11
