"""What users write once: activities and workflows, made of plain functions by decorators (api.md, "Definitions").

    @activity(max_attempts=10)
    async def charge(ctx: ActivityContext, order: Order) -> Receipt: ...

    @workflow
    async def fulfil(ctx: WorkflowContext, order: Order) -> Receipt:
        return await ctx.activity(charge, order)

A decorator checks everything that can be checked and returns an object, so that the function cannot be called by
mistake where the engine should call it; the function stays at hand as ``.fn``. Nothing is registered globally: a worker
is given its workflows, and activities are reached through their bodies.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Coroutine
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Protocol, TypeAlias, TypeVar, overload

from gasoline_es.core.durations import duration_us
from gasoline_es.core.ids import check_name
from gasoline_es.core.retry import Backoff
from gasoline_es.core.steps import ActivityPlan
from gasoline_es.core.values import Codec
from gasoline_es.errors import DefinitionError
from gasoline_es.signatures import Signature, describe, frame_at, place_of

if TYPE_CHECKING:
    from gasoline_es.activity_context import ActivityContext
    from gasoline_es.context import WorkflowContext

I = TypeVar("I")  # noqa: E741  # the input, next to O, the output
O = TypeVar("O", covariant=True)  # noqa: E741

Seconds: TypeAlias = float | timedelta

MAX_ATTEMPTS: Final = 5
TIMEOUT_S: Final = 30.0
BACKOFF: Final = Backoff(base=0.5, doublings=8)


class Prune(Enum):
    """What may be removed of a completed workflow once its age has passed (semantics.md §1)."""

    ALL = "all"
    """State and history."""
    HISTORY = "history"
    """The history; state, input and output stay."""
    NONE = "none"
    """Nothing."""


class Definition(Generic[I, O]):
    """A function under a name, with the codecs of what it takes and gives. Made by a decorator, never changed after."""

    kind: ClassVar[str]

    __slots__ = ("__weakref__", "_fn", "_signature", "file", "input_codec", "line", "name", "output_codec", "parameter")

    input_codec: Codec[Any]
    """How inputs are kept. Raises: DefinitionError while the annotation cannot be resolved."""
    output_codec: Codec[Any]
    """How outputs are kept. Raises: DefinitionError while the annotation cannot be resolved."""
    parameter: str
    """What the function calls its input: where paths in messages begin, as ``order.items[3]``."""

    def __init__(self, fn: Callable[..., Any], name: str | None, frame: types.FrameType) -> None:
        self._fn = fn
        self.file, self.line = place_of(fn)
        self.name = _checked_name(self.kind, fn, name)
        self._signature = Signature(fn, describe(self.kind, fn, self.name), frame)
        self.parameter = self._signature.parameter

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called while a slot is empty. The codecs are plain slots, because every step reads them, and are filled at
            # first use, because the types a function names may be defined after it.
            if name not in {"input_codec", "output_codec"}:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            given, made = self._signature.codecs()
            self.input_codec, self.output_codec = (
                given.named(f"input of {self.what}"),
                made.named(f"output of {self.what}"),
            )
            return getattr(self, name)

    @property
    def what(self) -> str:
        """The definition and its place, for messages: ``activity charge (app/orders.py:12)``."""
        return self._signature.what

    @property
    def origin(self) -> tuple[str, str]:
        """The file and the qualified name of the function: equal for the same code imported twice."""
        return (self.file, inspect.unwrap(self._fn).__qualname__)

    def __repr__(self) -> str:
        return f"<{self.what}>"


class Activity(Definition[I, O]):
    """One side effect, retried on its own. ``await ctx.activity(charge, order)`` runs it (semantics.md §4).

    ``timeout_us`` bounds one attempt; ``max_attempts`` counts the first one too.
    """

    kind = "activity"

    __slots__ = (
        "backoff",
        "heartbeat_timeout_us",
        "is_async",
        "max_attempts",
        "max_concurrency",
        "plan",
        "retry_on_timeout",
        "timeout_us",
    )

    plan: ActivityPlan
    """What every step of this activity carries. Raises: DefinitionError while the annotation cannot be resolved."""

    def __init__(
        self,
        fn: Callable[[ActivityContext, I], Any],
        name: str | None,
        frame: types.FrameType,
        *,
        max_attempts: int,
        timeout: Seconds,
        retry_on_timeout: bool,
        backoff: Backoff,
        heartbeat_timeout: Seconds | None,
        max_concurrency: int | None,
    ) -> None:
        check_function("activity", fn)
        super().__init__(fn, name, frame)
        self.is_async: bool = inspect.iscoroutinefunction(fn)
        self.max_attempts = checked_attempts(max_attempts, self.what, DefinitionError)
        self.timeout_us = checked_timeout(timeout, self.what, DefinitionError)
        if not isinstance(retry_on_timeout, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{self.what}: retry_on_timeout is {retry_on_timeout!r}; write True or False.")
        if not isinstance(backoff, Backoff):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"{self.what}: backoff is {backoff!r}; write `backoff=Backoff(base=0.5, doublings=8)` (base in "
                "seconds)."
            )
        self.retry_on_timeout = retry_on_timeout
        self.backoff = backoff
        if max_concurrency is not None and (type(max_concurrency) is not int or max_concurrency < 1):
            raise DefinitionError(
                f"{self.what}: max_concurrency is {max_concurrency!r}; write how many of it may run at a time in one worker, "
                "a whole number of at least 1, or None for no limit of its own."
            )
        self.max_concurrency = max_concurrency
        self.heartbeat_timeout_us = (
            None
            if heartbeat_timeout is None
            else checked_timeout(heartbeat_timeout, self.what, DefinitionError, "heartbeat_timeout")
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "plan":
                return super().__getattr__(name)
            self.plan = ActivityPlan(
                self.name,
                self,
                self.input_codec.encode,
                self.parameter,
                self.output_codec.decode,
                self.max_attempts,
                self.timeout_us,
                self.retry_on_timeout,
                self.backoff.base_us,
                self.backoff.doublings,
                self.heartbeat_timeout_us,
            )
            return self.plan

    @property
    def fn(self) -> Callable[[ActivityContext, I], Any]:
        """The plain function, for unit tests: ``charge.fn(ctx, order)``."""
        return self._fn

    if not TYPE_CHECKING:  # Hidden, so that both checkers report the call themselves.

        def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Refuse: an activity called as a function would be neither recorded nor retried."""
            written = self._fn.__name__
            wait = "await " if self.is_async else ""
            raise DefinitionError(
                f"{self.what} was called directly, which would neither record nor retry it. In a workflow's body write "
                f"`await ctx.activity({written}, …)`; in a unit test write `{wait}{written}.fn(ctx, …)`."
            )


class AsyncActivity(Activity[I, O]):
    """An activity written as ``async def``: runs on the worker's event loop."""

    __slots__ = ()

    @property
    def fn(self) -> Callable[[ActivityContext, I], Coroutine[Any, Any, O]]:
        """The plain function, for unit tests: ``await charge.fn(ctx, order)``."""
        return self._fn


class ThreadActivity(Activity[I, O]):
    """An activity written as ``def``: runs in a thread of the worker."""

    __slots__ = ()

    @property
    def fn(self) -> Callable[[ActivityContext, I], O]:
        """The plain function, for unit tests: ``charge.fn(ctx, order)``."""
        return self._fn


class Workflow(Definition[I, O]):
    """A durable async function made of steps (semantics.md §1). ``gasoline.dispatch(fulfil, order)`` starts one."""

    kind = "workflow"

    __slots__ = ("prune",)

    def __init__(
        self,
        fn: Callable[[WorkflowContext, I], Coroutine[Any, Any, O]],
        name: str | None,
        frame: types.FrameType,
        *,
        prune: Prune,
    ) -> None:
        check_function("workflow", fn)
        super().__init__(fn, name, frame)
        if not inspect.iscoroutinefunction(fn):
            raise DefinitionError(
                f"{self.what} is not `async def`. Write `async def {fn.__name__}(ctx, …)` and await its steps; put "
                "blocking work into an activity, which may be a plain `def`."
            )
        if not isinstance(prune, Prune):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"{self.what}: prune is {prune!r}; write Prune.ALL, Prune.HISTORY or Prune.NONE (from gasoline_es)."
            )
        self.prune = prune

    @property
    def fn(self) -> Callable[[WorkflowContext, I], Coroutine[Any, Any, O]]:
        """The plain function: the body the engine drives."""
        return self._fn

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Refuse: a body called as a function would record nothing."""
            written = self._fn.__name__
            raise DefinitionError(
                f"{self.what} was called directly, which would record nothing. To start one write "
                f"`await gasoline.dispatch({written}, …)`; in a unit test write `await {written}.fn(ctx, …)`."
            )


class ActivityDecorator(Protocol):
    """What ``@activity(…)`` with keywords gives."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[[ActivityContext, I], Coroutine[Any, Any, O]], /
    ) -> AsyncActivity[I, O]: ...
    @overload
    def __call__(self, fn: Callable[[ActivityContext, I], O], /) -> ThreadActivity[I, O]: ...


class WorkflowDecorator(Protocol):
    """What ``@workflow(…)`` with keywords gives."""

    def __call__(self, fn: Callable[[WorkflowContext, I], Coroutine[Any, Any, O]], /) -> Workflow[I, O]: ...


@overload
def activity(  # type: ignore[overload-overlap]
    fn: Callable[[ActivityContext, I], Coroutine[Any, Any, O]], /
) -> AsyncActivity[I, O]: ...
@overload
def activity(fn: Callable[[ActivityContext, I], O], /) -> ThreadActivity[I, O]: ...
@overload
def activity(
    name: str | None = None,
    *,
    max_attempts: int = MAX_ATTEMPTS,
    timeout: Seconds = TIMEOUT_S,
    retry_on_timeout: bool = True,
    backoff: Backoff = BACKOFF,
    heartbeat_timeout: Seconds | None = None,
    max_concurrency: int | None = None,
) -> ActivityDecorator: ...
def activity(
    name: Any = None,
    *,
    max_attempts: int = MAX_ATTEMPTS,
    timeout: Seconds = TIMEOUT_S,
    retry_on_timeout: bool = True,
    backoff: Backoff = BACKOFF,
    heartbeat_timeout: Seconds | None = None,
    max_concurrency: int | None = None,
) -> Any:
    """Make an activity of ``async def fn(ctx, input)``, or of a plain ``def``, which then runs in a thread.

    ``name``: what the history says, ``[a-z0-9_]+``; the function's name by default. ``timeout``: seconds (or a
    timedelta) one attempt may take. ``max_attempts``: at least 1, the first one included. ``retry_on_timeout=False``: a
    timed-out attempt is the last one. ``backoff``: how long to wait between attempts (semantics.md §4).
    ``heartbeat_timeout``: an attempt that calls ``ctx.heartbeat()`` less often than that has timed out (None: no such limit).
    ``max_concurrency``: so many attempts of it run at a time in one worker (None: as many as the worker runs); the others
    wait for their turn, which counts towards no timeout.

    Raises: DefinitionError when the function or a setting can never work; the message names the place and the fix.
    """

    def decorate(fn: Callable[..., Any], frame: types.FrameType, name: str | None) -> Activity[Any, Any]:
        is_async = inspect.iscoroutinefunction(fn)
        made: type[Activity[Any, Any]] = AsyncActivity[Any, Any] if is_async else ThreadActivity[Any, Any]
        return made(
            fn,
            name,
            frame,
            max_attempts=max_attempts,
            timeout=timeout,
            retry_on_timeout=retry_on_timeout,
            backoff=backoff,
            heartbeat_timeout=heartbeat_timeout,
            max_concurrency=max_concurrency,
        )

    if name is None or isinstance(name, str):
        given: str | None = name

        def decorator(fn: Callable[..., Any]) -> Activity[Any, Any]:
            return decorate(fn, frame_at(1), given)

        return decorator
    return decorate(name, frame_at(1), None)


@overload
def workflow(fn: Callable[[WorkflowContext, I], Coroutine[Any, Any, O]], /) -> Workflow[I, O]: ...
@overload
def workflow(name: str | None = None, *, prune: Prune = Prune.ALL) -> WorkflowDecorator: ...
def workflow(name: Any = None, *, prune: Prune = Prune.ALL) -> Any:
    """Make a workflow of ``async def fn(ctx, input)``.

    ``name``: what the log says, ``[a-z0-9_]+``; the function's name by default. Renaming the function of a workflow
    that is running needs ``name=`` with the old one. ``prune``: what may go once it is complete.

    Raises: DefinitionError when the function or a setting can never work; the message names the place and the fix.
    """
    if name is None or isinstance(name, str):
        given: str | None = name

        def decorator(fn: Callable[[WorkflowContext, Any], Coroutine[Any, Any, Any]]) -> Workflow[Any, Any]:
            return Workflow(fn, given, frame_at(1), prune=prune)

        return decorator
    return Workflow(name, None, frame_at(1), prune=prune)


def checked_attempts(value: int, what: str, refusal: type[Exception]) -> int:
    """Give ``max_attempts`` back if it is a whole number of at least 1, else raise ``refusal`` with the fix."""
    if type(value) is not int or value < 1:
        raise refusal(
            f"{what}: max_attempts is {value!r}; write a whole number of at least 1 (it counts the first attempt too, "
            "so 1 means no retry)."
        )
    return value


def checked_timeout(value: Seconds, what: str, refusal: type[Exception], setting: str = "timeout") -> int:
    """Give an attempt's timeout in microseconds, else raise ``refusal`` with the fix."""
    try:
        timeout_us = duration_us(value, setting)
    except (ValueError, TypeError) as error:
        raise refusal(f"{what}: {error}. Write seconds as a finite number, or a timedelta.") from error
    if timeout_us <= 0:
        raise refusal(f"{what}: {setting} is {value!r}; write a time above zero (seconds, or a timedelta).")
    return timeout_us


def check_function(kind: str, fn: object) -> None:
    """Refuse what cannot be a definition's function. Raises: DefinitionError with the fix."""
    if not inspect.isfunction(fn):
        fix = "put @staticmethod above it" if isinstance(fn, staticmethod) else "decorate a function written with `def`"
        raise DefinitionError(
            f"@{kind} was given {fn!r}, which is no function; {fix}. "
            f"Settings are given by keyword, as in `@{kind}(name='charge')`."
        )
    place = "{}:{}".format(*place_of(fn))
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(
            f"{kind} {fn.__name__} ({place}) is a generator. Return one value instead of using yield; for a stream, "
            "use one step for each part."
        )
    if inspect.iscoroutinefunction(inspect.unwrap(fn)) and not inspect.iscoroutinefunction(fn):
        raise DefinitionError(
            f"{kind} {fn.__name__} ({place}) is `async def` under a decorator that is not. Write that decorator's "
            "inner function as `async def` and await the function in it."
        )


def _checked_name(kind: str, fn: Callable[..., Any], name: str | None) -> str:
    chosen = fn.__name__ if name is None else name
    try:
        check_name(kind, chosen)
    except (ValueError, TypeError, DefinitionError) as error:
        place = "{}:{}".format(*place_of(fn))
        raise DefinitionError(
            f"{kind} {fn.__name__} ({place}): {error}. Rename the function, or write `@{kind}(name='…')` with a "
            "name of lower-case letters, digits and underscores."
        ) from error
    return chosen
