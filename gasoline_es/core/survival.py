"""Values that provably come back from their encoding as they were: told by their types alone, without trying (design §9).

The proof is an allow-list over pydantic's own schema: a model whose fields are plain scalars, datetimes of UTC, lists and
dictionaries of such, or such models again, with no validator, serialiser, constraint, alias or configuration that could
change a value, holds only values that survive if each of them has exactly its field's type. Everything
else is tried: encoded, decoded and compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_core import TzInfo

Survives = Callable[[Any], bool]
"""Tells whether a value survives. False means only that it has to be tried."""

_Schema = dict[str, Any]


def survival_of(schema: Any) -> Survives | None:
    """Return the test for values of a pydantic core schema, or None where nothing can be proved."""
    if type(schema) is not dict:
        return None
    node = cast(_Schema, schema)
    kind = node.get("type")
    if kind == "model":
        return _model(node)
    if kind == "nullable" and node.keys() <= {"type", "schema", "metadata"}:
        inner = survival_of(node["schema"])
        return None if inner is None else lambda value: value is None or inner(value)
    if kind == "list" and node.keys() <= {"type", "items_schema", "metadata"}:
        item = survival_of(node.get("items_schema"))
        return None if item is None else lambda value: type(value) is list and all(map(item, cast(list[Any], value)))
    if kind == "dict" and node.keys() <= {"type", "keys_schema", "values_schema", "metadata"}:
        return _dict(node)
    if kind == "datetime" and node.keys() <= {"type", "microseconds_precision", "metadata"}:
        return _datetime
    scalar = _SCALARS.get(cast(str, kind))
    return scalar if scalar is not None and node.keys() <= {"type", "metadata"} else None


def _model(node: _Schema) -> Survives | None:
    cls, fields = node["cls"], node["schema"]
    plain = (
        node.keys() <= {"type", "cls", "schema", "config", "metadata", "ref", "custom_init", "root_model"}
        and not node.get("custom_init")
        and not node.get("root_model")
        and (node.get("config") or {}).keys() <= {"title"}
        and fields.get("type") == "model-fields"
        and fields.keys() <= {"type", "fields", "model_name", "metadata", "computed_fields"}
        and not fields.get("computed_fields")
        and not cls.__private_attributes__  # and no extra fields are allowed: there is no such configuration
    )
    if not plain:
        return None
    tests: list[tuple[str, type | None, Survives]] = []
    for name, field in fields["fields"].items():
        test = _field(field)
        if test is None:
            return None
        tests.append((name, _EXACT.get(test), test))
    count = len(tests)

    def survives(value: Any) -> bool:
        if type(value) is not cls:
            return False
        held: dict[str, Any] = value.__dict__
        if len(held) != count:
            return False
        try:
            for name, kind, test in tests:
                if kind is not type(held[name]) and (kind is not None or not test(held[name])):
                    return False
        except KeyError:
            return False
        return True

    return survives


def _dict(node: _Schema) -> Survives | None:
    keys, held = node.get("keys_schema"), survival_of(node.get("values_schema"))
    if held is None or keys is None or keys.get("type") != "str" or not keys.keys() <= {"type", "metadata"}:
        return None

    def survives(value: Any) -> bool:
        if type(value) is not dict:
            return False
        entries = cast(dict[Any, Any], value)
        return all(type(key) is str for key in entries) and all(map(held, entries.values()))

    return survives


def _datetime(value: Any) -> bool:
    if type(value) is not datetime or value.fold:
        return False
    zone = value.tzinfo
    return zone is None or zone is UTC or (type(zone) is TzInfo and not value.utcoffset())


def _field(field: _Schema) -> Survives | None:
    if field.get("type") != "model-field" or not field.keys() <= {"type", "schema", "metadata"}:
        return None
    schema = field["schema"]
    if schema.get("type") == "default":
        # A default only fills in what is missing, and nothing is missing in what was encoded whole.
        if not schema.keys() <= {
            "type",
            "schema",
            "default",
            "default_factory",
            "default_factory_takes_data",
            "metadata",
        }:
            return None
        schema = schema["schema"]
    return survival_of(schema)


_SCALARS: dict[str, Survives] = {
    "int": lambda value: type(value) is int and value.bit_length() < 64,
    "str": lambda value: type(value) is str,
    "bool": lambda value: type(value) is bool,
    "float": lambda value: type(value) is float and math.isfinite(value),
    "none": lambda value: value is None,
}

_EXACT: dict[Survives, type] = {_SCALARS["str"]: str, _SCALARS["bool"]: bool, _SCALARS["none"]: type(None)}
"""Where having the type is all that is tested, the call of the test is spared."""
