"""Taking part in a consumer group by kafka-python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gasoline_es.log.kafka.drivers.kafka_python.client import KafkaError, broker_error, errors, kafka, made, sticky
from gasoline_es.log.kafka.drivers.port import Assignments, Feed, Member


class _Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no types
    """What the client calls, in the thread that polls it."""

    def __init__(self, member: KafkaPythonMember) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._member.gain(_feeds(assigned))

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._member.lose(_feeds(revoked), lost=False)

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._member.lose(_feeds(lost), lost=True)


def _feeds(places: Iterable[Any]) -> list[Feed]:
    return sorted(Feed(place.topic, place.partition) for place in places)


class KafkaPythonMember(Member):
    """Takes part in a consumer group (see the port)."""

    def __init__(
        self, config: dict[str, Any], group: str, topics: Sequence[str], calls: Assignments, session_timeout_s: float
    ) -> None:
        self._config = config
        self._calls = calls
        self._feeds: set[Feed] = set()
        try:
            self._consumer = made(
                kafka.KafkaConsumer,
                **config,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="latest",
                partition_assignment_strategy=[sticky.CooperativeStickyAssignor],
                session_timeout_ms=int(session_timeout_s * 1000),
                heartbeat_interval_ms=max(int(session_timeout_s * 1000 / 5), 1),
                bootstrap_timeout_ms=10_000,
                reconnect_backoff_max_ms=1000,
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
        except KafkaError as error:
            raise broker_error(f"group {group!r} cannot be joined", config, error) from error
        self._consumer.subscribe(topics=list(topics), listener=_Listener(self))

    def gain(self, feeds: list[Feed]) -> None:
        """Take note of what has come, and read none of it."""
        new = [feed for feed in feeds if feed not in self._feeds]
        self._consumer.pause(*[kafka.TopicPartition(*feed) for feed in feeds])
        self._feeds.update(new)
        if new:
            self._calls.assigned(new)

    def lose(self, feeds: list[Feed], *, lost: bool) -> None:
        """Take note of what has gone."""
        gone = [feed for feed in feeds if feed in self._feeds]
        self._feeds.difference_update(gone)
        if gone:
            (self._calls.lost if lost else self._calls.revoked)(gone)

    def poll(self, timeout_s: float) -> None:
        """Take part for so long (see the port)."""
        try:
            self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except KafkaError as error:
            if not isinstance(error, errors.RetriableError):
                raise broker_error("the group does not have this member", self._config, error) from error

    @property
    def feeds(self) -> frozenset[Feed]:
        """What this member has been assigned so far."""
        return frozenset(self._feeds)

    def close(self) -> None:
        """Leave the group (see the port)."""
        self._consumer.close(autocommit=False)
        self.lose(sorted(self._feeds), lost=False)  # where the client itself has not said so
