"""The names of a namespace's topics and of the keys in them (design §5)."""

from __future__ import annotations

import re
import zlib
from typing import Final

from gasoline_es.core.ids import SLOTS

OWNERS_TOPICS: Final = ("events", "index", "registry", "schedules", "parked", "stored")
"""What a partition's owner writes."""
ANYONES_TOPICS: Final = ("inbox", "replies", "messages")
"""What anyone writes."""
WORKERS: Final = "workers"
"""Who works on a namespace, on a log that has no other place for that (:mod:`gasoline_es.log.kafka.who`)."""
_RESERVED: Final = re.compile(rf"[a-z0-9-]{{1,64}}\.({'|'.join((*OWNERS_TOPICS, *ANYONES_TOPICS, WORKERS))})")
TOPIC_CHARACTERS_MAX: Final = 249
_TOPIC: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_CHARACTERS_MAX}}}")


def is_topic_name(topic: str) -> bool:
    """Whether a topic may be called so, which is Kafka's rule and holds on every log for topics that are not ours."""
    return _TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def is_reserved(topic: str) -> bool:
    """Whether it is called as a topic of a namespace is, of any one: whatever stands there is read as ours."""
    return _RESERVED.fullmatch(topic) is not None


class Topics:
    """``<namespace>.events`` and its siblings."""

    __slots__ = (*OWNERS_TOPICS, *ANYONES_TOPICS)

    def __init__(self, namespace: str) -> None:
        self.events = f"{namespace}.events"
        self.inbox = f"{namespace}.inbox"
        self.index = f"{namespace}.index"
        self.messages = f"{namespace}.messages"
        self.parked = f"{namespace}.parked"
        self.registry = f"{namespace}.registry"
        self.replies = f"{namespace}.replies"
        self.schedules = f"{namespace}.schedules"
        self.stored = f"{namespace}.stored"

    def position_key(self, partition: int) -> str:
        """The registry key under which an owner stores how far it has read its inbox."""
        return f"inbox/{partition}"

    def suspects_key(self, partition: int) -> str:
        """The registry key under which an owner notes, as it leaves, that activities may have taken a process down."""
        return f"suspects/{partition}"

    def cleared_key(self, partition: int) -> str:
        """The registry key under which an owner stores up to where it has taken back what prunings gave up, key by key."""
        return f"cleared/{partition}"

    def source_key(self, pipeline: str, topic: str, partition: int) -> str:
        """The registry key under which an owner stores how far a pipeline has read a partition of a foreign topic."""
        return f"ingest/{pipeline}/{topic}/{partition}"

    def source_slot(self, pipeline: str, topic: str, partition: int) -> int:
        """The routing slot whose partition's owner reads a partition of a foreign topic: the same one for ever."""
        return zlib.crc32(self.source_key(pipeline, topic, partition).encode()) % SLOTS

    def reply_partition(self, client: str, partition_count: int) -> int:
        """The partition of the replies topic that a client reads."""
        return zlib.crc32(client.encode()) % partition_count

    def message_partition(self, name: str, partition_count: int) -> int:
        """The partition of the messages topic that all messages of a name are in: who subscribes to it reads no other."""
        return zlib.crc32(name.encode()) % partition_count


def holds_events(topic: str) -> bool:
    """Whether it is the topic of workflows' events, of whatever namespace; not one of others that is called alike."""
    return topic.endswith(".events") and is_reserved(topic)
