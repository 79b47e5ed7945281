"""The virtual clock keeps wall and monotonic time apart, as a stepped wall clock does (B13)."""

from __future__ import annotations

import time

import pytest

from gasoline_es.clock import Clock, SystemClock, VirtualClock


def test_system_clock_tells_the_machines_time() -> None:
    clock: Clock = SystemClock()
    assert abs(clock.now_us() - time.time_ns() // 1000) < 60_000_000
    assert clock.monotonic() <= clock.monotonic()


def test_virtual_clock_moves_only_when_told_and_tells_its_listeners() -> None:
    clock = VirtualClock(wall_us=1_000)
    seen: list[tuple[int, float]] = []
    clock.on_change.append(lambda: seen.append((clock.now_us(), clock.monotonic())))
    clock.advance(1.5)
    clock.jump_wall(-1)
    clock.set_wall(7)
    assert seen == [(1_501_000, 1.5), (501_000, 1.5), (7, 1.5)]


def test_virtual_clock_loses_no_microsecond_over_centuries() -> None:
    clock = VirtualClock(wall_us=0)
    clock.advance(300 * 366 * 86_400)
    clock.advance(0.000001)
    assert clock.now_us() == 300 * 366 * 86_400 * 1_000_000 + 1


def test_virtual_time_does_not_pass_backwards() -> None:
    with pytest.raises(ValueError, match="forward only"):
        VirtualClock().advance(-1)
