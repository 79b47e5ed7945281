"""Who is taken for dead: who gives no sign of life while this process hears the others."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gasoline_es.errors import PartitionOwned
from gasoline_es.log.kafka.drivers.port import Feed, In, Out
from gasoline_es.log.kafka.opening import open_cluster
from gasoline_es.log.kafka.settings import Address
from gasoline_es.log.kafka.topics import topics_of
from gasoline_es.log.kafka.who import Who, worker_key
from gasoline_es.log.port import Appended
from gasoline_es.testing.log_contract import event, put
from tests.kafka.cluster_of_memory import Cluster, MemoryDriver, Transaction

WORKERS = Feed("default.workers", 0)


def sign(of: str) -> In:
    return In(WORKERS, 0, worker_key(of), b'{"about":null,"host":"h","pid":1}', (), 0)


def test_who_is_silent_while_the_broker_answers_is_dead() -> None:
    who = Who("me", 10.0, now_s=100.0)
    who.fold(sign("other"), 100.0, 0.0)
    for now_s in (103.0, 106.0, 109.0):
        who.heard(now_s)
    assert who.lives("other", 109.9)
    assert who.silent_in(109.0) == pytest.approx(1.0)
    assert not who.lives("other", 110.0)


def test_nobody_is_dead_because_nothing_was_heard() -> None:
    who = Who("me", 10.0, now_s=100.0)
    who.fold(sign("other"), 100.0, 0.0)
    who.heard(103.0)
    assert who.lives("other", 500.0)
    who.heard(500.0)  # the broker is back, and the other one has not come to say anything yet
    assert who.lives("other", 501.9)
    assert not who.lives("other", 502.0)  # 100 to 108, and from 500 on


def test_what_was_there_before_is_as_old_as_it_says() -> None:
    who = Who("me", 10.0, now_s=100.0)
    who.fold(sign("young"), 100.0, 9.0)
    who.fold(sign("old"), 100.0, 10.0)
    assert who.lives("young", 100.5)
    assert not who.lives("old", 100.0)


def test_a_wait_for_the_next_silence_does_not_spin_while_nothing_is_heard() -> None:
    who = Who("me", 10.0, now_s=100.0)
    who.fold(sign("other"), 100.0, 4.999)
    assert who.lives("other", 300.0)
    assert who.silent_in(300.0) == pytest.approx(1.0)
    assert Who("me", 10.0, now_s=100.0).silent_in(100.0) is None


def test_signs_of_life_are_compacted_before_they_are_too_many_to_read() -> None:
    """Whoever opens the log reads all of that topic, and gives up after half a minute; a process signs 26,000 times a day."""
    (workers,) = [one for one in topics_of("", "shop", 4) if one.kind == "workers"]
    assert int(workers.policy["max.compaction.lag.ms"]) <= 3_600_000, "or it grows for a week, by all processes"
    assert int(workers.policy["delete.retention.ms"]) <= 3_600_000
    assert workers.checked == ("cleanup.policy",), "a topic that was made otherwise is opened all the same"


async def test_an_outage_takes_no_partition_from_who_lives(tmp_path: Path) -> None:
    """Whoever comes back first must not take what belongs to who comes back a moment later."""
    cluster = Cluster()
    address = Address(("memory:9092",), "default", state_dir=str(tmp_path))
    one = await open_cluster(
        MemoryDriver(cluster), address, "default", partitions=2, readonly=False, silent_after_s=2.0
    )
    two = await open_cluster(
        MemoryDriver(cluster), address, "default", partitions=None, readonly=False, silent_after_s=1.0
    )
    owned = await one.acquire(0)
    await two.refresh()
    cluster.away = True
    began_s = time.monotonic()
    while time.monotonic() - began_s < 2.5:  # beyond the silence of either
        await asyncio.sleep(0.05)
    cluster.away = False
    with pytest.raises(PartitionOwned):
        await two.acquire(0)
    assert isinstance(await put(one, owned.epoch, event(1)), Appended)
    await one.close()
    await two.close()


async def test_an_open_transaction_among_the_signs_makes_nobody_dead(tmp_path: Path) -> None:
    """Who dies while it gives a sign keeps everybody from reading those of the others, until the broker ends it."""
    cluster = Cluster()
    address = Address(("memory:9092",), "default", state_dir=str(tmp_path))
    one, two = [
        await open_cluster(
            MemoryDriver(cluster),
            address,
            "default",
            partitions=partitions,
            readonly=False,
            silent_after_s=1.0,
        )
        for partitions in (2, None)
    ]
    await one.acquire(0)
    await two.refresh()
    with cluster.lock:
        transaction = Transaction()
        cluster.write(transaction, [Out(WORKERS, worker_key("third"), b"{}", (), 0)])
    began_s = time.monotonic()
    while time.monotonic() - began_s < 2.5:
        owner = two.owner(0)
        assert owner is not None
        assert owner.alive
        await asyncio.sleep(0.05)
    with cluster.lock:
        cluster.end(transaction, "aborted")
    with pytest.raises(PartitionOwned):
        await two.acquire(0)
    await one.close()
    await two.close()
