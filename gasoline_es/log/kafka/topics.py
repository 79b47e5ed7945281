"""The topics of a namespace in a cluster: what policy each needs, made where they are missing, checked where they are not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gasoline_es.core.topics import ANYONES_TOPICS, OWNERS_TOPICS, WORKERS
from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import Admin, NewTopic, TopicInfo
from gasoline_es.log.names import check_partitions

PARTITIONS_DEFAULT: Final = 32
PUBLIC_TOPICS: Final = ("events", "schedules", "parked", "stored")
"""What others may read, and build upon. The rest is between processes of this library, and may change with any version."""
ASK_S: Final = 30.0
MADE_LIMIT_S: Final = 30.0
"""So long after a topic was made all brokers have heard of it, in a cluster that is well."""
MADE_POLL_S: Final = 0.1
_HOUR_MS: Final = 3_600_000

# Times are told by whoever writes; a clock that is ahead must not keep anything from being recorded.
_ANY_TIME: Final = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}
_COMPACTED: Final = {"cleanup.policy": "compact", **_ANY_TIME}
# Each process tells every few seconds that it lives, and whoever opens the log reads all of that. A broker compacts no segment
# that it writes to, which would be a week's, and keeps what ends a transaction for a day.
_OF_WORKERS: Final = {**_COMPACTED, "max.compaction.lag.ms": str(_HOUR_MS // 4), "delete.retention.ms": str(_HOUR_MS)}
_POLICIES: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys(OWNERS_TOPICS, _COMPACTED),
    WORKERS: _OF_WORKERS,
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
    """The settings that are an error when they are otherwise."""
    kind: str
    """Its name without prefix and namespace."""


def topics_of(prefix: str, namespace: str, partitions: int) -> list[Wanted]:
    """Return the topics of a namespace."""
    return [
        Wanted(f"{prefix}{namespace}.{kind}", 1 if kind == WORKERS else partitions, policy, _CHECKED[kind], kind)
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
        there = _made(admin, names)
        # Somebody else may have made them at the same time, with other numbers: what is there now counts.
        events = there.get(f"{prefix}{namespace}.events")
        if events is not None and events.partitions != count:
            count = check_partitions({namespace: events.partitions}, namespace, partitions, where) or count
            wanted = topics_of(prefix, namespace, count)
    for topic in wanted:
        _check(topic, there.get(topic.name))
    return count


def _made(admin: Admin, names: Sequence[str]) -> Mapping[str, TopicInfo]:
    """Look at topics that were just made, until all are there: a broker that was not asked to hears of it a moment later."""
    until_s = time.monotonic() + MADE_LIMIT_S
    while True:
        there = admin.describe(names, ASK_S)
        if len(there) == len(names) or time.monotonic() > until_s:
            return there
        time.sleep(MADE_POLL_S)


def _check(wanted: Wanted, found: TopicInfo | None) -> None:
    if found is None:
        raise LogError(
            f"topic {wanted.name} was made and is not there: look whether the cluster is well", topic=wanted.name
        )
    for one in differences(wanted, found):
        if one.setting is None:
            raise LogError(
                f"topic {wanted.name} has {one.found} partitions and must have {one.wanted}: the topics of a namespace have "
                f"as many as its events, for ever. Records would be looked for where they are not",
                topic=wanted.name,
            )
        if one.refused:
            raise LogError(
                f"topic {wanted.name} has {one.setting}={one.found} and must have {one.setting}={one.wanted}, or records "
                f"are lost. Set it: kafka-configs.sh --alter --topic {wanted.name} --add-config {one.setting}={one.wanted}",
                topic=wanted.name,
                setting=one.setting,
            )


@dataclass(frozen=True, slots=True)
class Difference:
    """What of a topic is otherwise than it is made. ``setting`` None: its partition count.

    ``refused``: opening the namespace refuses it, because records would be lost. The others are the administrator's.
    """

    topic: str
    setting: str | None
    wanted: str
    found: str | None
    refused: bool


def differences(wanted: Wanted, found: TopicInfo) -> list[Difference]:
    """Return in what a topic that is there differs from what it is made as."""
    found_otherwise = [
        Difference(wanted.name, name, value, found.config.get(name), name in wanted.checked)
        for name, value in wanted.policy.items()
        if found.config.get(name) != value
    ]
    if found.partitions != wanted.partitions:
        count = Difference(wanted.name, None, str(wanted.partitions), str(found.partitions), True)
        return [count, *found_otherwise]
    return found_otherwise
