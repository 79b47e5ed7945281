"""What one does wrong with a client or a handle is said at the call, not by waiting for ever (api.md, "Outside")."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from gasoline_es import Gasoline, Workflow
from gasoline_es.errors import DefinitionError, GasolineError
from tests.engine.harness import World, soon
from tests.engine.workflows import echo, nap, one_note

# --- waiting for an output --------------------------------------------------------------------------------------------


async def _why(gasoline: Gasoline, workflow_id: str, definition: Workflow[Any, Any] = one_note) -> str:
    with pytest.raises(TimeoutError) as raised:
        await gasoline.handle(workflow_id, definition).output(timeout=0.01)
    return str(raised.value)


async def test_output_in_vain_says_that_nobody_runs_it(any_world: World) -> None:
    process = await any_world.process()
    handle = await process.gasoline.dispatch(one_note, None)
    said = await _why(process.gasoline, handle.id)
    assert said.startswith(f"workflow 'one_note' {handle.id} did not complete within 0.01 s: it is running since 2")
    assert "this process owns its partition" in said
    assert "runs no worker: start one, `gasoline.worker([one_note])`" in said


async def test_output_in_vain_says_that_the_worker_does_not_know_it(any_world: World) -> None:
    process = await any_world.worker(echo)
    handle = await process.gasoline.dispatch(one_note, None)
    assert "the worker of this process was not given it: `gasoline.worker([…, one_note])`" in await _why(
        process.gasoline, handle.id
    )


async def test_output_in_vain_says_what_it_waits_for_and_who_runs_it(any_world: World) -> None:
    working = await any_world.worker(one_note, nap)
    handle = await working.gasoline.dispatch(one_note, None)
    napping = await working.gasoline.dispatch(nap, 3600.0)
    await working.settle()
    await working.evict()
    said = await _why(working.gasoline, handle.id)
    assert "it is sleeping since 2" in said
    assert "waits for signal note; the worker of this process runs it" in said
    assert "waits for time until 2" in await _why(working.gasoline, napping.id, nap)
    beside = await any_world.process()
    assert "owns its partition" in await _why(beside.gasoline, handle.id)


async def test_output_in_vain_says_that_no_process_owns_its_partition(any_world: World) -> None:
    first = await any_world.process()
    handle = await first.gasoline.dispatch(one_note, None)
    await first.stop()
    second = await any_world.process()
    assert "no process owns its partition" in await _why(second.gasoline, handle.id)


# --- the wrong thing --------------------------------------------------------------------------------------------------


async def test_handle_of_another_workflow_is_refused_with_both_names(any_world: World) -> None:
    process = await any_world.worker(echo, one_note)
    handle = await process.gasoline.dispatch(echo, "x")
    wrong = process.gasoline.handle(handle.id, one_note)
    for call in (wrong.output(timeout=5), wrong.get()):
        with pytest.raises(DefinitionError, match=f"{handle.id} is a 'echo', and its handle was made for 'one_note'"):
            await soon(call)
    assert await soon(handle.output()) == "x"
    with pytest.raises(DefinitionError, match="is a 'echo'"):
        await soon(wrong.output())


async def test_unknown_status_is_refused(any_world: World) -> None:
    process = await any_world.process()
    with pytest.raises(
        ValueError,
        match="no status 'done': it is one of running, sleeping, complete, cancelled, silenced, dead, unreadable",
    ):
        _ = [info async for info in process.gasoline.list(status=cast(Any, "done"))]


async def test_worker_given_something_else_than_a_list_says_what_to_write(world: World) -> None:
    process = await world.process()
    for given in (echo, echo.fn):
        with pytest.raises(
            DefinitionError, match=r"takes a list of workflows, not .*: write `gasoline.worker\(\[echo\]\)`"
        ):
            process.gasoline.worker(cast(Any, given))


# --- the wrong place --------------------------------------------------------------------------------------------------


async def test_client_used_on_another_event_loop_is_refused_at_the_call(any_world: World) -> None:
    process = await any_world.worker(echo)
    gasoline = process.gasoline
    handle = await gasoline.dispatch(echo, "x")

    async def listed() -> None:
        _ = [info async for info in gasoline.list()]

    calls = {
        "dispatch": lambda: gasoline.dispatch(echo, "y"),
        "output": handle.output,
        "get": handle.get,
        "history": handle.history,
        "wake": handle.wake,
        "find": lambda: gasoline.find(echo),
        "list": listed,
    }
    for verb, call in calls.items():
        with pytest.raises(GasolineError, match=rf"`gasoline\.{verb}\(…\)` was called on another event loop"):
            await soon(asyncio.to_thread(lambda call=call: asyncio.run(call())))  # type: ignore[misc]
    loop = asyncio.get_running_loop()

    def from_a_thread() -> str:
        return asyncio.run_coroutine_threadsafe(handle.output(), loop).result(timeout=20)

    assert await soon(asyncio.to_thread(from_a_thread)) == "x"


async def test_log_that_is_not_open_yet_says_how_to_open_it() -> None:
    opening = cast(Any, Gasoline.open("memory:"))
    with pytest.raises(
        GasolineError, match=r"no `dispatch`: write `async with Gasoline.open\('memory:'\) as gasoline:`"
    ):
        opening.dispatch(echo, "x")
    assert not hasattr(opening, "nonsense")
    assert not hasattr(opening, "__len__")


async def test_log_at_home_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    async with Gasoline.open("file:~/data"):
        pass
    assert (tmp_path / "home" / "data").is_dir()
    assert not (tmp_path / "~").exists()
