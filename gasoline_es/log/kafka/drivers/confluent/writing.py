"""Writing by confluent-kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from gasoline_es.log.kafka.drivers.confluent.client import (
    KafkaException,
    broker_error,
    codes,
    confluent,
    describe,
    is_fenced,
    is_refused,
    is_too_large,
    with_logger,
)
from gasoline_es.log.kafka.drivers.deadline import in_background
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

# How long it may take to learn why records were not delivered, which the first call after that is told.
_ABORT_S: Final = 1.0
_SMALL: Final = "__transaction_state"
_NOT_YET: Final = (codes._TIMED_OUT, codes.CONCURRENT_TRANSACTIONS)
ASKS_AGAIN_S: Final = 0.5
"""After so long the client asks again for what it did not get at once."""
QUICK_S: Final = 0.15
QUICK_TIMES: Final = 4

Delivered = Callable[[Any, Any], None]


def _producer(config: dict[str, Any], timeout_s: float, **more: Any) -> Any:
    timeout_ms = int(timeout_s * 1000)
    return confluent.Producer(
        with_logger(
            {
                **config,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": timeout_ms,
                # So that one lost answer leaves time for another try.
                "request.timeout.ms": max(timeout_ms // 3, 1),
                "socket.timeout.ms": max(timeout_ms // 3, 10),
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 1000,
                "retry.backoff.ms": 10,
                "batch.size": 512 * 1024,
                "message.max.bytes": REQUEST_BYTES_MAX,
                "allow.auto.create.topics": False,
                **more,
            }
        )
    )


def _send(producer: Any, record: Out, delivered: Delivered, deadline: float) -> None:
    while True:
        try:
            producer.produce(
                record.feed.topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.feed.partition,
                timestamp=record.time_ms,
                on_delivery=delivered,
            )
            return
        except BufferError:  # the client holds as much as it may
            if time.monotonic() > deadline:
                raise
            producer.poll(0.01)


def _discard(producer: Any) -> None:
    """Let a producer drop what it holds. It ends when nothing refers to it; its own ``close`` would wait and complain."""
    producer.purge()


class ConfluentWriter(Writer):
    """Writes transactions (see the port)."""

    def __init__(self, config: dict[str, Any], transactional_id: str, timeout_s: float) -> None:
        self._config = config
        self._id = transactional_id
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._producer: Any = None
        self._closed = False

    def fence(self) -> None:
        """Make every other writer of this transactional id unable to commit (see the port)."""
        assert self._producer is None, "a writer fences once"
        deadline = time.monotonic() + self._timeout_s
        try:
            for tries in (1, 2, None):
                if self._fenced(deadline, tries):
                    return
        except KafkaException as error:
            self.close()
            raise broker_error(f"transactional id {self._id!r} cannot be fenced", self._config, error) from error

    def _fenced(self, deadline: float, tries: int | None) -> bool:
        """Begin with a new client; return False if it was left because it has to ask again. ``tries`` None: it never is.

        It would ask again after half a second: as long as it takes until it looks whether it has a coordinator, and again
        while that aborts what was left open, which takes it some milliseconds. A new one asks at once.
        """
        began_s = time.monotonic()
        more = {"transactional.id": self._id, "transaction.timeout.ms": int(self._timeout_s * 1000)}
        producer = _producer(self._config, self._timeout_s, **more)
        with self._lock:
            self._producer = None if self._closed else producer
        # Asked before any broker is connected, the client waits, too. So a broker is asked for something small first.
        producer.list_topics(_SMALL, self._timeout_s)
        left_s = max(deadline - time.monotonic(), 0.01)
        # Several times what it took to connect and be answered: a slow network is none that has to be asked again.
        patience_s = (tries or 1) * max(QUICK_S, QUICK_TIMES * (time.monotonic() - began_s))
        if tries is None or patience_s >= min(ASKS_AGAIN_S, left_s):
            producer.init_transactions(left_s)
            return True
        try:
            producer.init_transactions(patience_s)
        except KafkaException as error:
            if not (error.args[0].retriable() or error.args[0].code() in _NOT_YET):
                raise
        else:
            return True
        with self._lock:
            self._producer = None
        del producer  # it ends with this, so that it cannot fence whoever comes after it
        return False

    def commit(self, records: Sequence[Out]) -> Fate:
        """Write the records in one transaction (see the port)."""
        with self._lock:
            if self._closed:
                return NotWritten("the writer is closed")
            producer = self._producer
        assert producer is not None, "fence first"
        deadline = time.monotonic() + self._timeout_s
        offsets = [-1] * len(records)
        failed: list[tuple[Any, str]] = []  # errors, with the topics of their records

        def delivered(place: int) -> Delivered:
            def note(error: Any, message: Any) -> None:
                if error is not None:
                    failed.append((error, records[place].feed.topic))
                else:
                    offsets[place] = message.offset()

            return note

        # Until the commit is asked for, nobody will: whatever the broker has of it, it will abort.
        try:
            producer.begin_transaction()
            for place, record in enumerate(records):
                _send(producer, record, delivered(place), deadline)
            left = producer.flush(max(deadline - time.monotonic(), 0))
        except Exception as error:
            return _not_written(producer, error)
        if failed:
            # The others may only share the fate of one that was refused.
            worst, refused = next((one for one in failed if is_refused(one[0])), (failed[0][0], None))
            return _not_written(producer, worst, *(one for one, _ in failed), refused=refused)
        left_s = deadline - time.monotonic()
        if left or left_s <= 0:
            return NotWritten("the time was over before the commit")
        if min(offsets, default=0) < 0:
            return NotWritten("the records have no offsets")
        try:
            producer.commit_transaction(left_s)
        except Exception as error:
            return Unknown(describe(error), fenced=is_fenced(error))
        return Committed(offsets)

    def close(self) -> None:
        """Let go of it, at once (see the port)."""
        with self._lock:
            self._closed = True
            producer, self._producer = self._producer, None
        if producer is not None:
            in_background(lambda: _discard(producer))


def _not_written(producer: Any, *errors: Any, refused: str | None = None) -> Fate:
    """Say why not; that it was fenced, a client that knows says by the next call of it, if not at once."""
    told = [*errors]
    try:
        producer.abort_transaction(_ABORT_S)
    except Exception as last:
        told.append(last)
    for one in told:
        if is_fenced(one):
            return Refused(describe(one))
    too_large = refused is None and any(map(is_too_large, errors))
    return NotWritten(describe(told[0]), too_large=too_large, refused=refused)
