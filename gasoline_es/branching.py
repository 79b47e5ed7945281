"""The verbs that let steps go side by side, and again and again: closures, joins, races, loops (semantics.md §4)."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine, Iterable
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from types import FrameType, UnionType
from typing import Any, Literal, TypeVar, cast, overload
from uuid import UUID

from gasoline_es.core.error_info import error_info
from gasoline_es.core.steps import (
    ActivityStep,
    Break,
    CatchStep,
    ClosureStep,
    JoinStep,
    LoopStep,
    RaceStep,
    ValueStep,
)
from gasoline_es.core.steps import Step as CoreStep
from gasoline_es.core.values import Codec, codec_for
from gasoline_es.definitions import Activity, I, O, Workflow
from gasoline_es.errors import ActivityFailed, DefinitionError, NotSerializable
from gasoline_es.listening import Listening
from gasoline_es.outcomes import Failed, Ok
from gasoline_es.signatures import frame_at, resolved
from gasoline_es.verbs import Step

if typing.TYPE_CHECKING:
    from gasoline_es.context import WorkflowContext

S = TypeVar("S")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")

COMMIT_INTERVAL = 20
"""A loop is committed after so many iterations, unless it says otherwise."""


class Branching(Listening):
    """``closure``, ``join``, ``race``, ``loop`` and their relatives."""

    __slots__ = ()

    def closure(self, body: Callable[[WorkflowContext], Coroutine[Any, Any, T]], /) -> Step[T]:
        """Make a branch of ``async def body(ctx)``: to be joined, raced, caught, or awaited by itself.

        The body must use the ``ctx`` it is given: its steps stand below the closure's own location. Raises at the call:
        DefinitionError, which ends the run, for anything but a function of one context.
        """
        frame = frame_at(1)
        self._check_body("closure", body, "async def body(ctx)")
        step = ClosureStep(
            self._version, "closure", frame.f_code, frame.f_lasti, partial(_on_a_branch, type(self), body)
        )
        return self._made(step)

    def run(self, definition: Workflow[I, O], input: I, /) -> Step[O]:
        """Run another workflow's body inline, as a branch of this one; give what it returns.

        It is no workflow of its own: it has this one's id, tags and signals. To start one that has a life of its own,
        use ``ctx.dispatch``. Raises at the call: NotSerializable for its input; DefinitionError, which ends the run, for
        anything but a workflow.
        """
        if not isinstance(definition, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._refused(DefinitionError(f"ctx.run was given {definition!r}; give a workflow and its input."))
        _, given = definition.input_codec.roundtrip(input, definition.parameter)
        frame = frame_at(1)
        body = partial(_inline, type(self), definition, given)
        return self._made(ClosureStep(self._version, "run", frame.f_code, frame.f_lasti, body, definition.name))

    @overload
    def join(self, a: Step[A], /) -> Step[tuple[A]]: ...
    @overload
    def join(self, a: Step[A], b: Step[B], /) -> Step[tuple[A, B]]: ...
    @overload
    def join(self, a: Step[A], b: Step[B], c: Step[C], /) -> Step[tuple[A, B, C]]: ...
    @overload
    def join(self, a: Step[A], b: Step[B], c: Step[C], d: Step[D], /) -> Step[tuple[A, B, C, D]]: ...
    @overload
    def join(self, a: Step[A], b: Step[B], c: Step[C], d: Step[D], e: Step[E], /) -> Step[tuple[A, B, C, D, E]]: ...
    @overload
    def join(
        self, a: Step[A], b: Step[B], c: Step[C], d: Step[D], e: Step[E], f: Step[F], /
    ) -> Step[tuple[A, B, C, D, E, F]]: ...
    @overload
    def join(
        self, a: Step[A], b: Step[B], c: Step[C], d: Step[D], e: Step[E], f: Step[F], g: Step[G], /
    ) -> Step[tuple[A, B, C, D, E, F, G]]: ...
    @overload
    def join(
        self, a: Step[A], b: Step[B], c: Step[C], d: Step[D], e: Step[E], f: Step[F], g: Step[G], h: Step[H], /
    ) -> Step[tuple[A, B, C, D, E, F, G, H]]: ...
    def join(self, *steps: Any) -> Any:
        """Run steps side by side and give their values, as a tuple in the order of the arguments.

        Each goes on to its own end, whatever becomes of the others; then the first error, in the order of the arguments,
        is raised. Locations are handed out in that order too, before anything runs. Activities in it must not touch the
        workflow's state. Raises at the call: DefinitionError, which ends the run, for what is no step.
        """
        frame = frame_at(1)
        checked = [self._checked("join", step) for step in steps]
        return self._made(JoinStep(self._version, "join", frame.f_code, frame.f_lasti, checked, tuple))

    def join_all(self, steps: Iterable[Step[T]], /) -> Step[list[T]]:
        """Run any number of steps side by side, as ``join``; give a list in the same order. Of none: an empty list.

        Raises at the call: DefinitionError, which ends the run, for a set, whose order changes from process to process,
        and for what is no step.
        """
        frame = frame_at(1)
        if isinstance(steps, set | frozenset):
            raise self._refused(
                DefinitionError(
                    "ctx.join_all was given a set: its order differs from process to process, so a replay would start the "
                    "steps in another one. Give a list, a tuple or a generator."
                )
            )
        if not isinstance(steps, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._refused(DefinitionError("ctx.join_all takes a list of steps; write `ctx.join(a, b)` for some."))
        checked = [self._checked("join_all", step) for step in steps]
        return self._made(JoinStep(self._version, "join_all", frame.f_code, frame.f_lasti, checked, list))

    def maybe(self, step: Step[T] | None, /) -> Step[T | None]:
        """Give the step itself, or for None a step that gives None and takes no location: for optional steps of a join."""
        if step is not None:
            return cast("Step[T | None]", self._checked("maybe", step))
        frame = frame_at(1)
        return self._made(ValueStep(self._version, "maybe", frame.f_code, frame.f_lasti, None))

    @overload
    def race(self, a: Step[A], b: Step[B], /) -> Step[tuple[Literal[0], A] | tuple[Literal[1], B]]: ...
    @overload
    def race(
        self, a: Step[A], b: Step[B], c: Step[C], /
    ) -> Step[tuple[Literal[0], A] | tuple[Literal[1], B] | tuple[Literal[2], C]]: ...
    @overload
    def race(
        self, a: Step[A], b: Step[B], c: Step[C], d: Step[D], /
    ) -> Step[tuple[Literal[0], A] | tuple[Literal[1], B] | tuple[Literal[2], C] | tuple[Literal[3], D]]: ...
    @overload
    def race(
        self, a: Step[A], b: Step[B], c: Step[C], d: Step[D], e: Step[E], /
    ) -> Step[
        tuple[Literal[0], A] | tuple[Literal[1], B] | tuple[Literal[2], C] | tuple[Literal[3], D] | tuple[Literal[4], E]
    ]: ...
    @overload
    def race(
        self, a: Step[A], b: Step[B], c: Step[C], d: Step[D], e: Step[E], f: Step[F], /
    ) -> Step[
        tuple[Literal[0], A]
        | tuple[Literal[1], B]
        | tuple[Literal[2], C]
        | tuple[Literal[3], D]
        | tuple[Literal[4], E]
        | tuple[Literal[5], F]
    ]: ...
    def race(self, *steps: Any) -> Any:
        """Run steps side by side until one succeeds: ``(index, value)`` of the first that does.

        The winner is recorded; the others are cancelled, and what they recorded stays. When all of them fail, an
        ``ExceptionGroup`` of their errors in the order of the arguments is raised. Activities in it must not touch the
        workflow's state. Raises at the call: DefinitionError, which ends the run, for what is no step.
        """
        frame = frame_at(1)
        checked = [self._checked("race", step) for step in steps]
        if not checked:
            raise self._refused(DefinitionError("ctx.race was given no step; give at least one."))
        encoders = [_encoder(step) for step in checked]
        return self._made(RaceStep(self._version, "race", frame.f_code, frame.f_lasti, checked, encoders))

    def catch(self, step: Step[T], /) -> Step[Ok[T] | Failed]:
        """Make the terminal failure of a step or closure a value: ``Ok(value)`` or ``Failed(error, attempts)``.

        Retries, sleeps and waits go on as ever, and a history that does not fit ends the run as ever. Raises at the call:
        DefinitionError, which ends the run, for what is no step.
        """
        frame = frame_at(1)
        checked = self._checked("catch", step)
        return self._made(CatchStep(self._version, "catch", frame.f_code, frame.f_lasti, checked, Ok, _failed))

    def loop(
        self,
        body: Callable[[WorkflowContext, S], Coroutine[Any, Any, Break[T] | None]],
        state: S,
        /,
        *,
        commit_interval: int = COMMIT_INTERVAL,
    ) -> Step[T]:
        """Run ``async def body(ctx, state)`` again and again until it returns ``Break(value)``; give the value.

        ``state`` is a model (or anything that can be kept) that the body changes. Each iteration is a branch of its own.
        Every ``commit_interval`` iterations, and at the end, the state is recorded; what came before is then forgotten by
        replay, which costs what the last few iterations cost, however often the loop has run. So nothing but the state
        may be carried from one iteration to another.

        Raises at the call: NotSerializable for the state; ValueError for the interval; DefinitionError, which ends the
        run, for a wrong body.
        """
        frame = frame_at(1)
        self._check_body("loop", body, "async def body(ctx, state)")
        if isinstance(state, _UNCHANGING):
            raise self._refused(_cannot_be_changed(cast("object", state)))
        kept = cast("Codec[S]", codec_for(type(state), "the state of ctx.loop"))
        return self._loop("loop", frame, body, kept, state, partial(_iteration, type(self), body), commit_interval)

    def repeat(
        self,
        body: Callable[[WorkflowContext], Coroutine[Any, Any, Break[T] | None]],
        /,
        *,
        commit_interval: int = COMMIT_INTERVAL,
    ) -> Step[T]:
        """Run ``async def body(ctx)`` again and again until it returns ``Break(value)``: a ``loop`` without a state."""
        frame = frame_at(1)
        self._check_body("repeat", body, "async def body(ctx)")
        nothing = codec_for(type(None), "the state of ctx.repeat")
        return self._loop("repeat", frame, body, nothing, None, partial(_repetition, type(self), body), commit_interval)

    def _loop(
        self,
        verb: str,
        frame: FrameType,
        body: Callable[..., Any],
        kept: Codec[Any],
        state: Any,
        iteration: Callable[[Any, Any], Coroutine[Any, Any, Any]],
        commit_interval: int,
    ) -> Step[Any]:
        if type(commit_interval) is not int or commit_interval < 1:
            raise ValueError(f"ctx.{verb}: commit_interval is {commit_interval!r}; write a whole number of at least 1.")
        first, _ = kept.roundtrip(state, "state")
        given = _break_codec(body, frame)
        return self._made(
            LoopStep(
                self._version,
                verb,
                frame.f_code,
                frame.f_lasti,
                iteration,
                first,
                partial(_roundtrip, kept, "state"),
                kept.decode,
                partial(_encode, given, "value of the Break"),
                given.decode,
                commit_interval,
            )
        )

    def _checked(self, verb: str, step: Any) -> CoreStep:
        if isinstance(step, CoreStep):
            _raise(step, self._version)
            return step
        if isinstance(step, set | frozenset):
            what = "a set, whose order differs from process to process; give its steps one by one"
        elif inspect.iscoroutine(step):
            step.close()  # or Python warns of it besides
            what = (
                f"the coroutine of {step.__qualname__}; write `ctx.closure({step.__name__})` with the function itself"
            )
        elif isinstance(step, Activity | Workflow):
            verb_of = "activity" if isinstance(step, Activity) else "run"
            what = f"{step.what} itself; give it with its input, `ctx.{verb_of}({step.name}, …)`"
        elif callable(step):
            what = f"the function {getattr(step, '__name__', step)}; wrap it, as in `ctx.closure(body)`"
        elif isinstance(step, list | tuple):
            what = "a list of steps; write `ctx.join_all([…])`, which is a step too"
        elif step is None:
            what = "None; write `ctx.maybe(step)` for a step that may be None"
        else:
            what = f"{type(step).__name__} {step!r:.80}; give what a verb of `ctx` returns, before it is awaited"
        raise self._refused(DefinitionError(f"ctx.{verb} was given {what}."))

    def _check_body(self, verb: str, body: Any, shape: str) -> None:
        if inspect.iscoroutinefunction(body):
            return
        if inspect.iscoroutine(body):
            body.close()  # or Python warns of it besides
            fix = f"give the function itself: `ctx.{verb}({body.__name__})`"
        else:
            fix = f"give a function written `{shape}`"
        raise self._refused(DefinitionError(f"ctx.{verb} was given {body!r}; {fix}."))


_UNCHANGING = (int, float, complex, str, bytes, tuple, frozenset, Enum, date, timedelta, Decimal, UUID)


def _cannot_be_changed(state: object) -> DefinitionError:
    return DefinitionError(
        f"ctx.loop was given the state {state!r:.100}, a {type(state).__name__}, which cannot be changed in place: every "
        f"iteration would begin with the same one. Give a model, a list or a dictionary that the body changes; or "
        f"`ctx.repeat(body)` if there is nothing to carry from one iteration to the next"
    )


def _raise(step: CoreStep, version: int) -> None:
    """Let a step that is given to ``ctx.v(2).join(…)`` be no lower than the join: it is inserted with it."""
    step.version = max(step.version, version)
    for part in step.parts():
        _raise(part, version)


def _on_a_branch(
    context: type[Any], body: Callable[[Any], Coroutine[Any, Any, Any]], port: Any
) -> Coroutine[Any, Any, Any]:
    return body(context(port))


def _inline(context: type[Any], definition: Workflow[Any, Any], given: Any, port: Any) -> Coroutine[Any, Any, Any]:
    return definition.fn(context(port), given)


def _iteration(
    context: type[Any], body: Callable[[Any, Any], Coroutine[Any, Any, Any]], port: Any, state: Any
) -> Coroutine[Any, Any, Any]:
    return body(context(port), state)


def _repetition(
    context: type[Any], body: Callable[[Any], Coroutine[Any, Any, Any]], port: Any, state: Any
) -> Coroutine[Any, Any, Any]:
    return body(context(port))


def _roundtrip(codec: Codec[Any], where: str, value: Any) -> tuple[bytes, Any]:
    return codec.roundtrip(value, where)


def _encode(codec: Codec[Any], where: str, value: Any) -> bytes:
    return codec.encode(value, where)


def _failed(error: Exception) -> Failed:
    if isinstance(error, ActivityFailed):
        return Failed(error.error, error.attempts)
    return Failed(error_info(error), 1)


def _encoder(step: CoreStep) -> Callable[[Any], bytes]:
    """How the value of a race's winner is kept: as its activity keeps it, else as what it is."""
    if isinstance(step, ActivityStep):
        return partial(_encode, step.plan.definition.output_codec, "output")
    return partial(_render, f"what `ctx.{step.verb}(…)` gave to the race")


def _render(what: str, value: Any) -> bytes:
    # Nobody decodes it: a replay gets the value from the winner's own steps. So it need not come back as it was.
    try:
        rendered: bytes = codec_for(Any, what).render(value)
    except Exception as error:
        raise NotSerializable(f"{what} cannot be recorded as its winner's value: {error}", path="value") from error
    return rendered


def _break_codec(body: Callable[..., Any], frame: FrameType) -> Codec[Any]:
    """The codec of what a loop's body breaks with, by its annotation ``-> Break[T] | None``; of anything without one."""
    function: Any = body
    while isinstance(function, partial):
        function = function.func
    annotation = resolved(function, "return", frame)
    given: Any = Any
    united = typing.get_origin(annotation) in (typing.Union, UnionType)
    for part in typing.get_args(annotation) if united else (annotation,):
        if typing.get_origin(part) is Break:
            (given,) = typing.get_args(part)
    return codec_for(given, f"what the loop body {function.__qualname__} breaks with")
