"""The client for code that is not async: the same verbs, blocking (api.md, "Outside"). Made by ``Gasoline.open_sync``.

No verb is written twice: each is taken from the asynchronous client with its signature, its types and its docstring, and
a test holds that none is missing.
"""

# The verbs are made by functions that stand outside of the classes whose fields they use.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast, overload

from gasoline_es.client import Client
from gasoline_es.definitions import Workflow
from gasoline_es.handles import WorkflowHandle
from gasoline_es.runtime.loop_thread import LoopThread
from gasoline_es.scheduling import ScheduleHandle

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
O = TypeVar("O")  # noqa: E741  # the output

LISTED_AT_ONCE: Final = 50
"""So many workflows ``list`` fetches with one visit to the event loop."""


class _Blocking:
    """What has verbs that block: the asynchronous object that does the work, and the loop where it does it."""

    __slots__ = ("_asynchronous", "_loop")
    _asynchronous: Any
    _loop: LoopThread[Any]


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


class SyncWorkflowHandle(_Blocking, Generic[O]):
    """A workflow by id, with the type of its output: a :class:`WorkflowHandle` whose verbs block."""

    __slots__ = ()

    def __init__(self, loop: LoopThread[Any], handle: WorkflowHandle[O]) -> None:
        self._loop = loop
        self._asynchronous = handle

    def __repr__(self) -> str:
        return repr(self._asynchronous)

    @property
    def id(self) -> str:
        """The workflow's id."""
        workflow_id: str = self._asynchronous.id
        return workflow_id

    output = _blocking(WorkflowHandle[O].output)
    signal = _blocking(WorkflowHandle[O].signal)
    get = _blocking(WorkflowHandle[O].get)
    history = _blocking(WorkflowHandle[O].history)
    wake = _blocking(WorkflowHandle[O].wake)
    cancel = _blocking(WorkflowHandle[O].cancel)
    silence = _blocking(WorkflowHandle[O].silence)
    recover = _blocking(WorkflowHandle[O].recover)
    rerun = _blocking(WorkflowHandle[O].rerun)


class SyncScheduleHandle(_Blocking, Generic[O]):
    """A schedule by name, with the type of its workflows' output: a :class:`ScheduleHandle` whose verbs block."""

    __slots__ = ()

    def __init__(self, loop: LoopThread[Any], handle: ScheduleHandle[O]) -> None:
        self._loop = loop
        self._asynchronous = handle

    def __repr__(self) -> str:
        return repr(self._asynchronous)

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


class SyncGasoline(_Blocking):
    """A log opened for one namespace, for code that is not async: the verbs of :class:`Gasoline`, blocking.

    Open from the start: use it in a ``with`` block, or ``close`` it at the end. Any number of threads may call at once; the
    calls of one thread are decided in the order they are made. Errors are those of ``Gasoline``'s verbs; besides, every
    verb raises GasolineError in a forked child and in the thread of a running event loop, and LogError once it is closed.
    """

    __slots__ = ()

    def __init__(self, loop: LoopThread[Client]) -> None:
        self._loop = loop
        self._asynchronous = loop.opened

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
            if name == "subscribe":
                raise AttributeError(
                    "a SyncGasoline has no subscribers: messages come while others do something, so they are for code that is "
                    "async, `async with Gasoline.open(…) as gasoline, gasoline.subscribe(…) as messages: …`. For the newest "
                    "message of a topic call `gasoline.tail(…)`"
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

    dispatch = _blocking(Client.dispatch)
    signal = _blocking(Client.signal)
    signal_many = _blocking(Client.signal_many)
    find = _blocking(Client.find)
    get = _blocking(Client.get)
    history = _blocking(Client.history)
    wake = _blocking(Client.wake)
    cancel = _blocking(Client.cancel)
    silence = _blocking(Client.silence)
    revive = _blocking(Client.revive)
    recover = _blocking(Client.recover)
    rerun = _blocking(Client.rerun)
    message = _blocking(Client.message)
    tail = _blocking(Client.tail)
    operation = _blocking(Client.operation)
    schedule = _blocking(Client.schedule)
    schedules = _iterating(Client.schedules, at_once=LISTED_AT_ONCE)
    list = _iterating(Client.list, at_once=LISTED_AT_ONCE)  # last: it hides the builtin from here on


__all__ = ["SyncGasoline", "SyncScheduleHandle", "SyncWorkflowHandle"]
