"""The follower: waits until something may have been published, by this process or another.

Other processes' publications show as changes of files: published ends and epochs. They are watched by watchfiles, whose wait
(a 1 ms step) runs in a thread of its own, and only while somebody waits. What this handle publishes is no news to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

_DEBOUNCE_MS: Final = 2
_STEP_MS: Final = 1
_LINGER_MS: Final = 100
_PROBE_S: Final = 0.5


class Follower:
    """Wakes one waiter. Belongs to one event loop."""

    def __init__(self, directory: str, own: Callable[[str], bool], lost_owner: Callable[[], bool]) -> None:
        """``own``: whether a path is one of this handle's own files. ``lost_owner``: whether an owner died or fell silent."""
        self._directory: Final = directory
        self._own: Final = own
        self._lost_owner: Final = lost_owner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._dirty = False
        self._closed = False
        self._watch: RustNotify | None = None
        self._thread: threading.Thread | None = None
        self._wanted = threading.Event()

    async def changed(self) -> None:
        """Return once something may have changed since the last call returned."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._start()
            return
        if self._waiter is not None:
            raise RuntimeError("only one task at a time may wait for changes of a log")
        while not self._dirty and not self._closed:
            self._waiter = self._loop.create_future()
            probe = self._loop.call_later(_PROBE_S, self._probe)
            self._wanted.set()
            try:
                await self._waiter
            finally:
                probe.cancel()
                self._waiter = None
                self._wanted.clear()
        self._dirty = False

    def _probe(self) -> None:
        if self._lost_owner():
            self._wake()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)  # goes round once more: a timer of its own for every wait

    def _wake(self) -> None:
        self._dirty = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _start(self) -> None:
        from watchfiles._rust_notify import RustNotify

        paths = [f"{self._directory}/segments", f"{self._directory}/epochs"]
        # debug, force_polling, poll_delay_ms, recursive, ignore_permission_denied
        self._watch = RustNotify(paths, False, False, 0, True, False)
        self._thread = threading.Thread(
            target=self._run, args=(self._watch,), name="gasoline-log-follower", daemon=True
        )
        self._thread.start()

    def _run(self, watch: RustNotify) -> None:
        while True:
            self._wanted.wait()
            if self._closed:
                return
            # `_wanted` is no stop event: a waiter that leaves is mostly back at once.
            changes = watch.watch(_DEBOUNCE_MS, _STEP_MS, _LINGER_MS, None)
            if isinstance(changes, str):
                continue
            if any(self._matters(path) for _, path in changes):
                assert self._loop is not None
                try:
                    self._loop.call_soon_threadsafe(self._wake)
                except RuntimeError:
                    return  # the loop is closed, and with it everybody who could wait

    def _matters(self, path: str) -> bool:
        return (path.endswith(".end") or "/epochs/" in path) and not self._own(path)

    def close(self) -> None:
        """Stop the thread and wake the waiter. Idempotent."""
        self._closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
