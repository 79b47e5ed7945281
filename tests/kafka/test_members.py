"""Members of a consumer group are told which partitions are theirs, by each client library on a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

import pytest

from gasoline_es.log.kafka.drivers.port import Assignments, Driver, Feed, Member
from tests.kafka.conftest import NewFeeds


class Told:
    """What a member was told, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Feed]]] = []

    def _note(self, what: str) -> Callable[[Sequence[Feed]], None]:
        def note(feeds: Sequence[Feed]) -> None:
            self.calls.append((what, list(feeds)))

        return note

    @property
    def assignments(self) -> Assignments:
        return Assignments(self._note("assigned"), self._note("revoked"), self._note("lost"))

    @property
    def has(self) -> set[Feed]:
        """What it has, by what it was told."""
        found: set[Feed] = set()
        for what, feeds in self.calls:
            if what == "assigned":
                assert found.isdisjoint(feeds)
                found.update(feeds)
            else:
                assert found.issuperset(feeds)
                found.difference_update(feeds)
        return found


def poll_until(check: Callable[[], bool], *members: Member, limit_s: float = 40) -> None:
    deadline = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < deadline, [member.feeds for member in members]
        for member in members:
            member.poll(0.05)


def test_members_share_the_partitions_and_only_what_moves_is_taken_away(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str
) -> None:
    all_feeds = frozenset(feeds(4))
    topic = next(iter(all_feeds)).topic
    first_told, second_told = Told(), Told()
    with closing(driver.member(kafka_namespace, [topic], first_told.assignments)) as first:
        poll_until(lambda: first.feeds == all_feeds, first)
        assert first_told.has == all_feeds
        with closing(driver.member(kafka_namespace, [topic], second_told.assignments)) as second:
            poll_until(lambda: len(first.feeds) == len(second.feeds) == 2, first, second)
            assert first.feeds | second.feeds == all_feeds
            assert (first_told.has, second_told.has) == (first.feeds, second.feeds)
            # What it keeps was never taken from it meanwhile.
            taken = {feed for what, them in first_told.calls if what != "assigned" for feed in them}
            assert taken == second.feeds
        assert second_told.has == set()
        assert "lost" not in [what for what, _ in second_told.calls]
        poll_until(lambda: first.feeds == all_feeds, first)
    assert first_told.has == set()


@pytest.mark.soak
def test_a_member_that_is_not_polled_keeps_what_it_has(driver: Driver, feeds: NewFeeds, kafka_namespace: str) -> None:
    """Its client lets the group know that it lives, from a thread of its own."""
    (feed,) = feeds()
    told = Told()
    with closing(driver.member(kafka_namespace, [feed.topic], told.assignments, session_timeout_s=1)) as member:
        poll_until(lambda: member.feeds == frozenset([feed]), member)
        over = threading.Event()
        over.wait(2.5)  # more than two sessions: nothing else than time can tell
        for _ in range(5):
            member.poll(0.05)
        assert [what for what, _ in told.calls] == ["assigned"]
        with suppress(AssertionError):
            poll_until(lambda: member.feeds != frozenset([feed]), member, limit_s=0.5)
        assert member.feeds == frozenset([feed])
