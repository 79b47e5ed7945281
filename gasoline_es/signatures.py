"""The shape of a definition's function: a context, one input, and the types of what goes in and comes out."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from gasoline_es.core.values import Codec, codec_for
from gasoline_es.errors import DefinitionError, GasolineError

frame_at: Final = sys._getframe  # pyright: ignore[reportPrivateUsage] -- the only way to know the caller cheaply

_NOT_YET: Final = frozenset({"class-not-fully-defined", "undefined-annotation"})
"""What pydantic says of a model whose own annotations name something that comes later in its module."""


class Signature:
    """What the function of one definition takes and gives.

    A definition may be decorated before the types it names exist (``from __future__ import annotations``, forward
    references, models that refer to each other). Everything that can be judged at decoration is; the rest is resolved
    at first use, with the names of the function's module, its closure and the frame that decorated it.
    """

    __slots__ = ("_annotations", "_codecs", "_fn", "_frame", "parameter", "what")

    def __init__(self, fn: Callable[..., Any], what: str, frame: types.FrameType) -> None:
        """``what`` names the definition and its place, for messages. Raises: DefinitionError, with the fix."""
        self.what = what
        self._fn = inspect.unwrap(fn)
        self.parameter, self._annotations = _input_and_output(fn, what)
        # Kept only while a name is missing: a frame keeps every local of its function alive.
        self._frame: types.FrameType | None = frame
        self._codecs: tuple[Codec[Any], Codec[Any]] | None = None
        with contextlib.suppress(_Unresolved):
            self._resolve()

    def codecs(self) -> tuple[Codec[Any], Codec[Any]]:
        """Give the codecs of the input and of the output. Raises: DefinitionError while a name cannot be found."""
        if self._codecs is None:
            try:
                self._resolve()
            except _Unresolved as unresolved:
                raise DefinitionError(
                    f"{self.what}: {unresolved.reason}. Define the name before the first use, at the level of the "
                    "module, and import it at run time too (not only under TYPE_CHECKING)."
                ) from unresolved.__cause__
        assert self._codecs is not None
        return self._codecs

    def _resolve(self) -> None:
        scope = self._scope()
        given = self._codec("input", f"its parameter {self.parameter!r}", scope)
        made = self._codec("return", "its return", scope)
        self._codecs = (given, made)
        self._frame = None

    def _codec(self, key: str, where: str, scope: Mapping[str, Any]) -> Codec[Any]:
        annotation = self._annotations[key]
        try:
            resolved = _evaluate(annotation, self._fn.__globals__, scope)
            return codec_for(resolved, f"the {'input' if key == 'input' else 'output'} of {self.what}")
        except Exception as error:
            if _is_missing_name(error):
                raise _Unresolved(f"the annotation {annotation!r} of {where} cannot be resolved ({error})") from error
            if isinstance(error, GasolineError):
                raise
            raise DefinitionError(
                f"{self.what}: the annotation {annotation!r} of {where} is not a type that can be kept ({error}). "
                "Annotate it with a type pydantic can validate: a model, a dataclass, or types of the standard library."
            ) from error

    def _scope(self) -> dict[str, Any]:
        """The names visible where the function was written, the innermost last so that they win."""
        names: dict[str, Any] = {}
        if self._frame is not None and self._frame.f_locals is not self._frame.f_globals:
            names.update(self._frame.f_locals)
        for name, cell in zip(self._fn.__code__.co_freevars, self._fn.__closure__ or (), strict=True):
            try:
                names[name] = cell.cell_contents
            except ValueError:  # an empty cell: assigned later in the enclosing function
                continue
        return names


class _Unresolved(Exception):
    """A name is not defined yet. ``reason`` says which."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def describe(kind: str, fn: Callable[..., Any], name: str) -> str:
    """Name a definition and its place for messages: ``activity charge (app/orders.py:12)``."""
    file, line = place_of(fn)
    return f"{kind} {name} ({file}:{line})"


def place_of(fn: Callable[..., Any]) -> tuple[str, int]:
    """Give the file and line where a function was written (of the innermost one, under ``functools.wraps``)."""
    code: types.CodeType | None = getattr(inspect.unwrap(fn), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("<unknown>", 0)


def _input_and_output(fn: Callable[..., Any], what: str) -> tuple[str, dict[str, Any]]:
    parameters = list(inspect.signature(fn).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) != 2 or any(parameter.kind not in positional for parameter in parameters):
        names = ", ".join(str(parameter).split(":")[0] for parameter in parameters) or "none"
        raise DefinitionError(
            f"{what} must have exactly two parameters, a context and one input; it has: {names}. Gather several inputs "
            "in one pydantic model or dataclass; if it needs no input, annotate the second one with None. (A decorator "
            "in between must use functools.wraps.)"
        )
    # The first parameter's annotation is never looked at: it may be imported under TYPE_CHECKING only.
    taken = parameters[1]
    annotations = inspect.unwrap(fn).__annotations__
    if taken.name not in annotations:
        raise DefinitionError(
            f"{what}: its parameter {taken.name!r} has no annotation, so its values cannot be kept. Write its type, as "
            f"in `{taken.name}: Order`."
        )
    if "return" not in annotations:
        raise DefinitionError(
            f"{what} has no return annotation, so its values cannot be kept. Write `-> Receipt`, or `-> None` when it "
            "returns nothing."
        )
    return taken.name, {"input": annotations[taken.name], "return": annotations["return"]}


def resolved(fn: Callable[..., Any], key: str, frame: types.FrameType) -> Any:
    """Give a function's annotation, with the names of its module and of the frame; Any where there is none to be had."""
    annotation = fn.__annotations__.get(key, Any)
    try:
        return _evaluate(annotation, fn.__globals__, frame.f_locals)
    except Exception:  # a name that is not defined, or whatever evaluating it raises
        return Any


def _evaluate(annotation: Any, globalns: dict[str, Any], scope: Mapping[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, globalns, dict(scope), include_extras=True)["it"]


def _is_missing_name(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, PydanticSchemaGenerationError):
            return False  # the type is known, and pydantic cannot keep it
        # AttributeError: `module.Order` while that module is still being imported.
        if isinstance(error, NameError | AttributeError):
            return True
        if isinstance(error, PydanticUserError) and error.code in _NOT_YET:
            return True
        error = error.__cause__ or error.__context__
    return False
