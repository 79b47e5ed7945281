"""Topics and offsets by kafka-python."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gasoline_es.log.kafka.drivers.deadline import Late, within
from gasoline_es.log.kafka.drivers.kafka_python.client import (
    KafkaError,
    admin,
    broker_error,
    describe,
    errors,
    kafka,
    made,
)
from gasoline_es.log.kafka.drivers.lookups import OffsetAdmin
from gasoline_es.log.kafka.drivers.port import BrokerError, Feed, NewTopic, OffsetNotTold, TopicInfo, told

T = TypeVar("T")

_REQUEST_MS = 10_000
_UNKNOWN_TOPIC = 3
_TOPIC_EXISTS = 36


class KafkaPythonAdmin(OffsetAdmin):
    """Makes topics, looks at them, and at how far they reach (see the port). Its client has a thread of its own."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._client: Any = None

    def _reach(self, timeout_s: float) -> None:
        """Make the client, which reaches for a broker at once."""
        with self._lock:
            if self._client is None:
                self._client = made(
                    admin.KafkaAdminClient,
                    **self._config,
                    bootstrap_timeout_ms=max(int(timeout_s * 1000), 1),
                    request_timeout_ms=_REQUEST_MS,
                    retry_backoff_ms=20,
                    reconnect_backoff_max_ms=1000,
                )

    def _do(self, what: str, timeout_s: float, call: Callable[[], T]) -> T:
        """Do it, and again while what keeps it passes by itself."""
        deadline = time.monotonic() + timeout_s
        try:
            self._reach(timeout_s)
        except KafkaError as error:
            raise broker_error("no broker was reached", self._config, error) from error
        while True:
            try:
                return within(deadline - time.monotonic(), call)
            except (KafkaError, Late, OffsetNotTold) as error:
                passes = isinstance(error, errors.RetriableError | OffsetNotTold) and time.monotonic() + 0.05 < deadline
                if not passes:
                    raise broker_error(what, self._config, error) from error
                time.sleep(0.05)

    def describe(self, topics: Sequence[str], timeout_s: float, *, settings: bool = True) -> Mapping[str, TopicInfo]:
        """Return those of the topics that exist (see the port)."""
        if not topics:
            return {}
        answer = self._do("topics cannot be described", timeout_s, lambda: self._client.describe_topics(list(topics)))
        found: dict[str, TopicInfo] = {}
        for topic in answer:
            if topic["error_code"] == _UNKNOWN_TOPIC:
                continue
            if topic["error_code"]:
                error = errors.for_code(topic["error_code"])()
                raise broker_error(f"topic {topic['name']!r} cannot be described", self._config, error)
            partitions = topic["partitions"]
            copies = min((len(partition["replica_nodes"]) for partition in partitions), default=0)
            allowed = frozenset(map(str, topic.get("authorized_operations") or ()))
            found[topic["name"]] = TopicInfo(len(partitions), copies, {}, allowed)
        if not found or not settings:
            return found
        resources = [admin.ConfigResource("TOPIC", name) for name in found]
        configs = self._do(
            "the settings of topics cannot be read",
            timeout_s,
            lambda: self._client.describe_configs(resources, config_filter="all"),
        )["topic"]
        return {
            name: replace(info, config={key: str(entry["value"]) for key, entry in configs[name].items()})
            for name, info in found.items()
        }

    def create(self, topics: Sequence[NewTopic], timeout_s: float) -> None:
        """Make topics (see the port)."""
        wanted = {
            topic.name: {
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication,
                "configs": dict(topic.config),
            }
            for topic in topics
        }
        if not wanted:
            return
        deadline = time.monotonic() + timeout_s
        answer = self._do(
            "topics cannot be made",
            timeout_s,
            lambda: self._client.create_topics(wanted, timeout_ms=int(timeout_s * 1000), raise_errors=False),
        )
        for topic in answer["topics"]:
            if topic["error_code"] not in (0, _TOPIC_EXISTS):
                error = errors.for_code(topic["error_code"])(topic.get("error_message") or "")
                raise broker_error(f"topic {topic['name']!r} cannot be made", self._config, error)
        while not self._have_leaders(list(wanted), deadline - time.monotonic()):
            if time.monotonic() > deadline:
                raise BrokerError(f"the topics {', '.join(wanted)} were made, and have no leaders after {timeout_s} s")
            time.sleep(0.02)

    def _have_leaders(self, topics: list[str], timeout_s: float) -> bool:
        told = self._do("topics cannot be described", timeout_s, lambda: self._client.describe_topics(topics))
        return {topic["name"] for topic in told} == set(topics) and all(
            topic["error_code"] == 0
            and topic["partitions"]
            and all(one["error_code"] == 0 and one["leader_id"] >= 0 for one in topic["partitions"])
            for topic in told
        )

    def delete_before(self, feeds: Mapping[Feed, int], timeout_s: float) -> None:
        """Remove the records before these offsets (see the port)."""
        if not feeds:
            return
        wanted = {kafka.TopicPartition(*feed): offset for feed, offset in feeds.items()}
        self._do(
            "records cannot be deleted",
            timeout_s,
            lambda: self._client.delete_records(wanted, timeout_ms=int(timeout_s * 1000)),
        )

    def cluster_id(self, timeout_s: float) -> str:
        """Return what the cluster calls itself (see the port)."""
        told = self._do("no broker was reached", timeout_s, lambda: self._client.describe_cluster())  # noqa: PLW0108 - made by the call
        return str(told["cluster_id"])

    def offsets(self, specs: Mapping[Feed, int], timeout_s: float, *, committed: bool = False) -> dict[Feed, int]:
        """Return the offset of each feed that its spec asks for (see there)."""
        isolation = "read_committed" if committed else "read_uncommitted"
        if not specs:
            return {}
        wanted = {kafka.TopicPartition(*feed): spec for feed, spec in specs.items()}

        def ask() -> dict[Feed, int]:
            answer = self._client.list_partition_offsets(wanted, isolation, timeout_ms=int(timeout_s * 1000))
            found = {Feed(place.topic, place.partition): int(one.offset) for place, one in answer.items()}
            return {feed: told(feed, specs[feed], offset) for feed, offset in found.items()}

        return self._do("offsets cannot be read", timeout_s, ask)

    def close(self) -> None:
        """Let go of it."""
        if self._client is None:
            return
        try:
            within(5, self._client.close)
        except (KafkaError, Late) as error:
            raise broker_error(f"the client does not end: {describe(error)}", self._config, error) from error
