"""Records on a log, for tests that fold them."""

from __future__ import annotations

from collections.abc import Sequence

from gasoline_es.log.port import Appended, Log, NewRecord, Record, Section

TOPIC = "default.events"


async def append(log: Log, partition: int, *values: str, topic: str = TOPIC) -> None:
    """Append one record for each value, as the partition's owner, in one section."""
    ownership = await log.acquire(partition)
    records = [NewRecord(topic, partition, f"k{at}", f'"{value}"'.encode(), 1) for at, value in enumerate(values)]
    (outcome,) = await log.append([Section(partition, ownership.epoch, records)])
    assert isinstance(outcome, Appended), outcome


def records(*values: str, start: int = 0, partition: int = 0) -> Sequence[Record]:
    """Return records as read, with offsets from ``start`` on."""
    return [
        Record(TOPIC, partition, offset, f"k{offset}", f'"{value}"'.encode(), 1, None, offset + 100)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        for offset, value in enumerate(values, start=start)
    ]
