"""Who drives how many partitions, computed alike by all (semantics.md §8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gasoline_es.log.port import Member
from gasoline_es.runtime.sharing import (
    PRESSURE_LAG_S,
    SHED_AFTER_S,
    TAKE_BACK_AFTER_S,
    WEIGHT_LEAST,
    Peer,
    Pressure,
    peers_of,
    shares,
)

WEIGHTS = (0.125, 0.25, 0.5, 1.0)
PEERS = st.lists(
    st.builds(Peer, st.text("abcdef", min_size=1, max_size=6), st.integers(0, 2), st.sampled_from(WEIGHTS)),
    min_size=1,
    max_size=8,
    unique_by=lambda peer: peer.incarnation,
)


@given(PEERS, st.integers(1, 64))
def test_shares_are_all_partitions_and_all_compute_alike(peers: list[Peer], partitions: int) -> None:
    """semantics.md §8: the newest version shares them all, by weight, and the older ones take nothing."""
    given_out = shares(peers, partitions)
    assert sum(given_out.values()) == partitions
    newest = max(peer.version for peer in peers)
    assert all(given_out[peer.incarnation] == 0 for peer in peers if peer.version < newest)
    sharing = [peer for peer in peers if peer.version == newest]
    total = sum(peer.weight for peer in sharing)
    for peer in sharing:
        assert abs(given_out[peer.incarnation] - partitions * peer.weight / total) < 1
    assert shares(sorted(peers, key=lambda peer: peer.incarnation, reverse=True), partitions) == given_out


@pytest.mark.parametrize(
    ("weights", "partitions", "expected"),
    [
        ([1.0], 16, [16]),
        ([1.0, 1.0], 16, [8, 8]),
        ([1.0, 1.0, 1.0], 16, [6, 5, 5]),
        ([1.0, 0.5], 16, [11, 5]),
        ([1.0, 0.125], 16, [14, 2]),
        ([1.0] * 3, 2, [1, 1, 0]),
    ],
)
def test_shares_by_weight(weights: list[float], partitions: int, expected: list[int]) -> None:
    peers = [Peer(f"worker-{number}", 0, weight) for number, weight in enumerate(weights)]
    assert list(shares(peers, partitions).values()) == expected


def test_no_workers_share_nothing() -> None:
    assert shares([], 16) == {}


def test_members_that_are_no_workers_or_speak_another_language_do_not_share() -> None:
    """A client, a newer library's worker, nonsense."""
    peer = Peer("a", 3, 0.5)
    told: list[dict[str, object]] = [
        peer.about(),
        {},
        {"worker": None},
        {"worker": {"version": 1}},
        {"worker": {"version": "1", "weight": 1.0}},
        {"worker": {"version": True, "weight": 1.0}},
        {"worker": {"version": 1, "weight": "much"}},
        {"worker": {"version": 1, "weight": 0.0}},
        {"worker": {"version": 1, "weight": 2.0}},
        {"worker": {"version": 1, "weight": float("nan")}},
    ]
    members = [Member(chr(ord("a") + number), about, False) for number, about in enumerate(told)]
    assert peers_of(members) == [peer]


def feel(pressure: Pressure, lag_s: float, start_s: float, seconds: float) -> list[float]:
    """Observe for some seconds, twice a second; return the weights whenever one changed."""
    looks = [start_s + number / 2 for number in range(int(seconds * 2) + 1)]
    return [pressure.weight for now_s in looks if pressure.observe(lag_s, now_s)]


def test_a_loop_that_stays_late_halves_the_weight_again_and_again_to_the_least() -> None:
    """semantics.md §8: load shedding."""
    pressure = Pressure()
    assert feel(pressure, 0.0, 0.0, 100.0) == []
    assert feel(pressure, PRESSURE_LAG_S, 101.0, SHED_AFTER_S * 5) == [0.5, 0.25, WEIGHT_LEAST]


def test_a_loop_that_is_late_now_and_then_sheds_nothing() -> None:
    pressure = Pressure()
    for second in range(1_000):
        assert not pressure.observe(3.0 if second % 4 < 3 else 0.0, float(second))


def test_a_loop_that_is_in_time_again_takes_back_slowly() -> None:
    pressure = Pressure()
    feel(pressure, 1.0, 0.0, SHED_AFTER_S * 2)
    assert pressure.weight == 0.25
    assert feel(pressure, 0.0, 100.0, TAKE_BACK_AFTER_S - 0.5) == []
    assert feel(pressure, 0.0, 100.0 + TAKE_BACK_AFTER_S, TAKE_BACK_AFTER_S * 3) == [0.5, 1.0]
