"""Whether a namespace goes on in this log, or has moved to another: what its registry says (0040)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gasoline_es.core.moving import KEY, Mark
from gasoline_es.core.topics import Topics
from gasoline_es.errors import LogCorrupt, LogMoved
from gasoline_es.log.port import Log, Record

_AT_ONCE: Final = 16


def newest_first(log: Log, partition: int, stop: int) -> Iterator[Record]:
    """Yield the records of a partition's registry below an offset, backwards: what is looked for is among the last."""
    topic = Topics(log.namespace).registry
    while stop > 0:
        start = max(0, stop - _AT_ONCE)
        yield from reversed(list(log.read(topic, partition, start, stop)))
        stop = start


def mark_in(log: Log, partition: int, record: Record) -> Mark | None:
    """Return the mark that a record of the registry is; None: it is none. Raises: LogCorrupt: it cannot be read."""
    if record.key != KEY or record.value is None:
        return None
    try:
        return Mark.read(record.value)
    except ValueError as error:
        raise LogCorrupt(
            f"{log.url}: partition {partition} of namespace {log.namespace!r} says at offset {record.offset} of its registry "
            f"that it was copied, and that cannot be read: {error}",
            position=record.offset,
            reason=str(error),
        ) from error


def newest_mark(log: Log, partition: int, stop: int) -> Mark | None:
    """Return what the registry says last about a move, below an offset; None: nothing. Raises: LogCorrupt."""
    for record in newest_first(log, partition, stop):
        if (mark := mark_in(log, partition, record)) is not None:
            return mark
    return None


def refuse_closed(log: Log, mark: Mark | None) -> None:
    """Raises: LogMoved: nobody may work here."""
    if mark is not None and mark.closed:
        raise LogMoved(
            mark.refusal(log.url, log.namespace), url=log.url, namespace=log.namespace, other=mark.url, state=mark.state
        )


async def check_not_moved(log: Log) -> None:
    """Raises: LogMoved: the namespace goes on elsewhere, or is not whole here.

    The first partition tells for all: of a log that is left it is the first to say so, of one that arrives the last.
    """
    refuse_closed(log, await _newest_that_counts(log))


async def check_not_moving(log: Log) -> None:
    """Raises: LogMoved: the namespace is being copied, from here or to here: each record is compared, so none may go."""
    mark = await _newest_that_counts(log)
    if mark is not None and mark.state in ("leaving", "arriving"):
        refuse_closed(log, mark)


async def _newest_that_counts(log: Log) -> Mark | None:
    topic = Topics(log.namespace).registry
    await log.refresh((topic, 0))
    stop = log.end(topic, 0)
    for record in newest_first(log, 0, stop):
        if (mark := mark_in(log, 0, record)) is not None:
            return mark
        if record.key == Topics(log.namespace).position_key(0):
            return None  # somebody has worked here since, who had looked
    return None
