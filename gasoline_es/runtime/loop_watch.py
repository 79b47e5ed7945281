"""Notices that the event loop is held up: by a body or an activity that computes or blocks, and does not await.

The log's heartbeat has a thread of its own. So a process whose event loop stands still lives on for the others: it keeps its
partitions, nothing in them goes on, and nobody sees why. A thread of its own looks at the loop here. It cannot free it: it
says what holds it up, in this process's log and to the other processes, and lets the process end when it was asked to.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

from gasoline_es.core.error_info import PACKAGE
from gasoline_es.core.location import format_location
from gasoline_es.definitions import Activity, Workflow
from gasoline_es.engine_log import EngineLog
from gasoline_es.runtime.driver import Driver
from gasoline_es.runtime.sharing import HeldUp

_log = EngineLog(__name__)

HELD_UP_AFTER_S: Final = 5.0
"""A loop that does nothing for so long is held up. It is said then, and each time twice as much has passed."""
TICK_S: Final = 0.5
TOLD_LIMIT_S: Final = 1.0
"""The process ends after so long even if nobody takes its last word: what holds it up may be that its output is full."""

_LIBRARIES: Final = (
    PACKAGE,
    *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")),
)
"""Where code lies that hardly anybody wrote for their workflows, unless they have installed it."""


class LoopWatch:
    """Watches the running event loop, from :meth:`start` to :meth:`stop`.

    ``tell`` is called from the watching thread, with what holds the loop up, and with None once it goes on; it may come
    after :meth:`stop` once more.
    """

    def __init__(
        self, driver: Driver, tell: Callable[[HeldUp | None], None], *, after_s: float = HELD_UP_AFTER_S
    ) -> None:
        self._driver = driver
        self._tell = tell
        self._after_s = after_s
        self._pause_s = min(TICK_S, after_s / 10)
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        # All by a monotonic clock.
        self._moved = self._looked = self._not_before = time.monotonic()
        self._end_at = float("inf")
        self._end_status = 0
        self._next_tick: asyncio.TimerHandle | None = None
        self._seen: object = None
        """What ran at each look since the loop last moved; several, one after the other: :data:`_MANY`."""
        self._said_s = 0.0
        self._told: HeldUp | None = None
        self._still = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gasoline-loop-watch", daemon=True)

    def start(self) -> None:
        self._tick()
        self._thread.start()

    def stop(self) -> None:
        self._still.set()
        self._end_at = float("inf")
        if self._next_tick is not None:
            self._next_tick.cancel()

    def _tick(self) -> None:
        self._moved = time.monotonic()
        if not self._driver.closed:
            self._next_tick = self._loop.call_later(self._pause_s, self._tick)

    @property
    def held_up(self) -> bool:
        """Whether the loop is held up right now. Callable from any thread, and from a signal's handler."""
        now = time.monotonic()
        return not self._came_late(now) and self._held_s(now) >= self._after_s

    def end_after(self, limit_s: float, status: int) -> None:
        """End the process if the loop is held up after so long: it was asked to end, and cannot even begin to."""
        self._end_at, self._end_status = time.monotonic() + limit_s, status

    def _held_s(self, now: float) -> float:
        return now - max(self._moved, self._not_before)

    def _came_late(self, now: float) -> bool:
        """Whether this thread did not run either for a while: the process was frozen, which proves nothing of its loop."""
        return now - self._looked > self._after_s / 2

    def _watch(self) -> None:
        # A worker that nobody stopped, as its process or its loop was about to end, leaves this thread behind.
        while not (self._still.wait(self._pause_s) or self._driver.closed or self._loop.is_closed()):
            self.look()

    def look(self) -> None:
        """Say what there is to say by now; what the watching thread does again and again."""
        now = time.monotonic()
        if self._came_late(now) or not self._loop.is_running():
            self._not_before = now
        self._looked = now
        held_s = self._held_s(now)
        if held_s <= 2 * self._pause_s:
            self._seen = None
            if self._told is not None:
                self._goes_on()
            return
        runs = self._runs()
        self._seen = runs.what if self._seen in (None, runs.what) else _MANY
        if held_s < self._after_s:
            return
        if held_s >= 2 * self._said_s:
            self._say(runs, held_s)
        if now >= self._end_at:
            end_at_once(self._end_status)

    def _runs(self) -> _Running:
        """Return what runs in the loop right now."""
        driver = self._driver
        live = driver.at
        if live is not None:
            name = live.state.summary.name
            return _Running(live, f"the body of workflow {name}", live.fields, driver.registry.get(name))
        task = asyncio.current_task(self._loop)
        for attempt in driver.runner.under_way if task is not None else ():
            if attempt.task is task:
                name, location = attempt.definition.name, format_location(attempt.wait.location)
                fields = {**attempt.live.fields, "activity": name, "location": location}
                return _Running(attempt, f"activity {name}", fields, attempt.definition)
        if task is None:
            return _Running(_CODE, "code", {}, None)
        return _Running(task, f"task {task.get_name()}", {}, None)

    def _say(self, runs: _Running, held_s: float) -> None:
        self._said_s = held_s
        where, stack = _where(_frame(self._loop_thread), runs.definition)
        who = f"many in a row, now {runs.told}" if self._seen is _MANY else runs.told
        if self._told is None:
            place = os.path.basename(where)  # others have little room for it
            self._told = HeldUp(time.time_ns() // 1_000 - int(held_s * 1e6), f"{who} at {place}")
        _log.error(
            "the event loop has been held up for %.0f s by %s at %s: nothing else goes on in this process, and what it "
            "owns waits. Let it await, or make it a `def` activity, which runs in a thread",
            held_s,
            who,
            where,
            extra={**runs.fields, "held_s": held_s, "at": where, "stack": stack},
        )
        self._tell(self._told)

    def _goes_on(self) -> None:
        since_us = 0 if self._told is None else self._told.since_us
        held_s = (time.time_ns() // 1_000 - since_us) / 1e6
        self._told, self._said_s = None, 0.0
        self._tell(None)
        _log.warning("the event loop goes on, after it was held up for %.0f s", held_s, extra={"held_s": held_s})


_MANY: Final = object()
_CODE: Final = object()


class _Running(NamedTuple):
    """``what``: the same object for as long as the same thing runs. ``told``, ``fields``: for the log."""

    what: object
    told: str
    fields: Mapping[str, object]
    definition: Workflow[Any, Any] | Activity[Any, Any] | None


def _frame(thread: int) -> FrameType | None:
    """Return what a thread is at."""
    return sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] -- a documented function


def _where(frame: FrameType | None, definition: Workflow[Any, Any] | Activity[Any, Any] | None) -> tuple[str, str]:
    """Return the innermost place in the file of the definition, or else in code that is no library's; and the whole stack."""
    if frame is None:
        return "an unknown place", ""
    stack = traceback.extract_stack(frame)
    home = None if definition is None else inspect.getsourcefile(inspect.unwrap(definition.fn))
    theirs = [one for one in stack if one.filename == home] or [
        one for one in stack if not one.filename.startswith((*_LIBRARIES, "<"))
    ]
    place = (theirs or stack)[-1]
    return f"{place.filename}:{place.lineno} in {place.name}", "".join(traceback.format_list(stack))


def end_at_once(status: int) -> NoReturn:
    """End the process here and now, as a crash would: what was acknowledged is safe, what was under way runs elsewhere."""
    last_word = threading.Thread(target=_say_the_last_word, daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread can be had any more
        last_word.start()
        last_word.join(TOLD_LIMIT_S)
    os._exit(status)


def _say_the_last_word() -> None:
    _log.critical("the event loop is held up and this process was asked to end: it ends now, without waiting")
