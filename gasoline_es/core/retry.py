"""How long to wait before an activity is tried again (semantics.md §4): doubling from a base, capped, with jitter."""

from __future__ import annotations

from dataclasses import dataclass

from gasoline_es.core.durations import MICROSECONDS, duration_us

_JITTER_BITS = 53
_DOUBLINGS_MAX = 32
_LONGEST_US = 36_500 * 86_400 * MICROSECONDS


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait after the n-th failed attempt: ``base`` seconds × 2^min(n − 1, ``doublings``).

    Raises: TypeError or ValueError for a base that is no finite, non-negative number, doublings outside [0, 32], or a
    longest wait of more than 100 years.
    """

    base: float = 0.5
    doublings: int = 8

    def __post_init__(self) -> None:
        if type(self.doublings) is not int:
            raise TypeError(f"Backoff doublings must be an int, not {type(self.doublings).__name__}")
        if not 0 <= self.doublings <= _DOUBLINGS_MAX:
            raise ValueError(f"Backoff doublings must be in [0, {_DOUBLINGS_MAX}], not {self.doublings}")
        if isinstance(self.base, bool) or not isinstance(self.base, int | float):  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from users
            raise TypeError(f"Backoff base must be seconds (int or float), not {type(self.base).__name__}")
        if self.base_us << self.doublings > _LONGEST_US:
            raise ValueError(f"Backoff(base={self.base!r}, doublings={self.doublings}) waits more than 100 years")

    @property
    def base_us(self) -> int:
        """The base in microseconds."""
        return duration_us(self.base, "Backoff base")


def backoff_us(base_us: int, doublings: int, attempt: int, jitter: float) -> int:
    """Give the wait in microseconds after failed attempt number ``attempt`` (from 1).

    ``jitter`` in [0, 1) adds up to a tenth of the wait. Never shorter than without jitter.
    Raises: ValueError for an attempt below 1 or a jitter outside [0, 1).
    """
    if attempt < 1:
        raise ValueError(f"attempts count from 1, not {attempt}")
    if not 0.0 <= jitter < 1.0:
        raise ValueError(f"jitter must be in [0, 1), not {jitter!r}")
    wait_us = base_us << min(attempt - 1, doublings)
    # The jitter as an integer fraction, so that the product stays exact for waits of any length.
    return wait_us + (wait_us * int(jitter * (1 << _JITTER_BITS)) >> _JITTER_BITS) // 10
