"""What bodies emit, on a real broker, as any consumer sees it (design §6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gasoline_es import Gasoline, WorkflowContext, workflow
from gasoline_es.clock import SystemClock
from gasoline_es.core import events as ev
from gasoline_es.core.emitted import partition_by_key
from gasoline_es.errors import WorkflowFailed
from gasoline_es.log.kafka.drivers.port import Driver, Feed
from gasoline_es.log.kafka.records import read_through
from tests.kafka.conftest import new_feeds

COUNT = 20
BOTH_DRIVERS = pytest.mark.parametrize(
    "driver_name", ["confluent", pytest.param("kafka-python", marks=pytest.mark.soak)]
)


@pytest.fixture
def url(kafka_bootstrap: str, kafka_namespace: str, driver_name: str, tmp_path: Path) -> str:
    return f"kafka://{kafka_bootstrap}/{kafka_namespace}?driver={driver_name}&state_dir={tmp_path}"


@workflow
async def emits(ctx: WorkflowContext, topic: str) -> int:
    await ctx.join_all([ctx.emit(topic, f"key {n}", {"n": n}) for n in range(COUNT - 1)])
    await ctx.emit(topic, "gone", None)
    return COUNT


class Yesterday(SystemClock):
    """The clock of a host that is a day behind."""

    def now_us(self) -> int:
        return super().now_us() - 24 * 3600 * 1_000_000


@BOTH_DRIVERS
async def test_consumer_of_what_is_committed_sees_each_emitted_record_once(
    make: Callable[[str], Driver],
    url: str,
    kafka_bootstrap: str,
    kafka_namespace: str,
) -> None:
    topic, *_ = made = new_feeds(make(kafka_bootstrap), f"{kafka_namespace}-emitted", 5)
    async with asyncio.timeout(60), Gasoline.open(url, partitions=2) as gasoline, gasoline.worker([emits]):
        handle = await gasoline.dispatch(emits, topic.topic)
        assert await handle.output() == COUNT
        history = await handle.history()
        missing = await gasoline.dispatch(emits, f"{topic.topic}-missing")
        with pytest.raises(WorkflowFailed, match="Make it"):
            await missing.output()
    with closing(make(kafka_bootstrap).reader()) as reader:
        read = [one for feed in made for one in read_through(reader, feed, 0, 30)]
    ids = sorted((dict(one.headers)["ce_id"] or b"").decode() for one in read)
    assert ids == sorted(event.id for event in history if isinstance(event.data, ev.RecordEmitted))
    assert len(ids) == COUNT
    assert all(one.feed == Feed(topic.topic, partition_by_key((one.key or b"").decode(), 5)) for one in read)
    assert {one.key: one.value for one in read} == {
        **{b"key %d" % n: b'{"n":%d}' % n for n in range(COUNT - 1)},
        b"gone": None,
    }


@BOTH_DRIVERS
async def test_topic_that_refuses_the_time_of_a_record_ends_the_run_and_the_partition_goes_on(
    make: Callable[[str], Driver],
    url: str,
    kafka_bootstrap: str,
    kafka_namespace: str,
) -> None:
    client = make(kafka_bootstrap)
    (strict,) = new_feeds(client, f"{kafka_namespace}-strict", message_timestamp_before_max_ms="3600000")
    (easy,) = new_feeds(client, f"{kafka_namespace}-easy")
    opening = Gasoline.open(url, partitions=1, clock=Yesterday())
    async with asyncio.timeout(60), opening as gasoline, gasoline.worker([emits]):
        refused = await gasoline.dispatch(emits, strict.topic)
        with pytest.raises(WorkflowFailed, match="has refused a record"):
            await refused.output()
        other = await gasoline.dispatch(emits, easy.topic)
        assert await other.output() == COUNT
