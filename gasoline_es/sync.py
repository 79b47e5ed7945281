"""The client for code that is not async: the same verbs, blocking (api.md, "Outside"). Made by ``Gasoline.open_sync``.

No verb is written twice: each is taken from the asynchronous client with its signature, its types and its docstring, and
a test holds that none is missing.
"""

# The verbs are made by functions that stand outside of the classes whose fields they use.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import builtins
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast, overload

from gasoline_es.client import Client
from gasoline_es.core.durations import duration_us
from gasoline_es.core.tags import Tags
from gasoline_es.definitions import Workflow
from gasoline_es.errors import GasolineError
from gasoline_es.handles import WorkflowHandle
from gasoline_es.messages import Message, Received
from gasoline_es.messaging import BUFFER
from gasoline_es.runtime.loop_thread import LoopThread
from gasoline_es.scheduling import ScheduleHandle
from gasoline_es.subscribing import Subscription

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
O = TypeVar("O")  # noqa: E741  # the output
M = TypeVar("M", bound=Message)
H = TypeVar("H", bound=WorkflowHandle[Any] | ScheduleHandle[Any])

LISTED_AT_ONCE: Final = 50
"""So many workflows ``list`` fetches with one visit to the event loop."""


class _Blocking:
    """What has verbs that block: the asynchronous object that does the work, and the loop where it does it."""

    __slots__ = ("_asynchronous", "_loop")

    def __init__(self, loop: LoopThread[Any], asynchronous: Any) -> None:
        self._loop = loop
        self._asynchronous: Any = asynchronous


@overload
def _blocking(
    verb: Callable[Concatenate[WorkflowHandle[O], P], Coroutine[Any, Any, WorkflowHandle[O]]], /
) -> Callable[Concatenate[SyncWorkflowHandle[O], P], SyncWorkflowHandle[O]]: ...
@overload
def _blocking(
    verb: Callable[Concatenate[WorkflowHandle[O], P], Coroutine[Any, Any, T]], /
) -> Callable[Concatenate[SyncWorkflowHandle[O], P], T]: ...
@overload
def _blocking(
    verb: Callable[Concatenate[ScheduleHandle[O], P], Coroutine[Any, Any, WorkflowHandle[O]]], /
) -> Callable[Concatenate[SyncScheduleHandle[O], P], SyncWorkflowHandle[O]]: ...
@overload
def _blocking(
    verb: Callable[Concatenate[ScheduleHandle[O], P], Coroutine[Any, Any, T]], /
) -> Callable[Concatenate[SyncScheduleHandle[O], P], T]: ...
@overload
def _blocking(
    verb: Callable[Concatenate[Client, P], Coroutine[Any, Any, ScheduleHandle[O]]], /
) -> Callable[Concatenate[SyncGasoline, P], SyncScheduleHandle[O]]: ...
@overload
def _blocking(
    verb: Callable[Concatenate[Client, P], Coroutine[Any, Any, WorkflowHandle[O]]], /
) -> Callable[Concatenate[SyncGasoline, P], SyncWorkflowHandle[O]]: ...
@overload
def _blocking(
    verb: Callable[Concatenate[Client, P], Coroutine[Any, Any, None]], /
) -> Callable[Concatenate[SyncGasoline, P], None]: ...
@overload
def _blocking(
    verb: Callable[Concatenate[Client, P], Coroutine[Any, Any, WorkflowHandle[O] | None]], /
) -> Callable[Concatenate[SyncGasoline, P], SyncWorkflowHandle[O] | None]: ...
@overload
def _blocking(
    verb: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]], /
) -> Callable[Concatenate[SyncGasoline, P], T]: ...
def _blocking(verb: Callable[..., Coroutine[Any, Any, Any]], /) -> Callable[..., Any]:
    """Make a verb that blocks of one that is awaited; where that gives a handle, this gives one that blocks."""
    name = f"gasoline.{verb.__name__}"

    @functools.wraps(verb)
    def blocking(self: _Blocking, /, *args: Any, **kwargs: Any) -> Any:
        given: Any = self._loop.call(name, lambda: verb(self._asynchronous, *args, **kwargs))
        if isinstance(given, WorkflowHandle):
            return SyncWorkflowHandle(self._loop, cast(Any, given))
        return SyncScheduleHandle(self._loop, cast(Any, given)) if isinstance(given, ScheduleHandle) else given

    return _told(blocking, verb)


def _iterating(
    verb: Callable[Concatenate[Client, P], AsyncIterator[T]], /, at_once: int = 1
) -> Callable[Concatenate[SyncGasoline, P], Iterator[T]]:
    """The same for a verb that yields: it fetches as the caller goes on, so many ``at_once``."""
    name = f"gasoline.{verb.__name__}"

    async def some(items: AsyncIterator[T]) -> tuple[builtins.list[T], Exception | None]:
        fetched: builtins.list[T] = []
        try:
            async for item in items:
                fetched.append(item)
                if len(fetched) == at_once:
                    break
        except Exception as error:
            return fetched, error  # what came before it is given first
        return fetched, None

    def walked(loop: LoopThread[Any], items: AsyncIterator[T]) -> Iterator[T]:
        while True:
            fetched, error = loop.call(name, lambda: some(items))
            yield from fetched
            if error is not None:
                raise error
            if not fetched:
                return

    @functools.wraps(verb)
    def iterating(self: SyncGasoline, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        self._loop.check(name)
        return walked(self._loop, verb(self._asynchronous, *args, **kwargs))

    return _told(iterating, verb)


def _told(made: F, verb: Callable[..., Any]) -> F:
    """Let ``help`` show what the verb returns here."""
    signature = inspect.signature(verb)
    returns = str(signature.return_annotation).removeprefix("Async")
    for handle in ("WorkflowHandle", "ScheduleHandle"):
        returns = returns.replace(handle, f"Sync{handle}")
    cast(Any, made).__signature__ = signature.replace(return_annotation=returns)
    return made


class _BlockingHandle(_Blocking, Generic[H]):
    """A handle whose verbs block; it shows itself as ``H`` does, which does the work."""

    __slots__ = ()

    def __init__(self, loop: LoopThread[Any], handle: H) -> None:
        super().__init__(loop, handle)

    def __repr__(self) -> str:
        return repr(self._asynchronous)


class SyncWorkflowHandle(_BlockingHandle[WorkflowHandle[O]], Generic[O]):
    """A workflow by id, with the type of its output: a :class:`WorkflowHandle` whose verbs block."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The workflow's id."""
        workflow_id: str = self._asynchronous.id
        return workflow_id

    output = _blocking(WorkflowHandle[O].output)
    signal = _blocking(WorkflowHandle[O].signal)
    discard_signal = _blocking(WorkflowHandle[O].discard_signal)
    get = _blocking(WorkflowHandle[O].get)
    history = _blocking(WorkflowHandle[O].history)
    wake = _blocking(WorkflowHandle[O].wake)
    cancel = _blocking(WorkflowHandle[O].cancel)
    silence = _blocking(WorkflowHandle[O].silence)
    recover = _blocking(WorkflowHandle[O].recover)
    rerun = _blocking(WorkflowHandle[O].rerun)


class SyncScheduleHandle(_BlockingHandle[ScheduleHandle[O]], Generic[O]):
    """A schedule by name, with the type of its workflows' output: a :class:`ScheduleHandle` whose verbs block."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The schedule's name."""
        name: str = self._asynchronous.name
        return name

    get = _blocking(ScheduleHandle[O].get)
    pause = _blocking(ScheduleHandle[O].pause)
    resume = _blocking(ScheduleHandle[O].resume)
    trigger = _blocking(ScheduleHandle[O].trigger)
    remove = _blocking(ScheduleHandle[O].remove)
    history = _blocking(ScheduleHandle[O].history)


class SyncSubscription(_Blocking, Generic[M]):
    """The messages of one kind and topic from the moment it is entered, one after the other: a blocking Subscription.

        with gasoline.subscribe(Moved, topic={"map": "forest"}) as moves:
            for received in moves:
                print(received.message.x)

    Entering the block subscribes, as a ``for`` does that comes first. The ``for`` ends when the subscription is closed, by
    leaving the block or by ``close`` from any thread; with ``timeout`` also when no message has come for so long, and then
    another ``for`` goes on with the next message. Several threads may iterate: each message goes to one of them. What waits in
    memory, and what is lost, is as of :class:`Subscription`.

    Iterating raises: LogError: the log was closed, failed or is damaged, and nothing more will come. GasolineError: in a forked
    child, or in the thread of a running event loop.
    """

    __slots__ = ("_closed", "_timeout_s")

    def __init__(self, loop: LoopThread[Any], subscription: Subscription[M], timeout_s: float | None) -> None:
        super().__init__(loop, subscription)
        self._timeout_s = timeout_s
        self._closed = False

    @property
    def lost(self) -> int:
        """How many messages were dropped because nobody took them in time."""
        lost: int = self._asynchronous.lost
        return lost

    @property
    def closed(self) -> bool:
        """Whether it was closed: a ``for`` that ended for want of messages can go on otherwise."""
        return self._closed

    def __enter__(self) -> Self:
        if self._closed:
            raise GasolineError("this subscription was closed: make another with `gasoline.subscribe(…)`")
        self._loop.call("gasoline.subscribe", self._asynchronous.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, wherever it waits; from any thread, and again. What was not taken yet is dropped.

        In a forked child it does nothing: what was subscribed is the parent's.
        """
        if self._loop.foreign:
            return
        self._closed = True
        with suppress(RuntimeError):  # the log is closed, and with it every subscription
            self._loop.post(self._asynchronous.end)

    def __iter__(self) -> Self:
        if not self._closed:
            self._loop.call("gasoline.subscribe", self._begun)
        return self

    def __next__(self) -> Received[M]:
        received = None if self._closed else self._loop.call("gasoline.subscribe", self._next)
        if received is None:
            raise StopIteration
        return received

    async def _begun(self) -> None:
        if not self._closed:
            self._asynchronous.__aiter__()

    async def _next(self) -> Received[M] | None:
        """Return the next message; None: it was closed, or none has come in time, and then none was taken."""
        if self._closed:
            return None  # before this began, so that there may be nothing yet that the close could end
        with suppress(StopAsyncIteration, TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                received: Received[M] = await anext(self._asynchronous)
                return received
        return None


class SyncProjectionView(_Blocking):
    """The tables of a projection, to read: see ``projections.ProjectionView``. Made by ``gasoline.projection(…)``."""

    __slots__ = ()

    def snapshot(self) -> Any:
        """Open the tables as of now: ``.db`` to read, ``.positions`` and ``.meta`` to know what is in them. Close it.

        Raises: ProjectionNotBuilt: nobody has built it yet, or it is being built and there is nothing older.
        """
        return self._asynchronous.snapshot()

    def read(self) -> AbstractContextManager[Any]:
        """Give a connection that shows the tables as of one moment, for as long as the block lasts."""
        read: AbstractContextManager[Any] = self._asynchronous.read()
        return read

    def wait_for(
        self, *targets: SyncWorkflowHandle[Any] | str | Mapping[Any, Any], timeout: float | timedelta | None = None
    ) -> None:
        """Return once the tables hold what is durable now of these workflows (handles, or ids); of all, if none is given.

        A target may also be positions, such as another snapshot's.

        Raises: TimeoutError: not within ``timeout`` seconds; it says how far they are.
        """
        wait = functools.partial(self._asynchronous.wait_for, *targets, timeout=timeout)
        self._loop.call("projection.wait_for", wait)


class SyncGasoline(_Blocking):
    """A log opened for one namespace, for code that is not async: the verbs of :class:`Gasoline`, blocking.

    Open from the start: use it in a ``with`` block, or ``close`` it at the end. Any number of threads may call at once; the
    calls of one thread are decided in the order they are made. Errors are those of ``Gasoline``'s verbs; besides, every
    verb raises GasolineError in a forked child and in the thread of a running event loop, and LogError once it is closed.
    """

    __slots__ = ()

    def __init__(self, loop: LoopThread[Client]) -> None:
        super().__init__(loop, loop.opened)

    def __repr__(self) -> str:
        return f"<SyncGasoline {self._loop.url}{', closed' if self._loop.closed else ''}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("worker", "run_worker"):
                raise AttributeError(
                    "a SyncGasoline runs no worker: it handles SIGTERM, which only a main thread can, and its activities would "
                    "share this event loop with every call. It is a program of its own: `async with Gasoline.open(…) as "
                    "gasoline: await gasoline.run_worker([…])`"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Append what is left and close the log; from any thread, and again. A call under way ends with a LogError.

        In a forked child it does nothing: what was opened is the parent's. A program that ends without it loses nothing
        that a call has returned.
        """
        self._loop.close()

    def handle(self, workflow_id: str, workflow: Workflow[Any, O]) -> SyncWorkflowHandle[O]:
        """Return a handle for an id. Whether there is such a workflow shows at first use."""
        return SyncWorkflowHandle(self._loop, self._asynchronous.handle(workflow_id, workflow))

    def schedule_handle(self, name: str, workflow: Workflow[Any, O]) -> SyncScheduleHandle[O]:
        """Return a handle for the schedule of a name. Whether there is one shows at first use."""
        return SyncScheduleHandle(self._loop, self._asynchronous.schedule_handle(name, workflow))

    def subscribe(
        self,
        kind: type[M],
        *,
        topic: Tags | None = None,
        buffer: int = BUFFER,
        timeout: float | timedelta | None = None,
    ) -> SyncSubscription[M]:
        """Give the messages of a kind whose topics contain these tags, as they come: see :class:`SyncSubscription`.

        ``buffer``: so many wait in memory for who iterates, before the oldest are dropped. ``timeout``: iterating ends when
        no message has come for so many seconds, so that a thread can look after something else; None waits for ever.

        Raises: DefinitionError: that is no kind. InvalidTags. ValueError, TypeError: ``buffer`` is no whole number of at least
            1, ``timeout`` no time. LogError: it was closed.
        """

        async def made() -> Subscription[M]:
            subscription: Subscription[M] = self._asynchronous.subscribe(kind, topic=topic, buffer=buffer)
            return subscription

        timeout_s = None if timeout is None else duration_us(timeout, "timeout") / 1e6
        return SyncSubscription(self._loop, self._loop.call("gasoline.subscribe", made), timeout_s)

    def projection(self, projection: Any, *, store: str | None = None) -> SyncProjectionView:
        """Return the tables of a projection, to read. ``store``: where they are, as of a worker.

        Raises: DefinitionError: it is no projection. ProjectionError: the URL is of no store. ExtraMissing.
        """

        async def made() -> Any:
            return self._asynchronous.projection(projection, store=store)

        return SyncProjectionView(self._loop, self._loop.call("gasoline.projection", made))

    dispatch = _blocking(Client.dispatch)
    signal = _blocking(Client.signal)
    signal_many = _blocking(Client.signal_many)
    discard_signal = _blocking(Client.discard_signal)
    find = _blocking(Client.find)
    get = _blocking(Client.get)
    counts = _blocking(Client.counts)
    history = _blocking(Client.history)
    wake = _blocking(Client.wake)
    cancel = _blocking(Client.cancel)
    silence = _blocking(Client.silence)
    revive = _blocking(Client.revive)
    prune_history = _blocking(Client.prune_history)
    recover = _blocking(Client.recover)
    rerun = _blocking(Client.rerun)
    message = _blocking(Client.message)
    tail = _blocking(Client.tail)
    operation = _blocking(Client.operation)
    schedule = _blocking(Client.schedule)
    schedules = _iterating(Client.schedules, at_once=LISTED_AT_ONCE)
    list = _iterating(Client.list, at_once=LISTED_AT_ONCE)  # last: it hides the builtin from here on


__all__ = ["SyncGasoline", "SyncProjectionView", "SyncScheduleHandle", "SyncSubscription", "SyncWorkflowHandle"]
