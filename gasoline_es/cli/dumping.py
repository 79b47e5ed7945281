"""``log dump``: records as JSON Lines, one after the other as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gasoline_es.cli.failures import Failure, Misuse
from gasoline_es.cli.output import Output, fragment
from gasoline_es.cli.reading import Reading, namespaces, reading
from gasoline_es.cli.settings import Settings
from gasoline_es.core.durations import format_time
from gasoline_es.core.ids import check_workflow_id, partition_of
from gasoline_es.core.pruning import may_prune
from gasoline_es.core.topics import ANYONES_TOPICS, OWNERS_TOPICS
from gasoline_es.errors import HorizonMoved
from gasoline_es.log.port import Record


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records; all of what is given must match."""

    topic: str | None = None
    partition: int | None = None
    key: str | None = None
    workflow: str | None = None
    values: bool = False

    def match(self, record: Record) -> bool:
        """Tell whether a record is among those asked for."""
        if self.values and record.value is None:
            return False
        if self.key is not None and record.key != self.key:
            return False
        return self.workflow is None or record.key == self.workflow or record.key.startswith(f"{self.workflow}/")


def dump_log(settings: Settings, selection: Selection, output: Output) -> None:
    """Write the records.

    Raises: Failure at the end: damage was met, or the log was cleaned meanwhile, and what is written may lack something that
        it held when this began. Misuse, WorkflowNotFound before anything.
    """
    if selection.workflow is not None:
        check_workflow_id(selection.workflow)
    damage: Failure | None = None
    for namespace, topics in _topics(settings, selection).items():
        try:
            with reading(settings, namespace=namespace) as opened:
                for topic in topics:
                    for partition in _partitions(opened, selection):
                        try:
                            _dump(opened, topic, partition, selection, output)
                        except HorizonMoved as moved:
                            damage = damage or Failure(f"{moved.message}. All there is now was written")
        except Misuse:
            raise
        except Failure as failure:
            damage = damage or failure
    if damage is not None:
        raise damage


def _dump(opened: Reading, topic: str, partition: int, selection: Selection, output: Output) -> None:
    ours = selection.workflow is not None and topic == opened.events_topic
    end = opened.end(topic, partition) if ours else 0
    for record in _records(opened, topic, partition):
        if selection.match(record):
            _write(record, selection, output)
    if ours and any(may_prune(one.value) and selection.match(one) for one in opened.records(topic, partition, end)):
        raise Failure(
            f"workflow {selection.workflow} was pruned while it was read, and the log may have been cleaned: events may be "
            f"missing from what was written. Dump it again"
        )


def _topics(settings: Settings, selection: Selection) -> dict[str, list[str]]:
    """Return the topics to read, by namespace."""
    known = namespaces(settings)
    wanted = list(known) if settings.namespace is None else [settings.namespace]
    if selection.topic is None:
        return {name: [f"{name}.{topic}" for topic in (*OWNERS_TOPICS, *ANYONES_TOPICS)] for name in wanted}
    namespace, dot, _ = selection.topic.partition(".")
    if not dot:
        return {name: [f"{name}.{selection.topic}"] for name in wanted}
    # What stands before the dot reaches paths: it must be one of the log's own names (B23).
    if namespace not in known:
        raise Misuse(
            f"--topic {selection.topic!r} names no namespace of {settings.url}, which has "
            f"{', '.join(known) or 'none'}: write a topic as events, or as NAMESPACE.events"
        )
    if settings.namespace not in (None, namespace):
        raise Misuse(f"--topic {selection.topic!r} lies in another namespace than --namespace {settings.namespace}")
    return {namespace: [selection.topic]}


def _partitions(opened: Reading, selection: Selection) -> list[int]:
    count = opened.log.partition_count
    if selection.partition is not None and selection.partition >= count:
        raise Misuse(
            f"--partition {selection.partition} is not one of namespace {opened.log.namespace!r}: "
            f"it has {count}, from 0 to {count - 1}"
        )
    partitions = list(range(count)) if selection.partition is None else [selection.partition]
    if selection.workflow is not None:
        partitions = [p for p in partitions if p == partition_of(selection.workflow, count)]
    return partitions


def _records(opened: Reading, topic: str, partition: int) -> Iterator[Record]:
    """Yield a topic's records in their own order. A topic that is none of ours may be of either kind."""
    kind = topic.partition(".")[2]
    if kind in ANYONES_TOPICS:
        # Also what an owner wrote there in the partition of its own number, which has an offset that means nothing.
        yield from (replace(record, offset=None) for record in opened.sent(topic, partition))
        return
    yield from opened.records(topic, partition)
    if kind not in OWNERS_TOPICS:
        yield from (record for record in opened.sent(topic, partition) if record.offset is None)


def _write(record: Record, selection: Selection, output: Output) -> None:
    if selection.values:
        assert record.value is not None
        output.raw(record.value)
        return
    output.object(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "key": record.key,
            "time": format_time(record.time_us),
            "headers": dict(record.headers or {}),
            "value": fragment(record.value),
        }
    )
