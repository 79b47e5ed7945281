"""Required case B09: signals that arrive together are consumed one by one, whatever happens between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gasoline_es import SignalTo
from gasoline_es.core import events as ev
from tests.engine.harness import Fate, Process, World, consumed, discarded, soon, successes, types
from tests.engine.workflows import Add, count_to_three

ROOT = Path(__file__).resolve().parents[2]


IDS = [f"add-{n}" for n in range(1, 6)]


async def send_five(process: Process, workflow_id: str) -> None:
    sent = await process.gasoline.signal_many([SignalTo(Add(), workflow_id, id=one) for one in IDS])
    assert sent == IDS


async def assert_counted(process: Process, workflow_id: str) -> None:
    """Hold the outcome against B09: 1, 2, 3 consumed in order, state 3, complete, 4 and 5 discarded and shown so."""
    handle = process.gasoline.handle(workflow_id, count_to_three)
    assert await soon(handle.output()) == 3
    info = await handle.get()
    assert info.status == "complete"
    assert info.state == {"count": 3}
    assert info.queued == {}
    history = await handle.history()
    assert consumed(history) == IDS[:3]
    assert discarded(history) == IDS[3:]
    assert [done.output for done in successes(history)] == [b"1", b"2", b"3"]
    last = history[-1].data
    assert isinstance(last, ev.WorkflowCompleted)
    assert (last.output, last.state) == (b"3", b'{"count":3}')


async def test_batch_of_signals_is_consumed_one_by_one_and_the_rest_discarded(any_world: World) -> None:
    """required.md B09, semantics.md §5."""
    client = await any_world.process()
    handle = await client.gasoline.dispatch(count_to_three, None)
    before = len(client.log.appended)
    await send_five(client, handle.id)
    assert len(client.log.appended) == before + 1, "signal_many is one append"
    assert list((await handle.get()).queued) == IDS
    await client.work(count_to_three)
    await assert_counted(client, handle.id)


async def first_life(world: World, script: dict[int, Fate]) -> tuple[str | None, bool, int]:
    """Dispatch, send, work: until done, or until the append at which the process dies. Gives id, died, appends."""
    process = await world.process()
    process.log.script = script
    workflow_id: str | None = None

    async def live() -> None:
        nonlocal workflow_id
        handle = await process.gasoline.dispatch(count_to_three, None, key="b09")
        workflow_id = handle.id
        await send_five(process, handle.id)
        await process.work(count_to_three)
        await handle.output()
        await process.settle()

    died, count = await process.live(live()), process.log.count
    await process.kill()
    return workflow_id, died, count


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_batch_of_signals_survives_a_kill_at_every_append(kind: str, fate: Fate, tmp_path: Path) -> None:
    """required.md B09: killed before and after every single durable append, then started again: the same outcome."""
    number, kills = 0, 0
    while True:
        number += 1
        world = World() if kind == "memory" else World(f"file:{tmp_path}/log-{number}")
        _, died, _ = await first_life(world, {number: fate})
        again = await world.process()
        handle = await again.gasoline.dispatch(count_to_three, None, key="b09")
        await send_five(again, handle.id)  # a repeat: the client cannot know whether it was received
        await again.work(count_to_three)
        await assert_counted(again, handle.id)
        await world.end()
        if not died:
            break
        kills += 1
    assert kills >= 8, "dispatch, signals, and at least two for each of three rounds"


async def test_kill_in_every_life_still_ends_in_the_same_history(world: World) -> None:
    """required.md B09, harder: every life gets only two appends, for a suspect's start (design §5) and what came of it."""
    client = await world.process()
    handle = await client.gasoline.dispatch(count_to_three, None)
    await send_five(client, handle.id)
    await client.kill()
    lives = 0
    while True:
        lives += 1
        process = await world.process()
        process.log.script = {2: "unanswered"}
        await process.work(count_to_three)
        died = await process.live(process.gasoline.handle(handle.id, count_to_three).output())
        await process.kill()
        if not died:
            break
    assert lives >= 4
    last = await world.worker(count_to_three)
    await assert_counted(last, handle.id)


# --- in processes of their own ----------------------------------------------------------------------------------------


def run_program(url: str, dies_at: int, how: str = "exit") -> int:
    """Run a worker in a process that ends when its n-th append is durable, until all is done or it has ended."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.engine.programs", "count-to-three", url, str(dies_at), how],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 9, -signal.SIGKILL), done.stderr
    assert done.stderr == ""
    return done.returncode


@pytest.mark.soak  # a process for every event; the tests below kill fewer of them
@pytest.mark.timeout(600)
async def test_batch_of_signals_survives_sigkill_behind_every_recorded_event(tmp_path: Path) -> None:
    """required.md B09 to the letter: five signals in one batch, no worker; a worker process, killed behind every event.

    One kill for each log, at the next event each time, and then a worker that lives; until none is left to be killed at.
    """
    number, killed = 0, True
    while killed:
        number += 1
        world = World(f"file:{tmp_path}/log-{number}")
        client = await world.process()
        handle = await client.gasoline.dispatch(count_to_three, None)
        await send_five(client, handle.id)
        await client.stop()
        killed = run_program(world.url, number, "kill") == -signal.SIGKILL
        assert run_program(world.url, 0, "kill") == 0
        reader = await world.process()
        await assert_counted(reader, handle.id)
        await world.end()
    assert number > 6, "at least a listen and an activity in each of three rounds"


async def test_batch_of_signals_survives_sigkill_of_every_process_that_works(file_world: World) -> None:
    """required.md B09, harder: one process after the other, each killed two recorded events after it began."""
    client = await file_world.process()
    handle = await client.gasoline.dispatch(count_to_three, None)
    await send_five(client, handle.id)
    await client.stop()
    lives = 1
    while run_program(file_world.url, 2, "kill") == -signal.SIGKILL:
        lives += 1
    assert lives >= 3
    reader = await file_world.process()
    await assert_counted(reader, handle.id)


async def test_batch_of_signals_survives_os_exit_of_process_after_process(file_world: World) -> None:
    """required.md B09: real processes on a file log, each ending by os._exit two appends after it started."""
    client = await file_world.process()
    handle = await client.gasoline.dispatch(count_to_three, None, key="b09")
    await send_five(client, handle.id)
    await client.stop()
    runs = 1
    while run_program(file_world.url, 2) == 9:
        runs += 1
    assert runs >= 3
    reader = await file_world.process()
    await assert_counted(reader, handle.id)
    assert "workflow.completed" in types(await reader.gasoline.history(handle.id))
