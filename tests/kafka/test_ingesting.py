"""Pipelines through a real broker: each record of one topic leads to one of another, whoever is killed (design §6)."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as _confluent
import confluent_kafka.admin as _admin
import pytest

from gasoline_es import Gasoline, Signal
from gasoline_es.core.ids import partition_of, partition_of_slot, workflow_id_from_key
from gasoline_es.core.topics import Topics
from gasoline_es.log.kafka.drivers.port import Driver
from gasoline_es.pipelines import Dispatch, Incoming, Send
from tests.kafka.conftest import new_feeds
from tests.kafka.pipeline import relay
from tests.kafka.raw import read_messages
from tests.kafka_server import own_broker

confluent: Any = _confluent
admin_of: Any = _admin
ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 5


class Word(Signal):
    pass


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    """Write numbers as any other program would, some of them in a transaction that is aborted, and some words."""
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(60)
    for start in range(numbers.start, numbers.stop, 5_000):
        for commits in (False, True):
            producer.begin_transaction()
            for number in numbers[start : start + 5_000] if commits else [-1]:
                producer.produce(topic, str(number), f"key {number % 100}", on_delivery=_delivered)
                producer.poll(0)
            if commits:
                producer.commit_transaction(60)
            else:
                producer.flush(60)
                producer.abort_transaction(60)
    producer.begin_transaction()
    producer.produce(topic, "no number", "key 1")
    producer.commit_transaction(60)


def produce_one(bootstrap: str, topic: str, partition: int, value: str) -> None:
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, "key", partition=partition, on_delivery=_delivered)
    assert producer.flush(30) == 0


def _delivered(error: Any, message: Any) -> None:
    assert error is None, error


def read_all(bootstrap: str, topic: str) -> list[Any]:
    """Return the values of every record that a committed reader sees now."""
    return [json.loads(message.value()) for messages in read_messages(bootstrap, topic) for message in messages]


def made(driver: Driver, namespace: str) -> tuple[str, str, str]:
    """Make the topics of a pipeline: source, dead letters, sink."""
    source, letters, sink = f"{namespace}-in", f"{namespace}-in.dead-letter", f"{namespace}-out"
    for topic, partitions in ((source, PARTITIONS), (letters, 1), (sink, 3)):
        new_feeds(driver, topic, partitions)
    return source, letters, sink


@pytest.mark.parametrize("driver_name", ["confluent", pytest.param("kafka-python", marks=pytest.mark.soak)])
async def test_each_record_of_a_topic_leads_to_one_of_another(
    make: Callable[[str], Driver], driver_name: str, kafka_bootstrap: str, kafka_namespace: str, tmp_path: Path
) -> None:
    count = 40
    source, letters, sink = made(make(kafka_bootstrap), kafka_namespace)
    produce(kafka_bootstrap, source, range(count))
    url = f"kafka://{kafka_bootstrap}/{kafka_namespace}?driver={driver_name}&state_dir={tmp_path}"

    def take(number: Incoming[int]) -> Dispatch[tuple[str, int]]:
        return Dispatch(relay, (sink, number.value))

    async with asyncio.timeout(90), Gasoline.open(url, partitions=2) as gasoline, gasoline.worker([relay]):
        for name in ("first", "again"):  # another reader reads it all once more, and that does nothing
            async with gasoline.ingest(source, take, model=int, name=name):
                while len(await asyncio.to_thread(read_all, kafka_bootstrap, letters)) < (1 if name == "first" else 2):
                    await asyncio.sleep(0.1)
                while len(await asyncio.to_thread(read_all, kafka_bootstrap, sink)) < count:
                    await asyncio.sleep(0.1)
    assert sorted(read_all(kafka_bootstrap, sink)) == list(range(count))
    first, second = read_all(kafka_bootstrap, letters)
    assert first["value"] == second["value"] == "no number"
    assert (first["pipeline"], second["pipeline"]) == ("first", "again")


@pytest.mark.parametrize("driver_name", ["confluent", pytest.param("kafka-python", marks=pytest.mark.soak)])
async def test_what_other_partitions_refuse_waits_for_a_topic_that_is_gone(
    make: Callable[[str], Driver], driver_name: str, kafka_bootstrap: str, kafka_namespace: str, tmp_path: Path
) -> None:
    source, letters, sink = made(make(kafka_bootstrap), kafka_namespace)
    url = f"kafka://{kafka_bootstrap}/{kafka_namespace}?driver={driver_name}&state_dir={tmp_path}"
    nobody = [workflow_id_from_key(kafka_namespace, "relay", str(number)) for number in range(6)]
    admin = admin_of.AdminClient({"bootstrap.servers": kafka_bootstrap})

    async with asyncio.timeout(150), Gasoline.open(url, partitions=3) as gasoline, gasoline.worker([relay]):
        reads = [
            partition_of_slot(Topics(kafka_namespace).source_slot(source, source, n), 3) for n in range(PARTITIONS)
        ]
        elsewhere = [one for one in nobody if partition_of(one, 3) != reads[0]]
        assert elsewhere

        def take(number: Incoming[int]) -> Dispatch[tuple[str, int]] | list[Send]:
            if number.value:
                return Dispatch(relay, (sink, number.value))
            return [Send(Word(), to=one) for one in elsewhere]

        async with gasoline.ingest(source, take, model=int):
            produce_one(kafka_bootstrap, source, 0, "1")
            while len(await asyncio.to_thread(read_all, kafka_bootstrap, sink)) < 1:
                await asyncio.sleep(0.1)
            admin.delete_topics([letters])[letters].result(30)
            produce_one(kafka_bootstrap, source, 0, "0")
            produce_one(kafka_bootstrap, source, 0, "2")
            while len(await asyncio.to_thread(read_all, kafka_bootstrap, sink)) < 2:  # the pipeline goes on
                await asyncio.sleep(0.1)
            ran = await gasoline.dispatch(relay, (sink, 3))  # and so does everything else
            await ran.output()
            new_feeds(make(kafka_bootstrap), letters, 1)
            while len(found := await asyncio.to_thread(read_all, kafka_bootstrap, letters)) < len(elsewhere):
                await asyncio.sleep(0.1)
    assert Counter(one["reason"]["type"] for one in found) == {"WorkflowNotFound": len(elsewhere)}
    assert sorted(read_all(kafka_bootstrap, sink)) == [1, 2, 3]


# --- under fire -------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_records_through_twenty_kills_lead_to_one_each(
    make: Callable[[str], Driver], driver_name: str, kafka_namespace: str, tmp_path: Path
) -> None:
    """Issue 5: workers and the broker are killed at random moments; each effect is once in the output topic."""
    count = 100_000
    seed = random.getrandbits(32)
    print(f"random.Random({seed})")
    rng = random.Random(seed)
    with own_broker() as broker:
        source, letters, sink = made(make(broker.bootstrap), kafka_namespace)
        produce(broker.bootstrap, source, range(count))
        url = f"kafka://{broker.bootstrap}/{kafka_namespace}?driver={driver_name}&state_dir={tmp_path}"
        asyncio.run(_make_namespace(url))
        for number in range(20):
            with _running(url, source, sink, 2) as workers:
                time.sleep(rng.uniform(1.0, 12.0))  # a random moment
                if number % 4 == 3:
                    broker.kill()
                    broker.start()
                    time.sleep(rng.uniform(0.0, 3.0))
                rng.choice(workers).send_signal(signal.SIGKILL)
                time.sleep(rng.uniform(0.0, 3.0))
        with _running(url, source, sink, 2):
            seen = -1
            while seen < count:
                _check_once(seen := len(found := read_all(broker.bootstrap, sink)), found)
                time.sleep(1.0)
        assert sorted(read_all(broker.bootstrap, sink)) == list(range(count))
        assert len(read_all(broker.bootstrap, letters)) == 1


def _check_once(seen: int, found: list[Any]) -> None:
    assert len(set(found)) == seen, [number for number, times in Counter(found).items() if times > 1][:10]


async def _make_namespace(url: str) -> None:
    async with Gasoline.open(url, partitions=8):
        pass


@contextmanager
def _running(url: str, source: str, sink: str, count: int) -> Generator[list[subprocess.Popen[bytes]]]:
    """Run programs between the two topics; they are killed at the end."""
    command = [sys.executable, "-m", "tests.kafka.pipeline"]
    urls = [f"{url}/worker-{number}" for number in range(count)]
    programs = [
        subprocess.Popen([*command, one, source, sink], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for one in urls
    ]
    try:
        yield programs
    finally:
        for one in programs:
            one.kill()
            one.wait()
