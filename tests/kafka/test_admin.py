"""Topics, and what a broker says that does not want to, by each client library on a real broker."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from gasoline_es.log.kafka.drivers.port import BrokerError, Driver, Feed, NewTopic
from gasoline_es.log.kafka.settings import Address, make_driver
from tests.kafka.records import committed, numbers, outs, read_all


def test_topics_are_made_once_and_described(driver: Driver, kafka_namespace: str) -> None:
    events, inbox = f"{kafka_namespace}.events", f"{kafka_namespace}.inbox"
    with closing(driver.admin()) as admin:
        wanted = [
            NewTopic(events, 3, 1, {"cleanup.policy": "compact", "max.message.bytes": "1200000"}),
            NewTopic(inbox, 2, -1, {"retention.ms": "-1"}),
        ]
        admin.create(wanted, 30)
        admin.create([NewTopic(events, 5, 1, {}), NewTopic(f"{kafka_namespace}.index", 1, 1, {})], 30)  # left as it is
        found = admin.describe([events, inbox, f"{kafka_namespace}.none"], 10)
        assert set(found) == {events, inbox}
        assert [(found[name].partitions, found[name].replication) for name in (events, inbox)] == [(3, 1), (2, 1)]
        assert found[events].config["cleanup.policy"] == "compact"
        assert found[events].config["max.message.bytes"] == "1200000"
        assert {"READ", "WRITE"} <= found[inbox].allowed  # where everything is, the broker says so
        without = admin.describe([events], 10, settings=False)[events]
        assert (without.partitions, without.config) == (3, {})
        assert found[inbox].config["retention.ms"] == "-1"
        assert found[inbox].config["cleanup.policy"] == "delete"
        assert admin.describe([], 10) == admin.describe([f"{kafka_namespace}.none"], 10) == {}
        assert len(admin.cluster_id(10)) > 10


def test_records_before_an_offset_are_removed(driver: Driver, kafka_namespace: str) -> None:
    feed = Feed(f"{kafka_namespace}.inbox", 0)
    with closing(driver.admin()) as admin, closing(driver.writer(f"{kafka_namespace}.0", 10)) as writer:
        admin.create([NewTopic(feed.topic, 1, 1, {})], 30)
        writer.fence()
        committed(writer.commit(outs(feed, *range(5))))
        admin.delete_before({feed: 3}, 10)
        admin.delete_before({feed: 2}, 10)  # there is nothing before it any more
        admin.delete_before({}, 10)
        assert numbers(read_all(driver, feed)) == [3, 4]


def test_a_topic_that_cannot_be_made_is_an_error_that_says_why(driver: Driver, kafka_namespace: str) -> None:
    with closing(driver.admin()) as admin:
        with pytest.raises(BrokerError, match="cannot be made"):
            admin.create([NewTopic(f"{kafka_namespace}.x", 1, 1, {"cleanup.policy": "nonsense"})], 10)
        with pytest.raises(BrokerError, match="cannot be made"):
            admin.create([NewTopic(f"{kafka_namespace}.x", 1, 7, {})], 10)  # more copies than brokers


def test_a_cluster_that_is_not_there_is_an_error_in_time(driver_name: str) -> None:
    driver = make_driver(Address(("127.0.0.1:1",), driver=driver_name), environ={})
    began = time.monotonic()
    with pytest.raises(BrokerError, match=r"Kafka at 127\.0\.0\.1:1: no broker was reached") as caught:
        driver.admin().cluster_id(1)
    assert time.monotonic() - began < 30
    assert "advertised listeners" in str(caught.value)
