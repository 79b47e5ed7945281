"""Listening through the engine (semantics.md §4, §5)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from gasoline_es import SignalTo, WorkflowContext, WorkflowHandle, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.durations import to_datetime
from gasoline_es.errors import WorkflowNotFound
from tests.engine.harness import World, consumed, discarded, soon, types
from tests.engine.workflows import Note, Other, nap, notes, one_note


@workflow
async def note_or_other(ctx: WorkflowContext, _: None) -> list[str]:
    out: list[str] = []
    for _turn in range(4):
        got = await ctx.listen(Note, Other)
        out.append(f"{type(got).__name__} {got.text}")
    return out


async def test_listen_takes_the_oldest_of_the_names_it_waits_for(any_world: World) -> None:
    """semantics.md §5: delivered in publish order per workflow; the oldest of either."""
    process = await any_world.process()
    handle = await process.gasoline.dispatch(note_or_other, None)
    for signal in (Note(text="1"), Other(text="2"), Other(text="3"), Note(text="4")):
        await handle.signal(signal)
    await process.work(note_or_other)
    assert await soon(handle.output()) == ["Note 1", "Other 2", "Other 3", "Note 4"]


@workflow
async def other_then_notes(ctx: WorkflowContext, _: None) -> list[str]:
    first = await ctx.listen(Other)
    return [first.text, *[note.text for note in await ctx.listen_n(Note, limit=2)], (await ctx.listen(Note)).text]


async def test_signals_of_other_names_stay_queued_for_a_later_listen(any_world: World) -> None:
    """semantics.md §5: a signal waits for a listen that comes later."""
    process = await any_world.worker(other_then_notes)
    handle = await process.gasoline.dispatch(other_then_notes, None)
    ids = [await handle.signal(Note(text=text)) for text in "abc"]
    await process.settle()
    assert list((await handle.get()).queued) == ids
    await handle.signal(Other(text="go"))
    assert await soon(handle.output()) == ["go", "a", "b", "c"]


@workflow
async def batches(ctx: WorkflowContext, _: None) -> list[list[str]]:
    first = await ctx.listen_n(Note, limit=3)
    second = await ctx.listen_n(Note, limit=10)
    third = await ctx.listen_n(Note, limit=10, timeout=5)
    return [[note.text for note in batch] for batch in (first, second, third)]


async def test_listen_n_takes_up_to_its_limit_at_least_one_and_none_at_a_timeout(any_world: World) -> None:
    """semantics.md §4, api.md: listen_n."""
    process = await any_world.process()
    handle = await process.gasoline.dispatch(batches, None)
    await process.gasoline.signal_many([SignalTo(Note(text=text), handle.id) for text in "abcde"])
    await process.work(batches)
    await process.advance(5)
    assert await soon(handle.output()) == [["a", "b", "c"], ["d", "e"], []]


@workflow
async def deadlines(ctx: WorkflowContext, _: None) -> list[str | None]:
    out: list[str | None] = []
    for wait in ("timeout", "until"):
        if wait == "timeout":
            note = await ctx.listen(Note, timeout=timedelta(seconds=10))
        else:
            note = await ctx.listen(Note, until=ctx.now() + timedelta(seconds=10))
        out.append(None if note is None else note.text)
    return out


async def test_timed_listen_gives_none_at_its_deadline_and_leaves_no_signals_event(any_world: World) -> None:
    """semantics.md §4: a sleep at its location, a signals event at the next one only if any arrived."""
    process = await any_world.worker(deadlines)
    handle = await process.gasoline.dispatch(deadlines, None)
    await process.advance(10)
    await handle.signal(Note(text="second"))
    assert await soon(handle.output()) == [None, "second"]
    history = await handle.history()
    places = [e.data.location for e in history if isinstance(e.data, ev.SleepStarted | ev.SignalConsumed)]
    assert places == [((1,),), ((2,),), ((3,),)]
    assert [e.data.outcome for e in history if isinstance(e.data, ev.SleepFinished)] == ["uninterrupted", "interrupted"]


async def test_signals_left_at_completion_are_discarded_and_shown_so(any_world: World) -> None:
    """semantics.md §5: acknowledged and forgotten; thousands of long ids fit as well (design §6)."""
    process = await any_world.process()
    handle = await process.gasoline.dispatch(one_note, None)
    ids = [f"{number:0300}" for number in range(2_000)]
    await process.gasoline.signal_many([SignalTo(Other(), handle.id, id=one) for one in ids])
    last = await handle.signal(Note(text="done"))
    await process.work(one_note)
    assert await soon(handle.output()) == "done"
    history = await handle.history()
    assert consumed(history) == [last]
    assert discarded(history) == ids
    assert (await handle.get()).queued == {}


@workflow
async def too_much(ctx: WorkflowContext, size: int) -> str:
    return "x" * size


async def test_signals_stay_queued_when_the_workflow_dies_of_its_output(world: World) -> None:
    """semantics.md §5, §7: only a completion discards; a dead workflow may be mended and woken."""
    process = await world.process()
    handle = await process.gasoline.dispatch(too_much, 1_100_000)
    sent = await handle.signal(Note())
    await process.work(too_much)
    history = await process.status(handle.id, "dead")
    assert discarded(history) == []
    assert list((await handle.get()).queued) == [sent]


async def test_taking_a_signal_and_recording_it_is_one_append(any_world: World) -> None:
    """semantics.md §5: a crash leaves a signal either queued or recorded."""
    process = await any_world.worker(one_note)
    handle = await process.gasoline.dispatch(one_note, None)
    await process.settle()
    before = len(process.log.appended)
    await handle.signal(Note(text="x"))
    keys = [[record.key for record in section.records] for section in process.log.appended[before]]
    assert [f"{handle.id}/2", f"{handle.id}/3"] in [
        [key for key in section if key.startswith(f"{handle.id}/")] for section in keys
    ], "received and consumed together: the listen was already there"


async def test_signal_to_an_unknown_or_complete_workflow_is_refused(any_world: World) -> None:
    """semantics.md §5, design §5: WorkflowNotFound; a signal id known there is answered with that id."""
    process = await any_world.worker(one_note)
    gasoline = process.gasoline
    handle = await gasoline.dispatch(one_note, None, tags={"a": 1})
    await handle.signal(Note(text="x"), id="mine")
    await soon(handle.output())
    with pytest.raises(WorkflowNotFound):
        await handle.signal(Note())
    assert await handle.signal(Note(text="x"), id="mine") == "mine"
    with pytest.raises(WorkflowNotFound):
        await gasoline.signal(Note(), to="00000000-0000-7000-8000-000000000000")
    with pytest.raises(WorkflowNotFound):
        await gasoline.signal(Note(), one_note, tags={"a": 1})
    assert await gasoline.signal(Note(), one_note, tags={"a": 1}, graceful_not_found=True) is None
    assert types(await handle.history()).count("signal.received") == 1


async def test_signal_addressed_both_ways_or_none_is_refused_before_anything_is_sent(world: World) -> None:
    """semantics.md §5: exactly one of the two."""
    process = await world.process()
    handle = await process.gasoline.dispatch(one_note, None)
    before = process.log.count
    with pytest.raises(ValueError, match="one of the two"):
        await process.gasoline.signal(Note())  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="one of the two"):
        await process.gasoline.signal(Note(), one_note, to=handle.id)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="one of the two"):
        await process.gasoline.signal(Note(), to=handle.id, tags={"a": 1})  # type: ignore[call-overload]
    assert process.log.count == before


async def test_signal_with_the_callers_id_is_received_once_however_often_it_is_sent(any_world: World) -> None:
    """design §5: a repeat is answered with its id and changes nothing; also when it was consumed, also in another process."""
    process = await any_world.worker(notes)
    handle = await process.gasoline.dispatch(notes, 2)
    for _ in range(3):
        assert await handle.signal(Note(text="once"), id="line 1") == "line 1"
    await process.settle()
    await process.stop()
    again = await any_world.worker(notes)
    assert await again.gasoline.signal(Note(text="once"), to=handle.id, id="line 1") == "line 1"
    await again.gasoline.signal(Note(text="end"), to=handle.id)
    assert await soon(again.gasoline.handle(handle.id, notes).output()) == ["once", "end"]


async def test_signal_goes_to_the_oldest_incomplete_workflow_whose_tags_contain_the_given(any_world: World) -> None:
    """semantics.md §5, §6: subset on string form; a completed one leaves the index at once."""
    process = await any_world.process()
    gasoline = process.gasoline
    handles: list[WorkflowHandle[str]] = []
    for number in range(3):
        any_world.clock.advance(1)
        handles.append(await gasoline.dispatch(one_note, None, tags={"kind": "a", "number": number}))
    other_name = await gasoline.dispatch(notes, 1, tags={"kind": "a"})
    await process.work(one_note, notes)
    for handle in handles:
        await gasoline.signal(Note(text="next"), one_note, tags={"kind": "a"})
        assert await soon(handle.output()) == "next"
    with pytest.raises(WorkflowNotFound):
        await gasoline.signal(Note(), one_note, tags={"kind": "a"})
    assert (await other_name.get()).queued == {}
    found = await gasoline.find(notes, tags={"kind": "a"})
    assert found is not None
    assert found.id == other_name.id
    assert await gasoline.find(one_note, tags={"kind": "a"}) is None


async def test_signals_sent_under_gather_keep_the_order_of_the_calls(any_world: World) -> None:
    """design §5: sends are ordered by the calls, also under gather, and from a process that owns nothing yet."""
    client = await any_world.process()
    handle = await client.gasoline.dispatch(notes, 60)
    await client.stop()
    fresh = await any_world.process()
    texts = [str(number) for number in range(60)]
    await asyncio.gather(
        *(fresh.gasoline.signal(Note(text=text), to=handle.id) for text in texts[:20]),
        fresh.gasoline.signal_many([SignalTo(Note(text=text), handle.id) for text in texts[20:40]]),
        *(fresh.gasoline.signal(Note(text=text), to=handle.id) for text in texts[40:]),
    )
    await fresh.work(notes)
    assert await soon(fresh.gasoline.handle(handle.id, notes).output()) == texts


async def test_signal_many_is_one_append_in_order_also_from_a_fresh_process(any_world: World) -> None:
    """design §5: signal_many sends a batch in one append."""
    client = await any_world.process()
    handles = [await client.gasoline.dispatch(notes, 10) for _ in range(5)]
    await client.stop()
    fresh = await any_world.process()
    batch = [SignalTo(Note(text=str(number)), handles[number % 5].id) for number in range(50)]
    ids = await fresh.gasoline.signal_many(batch)
    assert len(set(ids)) == 50
    for handle in handles:
        sections = [s for append in fresh.log.appended for s in append if any(handle.id in r.key for r in s.records)]
        assert len(sections) == 1
    await fresh.work(notes)
    for first, handle in enumerate(handles):
        expected = [str(number) for number in range(first, 50, 5)]
        assert await soon(fresh.gasoline.handle(handle.id, notes).output()) == expected


async def test_signal_many_checks_all_before_it_sends_any(world: World) -> None:
    """api.md: a bad one among them, and nothing is recorded."""
    process = await world.process()
    handle = await process.gasoline.dispatch(one_note, None)
    before = process.log.count
    with pytest.raises(WorkflowNotFound):
        await process.gasoline.signal_many([SignalTo(Note(), handle.id), SignalTo(Note(), "../../x")])
    with pytest.raises(ValueError, match="control character"):
        await process.gasoline.signal_many([SignalTo(Note(), handle.id), SignalTo(Note(), handle.id, id="a\x00b")])
    assert process.log.count == before


async def test_now_is_the_time_of_the_last_event_delivered(world: World) -> None:
    """design §3: ctx.now()."""

    @workflow
    async def telling(ctx: WorkflowContext, _: None) -> list[str]:
        before = ctx.now().isoformat()
        await ctx.listen(Note)
        return [before, ctx.now().isoformat()]

    process = await world.worker(telling)
    started = world.clock.now_us()
    handle = await process.gasoline.dispatch(telling, None)
    await process.advance(7)
    await handle.signal(Note())
    expected = [to_datetime(started).isoformat(), to_datetime(started + 7_000_000).isoformat()]
    assert await soon(handle.output()) == expected


async def test_sleep_of_no_time_ends_at_once(world: World) -> None:
    """semantics.md §4: a sleep of nothing ends at once."""
    process = await world.worker(nap)
    assert await soon((await process.gasoline.dispatch(nap, 0.0)).output()) == "awake"
