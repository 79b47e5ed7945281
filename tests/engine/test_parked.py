"""Parked signals: the first workflow dispatched within the time gets each one, once (semantics.md §5, api.md)."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gasoline_es import ActivityContext, Gasoline, Signal, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.ids import partition_of, workflow_id_from_key
from gasoline_es.core.parked import parked_slot
from gasoline_es.core.parked_events import ParkedEvent, SignalParked, decode_parked_event, encode_parked_event
from gasoline_es.errors import (
    DefinitionError,
    GasolineError,
    InvalidTags,
    NoSpace,
    RecordTooLarge,
    SignalDiscarded,
    WorkflowNotFound,
)
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Appended, NewRecord, Section
from gasoline_es.runtime import viewing
from gasoline_es.testing import Simulation
from tests.engine.harness import PATIENCE_S, Fate, Process, World, kills, soon, types, when
from tests.engine.test_odd_histories import append_event
from tests.engine.test_stored_views import stored
from tests.engine.workflows import Note, Other, echo, notes, one_note

HOUR_S = 3600.0
TAGS = {"order": "42"}


@workflow
async def starts_one_note(ctx: WorkflowContext, tag: str) -> str:
    return await (await ctx.dispatch(one_note, None, tags={"order": tag})).output()


@activity
async def retag(ctx: ActivityContext, tag: str) -> None:
    await ctx.update_tags({"order": tag})


@workflow
async def retagged(ctx: WorkflowContext, tag: str) -> str:
    await ctx.activity(retag, tag)
    return (await ctx.listen(Note)).text


class Numbered(Signal):
    n: int


@workflow
async def numbers(ctx: WorkflowContext, count: int) -> list[int]:
    return [(await ctx.listen(Numbered)).n for _ in range(count)]


async def streams(process: Process) -> dict[str, list[ParkedEvent]]:
    """The events of all parked signals, by the ids of their streams; in order, and gap-free."""
    found: dict[str, list[ParkedEvent]] = {}
    for index in range(process.log.partition_count):
        for record in process.log.read("default.parked", index):
            assert record.value is not None
            event = decode_parked_event(record.value)
            found.setdefault(event.parked_id, []).append(event)
    for events in found.values():
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return found


async def told(process: Process, signal_id: str | None = None) -> list[str]:
    """The types of the events of the one parked signal there is, or of the one with this id."""
    found = (await streams(process)).values()
    first, *_ = [one for one in found if signal_id is None or id_of(one) == signal_id]
    return [event.type.removeprefix("signal.") for event in first]


def id_of(events: list[ParkedEvent]) -> str:
    """The signal's id."""
    assert isinstance(events[0].data, SignalParked)
    return events[0].data.signal_id


async def receipts(gasoline: Gasoline) -> list[tuple[str, str]]:
    """Which workflow received which signal: (workflow id, signal id) of each receipt."""
    found: list[tuple[str, str]] = []
    async for info in gasoline.list():
        history = await gasoline.history(info.id)
        found += [(info.id, event.data.signal_id) for event in history if isinstance(event.data, ev.SignalReceived)]
    return found


async def until_told(process: Process, last: str, count: int = 1) -> None:
    """Wait until so many parked signals have come to this event, and it is the last of each."""
    seen: list[list[str]] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                seen = [[event.type for event in events] for events in (await streams(process)).values()]
                if [events[-1] for events in seen].count(f"signal.{last}") >= count:
                    break
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"it did not come to {count} times {last}, but to {seen}") from None
    await process.settle()  # what is on the log is known to who wrote it


async def split(world: World, name: str = "one_note") -> tuple[Process, Process]:
    """Two processes: the first owns where signals for workflows of a name are parked, the second everything else."""
    keeper, other = await world.process(), await world.process()
    place = parked_slot(name) * keeper.log.partition_count // 4096
    for index in range(keeper.log.partition_count):
        assert await (keeper if index == place else other).node.own(index) is not None
    return keeper, other


def key_at(process: Process, partition: int, number: int = 0) -> str:
    """A key by which a workflow ``notes`` or ``one_note`` lies in a partition."""
    count = process.log.partition_count
    keys = (f"k{n}" for n in itertools.count())
    fits = (key for key in keys if all(place_of(name, key, count) == partition for name in ("notes", "one_note")))
    return next(itertools.islice(fits, number, None))


def key_in(process: Process, number: int = 0) -> str:
    """A key by which it lies in another partition than the signals that are parked for it."""
    count = process.log.partition_count
    parked = {parked_slot(name) * count // 4096 for name in ("notes", "one_note")}
    return key_at(process, next(index for index in range(count) if index not in parked), number)


def place_of(name: str, key: str, count: int) -> int:
    return partition_of(workflow_id_from_key("default", name, key), count)


# --- parking and getting ----------------------------------------------------------------------------------------------


async def test_a_signal_that_comes_first_is_got_by_the_workflow_that_comes_later(any_world: World) -> None:
    process = await any_world.worker(one_note)
    sent = await process.gasoline.signal(Note(text="early"), one_note, tags=TAGS, park=HOUR_S)
    assert await told(process) == ["parked"], "durable on return"
    any_world.clock.advance(HOUR_S - 1)
    handle = await process.gasoline.dispatch(one_note, None, tags={**TAGS, "more": True})
    assert await soon(handle.output()) == "early"
    await until_told(process, "unparked")
    assert await receipts(process.gasoline) == [(handle.id, sent)]
    history = await handle.history()
    assert types(history) == [
        "workflow.dispatched",
        "signal.received",
        "signal.consumed",
        "workflow.completed",
    ]
    (events,) = (await streams(process)).values()
    assert getattr(events[-1].data, "target", None) == handle.id
    await when(lambda: not process.node._unparking.running)  # nothing of it runs once nothing is parked


@pytest.mark.parametrize("other", [{"order": "43"}, {}, {"Order": "42"}])
async def test_others_do_not_get_it(world: World, other: dict[str, str]) -> None:
    process = await world.worker(one_note, notes)
    await process.gasoline.signal(Note(), one_note, tags=TAGS, park=HOUR_S)
    await process.gasoline.dispatch(one_note, None, tags=other)
    await process.gasoline.dispatch(notes, 1, tags=TAGS)
    await process.settle()
    assert await receipts(process.gasoline) == []
    handle = await process.gasoline.dispatch(one_note, None, tags={"order": 42})
    assert await soon(handle.output()) == ""


async def test_of_a_signal_without_tags_any_workflow_of_the_name_is_the_one(any_world: World) -> None:
    process = await any_world.worker(one_note)
    await process.gasoline.signal(Note(text="any"), one_note, park=timedelta(minutes=1))
    assert await soon((await process.gasoline.dispatch(one_note, None, tags=TAGS)).output()) == "any"


async def test_the_first_of_several_gets_it_alone(any_world: World) -> None:
    process = await any_world.worker(one_note)
    await process.gasoline.signal(Note(text="early"), one_note, tags=TAGS, park=HOUR_S)
    first = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    any_world.clock.advance(1)
    second = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    assert await soon(first.output()) == "early"
    await process.settle()
    assert [found for found, _ in await receipts(process.gasoline)] == [first.id]
    await second.cancel()


async def test_where_one_is_there_already_it_is_an_ordinary_signal(any_world: World) -> None:
    process = await any_world.worker(one_note)
    handle = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    await process.gasoline.signal(Note(text="now"), one_note, tags=TAGS, park=HOUR_S)
    assert await soon(handle.output()) == "now"
    assert await streams(process) == {}
    assert not process.node._unparking.running


async def test_one_that_is_dispatched_by_the_same_client_at_the_same_time_gets_it(any_world: World) -> None:
    process = await any_world.process()
    handle, sent = await soon(
        asyncio.gather(
            process.gasoline.dispatch(one_note, None, tags=TAGS),
            process.gasoline.signal(Note(), one_note, tags=TAGS, park=HOUR_S),
        )
    )
    await process.settle()
    assert await receipts(process.gasoline) == [(handle.id, sent)]
    assert await streams(process) == {}


async def test_nobody_needs_a_worker_for_it(any_world: World) -> None:
    """design §5: owning is separate from driving."""
    client = await any_world.process()
    await client.gasoline.signal(Note(text="early"), one_note, tags=TAGS, park=HOUR_S)
    handle = await client.gasoline.dispatch(one_note, None, tags=TAGS)
    await until_told(client, "unparked")
    assert list((await handle.get()).queued.values()) == ["note"]
    worker = await any_world.worker(one_note)
    assert await soon(worker.gasoline.handle(handle.id, one_note).output()) == "early"


async def test_where_nobody_owns_the_workflows_partition_who_owns_the_signals_sees_to_it(any_world: World) -> None:
    keeper, other = await split(any_world)
    await keeper.gasoline.signal(Note(), one_note, tags=TAGS, park=HOUR_S)
    keeper.log.asked.clear()
    keeper.log.open_gate.clear()
    handle = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_in(other))
    await soon(keeper.log.asked.wait())
    await other.stop()
    keeper.log.open_gate.set()
    await until_told(keeper, "unparked")
    assert [found for found, _ in await receipts(keeper.gasoline)] == [handle.id]


async def test_another_process_may_dispatch_it_and_another_one_own_it(any_world: World) -> None:
    keeper, other = await split(any_world)
    third = await any_world.process()
    sent = await soon(third.gasoline.signal(Note(), one_note, tags=TAGS, park=HOUR_S))
    ids: list[str] = []
    for _ in range(3):
        ids.append((await soon(other.gasoline.dispatch(one_note, None, tags=TAGS))).id)
        any_world.clock.advance(1)
    await until_told(keeper, "unparked")
    assert await receipts(third.gasoline) == [(ids[0], sent)]
    assert (await told(keeper))[0] == "parked"


async def test_a_body_that_dispatches_it_and_a_schedule_do_too(any_world: World) -> None:
    process = await any_world.worker(one_note, starts_one_note)
    await process.gasoline.signal(Note(text="of a body"), one_note, tags=TAGS, park=HOUR_S)
    assert await soon((await process.gasoline.dispatch(starts_one_note, "42")).output()) == "of a body"
    await process.gasoline.signal(Note(text="of a schedule"), one_note, tags={"schedule": "notes"}, park=HOUR_S)
    handle = await process.gasoline.schedule(60.0, one_note, None, name="notes")
    await process.advance(60)
    run = (await handle.get()).last_run
    assert run is not None
    assert await soon(process.gasoline.handle(run, one_note).output()) == "of a schedule"


async def test_a_workflow_that_gets_the_tags_later_gets_it(any_world: World) -> None:
    process = await any_world.worker(retagged)
    await process.gasoline.signal(Note(text="early"), retagged, tags=TAGS, park=HOUR_S)
    handle = await process.gasoline.dispatch(retagged, "42", tags={"order": "none"})
    assert await soon(handle.output()) == "early"


# --- its time ---------------------------------------------------------------------------------------------------------


async def test_after_its_time_it_is_discarded_and_recorded_as_such(any_world: World) -> None:
    process = await any_world.worker(one_note)
    sent = await process.gasoline.signal(Note(text="early"), one_note, tags=TAGS, park=60)
    await process.advance(59.9)
    assert await told(process) == ["parked"]
    any_world.clock.advance(0.2)
    await until_told(process, "discarded")
    (events,) = (await streams(process)).values()
    assert id_of(events) == sent
    assert getattr(events[-1].data, "signal_id", None) == sent
    handle = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    await process.settle()
    assert await receipts(process.gasoline) == []
    await handle.cancel()
    await when(lambda: not process.node._unparking.running)


async def test_who_was_dispatched_in_time_gets_it_also_if_nobody_looked_until_later(any_world: World) -> None:
    """Nobody owned its partition meanwhile: what counts is when the workflow was dispatched."""
    keeper, other = await split(any_world)
    await keeper.gasoline.signal(Note(), one_note, tags=TAGS, park=60)
    await keeper.gasoline.signal(Note(), one_note, tags={"order": "late"}, park=60)
    await keeper.kill()
    any_world.clock.advance(50)
    handle = await other.gasoline.dispatch(one_note, None, tags=TAGS)
    any_world.clock.advance(50)
    await other.gasoline.dispatch(one_note, None, tags={"order": "late"})
    await other.stop()
    process = await any_world.worker(one_note)
    await until_told(process, "discarded")
    await until_told(process, "unparked")
    assert [found for found, _ in await receipts(process.gasoline)] == [handle.id]


async def test_a_dispatch_that_waits_in_an_inbox_is_decided_before_a_deadline(world: World) -> None:
    """design §5: what was sent before is decided before."""
    process = await world.process()
    await process.gasoline.signal(Note(), one_note, tags=TAGS, park=60)
    client = await world.process()
    for index in range(process.log.partition_count):
        await process.node.own(index)
    process.log.open_gate.clear()  # its own appends wait, so what it decides is not durable at the deadline
    sending = asyncio.ensure_future(client.gasoline.dispatch(one_note, None, tags=TAGS))
    await soon(process.log.asked.wait())
    world.clock.advance(59)
    for _ in range(20):
        await asyncio.sleep(0)
    world.clock.advance(1)
    for _ in range(20):
        await asyncio.sleep(0)
    process.log.open_gate.set()
    handle = await soon(sending)
    await until_told(process, "unparked")
    assert [found for found, _ in await receipts(process.gasoline)] == [handle.id]


async def test_a_wall_clock_that_is_set_back_discards_nothing_early(world: World) -> None:
    """required.md B13, for parked signals."""
    process = await world.process()
    await process.gasoline.signal(Note(), one_note, tags=TAGS, park=60)
    await process.settle()
    world.clock.jump_wall(-30)
    await process.advance(80)
    assert await told(process) == ["parked"]
    await process.advance(10)
    await until_told(process, "discarded")


# --- who is over by then ----------------------------------------------------------------------------------------------


async def test_one_that_is_over_before_anybody_looked_does_not_get_it_and_the_next_does(any_world: World) -> None:
    keeper, other = await split(any_world)
    await keeper.gasoline.signal(Note(text="early"), one_note, tags=TAGS, park=HOUR_S)
    await keeper.kill()
    # In a partition of its own: by taking the keeper's it would look after the parked one itself.
    first = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_in(other))
    await first.cancel(now=True)
    process = await any_world.worker(one_note)
    await process.settle()
    assert await told(process) == ["parked"]
    second = await soon(process.gasoline.dispatch(one_note, None, tags=TAGS))
    assert await soon(second.output()) == "early"


async def test_one_that_ended_while_it_was_on_its_way_sends_it_back_and_the_next_gets_it(any_world: World) -> None:
    keeper, other = await split(any_world)
    await keeper.gasoline.signal(Note(text="early"), one_note, tags=TAGS, park=60)
    keeper.log.asked.clear()
    keeper.log.open_gate.clear()  # what it decides from here on waits before it is written
    first = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_in(other))
    await soon(keeper.log.asked.wait())
    await first.cancel(now=True)
    any_world.clock.advance(59)
    keeper.log.open_gate.set()
    await until_told(keeper, "returned")
    second = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_in(other, 1))
    any_world.clock.advance(60)  # its time is over only when nobody was dispatched in it
    await until_told(keeper, "unparked")
    assert await told(keeper) == ["parked", "offered", "returned", "offered", "unparked"]
    assert [found for found, _ in await receipts(other.gasoline)] == [second.id]
    assert types(await first.history()) == [
        "workflow.dispatched",
        "workflow.cancel_requested",
        "workflow.cancelled",
    ]


async def test_one_that_comes_back_after_its_time_is_discarded(any_world: World) -> None:
    keeper, other = await split(any_world)
    await keeper.gasoline.signal(Note(), one_note, tags=TAGS, park=60)
    keeper.log.asked.clear()
    keeper.log.open_gate.clear()
    first = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_in(other))
    await soon(keeper.log.asked.wait())
    await first.cancel(now=True)
    any_world.clock.advance(61)
    keeper.log.open_gate.set()
    await until_told(keeper, "discarded")
    assert await told(keeper) == ["parked", "offered", "returned", "discarded"]


async def test_on_its_way_at_the_deadline_it_is_not_discarded(any_world: World) -> None:
    keeper, other = await split(any_world)
    await keeper.gasoline.signal(Note(), one_note, tags=TAGS, park=60)
    other.log.close_at = other.log.count + 2  # the dispatch is written, the receipt waits
    first = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_in(other))
    await until_told(keeper, "offered")
    await soon(other.log.closed.wait())
    any_world.clock.advance(61)
    await keeper.settle()
    other.log.open_gate.set()
    await until_told(keeper, "unparked")
    assert [found for found, _ in await receipts(other.gasoline)] == [first.id]


@pytest.mark.parametrize("partitions", [1, 16])
async def test_a_workflow_that_is_set_aside_does_not_keep_it_from_the_next(any_world: World, partitions: int) -> None:
    """What takes no signals is passed over, also from another partition, and is not asked again and again."""
    client = await any_world.process(partitions=partitions)
    bad = await client.gasoline.dispatch(notes, 2, tags=TAGS, key=key_at(client, 0))
    await client.stop()
    await append_event(any_world, bad.id, 5)
    process = await any_world.process()
    sent = await process.gasoline.signal(Note(), notes, tags={"other": "1"}, park=HOUR_S)
    assert (await process.gasoline.get(bad.id)).status == "unreadable"
    with pytest.raises(GasolineError, match="takes no signals"):  # as of an ordinary one
        await process.gasoline.signal(Note(), notes, tags=TAGS, park=HOUR_S)
    for number in (2, 3):  # the tags of one that is set aside stay: it is found, and refuses
        await process.gasoline.signal(Note(), notes, tags={"no": number}, park=HOUR_S, id=f"s{number}")
    good = await process.gasoline.dispatch(notes, 2, tags={"other": "1", "no": 2})
    await until_told(process, "unparked", 2)
    assert {sent, "s2"} == {signal_id for _, signal_id in await receipts(process.gasoline) if signal_id != "odd"}
    assert list((await good.get()).queued) == [sent, "s2"]


# --- repeats ----------------------------------------------------------------------------------------------------------


async def test_a_repeat_with_the_senders_id_changes_nothing_whatever_became_of_it(any_world: World) -> None:
    process = await any_world.worker(one_note)
    client = await any_world.process()

    async def send(gasoline: Gasoline) -> None:
        assert await soon(gasoline.signal(Note(text="early"), one_note, tags=TAGS, id="line 1", park=60)) == "line 1"

    await soon(asyncio.gather(*(send(one) for one in (process.gasoline, client.gasoline) for _ in range(5))))
    assert await told(process) == ["parked"]
    first = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    assert await soon(first.output()) == "early"
    await until_told(process, "unparked")
    for gasoline in (process.gasoline, client.gasoline):
        await send(gasoline)  # to nobody: it was got, and its workflow is over
    second = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    for gasoline in (process.gasoline, client.gasoline):
        await send(gasoline)  # nor to the next one, which it was not for
    await process.settle()
    assert await receipts(process.gasoline) == [(first.id, "line 1")]
    await second.cancel(now=True)

    await process.gasoline.signal(Note(), one_note, tags=TAGS, id="line 2", park=60)
    await process.advance(61)
    await until_told(process, "discarded")
    third = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    for gasoline in (process.gasoline, client.gasoline):
        with pytest.raises(
            SignalDiscarded, match=r"'note' with the id 'line 2' was parked before and is discarded"
        ) as refused:
            await soon(gasoline.signal(Note(), one_note, tags=TAGS, id="line 2", park=60, graceful_not_found=True))
        assert (refused.value.signal_id, refused.value.workflow) == ("line 2", "one_note")
    await process.settle()
    assert await told(process, "line 2") == ["parked", "discarded"]
    assert (await third.get()).queued == {}


async def test_a_repeat_is_recognised_by_the_next_owner_and_after_a_restart(any_world: World) -> None:
    first = await any_world.worker(one_note)
    await first.gasoline.signal(Note(), one_note, tags=TAGS, id="line 1", park=HOUR_S)
    await first.kill()
    second = await any_world.worker(one_note)
    await second.gasoline.signal(Note(), one_note, tags=TAGS, id="line 1", park=HOUR_S)
    assert await told(second) == ["parked"]


async def test_one_that_is_forgotten_is_parked_anew_and_got(any_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also read by a process that remembers it: its second life begins with event 1 again."""
    monkeypatch.setattr("projections.parked.ENDED_REMEMBERED", 0)
    monkeypatch.setattr("projections.parked.ENDED_REMEMBERED_US", 0)
    process = await any_world.worker(one_note)
    send = process.gasoline.signal
    await send(Note(text="first"), one_note, tags=TAGS, id="line 1", park=60)
    await process.advance(61)
    await until_told(process, "discarded")
    await send(Note(text="second"), one_note, tags=TAGS, id="line 1", park=60)
    await process.kill()
    monkeypatch.undo()
    process = await any_world.worker(one_note)
    handle = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    assert await soon(handle.output()) == "second"
    await process.settle()
    assert await process.gasoline.signal(Note(), one_note, tags=TAGS, id="line 1", park=60) == "line 1"
    lines = [
        record.value
        for index in range(process.log.partition_count)
        for record in process.log.read("default.parked", index)
    ]
    events = [decode_parked_event(line) for line in lines if line is not None]
    assert [one.type for one in events if one.seq == 1] == ["signal.parked"] * 2
    assert {one.type for one in events} >= {"signal.discarded", "signal.unparked"}


async def test_the_same_id_for_other_tags_is_another_signal(world: World) -> None:
    process = await world.process()
    for order in ("1", "2"):
        await process.gasoline.signal(Note(), one_note, tags={"order": order}, id="cancelled", park=HOUR_S)
    for order in ("1", "2"):
        await process.gasoline.dispatch(one_note, None, tags={"order": order})
    await until_told(process, "unparked", 2)
    assert [signal_id for _, signal_id in await receipts(process.gasoline)] == ["cancelled", "cancelled"]


# --- order ------------------------------------------------------------------------------------------------------------


async def test_they_are_got_in_the_order_in_which_one_client_sent_them(any_world: World) -> None:
    """design §5: also of different tags, also under gather, also those sent when the workflow is there already."""
    keeper, other = await split(any_world, "numbers")
    sending = await any_world.process()
    tags: list[dict[str, Any]] = [{"order": "42"}, {"customer": "7"}, {}, {"order": "42", "customer": "7"}]

    def send(n: int) -> Any:
        return sending.gasoline.signal(Numbered(n=n), numbers, tags=tags[n % 4], park=HOUR_S, id=f"s{n}")

    for n in range(5):
        await soon(send(n))
    await soon(asyncio.gather(*map(send, range(5, 20))))
    handle = await other.gasoline.dispatch(numbers, 60, tags={"order": "42", "customer": "7"})
    for n in range(20, 40):
        await soon(send(n))
    await soon(asyncio.gather(*map(send, range(40, 60))))
    async with asyncio.timeout(PATIENCE_S):
        while len((await handle.get()).queued) < 60:
            await asyncio.sleep(0.001)
    assert list((await handle.get()).queued) == [f"s{n}" for n in range(60)]
    await keeper.settle()
    await other.stop()
    await keeper.stop()
    worker = await any_world.worker(numbers)
    assert await soon(worker.gasoline.handle(handle.id, numbers).output()) == list(range(60))


async def test_one_that_is_sent_while_an_earlier_one_is_on_its_way_stays_behind_it(any_world: World) -> None:
    keeper, other = await split(any_world)
    await other.gasoline.signal(Note(), one_note, tags=TAGS, park=60, id="first")
    # The dispatch is written, and what comes next, the first signal's receipt, is not: however soon that comes.
    other.log.close_at = other.log.count + 2
    handle = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_in(other))
    await until_told(keeper, "offered")
    await soon(other.log.closed.wait())
    sending = asyncio.ensure_future(keeper.gasoline.signal(Note(), one_note, tags=TAGS, park=60, id="second"))
    assert await soon(sending) == "second"
    assert await told(keeper, "second") == ["parked"] or await told(keeper, "second") == ["parked", "offered"]
    other.log.open_gate.set()
    await until_told(keeper, "unparked", 2)
    assert list((await handle.get()).queued) == ["first", "second"]


# --- when things die, and at the same time ----------------------------------------------------------------------------


async def test_parked_and_dispatched_at_the_same_time_in_two_processes_it_is_got(any_world: World) -> None:
    """Whichever is durable first: either the send finds the workflow, or the look after it does."""
    keeper, other = await split(any_world)
    for number, first in enumerate(("parked", "dispatched", "together") * 5):
        tags = {"order": number}
        for process in (keeper, other):
            process.log.asked.clear()
            process.log.open_gate.clear()
        parking = asyncio.ensure_future(keeper.gasoline.signal(Note(), one_note, tags=tags, park=HOUR_S))
        dispatching = asyncio.ensure_future(
            other.gasoline.dispatch(one_note, None, tags=tags, key=key_in(other, number))
        )
        await soon(keeper.log.asked.wait())  # neither saw the other
        await soon(other.log.asked.wait())
        if first != "dispatched":
            keeper.log.open_gate.set()
        if first == "parked":
            await soon(parking)
        other.log.open_gate.set()
        if first == "dispatched":
            await soon(dispatching)
        keeper.log.open_gate.set()
        await soon(asyncio.gather(parking, dispatching))
        await until_told(keeper, "unparked", number + 1)
    assert len(await receipts(keeper.gasoline)) == 15


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_killed_at_every_append_it_is_got_once_or_still_parked(fate: Fate) -> None:
    """design §1: one process does it all, in one partition and across them."""

    async def life(process: Process) -> None:
        await process.work(notes)
        for number in range(3):
            await process.gasoline.signal(Note(text=str(number)), notes, tags=TAGS, park=HOUR_S, id=f"s{number}")
        here = key_at(process, parked_slot("notes") * 16 // 4096)
        for key in (key_in(process), here):
            handle = await process.gasoline.dispatch(notes, 3, tags=TAGS, key=key)
            await handle.output()
            for number in range(3):
                await process.gasoline.signal(
                    Note(text=str(number)), notes, tags=TAGS, park=HOUR_S, id=f"{key}{number}"
                )

    async for world, _ in kills(fate, life):
        process = await world.worker(notes)
        for number in range(3):
            await process.gasoline.signal(Note(text=str(number)), notes, tags=TAGS, park=HOUR_S, id=f"s{number}")
        handle = await process.gasoline.dispatch(notes, 3, tags=TAGS, key=key_in(process))
        assert await soon(handle.output()) == ["0", "1", "2"]
        await process.settle()
        got = [signal_id for _, signal_id in await receipts(process.gasoline)]
        assert len(got) == len(set(got))
        await assert_nothing_lost(process)


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
@pytest.mark.parametrize("dying", ["keeper", "other"])
async def test_killed_at_every_append_between_two_processes_it_is_got_once(fate: Fate, dying: str) -> None:
    number, died = 0, True
    while died:
        number += 1
        world = World()
        keeper, other = await split(world, "notes")
        victim, witness = (keeper, other) if dying == "keeper" else (other, keeper)
        victim.log.script = {victim.log.count + number: fate}

        async def life(keeper: Process = keeper, other: Process = other) -> None:
            for n in range(2):
                await keeper.gasoline.signal(Note(text=str(n)), notes, tags=TAGS, park=HOUR_S, id=f"s{n}")
            await other.gasoline.dispatch(notes, 2, tags=TAGS, key=key_in(other))
            await until_told(keeper, "unparked", 2)

        died = await victim.live(life())
        await victim.kill()
        await witness.stop()
        process = await world.worker(notes)
        for n in range(2):
            await process.gasoline.signal(Note(text=str(n)), notes, tags=TAGS, park=HOUR_S, id=f"s{n}")
        handle = await process.gasoline.dispatch(notes, 2, tags=TAGS, key=key_in(process))
        assert await soon(handle.output()) == ["0", "1"]
        await process.settle()
        assert sorted(signal_id for _, signal_id in await receipts(process.gasoline)) == ["s0", "s1"]
        await assert_nothing_lost(process)
        await world.end()
    assert number > 2


async def assert_nothing_lost(process: Process) -> None:
    """Each one that was parked still waits, or is in one queue; what its stream says is so."""
    got = await receipts(process.gasoline)
    for events in (await streams(process)).values():
        targets = [workflow_id for workflow_id, one in got if one == id_of(events)]
        last = events[-1].data
        assert targets == ([] if last.TYPE == "signal.parked" else [getattr(last, "target", None)])


async def test_a_full_disk_delays_it_and_loses_nothing(any_world: World) -> None:
    keeper, other = await split(any_world)
    await keeper.gasoline.signal(Note(), one_note, tags=TAGS, park=60)
    await keeper.settle()
    keeper.log.always = NoSpace  # the offer cannot be written at first
    handle = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_in(other))
    await soon(keeper.log.refused.wait())
    other.log.asked.clear()
    other.log.always = NoSpace  # nor the receipt then
    keeper.log.always = None
    await soon(other.log.refused.wait())
    other.log.always = None
    await until_told(keeper, "unparked")
    assert [found for found, _ in await receipts(keeper.gasoline)] == [handle.id]


async def test_a_full_disk_delays_that_it_is_discarded(any_world: World) -> None:
    process = await any_world.process()
    await process.gasoline.signal(Note(), one_note, tags=TAGS, park=60)
    await process.settle()
    process.log.always = NoSpace
    any_world.clock.advance(61)
    await soon(process.log.refused.wait())
    process.log.always = None
    await until_told(process, "discarded")
    assert await told(process) == ["parked", "discarded"]


async def test_one_that_takes_the_partition_over_goes_on_with_it(any_world: World) -> None:
    keeper, other = await split(any_world)
    await keeper.gasoline.signal(Note(), one_note, tags=TAGS, park=HOUR_S)
    await keeper.kill()
    handle = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_in(other))
    third = await any_world.process()
    for index in range(third.log.partition_count):
        await third.node.own(index)
    await until_told(third, "unparked")
    assert [found for found, _ in await receipts(other.gasoline)] == [handle.id]


async def test_one_that_came_behind_the_look_at_its_partition_gets_it_before_a_younger_one(any_world: World) -> None:
    """Partitions are looked into in turn: the older comes to the first behind the look, the younger to the last before it."""
    keeper, other = await split(any_world)
    places = [index for index in range(keeper.log.partition_count) if index not in keeper.node.partitions]
    await keeper.gasoline.signal(Note(text="parked"), one_note, tags=TAGS, park=HOUR_S, id="line 1")
    await keeper.settle()
    views, looked, made = keeper.node.viewing.views, list[int](), list[str]()

    async def interrupted(index: int, *rest: Any) -> Any:
        if not made and keeper.node._unparking._marked == {} and {places[0]} <= {*looked} and index == places[-1]:
            for place in (places[0], places[-1]):
                made.append((await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key_at(keeper, place))).id)
        looked.append(index)
        return await views(index, *rest)

    keeper.node.viewing.views = interrupted  # type: ignore[method-assign]
    keeper.node._unparking.wait_all()
    await until_told(keeper, "unparked")
    assert len(made) == 2
    assert [found for found, _ in await receipts(keeper.gasoline)] == made[:1]


# --- many -------------------------------------------------------------------------------------------------------------


async def test_a_thousand_that_wait_are_got_by_a_thousand_workflows(world: World) -> None:
    keeper, other = await split(world)
    parking = (keeper.gasoline.signal(Note(), one_note, tags={"n": n}, park=HOUR_S, id=f"s{n}") for n in range(1_000))
    await soon(asyncio.gather(*parking))
    handles = await asyncio.gather(*(other.gasoline.dispatch(one_note, None, tags={"n": n}) for n in range(1_000)))
    await until_told(keeper, "unparked", 1_000)
    assert set(await receipts(keeper.gasoline)) == {(handle.id, f"s{n}") for n, handle in enumerate(handles)}


async def test_events_of_other_workflows_ask_nobody_anything(world: World) -> None:
    """A thousand that wait cost nothing while workflows come that they are not for."""
    process = await world.worker(echo)
    sends = (process.gasoline.signal(Note(), one_note, tags={"n": n}, park=HOUR_S) for n in range(1_000))
    await asyncio.gather(*sends)
    await process.settle()
    looks: list[str] = []
    first = process.node.viewing.first

    async def counted(name: str, *rest: Any) -> Any:
        looks.append(name)
        return await first(name, *rest)

    process.node.viewing.first = counted  # type: ignore[method-assign]
    for n in range(50):
        await (await process.gasoline.dispatch(echo, "x", tags={"n": n})).output()
        await process.gasoline.dispatch(one_note, None, tags={"m": n})
    assert looks == []
    await process.gasoline.dispatch(one_note, None, tags={"n": 7, "m": 1})
    await until_told(process, "unparked")
    assert looks == ["one_note"]


async def test_where_nothing_is_parked_nothing_runs(world: World) -> None:
    process = await world.worker(one_note)
    handle = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    await handle.signal(Note())
    await soon(handle.output())
    assert not process.node._unparking.running
    assert all(views.on_tagged is None for views in process.node.viewing._views.values())


async def test_it_is_offered_where_views_were_loaded_and_not_folded(
    file_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §5, semantics.md §5: what is loaded tells nobody of tags, so all that is parked is looked after again."""
    keeper, other = await split(file_world)
    await keeper.gasoline.signal(Note(text="parked"), one_note, tags=TAGS, park=HOUR_S)
    key = key_in(keeper)
    index = place_of("one_note", key, keeper.log.partition_count)
    await keeper.node.viewing.views(index)
    await keeper.settle()

    async def nothing() -> None:
        """This process hears of nothing, as one that is frozen."""

    keeper.node._unparking._catch_up = nothing  # type: ignore[method-assign]
    handle = await other.gasoline.dispatch(one_note, None, tags=TAGS, key=key)
    await when(lambda: stored(other))
    await keeper.settle()
    assert await told(keeper) == ["parked"]
    await other.stop()
    monkeypatch.setattr(viewing, "LOAD_RATHER_THAN_FOLD", 0)
    assert await keeper.node.own(index) is not None
    await until_told(keeper, "unparked")
    assert [workflow for workflow, _ in await receipts(keeper.gasoline)] == [handle.id]


# --- what cannot be parked --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"park": 0}, ValueError),
        ({"park": -1}, ValueError),
        ({"park": float("nan")}, ValueError),
        ({"park": float("inf")}, ValueError),
        ({"park": timedelta.max}, ValueError),
        ({"park": "60"}, TypeError),
        ({"park": True}, TypeError),
        ({"to": "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f", "workflow": None, "tags": None}, ValueError),
        ({"tags": {"order": None}}, InvalidTags),
        ({"id": ""}, ValueError),
        ({"signal": Note(text="x" * 999_000)}, RecordTooLarge),
        ({"tags": {"order": "x" * 999_000}}, RecordTooLarge),
        ({"signal": Note}, DefinitionError),
    ],
)
async def test_what_cannot_be_parked_is_refused_before_anything_is_recorded(
    world: World, given: dict[str, Any], error: type[Exception]
) -> None:
    process = await world.process()
    call: dict[str, Any] = {"signal": Note(), "workflow": one_note, "tags": TAGS, "park": 60, **given}
    with pytest.raises(error):
        await process.gasoline.signal(**call)
    assert process.log.appended == []


async def test_a_kind_of_another_name_waits_in_the_queue_like_any_signal(world: World) -> None:
    process = await world.worker(one_note)
    await process.gasoline.signal(Other(text="not listened for"), one_note, tags=TAGS, park=HOUR_S)
    handle = await process.gasoline.dispatch(one_note, None, tags=TAGS)
    await until_told(process, "unparked")
    await handle.signal(Note(text="done"))
    assert await soon(handle.output()) == "done"


async def test_without_park_nobody_there_is_still_an_error(world: World) -> None:
    process = await world.process()
    with pytest.raises(WorkflowNotFound):
        await process.gasoline.signal(Note(), one_note, tags=TAGS)
    assert await process.gasoline.signal(Note(), one_note, tags=TAGS, graceful_not_found=True) is None
    assert await process.gasoline.signal(Note(), one_note, tags=TAGS, graceful_not_found=True, park=1)
    assert await told(process) == ["parked"]


async def test_a_partition_whose_parked_signals_make_no_sense_goes_on(any_world: World) -> None:
    process = await any_world.process(partitions=1)
    await process.gasoline.signal(Note(), one_note, tags=TAGS, park=HOUR_S, id="odd")
    (events,) = (await streams(process)).values()
    await process.stop()
    log = await open_log(any_world.url)
    ownership = await log.acquire(0)
    value = encode_parked_event(replace(events[0], seq=2), "default").replace(b"signal.parked.v1", b"signal.frozen.v7")
    record = NewRecord("default.parked", 0, f"{events[0].parked_id}/2", value, any_world.clock.now_us())
    (outcome,) = await log.append([Section(0, ownership.epoch, [record])])
    assert isinstance(outcome, Appended)
    await log.release(0)
    await log.close()
    process = await any_world.worker(one_note)
    await process.gasoline.signal(Note(text="well"), one_note, tags=TAGS, park=HOUR_S)
    assert await soon((await process.gasoline.dispatch(one_note, None, tags=TAGS)).output()) == "well"
    await process.advance(2 * HOUR_S)
    with pytest.raises(
        GasolineError,
        match=r"with the id 'odd' was parked before and nothing happens to it any more: event 2 of type .*v7",
    ):
        await process.gasoline.signal(Note(), one_note, tags=TAGS, park=HOUR_S, id="odd")
    assert await told(process, "odd") == ["parked", "gasoline.signal.frozen.v7"]


def test_a_simulation_parks_delivers_and_discards() -> None:
    with Simulation([one_note]) as sim:
        for order in ("1", "2"):
            sim.run(sim.gasoline.signal(Note(text=order), one_note, tags={"order": order}, park=HOUR_S))
        sim.advance(HOUR_S - 1)
        assert sim.dispatch(one_note, None, tags={"order": "1"}).output() == "1"
        sim.advance(2)
        late = sim.dispatch(one_note, None, tags={"order": "2"})
        sim.advance(1)
        assert late.get().queued == {}
