"""The loop's place: who has it, that nobody else has it then, and what waits until it is given back (runtime/lending.py)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from gasoline_es.errors import GasolineError
from gasoline_es.runtime.lending import LendingLoop, Not
from gasoline_es.runtime.loop_thread import LoopThread
from tests.engine.harness import PATIENCE_S

T = TypeVar("T")
Thread = LoopThread[None]


@asynccontextmanager
async def nothing() -> AsyncGenerator[None]:
    yield


@pytest.fixture
def thread() -> Generator[Thread]:
    made = LoopThread("memory:lent", nothing(), among_tasks=True)
    yield made
    made.close()


def elsewhere(deed: Callable[[], T]) -> T:
    """Do it on a thread that is not the main one, which has the place whatever handles signals here."""
    done: list[T] = []
    thread = threading.Thread(target=lambda: done.append(deed()))
    thread.start()
    thread.join(PATIENCE_S)
    return done[0]


def in_place(thread: Thread, deed: Callable[[], T]) -> T:
    """Do it in the loop's place, as soon as the loop sleeps."""

    def try_until_it_sleeps() -> T:
        while (done := thread.in_place("test", lambda _: deed())) is Not.NOW:
            pass
        return done

    return elsewhere(try_until_it_sleeps)


def lending(thread: Thread) -> LendingLoop:
    loop = thread._loop
    assert isinstance(loop, LendingLoop)
    return loop


def test_in_its_place_one_is_the_loop_on_ones_own_thread(thread: Thread) -> None:
    def deed() -> tuple[str, asyncio.AbstractEventLoop]:
        return threading.current_thread().name, asyncio.get_running_loop()

    name, loop = in_place(thread, deed)

    assert name != "gasoline-sync"
    assert loop is lending(thread)


def test_afterwards_a_thread_has_the_loop_back_that_it_had(thread: Thread) -> None:
    async def among_tasks() -> None:
        while thread.in_place("test", lambda _: asyncio.get_running_loop()) is Not.NOW:
            pass
        assert asyncio.get_running_loop() is not lending(thread)

    elsewhere(lambda: asyncio.run(among_tasks()))


def test_a_loop_that_is_awake_lends_nothing(thread: Thread) -> None:
    awake, may_sleep = threading.Event(), threading.Event()

    async def be_awake() -> None:
        awake.set()
        may_sleep.wait(PATIENCE_S)

    calling = threading.Thread(target=lambda: thread.call("test", be_awake))
    calling.start()
    assert awake.wait(PATIENCE_S)

    assert elsewhere(lambda: thread.in_place("test", lambda _: 1)) is Not.NOW

    may_sleep.set()
    calling.join(PATIENCE_S)
    assert in_place(thread, lambda: 1) == 1


def test_the_loop_waits_for_its_place_and_is_the_next_to_have_it(thread: Thread) -> None:
    ran = threading.Event()
    loop = lending(thread)

    def deed() -> tuple[bool, bool]:
        thread.post(ran.set)
        while not loop._lending.wanted:
            pass  # it wakes up for that
        return ran.is_set(), loop.borrow()

    assert in_place(thread, deed) == (False, False)
    assert ran.wait(PATIENCE_S)


@pytest.mark.parametrize("start", ["task", "soon", "later", "at"])
def test_what_is_left_to_the_loop_there_wakes_it_up(thread: Thread, start: str) -> None:
    ran = threading.Event()

    async def run() -> None:
        ran.set()

    def deed() -> object:
        loop = asyncio.get_running_loop()
        match start:
            case "task":
                return loop.create_task(run())
            case "soon":
                return loop.call_soon(ran.set)
            case "later":
                return loop.call_later(0, ran.set)
            case _:
                return loop.call_at(loop.time(), ran.set)

    in_place(thread, deed)

    assert ran.wait(PATIENCE_S)


def test_what_raises_there_gives_the_place_back(thread: Thread) -> None:
    def deed() -> None:
        raise ValueError("x")

    def try_it() -> str:
        try:
            while thread.in_place("test", lambda _: deed()) is Not.NOW:
                pass
        except ValueError as error:
            return str(error)
        return ""

    assert elsewhere(try_it) == "x"
    assert in_place(thread, lambda: 1) == 1


def test_a_call_from_there_is_refused_because_it_would_wait_for_itself(thread: Thread) -> None:
    async def answer() -> int:
        return 1

    def deed() -> str:
        with pytest.raises(GasolineError, match=r"`again\(…\)` was called from within another call of the same thread"):
            thread.call("again", answer)
        with pytest.raises(GasolineError, match="within another call"):
            thread.in_place("again", lambda _: 1)
        return "refused"

    assert in_place(thread, deed) == "refused"
    assert thread.call("again", answer) == 1


def test_a_loop_in_debug_mode_lends_nothing(thread: Thread) -> None:
    in_place(thread, lambda: lending(thread).set_debug(True))

    assert elsewhere(lambda: thread.in_place("test", lambda _: 1)) is Not.NOW
    assert not lending(thread).borrow()


def test_a_closed_loop_lends_nothing(thread: Thread) -> None:
    thread.close()

    assert elsewhere(lambda: thread.in_place("test", lambda _: 1)) is Not.NOW
    assert not lending(thread).borrow()


def test_a_thread_that_does_not_say_so_lends_nothing() -> None:
    thread = LoopThread("memory:kept", nothing())

    assert elsewhere(lambda: thread.in_place("test", lambda _: 1)) is Not.NOW

    thread.close()


ON_THE_MAIN_THREAD = """
import os, signal
from contextlib import asynccontextmanager
from gasoline_es.runtime.lending import Not
from gasoline_es.runtime.loop_thread import LoopThread

@asynccontextmanager
async def nothing():
    yield

thread = LoopThread("memory:main", nothing(), among_tasks=True)
signal.signal(signal.SIGINT, signal.default_int_handler)

def in_place(deed):
    while (done := thread.in_place("test", lambda _: deed())) is Not.NOW:
        pass
    return done

done = []
def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    for number in range(1000):
        done.append(number)
try:
    in_place(interrupted)
    raise SystemExit("no interrupt")
except KeyboardInterrupt:
    assert len(done) == 1000, "the interrupt did not wait"
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert in_place(lambda: 1) == 1

signal.signal(signal.SIGUSR1, lambda *_: None)
assert all(thread.in_place("test", lambda _: 1) is Not.NOW for _ in range(100)), "another handler could interrupt it"
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
signal.signal(signal.SIGINT, lambda *_: None)
assert all(thread.in_place("test", lambda _: 1) is Not.NOW for _ in range(100)), "its own handler could"
signal.signal(signal.SIGINT, signal.SIG_IGN)
assert in_place(lambda: 1) == 1
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
thread.close()
"""


def test_on_the_main_thread_no_handler_of_a_signal_runs_in_the_middle() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", ON_THE_MAIN_THREAD],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
