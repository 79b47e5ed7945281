"""Following topics of a cluster in memory: what is wrong with one feed keeps nobody who waits for others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from gasoline_es.log.kafka import log as kafka_log
from gasoline_es.log.kafka.drivers.port import BrokerError, Feed
from gasoline_es.log.kafka.follower import CatchingUp
from gasoline_es.log.kafka.log import KafkaLog
from gasoline_es.log.kafka.opening import open_cluster
from gasoline_es.log.kafka.questions import ASK_S, Question, Questions
from gasoline_es.log.kafka.settings import Address
from gasoline_es.log.port import Section
from gasoline_es.testing.log_contract import EVENTS, INBOX, event
from tests.kafka.cluster_of_memory import Cluster, MemoryDriver

LIMIT_S = 20


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def _opened(cluster: Cluster, state_dir: Path) -> KafkaLog:
    address = Address(("memory:9092",), "default", state_dir=str(state_dir))
    return await open_cluster(
        MemoryDriver(cluster), address, "default", partitions=2, readonly=False, silent_after_s=30.0
    )


@pytest.fixture
async def log(cluster: Cluster, tmp_path: Path) -> AsyncIterator[KafkaLog]:
    opened = await _opened(cluster, tmp_path / "one")
    yield opened
    await opened.close()


@pytest.mark.parametrize("followed", [True, False])
async def test_a_topic_that_is_gone_keeps_nobody_who_waits_for_another(
    followed: bool, log: KafkaLog, cluster: Cluster
) -> None:
    """Whether its ends cannot be told, or not even where it begins."""
    if followed:
        await log.refresh(("default.parked", 0))
    cluster.delete_topic("default.parked")
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        waits = tasks.create_task(log.refresh(("default.parked", 0), (EVENTS, 0)))
        await log.refresh((EVENTS, 0), (EVENTS, 1))
        await log.refresh()
        assert not waits.done()
        cluster.make_topic("default.parked", 2)
        await waits


async def test_while_a_client_asks_about_a_topic_that_is_gone_everything_else_is_read(
    log: KafkaLog, cluster: Cluster
) -> None:
    questions, over, asked, gone = log._follower._ends, threading.Event(), threading.Event(), Feed("default.parked", 0)
    ask = questions._ask

    def slow(feeds: Sequence[Feed], limit_s: float) -> Mapping[Feed, int]:
        if [*feeds] == [gone] and limit_s == ASK_S:
            asked.set()
            assert over.wait(LIMIT_S)
        return ask(feeds, limit_s)

    questions._ask = slow
    await log.refresh(("default.parked", 0))
    cluster.delete_topic("default.parked")
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        waits = tasks.create_task(log.refresh(("default.parked", 0)))
        assert await asyncio.to_thread(asked.wait, LIMIT_S)
        await log.refresh((EVENTS, 0))
        assert not waits.done()
        cluster.make_topic("default.parked", 2)
        over.set()
        await waits


def test_what_was_put_while_a_topic_was_asked_about_is_not_answered_by_that() -> None:
    """An end counts for who asked before it was told."""
    gone, asked, told = Feed("gone", 0), threading.Event(), threading.Event()
    answers = iter([5, 7])

    def ask(feeds: Sequence[Feed], limit_s: float) -> Mapping[Feed, int]:
        if limit_s != ASK_S:
            raise BrokerError("not now")
        asked.set()
        assert told.wait(LIMIT_S)
        return {feed: next(answers) for feed in feeds}

    answered = threading.Semaphore(0)
    questions = Questions(ask, answered.release)
    first, second = Question([gone]), Question([gone])
    questions.put(first)
    questions.turn()
    assert asked.wait(LIMIT_S)
    questions.put(second)
    questions.turn()
    told.set()
    for one, end in ((first, 5), (second, 7)):
        assert answered.acquire(timeout=LIMIT_S)
        questions.turn()
        assert (one.found, one.open) == ({gone: end}, {})


async def test_an_inbox_that_is_refreshed_before_it_is_opened_is_none_of_the_mirrors(
    log: KafkaLog, cluster: Cluster, tmp_path: Path
) -> None:
    """What was consumed is gone from its beginning, which is no damage; the rest is there when somebody opens it."""
    await log.append([Section(0, None, [event(number, topic=INBOX)]) for number in range(3)])
    with cluster.lock:
        cluster.topics[INBOX].begins[0] = 1
    other = await _opened(cluster, tmp_path / "other")
    async with asyncio.timeout(LIMIT_S):
        await other.refresh((INBOX, 0))
        assert other._mirror.position(Feed(INBOX, 0)) == 0
        assert len(other.tail(INBOX, 0).poll()) == 2
        assert other.damage is None
    await other.close()


async def test_a_read_waits_for_as_long_as_records_come_and_no_longer(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first look at a long log takes longer than a broker may take to answer."""
    positions = iter([0, 10, 20, 30, 30])

    def catching_up(*feeds: Feed) -> CatchingUp:
        return CatchingUp(feeds)

    def position(_: Feed) -> int:
        return next(positions)

    monkeypatch.setattr(kafka_log, "ASK_LIMIT_S", 0)
    monkeypatch.setattr(log._follower, "catch_up", catching_up)
    monkeypatch.setattr(log._kept, "position", position)
    with pytest.raises(BrokerError, match="did not answer"):
        await log._caught_up(Feed(EVENTS, 0))
    assert next(positions, None) is None
