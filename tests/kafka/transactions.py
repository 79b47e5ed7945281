"""Transactions that are left open, or aborted, by a client beside those that are tested."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer

from gasoline_es.log.kafka.drivers.port import Out


@contextmanager
def open_transaction(bootstrap: str, transactional_id: str, records: Sequence[Out]) -> Generator[Any]:
    """Write the records in a transaction that is open; abort it at the end."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(20)
    producer.begin_transaction()
    for record in records:
        producer.produce(record.feed.topic, record.value, record.key, record.feed.partition)
    assert producer.flush(20) == 0
    yield producer
    producer.abort_transaction(20)


def abort(bootstrap: str, transactional_id: str, records: Sequence[Out]) -> None:
    """Write the records in a transaction, and abort it."""
    with open_transaction(bootstrap, transactional_id, records):
        pass
