"""The log's contract on Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gasoline_es.log.kafka.drivers.port import Driver
from gasoline_es.log.kafka.log import KafkaLog
from gasoline_es.log.kafka.opening import open_cluster
from gasoline_es.log.kafka.settings import Address
from gasoline_es.log.names import check_namespace
from gasoline_es.testing.log_contract import LogContract, Opener
from tests.kafka.cluster_of_memory import Cluster, MemoryDriver


class OnKafka(LogContract):
    """What is otherwise on every Kafka log."""

    dense = False
    cleans = False
    time_unit_us = 1_000
    topics_are_data = False
    wait_s = 10.0


class TestClusterOfMemory(OnKafka):
    """The log over a cluster in memory."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        cluster = Cluster()

        async def open_one(
            *, namespace: str = "default", partitions: int | None = None, readonly: bool = False, **options: Any
        ) -> KafkaLog:
            check_namespace(namespace)
            address = Address(("memory:9092",), namespace, state_dir=str(tmp_path))
            return await open_cluster(
                MemoryDriver(cluster),
                address,
                namespace,
                partitions=partitions,
                readonly=readonly,
                silent_after_s=1.0,
            )

        return open_one


@pytest.mark.parametrize("driver_name", ["confluent", pytest.param("kafka-python", marks=pytest.mark.soak)])
class TestRealBroker(OnKafka):
    """The log over a real broker, by both client libraries."""

    @pytest.fixture
    def opener(self, tmp_path: Path, kafka_bootstrap: str, kafka_namespace: str, driver_name: str) -> Opener:
        async def open_one(
            *, namespace: str = "default", partitions: int | None = None, readonly: bool = False, **options: Any
        ) -> KafkaLog:
            check_namespace(namespace)
            if driver_name == "confluent":
                from gasoline_es.log.kafka.drivers.confluent import ConfluentDriver

                driver: Driver = ConfluentDriver({"bootstrap.servers": kafka_bootstrap})
            else:
                from gasoline_es.log.kafka.drivers.kafka_python import KafkaPythonDriver

                driver = KafkaPythonDriver({"bootstrap_servers": [kafka_bootstrap]})
            address = Address((kafka_bootstrap,), namespace, prefix=f"{kafka_namespace}.", state_dir=str(tmp_path))
            if partitions is None and not readonly:
                partitions = await _partitions(driver, address, namespace)
            return await open_cluster(
                driver, address, namespace, partitions=partitions, readonly=readonly, silent_after_s=2.0
            )

        return open_one


async def _partitions(driver: Driver, address: Address, namespace: str) -> int | None:
    """Few, unless the namespace is there: each costs the broker some files."""
    admin = driver.admin()
    try:
        return None if admin.describe([f"{address.prefix}{namespace}.events"], 30.0) else 10
    finally:
        admin.close()
