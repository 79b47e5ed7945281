"""Records of the port as records of Kafka, and back.

An event is a CloudEvent in structured mode: the record's value is the whole of it, as in a file log. Three headers say so
and let anybody filter without reading values: ``content-type``, ``ce_type``, ``ce_subject``. They are no headers of the
port's record. Kafka keeps times to the millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gasoline_es.core.topics import holds_events
from gasoline_es.errors import LogError, RecordTooLarge
from gasoline_es.log.kafka.drivers.port import Feed, In, Out
from gasoline_es.log.port import RECORD_BYTES_MAX, NewRecord, Offset, Record

_CLOUD_EVENT: Final = (b"application/cloudevents+json", "content-type", "ce_type", "ce_subject")
_TYPE: Final = re.compile(rb'"type":"(gasoline\.[a-z_.]+v[0-9]+)"')
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OVERHEAD: Final = 100


def check_topic(topic: str) -> None:
    """Raises: LogError: Kafka has no topic of such a name."""
    if _TOPIC.fullmatch(topic) is None or topic in (".", ".."):
        raise LogError(
            f"{topic!r} cannot be the name of a Kafka topic: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'", topic=topic
        )


def to_kafka(new: NewRecord, prefix: str) -> Out:
    """Render a record. ``prefix``: of the topics' names in the cluster. Raises: RecordTooLarge; LogError; ValueError."""
    topic = prefix + new.topic
    check_topic(topic)
    value = None if new.value == b"null" else new.value
    if value is not None and b"\n" in value:
        raise ValueError(f"the value of record {new.key!r} for topic {new.topic!r} has a line feed")
    headers = [(name, text.encode()) for name, text in new.headers.items()] if new.headers else []
    key = new.key.encode()
    if value is not None and holds_events(new.topic):
        kind = _TYPE.search(value)
        if kind is not None:
            headers += [("content-type", _CLOUD_EVENT[0]), ("ce_type", kind[1]), ("ce_subject", key.partition(b"/")[0])]
    size = len(key) + len(value or b"") + sum(len(name) + len(text) for name, text in headers) + _OVERHEAD
    if size > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record for topic {new.topic!r}, key {new.key!r}, takes about {size} bytes; "
            f"the limit is {RECORD_BYTES_MAX}: keep large values elsewhere and record where",
            topic=new.topic,
            partition=new.partition,
            key=new.key,
            bytes=size,
        )
    return Out(Feed(topic, new.partition), key, value, headers, max(new.time_us // 1000, 0))


def from_kafka(read: In, prefix: str, *, owned: bool) -> Record:
    """Read a record. ``owned``: it is of a single-writer topic, so its offset is told."""
    topic = read.feed.topic.removeprefix(prefix)
    headers: Mapping[str, str] | None = None
    if read.headers:
        told = {name: text.decode(errors="replace") for name, text in read.headers}
        if holds_events(topic):
            for name in _CLOUD_EVENT[1:]:
                told.pop(name, None)
        headers = told or None
    return Record(
        topic,
        read.feed.partition,
        Offset(read.offset) if owned else None,
        (read.key or b"").decode(errors="replace"),
        read.value,
        read.time_ms * 1000,
        headers,
    )
