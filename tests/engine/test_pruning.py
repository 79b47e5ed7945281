"""Pruning of workflows that are over (semantics.md §10, design §8, required.md B05)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from gasoline_es import (
    ActivityContext,
    Break,
    Gasoline,
    Prune,
    Workflow,
    WorkflowCancelled,
    WorkflowContext,
    WorkflowHandle,
    WorkflowNotFound,
    activity,
    workflow,
)
from gasoline_es.core import events as ev
from gasoline_es.core.retention import Retention
from gasoline_es.errors import GasolineError, LogError, RerunRefused
from gasoline_es.log.memory import MemoryLog
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Record
from gasoline_es.runtime import pruner
from projections.views import PartitionViews
from tests.engine.harness import Fate, Process, ScriptedLog, World, kills, rehandle, soon, types
from tests.engine.workflows import Note, echo, nap, one_note

AGE_S = 600.0


class Done(BaseModel):
    count: int = 0


@activity
async def book(ctx: ActivityContext, seat: str) -> str:
    ctx.state(dict[str, str])["seat"] = seat
    return f"booked {seat}"


@workflow
async def reserve(ctx: WorkflowContext, seat: str) -> str:
    await ctx.listen(Note, timeout=60)
    return await ctx.activity(book, seat)


@workflow(prune=Prune.HISTORY)
async def invoice(ctx: WorkflowContext, seat: str) -> str:
    return await ctx.activity(book, seat)


@workflow(prune=Prune.NONE)
async def ledger(ctx: WorkflowContext, seat: str) -> str:
    return await ctx.activity(book, seat)


@workflow
async def rounds(ctx: WorkflowContext, count: int) -> int:
    async def once(ctx: WorkflowContext, state: Done) -> Break[int] | None:
        note = await ctx.listen(Note, timeout=5)
        await ctx.activity(book, "nobody" if note is None else note.text)
        state.count += 1
        return Break(state.count) if state.count == count else None

    return await ctx.loop(once, Done(), commit_interval=2)


@workflow(prune=Prune.HISTORY)
async def rounds_kept(ctx: WorkflowContext, count: int) -> int:
    return await ctx.run(rounds, count)


@workflow(prune=Prune.HISTORY)
async def fragile(ctx: WorkflowContext, seat: str) -> str:
    try:
        await ctx.listen(Note)
    finally:
        await ctx.activity(book, seat)
        raise ValueError("the clean-up failed")


@workflow
async def doomed(ctx: WorkflowContext, seat: str) -> str:
    raise ValueError("no such seat")


@workflow
async def waits_for(ctx: WorkflowContext, seat: str) -> str:
    child = await ctx.dispatch(invoice, seat)
    gone = await ctx.dispatch(ledger_all, seat)
    await ctx.listen(Note)
    return f"{await child.output()}, {await gone.output()}"


@workflow
async def ledger_all(ctx: WorkflowContext, seat: str) -> str:
    return await ctx.activity(book, seat)


ALL: Sequence[Workflow[Any, Any]] = (
    reserve,
    invoice,
    ledger,
    fragile,
    doomed,
    waits_for,
    ledger_all,
    echo,
    nap,
    one_note,
    rounds,
    rounds_kept,
)


async def worker(world: World, **settings: Any) -> Process:
    return await world.worker(*ALL, prune_after=AGE_S, **settings)


async def prune(process: Process) -> int:
    """Look for what is old enough, as the worker does now and then."""
    assert process.worker is not None
    assert process.worker.pruner is not None
    count = await process.worker.pruner.look()
    await process.settle()
    return count


async def ran(process: Process, definition: Workflow[Any, Any], given: Any, **options: Any) -> WorkflowHandle[Any]:
    handle = await process.gasoline.dispatch(definition, given, **options)
    await soon(handle.output())
    return handle


# --- what goes, and what stays ----------------------------------------------------------------------------------------


async def test_with_all_nothing_of_it_is_seen_any_more(any_world: World) -> None:
    """semantics.md §10: it is in no view, and whoever asks for it by its id learns that there is none."""
    process = await worker(any_world)
    handle = await ran(process, ledger_all, "7a", tags={"seat": "7a"})
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    gasoline = process.gasoline
    for asked in (
        handle.get(),
        handle.history(),
        handle.output(),
        handle.signal(Note(text="late")),
        handle.wake(),
        handle.cancel(),
        handle.silence(),
        handle.recover(),
        handle.rerun("{1}"),
        handle.rerun("{1}", fork=True),
        handle.discard_signal("a"),
        handle.get(as_of=1),
    ):
        with pytest.raises(WorkflowNotFound):
            await soon(asked)
    assert [info async for info in gasoline.list()] == []
    assert [info async for info in gasoline.list(tags={"seat": "7a"})] == []
    assert await gasoline.counts() == {}
    assert await gasoline.find(ledger_all, tags={"seat": "7a"}) is None


async def test_with_history_input_state_output_and_tags_stay(any_world: World) -> None:
    """semantics.md §10: the output is answered, the history is its dispatch and its end, and nothing starts over."""
    process = await worker(any_world)
    handle = await ran(process, invoice, "7a", tags={"seat": "7a"})
    before = await handle.get()
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    after = await handle.get()
    for name in ("id", "name", "status", "tags", "input", "output", "state", "error", "created", "completed", "ray_id"):
        assert getattr(after, name) == getattr(before, name), name
    assert types(await handle.history()) == ["workflow.dispatched", "workflow.completed", "workflow.pruned"]
    assert await soon(handle.output()) == "booked 7a"
    assert await soon((await process.gasoline.dispatch(invoice, "7a")).output()) == "booked 7a"
    with pytest.raises(RerunRefused, match="its history was pruned"):
        await handle.rerun("{1}")
    with pytest.raises(WorkflowNotFound, match="it is complete"):
        await handle.signal(Note(text="late"))
    assert (await process.gasoline.counts())["invoice"] == {"complete": 2}
    assert [info.id async for info in process.gasoline.list(tags={"seat": "7a"})] == [handle.id]
    assert (await handle.get(as_of=before.completed)).output == "booked 7a"
    with pytest.raises(ValueError, match="was pruned: how it stood before its end"):
        await handle.get(as_of=before.created - timedelta(seconds=1))
    assert await prune(process) == 0, "once"


async def test_with_none_all_of_it_stays(any_world: World) -> None:
    """semantics.md §10."""
    process = await worker(any_world)
    handle = await ran(process, ledger, "7a")
    history = await handle.history()
    await process.advance(AGE_S + 1)
    assert await prune(process) == 0
    assert await handle.history() == history


async def test_cancelled_one_keeps_the_error_of_its_clean_up(any_world: World) -> None:
    """semantics.md §10: output or error stay, also with its traceback where one asks for it."""
    process = await worker(any_world)
    handle = await process.gasoline.dispatch(fragile, "7a")
    await process.settle()
    await handle.cancel()
    with pytest.raises(WorkflowCancelled):
        await soon(handle.output())
    before = await handle.get()
    assert before.error is not None
    assert before.error.traceback
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    after = await handle.get()
    assert (after.status, after.error, after.state) == ("cancelled", before.error, {"seat": "7a"})
    with pytest.raises(WorkflowCancelled):
        await soon(handle.output())
    assert [info.id async for info in process.gasoline.list(error="the clean-up failed")] == [handle.id]


async def test_only_what_is_over_for_good_and_old_enough_is_pruned(any_world: World) -> None:
    """semantics.md §10: running, sleeping, dead and silenced ones never are; nor is one before its age."""
    process = await worker(any_world)
    dead = await process.gasoline.dispatch(doomed, "7a")
    sleeping = await process.gasoline.dispatch(nap, 10_000.0)
    silenced = await process.gasoline.dispatch(nap, 10_000.0)
    await silenced.silence()
    await process.status(dead.id, "dead")
    await process.advance(AGE_S + 1)
    young = await ran(process, echo, "a")
    assert await prune(process) == 0
    await process.advance(AGE_S - 1)
    assert await prune(process) == 0
    assert (await young.get()).output == "a"
    await process.advance(2)
    assert await prune(process) == 1
    assert {info.id for info in [one async for one in process.gasoline.list()]} == {dead.id, sleeping.id, silenced.id}


async def test_cancelled_by_a_process_without_its_code_keeps_everything(any_world: World) -> None:
    """Who does not know what its definition lets go of gives nothing up (decision 0044)."""
    client = await any_world.process()
    handle = await client.gasoline.dispatch(nap, 10_000.0)
    await handle.cancel(now=True)
    await client.stop()
    process = await worker(any_world)
    await process.advance(AGE_S + 1)
    assert await prune(process) == 0
    assert (await rehandle(process, handle, nap).get()).status == "cancelled"


async def test_output_that_an_unfinished_parent_is_yet_to_receive_is_not_pruned(any_world: World) -> None:
    """semantics.md §10: with ALL it waits until who dispatched it is over; with HISTORY the output stays anyway."""
    process = await worker(any_world)
    parent = await process.gasoline.dispatch(waits_for, "7a")
    await process.settle()
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1, "the invoice"
    await parent.signal(Note())
    assert await soon(parent.output()) == "booked 7a, booked 7a"
    assert await prune(process) == 0, "it was looked at, and is again in an hour"
    await process.advance(pruner.WALK_AGAIN_S)
    assert await prune(process) == 2, "the parent and its child"
    assert set(await process.gasoline.counts()) == {"invoice"}


# --- a key that is free again -----------------------------------------------------------------------------------------


async def test_key_is_free_once_all_was_pruned(any_world: World) -> None:
    """design §5: a dispatch with the same key makes a new workflow, with another input too; its numbers go on."""
    process = await worker(any_world)
    first = await ran(process, ledger_all, "7a", key="k")
    count = len(await first.history())
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    second = await ran(process, ledger_all, "8b", key="k", tags={"seat": "8b"})
    assert second.id == first.id
    assert await soon(second.output()) == "booked 8b"
    history = await second.history()
    assert [event.seq for event in history] == [count + 1 + number for number in range(1, 4)]
    assert (await second.get()).state == {"seat": "8b"}
    assert (await second.get(as_of=history[0].seq)).status == "running"
    assert (await process.gasoline.dispatch(ledger_all, "8b", key="k")).id == first.id, "and it is taken again"
    await second.rerun("{1}")
    assert await soon(second.output()) == "booked 8b"
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    assert await process.gasoline.counts() == {}


async def test_key_is_taken_while_something_of_it_is_left(any_world: World) -> None:
    """design §5: where only the history went, the workflow is there, and so is its key."""
    process = await worker(any_world)
    first = await ran(process, invoice, "7a", key="k")
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    assert (await process.gasoline.dispatch(invoice, "7a", key="k")).id == first.id
    with pytest.raises(GasolineError, match="another input"):
        await process.gasoline.dispatch(invoice, "8b", key="k")


async def test_dispatch_of_the_key_in_flight_with_the_pruning(any_world: World) -> None:
    """design §5: decided one after the other in one append, each on what was decided before."""
    process = await worker(any_world)
    first = await ran(process, ledger_all, "7a", key="k")
    await process.advance(AGE_S + 1)
    assert process.worker is not None
    assert process.worker.pruner is not None
    looking = asyncio.ensure_future(process.worker.pruner.look())
    process.log.open_gate.clear()
    for _ in range(30):
        await asyncio.sleep(0)
    second = asyncio.ensure_future(process.gasoline.dispatch(ledger_all, "8b", key="k"))
    for _ in range(30):
        await asyncio.sleep(0)
    process.log.open_gate.set()
    handle = await soon(second)
    await soon(looking)
    assert handle.id == first.id
    assert await soon(handle.output()) == "booked 8b"


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_kill_at_every_append_of_pruning_and_of_the_next_life(fate: Fate) -> None:
    """design §8: whatever was cut off, it is pruned once, and the next of its key is another one."""

    async def life(process: Process) -> None:
        await process.work(*ALL, prune_after=AGE_S)
        handle = await process.gasoline.dispatch(ledger_all, "7a", key="k")
        await handle.output()
        process.world.clock.advance(AGE_S + 1)
        assert process.worker is not None
        assert process.worker.pruner is not None
        await process.worker.pruner.look()
        await (await process.gasoline.dispatch(ledger_all, "8b", key="k")).output()

    async for world, _ in kills(fate, life):
        process = await worker(world)
        handle = await process.gasoline.dispatch(ledger_all, "8b", key="k") if await _free(process) else None
        if handle is None:
            handle = process.gasoline.handle((await _only(process)).id, ledger_all)
        output = await soon(handle.output())
        assert output in ("booked 7a", "booked 8b")
        await process.advance(AGE_S + 1)
        assert await prune(process) == 1
        assert await process.gasoline.counts() == {}
        assert (await ran(process, ledger_all, "9c", key="k")).id == handle.id


async def _only(process: Process) -> Any:
    (info,) = [one async for one in process.gasoline.list()]
    return info


async def _free(process: Process) -> bool:
    return not [one async for one in process.gasoline.list()]


# --- whoever comes later ----------------------------------------------------------------------------------------------


async def test_others_and_later_ones_do_not_see_it_either(any_world: World) -> None:
    """required.md B05: after a restart, and read from outside, with views that were stored and without."""
    process = await worker(any_world)
    gone = await ran(process, ledger_all, "7a", key="k")
    kept = await ran(process, invoice, "7a")
    there = await ran(process, ledger, "7a")
    await process.advance(AGE_S + 1)
    assert await prune(process) == 2
    await process.stop()
    for _ in range(2):
        again = await worker(any_world)
        assert {one.id async for one in again.gasoline.list()} == {kept.id, there.id}
        assert await soon(rehandle(again, kept, invoice).output()) == "booked 7a"
        with pytest.raises(WorkflowNotFound):
            await rehandle(again, gone, ledger_all).get()
        assert await prune(again) == 0
        await again.kill()
    async with any_world.reader() as gasoline:
        assert {one.id async for one in gasoline.list()} == {kept.id, there.id}
        assert await gasoline.counts() == {"invoice": {"complete": 1}, "ledger": {"complete": 1}}
    last = await worker(any_world)
    assert (await ran(last, ledger_all, "8b", key="k")).id == gone.id


async def test_lists_of_an_earlier_time_leave_out_what_was_pruned_since(any_world: World) -> None:
    """semantics.md §10: the answer is the same before and after the log is cleaned."""
    process = await worker(any_world)
    await ran(process, ledger_all, "7a")
    kept = await ran(process, invoice, "7a")
    there = await ran(process, ledger, "7a")
    completed = (await there.get()).completed
    assert completed is not None
    assert len([one async for one in process.gasoline.list(as_of=completed)]) == 3
    await process.advance(AGE_S + 1)
    await prune(process)
    listed = [one async for one in process.gasoline.list(as_of=completed)]
    assert {(one.id, one.status) for one in listed} == {(kept.id, "complete"), (there.id, "complete")}
    assert len(listed) == 2


async def test_who_waits_is_told(world: World) -> None:
    """semantics.md §10: nobody waits for ever for what is gone."""
    process = await worker(world)
    handle = await ran(process, ledger_all, "7a")
    client = await world.process()
    await process.advance(AGE_S + 1)
    watch = process.node.watches.add(handle.id)
    await prune(process)
    assert watch.changed.is_set()
    with pytest.raises(WorkflowNotFound):
        await soon(rehandle(client, handle, ledger_all).output())


# --- by hand ----------------------------------------------------------------------------------------------------------


async def test_prune_history_by_hand_says_before_what_it_does_then(any_world: World) -> None:
    """semantics.md §10: by name and age, for any variant; a dry run has the same counts, a second run finds none."""
    process = await any_world.worker(*ALL)
    old = [await ran(process, ledger, "7a"), await ran(process, ledger_all, "7b"), await ran(process, invoice, "7c")]
    dead = await process.gasoline.dispatch(doomed, "7a")
    await process.status(dead.id, "dead")
    await process.advance(100)
    young = await ran(process, ledger, "8a")
    gasoline = process.gasoline
    would = await gasoline.prune_history(name="ledger", age=60, dry_run=True)
    assert (would.workflows, dict(would.names), would.events) == (1, {"ledger": 1}, 1)
    did = await gasoline.prune_history(name="ledger", age=60, reason="ticket 7")
    assert (did.workflows, did.names, did.events) == (would.workflows, would.names, would.events)
    pruned = (await old[0].history())[-1].data
    assert isinstance(pruned, ev.WorkflowPruned)
    assert pruned.reason == "ticket 7"
    assert (await gasoline.prune_history(name="ledger", age=60)).workflows == 0
    assert (await gasoline.prune_history(age=60, dry_run=True)).names == {"ledger_all": 1, "invoice": 1}
    assert (await gasoline.prune_history(age=60)).workflows == 2
    assert (await gasoline.prune_history(age=60, dry_run=True)).workflows == 0
    for handle in old:
        assert len(await handle.history()) == 3
    assert len(await young.history()) == 3
    assert types(await young.history())[-1] == "workflow.completed"
    assert (await process.gasoline.get(dead.id)).status == "dead"


async def test_by_hand_only_histories_of_the_complete_and_the_cancelled_go(any_world: World) -> None:
    """semantics.md §10, §7: what runs, sleeps, is dead or silenced keeps its own, also as a parent; outputs are there after it.

    Among them are a child that its parent will ask for its output, and one that the parent has asked before.
    """
    process = await any_world.worker(*ALL, prune_after=AGE_S)
    gasoline = process.gasoline
    parent = await gasoline.dispatch(waits_for, "7a")
    complete = await ran(process, ledger, "1")
    cancelled = await gasoline.dispatch(nap, 10_000.0)
    cleaned_up = await gasoline.dispatch(fragile, "2")
    asleep, silenced = [await gasoline.dispatch(nap, 10_000.0) for _ in range(2)]
    listening = await gasoline.dispatch(one_note, None)
    dead, dead_and_silenced = [await gasoline.dispatch(doomed, "3") for _ in range(2)]
    await process.status(dead.id, "dead")
    await process.status(dead_and_silenced.id, "dead")
    for one in (cancelled, cleaned_up):
        await one.cancel()
    for one in (silenced, dead_and_silenced):
        await one.silence()
    await process.settle()
    children = [one.id async for one in gasoline.list() if one.name in ("invoice", "ledger_all")]
    assert len(children) == 2
    by_rule = await ran(process, invoice, "by rule")
    await process.advance(AGE_S / 2)
    stay = (parent, asleep, silenced, listening, dead, dead_and_silenced)
    before = {one.id: types(await one.history()) for one in stay}
    go = {complete.id, cancelled.id, cleaned_up.id, by_rule.id, *children}
    would = await gasoline.prune_history(age=1, dry_run=True)
    assert would.workflows == len(go)
    did = await gasoline.prune_history(age=1)
    assert (did.workflows, did.names, did.events) == (would.workflows, would.names, would.events)
    for dry_run in (True, False):
        again = await gasoline.prune_history(age=1, dry_run=dry_run)
        assert (again.workflows, dict(again.names), again.events) == (0, {}, 0)
    assert {one.id: types(await one.history()) for one in stay} == before
    for workflow_id in go:
        first, last, mark = await gasoline.history(workflow_id)
        assert isinstance(first.data, ev.WorkflowDispatched)
        assert isinstance(last.data, ev.WorkflowCompleted | ev.WorkflowCancelled)
        assert isinstance(mark.data, ev.WorkflowPruned)
    assert await soon(complete.output()) == "booked 1"
    with pytest.raises(WorkflowCancelled):
        await soon(cancelled.output())
    await parent.signal(Note(text="on"))
    assert await soon(parent.output()) == "booked 7a, booked 7a", "it asked for the outputs only now"
    await listening.signal(Note(text="late"))
    assert await soon(listening.output()) == "late"
    assert (await gasoline.prune_history(age=1, dry_run=True)).workflows == 0, "these ended just now"


async def test_prune_history_asks_the_owner_elsewhere(world: World) -> None:
    """design §5: it is decided by whoever owns the partition."""
    process = await world.worker(*ALL)
    handle = await ran(process, ledger, "7a")
    client = await world.process()
    await process.advance(100)
    assert (await soon(client.gasoline.prune_history(age=60))).workflows == 1
    assert types(await handle.history())[-1] == "workflow.pruned"


# --- the cost ---------------------------------------------------------------------------------------------------------


async def test_what_was_looked_at_is_not_looked_at_again(any_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """semantics.md §10: the cost follows what may be pruned, not what there is."""
    monkeypatch.setattr(pruner, "CHUNK", 3)
    process = await worker(any_world)
    for number in range(8):
        await ran(process, ledger_all, str(number))
    await process.advance(AGE_S + 1)
    asked: list[int] = []
    prunable = PartitionViews.prunable

    def counting(self: PartitionViews, *args: Any) -> Any:
        found = prunable(self, *args)
        asked.append(len(found))
        return found

    monkeypatch.setattr(PartitionViews, "prunable", counting)
    assert await prune(process) == 8
    assert sum(asked) == 8
    assert max(asked) <= 3
    asked.clear()
    assert await prune(process) == 0
    assert sum(asked) == 0


async def test_a_clock_that_was_wrong_holds_up_nobody_else(any_world: World) -> None:
    """required.md B05: one that ended a year ahead waits for its own age alone, and comes to it."""
    process = await worker(any_world)
    any_world.clock.jump_wall(365 * 86_400)
    ahead = await ran(process, echo, "ahead")
    any_world.clock.jump_wall(-365 * 86_400)
    await ran(process, echo, "now")
    await process.advance(AGE_S + 1)
    assert await prune(process) == 1
    assert [one.id async for one in process.gasoline.list()] == [ahead.id]
    await process.advance(366 * 86_400)
    assert await prune(process) == 1


# --- a log that is cleaned --------------------------------------------------------------------------------------------


def events_of(log: Any) -> Iterator[tuple[int, list[Record]]]:
    for index in range(log.partition_count):
        yield index, list(log.read("default.events", index))


def told(views: PartitionViews, ids: Sequence[str]) -> dict[str, Any]:
    """All that a view knows, of these workflows and of all."""
    stands: dict[str, Any] = {"tally": views.tally(), "running": views.running(), "deadlines": dict(views.deadlines())}
    for one in ids:
        summary = views.summary(one)
        known = None if summary is None else {name: getattr(summary, name) for name in summary.__slots__}
        located = views.located(one)
        where = list(located.seqs), list(located.offsets), located.before, located.count
        stands[one] = known, where, views.pruned_seq(one), dict(views.queued(one))
    return stands


async def _many(process: Process) -> list[str]:
    """Let many workflows come, go and come again, some of them pruned."""
    ids: list[str] = []
    for number in range(4):
        for definition in (ledger_all, invoice, ledger):
            tagged = await ran(process, definition, str(number), key=f"k{number}", tags={"n": number})
            ids.append(tagged.id)
        kept = await process.gasoline.dispatch(one_note, None, key=f"n{number}", tags={"n": number})
        await kept.signal(Note(text="x"))
        await soon(kept.output())
        broken = await process.gasoline.dispatch(fragile, "x", key=f"f{number}")
        await process.settle()
        await broken.signal(Note(text="queued"), id=f"s{number}") if number % 2 else await broken.cancel()
        await process.settle()
        ids += [kept.id, broken.id]
        for definition in (rounds, rounds_kept):
            looping = await process.gasoline.dispatch(definition, 5, key=f"l{number}")
            for turn in range(5):
                await process.settle()
                await (looping.signal(Note(text="x")) if turn % 2 else process.advance(6))
            await soon(looping.output())
            ids.append(looping.id)
            if number == 1:
                await looping.rerun("{1, 4}" if definition is rounds else "{1, 1, 4}")
                for _ in range(3):
                    await process.advance(6)
                await soon(looping.output())
    await process.advance(AGE_S + 1)
    await prune(process)
    for number in range(2):
        ids.append((await ran(process, ledger_all, "again", key=f"k{number}")).id)
        looping = await process.gasoline.dispatch(rounds, 4, key=f"l{number}")
        for _ in range(4 if number else 2):
            await process.advance(6)
        ids.append(looping.id)
    await process.advance(AGE_S + 1)
    await prune(process)
    ids.append((await ran(process, ledger_all, "a third time", key="k0")).id)
    await process.settle()
    return ids


async def test_fold_of_a_cleaned_log_is_the_fold_of_the_whole(world: World) -> None:
    """required.md B05: whichever of the records were removed so far that may be, the views are alike."""
    process = await worker(world)
    ids = await _many(process)
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    removed_at_all = 0
    for index, records in events_of(process.log):
        rules = Retention(0)
        for record in records:
            rules.observe(record, sealed=True)
        whole = PartitionViews()
        whole.fold(records)
        mine = [one for one in ids if process.node.index_of(one) == index]
        for share in (1.0, 0.9, 0.5, 0.1):
            left: list[Record] = []
            for record in records:
                if rules.gives_up(record) is not None and chance.random() < share:
                    removed_at_all += 1
                else:
                    left.append(record)
            cleaned = PartitionViews()
            cleaned.fold(left)
            assert told(cleaned, mine) == told(whole, mine), f"seed {seed}, share {share}"
    assert removed_at_all > 50


class CleanedLog(ScriptedLog):
    """Shows a log as it is once the cleaner has removed all that it may."""

    def __init__(self, inner: MemoryLog) -> None:
        super().__init__(inner)
        self.rules = Retention(0)
        for _, records in events_of(inner):
            for record in records:
                self.rules.observe(record, sealed=True)

    def gone(self, record: Record) -> bool:
        return record.topic == "default.events" and self.rules.gives_up(record) is not None

    def read(self, topic: str, partition: int, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        return (one for one in super().read(topic, partition, start, stop) if not self.gone(one))

    def read_at(
        self, topic: str, partition: int, offsets: Sequence[int], places: Sequence[int] | None = None
    ) -> list[Record]:
        records = super().read_at(topic, partition, offsets, places)
        if any(map(self.gone, records)):
            raise LogError("it was removed")
        return records


async def test_engine_on_a_cleaned_log_answers_as_before(world: World) -> None:
    """design §8: nothing that is asked or decided needs what was given up."""
    process = await worker(world)
    ids = await _many(process)
    before = await _answers(process.gasoline, ids)
    await process.stop()
    log = await open_log(world.url)
    assert isinstance(log, MemoryLog)
    again = Process(world, CleanedLog(log))
    world._processes.append(again)
    await again.work(*ALL, prune_after=AGE_S)
    assert await _answers(again.gasoline, ids) == before
    assert await soon((await again.gasoline.dispatch(ledger_all, "a third time", key="k0")).output()) is not None
    assert (await ran(again, ledger_all, "anew", key="k3")).id in ids
    await again.advance(AGE_S + 1)
    assert await prune(again) >= 1


async def _answers(gasoline: Gasoline, ids: Sequence[str]) -> dict[str, Any]:
    answers: dict[str, Any] = dict.fromkeys(ids)
    async for info in gasoline.list(payloads=True):
        answers[info.id] = info, types(await gasoline.history(info.id)), await gasoline.get(info.id)
    answers["counts"] = await gasoline.counts()
    return answers
