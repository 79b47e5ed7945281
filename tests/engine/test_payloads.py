"""Required cases B21 and B22 through the engine: values come back exactly, or are refused where they are given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from pydantic import BaseModel

from gasoline_es import ActivityContext, Signal, WorkflowContext, activity, workflow
from gasoline_es.core import events as ev
from gasoline_es.errors import ActivityFailed, NotSerializable
from tests.engine import kinds
from tests.engine.harness import World, failures, has, soon, types
from tests.engine.kinds import Carry, Everything, carrying, carrying_dict, shown

ROOT = Path(__file__).resolve().parents[2]

# --- B21 --------------------------------------------------------------------------------------------------------------


def replay_elsewhere(url: str, workflow_id: str) -> list[str]:
    """Replay the workflow in another process, and end it; give what its bodies saw and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.programs", "carry", url, workflow_id],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


async def test_values_of_every_kind_are_the_same_after_replay_in_another_process(file_world: World) -> None:
    """required.md B21: value and type of input, output, state and signal body, in this process and in another."""
    value = Everything()
    process = await file_world.worker(carrying)
    handle = await process.gasoline.dispatch(carrying, value)
    await handle.signal(Carry(value=value))
    await process.until(handle.id, has("activity.completed", 2))
    await process.settle()
    first = list(kinds.seen)
    kinds.seen.clear()
    await process.stop()
    expected = shown(value)
    places = dict(json.loads(line) for line in first)
    assert {where: what == expected for where, what in places.items() if where != "state"} == {
        "workflow input": True,
        "activity input": True,
        "activity output": True,
        "signal body": True,
    }
    *replayed, output = replay_elsewhere(file_world.url, handle.id)
    assert replayed == [line for line in first if "activity input" not in line]
    assert json.loads(output) == ["output", expected]
    again = await file_world.process()
    assert shown(await soon(again.gasoline.handle(handle.id, carrying).output())) == expected


async def test_first_run_sees_the_decoded_form_too(world: World) -> None:
    """design §9: what a body gets is a copy that went through the encoding, never the caller's object."""
    given: dict[int, tuple[int, str]] = {1: (2, "x")}
    process = await world.worker(carrying_dict)
    handle = await process.gasoline.dispatch(carrying_dict, given)
    given[3] = (4, "changed after the call")
    assert await soon(handle.output()) == {b"\xff"}
    assert kinds.seen.pop() == json.dumps(["dict", shown({1: (2, "x")})])


@pytest.mark.parametrize(
    "wrong",
    [{"1": (1, "a")}, {1: [1, "a"]}, {1: (1, "a", "b")}, {1.0: (1, "a")}, {True: (1, "a")}, "text"],
    ids=["str key", "list for tuple", "longer tuple", "float key", "bool key", "another type"],
)
async def test_value_that_would_change_is_refused_with_its_path(world: World, wrong: Any) -> None:
    """required.md B21: nothing changes silently (tuple to list, int key to string)."""
    process = await world.process()
    with pytest.raises(NotSerializable) as caught:
        await process.gasoline.dispatch(carrying_dict, wrong)
    assert caught.value.path.startswith("value") or caught.value.path.startswith("input")
    assert process.log.count == 0


# --- B22 --------------------------------------------------------------------------------------------------------------


class Loose(Signal):
    value: Any = None


class LooseState(BaseModel):
    value: Any = None


opened: list[IO[bytes]] = []


def open_file() -> Any:
    opened.append(tempfile.TemporaryFile())  # noqa: SIM115 # closed when the test ends
    return opened[-1]


@pytest.fixture(autouse=True)
def close_opened() -> Iterator[None]:
    """No file is left for the collector to complain about."""
    yield
    while opened:
        opened.pop().close()


def recursive() -> Any:
    inner: list[Any] = []
    inner.append(inner)
    return inner


BAD: dict[str, Callable[[], Any]] = {"an open file": open_file, "a lambda": lambda: lambda: None, "a cycle": recursive}


@workflow
async def loose(ctx: WorkflowContext, value: Any) -> Any:
    return (await ctx.listen(Loose)).value


@activity(max_attempts=2)
async def loose_output(ctx: ActivityContext, what: str) -> Any:
    return BAD[what]()


@activity(max_attempts=2)
async def loose_state(ctx: ActivityContext, what: str) -> None:
    ctx.state(LooseState).value = BAD[what]()


@activity(max_attempts=2)
def loose_thread(ctx: ActivityContext, what: str) -> Any:
    return BAD[what]()


@workflow
async def spoiling(ctx: WorkflowContext, what: str) -> Any:
    place, _, bad = what.partition(": ")
    match place:
        case "activity output":
            return await ctx.activity(loose_output, bad)
        case "thread output":
            return await ctx.activity(loose_thread, bad)
        case "state":
            return await ctx.activity(loose_state, bad)
        case "activity input":
            return await ctx.activity(loose_output, BAD[bad]())
        case _:
            return BAD[bad]()


@pytest.mark.parametrize("what", BAD)
async def test_unserialisable_input_or_signal_is_refused_at_the_call_and_recorded_nowhere(
    any_world: World, what: str
) -> None:
    """required.md B22: list shows no new workflow; the queue no new signal."""
    process = await any_world.process()
    handle = await process.gasoline.dispatch(loose, None)
    before = process.log.count
    with pytest.raises(NotSerializable):
        await process.gasoline.dispatch(loose, BAD[what]())
    with pytest.raises(NotSerializable):
        await process.gasoline.dispatch(loose, {"deep": [BAD[what]()]}, key="k")
    with pytest.raises(NotSerializable):
        await handle.signal(Loose(value=BAD[what]()))
    assert process.log.count == before
    assert [info.id async for info in process.gasoline.list()] == [handle.id]
    assert (await handle.get()).queued == {}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("place", ["activity output", "thread output", "state", "activity input", "workflow output"])
async def test_unserialisable_result_takes_the_failure_path_and_ends_dead(world: World, place: str, what: str) -> None:
    """required.md B22: an error naming the type, kept; nothing stays running, history stays readable."""
    process = await world.worker(spoiling)
    handle = await process.gasoline.dispatch(spoiling, f"{place}: {what}")
    history = await process.status(handle.id, "dead")
    last = history[-1].data
    assert isinstance(last, ev.WorkflowFailed)
    if place in ("activity output", "thread output", "state"):
        # One attempt: doing the side effect once more would not mend what it returns.
        assert [(failure.error.type, failure.final) for failure in failures(history)] == [("NotSerializable", True)]
        assert last.error.type == ActivityFailed.__name__
        assert (await handle.get()).state is None
    else:
        assert last.error.type == "NotSerializable"
    assert "NotSerializable" in str(last.error)
    assert types(await handle.history())[0] == "workflow.dispatched"
