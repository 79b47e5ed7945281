"""What tests of the cleaner share: logs with something to remove, and what is left of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from gasoline_es.core.retention import Retention
from gasoline_es.log.file.log import open_file_log
from gasoline_es.log.port import Compaction, Epoch, Log, NewRecord, Position, Problem, Record
from gasoline_es.testing.log_contract import EVENTS, put

INDEX = "default.index"
REGISTRY = "default.registry"
REPLIES = "default.replies"
HOUR_US = 3600 * 10**6
NOW_US = 1_000_000 * HOUR_US


def rules(now_us: int = NOW_US, *, tombstones_s: float = 24 * 3600.0) -> Retention:
    return Retention(now_us, tombstones_s=tombstones_s)


def keyed(key: str, number: int, partition: int = 0, *, topic: str = INDEX, time_us: int = 0) -> NewRecord:
    """A record of a topic that keeps the newest of each key."""
    return NewRecord(topic, partition, key, b'{"number":%d,"pad":"%b"}' % (number, b"x" * 60), time_us)


def tombstone(key: str, partition: int = 0, *, topic: str = INDEX, time_us: int = 0) -> NewRecord:
    return NewRecord(topic, partition, key, None, time_us)


def happened(workflow_id: str, seq: int, partition: int = 0, *, time_us: int = 0) -> NewRecord:
    """An event of a workflow."""
    return NewRecord(EVENTS, partition, f"{workflow_id}/{seq}", b'{"seq":%d,"pad":"%b"}' % (seq, b"y" * 80), time_us)


def pruned(workflow_id: str, seq: int, keeps: list[int], partition: int = 0, *, time_us: int = 0) -> NewRecord:
    """The event that a workflow was pruned."""
    value = {"type": "gasoline.workflow.pruned.v1", "subject": workflow_id, "seq": seq, "data": {"keeps": keeps}}
    return NewRecord(EVENTS, partition, f"{workflow_id}/{seq}", json.dumps(value).encode(), time_us)


def consumed(position: Position, partition: int = 0) -> NewRecord:
    """What an owner records of how far it has consumed its inbox."""
    return NewRecord(REGISTRY, partition, f"inbox/{partition}", json.dumps(position).encode(), 0)


async def life(directory: Path | str, *sections: list[NewRecord], partition: int = 0, **options: object) -> None:
    """Open the log, take a partition, append each of the sections, close."""
    log = await open_file_log(str(directory), **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    epoch = (await log.acquire(partition)).epoch
    for section in sections:
        await put(log, epoch, *section, partition=partition)
    await log.close()


async def clean(directory: Path | str, how: Retention | None = None, **options: object) -> Compaction:
    """Clean the log, as somebody who has just opened it."""
    log = await open_file_log(str(directory))
    try:
        return await log.compact(how or rules(), **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    finally:
        await log.close()


def newest(records: Iterator[Record] | list[Record]) -> dict[str, bytes]:
    """Fold records to the newest value of each key, as whoever reads them does."""
    state: dict[str, bytes] = {}
    for record in records:
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def problems(log: Log) -> list[Problem]:
    return [found for found in log.verify() if isinstance(found, Problem)]


def offsets(records: Iterator[Record]) -> list[int]:
    return [record.offset for record in records if record.offset is not None]


async def taken(log: Log, partition: int = 0) -> Epoch:
    return (await log.acquire(partition)).epoch
