"""Writing by kafka-python: its transactions have traps, which this steps around.

``commit_transaction`` reports success although a batch of the transaction expired, or after its sequence numbers came into
disorder; and it may never return. So every record's future is asked first, the commit runs under a deadline of our own, and
a producer is used no more after the first thing that went wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from gasoline_es.log.kafka.drivers.deadline import Late, in_background, within
from gasoline_es.log.kafka.drivers.kafka_python.client import (
    KafkaError,
    broker_error,
    describe,
    internal,
    is_fenced,
    is_refused,
    is_too_large,
    kafka,
    made,
)
from gasoline_es.log.kafka.drivers.port import (
    REQUEST_BYTES_MAX,
    Committed,
    Fate,
    NotWritten,
    Out,
    Refused,
    Unknown,
    Writer,
)


def _producer(config: dict[str, Any], timeout_s: float, **more: Any) -> Any:
    timeout_ms = int(timeout_s * 1000)
    return made(
        kafka.KafkaProducer,
        **config,
        acks="all",
        delivery_timeout_ms=timeout_ms,
        # Below the other, or the client refuses it; and so that one lost answer leaves time for another try.
        request_timeout_ms=max(timeout_ms // 3, 1),
        max_block_ms=timeout_ms,
        bootstrap_timeout_ms=timeout_ms,
        # Its transactions wait for so long after each of their requests, answered or not.
        retry_backoff_ms=1,
        reconnect_backoff_max_ms=1000,
        batch_size=512 * 1024,
        max_request_size=REQUEST_BYTES_MAX,
        allow_auto_create_topics=False,
        metrics_enabled=False,
        **more,
    )


def _send(producer: Any, record: Out) -> Any:
    return producer.send(
        record.feed.topic,
        value=record.value,
        key=record.key,
        headers=list(record.headers),
        partition=record.feed.partition,
        timestamp_ms=record.time_ms,
    )


def _discard(producer: Any) -> None:
    """End a producer without flushing it. Its ``close`` alone gives up where something is left to flush."""
    sender = internal(producer, "_sender")
    sender.force_close()
    sender.join(5)
    try:
        producer.close(timeout=0)
    except KafkaError:
        internal(producer, "_unregister_cleanup")()
        producer._closed = True  # or its finalizer would try again


def _never_fences_again(producer: Any) -> None:
    """Let an error of a transaction be its end.

    The library would get over some of them by asking for another epoch and, where that is refused because somebody has
    fenced it, for one without saying who it was: which fences whoever that is, the living owner.
    """
    transactions = internal(producer, "_transaction_manager")
    internal(transactions, "_supports_epoch_bump")  # or this would be set, and nobody would ask for it
    transactions._supports_epoch_bump = lambda: False


def _identity(producer: Any) -> tuple[int, int] | None:
    """Return the number and epoch under which a producer writes; it changes if the client silently begins anew."""
    found = internal(internal(producer, "_transaction_manager"), "producer_id_and_epoch")
    return (found.producer_id, found.epoch)


class KafkaPythonWriter(Writer):
    """Writes transactions (see the port)."""

    def __init__(self, config: dict[str, Any], transactional_id: str, timeout_s: float) -> None:
        self._config = config
        self._id = transactional_id
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._producer: Any = None
        self._identity: tuple[int, int] | None = None
        self._closed = False

    def fence(self) -> None:
        """Make every other writer of this transactional id unable to commit (see the port)."""
        assert self._producer is None, "a writer fences once"
        deadline = time.monotonic() + self._timeout_s
        try:
            producer = _producer(
                self._config,
                self._timeout_s,
                transactional_id=self._id,
                transaction_timeout_ms=int(self._timeout_s * 1000),
            )
            _never_fences_again(producer)
            with self._lock:
                self._producer = producer
                closed = self._closed
            if closed:
                in_background(lambda: _discard(producer))
            within(deadline - time.monotonic(), producer.init_transactions)
        except (KafkaError, Late) as error:
            self.close()
            raise broker_error(f"transactional id {self._id!r} cannot be fenced", self._config, error) from error
        self._identity = _identity(producer)

    def commit(self, records: Sequence[Out]) -> Fate:
        """Write the records in one transaction (see the port)."""
        producer = self._producer
        assert self._identity is not None, "fence first"
        if self._closed:
            return NotWritten("the writer is closed")
        deadline = time.monotonic() + self._timeout_s
        futures: list[Any] = []
        try:
            producer.begin_transaction()
            futures += [_send(producer, record) for record in records]
            offsets = [int(future.get(max(deadline - time.monotonic(), 0)).offset) for future in futures]
        except Exception as error:
            # The commit was not asked for, and nobody else will: whatever the broker has of it, it will abort.
            if is_fenced(error, producer):
                return Refused(describe(error))
            return _not_written(error, records, futures)
        left_s = deadline - time.monotonic()
        if left_s <= 0 or min(offsets, default=0) < 0 or _identity(producer) != self._identity:
            return NotWritten("the time was over before the commit" if left_s <= 0 else "the records have no offsets")
        try:
            within(left_s, producer.commit_transaction)
        except Exception as error:
            return Unknown(describe(error), fenced=not isinstance(error, Late) and is_fenced(error, producer))
        if _identity(producer) != self._identity:
            return Unknown("the client began anew while it committed")
        return Committed(offsets)

    def close(self) -> None:
        """Let go of it, at once (see the port)."""
        with self._lock:
            closed, self._closed = self._closed, True
            producer = self._producer
        if not closed and producer is not None:
            in_background(lambda: _discard(producer))


def _not_written(error: Exception, records: Sequence[Out], futures: Sequence[Any]) -> NotWritten:
    """Say why not. The first error may be of a record that only shares the fate of the one which was refused."""
    for record, future in zip(records, futures, strict=False):
        if is_refused(future.exception):
            return NotWritten(describe(future.exception), refused=record.feed.topic)
    return NotWritten(describe(error), too_large=is_too_large(error))
