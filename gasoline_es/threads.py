"""Threads for ``def`` activities: daemon threads, because one that blocks for ever must not keep the process alive.

The standard library's executor joins its threads when the interpreter ends, so a stuck activity would hang the shutdown;
and it counts a thread as taken although its activity was given up long ago (required case B16).
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], Any], contextvars.Context, asyncio.Future[Any], asyncio.AbstractEventLoop]


class DaemonThreads:
    """Runs each function in a thread of its own, reusing threads that are idle. Bounded by whoever calls it."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Job | None]] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[[], Any]) -> asyncio.Future[Any]:
        """Start ``fn`` in a thread; the future ends with what it returns or raises. Cancelling it only forgets it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        job = (fn, contextvars.copy_context(), future, loop)
        with self._lock:
            queue = self._idle.pop() if self._idle else None
        if queue is None:
            queue = SimpleQueue[_Job | None]()
            threading.Thread(target=self._work, args=(queue,), name="gasoline-activity", daemon=True).start()
        queue.put(job)
        return future

    def close(self) -> None:
        """Let idle threads end; busy ones end with their function."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for queue in idle:
            queue.put(None)

    def _work(self, queue: SimpleQueue[_Job | None]) -> None:
        while (job := queue.get()) is not None:
            fn, context, future, loop = job
            try:
                value, error = context.run(fn), None
            except BaseException as raised:
                value, error = None, raised
            try:
                loop.call_soon_threadsafe(_settle, future, value, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits for this any more
            del job, fn, context, future, loop, value, error
            with self._lock:
                if self._closed:
                    return
                self._idle.append(queue)


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError(f"the function raised {error!r}"))  # a future takes no StopIteration
    else:
        future.set_exception(error)
