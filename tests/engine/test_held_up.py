"""What holds the event loop up, a body or an activity, is said and shown to others; and the process can be ended."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
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
from tests.engine.harness import World, soon
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


def record(caplog: pytest.LogCaptureFixture, text: str) -> logging.LogRecord:
    """The first record with that text. A machine that has too much to do may hold the loop up as well, and that is told."""
    of_the_watch = [one for one in caplog.records if one.name == "gasoline_es.runtime.loop_watch"]
    return next(one for one in of_the_watch if text in one.getMessage())


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
        async with asyncio.timeout(PATIENCE_S):  # the thread says so once it has told the others
            while not any("the event loop goes on" in one.getMessage() for one in caplog.records):
                await asyncio.sleep(0.01)
    said, after = (
        record(caplog, f"the body of workflow greedy at {__file__}:"),
        record(caplog, "the event loop goes on"),
    )
    assert said.levelno == logging.ERROR
    assert said.__dict__["workflow_id"] == handle.id
    assert "hold_up(gasoline)" in said.__dict__["stack"]
    assert said.__dict__["held_s"] >= AFTER_S
    assert at.startswith("the body of workflow greedy at test_held_up.py:")
    assert after.levelno == logging.WARNING


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
    fields = record(caplog, f" by activity fetch at {__file__}:").__dict__
    assert (fields["workflow_id"], fields["activity"], fields["location"]) == (handle.id, "fetch", "{1}")


async def test_other_code_of_the_process_is_named(gasoline: Gasoline, caplog: pytest.LogCaptureFixture) -> None:
    """A web application beside the worker can hold it up, too."""

    async def page() -> None:
        hold_up(gasoline)

    async with gasoline.worker([echo]):
        await asyncio.create_task(page(), name="page")
        await goes_on(gasoline)
    assert "workflow_id" not in record(caplog, f"by task page at {__file__}:").__dict__


async def test_worker_that_waits_or_works_in_threads_is_not_held_up(
    gasoline: Gasoline, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops within its limit, too: nothing is taken for held up while it drains."""
    after_s = 1.5  # so that a busy machine is not taken for one
    monkeypatch.setattr("gasoline_es.runtime.worker.LoopWatch", functools.partial(LoopWatch, after_s=after_s))
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
        stopping = asyncio.create_task(worker.stop(1.5 * after_s))
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
        self.ended: list[int] = []
        self.driver = SimpleNamespace(at=None, closed=False, registry={}, runner=SimpleNamespace(under_way=[]))
        monkeypatch.setattr(loop_watch, "time", SimpleNamespace(monotonic=lambda: self.now, time_ns=time.time_ns))
        monkeypatch.setattr(loop_watch, "end_at_once", self.ended.append)
        self.watch = LoopWatch(cast(Driver, self.driver), self.told.append, after_s=5.0)

    def runs(self, name: str) -> None:
        summary = SimpleNamespace(name=name)
        self.driver.at = SimpleNamespace(state=SimpleNamespace(summary=summary), fields={"workflow": name})

    def moves(self) -> None:
        self.driver.at = None
        self.watch._tick()  # pyright: ignore[reportPrivateUsage]

    def looks(self, seconds: float, before: Callable[[], None] = lambda: None) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            before()
            self.watch.look()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """To be used by a coroutine: it watches the running loop."""
    made: list[Scene] = []

    class Lazy:
        def __getattr__(self, name: str) -> Any:
            if not made:
                made.append(Scene(monkeypatch))
            return getattr(made[0], name)

    yield cast(Scene, Lazy())
    for one in made:
        one.watch.stop()


async def test_it_is_said_again_each_time_twice_as_much_has_passed(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.runs("greedy")
    scene.looks(60)
    assert [round(one.__dict__["held_s"]) for one in caplog.records] == [5, 10, 20, 40]
    assert scene.watch.held_up
    assert [one is not None and one.by.split(" at ")[0] for one in scene.told] == ["the body of workflow greedy"] * 4
    assert len(set(scene.told)) == 1, "since when, by what and where stays what it was"
    scene.moves()
    scene.looks(1)
    assert scene.told[-1] is None
    assert "goes on, after it was held up" in caplog.records[-1].getMessage()
    assert not scene.watch.held_up


async def test_many_that_block_one_after_the_other_hold_it_up_too(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Thousands of turns in one round of the loop, or ten times four seconds: nothing else goes on meanwhile."""
    number = iter(range(1000))
    scene.looks(12, lambda: scene.runs(f"body{next(number)}"))
    first = caplog.records[0]
    assert round(first.__dict__["held_s"]) == 5
    assert "by many in a row, now the body of workflow body9 at" in first.getMessage()
    assert scene.watch.held_up


async def test_a_process_that_was_frozen_was_not_held_up(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """SIGSTOP, a suspended laptop: the thread stood still as well, so it knows nothing of the loop."""
    scene.looks(3, scene.moves)
    scene.watch.end_after(10, 143)
    scene.now += 60
    assert not scene.watch.held_up
    scene.looks(1)  # the thread comes first
    assert not scene.watch.held_up
    scene.looks(3, scene.moves)
    scene.now += 3600
    scene.looks(4)
    assert (scene.told, scene.ended, caplog.records) == ([], [], [])
    scene.looks(2)
    assert len(scene.told) == 1, "and from then on it counts"


async def test_process_is_ended_only_while_the_loop_is_held_up(scene: Scene) -> None:
    scene.looks(20, scene.moves)
    scene.watch.end_after(10, 143)
    scene.looks(30, scene.moves)
    assert scene.ended == [], "it stops, however long that takes"
    scene.runs("greedy")
    scene.looks(4)
    assert scene.ended == []
    scene.looks(4)
    assert scene.ended[0] == 143


async def test_once_stopped_it_ends_no_process(scene: Scene) -> None:
    scene.watch.end_after(10, 143)
    scene.watch.stop()
    scene.looks(60)
    assert scene.ended == []


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


async def test_a_worker_that_has_left_is_not_announced_again(any_world: World) -> None:
    """The watching thread may come last: a ghost would keep a share that nobody drives."""
    process = await any_world.worker(echo)
    assert process.worker is not None
    sharing = process.worker._rebalancing  # pyright: ignore[reportPrivateUsage]
    assert sharing is not None
    await process.worker.stop()
    assert process.node.log.members() == []
    sharing.held_up(HeldUp(1, "late"))
    sharing.held_up(None)
    assert process.node.log.members() == []


# --- a stop that is cut off -------------------------------------------------------------------------------------------


@activity(timeout=600)
async def long_one(ctx: ActivityContext, number: int) -> int:
    if number == 0:
        await asyncio.Event().wait()
    return number


@workflow
async def long_flow(ctx: WorkflowContext, number: int) -> int:
    return await ctx.activity(long_one, number)


@pytest.mark.parametrize("how", ["stop", "block", "run"])
async def test_worker_whose_stop_is_cut_off_is_none_any_more(any_world: World, how: str) -> None:
    """semantics.md §8: whoever stops it may have less time than what runs. The log stays open, as in a web process."""
    process = await any_world.process()
    worker = process.gasoline.worker([long_flow])

    async def cut_off() -> None:
        async with asyncio.timeout(None) as limit:
            if how == "run":
                running = asyncio.ensure_future(worker.run())
                await worker.started.wait()
                await process.gasoline.dispatch(long_flow, 0)
                os.kill(os.getpid(), signal.SIGTERM)
                limit.reschedule(asyncio.get_running_loop().time() + 0.2)
                await running
            async with worker:
                await process.gasoline.dispatch(long_flow, 0)
                limit.reschedule(asyncio.get_running_loop().time() + 0.2)
                if how == "stop":
                    await worker.stop()

    with pytest.raises(TimeoutError):
        await cut_off()
    assert process.node.driver is None
    assert worker._watch is None  # pyright: ignore[reportPrivateUsage]
    assert worker.running == 0
    assert process.node.log.members() == []
    other = await any_world.worker(long_flow, stop_limit=0)
    handles = [await process.gasoline.dispatch(long_flow, number) for number in range(1, 20)]
    assert await soon(asyncio.gather(*[handle.output() for handle in handles])) == list(range(1, 20))
    assert len(other.node.partitions) == other.log.partition_count
    await other.stop()
    async with process.gasoline.worker([long_flow], stop_limit=0):
        assert await soon((await process.gasoline.dispatch(long_flow, 5)).output()) == 5


# --- SIGTERM, in a process of its own ---------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["its limit", "a second signal"])
@pytest.mark.parametrize("which", ["greedy_body", "greedy_activity", "greedy_from_the_start", "greedy_at_the_end"])
async def test_sigterm_ends_a_worker_that_is_held_up(tmp_path: Path, which: str, again: bool) -> None:
    """semantics.md §8: stopping is bounded, whatever users' code does. Another process goes on at once."""
    url = f"file:{tmp_path}/log"
    if which == "greedy_from_the_start":
        async with program("held-up", url, "greedy_body", "60") as killed:  # and it comes to it again
            await line(killed)
            assert await line(killed) == "held up"
    async with program("held-up", url, which, "60" if again else "0.3") as process:
        if which == "greedy_from_the_start":
            assert await line(process) == "held up"
            process.send_signal(signal.SIGTERM)
            if again:
                await asyncio.sleep(1)
                process.send_signal(signal.SIGTERM)
            assert await soon(process.wait()) == 128 + signal.SIGTERM
            assert "the body of workflow greedy_body at" in await errors(process)
            return
        workflow_id = await line(process)
        if which == "greedy_at_the_end":
            assert await line(process) == "asleep"
            process.send_signal(signal.SIGTERM)  # by which it comes to its end
        assert await line(process) == "held up"
        if which != "greedy_at_the_end":
            process.send_signal(signal.SIGTERM)
        async with Gasoline.open(url) as gasoline:
            if again:
                async with asyncio.timeout(PATIENCE_S):
                    while not any(peer.held_up for peer in workers(gasoline)):
                        await asyncio.sleep(0.02)
                process.send_signal(signal.SIGTERM)
            assert await soon(process.wait()) == 128 + signal.SIGTERM
            said = await errors(process)
            assert "it ends now" in said
            places = {
                "greedy_activity": "activity hold_up at",
                "greedy_body": "the body of workflow greedy_body at",
                "greedy_at_the_end": "in greedy_at_the_end: nothing else",  # whoever closes it
            }
            assert places[which] in said
            async with gasoline.worker([echo]):
                assert await soon(gasoline.handle(workflow_id, echo).output()) == "waits"


async def test_child_that_an_activity_forks_is_ended_by_a_signal(tmp_path: Path) -> None:
    """It inherits the handlers of the worker, which it is not."""
    async with program("forks", f"file:{tmp_path}/log") as process:
        assert await line(process) == str(-signal.SIGTERM)
        assert await soon(process.wait()) == 0
