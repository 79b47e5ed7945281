"""Lists in pages, counts, and how things stood at another time (design §7)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from gasoline_es import WorkflowInfo, WorkflowNotFound, asking
from gasoline_es.core.durations import to_datetime
from tests.engine.harness import World, soon
from tests.engine.programs import ten_steps
from tests.engine.workflows import Note, notes


async def listed(world: World, **asked: object) -> list[WorkflowInfo]:
    async with world.reader() as gasoline:
        return [one async for one in gasoline.list(**asked)]  # type: ignore[arg-type]


async def test_a_list_in_pages_gives_each_workflow_once_in_order(any_world: World) -> None:
    process = await any_world.worker(ten_steps, notes)
    for number in range(30):
        if number % 3 == 0:  # several of one moment
            any_world.clock.advance(1)
        await process.gasoline.dispatch(ten_steps if number % 2 else notes, 5)
    await process.settle()
    every = [one.id async for one in process.gasoline.list()]
    assert len(every) == 30
    for size in (1, 7, 30, 31):
        paged: list[str] = []
        while page := [one.id async for one in process.gasoline.list(limit=size, after=paged[-1] if paged else None)]:
            assert len(page) == min(size, 30 - len(paged))
            paged += page
        assert paged == every
    steps = [one.id async for one in process.gasoline.list(name="ten_steps")]
    behind = [one.id async for one in process.gasoline.list(name="ten_steps", after=steps[4], limit=3)]
    assert behind == steps[5:8]
    assert [one.id async for one in process.gasoline.list(after=every[-1])] == []
    with pytest.raises(WorkflowNotFound):
        _ = [one async for one in process.gasoline.list(after="019b76da-a800-7000-8d15-d0285acd4476")]
    for limit in (0, -1, True, 2.0):
        with pytest.raises(ValueError, match="limit="):
            _ = [one async for one in process.gasoline.list(limit=limit)]  # type: ignore[arg-type]


async def test_a_page_goes_on_where_workflows_end_and_are_stored_meanwhile(file_world: World) -> None:
    """Each is given once, whether it is in memory when its turn comes or not any more."""
    process = await file_world.worker(ten_steps, notes)
    handles = [await process.gasoline.dispatch(notes, 1) for _ in range(20)]
    await process.settle()
    got: list[str] = []
    async for info in process.gasoline.list():
        got.append(info.id)
        if len(got) == 5:
            for handle in handles:
                await handle.signal(Note(text="end"))
                await soon(handle.output())
            await process.settle()
    assert sorted(got) == sorted(handle.id for handle in handles)


async def test_counts_are_those_of_the_list(any_world: World) -> None:
    process = await any_world.worker(ten_steps, notes)
    assert await process.gasoline.counts() == {}
    for number in range(6):
        await soon((await process.gasoline.dispatch(ten_steps, number)).output())
    waiting = [await process.gasoline.dispatch(notes, 1) for _ in range(3)]
    await process.evict()
    await waiting[0].cancel()
    await process.settle()
    expected = {"notes": {"sleeping": 2, "cancelled": 1}, "ten_steps": {"complete": 6}}
    assert await process.gasoline.counts() == expected
    assert await process.gasoline.counts(name="notes") == {"notes": expected["notes"]}
    assert await process.gasoline.counts(name="none") == {}
    async with any_world.reader() as reader:
        assert await reader.counts() == expected


async def test_a_workflow_is_shown_as_it_stood(any_world: World) -> None:
    """Time travel: by a time, or by the number of an event."""
    process = await any_world.worker(notes)
    handle = await process.gasoline.dispatch(notes, 2, tags={"order": "1"})
    await process.evict(10)
    any_world.clock.advance(100)
    await handle.signal(Note(text="one"))
    await process.evict(10)
    any_world.clock.advance(100)
    await handle.signal(Note(text="two"))
    assert await soon(handle.output()) == ["one", "two"]
    history = await handle.history()
    for event in history:
        for as_of in (event.seq, to_datetime(event.time_us)):
            info = await handle.get(as_of=as_of)
            last = max(one.seq for one in history if one.seq <= event.seq or one.time_us <= event.time_us)
            assert info.events == (event.seq if isinstance(as_of, int) else last)
            ended = any(one.type == "workflow.completed" for one in history[: info.events])
            assert (info.status == "complete", info.output) == (ended, ["one", "two"] if ended else None)
    with pytest.raises(ValueError, match=f"has {len(history)} events so far, and none of the number 99"):
        await handle.get(as_of=99)
    to_come = to_datetime(history[-1].time_us) + timedelta(days=1)
    assert (await handle.get(as_of=to_come)).events == len(history)
    statuses = [(await handle.get(as_of=event.seq)).status for event in history]
    assert statuses[0] == "running"
    assert "sleeping" in statuses
    assert statuses[-1] == "complete"
    before = to_datetime(history[0].time_us) - timedelta(seconds=1)
    with pytest.raises(WorkflowNotFound, match="was dispatched later than"):
        await handle.get(as_of=before)
    with pytest.raises(ValueError, match="no time zone"):
        await handle.get(as_of=datetime(2026, 1, 1))  # noqa: DTZ001
    for wrong in (0, -1, True, "now"):
        with pytest.raises(ValueError, match="as_of="):
            await handle.get(as_of=wrong)  # type: ignore[arg-type]


async def test_a_list_is_shown_as_it_was(any_world: World) -> None:
    process = await any_world.worker(ten_steps, notes)
    moments: list[tuple[datetime, list[tuple[str, str]]]] = []
    waiting = [await process.gasoline.dispatch(notes, 1) for _ in range(3)]
    for number in range(3):
        await process.evict(10)
        await soon((await process.gasoline.dispatch(ten_steps, number)).output())
        await process.settle()
        now = to_datetime(any_world.clock.now_us())
        moments.append((now, [(one.id, one.status) async for one in process.gasoline.list()]))
        any_world.clock.advance(60)
        await waiting[number].signal(Note(text="end"))
        await soon(waiting[number].output())
        await process.settle()
    assert len({tuple(found) for _, found in moments}) == 3
    for moment, found in moments:
        assert [(one.id, one.status) async for one in process.gasoline.list(as_of=moment)] == found
        sleeping = [one for one in found if one[1] == "sleeping"]
        assert [
            (one.id, one.status) async for one in process.gasoline.list(as_of=moment, status="sleeping")
        ] == sleeping
        infos = [one async for one in process.gasoline.list(as_of=moment)]
        for which, wanted in (
            ({"name": "notes"}, [one for one in infos if one.name == "notes"]),
            ({"since": infos[2].created}, [one for one in infos if one.created >= infos[2].created]),
            ({"until": infos[2].created}, [one for one in infos if one.created < infos[2].created]),
            ({"after": infos[1].id}, infos[2:]),
            (
                {"name": "ten_steps", "status": "complete", "limit": 1},
                [one for one in infos if one.name == "ten_steps"][:1],
            ),
        ):
            assert await listed(any_world, as_of=moment, **which) == wanted
    assert [(one.id, one.status) for one in await listed(any_world, as_of=moments[0][0])] == moments[0][1]
    assert await listed(any_world, as_of=datetime(2020, 1, 1, tzinfo=UTC)) == []
    with pytest.raises(ValueError, match="payloads"):
        await listed(any_world, as_of=moments[0][0], payloads=True)


FIRST = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
LAST = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))


@pytest.mark.parametrize("moment", [FIRST, LAST], ids=["first", "last"])
async def test_a_time_that_utc_has_not_is_refused(moment: datetime, world: World) -> None:
    """Its year is from 1 to 9999 where it is written, and not in UTC."""
    process = await world.worker(ten_steps)
    handle = await process.gasoline.dispatch(ten_steps, 5)
    for name in ("since", "until", "as_of"):
        with pytest.raises(ValueError, match=f"{name} cannot be represented"):
            _ = [one async for one in process.gasoline.list(**{name: moment})]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="as_of cannot be represented"):
        await process.gasoline.get(handle.id, as_of=moment)
    inside = moment.replace(tzinfo=UTC)
    assert len([one async for one in process.gasoline.list(**{"until" if moment is LAST else "since": inside})]) == 1  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_who_lists_much_or_often_lets_others_have_their_turns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is waited for where the log is at hand: a long list, or many, would hold the process's event loop up."""
    process = await world.worker(ten_steps)
    for _ in range(9):
        await process.gasoline.dispatch(ten_steps, 5)
    await process.settle()
    monkeypatch.setattr(asking, "LIST_CHUNK", 3)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    assert len([one async for one in process.gasoline.list()]) == 9
    assert turns == 1 + 9 // 3
    for _ in range(5):
        async for _one in process.gasoline.list():
            break
    assert turns == 4 + 5
    task.cancel()
