"""What makes a value unfit to be kept, whatever its annotation: live objects, cycles, NaN, too deep a nesting.

:func:`iterates` runs before a value is encoded, as pydantic would consume an iterator it meets where another type is
declared, or read from an open file or pipe, for ever if need be. All else runs only after a refusal, to name the path.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_json

from gasoline_es.core.comparison import Difference, key_step, kind_of

# pydantic-core's parser reads 201 levels. A value's share leaves the rest to the records that embed it, so that nothing
# is written that cannot be read.
DEPTH_MAX = 150
DEPTH_OF_RECORDS = 51

_LIVE_TYPES: tuple[type[Any], ...] = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Give the steps and values directly below a value; nothing for what is opaque."""
    if isinstance(value, BaseModel):
        for name, part in {**value.__dict__, **(value.__pydantic_extra__ or {})}.items():
            yield f".{name}", part
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield f".{each.name}", getattr(value, each.name, None)
    elif isinstance(value, Mapping):
        for key, part in cast(Mapping[Any, Any], value).items():
            yield key_step(key), part
    elif isinstance(value, (list, tuple, deque)):
        for index, part in enumerate(cast(list[Any], value)):
            yield f"[{index}]", part
    elif isinstance(value, (set, frozenset)):
        for part in cast(set[Any], value):
            yield key_step(part), part


def fault_in(value: Any) -> Difference | None:
    """Find what no annotation could save: a cycle, NaN, a lone surrogate, a live object, too deep a nesting."""
    return _fault(value, [])


def _fault(value: Any, above: list[int]) -> Difference | None:
    if isinstance(value, float) and not math.isfinite(value):
        return Difference(f"{value!r} is not a JSON number", "float")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return Difference("a str with a lone surrogate is not valid Unicode", "str")
        return None
    if (
        isinstance(value, _LIVE_TYPES)
        or hasattr(value, "__next__")
        or any(base.__module__ == "_io" for base in type(value).__mro__)
    ):
        kind = kind_of(value)
        return Difference(f"a {kind} cannot be kept; give the data it stands for", kind)
    if id(value) in above:
        return Difference("it contains itself", kind_of(value))
    if len(above) >= DEPTH_MAX:
        return Difference(f"it is nested more than {DEPTH_MAX} levels deep", kind_of(value))
    above.append(id(value))
    for step, part in _parts(value):
        found = _fault(part, above)
        if found is not None:
            return found.under(step)
    above.pop()
    return None


def unknown_in(value: Any) -> Difference | None:
    """Find the innermost value of a type that pydantic cannot write."""
    opaque = True
    for step, part in _parts(value):
        opaque = False
        found = unknown_in(part)
        if found is not None:
            return found.under(step)
    if opaque:
        try:
            to_json(value)
        except ValueError:
            kind = kind_of(value)
            return Difference(f"a {kind} cannot be written as JSON", kind)
    return None


# --- before encoding --------------------------------------------------------------------------------------------------

_MAPPING, _SEQUENCE, _INSTANCE, _SLOTTED, _ITERATOR = range(5)

# Types whose instances are or hold no iterator, as far as can be seen. Added to as more are met.
_leaves: set[type[Any]] = {
    *(str, int, float, bool, type(None), bytes, UUID, Decimal, date, datetime, time, timedelta),
}
_ways: dict[type[Any], int] = {
    **dict.fromkeys((dict, OrderedDict, defaultdict), _MAPPING),
    **dict.fromkeys((list, tuple, set, frozenset, deque), _SEQUENCE),
}


def _way_into(kind: type[Any]) -> int | None:
    """Tell how to look into the instances of a type. None: those hide what they hold, or hold nothing."""
    if issubclass(kind, Enum):
        return None
    if hasattr(kind, "__next__"):
        return _ITERATOR
    for base in kind.__mro__:
        if base in _ways:
            return _ways[base]
    if issubclass(kind, BaseModel):
        return _INSTANCE
    if dataclasses.is_dataclass(kind):
        return _INSTANCE if kind.__dictoffset__ else _SLOTTED
    return None


def iterates(value: object) -> bool:
    """Tell whether there is an iterator in a value. Raises: RecursionError if it contains itself."""
    kind = type(value)
    way = _ways.get(kind)
    if way is None:
        way = None if kind in _leaves else _way_into(kind)
        if way is None:
            _leaves.add(kind)
            return False
        _ways[kind] = way
    if way == _ITERATOR:
        return True
    parts: Any = value
    if way == _INSTANCE:
        parts = value.__dict__.values()
    elif way == _MAPPING:
        parts = parts.values()
    elif way == _SLOTTED:
        parts = [part for _, part in _parts(value)]
    # The common case at C speed: nothing but leaves.
    return not _leaves.issuperset(map(type, parts)) and any(map(iterates, parts))
