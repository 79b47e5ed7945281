"""Required case B10: a signal sent right after the dispatch is never lost between "started" and "waiting"."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import pytest

from gasoline_es import Gasoline
from gasoline_es.core import events as ev
from tests.engine.harness import Process, World, soon, types
from tests.engine.subprocesses import line, worker_process
from tests.engine.workflows import Note, timed_note

TIMES = 1_000


async def dispatch_and_signal(gasoline: Gasoline, number: int) -> str:
    """Dispatch a listen of 5 s and at once send to it: every other time by id, otherwise by its tags."""
    tags = {"number": str(number)}
    handle = await gasoline.dispatch(timed_note, 5.0, tags=tags)
    if number % 2:
        await gasoline.signal(Note(text=str(number)), to=handle.id)
    else:
        await gasoline.signal(Note(text=str(number)), timed_note, tags=tags)
    return handle.id


async def assert_all_received(process: Process, ids: list[str]) -> None:
    gasoline = process.gasoline
    outputs = [await soon(gasoline.handle(one, timed_note).output()) for one in ids]
    assert outputs == [str(number) for number in range(TIMES)]
    for one in ids[::50]:
        history = await gasoline.history(one)
        assert [e.data.outcome for e in history if isinstance(e.data, ev.SleepFinished)] == ["interrupted"]


@pytest.mark.parametrize("order", ["one by one", "at once"])
async def test_signal_right_after_its_dispatch_is_received_every_time(world: World, order: str) -> None:
    """required.md B10: 1,000 of 1,000, on a clock that stands still, so no wait can even begin to run out."""
    process = await world.worker(timed_note)
    gasoline = process.gasoline
    if order == "at once":
        ids = await asyncio.gather(*(dispatch_and_signal(gasoline, number) for number in range(TIMES)))
    else:
        ids = [await dispatch_and_signal(gasoline, number) for number in range(TIMES)]
    await assert_all_received(process, ids)


async def test_signal_before_any_worker_runs_is_received_every_time(world: World) -> None:
    """required.md B10: once more with no worker until after the send."""
    process = await world.process()
    ids = [await dispatch_and_signal(process.gasoline, number) for number in range(TIMES)]
    await process.work(timed_note)
    await assert_all_received(process, ids)


async def test_signal_right_after_its_dispatch_ends_the_wait_soon_in_real_time(tmp_path: object) -> None:
    """required.md B10 on the file log and the real clock: each wait ends soon after the send, not near 5 s."""
    async with Gasoline.open(f"file:{tmp_path}/log") as gasoline, gasoline.worker([timed_note]):
        started = time.monotonic()
        ids = await asyncio.gather(*(dispatch_and_signal(gasoline, number) for number in range(TIMES)))
        outputs = [await soon(gasoline.handle(one, timed_note).output()) for one in ids]
        assert outputs == [str(number) for number in range(TIMES)]
        for one in ids:
            history = await gasoline.history(one)
            sent = next(e.time_us for e in history if isinstance(e.data, ev.SignalReceived))
            taken = next(e.time_us for e in history if isinstance(e.data, ev.SignalConsumed))
            assert taken - sent < 4_000_000
        assert time.monotonic() - started < 30


async def test_signals_by_tags_find_what_the_same_client_is_just_dispatching(any_world: World) -> None:
    """design §5: look-ups by tags are overlaid with the client's own undecided dispatches."""
    process = await any_world.worker(timed_note)
    for number in range(20):
        tags = {"number": number}
        handle, _ = await asyncio.gather(
            process.gasoline.dispatch(timed_note, 5.0, tags=tags),
            process.gasoline.signal(Note(text="at once"), timed_note, tags=tags),
        )
        assert await soon(handle.output()) == "at once"
        assert types(await handle.history()).count("signal.received") == 1


# --- in processes of their own ----------------------------------------------------------------------------------------


async def assert_each_wait_ended_soon(gasoline: Gasoline, ids: list[str]) -> None:
    """None timed out, and each listen that had begun was answered soon after the send, not near 5 s."""
    outputs = [await soon(gasoline.handle(one, timed_note).output()) for one in ids]
    assert outputs == [str(number) for number in range(TIMES)]
    waited: list[int] = []
    for one in ids:
        facts = {type(event.data): event.time_us for event in await gasoline.history(one)}
        waited.append(facts[ev.SignalConsumed] - max(facts[ev.SignalReceived], facts[ev.SleepStarted]))
    assert max(waited) < 4_000_000
    assert statistics.median(waited) < 1_000_000


async def pairs(gasoline: Gasoline, at_once: int) -> list[str]:
    ids: list[str] = []
    for first in range(0, TIMES, at_once):
        ids += await asyncio.gather(*(dispatch_and_signal(gasoline, first + n) for n in range(at_once)))
    return ids


@pytest.mark.parametrize("at_once", [pytest.param(1, marks=pytest.mark.soak), 50])
@pytest.mark.timeout(180)
async def test_signal_right_after_its_dispatch_reaches_a_worker_in_another_process(
    tmp_path: Path, at_once: int
) -> None:
    """required.md B10: 1,000 of 1,000, from one process to a worker in another, half by id and half by tags."""
    url = f"file:{tmp_path}/log"
    async with worker_process(url) as worker:
        assert await line(worker) == "ready"
        async with Gasoline.open(url) as gasoline:
            ids = await pairs(gasoline, at_once)
            await assert_each_wait_ended_soon(gasoline, ids)


@pytest.mark.timeout(180)
async def test_signal_before_a_worker_process_starts_is_received_every_time(tmp_path: Path) -> None:
    """required.md B10: once more with no worker running until after the send."""
    url = f"file:{tmp_path}/log"
    async with Gasoline.open(url) as gasoline:
        ids = await pairs(gasoline, 50)
    async with worker_process(url) as worker:
        assert await line(worker) == "ready"
        async with Gasoline.open(url) as gasoline:
            await assert_each_wait_ended_soon(gasoline, ids)
