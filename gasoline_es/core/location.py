"""Where an event stands in a workflow's history (semantics.md §2).

A location is a tuple of coordinates, a coordinate a non-empty tuple of ordinates. Both compare as Python tuples do, and
that order is the order of the history. Written ``{4, 0.3.1, 0.6}``; the root is ``{}``.
"""

from __future__ import annotations

import re
from functools import lru_cache

Coordinate = tuple[int, ...]
Location = tuple[Coordinate, ...]

ROOT: Location = ()

_LEFT_BOUND: Coordinate = (0,)
_FIRST: Coordinate = (1,)

# One spelling per location (no leading zeros, one space after each comma), so that a text can serve as a key.
_ORDINATE = r"(?:0|[1-9][0-9]{0,17})"
_COORDINATE = rf"{_ORDINATE}(?:\.{_ORDINATE})*"
LOCATION_PATTERN = rf"\{{(?:{_COORDINATE}(?:, {_COORDINATE})*)?\}}"
"""What a location is written like: a regular expression of the whole text, as all dialects read it."""
_LOCATION = re.compile(LOCATION_PATTERN)


@lru_cache(maxsize=16_384)
def format_location(loc: Location) -> str:
    """Write a location: ``{1, 4}``, ``{0.1}``, and ``{}`` for the root. The inverse of :func:`parse_location`."""
    return "{" + ", ".join([".".join(map(str, coordinate)) for coordinate in loc]) + "}"


@lru_cache(maxsize=16_384)
def parse_location(text: str) -> Location:
    """Read a location exactly as :func:`format_location` writes it.

    Raises: ValueError on any other text: another spacing, leading zeros, signs, ordinates of more than 18 digits.
    """
    if _LOCATION.fullmatch(text) is None:
        raise ValueError(f"not a location: {text[:100]!r}; one is written as {{1, 4}} or {{4, 0.3.1, 0.6}}")
    if text == "{}":
        return ROOT
    return tuple([tuple(map(int, coordinate.split("."))) for coordinate in text[1:-1].split(", ")])


def read_location(text: str) -> Location:
    """Read a location as people write it: ``2,5,3`` and ``{2, 5, 3}`` are the same. Raises: ValueError, TypeError."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"a location is given as text, as the history shows it: '{{2, 5, 3}}' or '2,5,3', not as {type(text).__name__} "
            f"{text!r:.100}"
        )
    given = text.strip()
    bare = given[1:-1].strip() if given.startswith("{") and given.endswith("}") else given
    if not bare:
        return parse_location(given)
    return parse_location("{" + ", ".join(part.strip() for part in bare.split(",")) + "}")


def next_coordinate(last: Coordinate | None) -> Coordinate:
    """Give the coordinate of a new event at the end of a branch whose last event is at ``last``.

    Only the head ordinate counts, so holes and insertions do not matter: after ``4.2`` comes ``5``. With nothing
    recorded (``last`` None) it is ``1``.
    """
    return _FIRST if last is None else (last[0] + 1,)


@lru_cache(maxsize=16_384)
def next_location(branch: Location, last: Coordinate | None) -> Location:
    """Give the location of a new event at the end of a branch, see :func:`next_coordinate`.

    Cached, so that all workflows share the few tuples that nearly every location is made of.
    """
    return (*branch, next_coordinate(last))


def insert_between(previous: Coordinate | None, current: Coordinate | None) -> Coordinate:
    """Give a coordinate strictly between two neighbours, by the insertion rules of semantics.md §2.

    ``previous`` None is the left bound ``0`` of the branch; a missing ``current`` counts as ``1``. As the two are
    neighbours, whatever lies strictly between them has never been given out, which makes every history of insertions
    free of collisions.

    Raises: ValueError if ``previous`` does not stand before ``current``, or nothing fits between them; neither happens
    with coordinates made by this module.
    """
    p = _LEFT_BOUND if previous is None else previous
    c = _FIRST if current is None else current
    if not p < c:
        raise ValueError(f"nothing can be inserted between {_text(p)} and {_text(c)}: they are out of order")
    if len(p) == len(c):
        return (*p, 1)
    if len(p) > len(c):
        return (*p[:-1], p[-1] + 1)
    zeros = 0
    for ordinate in c[len(p) :]:
        if ordinate != 0:
            break
        zeros += 1
    if zeros == len(c) - len(p):
        raise ValueError(f"nothing fits between {_text(p)} and {_text(c)}")
    return (*p, *([0] * (zeros + 1)), 1)


def _text(coordinate: Coordinate) -> str:
    return ".".join(map(str, coordinate))
