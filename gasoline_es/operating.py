"""Runs operations, in the process that calls them: under their timeout, ``def`` in threads (semantics.md §1).

Nothing of it is recorded, and nothing is tried again: an error goes to the caller as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gasoline_es.errors import DefinitionError, OperationTimedOut
from gasoline_es.threads import DaemonThreads

if TYPE_CHECKING:
    from gasoline_es.activity_context import ActivityContext
    from gasoline_es.operations import Operation

I = TypeVar("I")  # noqa: E741  # the input, next to O, the output
O = TypeVar("O")  # noqa: E741

THREADS_MAX: Final = 100
"""So many operations run in threads at a time, for one opened log; the others wait, within their time."""

at_work: ContextVar[ActivityContext | OperationContext | None] = ContextVar("gasoline_es_at_work", default=None)
"""What the code that runs now is told about itself: in an activity or an operation its context, elsewhere None.

Tasks that it makes, and threads that are given its context, are within it too.
"""


@dataclass(slots=True, eq=False, kw_only=True)
class OperationContext:
    """The first parameter of an operation: on whose behalf it runs.

    Made for each call; ``OperationContext()`` does for a unit test. ``workflow_id`` and ``workflow_name`` are those of the
    workflow whose activity called it, directly or through other operations; None where a service did.
    """

    name: str = "operation"
    ray_id: str = "00000000-0000-7000-8000-000000000000"
    workflow_id: str | None = None
    workflow_name: str | None = None

    _operations: Operations | None = field(default=None, repr=False)
    # A plain flag: set by the event loop, read by the operation's thread, and assignment is atomic.
    _cancelled: bool = field(default=False, init=False, repr=False)

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer wanted (it timed out, or its caller was cancelled). Poll it in long loops.

        An ``async def`` is cancelled as a task is; a thread can only look here.
        """
        return self._cancelled

    def operation(self, operation: Operation[I, O], input: I, /) -> Coroutine[Any, Any, O]:
        """Call another operation, with this one's ray and workflow; its time counts towards this one's.

        Raises: as ``ActivityContext.operation``.
        """
        return call(self._operations, operation, input, self, "ctx.operation")

    def _cancel(self) -> None:
        """Tell the operation that its result is no longer wanted. For whoever runs it."""
        self._cancelled = True


class Operations:
    """The operations under way of one opened log, and the threads of those that are a plain ``def``."""

    def __init__(self) -> None:
        self.running = 0
        """How many run right now."""
        self.in_threads: list[str] = []
        """The names of those that run in threads right now."""
        self._threads = DaemonThreads()
        self._room = asyncio.Semaphore(THREADS_MAX)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    async def run(self, operation: Operation[I, O], input: I, context: OperationContext) -> O:
        """Run an operation on a copy of ``input``, as it comes back from JSON; give a copy of what it returns.

        Raises: NotSerializable: the input or the output is not of the declared type. OperationTimedOut; what the operation
            raises.
        """
        _, given = operation.input_codec.roundtrip(input, operation.parameter)
        self.running += 1
        limit = asyncio.timeout(operation.timeout_us / 1e6)
        value: Any = None
        try:
            async with limit:
                if operation.is_async:
                    value = await self._on_the_loop(operation, given, context)
                else:
                    value = await self._in_a_thread(operation, given, context)
        except TimeoutError:
            if not limit.expired():
                raise  # its own
        finally:
            self.running -= 1
            context._cancel()  # pyright: ignore[reportPrivateUsage] -- made for this
        if limit.expired():
            # Also if it swallowed that it was cancelled and returned something: what comes late is dropped.
            seconds = operation.timeout_us / 1e6
            raise OperationTimedOut(
                f"{operation.what} took longer than its timeout of {seconds:g} s. If it may take longer, write "
                f"`@operation(timeout=…)`",
                operation=operation.name,
                timeout=seconds,
            )
        _, output = operation.output_codec.roundtrip(value, "output")
        made: O = output
        return made

    async def _on_the_loop(self, operation: Operation[Any, Any], given: Any, context: OperationContext) -> Any:
        before = at_work.get()
        at_work.set(context)
        try:
            return await operation.fn(context, given)
        finally:
            at_work.set(before)  # not by a token: a coroutine that was dropped is closed elsewhere

    async def _in_a_thread(self, operation: Operation[Any, Any], given: Any, context: OperationContext) -> Any:
        async with self._room:
            self.in_threads.append(operation.name)
            try:
                return await self._threads.submit(partial(_call, operation, given, context))
            finally:
                # Given up or not: a thread that goes on after its time is nobody's any more, as an activity's is.
                self.in_threads.remove(operation.name)


def call(
    operations: Operations | None,
    operation: Operation[I, O],
    input: I,
    caller: ActivityContext | OperationContext,
    verb: str,
) -> Coroutine[Any, Any, O]:
    """Call an operation from an activity or an operation. ``operations`` None: in a unit test, where nobody runs any.

    Raises: DefinitionError: it is no operation, or the caller cannot await anything.
    """
    check_operation(operation, verb)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise DefinitionError(
            f"`{verb}({operation.name}, …)` was called by {caller.name}, a plain `def` in a thread, where nothing can be "
            f"awaited. Write {caller.name} as `async def`; or call the function itself, `{operation.name}.fn(…)`, which then "
            f"has no timeout of its own"
        ) from None
    context = OperationContext(
        name=operation.name,
        ray_id=caller.ray_id,
        workflow_id=caller.workflow_id,
        workflow_name=caller.workflow_name,
        _operations=operations,
    )
    return _called(operations, operation, input, context)


async def _called(operations: Operations | None, operation: Operation[I, O], input: I, context: OperationContext) -> O:
    if operations is not None:
        return await operations.run(operation, input, context)
    alone = Operations()
    try:
        return await alone.run(operation, input, context)
    finally:
        alone.close()


def refuse_at_work(verb: str, repeats: str, *, from_activity: bool) -> None:
    """Refuse what a workflow's body has a step for, where an activity or operation of a workflow does it (semantics.md §5).

    ``verb``: "dispatch" or "signal", as both the client and the body call it; ``repeats``: the argument by which a repeat is
    known. ``from_activity``: the caller has said that it is meant. Raises: DefinitionError with both ways.
    """
    work = at_work.get()
    if work is None or work.workflow_id is None or from_activity:
        return
    kind = "operation" if isinstance(work, OperationContext) else "activity"
    raise DefinitionError(
        f"{kind} {work.name} of workflow {work.workflow_id} calls `{verb}` of a client: its history would not say so, and "
        f"an attempt that is repeated would do it again. Write `await ctx.{verb}(…)` in the workflow's body, a step that is "
        f"recorded and counts once. If it is meant here, write `{verb}(…, from_activity=True)`, with {repeats} that is the "
        f"same for every attempt",
        workflow_id=work.workflow_id,
    )


def check_operation(given: object, verb: str) -> None:
    """Raises: DefinitionError with the fix: it is no operation."""
    from gasoline_es.operations import Operation  # which names this module's context in its types

    if isinstance(given, Operation):
        return
    what = getattr(given, "what", None)
    if what is not None:
        fix = (
            "an activity is run by a workflow's body, `await ctx.activity(…)`, and a workflow by `gasoline.dispatch(…)`"
        )
        raise DefinitionError(
            f"`{verb}` was given {what}; {fix}. What both may share is a function decorated with @operation"
        )
    name = getattr(given, "__name__", None) or "lookup"
    fix = f"decorate it with @operation and write `await {verb}({name}, …)`" if callable(given) else "give one"
    raise DefinitionError(f"`{verb}` was given {given!r:.200}, which is no operation: {fix}")


def _call(operation: Operation[Any, Any], given: Any, context: OperationContext) -> Any:
    """Run a ``def`` operation, in its thread."""
    at_work.set(context)
    return operation.fn(context, given)
