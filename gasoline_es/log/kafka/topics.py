"""The topics of a namespace in a cluster: what policy each needs, made where they are missing, checked where they are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gasoline_es.core.topics import ANYONES_TOPICS, OWNERS_TOPICS
from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import Admin, NewTopic, TopicInfo
from gasoline_es.log.names import check_partitions

PARTITIONS_DEFAULT: Final = 32
WORKERS: Final = "workers"
"""Who works on the namespace: one partition, see :mod:`gasoline_es.log.kafka.who`."""
ASK_S: Final = 30.0
_HOUR_MS: Final = 3_600_000

# Times are told by whoever writes; a clock that is ahead must not keep anything from being recorded.
_ANY_TIME: Final = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}
_COMPACTED: Final = {"cleanup.policy": "compact", **_ANY_TIME}
_POLICIES: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys(OWNERS_TOPICS, _COMPACTED),
    WORKERS: _COMPACTED,
    # What is consumed is removed by its owner. Age removes nothing: a worker may be away for longer than any retention.
    "inbox": {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", **_ANY_TIME},
    # Whoever waits for a reply or tails messages looks back for minutes.
    "replies": {"cleanup.policy": "delete", "retention.ms": str(_HOUR_MS), **_ANY_TIME},
    "messages": {"cleanup.policy": "delete", "retention.ms": str(_HOUR_MS), **_ANY_TIME},
}
_CHECKED: Final = {
    **dict.fromkeys((*OWNERS_TOPICS, WORKERS), ("cleanup.policy",)),
    "inbox": ("cleanup.policy", "retention.ms", "retention.bytes"),
    **dict.fromkeys(set(ANYONES_TOPICS) - {"inbox"}, ("cleanup.policy",)),
}
"""The settings that are an error when they are otherwise. How long replies and messages stay is the administrator's."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic that a namespace needs. ``name``: as the cluster calls it."""

    name: str
    partitions: int
    policy: Mapping[str, str]
    checked: tuple[str, ...]


def topics_of(prefix: str, namespace: str, partitions: int) -> list[Wanted]:
    """Return the topics of a namespace."""
    return [
        Wanted(f"{prefix}{namespace}.{kind}", 1 if kind == WORKERS else partitions, policy, _CHECKED[kind])
        for kind, policy in _POLICIES.items()
    ]


def prepare(
    admin: Admin, where: str, prefix: str, namespace: str, partitions: int | None, replication: int, *, readonly: bool
) -> int:
    """Make the topics that are missing, check the others; return the namespace's partition count.

    Raises: LogError: one has another partition count or policy than it must, or the namespace is not there to be read.
    """
    names = [wanted.name for wanted in topics_of(prefix, namespace, 1)]
    there = admin.describe(names, ASK_S)
    events = there.get(f"{prefix}{namespace}.events")
    known = {} if events is None else {namespace: events.partitions}
    count = check_partitions(known, namespace, partitions, where)
    if count is None:
        if readonly:
            raise LogError(f"there is no namespace {namespace!r} in {where}", namespace=namespace)
        count = PARTITIONS_DEFAULT if partitions is None else partitions
    wanted = topics_of(prefix, namespace, count)
    missing = [topic for topic in wanted if topic.name not in there]
    if missing and readonly:
        raise LogError(
            f"namespace {namespace!r} in {where} is not complete: topic {missing[0].name} is missing",
            namespace=namespace,
        )
    if missing:
        admin.create([NewTopic(one.name, one.partitions, replication, one.policy) for one in missing], ASK_S)
        # Somebody else may have made them at the same time, with other numbers: what is there now counts.
        there = admin.describe(names, ASK_S)
    for topic in wanted:
        _check(topic, there.get(topic.name))
    return count


def _check(wanted: Wanted, found: TopicInfo | None) -> None:
    if found is None:
        raise LogError(
            f"topic {wanted.name} was made and is not there: look whether the cluster is well", topic=wanted.name
        )
    if found.partitions != wanted.partitions:
        raise LogError(
            f"topic {wanted.name} has {found.partitions} partitions and must have {wanted.partitions}: the topics of a "
            f"namespace have as many as its events, for ever. Records would be looked for where they are not",
            topic=wanted.name,
        )
    for name in wanted.checked:
        if found.config.get(name) != wanted.policy[name]:
            raise LogError(
                f"topic {wanted.name} has {name}={found.config.get(name)} and must have {name}={wanted.policy[name]}, or "
                f"records are lost. Set it: kafka-configs.sh --alter --topic {wanted.name} --add-config "
                f"{name}={wanted.policy[name]}",
                topic=wanted.name,
                setting=name,
            )
