"""An event loop in a thread of its own, for callers that block: web frameworks and scripts without asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Generic, TypeVar

from gasoline_es.core.guard import check_outside_body
from gasoline_es.errors import GasolineError, LogError
from gasoline_es.runtime.lending import Borrowed, LendingLoop, Not, NotNow

C = TypeVar("C")
T = TypeVar("T")


class LoopThread(Generic[C]):
    """Opens something on an event loop of its own, and runs coroutines there for any number of threads, until ``close``.

    The thread is a daemon: a program that ends without ``close`` ends like a process that is killed, which loses nothing
    that a call has returned.
    """

    def __init__(
        self, url: str, opening: AbstractAsyncContextManager[C], reopen: str = "", *, among_tasks: bool = False
    ) -> None:
        """Start the thread and wait until it is open. Raises: what opening raises.

        ``reopen``: what to do once it is closed, as an order to people. ``among_tasks``: a caller may block the event loop of
        its own thread, as those of a library do that knows nothing of loops; and :meth:`in_place` works.
        """
        self._among_tasks: Final = among_tasks
        self._check_may_block("Gasoline.open_sync")
        self.url: Final = url
        self._reopen: Final = reopen or f"Open it again: `Gasoline.open_sync({url!r})`"
        self._pid: Final = os.getpid()
        self._lock: Final = threading.RLock()
        """Orders calls and the one close. Re-entrant: a signal handler may close what it interrupts in a call."""
        self._closing = False
        self._under_way: Final[set[Future[Any]]] = set()
        self._ended: Final[Future[None]] = Future()
        self._loop: asyncio.AbstractEventLoop
        self._leave: asyncio.Event
        opened: Future[C] = Future()
        self._thread: Final = threading.Thread(
            target=self._live, args=(opening, opened), name="gasoline-sync", daemon=True
        )
        self._thread.start()
        try:
            self.opened: Final = opened.result()
        except BaseException:
            # Where this is a KeyboardInterrupt, opening goes on: the thread closes again, now or as soon as it has opened.
            if not opened.cancel() and opened.exception() is None:
                self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called, in this process."""
        return self._closing

    def call(self, verb: str, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run what ``start`` makes on the loop; return its result once it is there. ``verb``: as the caller wrote it.

        Whatever interrupts the caller (KeyboardInterrupt, SystemExit) cancels it there, and nothing else.

        Raises: GasolineError: from a forked child, from a running event loop. StepMisused: from a body. LogError: it is
            closed, or was while the call was under way. Else what the coroutine raises.
        """
        self.check(verb)
        call: Future[T] | None = None
        try:
            call = self._begin(verb, start)
            return call.result()
        except CancelledError:
            raise LogError(
                f"{self.url} was closed while `{verb}(…)` was under way. What it asked for may have been recorded: after "
                f"opening the log again, repeat it with the same `key` or signal `id`"
            ) from None
        except BaseException:
            if call is not None:
                call.cancel()  # unless it is done, and this its own error
            raise

    def in_place(self, verb: str, deed: Callable[[C], T]) -> T | NotNow:
        """Do something on this thread, in the loop's place, if the loop sleeps; ``Not.NOW``: it does not, nothing was done.

        ``deed`` must be short, and must leave nothing half done where it raises. Raises: as :meth:`check`; what it raises.
        """
        self.check(verb)
        loop = self._loop
        if self._closing or not isinstance(loop, LendingLoop):
            return Not.NOW  # where it is closed, a call says so
        with Borrowed(loop) as has_it:
            return deed(self.opened) if has_it else Not.NOW

    @property
    def in_place_here(self) -> bool:
        """Whether this very thread is in the loop's place: something that it came across there calls again."""
        return isinstance(self._loop, LendingLoop) and self._loop.borrowed_here

    def _begin(self, verb: str, start: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._closing:
                raise self._closed(verb)
            coroutine = start()
            try:
                call = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            except RuntimeError:  # a signal handler has closed it since
                coroutine.close()
                raise self._closed(verb) from None
            self._under_way.add(call)
        call.add_done_callback(self._under_way.discard)
        if self._ended.done():  # just now, by itself: this call may have come too late for whoever cancelled the others
            call.cancel()
        return call

    def check(self, verb: str) -> None:
        """Refuse a call from where it cannot work. Raises: GasolineError, StepMisused."""
        if self.foreign:
            raise GasolineError(
                f"`{verb}(…)`: {self.url} was opened by process {self._pid}, before it forked this one ({os.getpid()}), and "
                f"neither its event loop nor its place in the log came along. Open the log in each worker process, after the "
                f"fork: in gunicorn's `post_fork` hook or without `--preload`, in general in whatever starts the worker"
            )
        self._check_may_block(verb)
        if self.in_place_here:
            raise GasolineError(
                f"`{verb}(…)` was called from within another call of the same thread (by a finaliser, a log handler or a "
                f"trace function), which it would wait for: do it elsewhere"
            )

    @property
    def foreign(self) -> bool:
        """Whether this is a forked child, where nothing of it works."""
        return os.getpid() != self._pid

    def post(self, deed: Callable[[], object]) -> None:
        """Let the loop do something soon, behind the calls so far; nobody waits for it. Raises: RuntimeError: it has ended."""
        self._loop.call_soon_threadsafe(deed)

    def close(self) -> None:
        """Refuse new calls, close what was opened, end the thread. Calls under way end with a LogError.

        From any thread, and again: who comes later waits until it is closed. In a forked child it does nothing: what was
        opened is the parent's. Raises: what closing raises.
        """
        if self.foreign:
            return
        with self._lock:
            first, self._closing = not self._closing, True
            # Not by the first alone: a finaliser or a signal's handler may close it within that call, on this very thread.
            with suppress(RuntimeError):  # the loop has ended by itself
                # After every call so far, and none comes later: each has begun when the loop comes to this.
                self._loop.call_soon_threadsafe(self._leave.set)
        error = self._ended.exception()
        if first and error is not None:
            raise error

    def _closed(self, verb: str) -> LogError:
        return LogError(f"`{verb}(…)`: {self.url} was closed. {self._reopen}")

    def _check_may_block(self, verb: str) -> None:
        """Refuse to block where an event loop runs: nothing else would get on there meanwhile."""
        check_outside_body(f"call `{verb}(…)` in an activity, `await ctx.activity(…)`, or outside the workflow")
        if self._among_tasks:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise GasolineError(
            f"`{verb}(…)` blocks, and was called in the thread of a running event loop, where everything else would stand "
            f"still meanwhile. Here use `async with Gasoline.open(…) as gasoline:` and await its verbs, which are the same"
        )

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _live(self, opening: AbstractAsyncContextManager[C], opened: Future[C]) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(
                loop_factory=LendingLoop if self._among_tasks else None
            ) as runner:  # which cancels what is still under way as it ends
                self._loop = runner.get_loop()
                runner.run(self._stay(opening, opened))
        except BaseException as raised:
            error = raised
        # Without the lock: a signal handler that waits for this may stand in a call that holds it.
        self._closing = True
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
        for call in list(self._under_way):
            call.cancel()  # nobody runs it any more, whatever has ended the loop
        if error is not None and not opened.done():
            with suppress(InvalidStateError):  # nobody waits for it since this moment
                opened.set_exception(error)

    async def _stay(self, opening: AbstractAsyncContextManager[C], opened: Future[C]) -> None:
        self._leave = asyncio.Event()
        async with opening as inside:
            if opened.set_running_or_notify_cancel():
                opened.set_result(inside)
                await self._leave.wait()
