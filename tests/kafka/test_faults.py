"""Answers that are lost, connections that break, brokers that die: what is said of a write is so (required case B19).

Clients come by a proxy, which does the damage; what has become of it is read by the broker's other address.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from gasoline_es.log.kafka.drivers.port import (
    BrokerError,
    Committed,
    Driver,
    Fate,
    Feed,
    NotWritten,
    Out,
    Refused,
    Unknown,
    Writer,
)
from tests.kafka.conftest import new_feeds
from tests.kafka.proxy import Api, Fault, Proxy
from tests.kafka.records import catch_up, committed, numbers, outs, read_all
from tests.kafka_server import Broker

SOON_S = 2.0
"""How long a writer tries: a fault that lasts is known after that."""


class Place:
    """One topic of a broker, reached by the proxy and beside it."""

    def __init__(self, broker: Broker, proxy: Proxy, make: Callable[[str], Driver], namespace: str) -> None:
        self.broker = broker
        self.proxy = proxy
        self.namespace = namespace
        self.driver = make(broker.other_bootstrap)
        self.beside = make(broker.bootstrap)
        (self.feed,) = new_feeds(self.beside, f"{namespace}.events")

    def writer(self, timeout_s: float = SOON_S, *, beside: bool = False) -> Writer:
        """Return a writer that has fenced."""
        writer = (self.beside if beside else self.driver).writer(f"{self.namespace}.0", timeout_s)
        writer.fence()
        return writer

    def settled(self) -> list[int]:
        """Fence the transactional id, as who takes over does, and read what there is."""
        with closing(self.writer(30, beside=True)):
            return numbers(read_all(self.beside, self.feed))


@pytest.fixture
def place(proxied: tuple[Broker, Proxy], make: Callable[[str], Driver], kafka_namespace: str) -> Place:
    return Place(*proxied, make, kafka_namespace)


def in_thread(writer: Writer, records: list[Out]) -> tuple[threading.Thread, list[Fate]]:
    fates: list[Fate] = []
    thread = threading.Thread(target=lambda: fates.append(writer.commit(records)))
    thread.start()
    return thread, fates


@pytest.mark.parametrize(
    "api", [Api.PRODUCE, Api.END_TXN, pytest.param(Api.ADD_PARTITIONS_TO_TXN, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, pytest.param(Fault.CUT, marks=pytest.mark.soak)])
def test_a_lost_request_or_answer_is_got_over_and_nothing_is_doubled(place: Place, api: Api, fault: Fault) -> None:
    """B19: the broker has stored the batch, or ended the transaction, and its answer is lost."""
    with closing(place.writer(20)) as writer:
        committed(writer.commit(outs(place.feed, 1)))
        with place.proxy.rule(api, fault) as rule:
            fate = writer.commit(outs(place.feed, 2, 3))
            assert rule.met.is_set()
        if isinstance(fate, Committed):
            committed(writer.commit(outs(place.feed, 4)))
    read = place.settled()
    if isinstance(fate, Committed):
        assert read == [1, 2, 3, 4]
    elif isinstance(fate, NotWritten):
        assert read == [1]
    else:
        assert isinstance(fate, Unknown)
        assert read in ([1], [1, 2, 3])


@pytest.mark.parametrize("fault", [Fault.SWALLOW, Fault.HOLD_ANSWER])
def test_a_commit_that_nobody_answers_is_unknown_in_time_and_settled_by_who_fences(place: Place, fault: Fault) -> None:
    with closing(place.writer()) as writer:
        committed(writer.commit(outs(place.feed, 1)))
        with place.proxy.rule(Api.END_TXN, fault, times=1000):
            began = time.monotonic()
            fate = writer.commit(outs(place.feed, 2, 3))
            took_s = time.monotonic() - began
            assert isinstance(fate, Unknown), fate
            assert not fate.fenced
            assert took_s < SOON_S + 5
            read = place.settled()
            # The broker has got the request, or it has not: which, the writer could not know.
            assert read == ([1, 2, 3] if fault is Fault.HOLD_ANSWER else [1])
    assert place.settled() == read  # what was held has come to the broker since, and changes nothing


@pytest.mark.parametrize("api", [Api.PRODUCE, pytest.param(Api.ADD_PARTITIONS_TO_TXN, marks=pytest.mark.soak)])
@pytest.mark.parametrize("fault", [Fault.HOLD_ANSWER, pytest.param(Fault.SWALLOW, marks=pytest.mark.soak)])
def test_records_that_nobody_answers_for_are_certainly_not_written(place: Place, api: Api, fault: Fault) -> None:
    """The batch expires in the client; kafka-python's own commit would report success after that."""
    with closing(place.writer()) as writer:
        committed(writer.commit(outs(place.feed, 1)))
        with place.proxy.rule(api, fault, times=1000):
            began = time.monotonic()
            fate = writer.commit(outs(place.feed, 2, 3))
            assert isinstance(fate, NotWritten), fate
            assert time.monotonic() - began < SOON_S + 5
            assert place.settled() == [1]
    assert place.settled() == [1]


@pytest.mark.soak
def test_one_batch_of_several_that_nobody_answers_for_takes_its_transaction_with_it(place: Place) -> None:
    one, other = new_feeds(place.beside, f"{place.namespace}.more", 2)
    with closing(place.writer()) as writer:
        committed(writer.commit([*outs(one, 1), *outs(other, 1)]))
        with place.proxy.rule(Api.PRODUCE, Fault.SWALLOW, times=1000):
            thread, fates = in_thread(writer, [*outs(one, 2), *outs(other, 3)])
            thread.join()
        assert isinstance(fates[0], NotWritten), fates
    place.settled()
    assert numbers(read_all(place.beside, one)) == numbers(read_all(place.beside, other)) == [1]


def test_a_writer_that_is_fenced_while_it_writes_is_refused(place: Place) -> None:
    with closing(place.writer(20)) as older:
        committed(older.commit(outs(place.feed, 1)))
        with place.proxy.rule(Api.PRODUCE, Fault.HOLD, times=1000) as rule:  # the client may ask again
            thread, fates = in_thread(older, outs(place.feed, 2))
            assert rule.met.wait(20)
            with (
                closing(place.writer(20, beside=True)) as newer,
                place.proxy.rule(Api.INIT_PRODUCER_ID, Fault.HOLD_ANSWER, times=1000) as again,
            ):
                committed(newer.commit(outs(place.feed, 3)))
                rule.released.set()
                thread.join()
                assert isinstance(fates[0], Refused), fates
                # However a client tries to get over it, it does not fence the newer; kafka-python would, so it does not try.
                committed(newer.commit(outs(place.feed, 4)))
                assert not again.met.is_set() or place.driver.name == "confluent"
    assert place.settled() == [1, 3, 4]


def test_a_writer_that_is_fenced_while_it_commits_says_that_it_does_not_know(place: Place) -> None:
    with closing(place.writer(20)) as older:
        committed(older.commit(outs(place.feed, 1)))
        with place.proxy.rule(Api.END_TXN, Fault.HOLD, times=1000) as rule:
            thread, fates = in_thread(older, outs(place.feed, 2))
            assert rule.met.wait(20)
            with closing(place.writer(20, beside=True)) as newer:
                committed(newer.commit(outs(place.feed, 3)))
                rule.released.set()
                thread.join()
                (fate,) = fates
                assert isinstance(fate, Unknown), fate
                assert fate.fenced, fate
                committed(newer.commit(outs(place.feed, 4)))
    assert place.settled() == [1, 3, 4]


def test_a_commit_whose_broker_dies_before_it_answers_is_unknown_until_it_is_back(place: Place) -> None:
    with closing(place.writer()) as writer, closing(place.beside.reader()) as reader:
        committed(writer.commit(outs(place.feed, 1)))
        with place.proxy.rule(Api.END_TXN, Fault.HOLD_ANSWER, times=1000) as rule:
            thread, fates = in_thread(writer, outs(place.feed, 2, 3))
            assert rule.met.wait(20)
            while reader.stable_ends([place.feed], 10) != reader.ends([place.feed], 10):
                time.sleep(0.01)
            place.broker.kill()
            thread.join()  # before the proxy lets go of the answer, which it still has
            assert isinstance(fates[0], Unknown), fates
    place.broker.start()
    assert place.settled() == [1, 2, 3]


@pytest.mark.soak
def test_a_commit_whose_broker_dies_before_it_gets_the_request_goes_on_when_it_is_back(place: Place) -> None:
    # Longer than a start takes: a broker that finds an expired transaction while it starts may forget to abort it.
    with closing(place.writer(60)) as writer:
        committed(writer.commit(outs(place.feed, 1)))
        with place.proxy.rule(Api.END_TXN, Fault.HOLD, times=1000) as rule:
            thread, fates = in_thread(writer, outs(place.feed, 2, 3))
            assert rule.met.wait(20)
            place.broker.kill()
        place.broker.start()
        thread.join()
    read = place.settled()
    assert read == [1, 2, 3] if isinstance(fates[0], Committed) else read in ([1], [1, 2, 3]), fates


def test_a_fence_that_nobody_answers_is_an_error_in_time(place: Place) -> None:
    with place.proxy.rule(Api.INIT_PRODUCER_ID, Fault.SWALLOW, times=1000):
        began = time.monotonic()
        with pytest.raises(BrokerError, match="cannot be fenced"):
            place.writer()
        assert time.monotonic() - began < SOON_S + 5


def test_a_reader_whose_connections_break_goes_on_where_it_was(place: Place) -> None:
    with closing(place.writer(20)) as writer, closing(place.driver.reader()) as reader:
        committed(writer.commit(outs(place.feed, *range(100))))
        reader.assign({place.feed: 0})
        read = numbers(reader.poll(10, 20))
        place.proxy.cut_all()
        committed(writer.commit(outs(place.feed, *range(100, 200))))
        read += numbers(catch_up(reader, [place.feed]))
        with place.proxy.rule(Api.FETCH, Fault.LOSE_ANSWER, times=3) as rule:
            while not rule.met.is_set():
                assert reader.poll(10, 0.2) == []
            committed(writer.commit(outs(place.feed, *range(200, 300))))
            read += numbers(catch_up(reader, [place.feed]))
    assert read == list(range(300))


def test_transactions_beside_one_that_hangs_go_on(place: Place) -> None:
    """A writer that waits for its broker holds nobody else up."""
    with closing(place.writer()) as writer, ThreadPoolExecutor(1) as threads:
        with place.proxy.rule(Api.END_TXN, Fault.SWALLOW) as rule:
            hanging = threads.submit(writer.commit, outs(place.feed, 1))
            assert rule.met.wait(20)
            (other,) = new_feeds(place.beside, f"{place.namespace}.more")
            with closing(place.driver.writer(f"{place.namespace}.1", 20)) as beside:
                beside.fence()
                committed(beside.commit(outs(Feed(other.topic, 0), 7)))
            assert not hanging.done() or isinstance(hanging.result(), Unknown)
        hanging.result()
