"""What the guide says of how long the defaults live through an outage is what is computed (semantics.md §4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gasoline_es import ActivityContext, Backoff, activity
from gasoline_es.core.retry import backoff_us

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "errors-and-retries.md"


@activity
async def ordinary(ctx: ActivityContext, _: None) -> None: ...


def waits_s(attempts: int, jitter: float = 0.0) -> list[float]:
    """The waits between so many attempts, with the default backoff."""
    default = Backoff()
    return [backoff_us(default.base_us, default.doublings, n, jitter) / 1e6 for n in range(1, attempts)]


def test_guide_says_how_long_the_defaults_live_through_an_outage() -> None:
    told = " ".join(GUIDE.read_text(encoding="utf-8").split())
    assert ordinary.max_attempts == 5
    assert waits_s(5) == [0.5, 1, 2, 4]
    assert sum(waits_s(5)) == 7.5
    assert sum(waits_s(5, 0.999_999_999)) == pytest.approx(8.25)
    assert (
        "With the defaults an activity lives through an outage of 7.5 seconds: its waits are 0.5, 1, 2 and 4 s" in told
    )
    assert "at most 8.25 s, and the time that the first four took, after the first" in told
    assert round(sum(waits_s(12)) / 60, 1) == 8.5
    assert round(sum(waits_s(40)) / 60) == 68
    assert "with `max_attempts=12` it is 8.5 minutes, with `max_attempts=40` 68 minutes" in told
