"""Keeps a body from asyncio: while it runs, a guard stands where the running event loop would be (design §3).

A body is driven by ``send()``, not scheduled. ``asyncio.sleep``, ``gather``, ``create_task``, ``timeout`` and every client
that looks for the running loop would otherwise reach the engine's own loop and task. Any use of the guard is reported to
the run, which ends it even if the body catches the error.
"""

from __future__ import annotations

import asyncio
import asyncio.events
from collections.abc import Callable
from typing import Any

from gasoline_es.errors import StepMisused

INSTEAD = {
    "create_task": "`await ctx.activity(…)` for work; steps started side by side are joined by the engine, never by asyncio",
    "create_future": "`ctx.sleep(…)` instead of asyncio.sleep, `ctx.listen(…)` to wait for something",
    "call_later": "`ctx.sleep(…)`, or `timeout=` of the step",
    "call_at": "`ctx.sleep_until(…)`, or `timeout=` of the step",
    "run_in_executor": "a plain `def` activity, which runs in a thread",
    "time": "`ctx.now()`, or `timeout=` of the step",
}
_ANY = "the `ctx` verb for it, or do it in an activity"


class GuardLoop(asyncio.AbstractEventLoop):
    """Stands in for the running loop. Every method refuses and says which verb to use."""

    def __init__(self) -> None:
        self.refuse: Callable[[Exception], None] | None = None

    def _refused(self, used: str) -> StepMisused:
        error = StepMisused(
            f"a workflow body must not use asyncio (it asked the event loop for `{used}`): use "
            f"{INSTEAD.get(used, _ANY)}. A body is replayed: only its steps may reach the outside",
            used=used,
        )
        if self.refuse is not None:
            self.refuse(error)
        return error

    def get_debug(self) -> bool:
        # asyncio asks this on its way to the method that matters, whose name makes the better message.
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False


def _refusing(name: str) -> Callable[..., Any]:
    def method(self: GuardLoop, *args: Any, **kwargs: Any) -> Any:
        for argument in args:
            if asyncio.iscoroutine(argument):
                argument.close()  # it will never run: without this, Python would warn that it was never awaited
        raise self._refused(name)  # pyright: ignore[reportPrivateUsage]

    method.__name__ = name
    return method


for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in GuardLoop.__dict__:
        setattr(GuardLoop, _name, _refusing(_name))


_guard = GuardLoop()
_get_running_loop = asyncio.events._get_running_loop  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
_set_running_loop = asyncio.events._set_running_loop  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]


class guarded:
    """Context manager: inside it, the running loop is the guard, which reports to ``refuse``. About 0.5 µs."""

    __slots__ = ("_loop", "_outer", "_refuse")

    def __init__(self, refuse: Callable[[Exception], None]) -> None:
        self._refuse = refuse

    def __enter__(self) -> None:
        self._loop = _get_running_loop()
        self._outer = _guard.refuse
        _guard.refuse = self._refuse
        _set_running_loop(_guard)

    def __exit__(self, *_: object) -> None:
        _set_running_loop(self._loop)
        _guard.refuse = self._outer


def check_outside_body(what: str) -> None:
    """Refuse a call that must not come from a workflow's body, naming ``what`` to use there.

    Raises: StepMisused: the caller runs inside a body; the run ends even if the body catches this.
    """
    loop = _get_running_loop()
    if loop is _guard:
        error = StepMisused(f"a client must not be used in a workflow body: {what}")
        if _guard.refuse is not None:
            _guard.refuse(error)
        raise error
