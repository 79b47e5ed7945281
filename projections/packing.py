"""Numbers as bytes: many of them in a row of a store are written and read in one piece."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence


def packed(numbers: array[int]) -> bytes:
    """Pack numbers, 8 bytes each, little-endian, so that any machine reads what another has kept."""
    if sys.byteorder == "big":
        numbers = array("q", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def unpacked(packed_numbers: bytes) -> array[int]:
    """Return the numbers again."""
    numbers = array("q")
    numbers.frombytes(packed_numbers)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class Parts:
    """Arrays one behind the other, which are taken out in the order in which they were put in."""

    def __init__(self, numbers: array[int] | None = None) -> None:
        """``numbers``: those of parts that were put together before."""
        self.numbers = array("q") if numbers is None else numbers
        self._taken = 0

    def put(self, part: Sequence[int]) -> int:
        """Add a part; return how long it is, for :meth:`take`."""
        self.numbers.extend(part)
        return len(part)

    def take(self, count: int) -> array[int]:
        """Return the next part."""
        start, self._taken = self._taken, self._taken + count
        return self.numbers[start : self._taken]
