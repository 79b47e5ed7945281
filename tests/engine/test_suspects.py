"""What was under way when a process died is restarted with care, and what kills again and again is not (design §5)."""

# No verb of a simulation kills its worker from inside an activity.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import (
    ActivityContext,
    Backoff,
    Failed,
    Gasoline,
    Ok,
    WorkflowContext,
    WorkflowHandle,
    activity,
    workflow,
)
from gasoline_es.core import events as ev
from gasoline_es.core.decide import STARTS_MAX
from gasoline_es.core.events import Event
from gasoline_es.errors import LogError, NoSpace, WorkflowFailed
from gasoline_es.runtime import suspects
from gasoline_es.runtime.suspects import TOGETHER_MAX
from gasoline_es.testing import Simulation
from tests.engine.harness import PATIENCE_S, World, soon, types
from tests.engine.programs import innocent_flow, killing_flow
from tests.engine.subprocesses import errors, program

HOUR = 3600.0


class Machine:
    """The process that the activities of these tests run in, and take down. ``effects``: how often each did its work."""

    def __init__(self) -> None:
        self.sim: Simulation | None = None
        self.deaths = 0
        self.dying = False
        self.running: Counter[str] = Counter()
        self.beside: list[set[str]] = []
        """For each death, what ran then."""

    def die(self) -> None:
        if not self.dying:
            assert self.sim is not None
            self.dying = True
            self.deaths += 1
            self.beside.append({name for name, count in self.running.items() if count})
            self.sim._stage.spawn(self._restart())

    async def _restart(self) -> None:
        assert self.sim is not None
        stage = self.sim._stage
        assert stage._process is not None
        await stage._process.kill()
        self.dying = False
        deaths = self.deaths
        try:
            await stage._start_worker()
        except LogError:
            if self.deaths == deaths:  # otherwise it died while it was starting
                raise


machine = Machine()


@pytest.fixture(autouse=True)
def _new_machine() -> None:
    vars(machine).update(vars(Machine()))


@activity(timeout=HOUR, max_attempts=3)
async def poison(ctx: ActivityContext, after_s: float) -> None:
    machine.running["poison"] += 1
    try:
        await asyncio.sleep(after_s)
        machine.die()
        await asyncio.get_running_loop().create_future()
    finally:
        machine.running["poison"] -= 1


@activity(timeout=HOUR)
async def work(ctx: ActivityContext, seconds: float) -> float:
    machine.running[ctx.workflow_id] += 1
    try:
        await asyncio.sleep(seconds)
        return seconds
    finally:
        machine.running[ctx.workflow_id] -= 1


@workflow
async def poisoned(ctx: WorkflowContext, after_s: float) -> None:
    await ctx.activity(poison, after_s)


@workflow
async def poisoned_in_passing(ctx: WorkflowContext, after_s: float) -> None:
    await ctx.activity(work, 1.0, ephemeral=True)
    await ctx.activity(poison, after_s, ephemeral=True)


@workflow
async def caught(ctx: WorkflowContext, after_s: float) -> str:
    match await ctx.catch(ctx.activity(poison, after_s)):
        case Ok():
            return "lived"
        case Failed(error=error):
            return error.type


@workflow
async def working(ctx: WorkflowContext, seconds: list[float]) -> float:
    return sum([await ctx.activity(work, one) for one in seconds])


@workflow
async def working_together(ctx: WorkflowContext, seconds: list[float]) -> float:
    return sum(await ctx.join_all([ctx.activity(work, one) for one in seconds]))


ALL = [poisoned, poisoned_in_passing, caught, working, working_together]


def starts(history: list[Event]) -> list[str]:
    return [event.data.name for event in history if isinstance(event.data, ev.ActivityStarted)]


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with Simulation(ALL, jumps_max=1_000_000) as made:
        machine.sim = made
        yield made


@pytest.mark.parametrize("after_s", [0.0, 0.02, 3.0])
def test_ephemeral_activity_in_front_of_one_that_kills_is_not_held_responsible(sim: Simulation, after_s: float) -> None:
    """design §5: its end is on the log before what it led to may take the process down."""
    handle = sim.dispatch(poisoned_in_passing, after_s)
    with pytest.raises(WorkflowFailed, match=r"activity 'poison' at \{2\} failed with ProcessDied: 5 times in a row"):
        handle.output()


@pytest.mark.parametrize("after_s", [0.0, 0.2, 3.0, 30.0])
def test_activity_that_kills_its_process_again_and_again_ends_dead_with_an_error_that_says_so(
    sim: Simulation, after_s: float
) -> None:
    """design §5: once as new work, then as often as the bound says, and never again."""
    handle = sim.dispatch(poisoned, after_s)
    with pytest.raises(WorkflowFailed, match=r"ProcessDied: 5 times in a row its process died.*recover the workflow"):
        handle.output()
    assert machine.deaths == STARTS_MAX + 1
    assert types(handle.history()) == [
        "workflow.dispatched",
        *["activity.started"] * STARTS_MAX,
        "activity.failed",
        "workflow.failed",
    ]
    sim.crash()
    sim.advance(HOUR)
    assert machine.deaths == STARTS_MAX + 1


def test_verdict_can_be_caught_and_replays(sim: Simulation) -> None:
    """semantics.md §4: it is a final failure like any other."""
    handle = sim.dispatch(caught, 0.0)
    assert handle.output() == "ProcessDied"


def test_start_is_recorded_only_after_an_unclean_end(sim: Simulation) -> None:
    """design §5: no start events otherwise."""
    handle = sim.dispatch(working, [100.0, 1.0])
    sim.advance(50)
    sim.restart()
    assert handle.output() == 101.0
    assert starts(handle.history()) == []
    other = sim.dispatch(working, [100.0, 1.0])
    sim.advance(50)
    sim.crash()
    assert other.output() == 101.0
    assert starts(other.history()) == ["work"], "the one that was under way, and not what follows it"


def test_innocent_long_runner_survives_any_number_of_deaths_it_was_not_beside_alone(sim: Simulation) -> None:
    """design §5: what killed before is not started while another suspect runs, so nobody is counted for it."""
    long_runners = [sim.dispatch(working, [200.0]) for _ in range(5)]
    killers = [sim.dispatch(poisoned, after_s) for after_s in (0.0, 2.0)]
    for handle in long_runners:
        assert handle.output() == 200.0
    for handle in killers:
        with pytest.raises(WorkflowFailed, match="ProcessDied"):
            handle.output()
    assert machine.deaths <= 2 * (STARTS_MAX + 1)
    assert all(len(starts(handle.history())) <= 3 for handle in long_runners)


def test_new_work_is_not_held_back_by_suspects(sim: Simulation) -> None:
    """design §5: only what was under way when the process died waits for its turn."""
    killer = sim.dispatch(poisoned, 60.0)
    sim.advance(61)
    sim.advance(61)
    assert machine.deaths == 2
    before = sim.elapsed
    assert sim.dispatch(working, [1.0, 1.0]).output() == 2.0
    assert sim.elapsed - before < timedelta(seconds=3)
    with pytest.raises(WorkflowFailed):
        killer.output()


def test_many_suspects_are_restarted_side_by_side(sim: Simulation) -> None:
    """design §5: those that were never started before share their trial; a thousand long ones are back within seconds."""
    count = 1_000
    handle = sim.dispatch(working_together, [100.0] * count)
    sim.advance(1)
    sim.crash()
    sim.advance(0)
    assert machine.running[handle.id] == TOGETHER_MAX
    sim.advance(0.5 * count / TOGETHER_MAX)
    assert machine.running[handle.id] == count
    assert handle.output() == 100.0 * count


@pytest.mark.parametrize("seed", range(25))
def test_innocents_never_fail_and_killers_end_dead_within_a_bounded_number_of_deaths(seed: int) -> None:
    """design §5, with one or two killers, quick and slow ones, among short and long activities, while new work comes."""
    rng = random.Random(seed)
    killers = [rng.choice([0.0, 0.1, 0.6, 2.0, 4.0, 6.0, 40.0, 200.0]) for _ in range(rng.choice([1, 1, 2]))]
    works = [
        (rng.choice([working, working_together]), [rng.choice([0.0, 0.1, 1.0, 7.0, 60.0, 300.0]) for _ in range(3)])
        for _ in range(rng.randrange(3, 30))
    ]
    with Simulation(ALL, seed=seed, jumps_max=1_000_000) as sim:
        machine.sim = sim

        async def scenario() -> None:
            gasoline = sim.gasoline
            arriving: list[tuple[Any, Any]] = [*((poisoned, after_s) for after_s in killers), *works]
            rng.shuffle(arriving)
            handles: list[tuple[object, Any, WorkflowHandle[Any]]] = []
            for definition, given in arriving:
                handles.append((definition, given, await gasoline.dispatch(definition, given)))
                await asyncio.sleep(rng.choice([0.0, 0.0, 0.0, 0.3, 5.0, 50.0]))
            for definition, given, handle in handles:
                if definition is poisoned:
                    with pytest.raises(WorkflowFailed, match="ProcessDied"):
                        await handle.output()
                else:
                    assert await handle.output() == sum(given)

        sim.run(scenario())
    assert machine.deaths <= len(killers) * (STARTS_MAX + 1)


def test_retry_that_was_due_is_a_suspect_and_one_that_was_not_is_none(sim: Simulation) -> None:
    """design §5: an attempt that a sleeping workflow woke for may have been under way; one that is still to come was not."""

    @activity(timeout=HOUR, backoff=Backoff(base=60, doublings=1))
    async def second_time(ctx: ActivityContext, seconds: float) -> int:
        if ctx.attempt == 1:
            raise ConnectionError("no line")
        await asyncio.sleep(seconds)
        return ctx.attempt

    @workflow
    async def retrying(ctx: WorkflowContext, seconds: float) -> int:
        return await ctx.activity(second_time, seconds)

    with Simulation([retrying]) as own:
        handle = own.dispatch(retrying, 1_000.0)
        own.advance(30)
        own.crash()
        own.advance(60)
        assert starts(handle.history()) == []
        own.crash()
        own.advance(1)
        assert starts(handle.history()) == ["second_time"]
        assert handle.output() == 2


def test_activity_that_comes_after_what_was_waited_for_is_no_suspect(sim: Simulation) -> None:
    """design §5: it was not under way; what was beside the wait, in a join, was."""

    @workflow
    async def sleepy(ctx: WorkflowContext, seconds: float) -> None:
        await ctx.sleep(seconds)
        await ctx.activity(work, 1.0)
        await ctx.join(ctx.sleep(seconds), ctx.activity(work, 3 * seconds))

    with Simulation([sleepy], evict_after=1_000) as own:
        handle = own.dispatch(sleepy, 60.0)
        own.advance(30)
        own.crash()
        own.advance(60)
        assert starts(handle.history()) == []
        own.crash()
        handle.output()
        assert starts(handle.history()) == ["work"]


async def test_suspicion_survives_a_client_that_held_the_partition_in_between(any_world: World) -> None:
    """design §5: who drives nothing hands on what it knows when it leaves."""
    entered = asyncio.Event()

    @activity
    async def slow(ctx: ActivityContext, _: None) -> None:
        entered.set()
        await asyncio.get_running_loop().create_future()

    @workflow
    async def slow_flow(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(slow, None)

    process = await any_world.worker(slow_flow)
    handle = await process.gasoline.dispatch(slow_flow, None)
    await soon(entered.wait())
    await process.kill()
    client = await any_world.process()
    await client.gasoline.handle(handle.id, slow_flow).wake()
    await client.stop()
    client = await any_world.process()
    await client.gasoline.handle(handle.id, slow_flow).wake()
    await client.stop()
    process = await any_world.worker(slow_flow)
    await process.until(handle.id, lambda history: "activity.started" in types(history))
    await process.kill()


async def test_start_that_found_no_space_is_recorded_before_the_activity_starts(world: World) -> None:
    """design §5, required.md B04: started first, whatever the disk says."""
    ran: list[str] = []
    entered = asyncio.Event()

    @activity
    async def once(ctx: ActivityContext, _: None) -> None:
        ran.append("start")
        entered.set()
        await asyncio.get_running_loop().create_future()

    @workflow
    async def once_flow(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(once, None)

    process = await world.worker(once_flow)
    handle = await process.gasoline.dispatch(once_flow, None)
    await soon(entered.wait())
    await process.kill()
    ran.clear()
    entered.clear()
    process = await world.process()
    process.log.script = {1: NoSpace, 2: NoSpace}
    await process.work(once_flow)
    await soon(process.log.refused.wait())
    assert ran == []
    await soon(entered.wait())
    assert ran == ["start"]
    assert starts(await process.gasoline.history(handle.id)) == ["once"]
    await process.kill()


async def test_worker_that_stops_leaves_what_it_has_not_restarted_under_suspicion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """design §5: a clean end in the middle of a careful restart does not end the care."""
    monkeypatch.setattr(suspects, "TRIAL_S", (HOUR, HOUR))
    entered: Counter[str] = Counter()

    @activity
    async def endless(ctx: ActivityContext, _: None) -> None:
        entered[ctx.workflow_id] += 1
        await asyncio.get_running_loop().create_future()

    @workflow
    async def endless_flow(ctx: WorkflowContext, _: None) -> None:
        await ctx.activity(endless, None)

    process = await world.worker(endless_flow)
    count = TOGETHER_MAX + 10
    handles = [await process.gasoline.dispatch(endless_flow, None) for _ in range(count)]
    await process.settle()
    assert sum(entered.values()) == count
    await process.kill()
    process = await world.worker(endless_flow, stop_limit=0)
    await process.settle()
    assert sum(entered.values()) == count + TOGETHER_MAX
    await process.stop()
    process = await world.worker(endless_flow)
    await process.settle()
    assert sum(entered.values()) == count + TOGETHER_MAX + count
    histories = [await process.gasoline.history(handle.id) for handle in handles]
    assert [len(starts(history)) for history in histories] == [1] * count
    await process.kill()


# --- real processes ---------------------------------------------------------------------------------------------------

INNOCENTS = 20


@pytest.mark.parametrize(
    "how", ["kill", pytest.param("exit", marks=pytest.mark.soak), pytest.param("abort", marks=pytest.mark.soak)]
)
async def test_process_under_a_restart_loop_recovers_from_an_activity_that_ends_it(
    file_world: World, how: str, tmp_path: Path
) -> None:
    """issue: dead after a bounded number of starts, with an error that says so, and twenty innocents beside it unharmed."""
    url, effects = file_world.url, tmp_path / "effects"
    async with Gasoline.open(url) as gasoline:
        killer = await gasoline.dispatch(killing_flow, how)
        handles = [await gasoline.dispatch(innocent_flow, str(effects)) for _ in range(INNOCENTS)]
    ends: list[int] = []
    while len(ends) <= STARTS_MAX + 2:
        async with program("suicidal", url, killer.id) as process:
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()
            assert process.returncode is not None
            ends.append(process.returncode)
            if process.returncode == 0:
                break
            await errors(process)
    assert len(ends) == STARTS_MAX + 2, ends
    assert ends[-1] == 0, "the killer is dead and all others are complete"
    async with Gasoline.open(url, readonly=True) as gasoline:
        info = await gasoline.get(killer.id)
        assert info.status == "dead"
        assert info.error is not None
        assert "ProcessDied" in str(info.error)
        for handle in handles:
            assert (await gasoline.get(handle.id)).status == "complete"
    lines = Counter(effects.read_text().split())
    assert set(lines) == {f"{handle.id}:{step}" for handle in handles for step in "ab"}
    assert sum(lines.values()) <= 2 * INNOCENTS * 2, "at most once again for each, from when it was not yet alone"
