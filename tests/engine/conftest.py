"""Worlds for the engine's tests; each ends with a look at every history in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from gasoline_es.log.kafka import topics
from gasoline_es.log.kafka.drivers.port import Feed
from gasoline_es.runtime import viewing
from tests.engine.harness import World
from tests.engine.held_to_schemas import held_to_schemas
from tests.kafka.cluster_of_memory import cluster_for_all


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Views are stored as soon as they change: nearly everything that is over is read from the store."""
    with pytest.MonkeyPatch.context() as patch:  # one of its own: a test's is to be undone before its world ends
        patch.setattr(viewing, "SAVE_AFTER_S", 0.0)
        yield


@pytest.fixture(autouse=True)
def as_published() -> Iterator[None]:
    """What others read of it is as docs/schemas says."""
    with held_to_schemas():
        yield


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A memory log and a virtual clock."""
    made = World()
    yield made
    await made.end()


@pytest.fixture(params=["memory", "file", "kafka"])
async def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """The same on the memory log, on the file log, and on the Kafka log over a cluster in memory."""
    with pytest.MonkeyPatch.context() as patch:
        match request.param:
            case "memory":
                made = World()
            case "file":
                made = World(f"file:{tmp_path}/log")
            case _:
                made = kafka_world(patch, tmp_path)
        yield made
        await made.end()


def kafka_world(patch: pytest.MonkeyPatch, state_dir: Path) -> World:
    """Make a world on the Kafka log, over a cluster in memory of its own."""
    cluster = cluster_for_all(patch)
    patch.setattr(topics, "PARTITIONS_DEFAULT", 16)
    made = World(f"kafka://memory:9092/default?state_dir={state_dir}")
    made.cluster = cluster
    made.tell_death = partial(cluster.tell_death, Feed("default.workers", 0))
    return made


@pytest.fixture
async def file_world(tmp_path: Path) -> AsyncIterator[World]:
    """A file log and a virtual clock."""
    made = World(f"file:{tmp_path}/log")
    yield made
    await made.end()
