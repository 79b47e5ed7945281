"""Topics that were just made: a broker may hear of them a moment after the one that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gasoline_es.errors import LogError
from gasoline_es.log.kafka import topics
from gasoline_es.log.kafka.drivers.port import TopicInfo
from gasoline_es.log.kafka.topics import prepare
from tests.kafka.cluster_of_memory import Cluster, MemoryAdmin


class Lagging(MemoryAdmin):
    """Asks a broker that hears of topics late: so many looks after the first one see only ``events``, or nothing."""

    def __init__(self, cluster: Cluster, looks: int, *, events: bool) -> None:
        super().__init__(cluster)
        self._looks = looks
        self._events = events

    def describe(self, topics: Sequence[str], timeout_s: float, *, settings: bool = True) -> Mapping[str, TopicInfo]:
        self._looks -= 1
        found = super().describe(topics, timeout_s, settings=settings)
        if self._looks >= 0:
            return {name: one for name, one in found.items() if self._events and name.endswith(".events")}
        return found


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MADE_POLL_S", 0.0)


@pytest.mark.parametrize("events", [True, False])
def test_who_makes_topics_waits_until_all_brokers_have_heard(events: bool) -> None:
    admin = Lagging(Cluster(), 5, events=events)
    assert prepare(admin, "here", "", "shop", 3, 1, readonly=False) == 3


def test_who_opens_while_another_makes_them_takes_its_number_of_partitions() -> None:
    cluster = Cluster()
    assert prepare(MemoryAdmin(cluster), "here", "", "shop", 3, 1, readonly=False) == 3
    assert prepare(Lagging(cluster, 4, events=False), "here", "", "shop", None, 1, readonly=False) == 3
    with pytest.raises(LogError, match="3"):
        prepare(Lagging(cluster, 4, events=False), "here", "", "shop", 5, 1, readonly=False)


def test_a_cluster_that_never_hears_of_them_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MADE_LIMIT_S", 0.05)
    with pytest.raises(LogError, match=r"topic shop\.index was made and is not there"):
        prepare(Lagging(Cluster(), 10**9, events=True), "here", "", "shop", 3, 1, readonly=False)
