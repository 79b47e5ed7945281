"""What is due is told in turns: who arms again for what has passed comes after everybody else (``runtime.timers``)."""

from __future__ import annotations

import asyncio

from gasoline_es.clock import VirtualClock
from gasoline_es.runtime.timers import Timers


async def test_a_key_that_is_armed_again_for_the_past_waits_for_the_next_turn() -> None:
    """Also where the clock steps back in between: a look ends, whatever its receivers do."""
    clock = VirtualClock()
    told: list[str] = []

    def due(key: str) -> None:
        told.append(key)
        timers.arm(key, clock.now_us() - 1)

    timers = Timers(clock, due)
    timers.arm("a", clock.now_us() + 1_000_000)
    timers.arm("b", clock.now_us() + 1_000_000)
    clock.advance(2)
    assert told == ["a", "b"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told[:4] == ["a", "b", "a", "b"]
    timers.close()
