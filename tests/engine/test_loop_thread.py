"""The event-loop thread of callers that block: what interrupts a call, and how calls end when it closes (api.md, "Outside")."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

import pytest

from gasoline_es.errors import GasolineError, LogCorrupt, LogError
from gasoline_es.runtime.loop_thread import LoopThread
from tests.engine.harness import PATIENCE_S

URL = "memory:thread"


class Place:
    """What the thread opens: it tells when it is closed, and has a coroutine that never ends by itself."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()
        self.closed = threading.Event()
        self.may_open = threading.Event()
        self.may_open.set()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Place]:
        while not self.may_open.is_set():
            await asyncio.sleep(0.001)
        try:
            yield self
        finally:
            self.closed.set()

    async def never(self) -> None:
        try:
            self.begun.set()
            await asyncio.get_running_loop().create_future()
        finally:
            self.cancelled.set()

    async def answer(self) -> int:
        return 42


@pytest.fixture
def place() -> Place:
    return Place()


@contextmanager
def opened(place: Place) -> Generator[LoopThread[Place]]:
    thread = LoopThread(URL, place.open())
    try:
        yield thread
    finally:
        thread.close()


@contextmanager
def interrupted_when_blocked() -> Generator[None]:
    """Send this process a SIGINT once its main thread waits for a future."""
    main = threading.get_ident()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            stack = [frame.f_code.co_qualname for frame, _ in traceback.walk_stack(sys._current_frames()[main])]
            if stack[:2] == ["Condition.wait", "Future.result"]:
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    # A shell lets what it starts in the background ignore the signal, and Python leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGINT, before)


def test_interrupt_cancels_the_call_and_leaves_the_thread_usable(place: Place) -> None:
    with opened(place) as thread:
        with pytest.raises(KeyboardInterrupt), interrupted_when_blocked():
            thread.call("never", place.never)
        assert place.cancelled.wait(PATIENCE_S)
        assert thread.call("answer", place.answer) == 42
        assert not place.closed.is_set()


def test_interrupt_while_opening_closes_what_has_opened_since(place: Place) -> None:
    place.may_open.clear()
    with pytest.raises(KeyboardInterrupt), interrupted_when_blocked():
        LoopThread(URL, place.open())
    place.may_open.set()
    assert place.closed.wait(PATIENCE_S)


def test_close_ends_the_calls_under_way_with_an_error(place: Place) -> None:
    with opened(place) as thread, ThreadPoolExecutor() as pool:
        calls = [pool.submit(thread.call, "gasoline.never", place.never) for _ in range(3)]
        assert place.begun.wait(PATIENCE_S)
        thread.close()
        assert place.closed.is_set()
        for call in calls:
            with pytest.raises(LogError, match=r"memory:thread was closed"):
                call.result(PATIENCE_S)
        with pytest.raises(LogError, match=r"`gasoline.answer\(…\)`: memory:thread was closed. Open it again"):
            thread.call("gasoline.answer", place.answer)


def test_every_call_is_answered_or_refused_while_others_close(place: Place) -> None:
    """Whatever the moment of the close: no call waits for a loop that is gone."""

    def call_until_closed(thread: LoopThread[Place]) -> int:
        answered = 0
        try:
            while True:
                assert thread.call("answer", place.answer) == 42
                answered += 1
        except LogError:
            return answered

    for _ in range(20):
        thread = LoopThread(URL, place.open())
        with ThreadPoolExecutor() as pool:
            callers = [pool.submit(call_until_closed, thread) for _ in range(3)]
            closers: list[Future[None]] = [pool.submit(thread.close) for _ in range(2)]
            for future in [*callers, *closers]:
                future.result(PATIENCE_S)
        assert thread.closed


def test_close_from_a_signal_handler_in_the_middle_of_a_call_ends_both(place: Place) -> None:
    """The handler runs in the very thread that has begun a call and still holds the lock."""
    thread = LoopThread(URL, place.open())

    def start() -> Coroutine[None, None, int]:
        signal.raise_signal(signal.SIGUSR1)
        return place.answer()

    def stop(number: int, frame: FrameType | None) -> None:
        thread.close()

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(LogError, match="was closed"):
            thread.call("answer", start)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert place.closed.is_set()


async def test_call_in_the_thread_of_an_event_loop_is_refused(place: Place) -> None:
    """It would keep everything else on that loop from going on. Closing is let pass."""
    with pytest.raises(
        GasolineError, match=r"`Gasoline.open_sync\(…\)` blocks.*use `async with Gasoline.open\(…\) as gasoline:`"
    ):
        LoopThread(URL, place.open())
    thread = await asyncio.to_thread(LoopThread, URL, place.open())
    with pytest.raises(GasolineError, match=r"`gasoline.get\(…\)` blocks, and was called in the thread of a running"):
        thread.call("gasoline.get", place.answer)
    assert await asyncio.to_thread(thread.call, "gasoline.get", place.answer) == 42
    thread.close()
    assert place.closed.is_set()


def test_error_of_opening_is_raised_where_it_is_opened() -> None:
    @asynccontextmanager
    async def broken() -> AsyncGenerator[None]:
        raise LogCorrupt("segment 1")
        yield

    with pytest.raises(LogCorrupt, match="segment 1"):
        LoopThread(URL, broken())


def test_error_of_closing_is_raised_by_the_first_close() -> None:
    @asynccontextmanager
    async def broken() -> AsyncGenerator[None]:
        yield
        raise LogError("no end")

    thread = LoopThread(URL, broken())
    with pytest.raises(LogError, match="no end"):
        thread.close()
    thread.close()


def test_context_of_the_caller_goes_with_the_call(place: Place) -> None:
    """Traces and request ids of a web framework are found by what a call logs."""
    request: ContextVar[str] = ContextVar("request")

    async def seen() -> str:
        return request.get()

    with opened(place) as thread:
        request.set("17")
        assert thread.call("seen", seen) == "17"


@pytest.mark.timeout(60)
def test_a_close_that_a_finaliser_repeats_within_it_does_not_wait_for_itself() -> None:
    """Python's collector may run anywhere, also between two steps of a close; an application closes itself there."""
    place = Place()
    thread = LoopThread(URL, place.open())
    loop = thread._loop
    send, within = loop.call_soon_threadsafe, list[bool]()

    def interrupted(callback: Callable[..., object], *args: object, **more: Any) -> Any:
        loop.call_soon_threadsafe = send  # type: ignore[method-assign]
        thread.close()
        within.append(not thread._thread.is_alive() or thread._ended.done())
        return send(callback, *args, **more)

    loop.call_soon_threadsafe = interrupted  # type: ignore[method-assign]
    thread.close()
    assert within == [True]
    assert thread.closed
