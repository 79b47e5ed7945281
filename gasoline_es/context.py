"""What a workflow's body calls: :class:`WorkflowContext`. Each verb makes one step for the core to answer (design §3).

A verb judges its arguments when it is called: a wrong one is raised there and then, takes no location and records
nothing. A mistake in the code itself (a DefinitionError, an InvalidVersion) also ends the run, even if the body catches
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias
from uuid import UUID

from gasoline_es.core.durations import deadline_us, duration_us
from gasoline_es.core.steps import (
    ActivityPlan,
    ActivityStep,
    CheckpointStep,
    CheckVersionStep,
    RemovedStep,
    SleepStep,
)
from gasoline_es.definitions import Activity, I, O, Seconds, Workflow, checked_attempts, checked_timeout
from gasoline_es.errors import DefinitionError, InvalidVersion, RecordTooLarge
from gasoline_es.log.port import PAYLOAD_BYTES_MAX
from gasoline_es.operations import Operation
from gasoline_es.sending import Sending
from gasoline_es.signatures import frame_at
from gasoline_es.verbs import RunPort, Step

__all__ = ["RemovedKind", "RunPort", "Step", "WorkflowContext"]

RemovedKind: TypeAlias = Literal[
    "activity",
    "signal",
    "message",
    "emit",
    "listen",
    "loop",
    "sleep",
    "dispatch",
    "output",
    "run",
    "join",
    "race",
    "checkpoint",
]

_NAMED: Final = frozenset({"activity", "signal", "message", "emit", "dispatch", "output", "run"})
"""The kinds whose name is part of the match (semantics.md §3)."""
_UNNAMED: Final = frozenset({"listen", "loop", "sleep", "join", "race", "checkpoint"})

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Elsewhere:
    """A name that people look for on the context of a body: it says what to write instead."""

    def __init__(self, fix: str) -> None:
        self._fix = fix

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, context: WorkflowContext | None, owner: type) -> Self:
        if context is None:
            return self
        error = DefinitionError(f"a workflow's body has no `ctx.{self._name}`: {self._fix}.")
        raise context._refused(error)  # pyright: ignore[reportPrivateUsage] -- a part of the context's class


class WorkflowContext(Sending):
    """The first parameter of a workflow's body: the only way to do anything durable there.

    Every verb returns a step to be awaited at once; it is recorded under its location, and a replay gives what was
    recorded without doing anything. The same context serves the whole branch; ``v(n)`` gives one for inserted steps.
    """

    __slots__ = ()

    # --- who and when -------------------------------------------------------------------------------------------------

    @property
    def workflow_id(self) -> str:
        """This workflow's id."""
        return self._run.workflow_id

    @property
    def name(self) -> str:
        """This workflow's name."""
        return self._run.workflow_name

    @property
    def ray_id(self) -> str:
        """The id of the request that started the chain; sub-workflows share it."""
        return self._run.ray_id

    @property
    def tags(self) -> Mapping[str, str]:
        """This workflow's tags, read only."""
        return MappingProxyType(self._run.tags)

    def now(self) -> datetime:
        """Give the time of the last event delivered to this branch (UTC): the same on every replay."""
        return _EPOCH + timedelta(microseconds=self._run.now_us())

    def random(self) -> float:
        """Draw a number in [0, 1) that is the same on every replay. Not for secrets."""
        return self._run.random()

    def uuid(self) -> UUID:
        """Draw a UUID that is the same on every replay."""
        return self._run.uuid()

    # --- steps --------------------------------------------------------------------------------------------------------

    def activity(
        self,
        definition: Activity[I, O],
        input: I,
        /,
        *,
        max_attempts: int | None = None,
        timeout: Seconds | None = None,
        ephemeral: bool = False,
    ) -> Step[O]:
        """Run an activity until it succeeds or has failed for good; give its output (semantics.md §4).

        ``max_attempts`` and ``timeout`` (seconds or a timedelta) override the definition's for this call. The output is
        durable when the step returns. ``ephemeral``: it is not yet; it becomes so together with what follows, and before
        any other step but an ephemeral one starts. A crash before that runs the activity again, and may give another
        output: for what is cheap to repeat and changes nothing, such as looking something up.

        Raises at the call, recording nothing: NotSerializable when the input cannot be kept exactly; RecordTooLarge when
        it takes more than 980,000 bytes; ValueError for a bad setting; DefinitionError for anything but an
        activity. Raises from the await: ActivityFailed, recorded, when
        the activity failed for good.
        """
        if not isinstance(definition, Activity):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._refused(_no_activity(definition))
        plan = definition.plan
        encoded = plan.encode(input, plan.parameter)
        if len(encoded) > PAYLOAD_BYTES_MAX:
            raise _input_too_large(definition, len(encoded))
        if max_attempts is not None or timeout is not None:
            plan = _overridden(plan, max_attempts, timeout)
        frame = frame_at(1)
        step: Any = ActivityStep(self._version, "activity", frame.f_code, frame.f_lasti, plan, encoded, ephemeral)
        self._run.made(step)
        return step  # type: ignore[no-any-return]  # a cast is a call, and this is made for every step

    def sleep(self, seconds: Seconds, /) -> Step[None]:
        """Sleep for a time (seconds or a timedelta), however often the process dies meanwhile.

        The deadline is recorded when the step is first reached; a replay waits only for what is left. Raises at the
        call: ValueError for a time that is negative, not finite, or too far off.
        """
        frame = frame_at(1)
        return self._made(
            SleepStep(
                self._version, "sleep", frame.f_code, frame.f_lasti, duration_us=duration_us(seconds, "ctx.sleep")
            )
        )

    def sleep_until(self, when: datetime, /) -> Step[None]:
        """Sleep until an aware datetime; one that has passed is no error.

        Raises at the call: ValueError for a naive one.
        """
        frame = frame_at(1)
        return self._made(
            SleepStep(
                self._version, "sleep_until", frame.f_code, frame.f_lasti, until_us=deadline_us(when, "ctx.sleep_until")
            )
        )

    # --- undoing what was done, if the workflow fails (semantics.md §12) ------------------------------------------------

    def checkpoint(self) -> Step[None]:
        """Say that what is given to ``on_rollback`` from here on is to be undone if the workflow fails; what was before stays.

        Not in a join, race or catch, nor on a branch that goes on beside others: that ends the run with StepMisused.
        """
        frame = frame_at(1)
        return self._made(CheckpointStep(self._version, "checkpoint", frame.f_code, frame.f_lasti))

    def on_rollback(self, definition: Activity[I, Any], input: I, /) -> None:
        """Have this activity run if an error leaves the workflow's body: one after the other, the newest first.

        Nothing is recorded by the call itself, and there is nothing to await; a replay makes it again. The activities are
        recorded as they run, on a branch of their own; one that fails for good keeps none of the others from running.
        They do not run when the workflow is cancelled, or when its code and its history diverge.

        Raises, recording nothing: NotSerializable; RecordTooLarge; and, which ends the run, StepMisused: there was no
        ``checkpoint`` before; DefinitionError for anything but an activity.
        """
        if not isinstance(definition, Activity):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._refused(_no_activity(definition, "on_rollback"))
        encoded = definition.input_codec.encode(input, definition.parameter)
        if len(encoded) > PAYLOAD_BYTES_MAX:
            raise _input_too_large(definition, len(encoded))
        self._run.give_handler(definition.plan, encoded)

    # --- changing the code of running workflows (semantics.md §3) -----------------------------------------------------

    def v(self, n: int, /) -> Self:
        """Give a context whose steps are ``n - 1`` versions above this one's: for steps inserted into old code.

        ``await ctx.v(2).activity(…)`` runs where a running workflow's history has no such step. Raises: InvalidVersion,
        which ends the run, when ``n`` is not a whole number of at least 1.
        """
        self._check_n(n, "v")
        raised = type(self)(self._run)
        raised._version = self._version + n - 1
        return raised

    def removed(self, kind: RemovedKind, name: str | None = None, /) -> Step[None]:
        """Stand where a step was deleted from the code, so that histories which have it still replay.

        ``name`` is what the step's definition was called, given exactly for kinds that have one: activity, signal,
        message, emit (its topic), dispatch, output, run. Raises at the call: ValueError for an unknown kind, or a name
        missing or too many.
        """
        _check_removed(kind, name)
        frame = frame_at(1)
        return self._made(RemovedStep(self._version, "removed", frame.f_code, frame.f_lasti, kind=kind, name=name))

    def check_version(self, n: int, /) -> Step[int]:
        """Ask which version to run here: ``n`` in a new workflow, 1 (or what it was then) in an older one.

        The answer is fixed for ever at its position and relative to this context. Raises: InvalidVersion, which ends
        the run, when ``n`` is not a whole number of at least 1.
        """
        self._check_n(n, "check_version")
        frame = frame_at(1)
        return self._made(
            CheckVersionStep(
                self._version,
                "check_version",
                frame.f_code,
                frame.f_lasti,
                latest=self._version + n - 1,
                context_version=self._version,
            )
        )

    def _check_n(self, n: int, verb: str) -> None:
        if type(n) is not int or n < 1:
            raise self._refused(
                InvalidVersion(
                    f"ctx.{verb}({n!r}): versions are whole numbers from 1 up. Steps of the first release are version "
                    f"1 and need no ctx.v; write `ctx.{verb}(2)` for the first change."
                )
            )

    if not TYPE_CHECKING:
        # Not in a `__getattr__`, with which every look-up on a context takes twice as long.
        state = _Elsewhere("only activities read and change the state; return from the activity what the body needs")

        operation = _Elsewhere(
            "only activities and services call operations; write an activity that does, and run that: "
            "`await ctx.activity(…)`"
        )

        def __dir__(self) -> list[str]:
            return [name for name in super().__dir__() if name not in ("state", "operation")]

    def __repr__(self) -> str:
        return f"<WorkflowContext of {self.name} {self.workflow_id}, version {self._version}>"


def _overridden(plan: ActivityPlan, max_attempts: int | None, timeout: Seconds | None) -> ActivityPlan:
    what = "ctx.activity"
    if max_attempts is not None:
        plan = replace(plan, max_attempts=checked_attempts(max_attempts, what, ValueError))
    if timeout is not None:
        plan = replace(plan, timeout_us=checked_timeout(timeout, what, ValueError))
    return plan


def _input_too_large(definition: Activity[Any, Any], size: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"the input of {definition.what} takes {size:,} bytes as JSON, more than {PAYLOAD_BYTES_MAX:,}: its record also has "
        f"to hold the output, or the error. Keep the data elsewhere and pass a reference to it",
        size=size,
    )


def _no_activity(given: Any, verb: str = "activity") -> DefinitionError:
    wait = "await " if verb == "activity" else ""
    written = getattr(given, "__name__", None) or "charge"
    if isinstance(given, Workflow):
        return DefinitionError(
            f"ctx.{verb} was given {given.what}; it runs activities only. Move the side effect into a function "
            "decorated with @activity, and give that."
        )
    if isinstance(given, Operation):
        return DefinitionError(
            f"ctx.{verb} was given {given.what}; it runs activities only. Call it in an activity, "
            f"`await ctx.operation({given.name}, …)`, and give that."
        )
    if callable(given):
        return DefinitionError(
            f"ctx.{verb} was given the plain function {written}, which has no name in the history and no retries. "
            f"Decorate it with @activity and write `{wait}ctx.{verb}({written}, …)` (not `{written}.fn`, not "
            f"`{written}(…)`)."
        )
    return DefinitionError(
        f"ctx.{verb} was given {given!r}, which is no activity. Give the decorated function, then its input: "
        f"`{wait}ctx.{verb}(charge, order)`."
    )


def _check_removed(kind: str, name: str | None) -> None:
    if kind in _NAMED:
        if not isinstance(name, str):
            raise ValueError(
                f"ctx.removed({kind!r}): the name is part of the match; write `ctx.removed({kind!r}, 'charge')` with "
                "the name of the one that was removed."
            )
    elif kind in _UNNAMED:
        if name is not None:
            raise ValueError(f"ctx.removed({kind!r}, {name!r}): this kind has no name; write `ctx.removed({kind!r})`.")
    else:
        kinds = ", ".join(sorted(_NAMED | _UNNAMED))
        raise ValueError(f"ctx.removed({kind!r}): unknown kind; write one of {kinds}.")
