"""Values of every kind that required case B21 names, in the five places where a value travels. No pytest in here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, Literal, NewType, cast
from uuid import UUID

from pydantic import BaseModel

from gasoline_es import ActivityContext, Signal, WorkflowContext, activity, workflow


class Mixed(str, Enum):  # noqa: UP042 -- the mixin is what the case is about
    RED = "red"


class Modern(StrEnum):
    GREEN = "green"


class Level(IntEnum):
    HIGH = 3


class Plain(Enum):
    ONE = "one"
    TWO = 2


Account = NewType("Account", int)


@dataclass
class Inner:
    level: Level
    tags: tuple[str, ...] = ()


@dataclass
class Everything:
    mixed: Mixed = Mixed.RED
    modern: Modern = Modern.GREEN
    level: Level = Level.HIGH
    plain: Plain = Plain.TWO
    account: Account = Account(7)
    literal: Literal["a", "b"] = "b"
    maybe: int | None = None
    either: int | str = "5"
    inner: Inner = field(default_factory=lambda: Inner(Level.HIGH, ("x", "y")))
    by_int: dict[int, str] = field(default_factory=lambda: {1: "one", 2**64: "big"})
    by_enum: dict[Modern, int] = field(default_factory=lambda: {Modern.GREEN: 1})
    pair: tuple[int, str] = (1, "a")
    some: set[int] = field(default_factory=lambda: {1, 2, 3})
    raw: bytes = b"\x00\xff"
    id: UUID = field(default_factory=lambda: UUID("12345678-1234-5678-1234-567812345678"))
    price: Decimal = Decimal("10.10")
    when: datetime = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    big: int = 2**70


class Document(BaseModel):
    value: Everything = Everything()


class Carry(Signal):
    value: Everything


def shown(value: Any) -> str:
    """Everything about a value: types all the way down."""
    kind = type(value).__name__
    if isinstance(value, Everything | Inner):
        parts = ", ".join(f"{name}={shown(part)}" for name, part in vars(value).items())
        return f"{kind}({parts})"
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return "{" + ", ".join(f"{shown(key)}: {shown(part)}" for key, part in items) + "}"
    if isinstance(value, list | tuple | set):
        parts = [shown(part) for part in cast("list[Any]", value)]
        return f"{kind}{sorted(parts) if kind == 'set' else parts}"
    if isinstance(value, datetime):
        return f"datetime:{value.isoformat()}"  # in UTC, whatever class says so
    return f"{kind}:{value!r}"


seen: list[str] = []
"""What bodies and activities of this process were given, as JSON lines."""


def see(where: str, value: Any) -> None:
    seen.append(json.dumps([where, shown(value)]))


@activity
async def pass_on(ctx: ActivityContext, value: Everything) -> Everything:
    see("activity input", value)
    document = ctx.state(Document)
    document.value.mixed = Mixed.RED
    document.value.big = value.big + 1
    return value


@activity
async def read_state(ctx: ActivityContext, _: None) -> str:
    return shown(ctx.state(Document).value)


@workflow
async def carrying(ctx: WorkflowContext, value: Everything) -> Everything:
    see("workflow input", value)
    passed = await ctx.activity(pass_on, value)
    see("activity output", passed)
    signal = await ctx.listen(Carry)
    see("signal body", signal.value)
    state = await ctx.activity(read_state, None)
    see("state", state)
    await ctx.listen(Carry)
    return passed


@workflow
async def carrying_dict(ctx: WorkflowContext, value: dict[int, tuple[int, str]]) -> set[bytes]:
    see("dict", value)
    return {b"\xff"}
