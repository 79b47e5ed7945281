"""Schedules: each time starts one workflow, whatever dies when; and an operator's hand on them (semantics.md §6, api.md)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from gasoline_es import ActivityContext, Gasoline, Workflow, WorkflowContext, activity, workflow
from gasoline_es.core import schedule_events as se
from gasoline_es.core.durations import format_time, to_datetime
from gasoline_es.core.schedule_events import ScheduleEvent
from gasoline_es.errors import (
    DefinitionError,
    InvalidTags,
    NoSpace,
    NotSerializable,
    RecordTooLarge,
    ScheduleExists,
    ScheduleNotFound,
    WorkflowFailed,
)
from gasoline_es.handles import WorkflowInfo
from gasoline_es.testing import Simulation
from tests.engine.harness import Fate, Process, World, kills, soon, types
from tests.engine.workflows import nap

MINUTE_S = 60.0
START = "2026-01-01T00:00:00.000000Z"


@workflow
async def report(ctx: WorkflowContext, of: str) -> str:
    return f"{of} at {ctx.tags['scheduled_for'][11:19]}"


@workflow
async def waiting(ctx: WorkflowContext, of: str) -> None:
    await ctx.sleep(90.0)


@workflow
async def broken(ctx: WorkflowContext, of: str) -> None:
    raise ValueError(of)


triggering: list[Gasoline] = []


@activity(max_attempts=1)
async def trigger(ctx: ActivityContext, _: None) -> None:
    await triggering[0].schedule_handle("report", report).trigger()


@workflow
async def triggers(ctx: WorkflowContext, _: None) -> None:
    await ctx.activity(trigger, None)


async def runs(gasoline: Gasoline, **wanted: Any) -> list[WorkflowInfo]:
    return [info async for info in gasoline.list(**wanted)]


async def times(gasoline: Gasoline, name: str = "report") -> list[str]:
    """For which times workflows were started, as minutes and seconds."""
    return sorted(info.tags["scheduled_for"][14:19] for info in await runs(gasoline, tags={"schedule": name}))


async def history(process: Process, workflow: Workflow[str, Any] = report) -> list[ScheduleEvent]:
    """The events of the schedule that is called like its workflow."""
    return await process.gasoline.schedule_handle(workflow.name, workflow).history()


def assert_sound(history: list[ScheduleEvent]) -> None:
    """No gap, and no time twice."""
    assert [event.seq for event in history] == list(range(1, len(history) + 1))
    due = [event.data.due_us for event in history if isinstance(event.data, se.ScheduleFired)]
    assert len(set(due)) == len(due)


# --- starting ---------------------------------------------------------------------------------------------------------


async def test_each_time_starts_a_workflow_that_says_which_schedule_and_which_time(any_world: World) -> None:
    process = await any_world.worker(report)
    handle = await process.gasoline.schedule(MINUTE_S, report, "sales", tags={"team": "a"})
    await process.advance(59)
    assert await runs(process.gasoline) == []
    for _ in range(3):
        await process.advance(MINUTE_S)
    found = await runs(process.gasoline, payloads=True)
    assert [(info.status, info.output) for info in found] == [
        ("complete", f"sales at 00:0{minute}:00") for minute in (1, 2, 3)
    ]
    assert found[0].tags == {"schedule": "report", "scheduled_for": "2026-01-01T00:01:00.000000Z", "team": "a"}
    (first, *_) = await process.gasoline.history(found[0].id)
    info = await handle.get()
    assert getattr(first.data, "schedule", None) == info.id
    assert (info.status, info.workflow, info.input, info.when) == ("active", "report", "sales", "every 1 min")
    assert (info.fired, info.skipped, info.last_run) == (3, 0, found[-1].id)
    assert (info.next, info.last) == (to_datetime(_us(4)), to_datetime(_us(3)))
    told = await handle.history()
    assert [event.type for event in told] == ["schedule.set", *3 * ["schedule.fired"]]
    assert_sound(told)


def _us(minutes: int) -> int:
    return World().clock.now_us() + minutes * 60_000_000


async def test_a_cron_expression_goes_by_the_clocks_of_its_time_zone(world: World) -> None:
    process = await world.worker(report)
    handle = await process.gasoline.schedule("30 3 * * *", report, "sales", timezone="Europe/Berlin")
    info = await handle.get()
    assert (info.when, info.timezone, info.next and info.next.isoformat()) == (
        "30 3 * * *",
        "Europe/Berlin",
        "2026-01-01T02:30:00+00:00",
    )
    await process.advance(2.5 * 3600)
    assert [info.output for info in await runs(process.gasoline, payloads=True)] == ["sales at 02:30:00"]


async def test_it_starts_workflows_also_where_nobody_runs_them_yet(any_world: World) -> None:
    """design §5: owning is separate from driving."""
    client = await any_world.process()
    await client.gasoline.schedule(MINUTE_S, report, "sales")
    await client.advance(MINUTE_S)
    assert [info.status for info in await runs(client.gasoline)] == ["running"]
    worker = await any_world.worker(report)
    (info,) = await runs(client.gasoline)
    assert await soon(worker.gasoline.handle(info.id, report).output()) == "sales at 00:01:00"


async def test_a_worker_that_takes_over_goes_on_with_it(any_world: World) -> None:
    first = await any_world.worker(report)
    await first.gasoline.schedule(MINUTE_S, report, "sales")
    await first.advance(MINUTE_S)
    await first.kill()
    second = await any_world.worker(report)
    await second.advance(MINUTE_S)
    assert await times(second.gasoline) == ["01:00", "02:00"]
    await second.stop()
    third = await any_world.worker(report)
    await third.advance(3 * MINUTE_S)
    assert await times(third.gasoline) == ["01:00", "02:00", "05:00"]
    assert_sound(await history(third))


async def test_what_was_missed_while_nobody_lived_is_treated_by_the_rule(any_world: World) -> None:
    first = await any_world.worker(report)
    for missed in ("latest", "all", "skip"):
        await first.gasoline.schedule(600.0, report, missed, name=missed, missed=missed)
    await first.kill()
    any_world.clock.advance(1900)
    second = await any_world.worker(report)
    await second.settle()
    assert [await times(second.gasoline, name) for name in ("latest", "all", "skip")] == [
        ["30:00"],
        ["10:00", "20:00", "30:00"],
        [],
    ]
    infos = {info.name: info async for info in second.gasoline.schedules()}
    assert {name: (info.fired, info.skipped) for name, info in infos.items()} == {
        "latest": (1, 2),
        "all": (3, 0),
        "skip": (0, 3),
    }


async def test_many_missed_times_are_made_up_for_while_others_have_turns(world: World) -> None:
    process = await world.worker(report)
    await process.gasoline.schedule(1.0, report, "sales", missed="all")
    await process.advance(1000)
    async with asyncio.timeout(30):
        while len(found := await times(process.gasoline)) < 1000:
            await asyncio.sleep(0.01)
    assert len(set(found)) == 1000
    largest = max(len(section.records) for sections in process.log.appended for section in sections)
    assert largest < 1000, "they come in turns, not in one append"
    assert_sound(await history(process))


async def test_overlaps_are_skipped_while_one_runs_and_not_because_one_died(world: World) -> None:
    process = await world.worker(waiting, broken)
    await process.gasoline.schedule(MINUTE_S, waiting, "x", overlap="skip")
    await process.gasoline.schedule(MINUTE_S, broken, "x", overlap="skip")
    for _ in range(10):
        await process.advance(MINUTE_S / 2)
    assert await times(process.gasoline, "waiting") == ["01:00", "03:00", "05:00"]
    assert len(await times(process.gasoline, "broken")) == 5
    reasons = [
        event.data.reason for event in await history(process, waiting) if isinstance(event.data, se.ScheduleSkipped)
    ]
    assert reasons == ["overlap", "overlap"]


async def test_overlaps_are_what_was_asked_for_and_missed_times_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first = await world.worker(waiting, report)
    await first.gasoline.schedule(MINUTE_S, waiting, "x", overlap="skip")
    with caplog.at_level(logging.INFO, "gasoline_es.runtime.schedules"):
        for _ in range(2):
            await first.advance(MINUTE_S)
        await first.gasoline.schedule_handle("waiting", waiting).remove()
        await first.gasoline.schedule(600.0, report, "sales", missed="skip")
        await first.kill()
        world.clock.advance(1900)
        second = await world.worker(report)
        await second.settle()
    said = [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "gasoline_es.runtime.schedules"]
    assert said == [
        ("INFO", "schedule waiting passes 1 times that were due: what it started goes on"),
        ("WARNING", "schedule report passes 3 times that were due: missed"),
    ]


# --- making it --------------------------------------------------------------------------------------------------------


async def test_the_same_call_at_every_start_makes_one_schedule(any_world: World) -> None:
    first = await any_world.worker(report)
    await first.gasoline.schedule("0 * * * *", report, "sales")
    second = await any_world.process()
    calls = [process.gasoline.schedule("0 * * * *", report, "sales") for process in (first, second) for _ in range(5)]
    await soon(asyncio.gather(*calls))
    assert [event.type for event in await history(first)] == ["schedule.set"]
    assert [info.name async for info in second.gasoline.schedules()] == ["report"]


async def test_another_one_needs_a_name_and_a_changed_one_its_own(any_world: World) -> None:
    process = await any_world.worker(report)
    await process.gasoline.schedule("0 * * * *", report, "sales")
    with pytest.raises(ScheduleExists, match="another input") as refused:
        await process.gasoline.schedule("0 * * * *", report, "costs")
    assert refused.value.schedule == "report"
    client = await any_world.process()  # the same through an inbox
    with pytest.raises(ScheduleExists, match="another timetable"):
        await soon(client.gasoline.schedule("30 * * * *", report, "sales"))
    await process.gasoline.schedule("0 * * * *", report, "costs", name="costs")
    changed = await soon(client.gasoline.schedule("30 * * * *", report, "sales", name="report"))
    info = await changed.get()
    assert (info.when, info.next) == ("30 * * * *", to_datetime(_us(30)))
    assert [one.name async for one in process.gasoline.schedules()] == ["costs", "report"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"when": "nightly"}, ValueError),
        ({"when": 0.5}, ValueError),
        ({"when": None}, TypeError),
        ({"when": 60, "timezone": "Europe/Berlin"}, ValueError),
        ({"timezone": "Mars/Base"}, ValueError),
        ({"missed": "some"}, ValueError),
        ({"overlap": "some"}, ValueError),
        ({"name": "../../x"}, DefinitionError),
        ({"workflow": report.fn}, DefinitionError),
        ({"input": 5}, NotSerializable),
        ({"input": "x" * 999_000}, RecordTooLarge),
        ({"tags": {"a": None}}, InvalidTags),
        ({"tags": {"schedule": "mine"}}, InvalidTags),
        ({"tags": {"scheduled_for": "today"}}, InvalidTags),
    ],
)
async def test_what_cannot_be_a_schedule_is_refused_before_anything_is_recorded(
    world: World, given: dict[str, Any], error: type[Exception]
) -> None:
    process = await world.process()
    call: dict[str, Any] = {"when": "0 3 * * *", "workflow": report, "input": "sales", **given}
    with pytest.raises(error):
        await process.gasoline.schedule(**call)
    assert process.log.appended == []
    assert [info async for info in process.gasoline.schedules()] == []


# --- an operator's hand -----------------------------------------------------------------------------------------------


async def test_a_paused_one_starts_nothing_until_it_is_resumed(any_world: World) -> None:
    process = await any_world.worker(report)
    handle = await process.gasoline.schedule(MINUTE_S, report, "sales", missed="all")
    await process.advance(MINUTE_S)
    await handle.pause()
    assert (await handle.get()).status == "paused"
    await process.advance(3 * MINUTE_S)
    await process.kill()
    second = await any_world.worker(report)  # it is in the history, not in a process
    handle = second.gasoline.schedule_handle("report", report)
    await second.advance(MINUTE_S)
    await handle.resume()
    await second.advance(MINUTE_S)
    assert await times(second.gasoline) == ["01:00", "06:00"]
    assert [event.type for event in await handle.history()] == [
        "schedule.set",
        "schedule.fired",
        "schedule.paused",
        "schedule.resumed",
        "schedule.fired",
    ]


async def test_a_trigger_starts_one_now_also_while_it_is_paused(any_world: World) -> None:
    process = await any_world.worker(report)
    handle = await process.gasoline.schedule(MINUTE_S, report, "sales")
    await handle.pause()
    await process.advance(10)
    run = await handle.trigger()
    assert await soon(run.output()) == "sales at 00:00:10"
    other = await soon((await any_world.process()).gasoline.schedule_handle("report", report).trigger())
    assert other.id != run.id
    with pytest.raises(DefinitionError, match="starts workflow 'report', and its handle was made for 'nap'"):
        await process.gasoline.schedule_handle("report", nap).trigger()


async def test_a_removed_one_is_gone_its_history_stays_and_its_name_is_free(any_world: World) -> None:
    process = await any_world.worker(report)
    handle = await process.gasoline.schedule(MINUTE_S, report, "sales")
    await process.advance(MINUTE_S)
    await handle.remove()
    await handle.remove()
    await process.advance(MINUTE_S)
    assert await times(process.gasoline) == ["01:00"]
    with pytest.raises(ScheduleNotFound):
        await handle.get()
    assert [info async for info in process.gasoline.schedules()] == []
    await process.gasoline.schedule(120.0, report, "costs")
    await process.advance(120)
    assert [info.output for info in await runs(process.gasoline, payloads=True)][1:] == ["costs at 00:04:00"]
    info = await handle.get()
    assert (info.fired, info.created) == (1, to_datetime(_us(2))), "it is another one, but for its name"
    assert_sound(await handle.history())


async def test_what_is_not_there_is_not_found(world: World) -> None:
    process = await world.worker(report)
    handle = process.gasoline.schedule_handle("nightly", report)
    for verb in (handle.get, handle.pause, handle.resume, handle.trigger, handle.remove, handle.history):
        with pytest.raises(ScheduleNotFound, match="there is no schedule 'nightly'"):
            await verb()


async def test_what_is_due_when_it_is_changed_is_due_by_what_it_was(any_world: World) -> None:
    """Also where the change waited in the inbox of a partition that somebody takes over."""
    process = await any_world.worker(report)
    await process.gasoline.schedule(MINUTE_S, report, "sales", missed="all", name="report")
    await process.kill()
    any_world.clock.advance(2 * MINUTE_S)
    second = await any_world.process()
    await soon(second.gasoline.schedule("0 3 * * *", report, "sales", name="report"))
    await second.settle()
    assert await times(second.gasoline) == ["01:00", "02:00"]


async def test_a_trigger_in_an_activity_is_refused_with_what_to_do(world: World) -> None:
    process = await world.process()
    await process.gasoline.schedule(MINUTE_S, report, "sales")
    triggering[:] = [process.gasoline]
    await process.work(report, triggers)
    handle = await process.gasoline.dispatch(triggers, None)
    with pytest.raises(WorkflowFailed, match=r"Dispatch the workflow in the body, `await ctx.dispatch\(…\)`"):
        await soon(handle.output())


# --- when things die --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_killed_at_every_append_each_time_started_one_workflow(fate: Fate) -> None:
    """design §1: that a workflow was started for a time, and the workflow, are one append."""

    async def life(process: Process) -> None:
        await process.work(report)
        await process.gasoline.schedule(MINUTE_S, report, "sales", missed="all")
        for _ in range(3):
            await process.advance(MINUTE_S)

    async for world, _ in kills(fate, life):
        process = await world.worker(report)
        await process.gasoline.schedule(MINUTE_S, report, "sales", missed="all")
        await process.settle()
        await process.advance(MINUTE_S)
        found = await runs(process.gasoline, payloads=True)
        assert [info.status for info in found] == ["complete"] * len(found)
        told = await history(process)
        assert_sound(told)
        fired = [event.data.workflow_id for event in told if isinstance(event.data, se.ScheduleFired)]
        assert sorted(fired) == sorted(info.id for info in found)
        minutes = [int(info.tags["scheduled_for"][14:16]) for info in found]
        assert minutes == list(range(minutes[0], minutes[0] + len(minutes))), "none is left out"


async def test_a_full_disk_delays_it_and_loses_nothing(any_world: World) -> None:
    process = await any_world.worker(report)
    await process.gasoline.schedule(MINUTE_S, report, "sales", missed="all")
    await process.settle()
    process.log.always = NoSpace
    process.log.refused.clear()
    any_world.clock.advance(3 * MINUTE_S)
    await soon(process.log.refused.wait())
    process.log.always = None
    async with asyncio.timeout(30):
        while len(await times(process.gasoline)) < 3:
            await asyncio.sleep(0.01)
    assert await times(process.gasoline) == ["01:00", "02:00", "03:00"]
    assert_sound(await history(process))


async def test_a_wall_clock_that_is_set_back_starts_nothing_twice(world: World) -> None:
    """required.md B13, for schedules."""
    process = await world.worker(report)
    await process.gasoline.schedule(MINUTE_S, report, "sales")
    await process.advance(5 * MINUTE_S)
    world.clock.jump_wall(-4 * MINUTE_S)
    await process.settle()
    await process.advance(4 * MINUTE_S)
    assert await times(process.gasoline) == ["05:00"]
    await process.advance(MINUTE_S)
    assert await times(process.gasoline) == ["05:00", "06:00"]


@pytest.mark.parametrize("verb", ["pause", "change"])
async def test_no_time_is_decided_twice_where_somebody_changes_it_after_the_clock_was_set_back(
    any_world: World, verb: str
) -> None:
    """semantics.md §6: neither in what runs nor in what the history says."""
    process = await any_world.worker(report)
    handle = await process.gasoline.schedule(MINUTE_S, report, "sales", name="report")
    for _ in range(4):
        await process.advance(MINUTE_S)
    any_world.clock.jump_wall(-4 * MINUTE_S)
    if verb == "pause":
        await handle.pause()
        await handle.resume()
    else:
        await process.gasoline.schedule(MINUTE_S, report, "stock", name="report")
    for _ in range(6):
        await process.advance(MINUTE_S)
    assert await times(process.gasoline) == ["01:00", "02:00", "03:00", "04:00", "05:00", "06:00"]
    told = await handle.history()
    assert_sound(told)
    assert not [event for event in told if isinstance(event.data, se.ScheduleSkipped)]


async def test_one_made_anew_under_a_removed_name_starts_its_own_for_the_same_times(any_world: World) -> None:
    """The way out where a clock had run ahead: the new one has no part in what the old one decided."""
    process = await any_world.worker(report)
    handle = await process.gasoline.schedule(MINUTE_S, report, "sales", name="report")
    for _ in range(3):
        await process.advance(MINUTE_S)
    any_world.clock.jump_wall(-3 * MINUTE_S)
    await handle.remove()
    again = await process.gasoline.schedule(MINUTE_S, report, "stock", name="report")
    for _ in range(3):
        await process.advance(MINUTE_S)
    assert await times(process.gasoline) == ["01:00", "01:00", "02:00", "02:00", "03:00", "03:00"]
    info = await again.get()
    assert (info.fired, info.skipped) == (3, 0)
    outputs = sorted(str(found.output) for found in await runs(process.gasoline, payloads=True))
    assert outputs == sorted(f"{of} at 00:0{minute}:00" for of in ("sales", "stock") for minute in (1, 2, 3))


async def test_a_workflow_list_and_a_history_know_nothing_of_the_schedule_itself(any_world: World) -> None:
    process = await any_world.worker(report)
    await process.gasoline.schedule(MINUTE_S, report, "sales")
    await process.settle()
    async with any_world.reader() as reader:
        assert await runs(reader) == []
        assert [info.name async for info in reader.schedules()] == ["report"]
        assert (await reader.schedule_handle("report", report).get()).created == to_datetime(_us(0))


def test_a_simulation_lets_a_month_of_nights_pass() -> None:
    with Simulation([report]) as sim:
        sim.run(sim.gasoline.schedule("0 3 * * *", report, "sales"), verb="run")
        sim.advance(30 * 86_400)

        async def nights() -> list[str]:
            return [info.tags["scheduled_for"] async for info in sim.gasoline.list(name="report", status="complete")]

        found = sim.run(nights(), verb="run")
        assert found == [format_time(_us(180 + night * 1440)) for night in range(30)]


async def test_types_of_events_are_told(world: World) -> None:
    process = await world.worker(report)
    handle = await process.gasoline.schedule(MINUTE_S, report, "sales")
    await process.advance(MINUTE_S)
    (info,) = await runs(process.gasoline)
    assert types(await process.gasoline.history(info.id)) == ["workflow.dispatched", "workflow.completed"]
    assert repr(handle) == "<schedule report>"
