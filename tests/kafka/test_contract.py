"""The log's contract on Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gasoline_es.log.kafka.log import KafkaLog
from gasoline_es.log.kafka.opening import open_cluster
from gasoline_es.log.kafka.settings import Address
from gasoline_es.log.names import check_namespace
from gasoline_es.testing.log_contract import LogContract, Opener
from tests.kafka.cluster_of_memory import Cluster, MemoryDriver


class OnKafka(LogContract):
    """What is otherwise on every Kafka log."""

    dense = False
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
