"""Taking part in a consumer group by confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gasoline_es.log.kafka.drivers.confluent.client import (
    KafkaException,
    broker_error,
    confluent,
    is_for_good,
    with_logger,
)
from gasoline_es.log.kafka.drivers.port import Assignments, Feed, Member


def _feeds(places: Iterable[Any]) -> list[Feed]:
    return sorted(Feed(place.topic, place.partition) for place in places)


class ConfluentMember(Member):
    """Takes part in a consumer group (see the port)."""

    def __init__(
        self, config: dict[str, Any], group: str, topics: Sequence[str], calls: Assignments, session_timeout_s: float
    ) -> None:
        self._config = config
        self._calls = calls
        self._feeds: set[Feed] = set()
        session_ms = int(session_timeout_s * 1000)
        settings = {
            **config,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "latest",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": max(session_ms // 5, 1),
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "allow.auto.create.topics": False,
        }
        try:
            self._consumer = confluent.Consumer(with_logger(settings))
            self._consumer.subscribe(list(topics), on_assign=self._gain, on_revoke=self._revoke, on_lost=self._lose_all)
        except KafkaException as error:
            raise broker_error(f"group {group!r} cannot be joined", config, error) from error

    def _gain(self, consumer: Any, places: list[Any]) -> None:
        consumer.incremental_assign(places)
        consumer.pause(places)  # nothing of it is read
        new = [feed for feed in _feeds(places) if feed not in self._feeds]
        self._feeds.update(new)
        if new:
            self._calls.assigned(new)

    def _revoke(self, consumer: Any, places: list[Any]) -> None:
        self._lose(places, lost=False)
        consumer.incremental_unassign(places)

    def _lose_all(self, consumer: Any, places: list[Any]) -> None:
        self._lose(places, lost=True)
        consumer.incremental_unassign(places)

    def _lose(self, places: Iterable[Any], *, lost: bool) -> None:
        gone = [feed for feed in _feeds(places) if feed in self._feeds]
        self._feeds.difference_update(gone)
        if gone:
            (self._calls.lost if lost else self._calls.revoked)(gone)

    def poll(self, timeout_s: float) -> None:
        """Take part for so long (see the port)."""
        message = self._consumer.poll(timeout_s)
        error = message.error() if message is not None else None
        if error is not None and (is_for_good(error) or error.fatal()):
            raise broker_error("the group does not have this member", self._config, error)

    @property
    def feeds(self) -> frozenset[Feed]:
        """What this member has been assigned so far."""
        return frozenset(self._feeds)

    def close(self) -> None:
        """Leave the group (see the port)."""
        self._consumer.close()
