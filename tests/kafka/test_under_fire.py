"""Workers and brokers that are killed, frozen and away, in processes of their own (design §6, required case B14)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka as _confluent
import confluent_kafka.admin as _admin
import pytest

from gasoline_es import Gasoline
from tests.engine.harness import soon
from tests.engine.subprocesses import line, worker_process
from tests.engine.workflows import Note, notes
from tests.examples.helpdesk_runs import SCRIPT, as_printed, expected, made_up, summary, written
from tests.kafka.raw import check_events, read_events
from tests.kafka_server import Broker, cluster, own_broker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

confluent: Any = _confluent
admin: Any = _admin

PATIENCE_S = 120.0


def url_of(bootstrap: str, namespace: str, driver_name: str, folder: Path) -> str:
    return f"kafka://{bootstrap}/{namespace}?driver={driver_name}&state_dir={folder}"


async def until_owned_by_another(gasoline: Gasoline, former: set[str]) -> None:
    """Wait until none of these has a partition any more, and every partition has a living owner."""
    while True:
        owners = [gasoline.log.owner(partition) for partition in range(gasoline.log.partition_count)]
        if all(one is not None and one.alive and not one.released and one.incarnation not in former for one in owners):
            return
        await asyncio.sleep(0.05)


# --- a frozen worker ----------------------------------------------------------------------------------------------------


async def test_a_worker_that_was_frozen_beyond_the_silence_is_refused_and_nothing_is_doubled(
    kafka_bootstrap: str, kafka_namespace: str, driver_name: str, tmp_path: Path
) -> None:
    """B14: it is in the middle of its work when it is stopped, and goes on with it when it is thawed."""
    namespace = kafka_namespace
    url = url_of(kafka_bootstrap, namespace, driver_name, tmp_path / "one")
    async with Gasoline.open(url, partitions=4) as gasoline, worker_process(url) as frozen:
        assert await line(frozen) == "ready"
        handles = [await soon(gasoline.dispatch(notes, 200), PATIENCE_S) for _ in range(8)]
        sending = asyncio.ensure_future(_send_all(gasoline, [one.id for one in handles], 200))
        await _until_some_are_recorded(gasoline, handles[0].id)
        former = {one.incarnation for part in range(4) if (one := gasoline.log.owner(part)) is not None}
        frozen.send_signal(signal.SIGSTOP)
        async with worker_process(url_of(kafka_bootstrap, namespace, driver_name, tmp_path / "two")) as other:
            assert await line(other, PATIENCE_S) == "ready"
            await soon(until_owned_by_another(gasoline, former), PATIENCE_S)
            frozen.send_signal(signal.SIGCONT)
            await soon(sending, PATIENCE_S)
            for handle in handles:
                taken = await soon(handle.output(), PATIENCE_S)
                assert Counter(taken) == Counter(str(number) for number in range(200))
            assert frozen.returncode is None, "it takes part again"
    check_events(read_events(kafka_bootstrap, f"{namespace}.events"))


async def _send_all(gasoline: Gasoline, ids: list[str], count: int) -> None:
    for number in range(count):
        await asyncio.gather(*(gasoline.signal(Note(text=str(number)), to=one, id=f"n{number}") for one in ids))


async def _until_some_are_recorded(gasoline: Gasoline, workflow_id: str) -> None:
    while len(await gasoline.handle(workflow_id, notes).history()) < 20:
        await asyncio.sleep(0.01)


# --- what the broker forgets ----------------------------------------------------------------------------------------------


async def test_silence_and_an_outage_beyond_every_retention_lose_nothing(
    kafka_namespace: str, driver_name: str, tmp_path: Path
) -> None:
    """Answers and messages are gone after a second, transactional ids are forgotten after two; commands have no such limit."""
    namespace = kafka_namespace
    forgetful = {
        "transactional_id_expiration_ms": "2000",
        "transaction_remove_expired_transaction_cleanup_interval_ms": "300",
        "producer_id_expiration_ms": "1000",
        "log_retention_check_interval_ms": "300",
        "log_initial_task_delay_ms": "300",
    }
    with own_broker(other=None, **forgetful) as broker:
        url = url_of(broker.bootstrap, namespace, driver_name, tmp_path / "one")
        async with Gasoline.open(url, partitions=2) as gasoline:
            forget_soon(broker.bootstrap, f"{namespace}.replies", f"{namespace}.messages")
            async with worker_process(url) as worker:
                assert await line(worker, PATIENCE_S) == "ready"
                handles = [await soon(gasoline.dispatch(notes, 3), PATIENCE_S) for _ in range(4)]
                await _send_range(gasoline, [one.id for one in handles], 0, 1)
                worker.kill()
                await worker.wait()
            # Commands for whoever comes: nobody decides them yet, and their sender may wait for ever.
            sending = asyncio.ensure_future(_send_range(gasoline, [one.id for one in handles], 1, 1))
            await until_forgotten(broker.bootstrap, f"{namespace}.replies")
            broker.kill()
            await asyncio.sleep(3)  # the time that the broker would forget in, if it lived
            broker.start()
            await asyncio.sleep(3)  # and it lives that long: it is the broker's clock that counts
            async with worker_process(url) as worker:
                assert await line(worker, PATIENCE_S) == "ready"
                await soon(sending, PATIENCE_S)
                await asyncio.sleep(3)  # nobody writes: every transactional id is forgotten while its writer lives
                await soon(_send_range(gasoline, [one.id for one in handles], 2, 1), PATIENCE_S)
                for handle in handles:
                    assert Counter(await soon(handle.output(), PATIENCE_S)) == Counter("012")
        check_events(read_events(broker.bootstrap, f"{namespace}.events"))


def forget_soon(bootstrap: str, *topics: str) -> None:
    """Let a broker keep what is in these topics for a second."""
    entries = [
        admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
        for name, value in (("retention.ms", "1000"), ("segment.ms", "500"))
    ]
    kind = admin.ResourceType.TOPIC
    changes = [admin.ConfigResource(kind, topic, incremental_configs=entries) for topic in topics]
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    for future in client.incremental_alter_configs(changes).values():
        future.result(30)


async def until_forgotten(bootstrap: str, topic: str) -> None:
    """Wait until a broker has removed something from each partition in which there was something."""
    client = admin.AdminClient({"bootstrap.servers": bootstrap})

    def offsets(spec: Any) -> list[int]:
        asked = {confluent.TopicPartition(topic, partition): spec for partition in range(2)}
        return [future.result(30).offset for future in client.list_offsets(asked).values()]

    while True:
        begins, ends = offsets(admin.OffsetSpec.earliest()), offsets(admin.OffsetSpec.latest())
        if any(ends) and all(begin > 0 or end == 0 for begin, end in zip(begins, ends, strict=True)):
            return
        await asyncio.sleep(0.2)


# --- leaders that die -----------------------------------------------------------------------------------------------------


async def test_work_goes_on_when_any_broker_of_three_is_killed(
    kafka_namespace: str, driver_name: str, tmp_path: Path
) -> None:
    """Each is killed in turn under load: it leads some partition, and is the coordinator of some transactional id."""
    namespace = kafka_namespace
    with cluster(3) as brokers:
        servers = ",".join(broker.bootstrap for broker in brokers)
        url = url_of(servers, namespace, driver_name, tmp_path / "one")
        async with Gasoline.open(url, partitions=3) as gasoline, worker_process(url) as worker:
            assert await line(worker, PATIENCE_S) == "ready"
            handles = [await soon(gasoline.dispatch(notes, 90), PATIENCE_S) for _ in range(6)]
            for round_number, broker in enumerate(brokers):
                sending = asyncio.ensure_future(
                    _send_range(gasoline, [one.id for one in handles], 30 * round_number, 30)
                )
                broker.kill()
                await soon(sending, PATIENCE_S)
                broker.start(wait=False)
                await asyncio.to_thread(broker.wait_until_ready, 3)
            for handle in handles:
                taken = await soon(handle.output(), PATIENCE_S)
                assert Counter(taken) == Counter(str(number) for number in range(90))
            assert worker.returncode is None
        check_events(read_events(servers, f"{namespace}.events"))


async def _send_range(gasoline: Gasoline, ids: list[str], first: int, count: int) -> None:
    for number in range(first, first + count):
        await asyncio.gather(*(gasoline.signal(Note(text=str(number)), to=one, id=f"n{number}") for one in ids))


# --- the main example -----------------------------------------------------------------------------------------------------


def test_the_help_desk_comes_to_the_same_on_kafka_whoever_is_killed(
    kafka_namespace: str, driver_name: str, tmp_path: Path
) -> None:
    """Issue 5: the process and its broker are killed and started again at random moments; no line is lost or doubled."""
    seed = random.getrandbits(32)
    print(f"random.Random({seed})")
    rng = random.Random(seed)
    lines = made_up(random.Random(7), 600)
    path = written(tmp_path / "desk.jsonl", lines)
    wanted = as_printed(expected(lines))
    assert summary(path, tmp_path / "on-files", timeout_s=300) == wanted
    with own_broker() as broker:
        url = url_of(broker.bootstrap, kafka_namespace, driver_name, tmp_path / "state")
        command = [sys.executable, str(SCRIPT), str(path), "--log", url, "--json"]
        for number in range(6):
            _run_for(command, rng.uniform(1.0, 8.0), broker if number % 2 else None, rng)
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == wanted
        partitions = read_events(broker.bootstrap, f"{kafka_namespace}.events")
    check_events(partitions)
    folded = Counter(
        event.workflow_id
        for events in partitions
        for event in events
        if event.type == "gasoline.activity.completed.v1" and event.data["name"] == "fold"
    )
    assert sum(folded.values()) == len(lines)
    received = Counter(
        (event.workflow_id, event.data["signal_id"])
        for events in partitions
        for event in events
        if event.type == "gasoline.signal.received.v1"
    )
    assert max(received.values()) == 1


def _run_for(command: list[str], seconds: float, broker: Broker | None, rng: random.Random) -> None:
    """Run it for so long, then kill it; with a broker, kill that before, and start it again while the process runs."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            if broker is not None:
                broker.kill()
                broker.start()
                time.sleep(rng.uniform(0, 2.0))  # a random moment, as the first one
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
