"""A share of what is open on a log: a process opens it once, whatever number of factories ask for it, and blocks on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from eventsourcing.persistence import DataError, IntegrityError, OperationalError, PersistenceError, ProgrammingError

from gasoline_es.core.ports import StoredView
from gasoline_es.core.storing import Store
from gasoline_es.errors import GasolineError, LogError, RecordTooLarge, StepMisused, StoreConflict
from gasoline_es.log.opening import directory_of
from gasoline_es.persistence.journal import Journal, Selected, Selection, open_journal
from gasoline_es.runtime.lending import Not, NotNow
from gasoline_es.runtime.loop_thread import LoopThread

T = TypeVar("T")
L = TypeVar("L", bound="Lease[Any]")

_REOPEN: Final = "Construct the application again"
_WORK_FOR_A_LOG: Final = ("gasoline-", "asyncio_", "kafka-python", "Dummy-")
"""How threads are called that closing a log waits for: our own, an event loop's pool, kafka-python's, and those of C that call
Python, as librdkafka's do when they have something to say."""


class Opened(Protocol):
    """What is shared: a journal, or the histories of a namespace."""

    @property
    def failed(self) -> bool:
        """Whether nothing works here any more."""
        ...

    async def on_news(self, callback: Callable[[], None], /) -> Callable[[], None]:
        """Call ``callback`` on this loop whenever there may be more events, or never will be again. Returns what ends it."""
        ...


C = TypeVar("C", bound=Opened)


@dataclass(slots=True)
class _Shared:
    loop: LoopThread[Any]
    users: int = 0

    @property
    def usable(self) -> bool:
        return not self.loop.closed and not self.loop.foreign and not self.loop.opened.failed


_Key = tuple[str, str, object]

_lock = threading.Lock()
_shared: dict[_Key, _Shared] = {}
"""By URL, namespace, and what opens it."""


class Lease(Generic[C]):
    """What a factory and its recorders use of it, from any number of threads, until it is closed.

    Every error is one of ``eventsourcing``'s: ``IntegrityError`` for what conflicts, ``DataError`` for what cannot be kept,
    ``OperationalError`` for the log's, ``ProgrammingError`` for calls from where they cannot work.
    """

    def __init__(self, url: str, namespace: str, opening: Callable[[str, str], AbstractAsyncContextManager[C]]) -> None:
        """Open it, if this process has not. Raises: OperationalError."""
        self.closed = False
        self._key: Final = (_canonical(url), namespace, opening)
        self._listeners: dict[Callable[[], None], None] = {}
        """Changed without a lock, by single operations: this may be called wherever Python's collector runs."""
        self._held: Final = _acquire(self._key, opening(url, namespace))
        self._loop: Final[LoopThread[C]] = self._held.loop
        self._hear_no_more: Callable[[], None] | None = None
        try:
            self._hear_no_more = self.call("open", lambda opened: opened.on_news(self._notify))
        except BaseException:
            self.close()
            raise

    def call(self, verb: str, start: Callable[[C], Coroutine[Any, Any, T]]) -> T:
        """Run what ``start`` makes on its loop; return its result once it is there. Raises: PersistenceError."""
        try:
            self._check(verb)
            return self._loop.call(verb, lambda: start(self._loop.opened))
        except GasolineError as error:
            raise translated(error) from error

    def _in_place(self, verb: str, deed: Callable[[C], T]) -> T | NotNow:
        try:
            self._check(verb)
            return self._loop.in_place(verb, deed)
        except GasolineError as error:
            raise translated(error) from error

    def _check(self, verb: str) -> None:
        if self.closed:
            raise LogError(f"`{verb}(…)`: its factory was closed. {_REOPEN}")

    @property
    def opened(self) -> C:
        """What is shared, for what of it does not change."""
        return self._loop.opened

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, on whatever thread, whenever there may be more events, or never will be again."""
        self._listeners[listener] = None

    def unlisten(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    def close(self) -> None:
        """Let go of it; it is closed with its last user. What waits for events hears of it. Idempotent.

        On return it is closed, except on a thread of this library or of a Kafka client, or in its place, or where an
        application is made just now: one that is forgotten closes itself wherever Python's collector finds it, and nothing
        may wait for itself there.
        """
        if self.closed:
            return
        self.closed = True
        ours = threading.current_thread().name.startswith(_WORK_FOR_A_LOG) or self._loop.in_place_here
        if ours or not _lock.acquire(blocking=False):
            threading.Thread(target=self._let_go, name="gasoline-closing", daemon=True).start()
            return
        _lock.release()
        self._let_go()

    def _let_go(self) -> None:
        self._notify()
        with _lock:
            self._held.users -= 1
            last = self._held.users == 0
            if last and _shared.get(self._key) is self._held:
                del _shared[self._key]
        if last:
            self._loop.close()
        elif self._hear_no_more is not None and not self._loop.foreign:
            with suppress(RuntimeError):  # the loop has ended by itself
                self._loop.post(self._hear_no_more)

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()


class JournalLease(Lease[Journal]):
    """A share of an application's journal."""

    def __init__(self, url: str, namespace: str) -> None:
        super().__init__(url, namespace, open_journal)

    def store(self, verb: str, command: Store) -> int:
        """Return the number of the first event that was stored, once all are durable. Raises: PersistenceError."""
        match self.opened.together.store(
            command, lambda deed: self._in_place(verb, lambda journal: deed(journal.store_now))
        ):
            case int(first):
                return first
            case Store() as asked:
                return self.call(verb, lambda journal: journal.store(asked))
            case error:
                raise translated(error) from error

    def look(self, verb: str, question: Callable[[StoredView], T]) -> T:
        """Return what the view answers. Raises: PersistenceError."""
        found = self._in_place(verb, lambda journal: journal.look_now(question))
        return self.call(verb, lambda journal: journal.look(question)) if found is Not.NOW else found

    def select(self, verb: str, question: Callable[[StoredView], Selection]) -> Selected:
        """Return the events that the view answers with. Raises: PersistenceError."""
        found = self._in_place(verb, lambda journal: journal.select_now(question))
        return self.call(verb, lambda journal: journal.select(question)) if found is Not.NOW else found


class Leased(Generic[L]):
    """What works by a lease."""

    def __init__(self, lease: L) -> None:
        self._lease = lease

    def listen(self, event: threading.Event) -> None:
        """Set ``event`` whenever there may be more events, or never will be again."""
        self._lease.listen(event.set)

    def unlisten(self, event: threading.Event) -> None:
        """Do so no more."""
        self._lease.unlisten(event.set)


def translated(error: GasolineError) -> PersistenceError:
    """Return the error of ``eventsourcing`` for one of this library."""
    match error:
        case StoreConflict():
            return IntegrityError(error.message)
        case RecordTooLarge():
            return DataError(error.message)
        case StepMisused():
            return ProgrammingError(error.message)
        case _:  # the log's, and that nobody answers
            return OperationalError(error.message)


def _acquire(key: _Key, opening: AbstractAsyncContextManager[Any]) -> _Shared:
    with _lock:  # also while it opens: who comes second waits, and shares it
        shared = _shared.get(key)
        if shared is None or not shared.usable:
            try:
                shared = _Shared(LoopThread(key[0], opening, _REOPEN, among_tasks=True))
            except GasolineError as error:
                raise translated(error) from error
            if key[0] != "memory:":
                _shared[key] = shared
        shared.users += 1
        return shared


def _canonical(url: str) -> str:
    """Return the same text for all URLs of one log."""
    try:
        return f"file:{os.path.abspath(directory_of(url))}" if url.startswith("file:") else url
    except LogError as error:
        raise translated(error) from error
