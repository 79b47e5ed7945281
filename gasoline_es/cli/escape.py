"""Text from a log, made safe to show: nothing in it can move the cursor, forge a line or hide (B24).

What is dangerous: the control characters C0, DEL and C1; line and paragraph separators; surrogates; and every character
that is invisible by definition (Unicode's Default_Ignorable_Code_Point: bidi controls, zero-width characters, variation
selectors, tags, fillers …), besides the interlinear annotation marks.
"""

from __future__ import annotations

import re
from typing import Final

_INVISIBLE: Final = (
    "\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_DANGEROUS: Final = re.compile(f"[\u0000-\u001f{_INVISIBLE}]")
_DANGEROUS_IN_JSON: Final = re.compile(f"[{_INVISIBLE}]")
_WHITE: Final = re.compile("[\t\n\r]")
_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def escape(text: str) -> str:
    r"""Return the text on one line, with dangerous characters as visible escapes: ``\n``, ``\x1b``, ``\u202e``."""
    if text.isascii() and text.isprintable():
        return text
    return _DANGEROUS.sub(_visible, text)


def escape_json(text: str) -> str:
    r"""Return the JSON text on one line, with dangerous characters as ``\uXXXX``: the same value, safe to print.

    Outside strings JSON is ASCII, and inside them it has no raw C0 characters; so what is replaced stands in a string,
    and white space other than blanks stands between tokens.
    """
    if text.isascii() and text.isprintable():
        return text
    return _DANGEROUS_IN_JSON.sub(_json_escape, _WHITE.sub(" ", text))


def _visible(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if code <= 0xFF:
        return _SHORT.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
