"""Starting over from a step, and forks, in processes that die: whole or not at all (semantics.md §4)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from gasoline_es import ActivityContext, Gasoline, RerunInfo, Signal, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.core.commands import Rerun, TellOutput
from gasoline_es.core.ids import new_workflow_id, slot_of
from gasoline_es.core.location import parse_location
from gasoline_es.errors import GasolineError, LogReadOnly, NoSpace, RecordTooLarge, RerunRefused, WorkflowNotFound
from tests.engine.harness import Fate, Process, World, consumed, has, kills, rehandle, soon, successes, types


class Pay(Signal):
    amount: int


class Total(BaseModel):
    paid: int = 0
    keys: list[str] = []


@dataclass
class Shop:
    """What is outside: whether the second charge works, and who waits at the counter."""

    works: bool = True
    counter: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: list[str] = field(default_factory=list[str])
    given_up: list[str] = field(default_factory=list[str])


shop = Shop()


@pytest.fixture(autouse=True)
def opened() -> None:
    """A shop of its own for each test."""
    shop.works, shop.counter = True, asyncio.Event()
    shop.waiting, shop.given_up = [], []


@activity(max_attempts=1)
async def charge(ctx: ActivityContext, amount: int) -> int:
    if not shop.works:
        raise RuntimeError("no line")
    total = ctx.state(Total)
    total.paid += amount
    total.keys.append(ctx.idempotency_key.partition(":")[2])
    await ctx.update_tags({"paid": str(total.paid)})
    return total.paid


@workflow
async def sell(ctx: WorkflowContext, _: None) -> list[int]:
    return [await ctx.activity(charge, (await ctx.listen(Pay)).amount) for _round in range(2)]


async def sold(process: Process, *, key: str | None = None) -> Any:
    """A workflow that is complete: listens at {1} and {3}, charges at {2} and {4}."""
    handle = await process.gasoline.dispatch(sell, None, tags={"paid": "0"}, key=key)
    for amount in (3, 4):
        await handle.signal(Pay(amount=amount), id=f"pay {amount}")
    assert await soon(handle.output()) == [3, 7]
    return handle


async def state_of(process: Process, workflow_id: str) -> Any:
    return (await process.gasoline.get(workflow_id)).state


# --- what it does -----------------------------------------------------------------------------------------------------


async def test_a_complete_workflow_starts_over_with_the_state_tags_and_signals_of_before(any_world: World) -> None:
    """api.md: signals return to the queue, in publish order; the state is that before the step; so are the tags."""
    process = await any_world.worker(sell)
    handle = await sold(process)
    await process.worker.stop()  # type: ignore[union-attr]
    again = await handle.rerun("{3}")
    assert again.id == handle.id
    info = await handle.get()
    assert (info.status, info.tags, info.state) == ("running", {"paid": "3"}, {"paid": 3, "keys": ["{2}"]})
    assert (info.queued, info.completed, info.output, info.error) == ({"pay 4": "pay"}, None, None, None)
    assert (await process.gasoline.find(sell, tags={"paid": "3"})) is not None, "it is incomplete again"
    await process.kill()
    process = await any_world.worker(sell)
    assert await soon(rehandle(process, handle, sell).output()) == [3, 7]
    assert await state_of(process, handle.id) == {"paid": 7, "keys": ["{2}", "{4}:g1"]}, (
        "another key: it is another charge"
    )
    assert consumed(await process.gasoline.history(handle.id)) == ["pay 3", "pay 4", "pay 4"]


async def test_views_folded_from_the_log_are_those_that_followed_it(any_world: World) -> None:
    """design §4: one fold; what was superseded counts for nothing, whoever folds it and when."""
    process = await any_world.process(partitions=1)
    await process.work(sell)
    first = await sold(process)
    any_world.clock.advance(1)
    second = await sold(process)
    await process.worker.stop()  # type: ignore[union-attr]
    await second.rerun("2")
    await first.rerun("1")
    here = [info async for info in process.gasoline.list(payloads=True)]
    async with any_world.reader() as reader:
        assert [info async for info in reader.list(payloads=True)] == here
        for gasoline in (process.gasoline, reader):
            found = await gasoline.find(sell)
            assert found is not None
            assert found.id == first.id, "in the order of dispatch, not of coming back"
            by_tag = await gasoline.find(sell, tags={"paid": "0"})
            assert by_tag is not None
            assert by_tag.id == first.id
    assert [list(info.queued) for info in here] == [["pay 3", "pay 4"], ["pay 4"]]
    index = {
        record.key: record.value
        for partition in range(process.log.partition_count)
        for record in process.log.read("default.index", partition)
    }
    for info in here:
        value = index[info.id]
        assert value is not None
        assert orjson.loads(value)["tags"] == info.tags, "the index knows it again"


async def test_dead_sleeping_and_unregistered_workflows_start_over(any_world: World) -> None:
    process = await any_world.worker(sell)
    shop.works = False
    dead = await process.gasoline.dispatch(sell, None)
    await dead.signal(Pay(amount=3))
    await process.status(dead.id, "dead")
    sleeping = await process.gasoline.dispatch(sell, None)
    await sleeping.signal(Pay(amount=0))
    shop.works = True
    sleeping = await process.gasoline.dispatch(sell, None)
    await sleeping.signal(Pay(amount=5))
    await process.until(sleeping.id, has("activity.completed"))
    await process.evict()
    assert (await sleeping.get()).status == "sleeping"
    await process.stop()

    client = await any_world.process()
    await rehandle(client, dead, sell).rerun("2")
    await rehandle(client, sleeping, sell).rerun("2")
    assert {info.status async for info in client.gasoline.list() if info.id in (dead.id, sleeping.id)} == {"running"}
    await client.stop()

    process = await any_world.worker(sell)
    for handle in (dead, sleeping):
        await process.gasoline.signal(Pay(amount=1), to=handle.id)
    assert await soon(rehandle(process, dead, sell).output()) == [3, 4]
    assert await soon(rehandle(process, sleeping, sell).output()) == [5, 6]


@workflow(name="sell")
async def sell_at_half_price(ctx: WorkflowContext, _: None) -> list[int]:
    paid = [await ctx.activity(charge, (await ctx.listen(Pay)).amount)]
    while len(paid) < 3:
        paid.append(await ctx.activity(charge, (await ctx.listen(Pay)).amount // 2))
    return paid


async def test_it_goes_on_with_the_code_of_today(any_world: World) -> None:
    process = await any_world.worker(sell)
    handle = await sold(process)
    await process.stop()
    process = await any_world.worker(sell_at_half_price)
    again = await rehandle(process, handle, sell_at_half_price).rerun(" 3 ")
    await again.signal(Pay(amount=10))
    assert await soon(again.output()) == [3, 5, 10]


# --- while it runs ----------------------------------------------------------------------------------------------------


@activity
async def queue_up(ctx: ActivityContext, name: str) -> str:
    shop.waiting.append(ctx.idempotency_key.partition(":")[2])
    try:
        await shop.counter.wait()
    except asyncio.CancelledError:
        shop.given_up.append(ctx.idempotency_key.partition(":")[2])
        raise
    return name


@workflow
async def two_customers(ctx: WorkflowContext, _: None) -> list[str]:
    async def serve(inner: WorkflowContext) -> str:
        await inner.activity(charge_alone, 1)
        return await inner.activity(queue_up, "served")

    return list(await ctx.join(ctx.activity(queue_up, "first"), ctx.closure(serve)))


@activity
async def charge_alone(ctx: ActivityContext, amount: int) -> int:
    return amount


async def test_activities_behind_the_step_are_given_up_and_those_beside_it_go_on(any_world: World) -> None:
    """An attempt whose step stays is not made twice."""
    process = await any_world.worker(two_customers)
    handle = await process.gasoline.dispatch(two_customers, None)
    await process.until(handle.id, has("activity.completed"))
    await process.settle()
    assert shop.waiting == ["{1}", "{2, 2}"]
    await handle.rerun("{2, 1}")
    await process.settle()
    assert shop.given_up == ["{2, 2}"]
    assert shop.waiting == ["{1}", "{2, 2}", "{2, 2}:g1"]
    shop.counter.set()
    assert await soon(handle.output()) == ["first", "served"]
    assert [done.location for done in successes(await handle.history())].count(parse_location("{1}")) == 1


async def test_what_is_on_its_way_to_the_log_is_superseded_too(any_world: World) -> None:
    """It is decided from all that was decided before it, durable or not."""
    process = await any_world.worker(sell)
    handle = await process.gasoline.dispatch(sell, None)
    await handle.signal(Pay(amount=3), id="pay 3")
    await process.until(handle.id, has("activity.completed"))
    await process.settle()
    process.log.open_gate.clear()
    sending = asyncio.ensure_future(handle.signal(Pay(amount=4), id="pay 4"))
    await asyncio.sleep(0)
    assert undurable(process, handle.id) == ["signal.received", "signal.consumed"]
    again = asyncio.ensure_future(handle.rerun("{3}"))
    await asyncio.sleep(0)
    assert undurable(process, handle.id) == ["signal.received", "signal.consumed", "workflow.rerun"]
    process.log.open_gate.set()
    assert await soon(sending) == "pay 4"
    await soon(again)
    assert await soon(handle.output()) == [3, 7]
    assert consumed(await handle.history()) == ["pay 3", "pay 4", "pay 4"]


def undurable(process: Process, workflow_id: str) -> list[str]:
    partition = process.node.partition_of(workflow_id)
    assert partition is not None
    batches = [batch for batch in (partition._in_flight, partition._open) if batch is not None]
    decided = [pair for batch in batches for pair in zip(batch.lives, batch.facts, strict=True)]
    return [fact.TYPE for live, fact in decided if live.id == workflow_id]


async def test_a_full_disk_leaves_none_of_it(any_world: World) -> None:
    process = await any_world.worker(sell)
    handle = await sold(process)
    before = await handle.history()
    process.log.always = NoSpace
    for fork in (False, True):
        with pytest.raises(NoSpace):
            await handle.rerun("{3}", fork)
    process.log.always = None
    assert await handle.history() == before
    assert len([info async for info in process.gasoline.list()]) == 1
    assert await soon((await handle.rerun("{3}")).output()) == [3, 7]


# --- kills ------------------------------------------------------------------------------------------------------------


async def sell_and_start_over(gasoline: Gasoline) -> None:
    """Do what is not done yet, as a script does that is started again after a crash."""
    handle = await gasoline.dispatch(sell, None, key="one")
    for amount in (3, 4):
        if (await handle.get()).status not in ("complete", "dead"):
            await handle.signal(Pay(amount=amount), id=f"pay {amount}")
    await handle.output()
    history = await handle.history()
    if not has("workflow.rerun")(history):
        await handle.rerun("{2}")
    await handle.output()
    if len([info async for info in gasoline.list()]) == 1:
        await (await handle.rerun("{4}", fork=True)).output()
    await handle.output()


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_a_kill_at_any_append_leaves_a_whole_rerun_or_none(fate: Fate, kind: str, tmp_path: Path) -> None:
    """design §1: one append; and its end is the same, with every signal taken once by what holds (``assert_sound``)."""
    number = 0
    async for world, number in kills(fate, work_and_start_over, None if kind == "memory" else tmp_path):
        again = await world.worker(sell)
        await soon(sell_and_start_over(again.gasoline))
        infos = [info async for info in again.gasoline.list(payloads=True)]
        assert [info.output for info in infos] == [[3, 7], [3, 7]], f"killed at append {number}"
        keys = sorted(info.state["keys"] for info in infos)
        assert keys == [["{2}:g1", "{4}:g1"], ["{2}:g1", "{4}:g2"]], f"killed at append {number}"
        for info in infos:
            history = await again.gasoline.history(info.id)
            assert types(history).count("workflow.rerun") in (1, 2)
    assert number >= 10


async def work_and_start_over(process: Process) -> None:
    await process.work(sell)
    await sell_and_start_over(process.gasoline)


# --- commands ---------------------------------------------------------------------------------------------------------


async def test_a_command_that_is_repeated_is_decided_once(any_world: World) -> None:
    """Whoever never learned what became of an append asks the partition's next owner the same again."""
    process = await any_world.worker(sell)
    handle = await sold(process)
    other = new_workflow_id(0, bytes(8), slot_of(handle.id))
    for fork_id in (None, other):
        command = Rerun(handle.id, "{4}", "a test", f"once {fork_id}", fork_id)
        answers = [await process.gasoline._calls.decide(command) for _ in range(3)]
        infos = [RerunInfo.read(answer.output or b"") for answer in answers]
        assert {info.id for info in infos} == {fork_id or handle.id}
        assert len({info.generation for info in infos}) == 1
    assert types(await handle.history()).count("workflow.rerun") == 1
    assert types(await process.gasoline.history(other)).count("workflow.rerun") == 2


async def test_a_client_beside_the_worker_is_answered_through_the_inbox(any_world: World) -> None:
    worker = await any_world.worker(sell)
    handle = await sold(worker)
    client = await any_world.process()
    done = await soon(client.gasoline.rerun(handle.id, "{4}"))
    assert done == RerunInfo(handle.id, "{4}", 1, 3, (), ()), "the charge, its tags, and the end"
    assert await soon(rehandle(client, handle, sell).output()) == [3, 7]
    fork = await soon(rehandle(client, handle, sell).rerun("{3}", fork=True))
    assert fork.id != handle.id
    assert await soon(fork.output()) == [3, 7]
    with pytest.raises(RerunRefused, match=r"nothing is recorded at \{7\}"):
        await soon(client.gasoline.rerun(handle.id, "{7}"))


async def test_what_cannot_start_over_is_refused_before_anything_is_recorded(
    any_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await any_world.worker(sell)
    handle = await sold(process)
    before = await handle.history()
    gasoline = process.gasoline
    with pytest.raises(WorkflowNotFound):
        await gasoline.rerun("00000000-0000-7000-8000-000000000000", "{1}")
    for text in ("", "{", "1,", "1..2", "{1, -1}", "one", "{01}", "9" * 20):
        with pytest.raises(ValueError, match="not a location"):
            await gasoline.rerun(handle.id, text)
    with pytest.raises(RerunRefused, match=r"near it are \{1\}, \{2\}, \{3\}, \{4\}$"):
        await handle.rerun("{2, 1}")
    monkeypatch.setattr("gasoline_es.runtime.fitting.RECORD_BYTES_MAX", 1_200)
    for fork in (False, True):
        with pytest.raises(RecordTooLarge):
            await handle.rerun("{3}", fork)
    monkeypatch.undo()
    assert await handle.history() == before
    async with any_world.reader() as reader:
        planned = await reader.rerun(handle.id, "{3}", dry_run=True)
        assert planned == RerunInfo(handle.id, "{3}", 1, 4, ("pay 4",), ())
        with pytest.raises(LogReadOnly):
            await reader.rerun(handle.id, "{3}")
    assert len([info async for info in gasoline.list()]) == 1


async def test_an_unreadable_workflow_does_not_start_over(any_world: World) -> None:
    process = await any_world.worker(sell)
    handle = await sold(process)
    partition = process.node.partition_of(handle.id)
    assert partition is not None
    live = partition.load(handle.id)
    assert live is not None
    live.state.summary.set_aside("for a test")
    with pytest.raises(GasolineError, match="cannot start over: Unreadable: for a test"):
        await handle.rerun("{1}")


# --- forks ------------------------------------------------------------------------------------------------------------


@workflow
async def drawn(ctx: WorkflowContext, _: None) -> list[Any]:
    seen: list[Any] = [ctx.now().isoformat(), ctx.uuid().hex]
    await ctx.activity(charge_alone, 1)
    seen += [ctx.now().isoformat(), ctx.uuid().hex]
    await ctx.sleep(60)
    await ctx.listen(Pay)
    seen += [ctx.now().isoformat(), ctx.uuid().hex]
    await ctx.activity(charge_alone, 2)
    seen += [ctx.uuid().hex]
    return seen


async def test_a_fork_goes_on_beside_its_original_with_its_times_and_draws(any_world: World) -> None:
    """Ids that were drawn before the step stand in what is recorded; forks of forks repeat them as well."""
    process = await any_world.worker(drawn)
    handle = await process.gasoline.dispatch(drawn, None, tags={"a": 1}, unique=True)
    await process.advance(100)
    await handle.signal(Pay(amount=1))
    original = await soon(handle.output())
    history = await handle.history()
    process.world.clock.advance(1_000)
    fork = await handle.rerun("{4}", fork=True)
    forked = await soon(fork.output())
    assert forked[:4] == original[:4]
    assert (forked[4], forked[5:] == original[5:]) == (original[4], False), "drawn right before the step: anew"
    assert await handle.history() == history, "the original is left alone"
    again = await soon((await fork.rerun("{4}", fork=True)).output())
    assert (again[:5], len({again[6], forked[6], original[6]})) == (original[:5], 3)
    further = await soon((await fork.rerun("{3}", fork=True)).output())
    assert further[:4] == original[:4]
    first = (await fork.history())[0]
    assert isinstance(first.data, ev.WorkflowDispatched)
    assert (first.data.forked_from, first.data.unique, first.time) == (handle.id, False, history[0].time)
    assert fork.id[-3:] == handle.id[-3:], "in the same partition"
    infos = [info async for info in process.gasoline.list()]
    assert len(infos) == 4
    assert {info.ray_id for info in infos} == {handle.id}


async def test_a_fork_is_one_append(any_world: World) -> None:
    process = await any_world.worker(drawn)
    handle = await process.gasoline.dispatch(drawn, None)
    await process.settle()
    before = len(process.log.appended)
    fork = await handle.rerun("{2}", fork=True)
    events = [
        record.key
        for sections in process.log.appended[before : before + 1]
        for section in sections
        for record in section.records
        if record.topic == "default.events"
    ]
    assert events[:3] == [f"{fork.id}/{seq}" for seq in (1, 2, 3)]


# --- other workflows --------------------------------------------------------------------------------------------------


@workflow
async def child(ctx: WorkflowContext, n: int) -> int:
    return n * (await ctx.listen(Pay)).amount


@workflow
async def parent(ctx: WorkflowContext, _: None) -> list[Any]:
    sub = await ctx.dispatch(child, 2)
    return [sub.id, await sub.output(), ctx.workflow_id]


async def test_a_dispatch_that_is_done_again_starts_another_workflow(any_world: World) -> None:
    """api.md: derived ids carry the generation; and what the first one gives is nothing to the second's waiter."""
    process = await any_world.worker(parent, child)
    handle = await process.gasoline.dispatch(parent, None)
    first = await spawned(process, handle.id, 1)
    await process.until(first, has("waiter.added"))
    await handle.rerun("{1}")
    second = await spawned(process, handle.id, 2)
    assert first != second
    await process.until(second, has("waiter.added"))
    await process.gasoline.signal(Pay(amount=5), to=first)
    await process.status(first, "complete")
    await process.settle()
    assert not has("output.received")(await handle.history()), "it waits for another one now"
    await process.gasoline.signal(Pay(amount=7), to=second)
    assert await soon(handle.output()) == [second, 14, handle.id]
    await handle.rerun("{2}")
    assert await soon(handle.output()) == [second, 14, handle.id], "asked anew, and answered at once"
    fork = await handle.rerun("{2}", fork=True)
    assert await soon(fork.output()) == [second, 14, fork.id]


async def spawned(process: Process, workflow_id: str, times: int) -> str:
    history = await process.until(workflow_id, has("workflow.spawned", times))
    return [event.data.workflow_id for event in history if isinstance(event.data, ev.WorkflowSpawned)][-1]


async def test_an_output_that_is_told_to_a_former_generation_is_dropped(any_world: World) -> None:
    process = await any_world.worker(parent, child)
    handle = await process.gasoline.dispatch(parent, None)
    first = await spawned(process, handle.id, 1)
    await process.until(first, has("waiter.added"))
    await handle.rerun("{1}")
    await process.settle()
    before = await handle.history()
    await process.gasoline._calls.decide(TellOutput(handle.id, "{2}", 1, first, "child", b"1"))
    await process.settle()
    assert await handle.history() == before


async def test_whoever_waits_outside_gets_the_output_of_the_next_completion(any_world: World) -> None:
    process = await any_world.worker(sell)
    handle = await sold(process)
    shop.works = False
    await handle.rerun("{4}")
    await process.status(handle.id, "dead")
    shop.works = True
    await handle.rerun("{4}")
    waiting = asyncio.ensure_future(handle.output())
    assert await soon(waiting) == [3, 7]
