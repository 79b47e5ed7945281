"""Workers that come and go share the partitions, and what runs goes on (semantics.md §8, design §5)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gasoline_es import ActivityContext, Workflow, WorkflowContext, activity, workflow
from gasoline_es.errors import NoSpace
from gasoline_es.log.port import Member
from gasoline_es.runtime.rebalancing import STAYS_S
from tests.engine.harness import Process, World, has, rehandle, soon, successes, types, when
from tests.engine.workflows import Note, count_to_three, echo, nap, notes

# A worker's looks at the others are made by hand where their order is the point.
# pyright: reportPrivateUsage=false

PARTITIONS = 4


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks again does so at once."""
    monkeypatch.setattr("gasoline_es.runtime.rebalancing.LOOK_AGAIN_S", 0.002)
    monkeypatch.setattr("gasoline_es.runtime.calls.LOOK_AT_OWNER_S", 0.002)


def share(*processes: Process) -> list[int]:
    """How many partitions each process owns."""
    return [len(process.node.partitions) for process in processes]


class Gate:
    """An activity that waits until it is let through, and how often it was started and ended where."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.opened = asyncio.Event()
        gate = self

        @activity(timeout=600)
        async def held(ctx: ActivityContext, name: str) -> str:
            gate.begun.append(name)
            await gate.opened.wait()
            gate.ended.append(name)
            return name

        @workflow
        async def holding(ctx: WorkflowContext, name: str) -> str:
            return await ctx.activity(held, name)

        self.workflow: Workflow[str, str] = holding


# --- shares -----------------------------------------------------------------------------------------------------------


async def test_workers_that_come_and_go_share_evenly(any_world: World) -> None:
    """semantics.md §8: any number of workers; what one leaves, by stopping or by dying, the others take."""
    first = await any_world.process(partitions=PARTITIONS)
    await first.work(echo)
    assert share(first) == [4]
    second = await any_world.worker(echo)
    await when(lambda: share(first, second) == [2, 2])
    third, fourth = await any_world.worker(echo), await any_world.worker(echo)
    await when(lambda: share(first, second, third, fourth) == [1, 1, 1, 1])
    fifth = await any_world.worker(echo)  # more workers than partitions: one has to do nothing, and waits
    await first.stop()
    await when(lambda: share(second, third, fourth, fifth) == [1, 1, 1, 1])
    await second.kill()
    await third.kill()
    await when(lambda: share(fourth, fifth) == [2, 2])
    for process in (fourth, fifth):
        assert await soon((await process.gasoline.dispatch(echo, "driven")).output()) == "driven"


async def test_worker_is_given_what_a_client_owns_whoever_else_drives(any_world: World) -> None:
    """design §5: a process that drives nothing yields."""
    client = await any_world.process(partitions=PARTITIONS)
    handles = [await client.gasoline.dispatch(echo, str(number)) for number in range(12)]
    first, second = await any_world.worker(echo), await any_world.worker(echo)
    await when(lambda: share(client, first, second) == [0, 2, 2])
    assert [await soon(handle.output()) for handle in handles] == [str(number) for number in range(12)]


async def test_workflows_go_on_while_their_partitions_go_to_and_fro(any_world: World) -> None:
    """semantics.md §8: whatever is under way when a partition changes hands is neither lost nor done twice."""
    first = await any_world.process(partitions=PARTITIONS)
    await first.work(notes, count_to_three)
    handles = [await first.gasoline.dispatch(notes, 6) for _ in range(12)]

    async def send(number: int) -> None:
        for handle in handles:
            await soon(handle.signal(Note(text=f"{number}"), id=f"n{number}"))

    others: list[Process] = []
    for number in range(6):
        sending = asyncio.ensure_future(send(number))
        if number % 2:
            await others.pop().stop()
        else:
            others.append(await any_world.worker(notes, count_to_three))
        await soon(sending)
    for handle in handles:
        assert await soon(handle.output()) == [f"{number}" for number in range(6)]


async def test_full_disk_delays_the_giving_up_and_ends_nothing(any_world: World) -> None:
    """required.md B04."""
    first = await any_world.process(partitions=PARTITIONS)
    await first.work(echo)
    release, refused = first.log.release, 0

    async def full(partition: int) -> None:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise NoSpace("injected into the release")
        await release(partition)

    first.log.release = full  # type: ignore[method-assign]
    second = await any_world.worker(echo)
    await when(lambda: share(first, second) == [2, 2])
    assert refused == 3
    assert first.node.failure is None


async def test_what_one_look_gives_up_is_told_in_one_line(any_world: World, caplog: pytest.LogCaptureFixture) -> None:
    """There may be hundreds of partitions."""
    caplog.set_level("INFO", logger="gasoline_es.runtime.rebalancing")
    first = await any_world.process(partitions=4)
    await first.work(echo)
    second = await any_world.worker(echo)
    await when(lambda: share(first, second) == [2, 2])
    (told,) = [record for record in caplog.records if record.msg.startswith("gave up")]
    gave_up = told.__dict__["gave_up"]
    assert (len(gave_up), told.__dict__["why"]) == (2, "share")
    assert told.getMessage() == f"gave up 2 partitions to other workers: {gave_up[0]}, {gave_up[1]}"


# --- what runs --------------------------------------------------------------------------------------------------------


async def test_partition_is_given_up_when_its_activities_have_ended_and_they_run_once(any_world: World) -> None:
    """semantics.md §8, design §5: what runs gets its time; nothing else begins there; the next step runs elsewhere."""
    gate = Gate()
    first = await any_world.process(partitions=1)
    await first.work(gate.workflow, notes, version=1)
    handles = [await first.gasoline.dispatch(gate.workflow, f"{number}") for number in range(3)]
    waiting = await first.gasoline.dispatch(notes, 1)
    await first.settle()
    assert sorted(gate.begun) == ["0", "1", "2"]
    second = await any_world.worker(gate.workflow, notes, version=2)
    await when(lambda: list(first.driver.leaving) == [0])
    await soon(waiting.signal(Note(text="meanwhile")))  # decided, and not driven: its body is to go on elsewhere
    late = await soon(first.gasoline.dispatch(gate.workflow, "late"))
    await first.settle()
    assert share(first, second) == [1, 0]
    assert types(await waiting.history())[-1] in ("signal.received", "workflow.suspended")
    assert len(gate.begun) == 3
    gate.opened.set()
    for handle, name in zip([*handles, late], ["0", "1", "2", "late"], strict=True):
        assert await soon(handle.output()) == name
        (done,) = successes(await handle.history())
        assert done.attempt == 1
    assert await soon(waiting.output()) == ["meanwhile"]
    assert sorted(gate.begun) == sorted(gate.ended) == ["0", "1", "2", "late"]
    assert share(first, second) == [0, 1]
    history = await rehandle(second, late, gate.workflow).history()
    assert {event.worker for event in history if event.type == "activity.completed"} == {second.log.incarnation}


async def test_activity_beyond_the_limit_keeps_its_partition_and_another_goes(any_world: World) -> None:
    """design §5: moving partitions about is no reason to run a long activity twice."""
    gate = Gate()
    first = await any_world.process(partitions=2)
    await first.work(gate.workflow, notes, stop_limit=10.0)
    handles = [await first.gasoline.dispatch(gate.workflow, f"{number}") for number in range(30)]
    waiting = [await first.gasoline.dispatch(notes, 1) for _ in range(8)]
    await first.settle()
    assert {first.node.index_of(handle.id) for handle in handles} == {0, 1}
    second = await any_world.worker(gate.workflow, notes)
    for _ in range(2):  # one after the other is tried, and kept
        await when(lambda: len(first.driver.leaving) == 1)
        any_world.clock.advance(10.0)
        await when(
            lambda: not first.driver.leaving or list(first.driver.leaving.values()) == [any_world.clock.monotonic()]
        )
    await when(lambda: not first.driver.leaving)
    assert share(first, second) == [2, 0]
    for handle in waiting:  # all of them go on
        await soon(handle.signal(Note(text="still here")))
        assert await soon(handle.output()) == ["still here"]
    gate.opened.set()
    for number, handle in enumerate(handles):
        assert await soon(handle.output()) == f"{number}"
    assert len(gate.begun) == 30
    any_world.clock.advance(STAYS_S)
    await when(lambda: share(first, second) == [1, 1])


async def test_what_waited_for_its_turn_is_run_by_the_next_owner_once(any_world: World) -> None:
    """semantics.md §8: a concurrency limit's queue goes with the partition; whoever stays runs it after all."""
    gate = Gate()
    first = await any_world.process(partitions=1)
    await first.work(gate.workflow, version=1, max_concurrency=1)
    handles = [await first.gasoline.dispatch(gate.workflow, f"{number}") for number in range(4)]
    await first.settle()
    assert len(gate.begun) == 1
    second = await any_world.worker(gate.workflow, version=2)
    await when(lambda: bool(first.driver.leaving))
    await second.kill()  # then it is not to leave after all
    await when(lambda: not first.driver.leaving)
    assert len(gate.begun) == 1
    any_world.clock.advance(1.0)
    third = await any_world.worker(gate.workflow, version=2)
    await when(lambda: bool(first.driver.leaving))
    gate.opened.set()
    await when(lambda: share(first, third) == [0, 1])
    for number, handle in enumerate(handles):
        assert await soon(handle.output()) == f"{number}"
    assert sorted(gate.begun) == ["0", "1", "2", "3"]


async def test_worker_killed_in_the_middle_of_giving_up_loses_nothing(any_world: World) -> None:
    """design §1.1: a partition that is leaving is a partition of a dead process like any other."""
    gate = Gate()
    first = await any_world.process(partitions=1)
    await first.work(gate.workflow, notes, version=1)
    handle = await first.gasoline.dispatch(gate.workflow, "held")
    other = await first.gasoline.dispatch(notes, 2)
    await first.settle()
    second = await any_world.worker(gate.workflow, notes, version=2)
    await when(lambda: bool(first.driver.leaving))
    await other.signal(Note(text="acknowledged"))
    await first.kill()
    gate.opened.set()
    await soon(second.gasoline.signal(Note(text="later"), to=other.id))
    assert await soon(rehandle(second, handle, gate.workflow).output()) == "held"
    assert await soon(rehandle(second, other, notes).output()) == ["acknowledged", "later"]
    assert has("activity.started")(
        await rehandle(second, handle, gate.workflow).history()
    )  # it was under way: a suspect


# --- versions ---------------------------------------------------------------------------------------------------------


async def test_older_worker_gives_up_one_partition_a_second_and_takes_no_more(any_world: World) -> None:
    """semantics.md §8: so that history written by new code is not replayed by old code."""
    old = await any_world.process(partitions=PARTITIONS)
    await old.work(echo, nap, version=1)
    sleeping = [await old.gasoline.dispatch(nap, 100.0) for _ in range(8)]
    await old.settle()
    new = await any_world.worker(echo, nap, version=2)
    for left in (3, 2, 1, 0):
        await when(lambda left=left: share(old, new) == [left, PARTITIONS - left])  # type: ignore[misc]
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert share(old, new) == [left, PARTITIONS - left]
        any_world.clock.advance(1.0)
    assert await soon((await old.gasoline.dispatch(echo, "asked by the old one")).output()) == "asked by the old one"
    late = await any_world.worker(echo, nap, version=1)  # as after a deploy that was rolled out by half
    assert share(late) == [0]
    any_world.clock.advance(100.0)
    for handle in sleeping:
        await soon(handle.output())
    assert share(old, late, new) == [0, 0, PARTITIONS]
    await new.kill()
    await when(lambda: share(old, late) == [2, 2])  # old code is better than none


@pytest.mark.parametrize("version", [-1, 1.5, "1", None, True])
async def test_version_is_a_whole_number(world: World, version: object) -> None:
    """api.md: an error that says what to write, before anything happens."""
    process = await world.process()
    with pytest.raises(ValueError, match="whole number"):
        process.gasoline.worker([echo], version=version)  # type: ignore[arg-type]


# --- pressure ---------------------------------------------------------------------------------------------------------


async def test_worker_under_pressure_hands_partitions_over_and_takes_them_back(any_world: World) -> None:
    """semantics.md §8, load shedding."""
    first = await any_world.process(partitions=PARTITIONS)
    worker = await first.work(echo)
    second = await any_world.worker(echo)
    await when(lambda: share(first, second) == [2, 2])
    assert worker._rebalancing is not None
    worker._rebalancing.pressure.weight = 0.25
    worker._rebalancing.announce()
    await when(lambda: share(first, second) == [1, 3])
    worker._rebalancing.pressure.weight = 1.0
    worker._rebalancing.announce()
    await when(lambda: share(first, second) == [2, 2])


# --- who was away -----------------------------------------------------------------------------------------------------


async def test_worker_whose_partitions_were_taken_from_it_takes_its_share_again(world: World) -> None:
    """required.md B14: a frozen worker is fenced, and goes on with what it is then given."""
    first = await world.process(partitions=PARTITIONS)
    await first.work(notes)
    handle = await first.gasoline.dispatch(notes, 2)
    await first.settle()
    inner = first.log.inner
    with contextlib.suppress(AttributeError):
        for index in range(PARTITIONS):
            inner.steal(index)  # type: ignore[union-attr]
    sending = asyncio.ensure_future(handle.signal(Note(text="a")))
    await when(lambda: share(first) == [PARTITIONS])
    await soon(sending)
    await soon(handle.signal(Note(text="b")))
    assert await soon(handle.output()) == ["a", "b"]


# --- what looking costs -----------------------------------------------------------------------------------------------


async def test_busy_log_is_not_looked_at_for_each_of_its_changes(
    any_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §10: what another process appends costs a worker no look at all the members."""
    for name in ("LOOK_SOONEST_S", "LOOK_AGAIN_S"):
        monkeypatch.setattr(f"gasoline_es.runtime.rebalancing.{name}", 3600.0)
    first = await any_world.process(partitions=PARTITIONS)
    await first.work(nap)
    await first.settle()
    looks, members = 0, first.log.members

    def counted() -> list[Member]:
        nonlocal looks
        looks += 1
        return members()

    monkeypatch.setattr(first.log, "members", counted)
    client = await any_world.process()
    for number in range(20):
        await soon(client.gasoline.dispatch(nap, 600.0 + number))
    assert looks == 0
