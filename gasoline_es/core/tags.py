"""Tags: the scalars by which a workflow or a message is addressed when its id is unknown (semantics.md §6).

Tags are compared, indexed and kept in their canonical form: each value as a string. Names and values are data, kept
exactly and never part of a path (B23).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from gasoline_es.errors import InvalidTags

Tags = Mapping[str, str | int | float | bool]


def check_tags(tags: Tags | None, what: str) -> dict[str, str]:
    """Give the canonical form: strings as they are, ``true``/``false``, numbers by their JSON text. None gives ``{}``.

    ``what`` names the tags in the error. Raises: InvalidTags for a name that is not a string or a value that is no
    scalar (None, a list, NaN, an infinity …), and for text that UTF-8 cannot hold.
    """
    canonical_tags: dict[str, str] = {}
    if tags is None:
        return canonical_tags
    if not isinstance(tags, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
        raise InvalidTags(f"{what}: tags are a mapping of names to scalars, not {type(tags).__name__}", what=what)
    for name, value in tags.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
            raise InvalidTags(f"{what}: the tag name {name!r} is a {type(name).__name__}, not a str", what=what)
        text = _scalar_text(value)
        if text is None:
            raise InvalidTags(
                f"{what}: tag {name!r} is {_shown(value)}; a tag value is a str, int, bool or finite float",
                what=what,
                tag=name,
                type=type(value).__name__,
            )
        # Exact strings: a subclass of str would travel along in memory and be lost on the log.
        canonical_tags[_plain(name)] = text
    return canonical_tags


def matches(have: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Tell whether ``have`` contains every wanted tag with that value; both in canonical form. Nothing wanted: True."""
    return all(have.get(name) == value for name, value in wanted.items())


def canonical(tags: Mapping[str, str]) -> str:
    """Write canonical tags as one text, equal for equal tags: JSON sorted by name, without spaces."""
    return json.dumps(dict(tags), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _scalar_text(value: object) -> str | None:
    """Give the string form of a scalar, or None if the value is none."""
    try:
        if isinstance(value, str):
            value.encode()  # a lone surrogate could not be written
            return _plain(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return int.__repr__(value)
        if isinstance(value, float) and math.isfinite(value):
            return float.__repr__(value)
    except ValueError:  # a lone surrogate, or an int of more digits than Python writes
        return None
    return None


def _plain(text: str) -> str:
    return text if type(text) is str else str.__str__(text)


def _shown(value: object) -> str:
    """Name a value that may be of any size or kind."""
    if value is None or isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return f"{ascii(value)[:100]} (not valid Unicode)"
    return f"a {type(value).__name__}" if not isinstance(value, int) else "an int of too many digits"
