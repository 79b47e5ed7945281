"""Required cases B18 and B19: what became of an append is certain before anything else is written, whatever got lost."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gasoline_es.errors import Fenced, LogCorrupt, LogError
from gasoline_es.log.kafka.drivers.port import Feed, Out, Writer
from gasoline_es.log.kafka.evidence import OfSigns
from gasoline_es.log.kafka.log import KafkaLog
from gasoline_es.log.kafka.opening import open_cluster
from gasoline_es.log.kafka.sender import Sender
from gasoline_es.log.kafka.settings import Address
from gasoline_es.log.port import Appended, NewRecord, Section
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put, read_all, sent_all
from tests.kafka.cluster_of_memory import Cluster, Fault, MemoryDriver, MemoryWriter, Transaction

Open = Callable[..., Coroutine[Any, Any, KafkaLog]]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def opened(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens handles on one log; each on a machine of its own if asked for."""
    logs: list[KafkaLog] = []

    async def open_one(machine: str = "one", silent_after_s: float = 30.0, readonly: bool = False) -> KafkaLog:
        address = Address(("memory:9092",), "default", state_dir=f"{tmp_path}/{machine}")
        driver = MemoryDriver(cluster)
        log = await open_cluster(
            driver, address, "default", partitions=None if logs else 4, readonly=readonly, silent_after_s=silent_after_s
        )
        logs.append(log)
        return log

    yield open_one
    for log in logs:
        cluster.away = False
        await log.close()


def events_of(cluster: Cluster, partition: int = 0) -> list[bytes]:
    """What a committed reader of another kind sees of the events."""
    entries = cluster.entries(Feed(EVENTS, partition))
    return [one.record.key or b"" for one in entries if one.record is not None and one.transaction.state == "committed"]


async def _crash(log: KafkaLog) -> None:
    log.crash()


# --- B19: a lost answer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["unanswered", "lost", "open", "aborted"])
async def test_an_owners_append_counts_once_whatever_became_of_the_answer(
    cluster: Cluster, opened: Open, fault: Fault
) -> None:
    log = await opened()
    owned = await log.acquire(0)
    await put(log, owned.epoch, event(1))
    cluster.faults["default.0"] = [fault]
    outcome = await put(log, owned.epoch, event(2), event(3))
    assert isinstance(outcome, Appended)
    again = await put(log, owned.epoch, event(4))
    assert isinstance(again, Appended)
    assert events_of(cluster) == [b"workflow/1", b"workflow/2", b"workflow/3", b"workflow/4"]
    records = await read_all(log, EVENTS, 0)
    assert numbers(records) == [1, 2, 3, 4]
    assert [record.offset for record in records][1:] == [
        outcome.offsets[EVENTS],
        outcome.offsets[EVENTS] + 1,
        again.offsets[EVENTS],
    ]


@pytest.mark.parametrize(
    "faults", [["unanswered", "lost"], ["open", "open", "lost"], ["lost", "aborted", "unanswered"]]
)
async def test_faults_one_after_the_other_double_nothing(cluster: Cluster, opened: Open, faults: list[Fault]) -> None:
    log = await opened()
    owned = await log.acquire(0)
    cluster.faults["default.0"] = list(faults)
    for number in range(4):
        assert isinstance(await put(log, owned.epoch, event(number)), Appended)
    assert cluster.faults["default.0"] == []
    assert numbers(await read_all(log, EVENTS, 0)) == [0, 1, 2, 3]


@pytest.mark.parametrize("fault", ["unanswered", "lost", "open"])
async def test_a_process_that_dies_before_it_knows_leaves_all_or_nothing_to_the_next(
    cluster: Cluster, opened: Open, fault: Fault
) -> None:
    log = await opened()
    owned = await log.acquire(0)
    await put(log, owned.epoch, event(1))
    cluster.faults["default.0"] = [fault]
    dying = asyncio.Event()
    loop = asyncio.get_running_loop()

    def die(transactional_id: str) -> None:
        if transactional_id == "default.0":
            cluster.after_commit = lambda _: None
            asyncio.run_coroutine_threadsafe(_crash(log), loop).result(10)  # before it learns anything
            loop.call_soon_threadsafe(dying.set)

    cluster.after_commit = die
    appending = asyncio.ensure_future(put(log, owned.epoch, event(2), event(3)))
    await dying.wait()
    cluster.tell_death(Feed("default.workers", 0), log.incarnation)
    appending.cancel()
    other = await opened("another")
    await other.refresh()
    taken = await other.acquire(0)
    assert taken.epoch == owned.epoch + 1
    await put(other, taken.epoch, event(4))
    expected = [1, 2, 3, 4] if fault == "unanswered" else [1, 4]
    assert numbers(await read_all(other, EVENTS, 0)) == expected
    await asyncio.gather(appending, return_exceptions=True)


@pytest.mark.parametrize("fault", ["unanswered", "lost", "open", "aborted"])
async def test_what_a_client_sends_arrives_once(cluster: Cluster, opened: Open, fault: Fault) -> None:
    log, other = await opened(), await opened("another")
    cluster.faults[f"default.client.{log.incarnation}"] = [fault]
    outcome = await put(log, None, event(1, 2, INBOX), event(2, 3, INBOX))
    assert isinstance(outcome, Appended)
    await put(log, None, event(3, 2, INBOX))
    assert numbers(await sent_all(other, INBOX, 2)) == [1, 3]
    assert numbers(await sent_all(other, INBOX, 3)) == [2]


async def test_a_section_of_answers_alone_is_settled_too(cluster: Cluster, opened: Open) -> None:
    log = await opened()
    owned = await log.acquire(0)
    for fault in ("unanswered", "lost", "open"):
        cluster.faults["default.0"] = [fault]
        assert isinstance(await put(log, owned.epoch, event(1, 1, "default.replies")), Appended)
    assert len(await sent_all(log, "default.replies", 1)) == 3


# --- outages ------------------------------------------------------------------------------------------------------------


async def test_an_outage_is_waited_out(cluster: Cluster, opened: Open) -> None:
    log = await opened()
    owned = await log.acquire(0)
    cluster.away = True
    appending = asyncio.ensure_future(put(log, owned.epoch, event(1)))
    sending = asyncio.ensure_future(put(log, None, event(2, 1, INBOX)))
    await asyncio.sleep(0.2)
    assert not appending.done()
    cluster.away = False
    assert isinstance(await appending, Appended)
    assert isinstance(await sending, Appended)
    assert numbers(await read_all(log, EVENTS, 0)) == [1]
    assert numbers(await sent_all(log, INBOX, 1)) == [2]


async def test_an_own_topic_that_refuses_records_is_named_at_once_and_the_append_waits(
    cluster: Cluster, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    log = await opened()
    owned = await log.acquire(0)
    cluster.refusing.add(EVENTS)
    appending = asyncio.ensure_future(put(log, owned.epoch, event(1)))
    async with asyncio.timeout(20):
        while f"topic {EVENTS} refuses a record" not in caplog.text:  # a log record has no event
            await asyncio.sleep(0.01)
    assert not appending.done()
    assert "INVALID_TIMESTAMP" in caplog.text
    assert [record.levelname for record in caplog.records if "refuses a record" in record.message] == ["ERROR"]
    cluster.refusing.clear()
    assert isinstance(await appending, Appended)
    assert numbers(await read_all(log, EVENTS, 0)) == [1]


async def test_who_was_replaced_meanwhile_fences_nobody_who_came_after(cluster: Cluster, opened: Open) -> None:
    """An answer got lost, and before the process looks again another has the partition: it finds that out by reading."""
    log, other = await opened(), await opened("another", silent_after_s=0.0)
    owned = await log.acquire(0)
    cluster.faults["default.0"] = ["open"]
    loop = asyncio.get_running_loop()

    def take(transactional_id: str) -> None:
        if transactional_id == "default.0":
            cluster.after_commit = lambda _: None
            asyncio.run_coroutine_threadsafe(other.acquire(0), loop).result(10)

    cluster.after_commit = take
    assert isinstance(await put(log, owned.epoch, event(1)), Fenced)
    taken = await other.acquire(0)
    assert isinstance(await put(other, taken.epoch, event(2)), Appended), "nobody has fenced it"
    assert numbers(await read_all(other, EVENTS, 0)) == [2]


async def test_closing_gives_up_what_waits_for_a_broker(cluster: Cluster, opened: Open) -> None:
    log = await opened()
    owned = await log.acquire(0)
    cluster.away = True
    appending = asyncio.ensure_future(put(log, owned.epoch, event(1)))
    await asyncio.sleep(0.05)
    log.crash()
    outcome = await appending
    assert isinstance(outcome, LogError)
    assert "closed" in outcome.message
    cluster.away = False
    assert events_of(cluster) == []


# --- fencing ------------------------------------------------------------------------------------------------------------


async def test_a_former_owners_writes_are_refused_and_never_seen(cluster: Cluster, opened: Open) -> None:
    log = await opened()
    owned = await log.acquire(0)
    await put(log, owned.epoch, event(1))
    other = await opened("another", silent_after_s=0.0)  # to this one everybody else is dead
    taken = await other.acquire(0)
    assert isinstance(await put(log, owned.epoch, event(2), event(3, 1, INBOX)), Fenced)
    assert isinstance(await put(other, taken.epoch, event(4)), Appended)
    assert events_of(cluster) == [b"workflow/1", b"workflow/4"]
    assert await sent_all(other, INBOX, 1) == []
    assert isinstance(await put(log, owned.epoch, event(5)), Fenced), "for good"


async def test_consumed_commands_are_removed_from_the_broker(
    cluster: Cluster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gasoline_es.log.kafka.log.CLEAN_EVERY_S", 0.0)
    log = await opened()
    owned = await log.acquire(0)
    await put(log, None, event(1, 0, INBOX), event(2, 0, INBOX))
    tail = log.tail(INBOX, 0)
    await log.refresh((INBOX, 0))
    assert numbers(tail.poll()) == [1, 2]
    before = dict(tail.position)
    position = NewRecord("default.registry", 0, "inbox/0", b'{"offset":%d}' % before["offset"], 0)
    await put(log, owned.epoch, position)
    async with asyncio.timeout(10):
        while cluster.topics[INBOX].begins.get(0) != before["offset"]:
            await asyncio.sleep(0.01)
    await put(log, None, event(3, 0, INBOX))
    other = await opened("another")
    assert numbers(await sent_all(other, INBOX, 0)) == [3], "whoever begins at the start begins where the broker does"


# --- B18: catching up ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", ["marker", "aborted", "hole", "aborted only", "empty"])
async def test_catching_up_ends_whatever_lies_last(cluster: Cluster, opened: Open, tail: str) -> None:
    log = await opened()
    owned = await log.acquire(0)
    feed = Feed(EVENTS, 0)
    expected: list[int] = []
    if tail in ("marker", "aborted", "hole"):
        await put(log, owned.epoch, event(1), event(2))
        expected = [1, 2]
    if tail.startswith("aborted"):
        with cluster.lock:
            transaction = Transaction()
            cluster.write(transaction, [Out(feed, b"workflow/9", b"{}", (), 0)])
            cluster.end(transaction, "aborted")
    if tail == "hole":
        with cluster.lock:
            cluster.entries(feed)[1].record = None  # removed by compaction
        expected = [1]
    began_s = time.monotonic()
    other = await opened("another", readonly=True)
    assert numbers(await read_all(other, EVENTS, 0)) == expected
    assert time.monotonic() - began_s < 5


async def test_what_nobody_reads_any_more_is_not_kept(
    cluster: Cluster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process lives for months, and gives up partitions and subscriptions: what comes there goes to others."""
    monkeypatch.setattr("gasoline_es.log.kafka.log.CLEAN_EVERY_S", 0.0)
    log, other, feed = await opened(), await opened("another"), Feed(INBOX, 0)
    tail = log.tail(INBOX, 0)
    await put(other, None, event(1, 0, INBOX))
    await log.refresh((INBOX, 0))
    assert numbers(tail.poll()) == [1]
    await put(other, None, event(2, 0, INBOX))
    await log.refresh((INBOX, 0))
    log._look_for_unread_at_s = 0.0
    await log.changed()
    assert log._follower.follows(feed), "somebody reads it"
    position = tail.position
    del tail
    gc.collect()
    await put(other, None, event(3, 1, INBOX))
    await log.refresh((INBOX, 1))  # something is heard of
    await log.changed()
    await log.refresh((INBOX, 1))  # the thread that follows knows
    await put(other, None, *[event(number, 0, INBOX) for number in range(4, 20)])
    await log.refresh((INBOX, 1))
    recent = log._kept.recent(feed)
    assert recent is not None
    assert (log._follower.follows(feed), recent.count(0)) == (False, 0)
    assert numbers(await sent_all(log, INBOX, 0, position)) == [2, *range(4, 20)]
    assert numbers(await sent_all(log, INBOX, 0)) == [1, 2, *range(4, 20)]


async def test_whoever_appends_while_others_ask_how_far_it_goes_has_lost_nothing(
    cluster: Cluster, opened: Open
) -> None:
    """Its own copy is ahead of the answer then: that is no sign that the broker has lost records."""
    log = await opened()
    owned = await log.acquire(0)
    answered, feed = threading.Event(), Feed(EVENTS, 0)
    questions = log._follower._ends
    ends = questions._ask

    def late(feeds: Sequence[Feed], timeout_s: float) -> Mapping[Feed, int]:
        told = ends(feeds, timeout_s)
        if feed in feeds:
            asked.set()
            assert answered.wait(10)
        return told

    asked = threading.Event()
    questions._ask = late
    caught_up = log._follower.catch_up(feed)
    assert await asyncio.to_thread(asked.wait, 10)
    assert isinstance(await put(log, owned.epoch, event(1)), Appended)
    answered.set()
    async with asyncio.timeout(10):
        await asyncio.wrap_future(caught_up)


async def test_a_sender_that_is_stopped_while_it_fences_lets_go_of_its_writer(cluster: Cluster) -> None:
    closed: list[Writer] = []

    class Stopping(MemoryWriter):
        def fence(self) -> None:
            super().fence()
            sender.stop()

        def close(self) -> None:
            closed.append(self)

    driver = MemoryDriver(cluster)
    driver.writer = lambda transactional_id, timeout_s: Stopping(cluster, transactional_id)  # type: ignore[method-assign]
    sender = Sender(driver, "default.0", 1.0, OfSigns())
    with pytest.raises(LogError, match="closed"):
        sender.send([])
    assert len(closed) == 1
    with pytest.raises(LogError, match="closed"):
        sender.send([])
    assert len(closed) == 1, "nothing is begun after the end"


async def test_a_cancelled_append_is_finished_before_the_next(cluster: Cluster, opened: Open) -> None:
    log = await opened()
    owned = await log.acquire(0)
    inside: list[str] = []

    def slow(transactional_id: str) -> None:
        inside.append(transactional_id)
        time.sleep(0.02)
        assert inside == [transactional_id], "two at once"
        inside.remove(transactional_id)

    cluster.before_commit = slow
    for number in range(6):
        waiting = asyncio.create_task(put(log, owned.epoch, event(number)))
        if number % 2:
            while not inside:
                await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.wait([waiting])
    assert isinstance(await put(log, owned.epoch, event(6)), Appended)
    assert numbers(await read_all(log, EVENTS, 0)) == list(range(7))


async def test_an_open_transaction_below_is_waited_for(cluster: Cluster, opened: Open) -> None:
    log = await opened()
    with cluster.lock:
        transaction = Transaction()
        cluster.write(transaction, [Out(Feed(INBOX, 0), b"workflow/1", b"{}", (), 0)])
    await put(log, None, event(2, 0, INBOX))
    refreshing = asyncio.ensure_future(sent_all(log, INBOX, 0))
    await asyncio.sleep(0.1)
    assert not refreshing.done()
    with cluster.lock:
        cluster.end(transaction, "committed")
    assert numbers(await refreshing) == [1, 2]


async def test_a_broker_that_has_lost_records_is_noticed(cluster: Cluster, opened: Open) -> None:
    log = await opened()
    owned = await log.acquire(0)
    await put(log, owned.epoch, *[event(number) for number in range(5)])
    await log.close()
    with cluster.lock:
        del cluster.entries(Feed(EVENTS, 0))[2:]
    again = await opened(readonly=True)
    with pytest.raises(LogCorrupt, match="lost records"):
        await again.refresh((EVENTS, 0))


async def test_sections_of_many_partitions_are_written_side_by_side(cluster: Cluster, opened: Open) -> None:
    log = await opened()
    owned = [await log.acquire(partition) for partition in range(4)]
    inside: list[str] = []
    most = 0

    def slow(transactional_id: str) -> None:
        nonlocal most
        inside.append(transactional_id)
        most = max(most, len(inside))
        time.sleep(0.05)
        inside.remove(transactional_id)

    cluster.before_commit = slow
    sections = [Section(one.partition, one.epoch, [event(one.partition, one.partition)]) for one in owned]
    assert all(isinstance(outcome, Appended) for outcome in await log.append(sections))
    assert most == 4


async def test_who_is_fenced_by_somebody_that_takes_nothing_goes_on(cluster: Cluster, opened: Open) -> None:
    """Two that come at once: the second one has fenced the first before it sees that this one has begun."""
    log = await opened()
    owned = await log.acquire(0)
    await put(log, owned.epoch, event(1))
    MemoryDriver(cluster).writer("default.0", 1.0).fence()
    assert isinstance(await put(log, owned.epoch, event(2)), Appended)
    MemoryDriver(cluster).writer("default.0", 1.0).fence()
    await log.release(0)
    other = await opened("another")
    taken = await other.acquire(0)  # released all the same: its owner lives, and would keep everybody out for good
    assert taken.epoch == owned.epoch + 1
    assert numbers(await read_all(other, EVENTS, 0)) == [1, 2]
