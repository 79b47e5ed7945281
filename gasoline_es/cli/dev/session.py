"""``gasoline dev`` at work: keeps one worker running the code as it was saved last, and shows what happens."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from gasoline_es.cli.dev import notices
from gasoline_es.cli.dev.changes import Burst, Pause, saved
from gasoline_es.cli.dev.notices import Notice
from gasoline_es.cli.dev.picture import Life, Picture
from gasoline_es.cli.dev.process import WorkerProcess
from gasoline_es.cli.dev.reports import Order, Ready, Report, Running
from gasoline_es.cli.dev.rows import Scene
from gasoline_es.cli.dev.screen import Screen
from gasoline_es.cli.dev.tail import LogTail
from gasoline_es.cli.escape import escape
from gasoline_es.cli.failures import Failure, Misuse
from gasoline_es.cli.lines import Line
from gasoline_es.cli.reading import namespaces
from gasoline_es.cli.render import STYLES
from gasoline_es.cli.settings import Settings
from gasoline_es.core import events as ev
from gasoline_es.core.events import Event
from gasoline_es.errors import GasolineError
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log, Member

ABORTED: Final = 130
"""The exit status after a second Ctrl-C: what a shell shows for a process that SIGINT ended."""
_GRACE_S: Final = 3.0
"""So much longer than its activities a worker may take to stop."""
_GIVING_UP_S: Final = 1.0
_WOKEN_MAX: Final = 1_000
"""So many dead workflows are woken after a reload, those that died last."""
_LOOK_S: Final = 0.05
"""At most so often the log is looked at: it may change a thousand times a second."""
_OTHERS_S: Final = 1.0
"""So often it looks for other workers."""
_DRAW_S: Final = 0.125
_CLOCK_S: Final = 1.0
"""So often it is drawn although nothing happened, for the times it shows."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for. ``revive``: wake what died while it ran and a reload may mend."""

    module: str
    settings: Settings
    namespace: str
    watched: Sequence[str]
    revive: bool
    max_concurrency: int
    stop_limit_s: float
    projections: str | None = None
    store: str | None = None
    pipelines: str | None = None


class Session:
    """One run of the command, from its start to Ctrl-C."""

    def __init__(self, plan: Plan, screen: Screen) -> None:
        self._plan = plan
        self._screen = screen
        self._lost: OSError | None = None
        """Why nothing can be shown any more: the terminal is closed, or who read has left."""
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()
        self._burst = Burst()
        self._saved = asyncio.Event()
        self._pause = Pause()
        self._worker: WorkerProcess | None = None
        self._reloads = False
        """Whether the code was saved since a worker last ran."""
        self._state = ("starting", "cyan")
        self._registered: frozenset[str] | None = None
        self._running = Running()
        self._picture = Picture()
        self._fell: dict[str, None] = {}
        """The ids of what died since this began and a change of the code may mend, in order of their deaths."""
        self._log_there = asyncio.Event()
        self._log_is_new = False
        self._news = asyncio.Event()
        self._own: set[int] = set()
        """The processes of all its workers so far: one that was let go may stand on the log a moment longer."""
        self._others: dict[str, Member] = {}
        """The other workers on the log that were told of, by their names there."""
        self._others_looked_s = -math.inf

    async def run(self) -> None:
        """Run until somebody ends it. Raises: Failure: it cannot go on, or was ended the hard way. OSError: nobody looks."""
        loop = asyncio.get_running_loop()
        # One that is to outlive its terminal was started with this one ignored (nohup).
        asked_by = [one for one in _SIGNALS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
        for number in asked_by:
            loop.add_signal_handler(number, self._asked)
        try:
            self._log_is_new = not _is_there(self._plan.settings, self._plan.namespace)
            if not self._log_is_new:
                self._log_there.set()
            await self._together(self._supervise(), self._watch(), self._follow(), self._draw())
        finally:
            if self._worker is not None and not self._worker.ended.done():
                await self._end(self._worker)
            for number in asked_by:
                loop.remove_signal_handler(number)
        if self._lost is not None:
            raise self._lost
        if self._abort.is_set():
            raise Failure("ended at the second signal: what ran then may be started again", ABORTED)
        self._tell(notices.stopped())

    async def _together(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Run all until one ends, which is the end of all; raise what that one raised."""
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    def _asked(self) -> None:
        if self._stop.is_set():
            self._abort.set()
        else:
            self._stop.set()
            self._show_state("stopping", "bold")
            self._tell(notices.stopping())

    # --- the worker ---------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while not self._stop.is_set():
            to_wake = self._to_wake()
            worker = self._worker = await self._start(to_wake)
            self._own.add(worker.pid)
            await self._first(worker.ended, self._settled(), self._stop.wait())
            if worker.ready:
                self._reloads = False
            by_itself = worker.ended.done()
            if not by_itself:
                self._take_in_what_was_saved()
                await self._end(worker)
            self._registered, self._running = None, Running()
            if not worker.ready:
                self._fell = {**dict.fromkeys(to_wake), **self._fell}  # nobody has woken them
            if by_itself and not self._stop.is_set():
                await self._wait_after(worker)
            if self._burst:
                await self._first(self._settled(), self._stop.wait())
                self._take_in_what_was_saved()

    async def _start(self, to_wake: Sequence[str]) -> WorkerProcess:
        plan = self._plan
        self._show_state("starting", "cyan")
        order = Order(
            plan.module,
            plan.settings.url,
            plan.namespace,
            plan.max_concurrency,
            plan.stop_limit_s,
            -1,
            plan.projections,
            plan.store,
            plan.pipelines,
        )
        return await WorkerProcess.start(order, to_wake, self._heard, self._wrote if self._screen.live else None)

    def _heard(self, report: Report) -> None:
        worker = self._worker
        if isinstance(report, Ready) and worker is not None:
            worker.ready = True
            self._registered = frozenset(report.workflows)
            self._show_state(f"worker {worker.pid} runs {', '.join(report.workflows)}", "green")
            self._tell(notices.ready(worker.pid, report.workflows, report.woken))
            self._log_there.set()
        elif isinstance(report, Running):
            self._running = report
            self._news.set()

    def _take_in_what_was_saved(self) -> None:
        """Say what is about to be loaded."""
        files = self._burst.take()
        if files and not self._stop.is_set():
            self._reloads = True
            self._pause.reset()
            self._show_state("reloading", "cyan")
            self._tell(notices.reload(files))

    async def _end(self, worker: WorkerProcess) -> None:
        """Stop a worker: cleanly, faster once somebody is in a hurry, by force when it does not."""
        worker.stop()
        await self._first(worker.ended, self._abort.wait(), timeout=self._plan.stop_limit_s + _GRACE_S)
        if not worker.ended.done() and self._abort.is_set():
            worker.stop()
            await self._first(worker.ended, timeout=_GIVING_UP_S)
        if not worker.ended.done():
            self._tell(notices.killed(worker.pid))
            worker.kill()
            await self._first(worker.ended)

    async def _wait_after(self, worker: WorkerProcess) -> None:
        """Wait until it makes sense to start another one."""
        if worker.refused is not None:
            self._show_state(worker.refused, "bold red")
            self._tell(notices.refused(worker.refused))
            await self._first(self._settled(), self._stop.wait())
            return
        again_s = self._pause.after(worker.lived_s)
        self._show_state(f"worker {worker.pid} ended by itself", "bold red")
        self._tell(notices.died(worker.pid, worker.ended.result(), again_s))
        await self._first(self._settled(), self._stop.wait(), timeout=again_s)

    def _to_wake(self) -> list[str]:
        """Return what the code as it was before let die, and is dead still: for a worker that runs other code."""
        if not self._reloads:
            return []
        fell, self._fell = self._fell, {}
        return [one for one in fell if one in self._picture.dead] if self._plan.revive else []

    async def _first(self, *awaitables: Awaitable[Any], timeout: float | None = None) -> None:
        """Wait for the first of these, or for so many seconds; let go of the others. A worker's end goes on to be awaited."""
        tasks = [asyncio.ensure_future(one) for one in awaitables]
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                if self._worker is None or task is not self._worker.ended:
                    task.cancel()

    # --- the code -----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        async for files in saved(self._plan.watched):
            self._burst.add(time.monotonic(), files)
            self._saved.set()

    async def _settled(self) -> None:
        """Return once something was saved, and no more comes."""
        while True:
            due_s = self._burst.due_in(time.monotonic())
            if due_s is None:
                self._saved.clear()
                await self._saved.wait()
            elif due_s > 0:
                await asyncio.sleep(due_s)
            else:
                return

    # --- the log ------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Show the log for as long as it can be read; after that, again when a worker has it."""
        while True:
            await self._log_there.wait()
            self._log_there.clear()
            try:
                log = await open_log(self._plan.settings.url, namespace=self._plan.namespace, readonly=True)
                try:
                    await self._follow_log(log)
                finally:
                    await log.close()
            except GasolineError as error:
                self._tell(notices.unreadable(error.message))
            except OSError as error:
                self._tell(notices.unreadable(str(error)))

    async def _follow_log(self, log: Log) -> None:
        picture, tail = Picture(), LogTail(log)
        news, self._log_is_new = self._log_is_new, False
        """Whether what is read happens now, and is told: not what a log held before."""
        if news:
            self._picture = picture
        while True:
            self._tell_of_others(log)
            for events in tail.poll():
                for event in events:
                    life = picture.add(event)
                    if news:
                        self._happened(event, life)
                self._news.set()
                await asyncio.sleep(0)
            if not news:
                news, self._picture = True, picture
                if before := sum(1 for _ in picture.mendable()):
                    self._tell(notices.left_dead(before, self._plan.settings.url))
            with suppress(TimeoutError):
                async with asyncio.timeout(_OTHERS_S):  # nothing need change when a worker is gone
                    await log.changed()
            await asyncio.sleep(_LOOK_S)

    def _happened(self, event: Event, life: Life) -> None:
        if life.mendable and isinstance(event.data, ev.WorkflowFailed):
            self._fell[life.summary.id] = None
            for oldest in list(islice(self._fell, max(len(self._fell) - _WOKEN_MAX, 0))):
                del self._fell[oldest]
        notice = notices.happening(event, life, revives=self._plan.revive, url=self._plan.settings.url)
        if notice is not None:
            self._tell(notice)

    def _tell_of_others(self, log: Log) -> None:
        """Tell which other workers have come to the log, and which are gone."""
        now_s = time.monotonic()
        if now_s < self._others_looked_s + _OTHERS_S:
            return
        self._others_looked_s = now_s
        others = {one.incarnation: one for one in log.members() if one.pid not in self._own}
        for name in others.keys() - self._others.keys():
            self._tell(notices.shared(others[name].host, others[name].pid))
        for name in self._others.keys() - others.keys():
            self._tell(notices.left(self._others[name].host, self._others[name].pid))
        self._others = others

    # --- what is seen -------------------------------------------------------------------------------------------------

    def _tell(self, notice: Notice) -> None:
        try:
            self._screen.tell(notice)
        except OSError as error:
            self._nobody_looks(error)
        self._news.set()

    def _wrote(self, lines: Sequence[str]) -> None:
        self._screen.worker_lines(lines)
        self._news.set()

    def _nobody_looks(self, error: OSError) -> None:
        self._lost = error
        self._stop.set()

    def _show_state(self, text: str, style: str) -> None:
        self._state = (text, style)
        self._news.set()

    async def _draw(self) -> None:
        if not self._screen.live:
            await asyncio.get_running_loop().create_future()
        while True:
            self._news.clear()
            try:
                self._screen.draw(self._head(), Scene(self._picture, self._running, _now_us(), self._registered))
            except OSError as error:
                self._nobody_looks(error)
                await asyncio.get_running_loop().create_future()
            await self._first(self._news.wait(), timeout=_CLOCK_S)
            await asyncio.sleep(_DRAW_S)

    def _head(self) -> Line:
        (text, style), counts = self._state, self._picture.counts
        told = ", ".join(f"{counts[one]:,} {one}" for one in STYLES if counts[one] > 0)  # type: ignore[index]
        rest = "  ".join(filter(None, (escape(text), told)))
        return Line(f"gasoline dev {escape(self._plan.module)}", rest, title_style="bold", rest_style=style)


def _now_us() -> int:
    return time.time_ns() // 1000


def _is_there(settings: Settings, namespace: str) -> bool:
    """Whether there is a log with that namespace yet. Raises: Misuse: it is none that can be looked at."""
    try:
        return namespace in namespaces(settings)
    except Misuse:
        raise
    except Failure:
        return False
