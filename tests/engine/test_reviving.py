"""`revive`: every dead workflow that matches is woken, a hundred at a time, whoever else is at work (semantics.md §7)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from gasoline_es import ReviveInfo, Workflow, WorkflowContext, WorkflowHandle, workflow
from gasoline_es.core.durations import to_datetime
from gasoline_es.errors import DefinitionError, LogReadOnly, NoSpace
from gasoline_es.reviving import AT_A_TIME
from tests.engine.harness import Fate, Process, World, kills, soon, types

mended: set[str] = set()


@workflow
async def convert(ctx: WorkflowContext, currency: str) -> str:
    if "convert" not in mended:
        raise KeyError(currency)
    return f"converted {currency}"


@workflow
async def quote(ctx: WorkflowContext, currency: str) -> str:
    if "quote" not in mended:
        raise ValueError(f"no rate of {currency}")
    return f"quoted {currency}"


@pytest.fixture(autouse=True)
def nothing_mended() -> None:
    mended.clear()


async def dead(process: Process, definition: Workflow[str, str], *inputs: str, **options: Any) -> list[str]:
    """Dispatch these and wait until they are dead; return their ids in order."""
    handles: list[WorkflowHandle[str]] = []
    for given in inputs:
        process.world.clock.advance(0.001)
        handles.append(await process.gasoline.dispatch(definition, given, **options))
    for handle in handles:
        await process.status(handle.id, "dead")
    return [handle.id for handle in handles]


async def test_revive_wakes_those_of_a_name_or_an_error_and_says_which(any_world: World) -> None:
    """semantics.md §7: name and error text; both must match if both are given."""
    process = await any_world.worker(convert, quote)
    chf, eur, yen = await dead(process, convert, "CHF", "EUR", "CHF")
    quoted = await dead(process, quote, "CHF")
    mended.update(("convert", "quote"))
    nobody = await process.gasoline.revive(name="quote", error="KeyError")
    assert nobody == ReviveInfo(False, (), {}, {})
    only = await process.gasoline.revive(name="convert", error="CHF")
    assert only == ReviveInfo(False, (chf, yen), {"convert": 2}, {"KeyError: 'CHF'": 2})
    rest = await process.gasoline.revive(error="")
    assert (rest.ids, rest.names) == ((eur, *quoted), {"convert": 1, "quote": 1})
    assert rest.errors == {"KeyError: 'EUR'": 1, "ValueError: no rate of CHF": 1}
    for workflow_id in (chf, eur, yen):
        assert await soon(process.gasoline.handle(workflow_id, convert).output()) is not None
    assert await process.gasoline.revive(error="") == ReviveInfo(False, (), {}, {})


async def test_dry_run_only_tells_also_of_a_log_that_is_read(any_world: World) -> None:
    """semantics.md §7: with a dry run; it takes nothing and records nothing."""
    process = await any_world.worker(convert)
    ids = await dead(process, convert, "CHF", "EUR")
    async with any_world.reader() as reader:
        would = await reader.revive(name="convert", dry_run=True)
        assert (would.dry_run, would.ids, would.names) == (True, tuple(ids), {"convert": 2})
        with pytest.raises(LogReadOnly, match="`revive` needs a log opened for writing"):
            await reader.revive(name="convert")
    assert [(await process.gasoline.get(one)).status for one in ids] == ["dead", "dead"]


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({}, ValueError, "revive which"),
        ({"name": "Convert!"}, DefinitionError, "Convert!"),
        ({"error": 3}, TypeError, "a part of an error's text"),
    ],
)
async def test_revival_of_nothing_in_particular_is_refused(
    world: World, given: Any, error: type[Exception], why: str
) -> None:
    process = await world.process()
    for dry_run in (False, True):
        with pytest.raises(error, match=why):
            await process.gasoline.revive(**given, dry_run=dry_run)
    assert process.log.count == 0


async def test_many_are_woken_a_hundred_at_a_time_and_the_progress_is_told(world: World) -> None:
    """design §5: each batch is durable before the next is asked for, so a log is never flooded."""
    process = await world.worker(convert)
    count = 2 * AT_A_TIME + 10
    await dead(process, convert, *map(str, range(count)))
    await process.worker.stop() if process.worker else None
    before, told = len(process.log.appended), list[tuple[int, int]]()
    info = await process.gasoline.revive(name="convert", progress=lambda done, total: told.append((done, total)))
    assert told == [(0, count), (AT_A_TIME, count), (2 * AT_A_TIME, count), (count, count)]
    assert (len(info.ids), info.passed) == (count, 0)
    assert len(info.errors) == 20, "the commonest, not each of them"
    woken = [
        sum(record.topic.endswith(".events") for section in sections for record in section.records)
        for sections in process.log.appended[before:]
    ]
    assert max(woken) <= AT_A_TIME
    assert sum(woken) == count


async def test_those_that_others_wake_or_end_meanwhile_are_left_alone(world: World) -> None:
    """semantics.md §7: what matched is looked at again where it is decided."""
    process = await world.worker(convert)
    first, second, third, fourth = await dead(process, convert, "CHF", "EUR", "SEK", "NOK")
    await process.worker.stop() if process.worker else None
    client = process.gasoline
    _, _, info = await asyncio.gather(client.wake(first), client.silence(second), client.revive(name="convert"))
    assert (info.ids, info.names, info.passed) == ((third, fourth), {"convert": 2}, 2)
    for one, status in ((first, "running"), (second, "silenced"), (third, "running")):
        assert (await client.get(one)).status == status
    assert types(await client.history(first)).count("workflow.woken") == 1


async def test_two_revivals_at_once_wake_each_of_them_once(world: World) -> None:
    process = await world.worker(convert)
    ids = await dead(process, convert, "CHF", "EUR", "SEK")
    await process.worker.stop() if process.worker else None
    one, other = await asyncio.gather(process.gasoline.revive(error="Key"), process.gasoline.revive(error="Key"))
    assert sorted((*one.ids, *other.ids)) == sorted(ids)
    for workflow_id in ids:
        assert types(await process.gasoline.history(workflow_id)).count("workflow.woken") == 1


async def test_revival_that_finds_no_space_can_be_repeated(world: World) -> None:
    """design §1: those woken before are woken; the rest is dead as before, and still matches."""
    process = await world.worker(convert)
    ids = await dead(process, convert, *map(str, range(AT_A_TIME + 5)))
    mended.add("convert")
    await process.settle()
    done: list[int] = []

    def full_disk_after_the_first(count: int, _total: int) -> None:
        done.append(count)
        if count == AT_A_TIME:
            process.log.always = NoSpace

    with pytest.raises(NoSpace):
        await process.gasoline.revive(name="convert", progress=full_disk_after_the_first)
    process.log.always = None
    await process.settle()
    again = await process.gasoline.revive(name="convert")
    assert again.ids == tuple(ids[AT_A_TIME:])
    for workflow_id in ids:
        assert (await soon(process.gasoline.handle(workflow_id, convert).output())).startswith("converted")


async def test_revive_goes_through_the_inbox_of_whoever_owns_the_partition(file_world: World) -> None:
    """design §5: beside a running worker; what is woken runs there at once."""
    worker = await file_world.worker(convert)
    ids = await dead(worker, convert, "CHF", "EUR")
    mended.add("convert")
    client = await file_world.process()
    info = await soon(client.gasoline.revive(error="KeyError"))
    assert info.ids == tuple(ids)
    assert await soon(client.gasoline.handle(ids[0], convert).output()) == "converted CHF"


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_kill_at_every_append_of_a_revival_and_calling_again_wakes_each_once(fate: Fate) -> None:
    """design §1: a call whose answer was lost is repeated."""
    appends = 0
    async for world, number in kills(fate, die_and_revive):
        appends = number
        mended.add("convert")
        again = await world.worker(convert)
        handles = [await again.gasoline.dispatch(convert, currency, key=currency) for currency in ("CHF", "EUR")]
        await again.settle()
        await again.gasoline.revive(name="convert")
        for handle in handles:
            assert (await soon(handle.output())).startswith("converted")
            assert types(await handle.history()).count("workflow.woken") <= 1
        mended.clear()
    assert appends >= 4


async def die_and_revive(process: Process) -> None:
    mended.clear()
    await process.work(convert)
    for currency in ("CHF", "EUR"):
        handle = await process.gasoline.dispatch(convert, currency, key=currency)
        await process.status(handle.id, "dead")
    mended.add("convert")
    await process.gasoline.revive(name="convert")


async def test_list_gives_what_was_created_before_a_time(world: World) -> None:
    """Half-open: since is in it, until is not."""
    process = await world.worker(convert)
    ids = await dead(process, convert, "CHF", "EUR", "SEK")
    created = [(await process.gasoline.get(one)).created for one in ids]
    client = process.gasoline
    assert [info.id async for info in client.list(until=created[1])] == ids[:1]
    assert [info.id async for info in client.list(since=created[1], until=created[2])] == ids[1:2]
    with pytest.raises(ValueError, match=r"until=.* has no time zone"):
        [info async for info in client.list(until=to_datetime(0).replace(tzinfo=None) + timedelta(days=1))]
