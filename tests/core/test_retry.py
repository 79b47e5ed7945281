"""Backoff: base, doubling, capped at 2^8 steps, some jitter (semantics.md §4, activities)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.core.retry import Backoff, backoff_us


def test_default_backoff_doubles_from_half_a_second_up_to_2_to_the_8() -> None:
    default = Backoff()
    waits = [backoff_us(default.base_us, default.doublings, attempt, 0.0) for attempt in range(1, 12)]
    assert waits == [500_000 * 2 ** min(n, 8) for n in range(11)]


@given(st.integers(0, 10**12), st.integers(0, 32), st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_jitter_adds_up_to_a_tenth_and_never_shortens(
    base_us: int, doublings: int, attempt: int, jitter: float
) -> None:
    wait_us = backoff_us(base_us, doublings, attempt, 0.0)
    assert wait_us <= backoff_us(base_us, doublings, attempt, jitter) <= wait_us + wait_us // 10
    assert backoff_us(base_us, doublings, attempt + 1, 0.0) in (wait_us, 2 * wait_us)


@pytest.mark.parametrize(("attempt", "jitter"), [(0, 0.0), (-1, 0.0), (1, 1.0), (1, -0.1), (1, math.nan)])
def test_backoff_refuses_what_is_out_of_range(attempt: int, jitter: float) -> None:
    with pytest.raises(ValueError, match=r"attempts|jitter"):
        backoff_us(1, 1, attempt, jitter)


@pytest.mark.parametrize(
    ("base", "doublings", "error"),
    [
        (-1, 8, ValueError),
        (math.inf, 8, ValueError),
        (math.nan, 8, ValueError),
        (1e300, 8, ValueError),
        (1e9, 32, ValueError),
        (1, -1, ValueError),
        (1, 33, ValueError),
        (True, 8, TypeError),
        ("1", 8, TypeError),
        (1, 1.0, TypeError),
        (1, True, TypeError),
    ],
)
def test_backoff_definition_is_validated(base: Any, doublings: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="Backoff"):
        Backoff(base=base, doublings=doublings)


def test_backoff_without_waiting_is_allowed() -> None:
    assert backoff_us(Backoff(base=0, doublings=0).base_us, 0, 5, 0.9) == 0
