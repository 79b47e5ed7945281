"""Kinds of signals: their wire names, and that only kinds can be sent and listened for (semantics.md §1)."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es import Signal
from gasoline_es.errors import DefinitionError
from gasoline_es.signals import check_signal_kind, signal_codec

T = TypeVar("T")


class Paid(Signal):
    amount: int


class OrderCancelled(Signal):
    """No fields: that it came is all it says."""


class Renamed(Signal, name="was_called_this"):
    reason: str


class StrictNote(Signal, name="note", extra="forbid"):
    name: str


class Wrapped(Signal, Generic[T]):
    value: T


def test_wire_name_is_the_class_name_in_snake_case() -> None:
    assert (Paid.__signal_name__, OrderCancelled.__signal_name__) == ("paid", "order_cancelled")


def test_wire_name_can_be_given() -> None:
    assert Renamed.__signal_name__ == "was_called_this"


def test_derived_kind_has_its_own_name() -> None:
    class PaidTwice(Renamed): ...

    assert PaidTwice.__signal_name__ == "paid_twice"


def test_class_keywords_of_pydantic_and_a_field_called_name_still_work() -> None:
    note = StrictNote(name="tea")
    assert (StrictNote.__signal_name__, note.name) == ("note", "tea")
    with pytest.raises(ValueError, match="Extra inputs"):
        cast(Any, StrictNote)(name="tea", colour="green")


def test_parametrised_generic_keeps_its_name() -> None:
    assert Wrapped[int].__signal_name__ == "wrapped"
    assert signal_codec(Wrapped[int]).decode(b'{"value":1}') == Wrapped[int](value=1)


@pytest.mark.parametrize("name", ["", "Paid", "../x", "a b", "x" * 101, "paid\n"])
def test_name_outside_the_alphabet_is_refused_at_the_class(name: str) -> None:
    with pytest.raises(DefinitionError, match=r"Rename the class, or write `class Bad\(Signal, name='…'\)`"):

        class Bad(Signal, name=name): ...  # pyright: ignore[reportUnusedClass]


def test_class_name_outside_the_alphabet_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"signal .*Bezahlt.*Rename the class"):
        type("Bezahltß", (Signal,), {})


def test_signal_itself_cannot_be_made() -> None:
    with pytest.raises(DefinitionError, match=r"Derive a kind from it, `class Paid\(Signal\): amount: int`"):
        Signal()


@given(st.integers())
def test_body_comes_back_as_it_was(amount: int) -> None:
    codec = signal_codec(Paid)
    raw = codec.encode(Paid(amount=amount), "signal")
    assert codec.decode(raw) == Paid(amount=amount)
    assert signal_codec(Paid) is codec


def test_codec_is_not_inherited() -> None:
    class Parent(Signal):
        amount: int

    assert signal_codec(Parent).decode(b'{"amount":1}') == Parent(amount=1)

    class Child(Parent):
        currency: str

    assert signal_codec(Child).decode(b'{"amount":1,"currency":"EUR"}') == Child(amount=1, currency="EUR")


NO_KINDS: list[tuple[object, str]] = [
    (Signal, r"Signal itself has no name; give the kinds to wait for"),
    (Paid(amount=1), r"give the class, not an instance: `ctx\.listen\(Paid\)`"),
    (int, r"derive it from Signal: `class int\(Signal\): …`"),
    ("paid", r"give classes derived from gasoline_es\.Signal"),
]


@pytest.mark.parametrize("given_kind", NO_KINDS, ids=lambda case: repr(case[0]))
def test_what_is_no_kind_is_refused_with_the_fix(given_kind: tuple[object, str]) -> None:
    with pytest.raises(DefinitionError, match=given_kind[1]):
        check_signal_kind(given_kind[0])
