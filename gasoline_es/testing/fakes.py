"""Functions that stand in for activities, and a record of every attempt, faked or real."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar, cast

from gasoline_es.activity_context import ActivityContext
from gasoline_es.definitions import Activity
from gasoline_es.errors import GasolineError, NotRetryable

I = TypeVar("I")  # noqa: E741  # the input, next to O, the output

Fake = Callable[[ActivityContext, Any], Any]


class UnfakedActivity(GasolineError):
    """A strict simulation came to an activity that has no fake. Fields: ``activity``, ``workflow``."""


@dataclass(frozen=True, slots=True)
class Call(Generic[I]):
    """One attempt of an activity: what it was given, for which workflow, and when it started (virtual time, UTC)."""

    input: I
    attempt: int
    workflow_id: str
    at: datetime


class _Nothing:
    """That no value was given: None is one."""

    def __repr__(self) -> str:
        return "…"


NOTHING: Final = _Nothing()


def fake_of(
    activity: Activity[Any, Any],
    fn: Fake | None,
    returns: object,
    raises: BaseException | type[BaseException] | None,
    times: int | None,
) -> Fake:
    """Make one function of what ``Simulation.fake`` was told.

    Raises: TypeError, ValueError: that makes no sense. NotSerializable: the activity cannot return that.
    """
    what = f"fake of {activity.name!r}"
    if fn is not None and returns is not NOTHING:
        raise TypeError(f"{what}: give a function or `returns=`, not both")
    succeeds = fn is not None or returns is not NOTHING
    if not succeeds and raises is None:
        raise TypeError(f"{what}: give a function, `returns=` or `raises=`")
    if raises is None and times is not None:
        raise TypeError(f"{what}: `times=` says how many attempts fail with `raises=`, which is missing")
    if raises is not None and succeeds != (times is not None):
        raise TypeError(f"{what}: `raises=` alone fails always; to succeed later it takes `times=` and what to return")
    if times is not None and times < 1:
        raise ValueError(f"{what}: times={times}, where at least one attempt is to fail")
    if returns is not NOTHING:
        # Said here, and not after five attempts. (The type checkers do not: an activity of a Receipt is one of an object.)
        activity.output_codec.encode(returns, "returns")

    def stand_in(ctx: ActivityContext, given: Any) -> Any:
        # By the attempt's number, which a crash does not change, and not by counting calls, which it does.
        if raises is not None and (times is None or ctx.attempt <= times):
            raise raises if isinstance(raises, type) else raises.with_traceback(None)
        return fn(ctx, given) if fn is not None else returns

    return stand_in


class Fakes:
    """What runs in the place of each activity. ``refuse`` is called with the error of a strict simulation."""

    def __init__(self, strict: bool, refuse: Callable[[Exception], None]) -> None:
        self._strict = strict
        self._refuse = refuse
        self._by_name: dict[str, Fake] = {}
        self._calls: dict[str, list[Call[Any]]] = {}

    def set(self, activity: Activity[Any, Any], fake: Fake) -> None:
        """Run ``fake`` from the next attempt on. (By name: one name is one activity to a worker.)"""
        self._by_name[activity.name] = fake

    def calls(self, activity: Activity[I, Any]) -> list[Call[I]]:
        """Return the attempts so far, in the order in which they started."""
        return list(self._calls.get(activity.name, ()))

    def stand_in(self, activity: Activity[Any, Any]) -> Activity[Any, Any]:
        """Return what runs in this attempt: the activity with another function (for the runtime)."""
        fake = self._by_name.get(activity.name)
        # A definition is never changed: this is a copy, with the same name, codecs and settings.
        made = copy.copy(activity)
        if fake is None and self._strict:
            run: Fake = self._refused(activity)
        elif fake is None and not activity.is_async:
            cast(Any, made)._fn = self._noted(activity.name, activity.fn)
            return made  # in a thread, as ever
        else:
            run = activity.fn if fake is None else fake
        run = self._noted(activity.name, run)

        async def awaited(ctx: ActivityContext, given: Any) -> Any:
            value = run(ctx, given)
            return await value if inspect.isawaitable(value) else value

        cast(Any, made)._fn = awaited
        made.is_async = True
        return made

    def _noted(self, name: str, run: Fake) -> Fake:
        calls = self._calls.setdefault(name, [])

        def noted(ctx: ActivityContext, given: Any) -> Any:
            calls.append(Call(given, ctx.attempt, ctx.workflow_id, ctx.attempt_at))
            return run(ctx, given)

        return noted

    def _refused(self, activity: Activity[Any, Any]) -> Fake:
        def refused(ctx: ActivityContext, given: Any) -> Any:
            self._refuse(
                UnfakedActivity(
                    f"workflow {ctx.workflow_name!r} came to {activity.what}, which has no fake in this strict simulation: "
                    f"`sim.fake({activity.fn.__name__}, …)`",
                    activity=activity.name,
                    workflow=ctx.workflow_name,
                )
            )
            raise NotRetryable(f"{activity.name} has no fake")

        return refused
