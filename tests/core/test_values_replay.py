"""B21: what another process decodes has the value and the type that the first run saw."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import types
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path, PurePosixPath
from typing import Any, Generic, Literal, NewType, Optional, TypeVar, Union, cast
from uuid import UUID

from pydantic import BaseModel
from pydantic.dataclasses import dataclass as pydantic_dataclass

from gasoline_es.core.values import codec_for, encode_any, parse_json

T = TypeVar("T")

OrderId = NewType("OrderId", str)


class Mixed(str, Enum):  # noqa: UP042 -- the mixin that once came back as a list of characters
    RED = "red"
    LONG = "several characters"


class Shade(StrEnum):
    DARK = "dark"


class Level(IntEnum):
    LOW = 1


class Plain(Enum):
    ONE = 1
    PAIR = "two"


class Rights(Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Inner:
    mixed: Mixed
    tags: tuple[str, int]


@dataclasses.dataclass
class Outer:
    inner: Inner
    many: list[Inner]
    maybe: Inner | None = None


@pydantic_dataclass
class Checked:
    level: Level
    raw: bytes


class Page(BaseModel, Generic[T]):
    items: list[T]
    after: T | None = None


class Everything(BaseModel):
    mixed: Mixed = Mixed.RED
    shade: Shade = Shade.DARK
    level: Level = Level.LOW
    plain: Plain = Plain.PAIR
    rights: Rights = Rights.READ | Rights.WRITE
    order_id: OrderId = OrderId("o1")
    choice: Literal["a", 2] = 2
    maybe: int | None = None
    either: int | str = "5"
    outer: Outer = Outer(Inner(Mixed.LONG, ("a", 1)), [Inner(Mixed.RED, ("b", 2))])
    by_int: dict[int, str] = {1: "a", -2: "b"}
    by_enum: dict[Level, list[Mixed]] = {Level.LOW: [Mixed.RED]}
    pair: tuple[int, str] = (1, "a")
    numbers: set[int] = {3, 1, 2}
    frozen: frozenset[UUID] = frozenset([UUID(int=7)])
    raw: bytes = bytes(range(256))
    ident: UUID = UUID(int=2**127)
    amount: Decimal = Decimal("1.10")


INNER = Inner(Mixed.LONG, ("a", 1))

# Annotation and value of everything that B21 names, and of what else people put into messages.
SAMPLES: dict[str, tuple[Any, Any]] = {
    "str mixin enum": (Mixed, Mixed.LONG),
    "StrEnum": (Shade, Shade.DARK),
    "IntEnum": (Level, Level.LOW),
    "plain enum": (Plain, Plain.PAIR),
    "flag": (Rights, Rights.READ | Rights.WRITE),
    "NewType": (OrderId, OrderId("o1")),
    "Literal": (Literal["a", 2], 2),
    "Literal of an enum": (Literal[Mixed.RED, Mixed.LONG], Mixed.RED),
    "Optional none": (Optional[Inner], None),  # noqa: UP045
    "Optional some": (Optional[Inner], INNER),  # noqa: UP045
    "Union of scalars": (Union[int, str], "5"),  # noqa: UP007
    "Union of classes": (Inner | Outer, INNER),
    "nested dataclass": (Outer, Outer(INNER, [INNER], INNER)),
    "pydantic dataclass": (Checked, Checked(Level.LOW, b"\xff")),
    "dict with int keys": (dict[int, str], {1: "a", 10**30: "b"}),
    "dict with enum keys": (dict[Mixed, int], {Mixed.RED: 1, Mixed.LONG: 2}),
    "dict with IntEnum keys": (dict[Level, int], {Level.LOW: 1}),
    "dict with UUID keys": (dict[UUID, date], {UUID(int=1): date(2026, 1, 1)}),
    "tuple": (tuple[int, str, Mixed], (1, "a", Mixed.RED)),
    "tuple of any length": (tuple[int, ...], (1, 2, 3)),
    "set": (set[int], {3, 1, 2}),
    "frozenset of enums": (frozenset[Mixed], frozenset([Mixed.RED, Mixed.LONG])),
    "bytes": (bytes, bytes(range(256))),
    "UUID": (UUID, UUID(int=2**127 + 5)),
    "Decimal": (Decimal, Decimal("0.10")),
    "timedelta": (timedelta, timedelta(days=1, microseconds=-1)),
    "aware datetime": (datetime, datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)),
    "time": (time, time(23, 59, 59, 999999)),
    "IPv4Address": (IPv4Address, IPv4Address("10.0.0.1")),
    "IPv6Network": (IPv6Network, IPv6Network("2001:db8::/32")),
    "Path": (Path, Path("a/b c")),
    "PurePosixPath": (PurePosixPath, PurePosixPath("/x")),
    "generic model": (Page[Mixed], Page[Mixed](items=[Mixed.RED], after=Mixed.LONG)),
    "generic model of a dataclass": (Page[Inner], Page[Inner](items=[INNER])),
    "a model of everything": (Everything, Everything()),
    "big and small numbers": (list[Any], [2**64, -(10**40), -0.0, 5e-324, True, 1, 1.0, None, ""]),
}


def described(value: object) -> str:
    """Write a value with the type of each of its parts, the same in every process."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        return f"{name}({', '.join(f'{key}={described(part)}' for key, part in vars(value).items())})"
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        return f"{name}({', '.join(f'{described(key)}: {described(part)}' for key, part in pairs)})"
    if isinstance(value, (set, frozenset)):
        return f"{name}({', '.join(sorted(map(described, cast(set[Any], value))))})"
    if isinstance(value, (list, tuple)):
        return f"{name}({', '.join(map(described, cast(list[Any], value)))})"
    return f"{name}({value!r})"


def decode_all(encoded: dict[str, str]) -> dict[str, str]:
    return {key: described(codec_for(SAMPLES[key][0], key).decode(raw.encode())) for key, raw in encoded.items()}


def test_value_decoded_in_another_process_is_what_the_first_run_saw() -> None:
    """B21: value and type after replay equal those of the first run, and those that were given."""
    encoded: dict[str, str] = {}
    seen: dict[str, str] = {}
    for key, (annotation, value) in SAMPLES.items():
        raw, decoded = codec_for(annotation, key).roundtrip(value, key)
        encoded[key], seen[key] = raw.decode(), described(decoded)
        if "datetime" not in key:  # a zone of another class stands for the same offset
            assert seen[key] == described(value)
    code = f"import json, sys; from {__name__} import decode_all; print(json.dumps(decode_all(json.load(sys.stdin))))"
    other = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        input=json.dumps(encoded),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (other.returncode, other.stderr) == (0, "")
    assert json.loads(other.stdout) == seen


def test_value_keeps_its_type_inside_a_model_field_and_a_list_and_a_dict() -> None:
    """B21, one level down: in the containers that inputs are made of."""
    for key, (annotation, value) in SAMPLES.items():
        outers: list[Any] = [types.GenericAlias(list, annotation), types.GenericAlias(dict, (str, annotation))]
        for outer, given in zip(outers, ([value], {"k": value}), strict=True):
            raw, decoded = codec_for(outer, key).roundtrip(given, key)
            if "datetime" not in key:
                assert described(decoded) == described(given)
            assert described(codec_for(outer, key).decode(raw)) == described(decoded)


def test_value_without_a_declared_type_is_kept_only_as_far_as_json_goes() -> None:
    assert parse_json(encode_any({"a": [1, 2.5, "x", None, True]}, "value")) == {"a": [1, 2.5, "x", None, True]}
