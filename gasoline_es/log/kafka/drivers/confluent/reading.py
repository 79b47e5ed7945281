"""Reading by confluent-kafka.

Its own ``position`` stays behind markers and aborted records at the end of a partition. So the client is asked to say
whenever it has come to an end, and where.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gasoline_es.engine_log import EngineLog
from gasoline_es.log.kafka.drivers.confluent.client import (
    KafkaException,
    broker_error,
    codes,
    confluent,
    is_for_good,
    with_logger,
)
from gasoline_es.log.kafka.drivers.lookups import LOOKUP_S, SLICE_S, LookingUp, OffsetAdmin
from gasoline_es.log.kafka.drivers.port import FETCH_WAIT_MS, FIRST, BrokerError, Feed, In

_log = EngineLog(__name__)

_EOF: Final = codes._PARTITION_EOF
_NO_OFFSET: Final = codes._AUTO_OFFSET_RESET
_NO_GROUP: Final = codes.GROUP_AUTHORIZATION_FAILED


class ConfluentReader(LookingUp):
    """Reads feeds (see the port)."""

    def __init__(self, config: dict[str, Any], uncommitted: bool, admin: Callable[[], OffsetAdmin]) -> None:
        super().__init__(admin)
        self._config = config
        self._positions: dict[Feed, int] = {}
        self._failed: BrokerError | None = None
        settings = {
            **config,
            "group.id": "gasoline-es",  # the library wants a name; no group is joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted" if uncommitted else "read_committed",
            "enable.partition.eof": True,
            "fetch.error.backoff.ms": 50,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "queued.max.messages.kbytes": 32 * 1024,
            "allow.auto.create.topics": False,
        }
        try:
            self._consumer = confluent.Consumer(with_logger(settings))
        except KafkaException as error:
            raise broker_error("nothing can be read", config, error) from error

    def assign(self, starts: Mapping[Feed, int]) -> None:
        """Read these feeds and no others from now on (see the port)."""
        gone = [feed for feed in self._positions if feed not in starts]
        new = {feed: offset for feed, offset in starts.items() if feed not in self._positions}
        if gone:
            self._consumer.incremental_unassign([confluent.TopicPartition(*feed) for feed in gone])
        for feed in gone:
            del self._positions[feed]
        self._begin(new)

    def _begin(self, starts: Mapping[Feed, int]) -> None:
        if starts:
            self._consumer.incremental_assign(
                [
                    confluent.TopicPartition(*feed, confluent.OFFSET_BEGINNING if offset == FIRST else offset)
                    for feed, offset in starts.items()
                ]
            )
            self._positions.update(starts)

    def seek(self, feed: Feed, offset: int) -> None:
        """Read a feed that is assigned from another offset on (see the port)."""
        self._consumer.incremental_unassign([confluent.TopicPartition(*feed)])
        self._begin({feed: offset})

    def poll(self, max_records: int, timeout_s: float) -> Sequence[In]:
        """Return records that came (see the port)."""
        deadline = time.monotonic() + timeout_s
        while not self._woken.is_set():
            if self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed
            left_s = deadline - time.monotonic()
            first = self._consumer.poll(max(min(left_s, SLICE_S), 0))
            if first is not None:
                came = [first, *(self._consumer.consume(max_records - 1, 0) if max_records > 1 else ())]
                records = [record for message in came if (record := self._taken(message)) is not None]
                if records:
                    return records
            elif left_s <= 0:
                return []
        self._woken.clear()
        return []

    def _taken(self, message: Any) -> In | None:
        """Take note of what the client gave; return the record, if it is one."""
        error = message.error()
        feed = Feed(message.topic(), message.partition())
        if error is None:
            offset = message.offset()
            self._positions[feed] = offset + 1
            return In(feed, offset, message.key(), message.value(), _headers_of(message), int(message.timestamp()[1]))
        if error.code() == _EOF:
            self._positions[feed] = max(self._positions.get(feed, FIRST), message.offset())
        elif error.code() == _NO_OFFSET:
            self._failed = self._gone(feed, self._positions.get(feed, FIRST))
        elif error.code() == _NO_GROUP:
            pass  # the library looks for the coordinator of its group, though it joins none: nobody has to be allowed that
        elif is_for_good(error) or error.fatal():
            self._failed = broker_error("nothing can be read", self._config, error)
        return None

    def position(self, feed: Feed) -> int:
        """Return the offset from which a feed is read on (see the port)."""
        if self._positions[feed] == FIRST:  # nothing came of it so far
            return self.begins([feed], LOOKUP_S)[feed]
        return self._positions[feed]

    def close(self) -> None:
        """Let go of it."""
        self._consumer.close()


def _headers_of(message: Any) -> Sequence[tuple[str, bytes | None]]:
    try:
        return message.headers() or ()
    except (UnicodeDecodeError, SystemError):
        # A name that is no UTF-8: the library can show none of them. The record is a record still.
        _log.warning(
            "the headers of a record of %s[%d] at offset %d cannot be read: a name in them is no UTF-8",
            message.topic(),
            message.partition(),
            message.offset(),
            extra={"topic": message.topic(), "partition": message.partition(), "offset": message.offset()},
        )
        return ()
