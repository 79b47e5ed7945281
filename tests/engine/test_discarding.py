"""`discard_signal`: what waits in a queue, or is parked, is taken away once; nobody gets it, whatever dies when."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from gasoline_es import Gasoline, Signal, WorkflowContext, workflow
from gasoline_es.core import events as ev
from gasoline_es.errors import (
    GasolineError,
    InvalidTags,
    LogReadOnly,
    NoSpace,
    SignalDiscarded,
    SignalNotFound,
    WorkflowNotFound,
)
from gasoline_es.testing import Simulation, replay_check
from tests.engine.harness import Fate, Process, World, consumed, discarded, has, kills, rehandle, soon, types
from tests.engine.test_odd_histories import append_event
from tests.engine.test_parked import HOUR_S, TAGS, key_at, key_in, receipts, split, told, until_told
from tests.engine.workflows import Note, Other, notes, one_note, timed_note

UNKNOWN = "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"


class Bill(Signal):
    cents: int


@workflow
async def pays(ctx: WorkflowContext, count: int) -> list[int]:
    """It dies of a bill below nothing."""
    paid: list[int] = []
    for _ in range(count):
        await ctx.listen(Note)
        bills = await ctx.listen_n(Bill, limit=10)
        if any(bill.cents < 0 for bill in bills):
            raise ValueError("a bill below nothing")
        paid += [bill.cents for bill in bills]
    return paid


@workflow
async def endless(ctx: WorkflowContext, _: None) -> None:
    async def once(ctx: WorkflowContext) -> None:
        await ctx.listen(Note)

    await ctx.repeat(once)


# --- from a queue -----------------------------------------------------------------------------------------------------


async def test_a_queued_signal_is_taken_away_and_no_listen_gets_it(any_world: World) -> None:
    """semantics.md §5: it is recorded, with who did it; the next one is got in its place."""
    process = await any_world.worker(notes)
    handle = await process.gasoline.dispatch(notes, 1)
    await process.settle()
    await process.stop()
    client = await any_world.process()
    handle = rehandle(client, handle, notes)
    await handle.signal(Note(text="bad"), id="bad")
    await handle.signal(Note(text="good"), id="good")
    await handle.discard_signal("bad")
    assert (await handle.get()).queued == {"good": "note"}
    (event,) = [event for event in await handle.history() if isinstance(event.data, ev.SignalDiscarded)]
    assert event.data == ev.SignalDiscarded(("bad",), f"client {client.log.incarnation}")
    await client.work(notes)
    assert await soon(handle.output()) == ["good"]
    assert consumed(await handle.history()) == ["good"]


async def test_discarding_again_changes_nothing_and_the_senders_repeat_does_not_bring_it_back(any_world: World) -> None:
    """semantics.md §5: a call whose answer was lost may be repeated, also in flight, and after the end."""
    process = await any_world.worker(one_note)
    handle = await process.gasoline.dispatch(one_note, None)
    await handle.signal(Other(text="x"), id="x")
    await asyncio.gather(handle.discard_signal("x"), process.gasoline.discard_signal("x", to=handle.id))
    await handle.discard_signal("x")
    assert await handle.signal(Other(text="x"), id="x") == "x"
    assert (await handle.get()).queued == {}
    await handle.signal(Other(text="left"), id="left")
    await handle.signal(Note(text="end"))
    await soon(handle.output())
    for signal_id in ("x", "left"):
        await handle.discard_signal(signal_id)
    assert discarded(await handle.history()) == ["x", "left"]


async def test_a_signal_that_was_taken_is_refused_and_names_the_listen(any_world: World) -> None:
    process = await any_world.worker(notes)
    handle = await process.gasoline.dispatch(notes, 2)
    await handle.signal(Note(text="first"), id="first")
    await process.until(handle.id, has("signal.consumed"))
    before = types(await handle.history())
    with pytest.raises(GasolineError, match=r"'first' was taken by the listen at \{1\} of workflow") as refused:
        await handle.discard_signal("first")
    assert (refused.value.signal_id, refused.value.workflow_id, refused.value.location) == ("first", handle.id, "{1}")
    assert types(await handle.history()) == before
    await handle.signal(Note(text="second"))
    assert await soon(handle.output()) == ["first", "second"]
    with pytest.raises(GasolineError, match="was taken by the listen"):
        await handle.discard_signal("first")


async def test_one_that_a_forgotten_iteration_took_is_refused_too(any_world: World) -> None:
    """semantics.md §4: what a loop has forgotten is in the log still."""
    process = await any_world.worker(endless)
    handle = await process.gasoline.dispatch(endless, None)
    for number in range(45):
        await handle.signal(Note(), id=f"n{number}")
    await process.until(handle.id, has("signal.consumed", 45))
    await process.evict()
    await process.stop()
    client = await any_world.process()
    with pytest.raises(GasolineError, match=r"'n3' was taken by the listen at \{1, 4, 1\}"):
        await client.gasoline.discard_signal("n3", to=handle.id)
    await client.gasoline.signal(Note(), to=handle.id, id="late")
    await client.gasoline.discard_signal("late", to=handle.id)
    await client.gasoline.discard_signal("late", to=handle.id)
    other = await any_world.process()
    await client.stop()
    await other.gasoline.discard_signal("late", to=handle.id)
    assert (await other.gasoline.get(handle.id)).queued == {}


async def test_an_unknown_signal_or_workflow_is_refused(any_world: World) -> None:
    process = await any_world.worker(notes)
    handle = await process.gasoline.dispatch(notes, 1)
    with pytest.raises(SignalNotFound, match=f"workflow {handle.id} has received no signal with the id 'x'"):
        await handle.discard_signal("x")
    with pytest.raises(WorkflowNotFound):
        await process.gasoline.discard_signal("x", to=UNKNOWN)
    with pytest.raises(SignalNotFound, match="no signal with the id 'x' is parked for a workflow 'notes'"):
        await process.gasoline.discard_signal("x", notes, tags=TAGS)
    assert types(await handle.history())[0] == "workflow.dispatched"
    assert (await process.gasoline.get(handle.id)).events <= 2


async def test_bad_arguments_are_refused_before_anything_is_asked(any_world: World) -> None:
    process = await any_world.process()
    discard = process.gasoline.discard_signal
    for neither_nor_both in ({}, {"to": UNKNOWN, "workflow": notes}, {"to": UNKNOWN, "tags": TAGS}):
        with pytest.raises(ValueError, match="give `to="):
            await discard("x", **neither_nor_both)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(ValueError, match="signal id '' is not allowed"):
        await discard("", to=UNKNOWN)
    with pytest.raises(InvalidTags):
        await discard("x", notes, tags={"a": [1]})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    async with any_world.reader() as reader:
        with pytest.raises(LogReadOnly, match="`discard_signal` needs a log opened for writing"):
            await reader.discard_signal("x", to=UNKNOWN)


async def test_workflow_that_makes_no_sense_is_told(any_world: World) -> None:
    process = await any_world.process()
    handle = await process.gasoline.dispatch(notes, 1, key=key_at(process, 0))
    await process.stop()
    await append_event(any_world, handle.id, 5)
    client = await any_world.process()
    with pytest.raises(GasolineError, match=f"workflow {handle.id} takes no command about its signals: Unreadable"):
        await client.gasoline.discard_signal("x", to=handle.id)


async def test_it_is_decided_by_the_worker_that_runs_the_workflow(any_world: World) -> None:
    """design §5: through the inbox; what waits in memory does not get it either, and sleeps on."""
    worker = await any_world.worker(pays)
    client = await any_world.process()
    handle = await client.gasoline.dispatch(pays, 1)
    await handle.signal(Bill(cents=-1), id="bad")
    await worker.settle()
    await handle.discard_signal("bad")
    await handle.signal(Bill(cents=5), id="good")
    await handle.signal(Note())
    assert await soon(handle.output()) == [5]
    assert [
        event.data.signal_ids for event in await handle.history() if isinstance(event.data, ev.SignalDiscarded)
    ] == [("bad",)]


async def test_listen_that_was_about_to_wake_for_it_sleeps_on(any_world: World) -> None:
    """semantics.md §5: nothing came as far as the listen can tell; its time limit stands as it was."""
    process = await any_world.worker(timed_note)
    handle = await process.gasoline.dispatch(timed_note, 600.0)
    await process.evict()
    assert types(await handle.history())[-1] == "workflow.suspended"
    await process.stop()
    client = await any_world.process()
    await client.gasoline.signal(Note(text="bad"), to=handle.id, id="bad")
    await client.gasoline.discard_signal("bad", to=handle.id)
    await client.work(timed_note)
    await client.settle()
    assert consumed(await client.gasoline.history(handle.id)) == []
    await client.advance(600)
    assert await soon(rehandle(client, handle, timed_note).output()) == "timeout"


async def test_a_dead_workflow_stays_dead_until_it_is_woken_and_goes_on_without_it(any_world: World) -> None:
    """What it is for: a listen that its code cannot get past, because of what is queued."""
    process = await any_world.worker(pays)
    handle = await process.gasoline.dispatch(pays, 1)
    await handle.signal(Bill(cents=-1), id="bad")
    await handle.signal(Bill(cents=5), id="good")
    await handle.signal(Note())
    await process.status(handle.id, "dead")
    with pytest.raises(GasolineError, match=r"'bad' was taken by the listen at \{2\}"):
        await handle.discard_signal("bad")
    # As the refusal says: with no worker there, it is queued again, and taken away before anybody runs.
    await process.stop()
    operator = await any_world.process()
    await operator.gasoline.rerun(handle.id, "{2}")
    await operator.gasoline.discard_signal("bad", to=handle.id)
    await operator.stop()
    process = await any_world.worker(pays)
    handle = rehandle(process, handle, pays)
    assert await soon(handle.output()) == [5]
    again = await handle.rerun("{1}")
    assert await soon(again.output()) == [5], "it does not come back"
    fork = await handle.rerun("{2}", fork=True)
    assert await soon(fork.output()) == [5]
    assert (await fork.get()).queued == {}


async def test_queued_for_a_dead_one_it_is_taken_away_and_the_workflow_stays_dead(any_world: World) -> None:
    process = await any_world.worker(pays)
    handle = await process.gasoline.dispatch(pays, 2)
    await handle.signal(Bill(cents=-1), id="bad")
    await handle.signal(Note())
    await process.status(handle.id, "dead")
    await handle.signal(Bill(cents=-2), id="worse")
    await handle.discard_signal("worse")
    assert ((await handle.get()).status, (await handle.get()).queued) == ("dead", {})


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_kill_at_every_append_leaves_it_queued_or_discarded_and_a_repeat_finishes_it(fate: Fate) -> None:
    """required.md B09: exactly once, whatever dies."""

    async def life(process: Process) -> None:
        handle = await process.gasoline.dispatch(notes, 1, key="k")
        await handle.signal(Note(text="bad"), id="bad")
        await handle.signal(Note(text="good"), id="good")
        await handle.discard_signal("bad")

    async for world, _ in kills(fate, life):
        process = await world.process()
        await process.live(life(process))
        handle = await process.gasoline.dispatch(notes, 1, key="k")
        assert discarded(await handle.history()) == ["bad"]
        await process.work(notes)
        assert await soon(handle.output()) == ["good"]


async def test_a_full_disk_takes_it_back(any_world: World) -> None:
    """required.md B10: nothing of what was not recorded is told."""
    process = await any_world.process()
    handle = await process.gasoline.dispatch(notes, 1)
    await handle.signal(Note(text="kept"), id="kept")
    process.log.always = NoSpace
    with pytest.raises(NoSpace):
        await handle.discard_signal("kept")
    process.log.always = None
    assert (await handle.get()).queued == {"kept": "note"}
    await process.work(notes)
    assert await soon(handle.output()) == ["kept"]


# --- parked -----------------------------------------------------------------------------------------------------------


async def test_a_parked_signal_is_taken_away_once_and_nobody_gets_it(any_world: World) -> None:
    process = await any_world.worker(one_note)
    await process.gasoline.signal(Note(text="bad"), one_note, tags=TAGS, id="bad", park=HOUR_S)
    await process.gasoline.signal(Note(text="good"), one_note, tags=TAGS, id="good", park=HOUR_S)
    await asyncio.gather(*(process.gasoline.discard_signal("bad", one_note, tags=TAGS) for _ in range(2)))
    await process.gasoline.discard_signal("bad", one_note, tags=TAGS)
    assert await told(process, "bad") == ["parked", "discarded"]
    handle = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    assert await soon(handle.output()) == "good"
    assert await receipts(process.gasoline) == [(handle.id, "good")]
    with pytest.raises(SignalDiscarded, match="or somebody took the signal away"):
        await process.gasoline.signal(Note(text="bad"), one_note, tags=TAGS, id="bad", park=HOUR_S)


async def test_its_tags_say_which_one(any_world: World) -> None:
    """It is addressed as it was sent: not by a part of the tags."""
    process = await any_world.process()
    await process.gasoline.signal(Note(), one_note, tags={**TAGS, "line": 1}, id="x", park=HOUR_S)
    with pytest.raises(SignalNotFound):
        await process.gasoline.discard_signal("x", one_note, tags=TAGS)
    await process.gasoline.discard_signal("x", one_note, tags={"line": "1", **TAGS})
    assert await told(process) == ["parked", "discarded"]


async def test_one_that_is_on_its_way_or_was_given_is_refused_with_the_workflow(any_world: World) -> None:
    """design §5: from the offer on, the other partition decides; there it can be discarded, in order."""
    keeper, other = await split(any_world)
    await keeper.gasoline.signal(Note(), one_note, tags=TAGS, id="x", park=HOUR_S)
    other.log.close_at = other.log.count + 2  # the dispatch is written, the receipt waits
    handle = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_in(other))
    await until_told(keeper, "offered")
    await soon(other.log.closed.wait())
    with pytest.raises(
        GasolineError, match=f"'x' is parked no more: it is on its way to workflow 'one_note' {handle.id}"
    ):
        await keeper.gasoline.discard_signal("x", one_note, tags=TAGS)
    other.log.open_gate.set()
    await until_told(keeper, "unparked")
    with pytest.raises(GasolineError, match="it was given to workflow 'one_note'"):
        await keeper.gasoline.discard_signal("x", one_note, tags=TAGS)
    await keeper.gasoline.discard_signal("x", to=handle.id)
    # Its answer may reach the one process before the other has seen that its own append counts.
    await other.until(handle.id, lambda history: discarded(history) == ["x"])


async def test_of_a_discard_and_a_dispatch_at_the_same_time_one_comes_first(any_world: World) -> None:
    """The signal is in one queue, or discarded, and never both."""
    for number in range(6):
        process = await any_world.process()
        tags = {"order": str(number)}
        await process.gasoline.signal(Note(), one_note, tags=tags, id="x", park=HOUR_S)
        calls = [
            process.gasoline.dispatch(one_note, None, tags=tags),
            process.gasoline.discard_signal("x", one_note, tags=tags),
        ]
        outcomes = await asyncio.gather(*(calls if number % 2 else reversed(calls)), return_exceptions=True)
        await process.settle()
        refused = [one for one in outcomes if isinstance(one, GasolineError)]
        found = await process.gasoline.find(one_note, tags=tags)
        assert found is not None
        assert len((await found.get()).queued) == len(refused)
        await process.stop()


# --- in tests and without async ---------------------------------------------------------------------------------------


def test_simulation_discards_too() -> None:
    with Simulation([notes]) as sim:
        handle = sim.dispatch(notes, 1)
        handle.signal(Other(text="x"), id="x")
        handle.discard_signal("x")
        with pytest.raises(SignalNotFound):
            handle.discard_signal("y")
        assert handle.get().queued == {}
        handle.signal(Note(text="n"))
        assert handle.output() == ["n"]


def test_history_with_a_discarded_signal_replays_in_the_check(tmp_path: Path) -> None:
    """Complete, and sleeping with the discard behind its last step: the code comes to the same listen."""
    url = f"file:{tmp_path}/log"

    async def made() -> None:
        async with Gasoline.open(url) as gasoline, gasoline.worker([notes]):
            for count in (1, 2):
                handle = await gasoline.dispatch(notes, count)
                await handle.signal(Other(), id="bad")
                await handle.discard_signal("bad")
                await handle.signal(Note(text="good"))
                while "signal.consumed" not in types(await handle.history()):
                    await asyncio.sleep(0.01)

    asyncio.run(made())
    report = replay_check([notes], url)
    assert (report.ok, report.histories, list(report.divergences)) == (True, 2, [])


def test_verbs_that_block_discard_too(tmp_path: Path) -> None:
    with Gasoline.open_sync(f"file:{tmp_path}/log") as gasoline:
        handle = gasoline.dispatch(notes, 1)
        for number in range(2):
            handle.signal(Note(), id=f"n{number}")
        handle.discard_signal("n0")
        gasoline.discard_signal("n1", to=handle.id)
        gasoline.signal(Note(), notes, tags=TAGS, id="p", park=timedelta(hours=1))
        gasoline.discard_signal("p", notes, tags=TAGS)
        assert handle.get().queued == {}
