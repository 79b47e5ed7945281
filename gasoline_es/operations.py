"""What users write once for activities and services to share: operations, made of plain functions by a decorator.

    @operation(timeout=5)
    async def lookup(ctx: OperationContext, query: Query) -> Found: ...

    found = await ctx.operation(lookup, query)          # in an activity, or in another operation
    found = await gasoline.operation(lookup, query)     # in a service

An operation is a timed, typed call in the same process, and never a step: nothing of it is recorded (semantics.md §1).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, overload

from gasoline_es.definitions import TIMEOUT_S, Definition, Seconds, check_function, checked_timeout
from gasoline_es.errors import DefinitionError
from gasoline_es.signatures import frame_at

if TYPE_CHECKING:
    from gasoline_es.operating import OperationContext

I = TypeVar("I")  # noqa: E741  # the input, next to O, the output
O = TypeVar("O", covariant=True)  # noqa: E741


class Operation(Definition[I, O]):
    """A helper with a timeout, for activities and services. ``timeout_us`` bounds one call."""

    kind = "operation"

    __slots__ = ("is_async", "timeout_us")

    def __init__(
        self,
        fn: Callable[[OperationContext, I], Any],
        name: str | None,
        frame: types.FrameType,
        *,
        timeout: Seconds,
    ) -> None:
        check_function("operation", fn)
        super().__init__(fn, name, frame)
        self.is_async: bool = inspect.iscoroutinefunction(fn)
        self.timeout_us = checked_timeout(timeout, self.what, DefinitionError)

    @property
    def fn(self) -> Callable[[OperationContext, I], Any]:
        """The plain function, for unit tests: ``lookup.fn(ctx, query)``."""
        return self._fn

    if not TYPE_CHECKING:  # Hidden, so that both checkers report the call themselves.

        def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Refuse: an operation called as a function would have no timeout, and nothing would check its values."""
            written = self._fn.__name__
            wait = "await " if self.is_async else ""
            raise DefinitionError(
                f"{self.what} was called directly, without its timeout. In an activity or another operation write "
                f"`await ctx.operation({written}, …)`, elsewhere `await gasoline.operation({written}, …)`; a workflow's body "
                f"runs an activity that does so; in a unit test write `{wait}{written}.fn(ctx, …)`."
            )


class AsyncOperation(Operation[I, O]):
    """An operation written as ``async def``: runs on the caller's event loop."""

    __slots__ = ()

    @property
    def fn(self) -> Callable[[OperationContext, I], Coroutine[Any, Any, O]]:
        """The plain function, for unit tests: ``await lookup.fn(ctx, query)``."""
        return self._fn


class ThreadOperation(Operation[I, O]):
    """An operation written as ``def``: runs in a thread."""

    __slots__ = ()

    @property
    def fn(self) -> Callable[[OperationContext, I], O]:
        """The plain function, for unit tests: ``lookup.fn(ctx, query)``."""
        return self._fn


class OperationDecorator(Protocol):
    """What ``@operation(…)`` with keywords gives."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[[OperationContext, I], Coroutine[Any, Any, O]], /
    ) -> AsyncOperation[I, O]: ...
    @overload
    def __call__(self, fn: Callable[[OperationContext, I], O], /) -> ThreadOperation[I, O]: ...


@overload
def operation(  # type: ignore[overload-overlap]
    fn: Callable[[OperationContext, I], Coroutine[Any, Any, O]], /
) -> AsyncOperation[I, O]: ...
@overload
def operation(fn: Callable[[OperationContext, I], O], /) -> ThreadOperation[I, O]: ...
@overload
def operation(name: str | None = None, *, timeout: Seconds = TIMEOUT_S) -> OperationDecorator: ...
def operation(name: Any = None, *, timeout: Seconds = TIMEOUT_S) -> Any:
    """Make an operation of ``async def fn(ctx, input)``, or of a plain ``def``, which then runs in a thread.

    ``name``: what errors say, ``[a-z0-9_]+``; the function's name by default. ``timeout``: seconds (or a timedelta) one call
    may take, with the operations that it calls (semantics.md §1).

    Raises: DefinitionError when the function or a setting can never work; the message names the place and the fix.
    """

    def decorate(fn: Callable[..., Any], frame: types.FrameType, name: str | None) -> Operation[Any, Any]:
        is_async = inspect.iscoroutinefunction(fn)
        made: type[Operation[Any, Any]] = AsyncOperation[Any, Any] if is_async else ThreadOperation[Any, Any]
        return made(fn, name, frame, timeout=timeout)

    if name is None or isinstance(name, str):
        given: str | None = name

        def decorator(fn: Callable[..., Any]) -> Operation[Any, Any]:
            return decorate(fn, frame_at(1), given)

        return decorator
    return decorate(name, frame_at(1), None)
