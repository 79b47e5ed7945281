"""Keeps a body from asyncio: while it runs, a guard stands where the running event loop would be (design §3).

A body is driven by ``send()``, not scheduled. ``asyncio.sleep``, ``gather``, ``create_task``, ``timeout`` and every client
that looks for the running loop or the current task would otherwise reach the engine's own. Any use of the guard is reported
to the run, which ends even if the body catches the error.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import asyncio.tasks
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context, ContextVar
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, Protocol, cast

from gasoline_es.core.error_info import text_of
from gasoline_es.errors import StepMisused

_SIDE_BY_SIDE: Final = (
    "`await ctx.join(ctx.activity(…), ctx.closure(body))`: what goes on side by side is joined by the engine, never by "
    "asyncio"
)
_TIMEOUT: Final = (
    "`timeout=` of the step, as in `ctx.listen(Paid, timeout=10)` or `ctx.activity(charge, order, timeout=10)`"
)
_LISTEN: Final = "`ctx.listen(…)` to wait for something, `ctx.sleep(…)` to wait for a time"
_THREAD: Final = "a plain `def` activity, which runs in a thread"
_CLIENT: Final = "the `ctx` verb for it, or do it in an activity: `await ctx.activity(…)`"

_CALLED: Final = {
    "sleep": "`await ctx.sleep(…)`",
    "wait_for": _TIMEOUT,
    "timeout": _TIMEOUT,
    "timeout_at": _TIMEOUT,
    "Timeout": _TIMEOUT,
    "gather": _SIDE_BY_SIDE,
    "wait": _SIDE_BY_SIDE,
    "as_completed": _SIDE_BY_SIDE,
    "create_task": _SIDE_BY_SIDE,
    "ensure_future": _SIDE_BY_SIDE,
    "shield": _SIDE_BY_SIDE,
    "TaskGroup": _SIDE_BY_SIDE,
    "to_thread": _THREAD,
    "Lock": "an activity for what needs the lock: the steps of one workflow run one after the other anyway",
    "Semaphore": "an activity for what needs it: the steps of one workflow run one after the other anyway",
    "Queue": _LISTEN,
    "Event": _LISTEN,
    "Condition": _LISTEN,
}
"""By the function (or class) of asyncio that the body called."""

_ASKED: Final = {
    "create_task": _SIDE_BY_SIDE,
    "create_future": _LISTEN,
    "call_soon": _LISTEN,
    "call_later": "`ctx.sleep(…)`, or `timeout=` of the step",
    "call_at": "`ctx.sleep_until(…)`, or `timeout=` of the step",
    "run_in_executor": _THREAD,
    "time": "`ctx.now()`, or `timeout=` of the step",
}
"""By what the loop was asked for, where no function of asyncio stands in between."""

_NO_LOOP: Final = (
    "a workflow body must not run an event loop: a body is replayed, and only its steps may reach the outside. Do it in an "
    "activity: `await ctx.activity(…)`"
)
_AWAITED_TWICE: Final = (
    "something was awaited twice. A step is awaited once: call the verb anew for each, as in `await ctx.sleep(1)`"
)
_OF_A_LOOP: Final = (
    "a workflow body must not use what belongs to an event loop (a queue, a lock, an event). Use " + _LISTEN
)

_SAID: Final = (
    ("cannot reuse already awaited coroutine", _AWAITED_TWICE),
    ("coroutine is being awaited already", _AWAITED_TWICE),
    ("cannot be called from a running event loop", _NO_LOOP),
    ("Cannot run the event loop while another loop is running", _NO_LOOP),
    ("different event loop", _OF_A_LOOP),
    ("different loop", _OF_A_LOOP),
    ("Passing coroutines is forbidden", "a workflow body must not use asyncio. Use " + _SIDE_BY_SIDE),
)
"""What Python itself says of some mistakes, and what to do instead."""

REFUSALS_MAX = 1_000
"""A body that catches every refusal in a loop is stopped after so many: what it awaits then never comes."""


class Driven(Protocol):
    """The run whose body is being driven."""

    def refuse(self, error: Exception) -> None:
        """End the run with this error, whatever the body catches."""

    def place(self) -> tuple[str, int]:
        """Where the body stands: file and line, ("", 0) if it is not known."""
        ...

    def told(self) -> Told:
        """What a log record that is made now is to say of the body."""
        ...


class Told(NamedTuple):
    """Of a body that makes a log record: which workflow it is of, and where it stands.

    ``location``: of the last step passed on its branch, "" before the first. ``again``: an earlier life of the body came
    past here, so that the record was made before.
    """

    workflow_id: str
    workflow: str
    location: str
    again: bool


_driven: ContextVar[Driven | None] = ContextVar("gasoline_es_driven", default=None)


def watch(context: Context, driven: Driven | None) -> None:
    """Let whatever runs in this context be reported to ``driven``; None: to nobody any more.

    Kept in the body's own context and not in a global, so that runs in several threads do not meet.
    """
    context.run(_driven.set, driven)


def refuse(error: Exception) -> None:
    """Report a mistake to the run whose body calls this, if one does."""
    driven = _driven.get()
    if driven is not None:
        driven.refuse(error)


def body_told() -> Told | None:
    """Return what a log record that is made now is to say of the body that makes it; None: no body does."""
    driven = _driven.get()
    return None if driven is None else driven.told()


class _Stuck:
    """What the guard gives out in the end. It passes for a future, a handle or a task, and never comes to be."""

    def __await__(self) -> Generator[_Stuck, Any, Any]:
        yield self

    def __getattr__(self, name: str) -> Any:
        return _nothing


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    pass


class GuardLoop(asyncio.AbstractEventLoop):
    """Stands in for the running loop. Every method refuses and says which verb to use."""

    def __init__(self) -> None:
        self.refusals = 0

    def refusal(self, used: str, frame: FrameType) -> StepMisused:
        """Report that the body asked for ``used``; give the error to raise. ``frame``: of whoever asked."""
        driven = _driven.get()
        file, line = ("", 0) if driven is None else driven.place()
        called = _called(frame)
        if called:
            name = called.removesuffix(".__init__").removesuffix(".__aenter__")
            asked, instead = f"it called asyncio.{name}", _CALLED.get(called.partition(".")[0], _CLIENT)
        else:
            asked, instead = f"it asked the event loop for `{used}`", _ASKED.get(used, _CLIENT)
        error = StepMisused(
            f"a workflow body must not use asyncio ({asked}{f' in {file}:{line}' if file else ''}): use {instead}. A "
            f"body is replayed: only its steps may reach the outside",
            used=used,
            file=file,
            line=line,
        )
        self.refusals += 1
        if driven is not None:
            driven.refuse(error)
        return error

    def get_debug(self) -> bool:
        # asyncio asks this on its way to the method that matters, whose name makes the better message.
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False


class GuardTask:
    """Stands in for the current task, which logging and every client asks for. It has a name, and refuses the rest."""

    def get_name(self) -> str:
        # logging puts it into every record from Python 3.12 on.
        return "workflow body"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _guard.refusal(name, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]


def _refusing(name: str) -> Callable[..., Any]:
    def method(self: GuardLoop, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        error = self.refusal(name, frame)
        _close_unstarted(args)
        _close_unstarted(kwargs.values())
        if self.refusals > REFUSALS_MAX:
            return _Stuck()
        close_unstarted_in(frame)
        raise error

    method.__name__ = name
    return method


for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in GuardLoop.__dict__:
        setattr(GuardLoop, _name, _refusing(_name))


_guard = GuardLoop()  # type: ignore[abstract]  # the loop above fills every method in
_task = GuardTask()
_get_running_loop = asyncio.events._get_running_loop  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
_set_running_loop = asyncio.events._set_running_loop  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]

# The current task is kept by loop up to Python 3.13, so that it is set once for all; later by thread.
_swap_current_task: Callable[..., Any] | None = None
if sys.version_info >= (3, 14):
    _swap_current_task = cast(Any, asyncio.tasks)._swap_current_task
else:
    cast(Any, asyncio.tasks)._enter_task(_guard, _task)


def guarded(function: Callable[..., Any], *args: Any) -> Any:
    """Call the function while the running loop is the guard, and the engine's loop hears of no async generator.

    To whom a refusal is reported, :func:`watch` says.
    """
    outside = enter()
    try:
        return function(*args)
    finally:
        leave(outside)


Outside = tuple[Any, Any, Any]
"""What :func:`leave` puts back: the running loop, the hooks for async generators, the current task."""


def enter() -> Outside:
    """Put the guard up. What this gives goes to :func:`leave`, in a ``finally``."""
    outside = (_get_running_loop(), sys.get_asyncgen_hooks(), _swap_current_task and _swap_current_task(_guard, _task))
    # Without this, a generator that the body leaves unfinished would be closed by a task of the engine's loop.
    sys.set_asyncgen_hooks(None, None)
    _guard.refusals = 0
    _set_running_loop(_guard)
    return outside


def leave(outside: Outside) -> None:
    """Take the guard down."""
    loop, hooks, task = outside
    if _swap_current_task is not None:
        _swap_current_task(_guard, task)
    _set_running_loop(loop)
    sys.set_asyncgen_hooks(*hooks)


def check_outside_body(what: str) -> None:
    """Refuse a call that must not come from a workflow's body, naming ``what`` to use there.

    Raises: StepMisused: the caller runs inside a body; the run ends even if the body catches this.
    """
    if _get_running_loop() is _guard:
        error = StepMisused(f"a client must not be used in a workflow body: {what}")
        refuse(error)
        raise error


# --- what Python says by itself ---------------------------------------------------------------------------------------


def awaited_twice(file: str, line: int) -> StepMisused:
    """Give the error for a step that was awaited a second time there."""
    return StepMisused(f"{_AWAITED_TWICE}. In {file}:{line}", file=file, line=line)


def explained(error: BaseException, place: tuple[str, int]) -> BaseException:
    """Give the error to tell for one that left a body: with the fix, where Python's own words do not name it."""
    if isinstance(error, RuntimeError | TypeError):
        said = text_of(error)
        for words, advice in _SAID:
            if words in said:
                file, line = place
                told = StepMisused(f"{advice}. In {file}:{line}, Python says: {said}", file=file, line=line)
                told.__cause__ = error
                return told
    return error


def close_unstarted_behind(traceback: TracebackType | None) -> None:
    """Close the coroutines that asyncio was given and will never start, so that Python does not warn of each."""
    while traceback is not None:
        if _of_asyncio(traceback.tb_frame):
            _close_unstarted(traceback.tb_frame.f_locals.values())
        traceback = traceback.tb_next


def close_unstarted_in(frame: FrameType | None) -> None:
    """The same, while asyncio is still on the stack: from this frame outwards."""
    while frame is not None and _of_asyncio(frame):
        _close_unstarted(frame.f_locals.values())
        frame = frame.f_back


def _close_unstarted(values: Iterable[Any]) -> None:
    for value in values:
        if inspect.iscoroutine(value):
            coroutine = cast(Coroutine[Any, Any, Any], value)
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
        elif isinstance(value, tuple | list | set | frozenset):
            _close_unstarted([item for item in cast(Iterable[Any], value) if inspect.iscoroutine(item)])


def _called(frame: FrameType | None) -> str:
    """Name the function of asyncio that was called from elsewhere, as ``sleep`` or ``Queue.get``; "" for none."""
    name = ""
    while frame is not None and _of_asyncio(frame):
        if not frame.f_code.co_qualname.startswith("_") or not name:
            name = frame.f_code.co_qualname
        frame = frame.f_back
    return name


def _of_asyncio(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("asyncio.")
