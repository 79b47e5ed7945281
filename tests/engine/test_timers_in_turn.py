"""What timers promise (``runtime.timers``): one deadline a key, told in turns, and nothing left of what is over."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.clock import VirtualClock
from gasoline_es.runtime.timers import STALE_MAX, Timers

HOUR_US = 3_600_000_000


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


async def test_the_last_deadline_counts_whether_it_is_earlier_or_later() -> None:
    clock = VirtualClock()
    told: list[str] = []
    timers = Timers(clock, told.append)
    start_us = clock.now_us()
    timers.arm("later", start_us + 1_000_000)
    timers.arm("later", start_us + 5_000_000)
    timers.arm("earlier", start_us + 5_000_000)
    timers.arm("earlier", start_us + 3_000_000)
    clock.advance(2.999_999)
    assert told == []
    clock.advance(0.000_001)
    assert told == ["earlier"]
    clock.advance(1.999_999)
    assert told == ["earlier"]
    clock.advance(0.000_001)
    assert told == ["earlier", "later"]
    assert len(timers) == 0
    timers.close()


async def test_what_ends_before_its_time_leaves_no_timer() -> None:
    """100,000 waits of an hour that end early: memory follows what waits, not the rate times the time."""
    clock = VirtualClock()
    told: list[str] = []
    timers = Timers(clock, told.append)
    for number in range(100_000):
        timers.arm(str(number), clock.now_us() + HOUR_US)
        timers.disarm(str(number))
        assert len(timers._heap) + len(timers._early) <= 2 * STALE_MAX + 2
    clock.advance(3_601)
    assert told == []
    assert len(timers) == len(timers._heap) == len(timers._early) == 0
    timers.close()


async def test_a_key_that_waits_again_and_again_takes_one_entry() -> None:
    """A workflow that listens for an hour, 100,000 times: each time later, and never due."""
    clock = VirtualClock()
    told: list[str] = []
    timers = Timers(clock, told.append)
    for _ in range(100_000):
        timers.arm("listener", clock.now_us() + HOUR_US)
        timers.disarm("listener")
        clock.advance(0.001)
    timers.arm("listener", clock.now_us() + HOUR_US)
    assert len(timers._heap) == 1
    clock.advance(3_599)
    assert told == []
    clock.advance(1)
    assert told == ["listener"]
    timers.close()


async def test_the_event_loop_keeps_no_timer_for_what_was_thrown_out() -> None:
    clock = VirtualClock()
    timers = Timers(clock, lambda key: None)
    for number in range(10 * STALE_MAX):
        timers.arm(str(number), clock.now_us() + HOUR_US + number)
    for number in range(10 * STALE_MAX):
        timers.disarm(str(number))
    assert len(timers._heap) <= STALE_MAX
    timers.close()


KEYS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), KEYS, st.integers(-2, 20)),
        st.tuples(st.just("disarm"), KEYS, st.just(0)),
        st.tuples(st.just("advance"), st.just(""), st.integers(0, 12)),
        st.tuples(st.just("jump"), st.just(""), st.integers(-12, 12)),
        st.tuples(st.just("fill"), st.just(""), st.integers(1, 3)),
    ),
    max_size=60,
)


@given(STEPS, st.booleans())
def test_timers_do_what_a_dictionary_of_deadlines_would(steps: list[tuple[str, str, int]], again: bool) -> None:
    """Armed, disarmed, and looked at with a clock that goes on or steps: each key is told once, at its last deadline.

    ``again``: whoever is told arms for later, once for each deadline.
    """
    asyncio.run(_as_the_model(steps, again=again))


async def _as_the_model(steps: list[tuple[str, str, int]], *, again: bool) -> None:
    clock = VirtualClock()
    model: dict[str, int] = {}
    told: list[str] = []

    def due(key: str) -> None:
        told.append(key)
        if again:
            arm(key, clock.now_us() + 3_000_000)

    timers = Timers(clock, due)

    def arm(key: str, deadline_us: int) -> None:
        timers.arm(key, deadline_us)
        model[key] = deadline_us

    for what, key, amount in steps:
        told.clear()
        expected: list[str] = []
        if what == "arm":
            arm(key, clock.now_us() + amount * 1_000_000)
        elif what == "disarm":
            timers.disarm(key)
            model.pop(key, None)
        elif what == "fill":
            for number in range(amount * STALE_MAX):
                timers.arm(f"filled {number}", clock.now_us() + HOUR_US)
                timers.disarm(f"filled {number}")
        else:
            now_us = clock.now_us() + amount * 1_000_000
            expected = sorted(key for key, deadline_us in model.items() if deadline_us <= now_us)
            for key in expected:
                del model[key]
            if what == "advance":
                clock.advance(amount)
            else:
                clock.jump_wall(amount)
        assert sorted(told) == expected
        assert timers._armed == model
        assert len(timers._heap) <= 2 * len(model) + STALE_MAX + 1
        assert set(timers._early) <= {key for _, key in timers._heap}
    timers.close()
