"""The events of a namespace as they become durable, read from where it was read to: what is old costs nothing again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gasoline_es.core.codec import decode
from gasoline_es.core.events import Event
from gasoline_es.core.topics import Topics
from gasoline_es.log.port import Log

AT_ONCE: Final = 1_000
"""So many records of a partition are read before something else gets a turn."""


class LogTail:
    """Reads every partition forward. A plain reader: it owns nothing, and a writer does not notice it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._topic: Final = Topics(log.namespace).events
        self._read_to: Final = [0] * log.partition_count

    def poll(self) -> Iterator[list[Event]]:
        """Yield the events that became durable since, some at a time; those of a workflow in order. Raises: LogError.

        What is no event is passed over: ``gasoline log verify`` is for that.
        """
        for partition, start in enumerate(self._read_to):
            end = self._log.end(self._topic, partition)
            while start < end:
                stop = min(end, start + AT_ONCE)
                events: list[Event] = []
                for record in self._log.read(self._topic, partition, start, stop):
                    try:
                        if record.value is not None:
                            events.append(decode(record.value))
                    except ValueError:
                        continue
                self._read_to[partition] = start = stop
                yield events
