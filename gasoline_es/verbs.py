"""What every verb of a context stands on: the run's port, the type of a step, and how a step comes to be."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

from gasoline_es.core import steps
from gasoline_es.errors import GasolineError

T = TypeVar("T")

Step: TypeAlias = Coroutine[Any, Any, T]
"""What a verb returns, to be awaited at once (or given to a verb that takes steps).

A coroutine to the type checkers, because both pyright and mypy then flag a forgotten ``await``; of an own awaitable class
neither does. In truth it is the core's :class:`~gasoline_es.core.steps.Step`, which is awaitable and nothing else.
"""


class RunPort(Protocol):
    """One branch of a run, as its context sees it. The driver (``core.replay``) has one for each branch."""

    @property
    def workflow_id(self) -> str: ...
    @property
    def workflow_name(self) -> str: ...
    @property
    def ray_id(self) -> str: ...
    @property
    def tags(self) -> Mapping[str, str]: ...
    @property
    def version(self) -> int:
        """The branch's context version, absolute (semantics.md §3)."""
        ...

    def made(self, step: steps.Step) -> None:
        """Take note of a step when it is created: one that is never awaited is found by that."""
        ...

    def now_us(self) -> int:
        """The time of the last event delivered to this branch, in microseconds since the epoch."""
        ...

    def random(self) -> float: ...

    def uuid(self) -> UUID: ...

    def give_handler(self, plan: steps.ActivityPlan, input: bytes) -> None:
        """Note an activity that undoes something, if the workflow fails. Raises: StepMisused, which ends the run."""
        ...

    def refuse(self, error: Exception) -> None:
        """End the run with this error, even if the body catches it: the code cannot be right."""
        ...


class Verbs:
    """The part all verbs share. ``_version`` is absolute; it is the run's own unless ``v(n)`` raised it."""

    __slots__ = ("_run", "_version")

    def __init__(self, run: RunPort) -> None:
        self._run = run
        self._version = run.version

    def _made(self, step: steps.Step) -> Step[Any]:
        self._run.made(step)
        return cast("Step[Any]", step)

    def _refused(self, error: GasolineError) -> GasolineError:
        """Give the error to raise, after the run was told.

        A mistake in the code must not be turned into another path by an ``except Exception`` in the body: that path
        would be recorded, and the mended code could not replay it.
        """
        self._run.refuse(error)
        return error
