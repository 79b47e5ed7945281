"""A cache for what is looked up many times for each event."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """The results of ``make`` by its argument. At ``limit`` of them it starts anew.

    A third of what ``lru_cache`` takes for a hit, which is a lookup in a dictionary and nothing else.
    """

    __slots__ = ("_limit", "_make")

    def __init__(self, make: Callable[[K], V], limit: int) -> None:
        self._make = make
        self._limit = limit

    def __missing__(self, key: K) -> V:
        value = self._make(key)
        if len(self) >= self._limit:
            self.clear()
        self[key] = value
        return value
