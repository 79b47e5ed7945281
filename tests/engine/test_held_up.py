"""What holds the event loop up, a body or an activity, is said and shown to others; and the process can be ended."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.log.port import ABOUT_BYTES_MAX, Member, about_json
from gasoline_es.runtime import loop_watch
from gasoline_es.runtime.driver import Driver
from gasoline_es.runtime.loop_watch import LoopWatch
from gasoline_es.runtime.sharing import HeldUp, Peer, peers_of
from tests.engine.harness import soon
from tests.engine.subprocesses import errors, line, program
from tests.engine.workflows import echo

AFTER_S = 0.2
PATIENCE_S = 20.0


def workers(gasoline: Gasoline) -> list[Peer]:
    return peers_of(gasoline._node.log.members())  # pyright: ignore[reportPrivateUsage]


def told(gasoline: Gasoline) -> HeldUp | None:
    """What the one worker tells the others."""
    (peer,) = workers(gasoline)
    return peer.held_up


def hold_up(gasoline: Gasoline) -> None:
    """Hold the event loop up until the others are told so."""
    until = time.monotonic() + PATIENCE_S
    while told(gasoline) is None and time.monotonic() < until:
        threading.Event().wait(0.01)


@pytest.fixture
async def gasoline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Gasoline]:
    monkeypatch.setattr("gasoline_es.runtime.worker.LoopWatch", functools.partial(LoopWatch, after_s=AFTER_S))
    async with Gasoline.open(f"file:{tmp_path}/log") as opened:
        yield opened


async def goes_on(gasoline: Gasoline) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while told(gasoline) is not None:
            await asyncio.sleep(0.01)


async def test_body_that_holds_the_loop_up_is_named(gasoline: Gasoline, caplog: pytest.LogCaptureFixture) -> None:
    """style.md: what, where, what to do; the others see it while it lasts, and no longer."""
    at = ""

    @workflow
    async def greedy(ctx: WorkflowContext, _: None) -> str:
        hold_up(gasoline)
        nonlocal at
        seen = told(gasoline)
        at = "" if seen is None else seen.by
        return "done"

    async with gasoline.worker([greedy]):
        handle = await gasoline.dispatch(greedy, None)
        assert await soon(handle.output()) == "done"
        await goes_on(gasoline)
    said, after = [one for one in caplog.records if one.name == "gasoline_es.runtime.loop_watch"]
    assert said.levelno == logging.ERROR
    assert said.__dict__["workflow_id"] == handle.id
    assert f"the body of workflow greedy at {__file__}:" in said.getMessage()
    assert "hold_up(gasoline)" in said.__dict__["stack"]
    assert said.__dict__["held_s"] >= AFTER_S
    assert at.startswith("the body of workflow greedy at test_held_up.py:")
    assert "goes on" in after.getMessage()


async def test_activity_that_holds_the_loop_up_is_named(gasoline: Gasoline, caplog: pytest.LogCaptureFixture) -> None:
    @activity
    async def fetch(ctx: ActivityContext, _: None) -> str:
        hold_up(gasoline)
        await asyncio.sleep(0)
        return "done"

    @workflow
    async def patient(ctx: WorkflowContext, _: None) -> str:
        return await ctx.activity(fetch, None)

    async with gasoline.worker([patient]):
        handle = await gasoline.dispatch(patient, None)
        assert await soon(handle.output()) == "done"
        await goes_on(gasoline)
    said = next(one for one in caplog.records if one.name == "gasoline_es.runtime.loop_watch")
    assert f"held up for 0 s by activity fetch at {__file__}:" in said.getMessage()
    fields = said.__dict__
    assert (fields["workflow_id"], fields["activity"], fields["location"]) == (handle.id, "fetch", "{1}")


async def test_other_code_of_the_process_is_named(gasoline: Gasoline, caplog: pytest.LogCaptureFixture) -> None:
    """A web application beside the worker can hold it up, too."""

    async def page() -> None:
        hold_up(gasoline)

    async with gasoline.worker([echo]):
        await asyncio.create_task(page(), name="page")
        await goes_on(gasoline)
    said = next(one for one in caplog.records if one.name == "gasoline_es.runtime.loop_watch")
    assert f"by task page at {__file__}:" in said.getMessage()
    assert "workflow_id" not in said.__dict__


async def test_worker_that_waits_or_works_in_threads_is_not_held_up(
    gasoline: Gasoline, caplog: pytest.LogCaptureFixture
) -> None:
    """It stops within its limit, too: nothing is taken for held up while it drains."""
    release = threading.Event()

    @activity
    def compute(ctx: ActivityContext, _: None) -> str:
        release.wait(PATIENCE_S)
        return "done"

    @workflow
    async def patient(ctx: WorkflowContext, _: None) -> str:
        return await ctx.activity(compute, None)

    worker = gasoline.worker([patient])
    async with worker:
        await gasoline.dispatch(patient, None)
        stopping = asyncio.create_task(worker.stop(4 * AFTER_S))
        await soon(stopping)
        release.set()
    assert not [one for one in caplog.records if one.name == "gasoline_es.runtime.loop_watch"]


def test_watch_of_a_worker_that_nobody_stopped_ends_with_its_loop(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that has ended is not held up. The thread must not stay, nor what it refers to."""
    watches: list[LoopWatch] = []

    async def crash(close: bool) -> None:
        driver = cast(Driver, SimpleNamespace(at=None, closed=False, registry={}, runner=SimpleNamespace(under_way=[])))
        watches.append(LoopWatch(driver, lambda _: None, after_s=AFTER_S))
        watches[-1].start()
        if close:
            driver.closed = True

    asyncio.run(crash(close=False))
    asyncio.run(crash(close=True))
    for watch in watches:
        watch._thread.join(PATIENCE_S)  # pyright: ignore[reportPrivateUsage]
        assert not watch._thread.is_alive()  # pyright: ignore[reportPrivateUsage]
    assert caplog.records == []


# --- what is looked at, step by step ----------------------------------------------------------------------------------


class Scene:
    """A loop that does not move, and what seems to run in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.told: list[HeldUp | None] = []
        self.driver = SimpleNamespace(at=None, closed=False, registry={}, runner=SimpleNamespace(under_way=[]))
        monkeypatch.setattr(loop_watch, "time", SimpleNamespace(monotonic=lambda: self.now, time_ns=time.time_ns))
        self.watch = LoopWatch(cast(Driver, self.driver), self.told.append, after_s=5.0)

    def runs(self, name: str) -> None:
        summary = SimpleNamespace(name=name)
        self.driver.at = SimpleNamespace(state=SimpleNamespace(summary=summary), fields={"workflow": name})

    def looks(self, seconds: float, before: Callable[[], None] = lambda: None) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            before()
            self.watch.look()


async def test_many_turns_at_a_time_are_no_fault_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of bodies that come back at once may take seconds of one turn of the loop."""
    scene = Scene(monkeypatch)
    number = iter(range(1000))
    scene.looks(60, lambda: scene.runs(f"body{next(number)}"))
    assert scene.told == []
    assert not scene.watch.held_up


async def test_it_is_said_again_each_time_twice_as_much_has_passed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(monkeypatch)
    scene.runs("greedy")
    scene.looks(60)
    assert [round(one.__dict__["held_s"]) for one in caplog.records] == [5, 10, 20, 40]
    assert scene.watch.held_up
    assert [one is not None and one.by.split(" at ")[0] for one in scene.told] == ["the body of workflow greedy"] * 4
    assert len(set(scene.told)) == 1, "since when, by what and where stays what it was"


async def test_it_is_over_when_something_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.runs("greedy")
    scene.looks(7)
    scene.runs("other")
    scene.looks(2)
    assert scene.told[-1] is None
    assert not scene.watch.held_up


async def test_process_is_ended_only_while_the_loop_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(loop_watch, "end_at_once", ended.append)
    scene = Scene(monkeypatch)
    scene.looks(20, scene.watch._tick)  # pyright: ignore[reportPrivateUsage]
    scene.watch.end_after(10, 143)
    scene.looks(30, scene.watch._tick)  # pyright: ignore[reportPrivateUsage]
    assert ended == [], "it stops, however long that takes"
    scene.runs("greedy")
    scene.looks(4)
    assert ended == []
    scene.looks(4)
    assert ended[0] == 143
    scene.watch.stop()


# --- what is told to others -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["x", "workflow " * 500, "\U0001f40c" * 300, '"\\' * 300, "ä at pürschnitz.py:12 in ß"])
def test_what_is_told_fits(by: str) -> None:
    """port.py: so many bytes at most; of what is too long the end stays, where the place is."""
    about = Peer("one", 2**53, 0.125, HeldUp(2**53, by)).about()
    assert len(about_json(about)) <= ABOUT_BYTES_MAX
    read = Peer.of(Member("one", json.loads(json.dumps(about)), True))
    assert read is not None
    assert read.held_up is not None
    assert by.endswith(read.held_up.by.lstrip("…"))


@pytest.mark.parametrize("told", [1, "x", [], {"since": 1}, {"since": "1", "by": "x"}, {"since": 1, "by": None}])
def test_what_is_not_understood_counts_as_nothing(told: Any) -> None:
    read = Peer.of(Member("one", {"worker": {"version": 1, "weight": 1.0, "held_up": told}}, True))
    assert read == Peer("one", 1, 1.0)


# --- SIGTERM, in a process of its own ---------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["its limit", "a second signal"])
@pytest.mark.parametrize("which", ["greedy_body", "greedy_activity"])
async def test_sigterm_ends_a_worker_that_is_held_up(tmp_path: Path, which: str, again: bool) -> None:
    """semantics.md §8: stopping is bounded, whatever users' code does. Another process goes on at once."""
    url = f"file:{tmp_path}/log"
    async with program("held-up", url, which, "60" if again else "0.3") as process:
        workflow_id = await line(process)
        assert await line(process) == "held up"
        process.send_signal(signal.SIGTERM)
        async with Gasoline.open(url) as gasoline:
            if again:
                async with asyncio.timeout(PATIENCE_S):
                    while not any(peer.held_up for peer in workers(gasoline)):
                        await asyncio.sleep(0.02)
                process.send_signal(signal.SIGTERM)
            assert await soon(process.wait()) == 128 + signal.SIGTERM
            assert "it ends now" in await errors(process)
            async with gasoline.worker([echo]):
                assert await soon(gasoline.handle(workflow_id, echo).output()) == "waits"
