"""Values come back exactly or are refused by name: B21, B22 and design §9, for everything that is not replay itself."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    PlainSerializer,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
)
from typing_extensions import TypedDict

from gasoline_es.core.values import codec_for, dump_json, encode_any, parse_json
from gasoline_es.errors import DefinitionError, NotSerializable, ReplayError


class Colour(StrEnum):
    RED = "red"


class Mixed(str, Enum):  # noqa: UP042 -- the very mixin that came back as characters (B21)
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Line(BaseModel):
    sku: str
    count: int


class SpecialLine(Line):
    note: str = ""


class Order(BaseModel):
    lines: list[Line]
    meta: dict[str, Any] = {}


@dataclasses.dataclass
class Point:
    x: float
    y: float


Cart = NewType("Cart", int)


def kept(annotation: Any, value: Any) -> Any:
    raw, decoded = codec_for(annotation, "a test").roundtrip(value, "value")
    assert type(decoded) is type(value)
    assert codec_for(annotation, "a test").decode(raw) == decoded
    assert codec_for(annotation, "a test").encode(value, "value") == raw
    assert b"\n" not in raw
    return decoded


def refused(annotation: Any, value: Any) -> NotSerializable:
    with pytest.raises(NotSerializable) as caught:
        codec_for(annotation, "a test").roundtrip(value, "order")
    with pytest.raises(NotSerializable):
        codec_for(annotation, "a test").encode(value, "order")
    assert caught.value.path.startswith("order")
    assert len(str(caught.value)) < 1000
    return caught.value


# --- nothing changes silently (B21) -----------------------------------------------------------------------------------


CHANGING: list[Any] = [
    (Any, {"items": [1, 2, 3, (4,)]}, "order['items'][3]", "tuple became list"),
    (Any, {1: "a"}, "order[1]", "key of type int"),
    (Any, {"a": Colour.RED}, "order['a']", "Colour became str"),
    (Any, {1, 2}, "order", "set became list"),
    (Any, b"raw", "order", "bytes became str"),
    (Any, datetime(2026, 1, 1, tzinfo=UTC), "order", "became str"),
    (Any, Line(sku="a", count=1), "order", "Line became dict"),
    (str, Colour.RED, "order", "Colour became str"),
    (str, Mixed.RED, "order", "Mixed became str"),
    (int, Level.LOW, "order", "Level became int"),
    (int, True, "order", "bool became int"),
    (int, "5", "order", "str became int"),
    (float, "5", "order", "str became float"),
    (float, True, "order", "bool became float"),
    (int, 5.0, "order", "float became int"),
    (Decimal, 5, "order", "int became"),
    (list[int], (1, 2), "order", "tuple became list"),
    (tuple[int, ...], [1, 2], "order", "list became tuple"),
    (set[int], frozenset([1]), "order", "frozenset became set"),
    (dict[str, int], {1: 1}, "order[1]", "key of type int did not survive"),
    (dict[str, int], OrderedDict(a=1), "order", "OrderedDict became dict"),
    (list[Line], [SpecialLine(sku="a", count=1)], "order[0]", "SpecialLine became Line"),
    (Line, {"sku": "a", "count": 1}, "order", "dict became Line"),
    (Order, Order.model_construct(lines=[Line.model_construct(sku=5, count=1)]), "order.lines[0].sku", "int"),
    (Order, Order.model_construct(lines=[Line.model_construct(sku="a", count="1")]), "order.lines[0].count", "str"),
    (Order, Order(lines=[], meta={"a": [(1, 2)]}), "order.meta['a'][0]", "tuple became list"),
    (Point, Point(1.0, "2"), "order.y", "str became float"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    (str | UUID, str(UUID(int=5)), "order", "str became UUID"),
    (Colour | str, Colour.RED, "order", "Colour became str"),
    (str | date, date(2026, 1, 1), "order", "date became str"),
    (
        dict[tuple[int, int], str],
        {(1, 2): "a"},
        "order['1,2']",
        "valid array",
    ),  # pydantic writes the key as "1,2", never reads it
]


@pytest.mark.parametrize(("annotation", "value", "path", "text"), CHANGING)
def test_value_that_would_change_is_refused_with_its_path(annotation: Any, value: Any, path: str, text: str) -> None:
    """B21: tuple to list, int key to string, enum to str, and every other change of type."""
    error = refused(annotation, value)
    assert error.path == path
    assert text in str(error)


def test_field_assigned_a_wrong_type_is_refused() -> None:
    """Design §9: pydantic does not validate assignments, so the instance proves nothing."""
    line = Line(sku="a", count=1)
    line.count = True
    assert "bool became int" in str(refused(Line, line))


def test_int_where_a_float_is_declared_is_taken_as_the_type_checkers_take_it() -> None:
    """PEP 484: an int is acceptable for a float; the body sees the float on its first run already."""
    raw, decoded = codec_for(Point, "a test").roundtrip(Point(1, 2.5), "value")
    assert (raw, repr(decoded.x)) == (b'{"x":1.0,"y":2.5}', "1.0")
    refused(Point, Point(2**53 + 1, 0.0))  # no float equals it


def test_decoded_form_shares_nothing_mutable_with_the_given_one() -> None:
    order = Order(lines=[Line(sku="a", count=1)], meta={"tags": ["x"]})
    decoded = kept(Order, order)
    assert decoded is not order
    assert decoded.lines[0] is not order.lines[0]
    assert decoded.meta["tags"] is not order.meta["tags"]


# --- what survives ----------------------------------------------------------------------------------------------------


class Typed(TypedDict):
    first: int
    second: bytes


class Pair(NamedTuple):
    left: int
    right: bytes


class Tree(BaseModel):
    blob: bytes
    kids: list[Tree] = []
    named: dict[str, Tree] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Blob:
    data: bytes
    at: datetime | None = None


ALL_BYTES = bytes(range(256))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (bytes, ALL_BYTES),
        (bytes | None, ALL_BYTES),
        (list[bytes], [b"", b"plain", b"\xff\xfe"]),
        (dict[bytes, int], {b"\xff": 1}),
        (Tree, Tree(blob=ALL_BYTES, kids=[Tree(blob=b"\xff")], named={"a": Tree(blob=b"\x80")})),
        (list[Tree], [Tree(blob=ALL_BYTES)]),
        (Blob, Blob(ALL_BYTES, datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=UTC))),
        (dict[str, Blob], {"a": Blob(b"\xff")}),
        (Typed, {"first": 1, "second": ALL_BYTES}),
        (Typed, {"second": ALL_BYTES, "first": 1}),
        (Pair, Pair(1, ALL_BYTES)),
        (tuple[Blob, Tree], (Blob(b"\xff"), Tree(blob=b"\xff"))),
    ],
)
def test_bytes_survive_wherever_they_stand(annotation: Any, value: Any) -> None:
    """Design §9: bytes are base64 both ways, inside users' own classes too."""
    assert kept(annotation, value) == value


class HexBytes(BaseModel):
    model_config = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
    data: bytes


def test_bytes_follow_a_class_that_configures_them_itself() -> None:
    assert codec_for(HexBytes, "a test").roundtrip(HexBytes(data=b"\xff"), "v")[0] == b'{"data":"ff"}'


def test_bytes_of_a_class_with_one_sided_configuration_are_refused() -> None:
    class Lopsided(BaseModel):
        model_config = ConfigDict(ser_json_bytes="hex", val_json_bytes="utf8")
        data: bytes

    refused(Lopsided, Lopsided(data=b"\xff"))


@pytest.mark.parametrize("number", [0, -1, 2**53 + 1, 2**63, -(2**63), 2**64, 10**30, 10**4000, -(10**4299)])
@pytest.mark.parametrize("annotation", [int, Any, int | None, dict[str, int]])
def test_integers_of_any_size_are_kept_exactly(annotation: Any, number: int) -> None:
    """Design §9: not as orjson, which reads 2^64 as a float."""
    value = {"n": number} if annotation == dict[str, int] else number
    assert kept(annotation, value) == value
    assert parse_json(dump_json(value)) == value


def test_integers_that_python_itself_does_not_print_are_refused() -> None:
    for annotation in (int, Any):
        refused(annotation, 10**5000)
        refused(annotation, -(10**4300))


@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e16, 1e22, 123456789.123456789])
@pytest.mark.parametrize("annotation", [float, Any, float | None])
def test_floats_are_kept_to_the_bit(annotation: Any, value: float) -> None:
    decoded = kept(annotation, value)
    assert (decoded, math.copysign(1, decoded)) == (value, math.copysign(1, value))
    assert str(kept(Point, Point(value, value)).y) == str(value)


SURVIVING: list[Any] = [
    (Decimal, Decimal("1.00")),
    (Decimal, Decimal("-0")),
    (Decimal, Decimal("1E+5")),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (timedelta, timedelta(days=36500, microseconds=999999)),
    (datetime, datetime(2026, 5, 1, 1, 2, 3, 4)),  # noqa: DTZ001
    (datetime, datetime(1, 1, 1, tzinfo=UTC)),
    (datetime, datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=-5, minutes=-30)))),
    (datetime, datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))),
    (time, time(1, 2, 3, 4)),
    (date, date(2026, 2, 28)),
    (OrderedDict[str, int], OrderedDict(b=1, a=2)),
    (deque[int], deque([1, 2])),
    (dict[float, str], {1.5: "a"}),
    (dict[Colour, int], {Colour.RED: 1}),
    (dict[UUID, int], {UUID(int=1): 1}),
    (set[Annotated[int, Field(ge=0)]], {3, 1, 2}),
    (RootModel[list[int]], RootModel[list[int]]([1])),
    (Literal["a", 1, True], 1),
    (Literal["a", 1, True], True),
    (Cart, Cart(5)),
    (Path, Path("/tmp/a b")),
    (None, None),
    (object, [1, "a", None]),
]


@pytest.mark.parametrize(("annotation", "value"), SURVIVING)
def test_value_of_a_declared_type_survives(annotation: Any, value: Any) -> None:
    assert kept(annotation, value) == value


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 7, 1, tzinfo=timezone(timedelta(hours=2), "CEST")),
        datetime(2026, 7, 1, fold=1),  # noqa: DTZ001
        datetime(2026, 7, 1, tzinfo=timezone(timedelta(hours=2, seconds=1))),
    ],
)
def test_time_zone_that_json_cannot_hold_is_refused(value: datetime) -> None:
    """JSON keeps an offset: a zone's rules and name would be lost silently, though the instants are equal."""
    assert refused(datetime, value).path == "order"
    refused(Blob, Blob(b"", value))


def test_time_zone_error_says_what_to_write() -> None:
    error = refused(datetime, datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")))
    assert "astimezone(UTC)" in str(error)


# --- models with their own ways ---------------------------------------------------------------------------------------


class Aliased(BaseModel):
    order_id: int = Field(alias="orderId")
    total: int = Field(serialization_alias="sum", default=0)
    who: str = Field(validation_alias=AliasChoices("who", "customer"), default="")


def test_aliases_do_not_matter_to_what_is_kept() -> None:
    """Histories hold field names; aliases are accepted when read, as other producers write them."""
    value = Aliased.model_validate({"orderId": 5, "total": 7, "customer": "ada"})
    assert kept(Aliased, value) == value
    assert codec_for(Aliased, "a test").encode(value, "v") == b'{"order_id":5,"total":7,"who":"ada"}'
    assert codec_for(Aliased, "a test").decode(b'{"orderId":5,"customer":"ada"}').who == "ada"


class Swapped(BaseModel):
    first: int = Field(alias="second")
    second: int = Field(alias="first")


def test_aliases_that_swap_fields_cannot_swap_values() -> None:
    refused(Swapped, Swapped(second=1, first=2))


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    sides: tuple[int, int]
    at: datetime
    raw: Json[list[int]]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.sides[0] * self.sides[1]

    @cached_property
    def half(self) -> float:
        return self.area / 2


def test_computed_and_cached_values_are_computed_again() -> None:
    value = Strict(sides=(2, 3), at=datetime(2026, 1, 1, tzinfo=UTC), raw="[1,2]")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert value.half == 3.0
    decoded = kept(Strict, value)
    assert (decoded, decoded.half) == (value, 3.0)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


def test_extra_fields_are_kept_or_refused() -> None:
    assert kept(Open, Open.model_validate({"a": 1, "more": {"x": [1]}})).model_extra == {"more": {"x": [1]}}
    error = refused(Open, Open.model_validate({"a": 1, "more": (1,)}))
    assert (error.path, error.type) == ("order.more", "tuple")


class Private(BaseModel):
    a: int
    _seen: int = PrivateAttr(default=0)


def test_private_attribute_that_would_be_lost_is_refused() -> None:
    assert kept(Private, Private(a=1)) == Private(a=1)
    value = Private(a=1)
    value._seen = 7
    assert refused(Private, value).path == "order._seen"


class Excluded(BaseModel):
    a: int
    secret: str = Field(default="", exclude=True)


def test_excluded_field_that_would_be_lost_is_refused() -> None:
    assert kept(Excluded, Excluded(a=1)) == Excluded(a=1)
    assert refused(Excluded, Excluded(a=1, secret="x")).path == "order.secret"


class Rounding(BaseModel):
    price: float

    @field_serializer("price")
    def _short(self, price: float) -> str:
        return f"{price:.2f}"


class Trimming(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _trim(cls, name: str) -> str:
        return name.strip()


class Broken(BaseModel):
    name: str

    @field_serializer("name")
    def _fail(self, name: str) -> str:
        raise RuntimeError("no such luck")


def test_users_own_serialisers_and_validators_are_held_to_the_result() -> None:
    assert kept(Rounding, Rounding(price=1.25)).price == 1.25
    assert refused(Rounding, Rounding(price=1.234)).path == "order.price"
    assert refused(Trimming, Trimming.model_construct(name=" a ")).path == "order.name"
    assert "no such luck" in str(refused(Broken, Broken(name="a")))


def test_secret_is_refused_rather_than_kept_as_asterisks() -> None:
    error = refused(SecretStr, SecretStr("hunter2"))
    assert "hunter2" not in str(error)


class Money:
    """A class of the user's own, with a schema but without ``==``."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


MoneyField = Annotated[
    Money,
    BeforeValidator(lambda raw: raw if isinstance(raw, Money) else Money(raw)),
    PlainSerializer(lambda money: money.cents),
]


class Priced(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    price: MoneyField


def test_objects_without_equality_are_compared_by_what_they_hold() -> None:
    assert codec_for(Priced, "a test").roundtrip(Priced(price=Money(5)), "v")[1].price.cents == 5
    value = Priced(price=Money(5))
    value.price.cents = (1,)  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    assert refused(Priced, value).path == "order.price.cents"


@dataclasses.dataclass
class Noted:
    a: int
    derived: int = dataclasses.field(init=False, default=0)


def test_dataclass_attribute_that_would_be_lost_is_refused() -> None:
    value = Noted(1)
    assert kept(Noted, value) == value
    value.derived = 5
    assert refused(Noted, value).path == "order.derived"
    value = Noted(1)
    value.note = "x"  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert refused(Noted, value).path == "order.note"


def test_default_factory_and_maxlen_are_part_of_the_value() -> None:
    assert kept(defaultdict[str, list[int]], defaultdict(list, a=[1])) == {"a": [1]}
    refused(defaultdict[str, list[int]], defaultdict(lambda: [0], a=[1]))
    refused(deque[int], deque([1], maxlen=3))


def test_union_keeps_the_member_that_was_given() -> None:
    class Cat(BaseModel):
        name: str

    class Dog(BaseModel):
        name: str

    assert kept(int | str, "5") == "5"
    assert kept(float | int, 5) == 5
    kept(Cat | Dog, Cat(name="a"))
    assert "Dog became Cat" in str(refused(Cat | Dog, Dog(name="a")))


# --- what cannot be kept at all (B22) ---------------------------------------------------------------------------------


def cyclic_list() -> list[Any]:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def deep_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def numbers() -> Iterator[int]:
    yield 1


class Holder(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    values: list[Any]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: open("/dev/null"), "io.TextIOWrapper", "cannot be kept"),  # noqa: SIM115
        (lambda: open("/dev/null", "wb"), "io.BufferedWriter", "cannot be kept"),  # noqa: SIM115
        (lambda: lambda: 1, "function", "cannot be kept"),
        (numbers, "generator", "cannot be kept"),
        (lambda: math, "module", "cannot be kept"),
        (object, "object", "cannot be written"),
        (threading.Lock, "thread.lock", "cannot be written"),
        (cyclic_list, "list", "contains itself"),
        (lambda: math.nan, "float", "not a JSON number"),
        (lambda: math.inf, "float", "not a JSON number"),
        (lambda: "a\ud800b", "str", "lone surrogate"),
    ],
)
def test_live_object_is_refused_with_its_path_and_type(
    make: Callable[[], Any], kind: str, text: str, nested: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """B22: an open file, a lambda, a self-referring list … raise to the caller and name the type."""
    live = make()
    value = {"a": [0, live]} if nested else live
    for annotation, given in ((Any, value), (Holder, Holder.model_construct(values=[value]))):
        error = refused(annotation, given)
        assert error.type == kind
        assert text in str(error)
        assert ("['a'][1]" in error.path) is nested
    assert capfd.readouterr().err == ""  # no warning of pydantic's either
    if hasattr(live, "close"):
        live.close()


@dataclasses.dataclass(slots=True)
class Slotted:
    value: Any


@pytest.mark.timeout(10)
@pytest.mark.parametrize("annotation", [Any, str, list[int], Line, Point, dict[str, Any]])
def test_endless_iterator_is_refused_and_not_read(annotation: Any) -> None:
    """B22: pydantic would read an iterator to its end wherever it meets one, an open pipe too."""
    source = itertools.count()
    value: Any
    for value in (source, [source], {"a": (source,)}, Slotted([source]), Line.model_construct(sku=source), {1: source}):
        assert refused(annotation, value).type == "count"
    assert next(source) == 0


def test_not_a_number_is_refused_by_every_float_annotation() -> None:
    class Strings(BaseModel):
        model_config = ConfigDict(ser_json_inf_nan="strings")
        x: float

    for number in (math.nan, math.inf, -math.inf):
        for annotation in (float, float | None, Any):
            assert refused(annotation, number).type == "float"
        assert refused(Point, Point(0.0, number)).path == "order.y"
        assert refused(Strings, Strings(x=number)).path == "order.x"
        assert refused(list[float | None], [1.0, number]).path == "order[1]"
    refused(Decimal, Decimal("NaN"))
    with pytest.raises(ValueError):  # noqa: PT011
        dump_json({"a": math.nan})
    assert parse_json(dump_json({"a": "NaN", "Infinity": 1})) == {"a": "NaN", "Infinity": 1}


@pytest.mark.parametrize("depth", [1, 149, 150])
def test_nested_value_that_is_kept_can_be_read_inside_a_record(depth: int) -> None:
    value = deep_list(depth - 1)
    raw = encode_any(value, "value")
    assert parse_json(b'{"data":{"output":' + raw + b"}}")["data"]["output"] == value


@pytest.mark.parametrize("depth", [151, 199, 200, 201, 250, 300, 5_000, 200_000])
def test_nesting_that_no_record_could_hold_is_refused(depth: int) -> None:
    """The parser reads 201 levels; a value deeper than 150 would make its record, and so its history, unreadable."""
    assert "more than 150 levels deep" in str(refused(Any, deep_list(depth - 1)))
    assert "more than 150 levels deep" in str(refused(list[Any], deep_list(depth - 1)))


class Chain(BaseModel):
    rest: Chain | None = None


def test_deep_models_and_cyclic_models_are_refused() -> None:
    chain = Chain()
    for _ in range(5_000):
        chain = Chain.model_construct(rest=chain)
    assert "deep" in str(refused(Chain, chain))
    loop = Chain()
    loop.rest = loop
    assert "contains itself" in str(refused(Chain, loop))


# --- annotations ------------------------------------------------------------------------------------------------------


class Opaque:
    pass


def test_annotation_without_a_schema_is_a_definition_error_that_names_the_place() -> None:
    for annotation in (Opaque, list[Opaque], "NoSuchName", list["NoSuchName"]):  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        with pytest.raises(DefinitionError, match="the input of workflow fulfil"):
            codec_for(annotation, "the input of workflow fulfil")


def test_codec_is_kept_per_annotation_and_order_of_union() -> None:
    assert codec_for(Line, "a") is codec_for(Line, "b")
    assert codec_for(date | datetime, "a") is not codec_for(datetime | date, "a")
    unhashable = Annotated[int, Field(json_schema_extra={"a": []}), []]
    assert codec_for(unhashable, "a").roundtrip(5, "v") == (b"5", 5)


def test_recorded_value_that_no_longer_fits_is_a_replay_error_with_its_path() -> None:
    with pytest.raises(ReplayError, match=r"value\.count") as caught:
        codec_for(Line, "a").decode(b'{"sku":"a","count":"many"}')
    assert (caught.value.path, caught.value.type) == ("value.count", "Line")
    with pytest.raises(ReplayError):
        codec_for(int, "a").decode(b"not json")


class Moody(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _fail(cls, name: str) -> str:
        raise RuntimeError("not today")


def test_validator_that_fails_in_its_own_way_is_a_replay_error_too() -> None:
    with pytest.raises(ReplayError, match="RuntimeError: not today"):
        codec_for(Moody, "a").decode(b'{"name":"x"}')
    assert "not today" in str(refused(Moody, Moody.model_construct(name="x")))


def test_named_tuples_without_types_are_refused_by_element() -> None:
    Loose = namedtuple("Loose", "a b")  # pyright: ignore[reportUntypedNamedTuple]
    assert kept(Loose, Loose(1, "x")) == Loose(1, "x")
    assert refused(Loose, Loose(1, (2,))).path == "order[1]"


# --- JSON trees -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"NaN", b"[Infinity]", b'{"a":-Infinity}', b"", b"{", b'"\xff"', b"[1,]", b"1 2"])
def test_malformed_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(raw)


def test_json_tree_is_written_compactly() -> None:
    assert dump_json({"a": [1, 2.5, None, True], "é": "\n"}) == '{"a":[1,2.5,null,true],"é":"\\n"}'.encode()
