"""Worlds on the Kafka log over a cluster in memory."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gasoline_es.log.kafka import topics
from gasoline_es.log.kafka.drivers.port import Feed
from tests.engine.harness import World
from tests.kafka.cluster_of_memory import Cluster, cluster_for_all


@contextmanager
def kafka_world(tmp_path: Path) -> Generator[tuple[World, Cluster]]:
    """Make a world, and the cluster that its processes reach for as long as the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        cluster = cluster_for_all(patch)
        patch.setattr(topics, "PARTITIONS_DEFAULT", 16)
        made = World(f"kafka://memory:9092/default?state_dir={tmp_path}")
        made.tell_death = partial(cluster.tell_death, Feed("default.workers", 0))
        yield made, cluster
