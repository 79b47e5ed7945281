"""Records of the port as records of Kafka, and back.

An event is a CloudEvent in structured mode: the record's value is the whole of it, as in a file log. Three headers say so
and let anybody filter without reading values: ``content-type``, ``ce_type``, ``ce_subject``. They are no headers of the
port's record. Kafka keeps times to the millisecond.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Final

from gasoline_es.core.topics import holds_events, is_reserved, is_topic_name
from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import BrokerError, Feed, In, Out, Reader
from gasoline_es.log.port import NewRecord, Offset, Record, check_size, check_value

STRUCTURED: Final = b"application/cloudevents+json"
_OF_EVENTS: Final = ("content-type", "ce_type", "ce_subject")
"""The headers of events, which are none of the port's record."""
_TYPE: Final = re.compile(rb'"type":"(gasoline\.[a-z_.]+v[0-9]+)"')
_OVERHEAD: Final = 100


def check_topic(topic: str) -> None:
    """Raises: LogError: Kafka has no topic of such a name."""
    if not is_topic_name(topic):
        raise LogError(
            f"{topic!r} cannot be the name of a Kafka topic: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'", topic=topic
        )


def in_cluster(topic: str, prefix: str) -> str:
    """Return what the cluster calls a topic: the prefix is for the namespaces' own."""
    return prefix + topic if is_reserved(topic) else topic


def from_cluster(topic: str, prefix: str) -> str:
    """Return what the port calls a topic of the cluster."""
    own = topic.removeprefix(prefix)
    return own if is_reserved(own) else topic


def to_kafka(new: NewRecord, prefix: str) -> Out:
    """Render a record. ``prefix``: of the topics' names in the cluster. Raises: RecordTooLarge; LogError; ValueError."""
    topic = in_cluster(new.topic, prefix)
    check_topic(topic)
    value = None if new.value == b"null" else new.value
    check_value(new.topic, new.key, value or b"")
    headers = [(name, text.encode()) for name, text in new.headers.items()] if new.headers else []
    key = new.key.encode()
    if value is not None and holds_events(new.topic):
        kind = _TYPE.search(value)
        if kind is not None:
            headers += zip(_OF_EVENTS, (STRUCTURED, kind[1], key.partition(b"/")[0]), strict=True)
    size = len(key) + len(value or b"") + sum(len(name) + len(text) for name, text in headers) + _OVERHEAD
    check_size(new.topic, new.partition, new.key, size)
    return Out(Feed(topic, new.partition), key, value, headers, max(new.time_us // 1000, 0))


def from_kafka(read: In, prefix: str, *, owned: bool) -> Record:
    """Read a record. ``owned``: it is of a single-writer topic, so its offset is told."""
    topic = from_cluster(read.feed.topic, prefix)
    headers: Mapping[str, str] | None = None
    if read.headers:
        told = {name: (text or b"").decode(errors="replace") for name, text in read.headers}
        if holds_events(topic):
            for name in _OF_EVENTS:
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


def read_through(reader: Reader, feed: Feed, start: int, limit_s: float) -> Iterator[In]:
    """Yield what a feed has from an offset on, up to where it ends as of the call. The reader reads nothing else.

    Raises: BrokerError: that was not to be had within the limit.
    """
    end = reader.ends([feed], limit_s)[feed]
    reader.assign({feed: start})
    until_s = time.monotonic() + limit_s
    while reader.position(feed) < end:
        for read in reader.poll(1_000, 0.1):
            if read.offset < end:
                yield read
        if time.monotonic() > until_s:
            raise BrokerError(
                f"topic {feed.topic!r}, partition {feed.partition}: the broker did not answer in {limit_s:g} s"
            )


def now_ms() -> int:
    """Return the time, as records of Kafka have it."""
    return time.time_ns() // 1_000_000
