"""Reading, by each client library on a real broker: how far, what, and that it ends (required case B18)."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import confluent_kafka
import pytest

from gasoline_es.log.kafka.drivers.port import FIRST, Driver, Feed, OffsetGone, OffsetNotTold, told
from gasoline_es.log.kafka.records import from_kafka
from tests.kafka.conftest import NewFeeds
from tests.kafka.records import catch_up, committed, numbers, outs, read_all
from tests.kafka.transactions import abort, open_transaction


def write(driver: Driver, transactional_id: str, *feeds_and_numbers: tuple[Feed, range]) -> None:
    with closing(driver.writer(transactional_id, 20)) as writer:
        writer.fence()
        for feed, them in feeds_and_numbers:
            committed(writer.commit(outs(feed, *them)))


def test_reading_ends_whatever_the_last_offsets_are(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str, kafka_bootstrap: str
) -> None:
    """B18: a marker, an aborted transaction, nothing but aborted ones, removed records, no record at all."""
    marker, aborted, only_aborted, removed, empty = all_feeds = feeds(5)
    write(driver, f"{kafka_namespace}.0", (marker, range(3)), (aborted, range(3)), (removed, range(3)))
    abort(kafka_bootstrap, f"{kafka_namespace}.x", outs(aborted, 7, 8) + outs(only_aborted, 9))
    with closing(driver.admin()) as admin:
        admin.delete_before({removed: 4}, 20)
    with closing(driver.reader()) as reader:
        reader.assign(dict.fromkeys(all_feeds, FIRST))
        read = catch_up(reader, all_feeds)
        ends = reader.ends(all_feeds, 10)
        assert ends == {marker: 4, aborted: 7, only_aborted: 2, removed: 4, empty: 0}
        assert {feed: reader.position(feed) for feed in all_feeds} == ends
    assert {feed: numbers([one for one in read if one.feed == feed]) for feed in all_feeds} == {
        marker: [0, 1, 2],
        aborted: [0, 1, 2],
        only_aborted: [],
        removed: [],
        empty: [],
    }


def test_an_open_transaction_holds_the_stable_end_back_and_not_the_end(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str, kafka_bootstrap: str
) -> None:
    (feed,) = feeds()
    write(driver, f"{kafka_namespace}.0", (feed, range(2)))
    with closing(driver.reader()) as reader:
        reader.assign({feed: 0})
        with open_transaction(kafka_bootstrap, f"{kafka_namespace}.x", outs(feed, 7)):
            write(driver, f"{kafka_namespace}.1", (feed, range(2, 4)))
            assert (reader.ends([feed], 10)[feed], reader.stable_ends([feed], 10)[feed]) == (7, 3)
            read = numbers(reader.poll(1000, 20))
            while reader.position(feed) < 3:
                read += numbers(reader.poll(1000, 1))
            assert read == [0, 1]
            assert reader.poll(1000, 0.3) == []
            assert reader.position(feed) == 3
            assert numbers(read_all(driver, feed, uncommitted=True)) == [0, 1, 7, 2, 3]
        assert numbers(catch_up(reader, [feed])) == [2, 3]
        assert reader.stable_ends([feed], 10) == reader.ends([feed], 10) == {feed: 8}
    assert numbers(read_all(driver, feed, uncommitted=True)) == [0, 1, 7, 2, 3]


def test_a_reader_begins_where_it_is_told_and_goes_on_when_others_are_assigned(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str
) -> None:
    one, other = feeds(2)
    write(driver, f"{kafka_namespace}.0", (one, range(10)), (other, range(5)))
    with closing(driver.reader()) as reader:
        reader.assign({one: 4})
        assert reader.position(one) == 4
        assert numbers(catch_up(reader, [one])) == [4, 5, 6, 7, 8, 9]
        reader.assign({one: 0, other: 3})  # `one` was read already: it goes on
        assert numbers(catch_up(reader, [one, other])) == [3, 4]
        reader.seek(one, 8)
        assert numbers(catch_up(reader, [one])) == [8, 9]
        reader.seek(one, FIRST)
        assert numbers(catch_up(reader, [one])) == list(range(10))
        reader.assign({other: 0})
        reader.assign({other: 0, one: 9})  # `one` was not read any more
        assert numbers(catch_up(reader, [one, other])) == [9]


def test_a_poll_returns_no_more_than_it_may_and_loses_nothing(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str
) -> None:
    (feed,) = feeds()
    write(driver, f"{kafka_namespace}.0", (feed, range(25)))
    with closing(driver.reader()) as reader:
        reader.assign({feed: 0})
        read: list[int] = []
        while reader.position(feed) < 26:
            got = reader.poll(4, 0.1)
            assert len(got) <= 4
            if got:
                assert reader.position(feed) >= got[-1].offset + 1
            read += numbers(got)
    assert read == list(range(25))


@pytest.mark.parametrize("offset", [1, 99])
def test_an_offset_that_the_broker_does_not_have_is_an_error(
    driver: Driver, feeds: NewFeeds, kafka_namespace: str, offset: int
) -> None:
    feed, other = feeds(2)
    write(driver, f"{kafka_namespace}.0", (feed, range(5)), (other, range(5)))
    with closing(driver.admin()) as admin, closing(driver.reader()) as reader:
        admin.delete_before({feed: 3}, 20)
        assert reader.begins([feed, other], 10) == {feed: 3, other: 0}
        reader.assign({feed: offset, other: 0})
        read: list[int] = []

        def read_on() -> None:
            while True:
                read.extend(numbers(reader.poll(1000, 5)))

        with pytest.raises(OffsetGone, match=rf"from offset {offset}, and the broker has 3 to 6") as caught:
            read_on()
        assert (caught.value.begin, caught.value.end, caught.value.retryable) == (3, 6, False)
        reader.seek(feed, FIRST)
        read += numbers(catch_up(reader, [feed, other]))
    assert sorted(read) == [0, 1, 2, 3, 3, 4, 4]


def test_a_poll_that_waits_is_woken_by_another_thread(driver: Driver, feeds: NewFeeds) -> None:
    (feed,) = feeds()
    with closing(driver.reader()) as reader:
        reader.assign({feed: 0})
        catch_up(reader, [feed])
        returned = threading.Event()

        def poll() -> None:
            assert reader.poll(10, 60) == []
            returned.set()

        thread = threading.Thread(target=poll)
        thread.start()
        reader.wake()
        assert returned.wait(20)
        thread.join()


@pytest.mark.parametrize(("spec", "offset"), [(-1, -1), (-1, -1001), (-2, -1), (-2, -1001), (5, -1001)])
def test_an_offset_that_a_client_does_not_tell_is_not_taken_for_one(spec: int, offset: int) -> None:
    """While a partition has no leader, confluent-kafka answers -1001: the partition would look empty."""
    with pytest.raises(OffsetNotTold):
        told(Feed("x", 0), spec, offset)
    assert (told(Feed("x", 0), -1, 0), told(Feed("x", 0), 5, -1)) == (0, -1)


def test_offsets_are_found_by_time(driver: Driver, feeds: NewFeeds, kafka_namespace: str) -> None:
    (feed,) = feeds()
    with closing(driver.writer(f"{kafka_namespace}.0", 10)) as writer, closing(driver.reader()) as reader:
        writer.fence()
        committed(writer.commit(outs(feed, 1, 2, 3)))
        times = (0, 1_000_002, 1_000_003, 1_000_004)
        assert [reader.since({feed: time}, 10)[feed] for time in times] == [0, 1, 2, 3]


def test_headers_of_any_kind_leave_a_record_readable(driver: Driver, feeds: NewFeeds, kafka_bootstrap: str) -> None:
    (feed,) = feeds()
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": kafka_bootstrap})
    producer.produce(feed.topic, b"1", headers=[("h", None), ("", b"\xff"), ("h", b"2")])
    producer.flush(20)
    with closing(driver.reader()) as reader:
        reader.assign({feed: FIRST})
        (read,) = catch_up(reader, [feed])
    assert list(read.headers) == [("h", None), ("", b"\xff"), ("h", b"2")]
    assert from_kafka(read, "", owned=False).headers == {"": "\ufffd", "h": "2"}
