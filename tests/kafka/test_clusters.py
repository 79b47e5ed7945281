"""A cluster of three brokers loses one (design §6, Kafka log)."""

from __future__ import annotations

from contextlib import closing

import pytest

from gasoline_es.log.kafka.drivers.port import Committed, Feed, NewTopic
from gasoline_es.log.kafka.settings import Address, make_driver
from tests.kafka.records import committed, numbers, outs, read_all
from tests.kafka_server import cluster


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_what_was_committed_is_there_when_any_one_broker_is_gone(driver_name: str, kafka_namespace: str) -> None:
    with cluster(3) as brokers:
        driver = make_driver(Address(tuple(broker.bootstrap for broker in brokers), driver=driver_name), environ={})
        all_feeds = [Feed(f"{kafka_namespace}.events", partition) for partition in range(3)]
        with closing(driver.admin()) as admin:
            admin.create([NewTopic(all_feeds[0].topic, 3, 3, {"retention.ms": "-1"})], 60)
        expected: list[int] = []
        for round_number, broker in enumerate(brokers):
            with closing(driver.writer(f"{kafka_namespace}.0", 30)) as writer:
                writer.fence()
                numbers_now = range(round_number * 10, round_number * 10 + 3)
                committed(writer.commit([one for feed in all_feeds for one in outs(feed, *numbers_now)]))
                expected += numbers_now
                broker.kill()
                more = [one for feed in all_feeds for one in outs(feed, 100 + round_number)]
                if isinstance(writer.commit(more), Committed):
                    expected.append(100 + round_number)
                else:
                    with closing(driver.writer(f"{kafka_namespace}.0", 60)) as again:
                        again.fence()
                        if 100 + round_number in numbers(read_all(driver, all_feeds[0])):
                            expected.append(100 + round_number)
            for feed in all_feeds:
                assert numbers(read_all(driver, feed)) == expected
            broker.start(wait=False)
            broker.wait_until_ready(3)
