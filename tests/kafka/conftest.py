from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import TypeAlias

import pytest

from gasoline_es.log.kafka.drivers.port import Driver, Feed, NewTopic
from gasoline_es.log.kafka.settings import DRIVERS, Address, make_driver
from tests.kafka.proxy import Proxy
from tests.kafka_server import Broker, OtherListener, free_port, own_broker

NewFeeds: TypeAlias = Callable[..., list[Feed]]


_REAL_IN_EVERY_RUN = (
    "read_back_exactly",
    "ascend_and_are_given",
    "outcomes_of_their_own",
    "at_the_limit",
    "one_owner_at_a_time",
    "released_partition",
    "dead_owners_partition",
    "every_writers_records",
    "skips_what_a_fenced_owner",
    "newest_record_is_the_one",
    "source_gives_every_writers",
    "changed_returns_for_what_others",
    "opened_for_reading",
    "closing_frees",
)
"""Of the contract, on a real broker: the rest holds on the cluster in memory in every run, and on a broker in `make soak`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        of_contract = "TestRealBroker" in item.nodeid and not any(name in item.nodeid for name in _REAL_IN_EVERY_RUN)
        # The traps are those of kafka-python, which is always installed.
        of_faults = "kafka/test_faults.py" in item.nodeid and "confluent" in item.nodeid
        if of_contract or of_faults:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(params=DRIVERS)
def driver_name(request: pytest.FixtureRequest) -> str:
    """Each client library: what holds for one holds for all."""
    return str(request.param)


@pytest.fixture
def make(driver_name: str) -> Iterator[Callable[[str], Driver]]:
    """Makes drivers for a cluster."""
    with ExitStack() as made:

        def one(bootstrap: str) -> Driver:
            return made.enter_context(closing(make_driver(Address((bootstrap,), driver=driver_name), environ={})))

        yield one


@pytest.fixture
def driver(make: Callable[[str], Driver], kafka_bootstrap: str) -> Driver:
    """A driver for the broker that all tests share."""
    return make(kafka_bootstrap)


def new_feeds(driver: Driver, topic: str, count: int = 1, **config: str) -> list[Feed]:
    """Make a topic with so many partitions."""
    with closing(driver.admin()) as admin:
        # The times of tests' records are long ago.
        settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
        admin.create([NewTopic(topic, count, 1, settings)], 30)
    return [Feed(topic, partition) for partition in range(count)]


@pytest.fixture
def feeds(driver: Driver, kafka_namespace: str) -> NewFeeds:
    """Makes a topic of this test's own."""

    def make(count: int = 1, **config: str) -> list[Feed]:
        return new_feeds(driver, f"{kafka_namespace}.events", count, **config)

    return make


@pytest.fixture(scope="session")
def proxied_broker() -> Iterator[tuple[Broker, Proxy]]:
    """A broker of this process's own, and the proxy by which it is reached if one comes by its other listener."""
    with closing(Proxy(free_port())) as proxy, own_broker(other=OtherListener(advertised_port=proxy.port)) as broker:
        assert broker.other_port is not None
        proxy.target = ("127.0.0.1", broker.other_port)
        yield broker, proxy


@pytest.fixture
def proxied(proxied_broker: tuple[Broker, Proxy]) -> Iterator[tuple[Broker, Proxy]]:
    """The same, as good as new."""
    broker, proxy = proxied_broker
    yield broker, proxy
    proxy.forget()
    proxy.cut_all()
    if broker.pid is None:
        broker.start()
