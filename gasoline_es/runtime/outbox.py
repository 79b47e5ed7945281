"""What a process sends to inboxes that it does not own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gasoline_es.errors import LogError
from gasoline_es.log.port import Appended, NewRecord, Outcome, Section
from gasoline_es.runtime.appender import Appending
from gasoline_es.runtime.batch import Batch


class Outbox:
    """Commands of this process to inboxes it does not own: sections without an epoch."""

    def __init__(self, appender: Appending, posted: Callable[[set[int]], None]) -> None:
        self._appender = appender
        self._posted = posted
        self._open: list[tuple[NewRecord, asyncio.Future[None]]] = []
        self._taken: list[tuple[NewRecord, asyncio.Future[None]]] = []

    async def send(self, record: NewRecord) -> None:
        """Append the record; it is durable on return. Raises: LogError: it is not."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.append((record, future))
        self._appender.ask(self)
        await future

    def take(self) -> tuple[Section, Batch] | None:
        if not self._open:
            return None
        self._taken, self._open = self._open, []
        records = [record for record, _ in self._taken]
        return Section(records[0].partition, None, records), Batch()

    def settled(self, batch: Batch, outcome: Outcome) -> None:
        taken, self._taken = self._taken, []
        for _, future in taken:
            if future.done():
                continue
            if isinstance(outcome, Appended):
                future.set_result(None)
            else:
                future.set_exception(outcome)
        if isinstance(outcome, Appended):
            self._posted({record.partition for record, _ in taken})

    def fail(self, error: LogError) -> None:
        """Nothing will be sent any more."""
        for _, future in (*self._open, *self._taken):
            if not future.done():
                future.set_exception(error)
        self._open.clear()
        self._taken.clear()
