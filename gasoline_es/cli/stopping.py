"""SIGTERM and SIGINT while a command that runs until them is only about to begin: it ends as one that was stopped.

A process is asked to end at any moment, so also while Python still imports. So the command line holds SIGTERM back from its
first line on; :func:`let` takes that back, and a command that runs until then begins with :func:`stopping`.
"""

from __future__ import annotations

import signal
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


def hold() -> None:
    """Keep SIGTERM waiting. Nothing may be started before :func:`let` or :func:`stopping`: it would inherit that."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def let() -> None:
    """Let SIGTERM come, also one that has waited."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


class Stopping:
    """What becomes of a signal while the command has no handler of its own. Made by :func:`stopping`."""

    def __init__(self) -> None:
        self._over = False
        self._task: asyncio.Task[None] | None = None
        self._asked = False

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it on an event loop; a signal cancels it, so that it lets go of what it has."""
        import asyncio

        async def main() -> None:
            self._task = asyncio.current_task()
            try:
                await work
            except asyncio.CancelledError:
                if not self._asked:
                    raise
            finally:
                self.over()

        asyncio.run(main())

    @contextmanager
    def ending(self) -> Generator[None]:
        """Call :meth:`over` when the block ends."""
        try:
            yield
        finally:
            self.over()

    def over(self) -> None:
        """The command only lets go of what it has, from here on, which no signal interrupts but a second one."""
        self._over = True

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; the next one ends the process as it would any other."""
        for one in _NUMBERS:
            signal.signal(one, signal.SIG_DFL)
        if self._over:
            return
        self._asked = True
        if self._task is None:
            raise SystemExit(0)
        loop = self._task.get_loop()
        loop.call_soon_threadsafe(self._task.cancel)


@contextmanager
def stopping() -> Generator[Stopping]:
    """See to signals from now on, also to a SIGTERM that has waited. To be the first thing that a command does."""
    made = Stopping()
    before = {number: signal.signal(number, made.ask) for number in _NUMBERS}
    let()
    try:
        yield made
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
