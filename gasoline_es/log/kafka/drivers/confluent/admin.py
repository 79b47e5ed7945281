"""Topics and offsets by confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from gasoline_es.log.kafka.drivers.confluent.client import (
    KafkaException,
    admin,
    broker_error,
    code,
    codes,
    confluent,
    is_away,
    is_stale,
    passes,
    with_logger,
)
from gasoline_es.log.kafka.drivers.lookups import OffsetAdmin
from gasoline_es.log.kafka.drivers.port import BrokerError, Feed, NewTopic, OffsetNotTold, TopicInfo, told

T = TypeVar("T")
_GRACE_S = 1.0  # the client's own limit comes first, and says more
_TRY_S = 1.0
"""The first try may take so long, each further one twice as long. What is to go to a leader that is dead waits for it to the
end of its own limit; another try goes to the next one."""


class ConfluentAdmin(OffsetAdmin):
    """Makes topics, looks at them, and at how far they reach (see the port). Its client has threads of its own."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        more = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1000}
        try:
            self._client: Any = admin.AdminClient(with_logger({**config, **more}))
        except KafkaException as error:
            raise broker_error("no client can be made", config, error) from error

    def _do(self, what: str, timeout_s: float, call: Callable[[float], T]) -> T:
        """Do it, and again while what keeps it passes by itself."""
        deadline = time.monotonic() + timeout_s
        try_s = _TRY_S
        while True:
            try:
                return call(max(min(deadline - time.monotonic(), try_s), 0.01))
            except (KafkaException, TimeoutError, OffsetNotTold) as error:
                late = isinstance(error, TimeoutError | OffsetNotTold) or is_away(error)
                if not (passes(error) or late or is_stale(error)) or time.monotonic() + 0.05 > deadline:
                    raise broker_error(what, self._config, error) from error
                time.sleep(0.05)
                if late or is_stale(error):
                    # Which leaders there are it asks only if told to, and it goes on asking the dead one.
                    with suppress(KafkaException):
                        self._client.list_topics(timeout=max(min(deadline - time.monotonic(), try_s), 0.01))
                try_s *= 2

    def describe(self, topics: Sequence[str], timeout_s: float, *, settings: bool = True) -> Mapping[str, TopicInfo]:
        """Return those of the topics that exist (see the port)."""
        if not topics:
            return {}
        topics_told = self._do("topics cannot be described", timeout_s, lambda left_s: self._described(topics, left_s))
        found = {name: _info(topic) for name, topic in topics_told.items()}
        if not found or not settings:
            return found

        def configs(left_s: float) -> dict[str, dict[str, str]]:
            resources = [admin.ConfigResource(admin.ResourceType.TOPIC, name) for name in found]
            futures = self._client.describe_configs(resources, request_timeout=left_s)
            return {
                resource.name: {name: str(entry.value) for name, entry in _result(future, left_s).items()}
                for resource, future in futures.items()
            }

        told_settings = self._do("the settings of topics cannot be read", timeout_s, configs)
        return {name: replace(info, config=told_settings[name]) for name, info in found.items()}

    def _described(self, topics: Sequence[str], left_s: float) -> dict[str, Any]:
        wanted = confluent.TopicCollection(list(topics))
        futures = self._client.describe_topics(wanted, include_authorized_operations=True, request_timeout=left_s)
        found: dict[str, Any] = {}
        for name, future in futures.items():
            try:
                found[name] = _result(future, left_s)
            except KafkaException as error:
                if code(error) != codes.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def create(self, topics: Sequence[NewTopic], timeout_s: float) -> None:
        """Make topics (see the port)."""
        if not topics:
            return
        deadline = time.monotonic() + timeout_s

        def make(left_s: float) -> None:
            new = [
                admin.NewTopic(topic.name, topic.partitions, topic.replication, config=dict(topic.config))
                for topic in topics
            ]
            futures = self._client.create_topics(new, operation_timeout=left_s, request_timeout=left_s)
            for future in futures.values():
                try:
                    _result(future, left_s)
                except KafkaException as error:
                    if code(error) != codes.TOPIC_ALREADY_EXISTS:
                        raise

        names = [topic.name for topic in topics]
        self._do(f"the topics {', '.join(names)} cannot be made", timeout_s, make)
        while not self._have_leaders(names, deadline - time.monotonic()):
            if time.monotonic() > deadline:
                raise BrokerError(f"the topics {', '.join(names)} were made, and have no leaders after {timeout_s} s")
            time.sleep(0.02)

    def _have_leaders(self, topics: Sequence[str], timeout_s: float) -> bool:
        told = self._do("topics cannot be described", timeout_s, lambda left_s: self._described(topics, left_s))
        return set(told) == set(topics) and all(
            partition.leader is not None and partition.leader.id >= 0
            for topic in told.values()
            for partition in topic.partitions
        )

    def delete_before(self, feeds: Mapping[Feed, int], timeout_s: float) -> None:
        """Remove the records before these offsets (see the port)."""
        if not feeds:
            return

        def delete(left_s: float) -> None:
            wanted = [confluent.TopicPartition(*feed, offset) for feed, offset in feeds.items()]
            futures = self._client.delete_records(wanted, request_timeout=left_s, operation_timeout=left_s)
            for future in futures.values():
                _result(future, left_s)

        self._do("records cannot be deleted", timeout_s, delete)

    def cluster_id(self, timeout_s: float) -> str:
        """Return what the cluster calls itself (see the port)."""

        def ask(left_s: float) -> Any:
            return _result(self._client.describe_cluster(request_timeout=left_s), left_s)

        return str(self._do("no broker was reached", timeout_s, ask).cluster_id)

    def offsets(self, specs: Mapping[Feed, int], timeout_s: float, *, committed: bool = False) -> dict[Feed, int]:
        """Return the offset of each feed that its spec asks for (see there)."""
        if not specs:
            return {}
        level = confluent.IsolationLevel.READ_COMMITTED if committed else confluent.IsolationLevel.READ_UNCOMMITTED

        def ask(left_s: float) -> dict[Feed, int]:
            wanted = {confluent.TopicPartition(*feed): admin.OffsetSpec(spec) for feed, spec in specs.items()}
            futures = self._client.list_offsets(wanted, isolation_level=level, request_timeout=left_s)
            found = {
                Feed(place.topic, place.partition): int(_result(future, left_s).offset)
                for place, future in futures.items()
            }
            return {feed: told(feed, specs[feed], offset) for feed, offset in found.items()}

        return self._do("offsets cannot be read", timeout_s, ask)

    def close(self) -> None:
        """Let go of it."""
        self._client = None


def _info(topic: Any) -> TopicInfo:
    copies = min((len(partition.replicas) for partition in topic.partitions), default=0)
    allowed = frozenset(operation.name for operation in topic.authorized_operations or ())
    return TopicInfo(len(topic.partitions), copies, {}, allowed)


def _result(future: Future[Any], left_s: float) -> Any:
    return future.result(left_s + _GRACE_S)
