"""Whether a value came back from its encoding as it was: compared deeply, by value and by exact type (design §9).

``==`` is not enough: ``True == 1 == 1.0``, ``(1,) `` in a model may have become ``[1]`` inside an equal-looking field,
``-0.0 == 0.0``, and two datetimes of different zones can be one instant. One rule per type, found once and kept.

What is not compared, because it is derived or bookkeeping: a model's ``model_fields_set``, and the values that
``functools.cached_property`` leaves in an instance.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from functools import cached_property
from operator import itemgetter
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel
from pydantic_core import TzInfo

_MISSING: Any = type("missing", (), {})()


class Difference:
    """One difference: ``reason`` as a sentence's end (``tuple became list``), ``kind`` the type's name, and where.

    The path is put together on the way out of the recursion, so that comparing equal values builds none.
    """

    __slots__ = ("kind", "reason", "steps")

    def __init__(self, reason: str, kind: str) -> None:
        self.reason = reason
        self.kind = kind
        self.steps: list[str] = []

    def under(self, step: str) -> Difference:
        """Put the difference below ``step`` (``.items`` or ``[3]``) of the enclosing value."""
        self.steps.append(step)
        return self

    def path(self, where: str) -> str:
        """Give the path from the root named ``where``: ``order.items[3]``."""
        return where + "".join(reversed(self.steps))


Rule = Callable[[Any, Any], Difference | None]


def difference(given: object, decoded: object) -> Difference | None:
    """Find the first difference between a value and its decoded form, or None if they are the same.

    An int stands for the equal float where a float is declared, as the type system has it (PEP 484); nothing else may
    change its type.
    """
    kind = type(given)
    if kind is not type(decoded):
        if kind is int and type(decoded) is float and given == decoded:
            return None
        return Difference(f"{name_of(kind)} became {kind_of(decoded)}", name_of(kind))
    rule = _rules.get(kind)
    if rule is None:
        rule = _rules[kind] = _rule_for(kind)
    return rule(given, decoded)


def name_of(kind: type[Any]) -> str:
    """Name a type as users know it: ``int``, ``OrderLine``, ``io.TextIOWrapper``."""
    if kind is type(None):
        return "None"
    name = kind.__qualname__.rpartition("<locals>.")[2]
    module = kind.__module__.removeprefix("_")
    return f"{module}.{name}" if module in ("io", "thread") else name


def kind_of(value: object) -> str:
    """Name the type of a value, see :func:`name_of`."""
    return name_of(type(value))


def key_step(key: object) -> str:
    """Write one key of a mapping as a step of a path: ``['colour']``, cut where it is long."""
    try:
        text = repr(key)
    except Exception:  # a user's repr may do anything
        text = f"a {kind_of(key)}"
    return f"[{text if len(text) <= 60 else text[:60] + '…'}]"


def _changed(given: Any, decoded: Any) -> Difference:
    return Difference(f"{_shown(given)} became {_shown(decoded)}", kind_of(given))


def _shown(value: object) -> str:
    if value is _MISSING:
        return "missing"
    try:
        text = repr(value)
    except Exception:  # a user's repr may do anything
        return f"a {kind_of(value)}"
    return text if len(text) <= 80 else f"{text[:80]}…"


# --- scalars ----------------------------------------------------------------------------------------------------------


def _equal(given: Any, decoded: Any) -> Difference | None:
    return None if given == decoded else _changed(given, decoded)


def _float(given: float, decoded: float) -> Difference | None:
    if given == decoded and given and given - given == 0.0:  # equal, not a zero of either sign, finite
        return None
    # NaN is refused even where it would survive (as the string "NaN"): no log and no reader agrees on it.
    if not math.isfinite(given):
        return Difference(f"{given!r} is not a JSON number", "float")
    if given != decoded or math.copysign(1.0, given) != math.copysign(1.0, decoded):
        return _changed(given, decoded)
    return None


def _complex(given: complex, decoded: complex) -> Difference | None:
    return _float(given.real, decoded.real) or _float(given.imag, decoded.imag)


def _decimal(given: Decimal, decoded: Decimal) -> Difference | None:
    # By digits and exponent: 1.0 == 1.00, but they are printed and rounded differently.
    return None if given.as_tuple() == decoded.as_tuple() else _changed(given, decoded)


def _datetime(given: datetime, decoded: datetime) -> Difference | None:
    if given.replace(tzinfo=None) != decoded.replace(tzinfo=None) or given.fold != decoded.fold:
        return _changed(given, decoded)
    return _zone(given.tzinfo, decoded.tzinfo, given.utcoffset() == decoded.utcoffset())


def _time(given: time, decoded: time) -> Difference | None:
    if given.replace(tzinfo=None) != decoded.replace(tzinfo=None) or given.fold != decoded.fold:
        return _changed(given, decoded)
    return _zone(given.tzinfo, decoded.tzinfo, given.utcoffset() == decoded.utcoffset())


def _zone(given: tzinfo | None, decoded: tzinfo | None, same_offset: bool) -> Difference | None:
    """JSON keeps an offset, not a zone: only a zone that *is* an offset comes back meaning the same."""
    if given is None and decoded is None:
        return None
    if given is None or decoded is None or not same_offset:
        return Difference(f"time zone {given!r} became {decoded!r}", "datetime.tzinfo")
    if _is_fixed(given):
        return None
    return Difference(
        f"the time zone {given!r} would be kept only as the offset {decoded}; give it as value.astimezone(UTC)",
        kind_of(given),
    )


def _is_fixed(zone: tzinfo) -> bool:
    if type(zone) is TzInfo:
        return True
    if type(zone) is timezone:
        return zone == UTC or zone.tzname(None).startswith("UTC")  # a zone's own name would be lost
    return isinstance(zone, ZoneInfo) and zone.key == "UTC"


def _enum(given: Enum, decoded: Enum) -> Difference | None:
    # Not by ==, which an enum may define; equal values of a Flag are one object too.
    return None if given is decoded or given.value == decoded.value else _changed(given, decoded)


# --- containers -------------------------------------------------------------------------------------------------------


def _length(given: Collection[Any], decoded: Collection[Any]) -> Difference | None:
    if len(given) == len(decoded):
        return None
    kind = kind_of(given)
    return Difference(f"a {kind} of {len(given)} became one of {len(decoded)}", kind)


def _sequence(given: Sequence[object], decoded: Sequence[object]) -> Difference | None:
    if len(given) != len(decoded):
        return _length(given, decoded)
    for index, (x, y) in enumerate(zip(given, decoded, strict=True)):
        kind = type(x)
        if not (kind is type(y) and kind in _PLAIN and x == y):
            found = difference(x, y)
            if found is not None:
                return found.under(f"[{index}]")
    return None


def _deque(given: deque[Any], decoded: deque[Any]) -> Difference | None:
    if given.maxlen != decoded.maxlen:
        return Difference(f"a deque with maxlen {given.maxlen} became one with {decoded.maxlen}", "deque")
    return _sequence(given, decoded)


def _set(given: Set[Any], decoded: Set[Any]) -> Difference | None:
    if len(given) != len(decoded):
        return _length(given, decoded)
    by_value = {member: member for member in decoded}
    for member in given:
        found = difference(member, by_value.get(member, _MISSING))
        if found is not None:
            return found.under(key_step(member))
    return None


def _mapping(given: Mapping[Any, Any], decoded: Mapping[Any, Any]) -> Difference | None:
    if len(given) != len(decoded):
        return _length(given, decoded)
    for (key, x), (other, y) in zip(given.items(), decoded.items(), strict=True):
        if type(key) is not type(other) or key != other:
            # A typed dict comes back in the order of its declaration; anything else is a changed key.
            return _unordered(given, decoded)
        found = (None if type(key) is str else difference(key, other)) or difference(x, y)
        if found is not None:
            return found.under(key_step(key))
    return None


def _unordered(given: Mapping[Any, Any], decoded: Mapping[Any, Any]) -> Difference | None:
    keys = {key: key for key in decoded}
    for key, value in given.items():
        other = keys.get(key, _MISSING)
        if other is _MISSING:
            others = {kind_of(each) for each in decoded}
            return Difference(
                f"its key of type {kind_of(key)} did not survive (keys became {', '.join(sorted(others))})",
                kind_of(key),
            ).under(key_step(key))
        found = difference(key, other) or difference(value, decoded[other])
        if found is not None:
            return found.under(key_step(key))
    return None


def _ordered_dict(given: OrderedDict[Any, Any], decoded: OrderedDict[Any, Any]) -> Difference | None:
    if list(given) != list(decoded):
        return Difference("the order of its keys changed", "OrderedDict")
    return _mapping(given, decoded)


def _defaultdict(given: defaultdict[Any, Any], decoded: defaultdict[Any, Any]) -> Difference | None:
    if given.default_factory is not decoded.default_factory:
        return Difference(
            f"its default factory {given.default_factory!r} became {decoded.default_factory!r}", "defaultdict"
        )
    return _mapping(given, decoded)


# --- objects ----------------------------------------------------------------------------------------------------------


def _instance_rule(kind: type[Any], names: tuple[str, ...], rest: Rule | None) -> Rule:
    """Compare instances by their ``__dict__``: the fields first, then whatever else is there, then by ``rest``."""
    count = len(names)
    fetch = _fetcher(names)

    def instance(given: Any, decoded: Any) -> Difference | None:
        have, got = given.__dict__, decoded.__dict__
        try:
            for name, x, y in zip(names, fetch(have), fetch(got), strict=True):
                known = type(x)  # pyright: ignore[reportUnknownVariableType] -- a field may hold anything
                if known is type(y) and (
                    (known in _PLAIN and x == y) or (known is float and x == y != 0.0 and x - x == 0.0)
                ):
                    continue  # the common case without a call; of floats, not the zeros and infinities
                found = difference(x, y)
                if found is not None:
                    return found.under(f".{name}")
        except KeyError:  # made without validation, or a dataclass's default that stands in the class
            found = _named(_fetched(given, names), _fetched(decoded, names), names)
            if found is not None:
                return found
            holds_more = True
        else:
            holds_more = len(have) != count or len(got) != count
        if holds_more:
            found = _named(have, got, _besides(kind, names, have, got))
            if found is not None:
                return found
        return None if rest is None else rest(given, decoded)

    return instance


def _fetcher(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Give what fetches all the names from a mapping in one call. (itemgetter of one name gives no tuple.)"""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda fields: tuple([fields[name] for name in names])


def _model_rule(kind: type[BaseModel]) -> Rule:
    keeps_more = bool(kind.__private_attributes__) or kind.model_config.get("extra") == "allow"
    return _instance_rule(kind, tuple(kind.__pydantic_fields__), _model_rest if keeps_more else None)


def _model_rest(given: BaseModel, decoded: BaseModel) -> Difference | None:
    have, got = given.__pydantic_extra__ or {}, decoded.__pydantic_extra__ or {}
    found = _named(have, got, (*have, *got))
    if found is None:
        have, got = given.__pydantic_private__ or {}, decoded.__pydantic_private__ or {}
        found = _named(have, got, (*have, *got))
    return found


def _dataclass_rule(kind: type[Any]) -> Rule:
    names = tuple([each.name for each in dataclasses.fields(kind)])
    if kind.__dictoffset__:
        return _instance_rule(kind, names, None)

    return lambda given, decoded: _named(_fetched(given, names), _fetched(decoded, names), names)


def _fetched(value: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name, _MISSING) for name in names}


def _besides(
    kind: type[Any], known: Collection[str], given: Mapping[str, Any], decoded: Mapping[str, Any]
) -> Iterable[str]:
    """Name what instances hold besides their known fields and what they have cached."""
    for name in (*given, *decoded):
        if name not in known and not isinstance(getattr(kind, name, None), cached_property):
            yield name


def _named(given: Mapping[str, Any], decoded: Mapping[str, Any], names: Iterable[str]) -> Difference | None:
    for name in names:
        found = difference(given.get(name, _MISSING), decoded.get(name, _MISSING))
        if found is not None:
            return found.under(f".{name}")
    return None


def _attributes(kind: type[Any], given: object, decoded: object) -> Difference | None:
    have: Mapping[str, Any] = getattr(given, "__dict__", {})
    got: Mapping[str, Any] = getattr(decoded, "__dict__", {})
    return _named(have, got, _besides(kind, (), have, got))


def _object_rule(kind: type[Any]) -> Rule:
    """Trust a type's own ``==`` if it has one; else compare what its instances hold."""
    own_equality: bool = getattr(kind, "__eq__", None) is not object.__eq__

    def opaque(given: Any, decoded: Any) -> Difference | None:
        if given is decoded:
            return None
        if own_equality and given == decoded:
            return None
        if own_equality or not getattr(given, "__dict__", None):
            return Difference(f"a {name_of(kind)} does not come back equal", name_of(kind))
        return _attributes(kind, given, decoded)

    return opaque


def _and_attributes(rule: Rule, kind: type[Any]) -> Rule:
    """Compare a user's subclass of a built-in type by that type's rule and by the attributes of the instances."""

    def extended(given: Any, decoded: Any) -> Difference | None:
        return rule(given, decoded) or _attributes(kind, given, decoded)

    return extended


_PLAIN: frozenset[type[Any]] = frozenset([str, int, bool, type(None)])

_rules: dict[type[Any], Rule] = {
    **dict.fromkeys((str, int, bool, type(None), bytes, bytearray, date, timedelta), _equal),
    float: _float,
    complex: _complex,
    Decimal: _decimal,
    datetime: _datetime,
    time: _time,
    list: _sequence,
    tuple: _sequence,
    deque: _deque,
    set: _set,
    frozenset: _set,
    dict: _mapping,
    OrderedDict: _ordered_dict,
    defaultdict: _defaultdict,
}


def _rule_for(kind: type[Any]) -> Rule:
    if issubclass(kind, Enum):
        return _enum
    if issubclass(kind, BaseModel):
        return _model_rule(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_rule(kind)
    for base in kind.__mro__:
        if base in _BUILT_IN:
            return _and_attributes(_rules[base], kind)
    return _object_rule(kind)


# Before any subclass finds its rule here.
_BUILT_IN: frozenset[type[Any]] = frozenset(_rules)
