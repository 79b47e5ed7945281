"""Transactions, by each client library on a real broker (design §6, Kafka log)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from gasoline_es.log.kafka.drivers.port import (
    BrokerError,
    Driver,
    Feed,
    NotWritten,
    Out,
    Refused,
)
from tests.kafka.conftest import NewFeeds, new_feeds
from tests.kafka.records import committed, numbers, out, outs, read_all

TOO_LARGE = b"x" * 2_000_000


def test_a_transaction_is_read_back_as_it_was_written(driver: Driver, feeds: NewFeeds, kafka_namespace: str) -> None:
    one, other = feeds(2)
    written = [
        Out(one, b"key", b'{"a": 1}', [("ce_type", b"x"), ("ce_subject", "ü".encode())], 17),
        Out(other, b"", b"", [], 1_700_000_000_000),
        Out(one, b"key", None, [], 18),
    ]
    with closing(driver.writer(f"{kafka_namespace}.0", 10)) as writer:
        writer.fence()
        assert committed(writer.commit(written)) == [0, 0, 1]
    read = read_all(driver, one, other)
    assert sorted(
        (record.feed, record.offset, record.key, record.value, list(record.headers), record.time_ms) for record in read
    ) == sorted(
        (record.feed, offset, record.key, record.value, list(record.headers), record.time_ms)
        for record, offset in zip(written, [0, 0, 1], strict=True)
    )


def test_many_records_of_a_transaction_stand_one_after_the_other(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str
) -> None:
    (feed,) = feeds()
    with closing(driver.writer(f"{kafka_namespace}.0", 30)) as writer:
        writer.fence()
        for start in (0, 1, 5001):  # offset 5001 + 1 marker before it, and so on
            count = 1 if start == 0 else 5000
            offsets = committed(writer.commit(outs(feed, *range(start, start + count))))
            assert offsets == list(range(offsets[0], offsets[0] + count))
    assert numbers(read_all(driver, feed)) == list(range(10_001))


def test_an_empty_transaction_is_committed(driver: Driver, kafka_namespace: str) -> None:
    with closing(driver.writer(f"{kafka_namespace}.0", 10)) as writer:
        writer.fence()
        assert committed(writer.commit([])) == []


def test_the_older_of_two_writers_is_refused_and_its_records_are_never_seen(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str
) -> None:
    (feed,) = feeds()
    with (
        closing(driver.writer(f"{kafka_namespace}.0", 10)) as older,
        closing(driver.writer(f"{kafka_namespace}.0", 10)) as newer,
    ):
        older.fence()
        committed(older.commit(outs(feed, 1)))
        newer.fence()
        committed(newer.commit(outs(feed, 2)))
        assert isinstance(older.commit(outs(feed, 3)), Refused)
        # The client says it in another way from the second time on.
        assert isinstance(older.commit(outs(feed, 4)), Refused)
        committed(newer.commit(outs(feed, 5)))
    assert numbers(read_all(driver, feed)) == [1, 2, 5]


def test_writers_of_different_partitions_commit_at_the_same_time(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str
) -> None:
    all_feeds = feeds(4)

    def write(feed: Feed) -> None:
        with closing(driver.writer(f"{kafka_namespace}.{feed.partition}", 20)) as writer:
            writer.fence()
            for number in range(5):
                committed(writer.commit(outs(feed, number)))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, all_feeds))
    for feed in all_feeds:
        assert numbers(read_all(driver, feed)) == [0, 1, 2, 3, 4]


def test_a_record_that_is_too_large_leaves_nothing_of_its_transaction(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str
) -> None:
    (feed,) = feeds()
    with closing(driver.writer(f"{kafka_namespace}.0", 10)) as writer:
        writer.fence()
        fate = writer.commit([out(feed, 1), out(feed, 2, TOO_LARGE), out(feed, 3)])
        assert isinstance(fate, NotWritten)
        assert fate.too_large, fate
    with closing(driver.writer(f"{kafka_namespace}.0", 10)) as writer:
        writer.fence()
        committed(writer.commit(outs(feed, 4)))
    assert numbers(read_all(driver, feed)) == [4]


def test_a_topic_that_refuses_a_record_for_its_time_is_named(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str
) -> None:
    (feed,) = feeds()
    (strict,) = new_feeds(driver, f"{kafka_namespace}-strict", message_timestamp_before_max_ms="3600000")
    with closing(driver.writer(f"{kafka_namespace}.0", 10)) as writer:
        writer.fence()
        began_s = time.monotonic()
        fate = writer.commit([*outs(feed, 1), out(strict, 2), *outs(feed, 3)])
        assert isinstance(fate, NotWritten)
        assert (fate.refused, fate.too_large) == (strict.topic, False), fate
        assert time.monotonic() - began_s < 5, "nothing is tried again that comes to the same"
    with closing(driver.writer(f"{kafka_namespace}.0", 10)) as writer:
        writer.fence()
        committed(writer.commit(outs(feed, 4)))
    assert numbers(read_all(driver, feed)) == [4]


def test_a_record_of_the_largest_size_that_the_log_takes_is_written(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str
) -> None:
    (feed,) = feeds()
    with closing(driver.writer(f"{kafka_namespace}.0", 10)) as writer:
        writer.fence()
        committed(writer.commit([out(feed, 1, b"x" * 1_000_000), out(feed, 2), out(feed, 3, b"y" * 1_000_000)]))
    assert numbers(read_all(driver, feed)) == [1, 2, 3]


def test_a_closed_writer_writes_nothing(driver: Driver, feeds: NewFeeds, kafka_namespace: str) -> None:
    (feed,) = feeds()
    writer = driver.writer(f"{kafka_namespace}.0", 10)
    writer.fence()
    writer.close()
    writer.close()
    assert isinstance(writer.commit(outs(feed, 1)), NotWritten)
    assert read_all(driver, feed) == []


def test_a_writer_that_reaches_no_broker_says_so_in_time(driver_name: str, kafka_namespace: str) -> None:
    from gasoline_es.log.kafka.settings import Address, make_driver

    driver = make_driver(Address(("127.0.0.1:1",), driver=driver_name), environ={})
    with closing(driver.writer(f"{kafka_namespace}.0", 0.5)) as writer:
        with pytest.raises(BrokerError, match=r"Kafka at 127\.0\.0\.1:1: .*cannot be fenced") as caught:
            writer.fence()
        assert caught.value.retryable
