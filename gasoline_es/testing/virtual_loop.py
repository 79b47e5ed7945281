"""An event loop whose time is a virtual clock. It never sleeps: when nothing is ready it asks what to do about that.

So idleness needs no guess and no pause: a loop has nothing to do exactly when it comes to wait, with its next timer in hand.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import asyncio.tasks
import math
import selectors
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack, cast

from gasoline_es.clock import VirtualClock
from gasoline_es.errors import GasolineError

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_Events = list[tuple[selectors.SelectorKey, int]]


class Idle(Protocol):
    """Who decides what to do when nothing is ready."""

    def idle(self, timer_at: float | None) -> float:
        """Move the clock, or put something on the loop, and return 0; or return for how long to wait really.

        ``timer_at``: the loop's time at which its next timer is due; None: it has none.
        """
        ...

    def waited_in_vain(self) -> None:
        """Nothing came in the time that ``idle`` returned."""
        ...


class _Selector(selectors.BaseSelector):
    """The real one, but for the waiting."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.when_idle: Callable[[bool], float] = lambda timers: 0.0
        self.in_vain: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> _Events:
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        really_s = self.when_idle(timeout is not None)
        if really_s <= 0:
            return []
        ready = self._real.select(really_s)
        if not ready:
            self.in_vain()
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Everything on it (sleeps, timeouts, the engine's limits) goes by ``clock``, which ``owner`` moves."""

    def __init__(self, clock: VirtualClock, owner: Idle) -> None:
        self._virtual = clock
        self._owner = owner
        self._reached = 0.0
        """The timer last jumped to. The clock counts whole microseconds, and must not be a rounding short of it."""
        self.in_executor = 0
        """How many calls run in an executor's threads."""
        selector = self._waiting = _Selector()
        super().__init__(selector)
        self._own_files = len(selector.get_map())
        selector.when_idle = self._nothing_ready
        selector.in_vain = owner.waited_in_vain

    def time(self) -> float:
        return max(self._virtual.monotonic(), self._reached)

    def jump(self, timer_at: float) -> None:
        """Move the clock to a timer."""
        self._reached = max(timer_at, self._reached)
        self._virtual.advance(max(timer_at - self._virtual.monotonic(), 0.0))
        # asyncio fires what is due before its time plus this, which must not vanish in the rounding of a late time.
        self._clock_resolution = max(1e-9, math.ulp(self.time()))

    def call_later(
        self, delay: float, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        now = self.time()
        # After a thousand years a microsecond is less than a float can tell. Whoever waits for one must not wait for none.
        when = now + delay if delay <= 0 else max(now + delay, math.nextafter(now, math.inf))
        return self.call_at(when, callback, *args, context=context)

    @property
    def open_files(self) -> int:
        """How many sockets and pipes somebody on this loop waits for."""
        return len(self._waiting.get_map()) - self._own_files

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        future = super().run_in_executor(executor, func, *args)
        self.in_executor += 1
        future.add_done_callback(self._left_executor)
        return future

    def _left_executor(self, future: asyncio.Future[Any]) -> None:
        self.in_executor -= 1

    def _nothing_ready(self, has_timers: bool) -> float:
        if not has_timers:
            return self._owner.idle(None)
        # Not by the timeout, which asyncio cuts to a day. The first timer is one that counts: the loop just saw to that.
        timers = cast("list[asyncio.TimerHandle]", cast(Any, self)._scheduled)
        return self._owner.idle(timers[0].when())


@contextmanager
def outer_loop_suspended(inner: asyncio.AbstractEventLoop, verb: str) -> Generator[None]:
    """Let ``inner`` run although the caller's code may itself run on an event loop, which stands still meanwhile.

    Raises: GasolineError: the caller runs on ``inner``.
    """
    events, tasks = cast(Any, asyncio.events), cast(Any, asyncio.tasks)
    outer: asyncio.AbstractEventLoop | None = events._get_running_loop()
    if outer is None:
        yield
        return
    if outer is inner:
        raise GasolineError(
            f"`{verb}` was called in a coroutine of this very simulation, which cannot wait for itself. There, use the "
            f"client: `await sim.gasoline.dispatch(…)`, `await handle.output()`, `await asyncio.sleep(…)`"
        )
    task = asyncio.current_task(outer)
    if task is not None:
        tasks._leave_task(outer, task)
    events._set_running_loop(None)
    try:
        yield
    finally:
        events._set_running_loop(outer)
        if task is not None:
            tasks._enter_task(outer, task)
