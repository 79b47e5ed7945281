"""A small cache of what was read and checked last: cold histories that are read together lie in the same batches."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Recent(Generic[_K, _V]):
    """The most recently used values, up to a bound on the sum of their sizes."""

    def __init__(self, size_max: int) -> None:
        self._size_max: Final = size_max
        self._values: OrderedDict[_K, tuple[_V, int]] = OrderedDict()
        self._size = 0

    def get(self, key: _K) -> _V | None:
        """Return the value if it is still kept."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: _K, value: _V, size: int = 1) -> None:
        """Keep a value that is not kept yet; the least recently used go when there is no room."""
        self._values[key] = (value, size)
        self._size += size
        while self._size > self._size_max and len(self._values) > 1:
            _, (_, gone) = self._values.popitem(last=False)
            self._size -= gone
