"""Group commit: one append at a time; what arrives meanwhile goes into the next.

There is no delay to gather more: an idle log takes the first section at once, a busy one gathers by being busy. A log of one
file takes one append at a time for all partitions of this process (:class:`Appender`), for they share a sync. On one whose
sections are transactions of their own (:attr:`~gasoline_es.log.port.Log.appends_apart`) each partition has appends of its own
(:class:`AppendersApart`): none waits for the slowest of the others.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import GasolineError, LogError, LogFailed
from gasoline_es.log.port import Log, Outcome, Section
from gasoline_es.runtime.batch import Batch
from gasoline_es.runtime.recording import Recording, now_s

_log = EngineLog(__name__)
_T = TypeVar("_T")


class Source(Protocol):
    """Something with a section for the next append: an owned partition, or the process's outgoing commands."""

    def take(self) -> tuple[Section, Batch] | None:
        """Hand over what is to be appended now, if anything."""

    def settled(self, batch: Batch, outcome: Outcome) -> None:
        """Learn the fate of a batch that was taken."""


class Appender:
    """Appends the sections of all sources that asked for it."""

    def __init__(self, log: Log, failed: Callable[[LogError], None], recording: Recording) -> None:
        self._log = log
        self._recording = recording
        self._failed = failed
        self._dirty: dict[Source, None] = {}
        self._idle: asyncio.Future[None] | None = None
        """While nothing is to be appended: set by the first who asks. A bare future, because each append waits for one."""
        self._task: asyncio.Task[None] | None = None
        self._begun = 0
        """How many appends have begun; all but the last have ended, and that one too if ``_ended`` says so."""
        self._ended = 0
        self._flushing: list[tuple[int, asyncio.Future[None]]] = []
        self._held = False
        self._ending = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="gasoline-appender")

    def ask(self, source: Source) -> None:
        """See that the source's section is in the next append."""
        self._dirty[source] = None
        if not self._held:
            self._wake()

    def _wake(self) -> None:
        idle = self._idle
        if idle is not None:
            self._idle = None
            if not idle.done():
                idle.set_result(None)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Its task while it is at work, or waits for work."""
        return [] if self._task is None or self._task.done() else [self._task]

    @property
    def resting(self) -> bool:
        """Whether nothing is being appended, nor is to be."""
        return self._idle is not None and not self._idle.done() and not self._dirty

    def append_now(self, decide: Callable[[], _T]) -> _T:
        """Append what ``decide`` asks for before anything else happens, and return what it returns.

        Only while it is :attr:`resting` and the log :attr:`~Log.ready`. ``decide`` returns its refusals: whatever it raises is
        a bug, and nothing goes on here after one.
        """
        assert self.resting
        self._held = True
        try:
            decided = decide()
            taken = self._take_dirty()
            if taken:
                sections, began_s = [section for _, section, _ in taken], now_s()
                outcomes: Sequence[Outcome]
                try:
                    outcomes = self._log.append_now(sections)
                except Exception as error:
                    outcomes = [_refused(error)] * len(taken)
                self._settle(taken, outcomes, began_s)
        except BaseException as error:  # one too that was thrown into this thread: who knows how much was done
            self._broke(error)
            raise
        finally:
            self._held = False
            if self._dirty:
                self._wake()
        return decided

    async def flush(self) -> None:
        """Wait until what is to be appended now has been, or has failed; not for what comes up meanwhile."""
        future = self.flushed()
        if future is not None:
            await future

    def flushed(self) -> asyncio.Future[None] | None:
        """Do as :meth:`flush` does, as of now; None: there is nothing to wait for."""
        last = self._begun + (1 if self._dirty else 0)
        if self._ended >= last or self._task is None or self._task.done():
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushing.append((last, future))
        return future

    def leave(self, source: Source) -> None:
        """The source will ask no more; what it has asked for is still appended."""

    def end(self) -> None:
        """Stop once nothing is to be appended any more."""
        self._ending = True
        self._wake()

    async def close(self) -> None:
        """Append what is left, then stop."""
        if self._task is None:
            return
        while (self._dirty or self._ended < self._begun) and not self._task.done():
            await self.flush()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def _run(self) -> None:
        create_future = asyncio.get_running_loop().create_future
        while True:
            if not self._dirty:
                if self._ending:
                    return
                self._idle = create_future()
                await self._idle
                continue
            self._begun += 1
            try:
                await self._append_dirty()
            except Exception as error:
                self._broke(error)
                return
            finally:
                self._ended = self._begun
                if self._flushing:
                    self._wake_flushing()

    def _broke(self, error: BaseException) -> None:
        """A bug of ours: nothing decided since may be acknowledged, so the process must not go on with this log."""
        self._failed(LogFailed(f"the appender broke: {error!r}"))
        self._wake_flushing(everybody=True)
        _log.error("the appender broke", exc_info=error)

    def _wake_flushing(self, everybody: bool = False) -> None:
        waiting, self._flushing = self._flushing, []
        for last, future in waiting:
            if not everybody and last > self._ended:
                self._flushing.append((last, future))
            elif not future.done():
                future.set_result(None)

    def _take_dirty(self) -> list[tuple[Source, Section, Batch]]:
        dirty, self._dirty = self._dirty, {}
        taken: list[tuple[Source, Section, Batch]] = []
        for source in dirty:
            handed = source.take()
            if handed is not None:
                taken.append((source, *handed))
        return taken

    async def _append_dirty(self) -> None:
        taken = self._take_dirty()
        if not taken:
            return
        outcomes: Sequence[Outcome]
        sections, began_s = [section for _, section, _ in taken], now_s()
        try:
            outcomes = await self._log.append(sections)
        except Exception as error:
            outcomes = [_refused(error)] * len(taken)
        with CollectionHeld():
            self._settle(taken, outcomes, began_s)

    def _settle(
        self, taken: Sequence[tuple[Source, Section, Batch]], outcomes: Sequence[Outcome], began_s: float
    ) -> None:
        """Tell everybody what became of what was appended."""
        self._recording.appended([section for _, section, _ in taken], outcomes, began_s)
        broken: Exception | None = None
        for (source, _, batch), outcome in zip(taken, outcomes, strict=True):
            try:
                source.settled(batch, outcome)
            except Exception as error:
                broken = broken or error  # the others' callers still learn what became of their sections
        if broken is not None:
            failed = LogFailed(f"the engine broke: {broken!r}")
            for _, _, batch in taken:
                for done in batch.done:
                    done(failed)  # who was told already is not told again
            raise broken
        for outcome in outcomes:
            if isinstance(outcome, LogFailed):
                self._failed(outcome)
                break


class AppendersApart:
    """An appender for each source, behind what :class:`Appender` offers for all of them together."""

    def __init__(self, log: Log, failed: Callable[[LogError], None], recording: Recording) -> None:
        self._make = partial(Appender, log, failed, recording)
        self._of: dict[Source, Appender] = {}
        self._ending: set[Appender] = set()
        """Of sources that left while something of theirs was being appended, until the next look."""

    def start(self) -> None:
        """Nothing: each begins with the first that its source asks for."""

    def ask(self, source: Source) -> None:
        """See that the source's section is in the next append of its own."""
        appender = self._of.get(source)
        if appender is None:
            appender = self._of[source] = self._make()
            appender.start()
        appender.ask(source)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Those that are at work, or wait for work."""
        return [task for one in (*self._of.values(), *self._ending) for task in one.tasks]

    @property
    def resting(self) -> bool:
        """Never: nothing is appended here in the event loop's place."""
        return False

    def append_now(self, decide: Callable[[], _T]) -> _T:
        raise AssertionError("only an appender that is resting appends at once")

    def leave(self, source: Source) -> None:
        """The source will ask no more; what it has asked for is still appended."""
        self._ending = {one for one in self._ending if one.tasks}
        appender = self._of.pop(source, None)
        if appender is not None:
            appender.end()
            self._ending.add(appender)

    async def flush(self) -> None:
        """Wait until what is to be appended now has been, or has failed; not for what comes up meanwhile."""
        waiting = [future for one in (*self._of.values(), *self._ending) if (future := one.flushed()) is not None]
        if waiting:
            await asyncio.wait(waiting)

    async def close(self) -> None:
        """Append what is left, then stop."""
        await asyncio.gather(*(one.close() for one in (*self._of.values(), *self._ending)))


Appending = Appender | AppendersApart


def make_appender(log: Log, failed: Callable[[LogError], None], recording: Recording) -> Appending:
    """Return the appender that suits the log. ``failed``: told when the log is of no use any more."""
    return (AppendersApart if log.appends_apart else Appender)(log, failed, recording)


def _refused(error: Exception) -> LogError:
    """Return what an error of a whole append means for each of its sections."""
    if isinstance(error, LogError):
        return error
    if isinstance(error, GasolineError):
        return LogFailed(f"the append was refused as a whole: {error}")
    if not isinstance(error, OSError):
        _log.error("the log broke", exc_info=error)
    return LogFailed(f"the append failed: {error!r}")


class CollectionHeld:
    """Holds Python's cyclic garbage collector while a group is settled, until the activities it starts have had a turn.

    A large group makes ten thousand objects in a few milliseconds, nearly all of which live on while they wait for
    activities. The collector would go through them a dozen times, and count each time towards going through everything
    there is. Once activities that end at once have ended, most of those objects are gone without it.
    """

    __slots__ = ("_holds",)

    def __init__(self) -> None:
        self._holds = False

    def __enter__(self) -> None:
        self._holds = gc.isenabled()
        if self._holds:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._holds:
            # Behind what the group has started, which the loop runs in order.
            asyncio.get_running_loop().call_soon(self.release)

    def release(self) -> None:
        """Let the collector go on."""
        if self._holds:
            self._holds = False
            gc.enable()

    def __del__(self) -> None:
        self.release()  # a loop that is closed drops what it was to call
