"""What any other program sees of a log: read by confluent-kafka alone, with nothing of this library."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import confluent_kafka as _confluent

confluent: Any = _confluent


@dataclass(frozen=True, slots=True)
class Event:
    """A record of an events topic. ``epoch``: of who wrote it."""

    workflow_id: str
    seq: int
    epoch: int
    worker: str
    type: str
    data: Any


def read_messages(bootstrap: str, topic: str, timeout_s: float = 60.0) -> list[list[Any]]:
    """Return the records of each partition, in order of their offsets, as a committed reader sees them now."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "somebody-else",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        count = len(consumer.list_topics(topic, timeout_s).topics[topic].partitions)
        found: list[list[Any]] = [[] for _ in range(count)]
        starts = [confluent.TopicPartition(topic, partition, confluent.OFFSET_BEGINNING) for partition in range(count)]
        consumer.assign(starts)
        ended: set[int] = set()
        while len(ended) < count:
            message = consumer.poll(timeout_s)
            assert message is not None, "the broker does not answer"
            if message.error() is not None:
                assert message.error().code() == confluent.KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
            else:
                found[message.partition()].append(message)
        return found
    finally:
        consumer.close()


def read_events(bootstrap: str, topic: str) -> list[list[Event]]:
    """Return the events of each partition, in order of their offsets."""
    return [[_event(message) for message in messages] for messages in read_messages(bootstrap, topic)]


def _event(message: Any) -> Event:
    told = json.loads(message.value())
    assert message.key().decode() == f"{told['subject']}/{told['seq']}"
    return Event(told["subject"], told["seq"], told["epoch"], told["worker"], told["type"], told["data"])


def check_events(partitions: list[list[Event]]) -> None:
    """Fail unless every workflow has each of its events once, in order, and no former owner's comes after a later one's."""
    for events in partitions:
        seqs: dict[str, list[int]] = defaultdict(list)
        for event in events:
            seqs[event.workflow_id].append(event.seq)
        for workflow_id, of in seqs.items():
            assert of == list(range(1, len(of) + 1)), workflow_id
        epochs = [event.epoch for event in events]
        assert epochs == sorted(epochs)
        writers = {(event.epoch, event.worker) for event in events}
        assert len(writers) == len({epoch for epoch, _ in writers}), "an epoch is of one worker"
