"""Values as JSON: encoded, decoded with their declared type, and refused unless they come back exactly (design §9).

The types follow users' annotations, read by pydantic. What a body sees on its first run is the decoded form, the same
that replay will see. History holds field names, never aliases; bytes are base64 (URL-safe alphabet) both ways; computed
fields are left out, as they are computed again.

Payloads are parsed by pydantic-core and not by orjson, which reads 2^64 as a float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from functools import lru_cache, partial
from typing import Any, Generic, Self, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaSerializer, SchemaValidator, from_json, to_json

from gasoline_es.core.comparison import Difference, difference, key_step, kind_of, name_of
from gasoline_es.core.faults import DEPTH_MAX, DEPTH_OF_RECORDS, fault_in, iterates, unknown_in
from gasoline_es.core.survival import Survives, survival_of
from gasoline_es.errors import DefinitionError, NotSerializable, ReplayError

T = TypeVar("T")

_INT64_MAX = 1 << 63
_FIX = "A value must come back from JSON as it was: declare the type it has, or convert it to the declared one first"
_BYTES_AS_BASE64 = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}


# --- JSON trees -------------------------------------------------------------------------------------------------------


def parse_json(raw: bytes | bytearray | memoryview | str) -> Any:
    """Parse JSON with exact integers of up to 4,300 digits.

    Raises: ValueError if it is malformed, or contains NaN or an infinity.
    """
    return from_json(raw if isinstance(raw, (bytes, bytearray, str)) else bytes(raw), allow_inf_nan=False)


def dump_json(value: Any) -> bytes:
    """Write a tree of dicts with str keys, lists, str, int, float, bool and None as compact JSON in UTF-8.

    For trees that this library makes; what users give goes through a :class:`Codec`, which also compares.
    Raises: ValueError for NaN, infinities, lone surrogates, cycles and what is no JSON.
    """
    raw = to_json(value)
    if b"NaN" in raw or b"Infinity" in raw:
        from_json(raw, allow_inf_nan=False)  # the words may stand inside a string
    return raw


def same_json(one: bytes, other: bytes) -> bool:
    """Tell whether two JSON texts are the same value."""
    # What was read back from the log is rendered anew: 1e22 and 1E+22 are the same input.
    return one == other or _equal(parse_json(one), parse_json(other))


def _equal(one: Any, other: Any) -> bool:
    """Whether two trees of JSON are the same. To Python True, 1 and 1.0 are equal; as inputs they are not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        mapping = cast(dict[str, Any], one)
        return mapping.keys() == other.keys() and all(_equal(value, other[key]) for key, value in mapping.items())
    if isinstance(one, list):
        values = cast(list[Any], one)
        return len(values) == len(other) and all(map(_equal, values, other))
    return bool(one == other)


def check_depth(raw: bytes) -> None:
    """Refuse JSON that nests too deeply to be read inside a record. Raises: ValueError."""
    if len(raw) > 2 * DEPTH_MAX and raw.count(b"[") + raw.count(b"{") > DEPTH_MAX:
        from_json(b"[" * DEPTH_OF_RECORDS + raw + b"]" * DEPTH_OF_RECORDS)


# --- codecs -----------------------------------------------------------------------------------------------------------


class Codec(Generic[T]):
    """Writes and reads the values of one annotation. Made by :func:`codec_for`; may be shared between threads."""

    __slots__ = ("_survives", "_to_json", "_validate_json", "annotation", "name", "what")

    def __init__(
        self,
        annotation: Any,
        serializer: SchemaSerializer,
        validator: SchemaValidator,
        survives: Survives | None = None,
    ) -> None:
        self.annotation = annotation
        self.what = ""
        self._survives = survives
        self.name = name_of(annotation) if isinstance(annotation, type) else str(annotation).replace("typing.", "")
        self._to_json = serializer.to_json
        # Where survival can be proved there are no aliases and nothing computed. Options are left out then: they cost time.
        self._validate_json: Callable[[bytes], T] = (
            partial(validator.validate_json, by_alias=True, by_name=True)
            if survives is None
            else validator.validate_json
        )

    def encode(self, value: T, where: str) -> bytes:
        """Encode as JSON in UTF-8 without a newline, after proving that it decodes to the same value and type.

        ``where`` names the value in the error's path. Raises: NotSerializable.
        """
        survives = self._survives
        if survives is not None and survives(value):
            try:
                return self._to_json(value)
            except ValueError:  # a lone surrogate: the long way says where
                pass
        return self.roundtrip(value, where)[0]

    def named(self, what: str) -> Self:
        """Give this codec with a name that its refusals begin with: ``input of activity charge (app/orders.py:12)``."""
        named = copy(self)
        named.what = what
        return named

    def render(self, value: T) -> bytes:
        """Write what this codec decoded, without checking anything: it came from JSON and has not been touched."""
        return self._to_json(value, by_alias=False, round_trip=True, warnings=False)

    def decode(self, raw: bytes) -> T:
        """Decode with the declared type; aliases are accepted besides field names.

        Raises: ReplayError if the recorded value does not fit the annotation (any more). Fields: ``path``, ``type``.
        """
        try:
            return self._validate_json(raw)
        except Exception as error:  # pydantic's ValidationError, and whatever users' validators raise besides
            if isinstance(error, ValidationError):
                path, problem, _kind = _first_problem(error, "value")
            else:
                path, problem = "value", f"{type(error).__name__}: {_one_line(error)}"
            raise ReplayError(
                f"a recorded value does not fit its declared type {self.name}: {path}: {problem}",
                path=path,
                type=self.name,
            ) from error

    def roundtrip(self, value: T, where: str) -> tuple[bytes, T]:
        """Give the encoded bytes and the decoded form, which shares nothing mutable with ``value``.

        The two are compared deeply, by value and type (``comparison.difference``).
        Raises: NotSerializable with the path below ``where`` and the type of what cannot be kept.
        """
        try:
            if iterates(value):
                raise TypeError("an iterator can be read only once")
            # Not warnings="error", which costs 1.2 µs more than the rest: what pydantic warns of is a wrong type, and
            # that either changes on the way or is kept as it is.
            raw = self._to_json(value, by_alias=False, round_trip=True, warnings=False)
            check_depth(raw)
            decoded = self._validate_json(raw)
            found = difference(value, decoded)
        except Exception as error:  # pydantic, and whatever users' serialisers and validators raise
            raise self._explained(value, where, error) from error
        if found is not None:
            cause = _cause(value, found)
            raise self._refusal(cause.path(where), cause.reason, cause.kind)
        return raw, decoded

    def _explained(self, value: Any, where: str, error: Exception) -> NotSerializable:
        """Find out what pydantic stumbled over: it names types and problems, but seldom the path."""
        try:
            found = fault_in(value) or unknown_in(value)
        except Exception:  # the value's own code may raise anywhere; then the first error is the best there is
            found = None
        if found is not None:
            return self._refusal(found.path(where), found.reason, found.kind)
        if isinstance(error, ValidationError):
            path, problem, kind = _first_problem(error, where)
            expected, found = self.name, value
            if path != where:
                expected, found = _expected(error, value)
            if expected:
                kind = kind_of(found)  # what it is, not what JSON made of it
            if value is None and self.what.startswith("output of"):
                reason = f"expected {expected}, got None: is there a way through the function without `return`?"
            elif expected not in ("", kind):
                reason = f"expected {expected}, got {kind}"
            else:
                reason = f"{kind} does not come back: {problem}"
            return self._refusal(path, reason, kind)
        return self._refusal(where, f"{type(error).__name__}: {_one_line(error)}", kind_of(value))

    def _refusal(self, path: str, reason: str, kind: str) -> NotSerializable:
        if len(path) > 300:
            path = f"{path[:150]}…{path[-150:]}"
        what = f"{self.what}: " if self.what else ""
        stop = "" if reason.endswith(("?", ".")) else "."
        return NotSerializable(f"{what}{path}: {reason}{stop} {_FIX}", path=path, type=kind)


class _ScalarCodec(Codec[T]):
    """A codec of one immutable built-in type: a value of exactly that type survives, which needs no comparing."""

    __slots__ = ("_kind", "_write")

    def __init__(
        self, kind: type, write: Callable[[Any], bytes | None], serializer: SchemaSerializer, validator: SchemaValidator
    ) -> None:
        super().__init__(kind, serializer, validator)
        self._kind = kind
        self._write = write

    def encode(self, value: T, where: str) -> bytes:
        """See :meth:`Codec.encode`."""
        return self.roundtrip(value, where)[0]

    def roundtrip(self, value: T, where: str) -> tuple[bytes, T]:
        """See :meth:`Codec.roundtrip`."""
        if type(value) is self._kind:
            raw = self._write(value)
            if raw is not None:
                return raw, value
        return super().roundtrip(value, where)


def _write_int(value: int) -> bytes | None:
    return b"%d" % value if -_INT64_MAX < value < _INT64_MAX else None


def _write_float(value: float) -> bytes | None:
    return repr(value).encode() if math.isfinite(value) else None


def _write_str(value: str) -> bytes | None:
    try:
        return to_json(value)
    except ValueError:
        return None


_SCALARS: dict[Any, Callable[[Any], bytes | None]] = {
    int: _write_int,
    float: _write_float,
    str: _write_str,
    bool: lambda value: b"true" if value else b"false",
    type(None): lambda value: b"null",
}


def codec_for(annotation: Any, what: str) -> Codec[Any]:
    """Give the codec of an annotation. Codecs are kept, so asking again is cheap.

    ``what`` names the place in the error, as "the input of workflow fulfil".
    Raises: DefinitionError if pydantic cannot make a schema of the annotation.
    """
    try:
        # The text too, because int | str equals str | int, and pydantic tries them in order.
        return _codec(annotation, "" if isinstance(annotation, type) else repr(annotation))
    except Exception as error:
        if isinstance(error, TypeError) and "unhashable" in str(error):
            try:
                return _codec.__wrapped__(annotation, "")
            except Exception as inner:
                error = inner
        raise DefinitionError(
            f"{what} is declared as {annotation!r}, which cannot be kept: {_one_line(error)}", what=what
        ) from error


@lru_cache(maxsize=4096)
def _codec(annotation: Any, _text: str) -> Codec[Any]:
    if annotation is None:
        annotation = type(None)
    adapter = TypeAdapter[Any](annotation)
    serializer, validator = adapter.serializer, cast(SchemaValidator, adapter.validator)
    write = _SCALARS.get(annotation) if isinstance(annotation, type) else None
    if write is not None:
        return _ScalarCodec[Any](annotation, write, serializer, validator)
    schema = adapter.core_schema
    if _has_bytes(schema):
        serializer, validator = _with_base64(schema)
    return Codec[Any](annotation, serializer, validator, survival_of(schema))


def encode_any(value: Any, where: str) -> bytes:
    """Encode a value without a declared type: only what JSON itself holds comes back exactly, all else is refused.

    Raises: NotSerializable, see :meth:`Codec.encode`.
    """
    return codec_for(Any, "a JSON value").encode(value, where)


# --- bytes ------------------------------------------------------------------------------------------------------------
#
# pydantic writes bytes as UTF-8 text unless a class's own configuration says base64, and a TypeAdapter may not
# configure the classes below it. So where bytes occur, the schema is rebuilt with base64 in every class that does not
# choose for itself.

_CLASSES = ("model", "dataclass", "typed-dict")
_NOT_SCHEMA = ("metadata", "default", "cls", "members", "expected")


def _children(schema: Any) -> Iterator[Any]:
    if type(schema) is dict:
        for key, child in cast(dict[Any, Any], schema).items():
            if key not in _NOT_SCHEMA:
                yield child
    elif type(schema) is list or type(schema) is tuple:
        yield from cast(list[Any], schema)


def _has_bytes(schema: Any) -> bool:
    if type(schema) is dict and cast(dict[str, Any], schema).get("type") == "bytes":
        return True
    return any(_has_bytes(child) for child in _children(schema))


def _with_base64(schema: Any) -> tuple[SchemaSerializer, SchemaValidator]:
    rebuilt = _rebuilt(schema)
    config = cast(Any, _BYTES_AS_BASE64)
    try:
        # Without this, classes would bring their own ready-made serialisers, configured as they were defined.
        return (
            SchemaSerializer(rebuilt, config, _use_prebuilt=False),
            SchemaValidator(rebuilt, config, _use_prebuilt=False),
        )
    except TypeError:  # an older pydantic-core: bytes that are not UTF-8 are then refused inside classes
        return SchemaSerializer(rebuilt, config), SchemaValidator(rebuilt, config)


def _rebuilt(schema: Any) -> Any:
    if type(schema) is dict:
        node = cast(dict[str, Any], schema)
        copy = {key: child if key in _NOT_SCHEMA else _rebuilt(child) for key, child in node.items()}
        if node.get("type") in _CLASSES:
            copy["config"] = {**_BYTES_AS_BASE64, **(node.get("config") or {})}
        return copy
    if type(schema) is list:
        return [_rebuilt(child) for child in cast(list[Any], schema)]
    if type(schema) is tuple:
        return tuple([_rebuilt(child) for child in cast(tuple[Any, ...], schema)])
    return schema


# --- explaining a refusal ---------------------------------------------------------------------------------------------


def _cause(value: Any, found: Difference) -> Difference:
    """Prefer to say why nothing could keep a value over how this annotation changed it (NaN becomes null)."""
    try:
        fault = fault_in(value)
    except Exception:  # the value's own code may raise anywhere
        return found
    return fault if fault is not None and fault.path("").startswith(found.path("")) else found


def _first_problem(error: ValidationError, where: str) -> tuple[str, str, str]:
    """Give the path and text of the first of pydantic's problems, and the type of what it found there."""
    problem = error.errors(include_url=False, include_context=False)[0]
    steps = [_step(step) for step in problem["loc"]]
    return where + "".join(steps), problem["msg"], kind_of(problem["input"])


def _step(step: int | str) -> str:
    if step == "[key]":  # pydantic's mark for "the key itself"
        return ""
    return f".{step}" if isinstance(step, str) and step.isidentifier() else key_step(step)


_EXPECTED = {
    "bool": "bool",
    "bytes": "bytes",
    "date": "date",
    "datetime": "datetime",
    "decimal": "Decimal",
    "dict": "dict",
    "float": "float",
    "int": "int",
    "list": "list",
    "none": "None",
    "set": "set",
    "string": "str",
    "time": "time",
    "tuple": "tuple",
    "uuid": "UUID",
}


def _expected(error: ValidationError, value: Any) -> tuple[str, Any]:
    """Name the type that was declared where the first problem is, and give what is there; ``""`` if it is not so plain."""
    first = error.errors(include_url=False, include_context=False)[0]
    kind, _, problem = first["type"].partition("_")
    expected = _EXPECTED.get(kind, "") if problem in ("type", "parsing", "required") else ""
    try:
        for step in first["loc"]:
            value = value[step] if type(value) in (dict, list, tuple) else getattr(value, str(step))
    except Exception:  # a key, a case of a union, or an alias: not a place in the value
        return "", None
    return expected, value


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}…"
