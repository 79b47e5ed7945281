"""Reading by kafka-python, whose consumer knows no wake-up and no second thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gasoline_es.log.kafka.drivers.kafka_python.client import KafkaError, broker_error, errors, kafka, made
from gasoline_es.log.kafka.drivers.lookups import LOOKUP_S, SLICE_S, LookingUp, OffsetAdmin
from gasoline_es.log.kafka.drivers.port import FETCH_WAIT_MS, FIRST, BrokerError, Feed, In


class KafkaPythonReader(LookingUp):
    """Reads feeds (see the port)."""

    def __init__(self, config: dict[str, Any], uncommitted: bool, admin: Callable[[], OffsetAdmin]) -> None:
        super().__init__(admin)
        self._config = config
        try:
            self._consumer = made(
                kafka.KafkaConsumer,
                **config,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_uncommitted" if uncommitted else "read_committed",
                fetch_max_wait_ms=FETCH_WAIT_MS,
                bootstrap_timeout_ms=10_000,
                reconnect_backoff_max_ms=1000,
                retry_backoff_ms=50,
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
        except KafkaError as error:
            raise broker_error("nothing can be read", config, error) from error

    def assign(self, starts: Mapping[Feed, int]) -> None:
        """Read these feeds and no others from now on (see the port)."""
        before = self._consumer.assignment()
        self._consumer.assign([kafka.TopicPartition(*feed) for feed in starts])
        for feed, offset in starts.items():
            if kafka.TopicPartition(*feed) not in before:
                self.seek(feed, offset)

    def seek(self, feed: Feed, offset: int) -> None:
        """Read a feed that is assigned from another offset on (see the port)."""
        place = kafka.TopicPartition(*feed)
        if offset == FIRST:
            self._consumer.seek_to_beginning(place)
        else:
            self._consumer.seek(place, offset)

    def poll(self, max_records: int, timeout_s: float) -> Sequence[In]:
        """Return records that came (see the port)."""
        deadline = time.monotonic() + timeout_s
        while not self._woken.is_set():
            left_s = deadline - time.monotonic()
            slice_ms = int(max(min(left_s, SLICE_S), 0) * 1000)
            came: dict[Any, list[Any]] = {}
            try:
                came = self._consumer.poll(timeout_ms=slice_ms, max_records=max_records)
            except errors.OffsetOutOfRangeError as error:
                place, offset = next(iter(dict(error.args[0]).items()))
                raise self._gone(Feed(place.topic, place.partition), offset) from error
            except KafkaError as error:
                if not isinstance(error, errors.RetriableError):
                    raise broker_error("nothing can be read", self._config, error) from error
                self._woken.wait(slice_ms / 1000)
            if came:
                return [
                    In(Feed(one.topic, one.partition), one.offset, one.key, one.value, one.headers, one.timestamp)
                    for records in came.values()
                    for one in records
                ]
            if left_s <= 0:
                return []
        self._woken.clear()
        return []

    def position(self, feed: Feed) -> int:
        """Return the offset from which a feed is read on (see the port)."""
        found = self._consumer.position(kafka.TopicPartition(*feed), timeout_ms=int(LOOKUP_S * 1000))
        if found is None:
            raise BrokerError(f"where topic {feed.topic!r}, partition {feed.partition}, begins was not to be learned")
        return int(found)

    def close(self) -> None:
        """Let go of it."""
        self._consumer.close(autocommit=False)
