"""An event loop whose place another thread may take while it sleeps.

What is short is done there at once: the way to the loop's thread and back costs more than a sync of the disk. Between two
turns everything that belongs to a loop is at rest, and one thread at a time has the loop's place: its own while it is awake,
or one that borrowed it. Whoever comes while the place is taken sends what it wants to the loop, as ever, and what is sent
goes first: the loop that has woken up is the next to get its place.

On the main thread Python runs the handlers of signals between any two steps of what is under way there. One that raises
would leave half a decision behind, and one that calls this library would wait for itself. So it takes the place only while
nothing but Ctrl-C has a handler, Python's own, and that waits until the place is given back.
"""

from __future__ import annotations

import asyncio
import selectors
import signal
import sys
import threading
from asyncio import events
from collections.abc import Callable
from contextvars import Context
from enum import Enum
from types import TracebackType
from typing import Any, Final, Literal, TypeVarTuple

_Ts = TypeVarTuple("_Ts")
_below: Final[Any] = sys.modules["_signal"]
"""What ``signal`` wraps: there each look at a handler would make an enum of it, sixty times for each call."""
_handler_of: Final[Callable[[int], object]] = _below.getsignal
_INTERRUPT: Final = int(signal.SIGINT)
_OTHERS: Final = tuple(int(number) for number in signal.valid_signals() if number != _INTERRUPT)


class Not(Enum):
    """What a call in the loop's place returns when there was none to have: nothing was done."""

    NOW = "now"


NotNow = Literal[Not.NOW]


class _Selector(selectors.DefaultSelector):
    """Gives the place away for as long as the loop waits in here for something to happen."""

    def __init__(self) -> None:
        super().__init__()
        self.place: Final = threading.Lock()
        """Held by who has the loop's place: by the loop's own thread from here on, unless it is in :meth:`select`."""
        self.wanted = False
        """Whether the loop is awake and waits for its place."""
        self.place.acquire()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait, as any selector. A loop that only looks whether something has happened is not asleep."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self.place.release()
        try:
            return super().select(timeout)
        finally:
            self.wanted = True
            self.place.acquire()
            self.wanted = False


class LendingLoop(asyncio.SelectorEventLoop):
    """An event loop for :class:`Borrowed`. Made on the thread that runs it."""

    def __init__(self) -> None:
        self._lending: Final = _Selector()
        self._borrower: int | None = None
        self._news = False
        super().__init__(self._lending)

    @property
    def borrowed_here(self) -> bool:
        """Whether this very thread has the loop's place by :meth:`borrow`."""
        return self._borrower == threading.get_ident()

    def borrow(self) -> bool:
        """Take the loop's place, if it sleeps and nobody else has it; whether that was so."""
        if self._lending.wanted or self.get_debug() or not self._lending.place.acquire(blocking=False):
            return False
        self._borrower = threading.get_ident()
        return True

    def give_back(self) -> None:
        """Leave the place; the loop hears of what it is to do since."""
        self._borrower = None
        news, self._news = self._news, False
        self._lending.place.release()
        if news:
            self.call_soon_threadsafe(_nothing)

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As of every loop; who has borrowed this one leaves it to the loop, which has to wake up for it."""
        self._news = self._news or self._borrower is not None
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """The same: the loop may sleep for longer than until then."""
        self._news = self._news or self._borrower is not None
        return super().call_at(when, callback, *args, context=context)


def _nothing() -> None:
    """What a loop is woken up with."""


class Borrowed:
    """The loop's place, as a context: ``with Borrowed(loop) as has_it``. It is had only if that is true."""

    __slots__ = ("_before", "_has", "_interrupted", "_loop", "_on_main")

    def __init__(self, loop: LendingLoop) -> None:
        self._loop = loop
        self._has = False
        self._on_main = threading.get_ident() == threading.main_thread().ident
        self._interrupted = False
        self._before: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> bool:
        if self._on_main:
            if not _only_interrupts():
                self._on_main = False
                return False
            self._on_main = _handler_of(_INTERRUPT) is signal.default_int_handler
            if self._on_main:
                _below.signal(_INTERRUPT, self._interrupt)
        if self._loop.borrow():
            self._has = True
            self._before = events._get_running_loop()
            events._set_running_loop(self._loop)
        return self._has

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if self._has:
            events._set_running_loop(self._before)
            self._loop.give_back()
        if self._on_main:
            _below.signal(_INTERRUPT, signal.default_int_handler)
            if self._interrupted:
                raise KeyboardInterrupt

    def _interrupt(self, *_: object) -> None:
        self._interrupted = True


def _only_interrupts() -> bool:
    """Whether no signal has a handler in Python, but for Ctrl-C: that one Python's own, or none either."""
    found = _handler_of(_INTERRUPT)
    if callable(found) and found is not signal.default_int_handler:
        return False
    return not any(map(callable, map(_handler_of, _OTHERS)))  # without a step of Python's for each of sixty
