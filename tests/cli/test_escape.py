"""What is shown of a log's text holds no character that could move a cursor, hide or forge a line (B24)."""

from __future__ import annotations

import json
import sys
import unicodedata
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gasoline_es.cli.escape import escape, escape_json

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
INVISIBLE = "\u00ad\u034f\u115f\u180e\u200b\u200c\u200d\u2060\u3164\ufe0f\ufeff\uffa0\U000e0001\U000e0061"


@cache
def dangerous() -> list[str]:
    everything = map(chr, range(sys.maxunicode + 1))
    controls = [c for c in everything if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    return [*controls, *BIDI, *INVISIBLE]


def test_every_dangerous_character_becomes_a_visible_escape() -> None:
    for character in dangerous():
        shown = escape(f"a{character}b")
        assert shown.isascii(), ascii(character)
        assert shown.isprintable(), ascii(character)
        assert shown.startswith("a\\"), ascii(character)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m\r\n\t\x00\x9b", r"\x1b[31m\r\n\t\x00\x9b"),
        ("\u202eevil\U000e0041", r"\u202eevil\U000e0041"),
        ("\udcff", r"\udcff"),
        ("Grüße, 日本語, é, C:\\new [red]x[/red]", "Grüße, 日本語, é, C:\\new [red]x[/red]"),
        ("", ""),
    ],
)
def test_an_escape_is_written_as_python_writes_it_and_other_text_stays(text: str, shown: str) -> None:
    assert escape(text) == shown


@settings(max_examples=50)
@given(st.text())
def test_escaped_text_has_no_dangerous_character_and_stands_on_one_line(text: str) -> None:
    shown = escape(text)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert len(shown.splitlines()) <= 1
    assert escape(shown) == shown


@settings(max_examples=50)
@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_escaped_json_is_the_same_value_on_one_line(value: object) -> None:
    for indent in (None, "\t"):
        text = json.dumps(value, ensure_ascii=False, indent=indent)
        shown = escape_json(text)
        assert json.loads(shown) == value
        assert shown.isprintable() or not shown.isascii()
        assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cs", "Zl", "Zp"}


def test_escaped_json_holds_none_of_the_dangerous_characters() -> None:
    for character in dangerous():
        if unicodedata.category(character) != "Cs":  # no UTF-8 text can hold one
            shown = escape_json(json.dumps(character, ensure_ascii=False))
            assert shown.isascii(), ascii(character)
            assert json.loads(shown) == character
