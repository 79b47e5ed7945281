"""The sequences of one application, on the event loop that its log belongs to (design §7)."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import Final

from gasoline_es.clock import SystemClock
from gasoline_es.core.ports import StoredView
from gasoline_es.core.stored_events import DECISIONS, Stored, decode_stored
from gasoline_es.core.storing import Query, Store
from gasoline_es.engine import node_on
from gasoline_es.errors import GasolineError, NoOwner, RecordTooLarge
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log
from gasoline_es.runtime.calls import LOOK_AT_OWNER_S, REPLY_TIMEOUT_S, Calls
from gasoline_es.runtime.node import Node

_PLAIN: Final = re.compile(r"[a-z0-9]{1,40}")
_READ_AT_ONCE: Final = 500
"""So many events are read before the event loop gets a turn."""


def namespace_of(application: str) -> str:
    """Return the namespace of an application's sequences: one of its own for every name, whatever is in it."""
    if not application:
        return "es"
    if _PLAIN.fullmatch(application) is not None:
        return f"es-{application}"
    spelled = re.sub("[^a-z0-9]+", "-", application.lower())[:40].strip("-")
    return f"es-{spelled}-{sha256(application.encode()).hexdigest()[:12]}"


class Journal:
    """Stores events, and reads them, in a namespace of one partition. All of it as of the call, whichever process wrote it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._calls = Calls(node)

    @property
    def failed(self) -> bool:
        """Whether nothing works here any more."""
        return self._node.failure is not None

    async def store(self, command: Store) -> int:
        """Return the number of the first event that was stored, once all are durable.

        Raises: StoreConflict, RecordTooLarge, LogError: nothing was stored. NoOwner: it is not known yet whether it will be.
        """
        try:
            reply = await self._calls.decide(command)
        except RecordTooLarge:
            # Too much for one request to another process, though perhaps not for the log: then it is decided here.
            await self._own()
            reply = await self._calls.decide(command)
        if reply.error is not None:
            raise reply.error
        assert reply.position is not None
        return reply.position

    async def end(self, sequence: str) -> int:
        """Return the number of the last event of a sequence, 0 if there is none."""
        return (await self._view()).end(sequence)

    async def tracked(self, application: str) -> int | None:
        """Return up to which notification an application's were processed, None if none was."""
        return (await self._view()).tracked(application)

    async def of_originator(
        self,
        sequence: str,
        originator: str,
        above: int | None,
        up_to: int | None,
        *,
        newest_first: bool,
        limit: int | None,
    ) -> list[Stored]:
        """Return an originator's events in order of version, with ``above < version <= up_to``."""
        view = await self._view()
        seqs = view.of_originator(sequence, originator, above, up_to, newest_first=newest_first, limit=limit)
        found = await self._read(view, sequence, sorted(seqs))
        if seqs == sorted(seqs):
            return found
        by_seq = {event.seq: event for event in found}
        return [by_seq[seq] for seq in seqs]

    async def of_kinds(
        self, sequence: str, kinds: Sequence[str], start: int, stop: int | None, limit: int
    ) -> list[Stored]:
        """Return at most ``limit`` events with ``start <= number < stop`` of these kinds, of all if none is named, in order."""
        view = await self._view()
        return await self._read(view, sequence, view.of_kinds(sequence, kinds, start, stop, limit))

    async def matching(self, query: Query, after: int, limit: int | None) -> tuple[list[Stored], int]:
        """Return decisions that match, in order, and the number of the last decision there is, whether it matches or not."""
        view = await self._view()
        seqs, end = view.matching(DECISIONS, query, after, limit), view.end(DECISIONS)
        return await self._read(view, DECISIONS, seqs), end

    async def on_stored(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on this loop whenever there may be more events, by whichever process, or never will be again."""
        self._node.on_stored(callback)

    async def _own(self) -> None:
        """Take the partition over from a process that lives. Raises: NoOwner: it does not let go."""
        node, changed = self._node, asyncio.Event()
        end = node.on_change(changed.set)
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                while await node.own(0) is None:
                    changed.clear()
                    await node.request_partition(0)
                    with suppress(TimeoutError):  # its owner may have died: nobody tells of that
                        await asyncio.wait_for(changed.wait(), LOOK_AT_OWNER_S)
        except TimeoutError:
            raise NoOwner(
                f"{node.log.url}: this is more than a request to another process may have, and the process that decides there "
                f"does not let go of it within {REPLY_TIMEOUT_S:g} s; nothing was stored",
                command_id="",
            ) from None
        finally:
            end()

    async def _view(self) -> StoredView:
        self._node.check()
        view = await self._node.stored(0)
        if view.unreadable is not None:
            raise GasolineError(f"{self._node.log.url}: {view.unreadable}")
        return view

    async def _read(self, view: StoredView, sequence: str, seqs: Sequence[int]) -> list[Stored]:
        if not seqs:
            return []
        node, found = self._node, list[Stored]()
        offsets, places = view.located(sequence, seqs)
        for start in range(0, len(seqs), _READ_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            part = slice(start, start + _READ_AT_ONCE)
            for record in node.log.read_at(node.topics.stored, 0, offsets[part], places[part]):
                assert record.value is not None
                found.append(decode_stored(record.value))
        return found


@asynccontextmanager
async def open_journal(url: str, namespace: str) -> AsyncGenerator[Journal]:
    """Open an application's sequences for as long as the block lasts. Raises on entering: as of ``Gasoline.open``."""
    async with journal_on(await open_log(url, namespace=namespace, partitions=1)) as journal:
        yield journal


@asynccontextmanager
async def journal_on(log: Log) -> AsyncGenerator[Journal]:
    """The same on a log that is open."""
    node = node_on(log, SystemClock())
    node.start()
    try:
        yield Journal(node)
    finally:
        await node.close()


def new_store_id() -> str:
    """Return the id of a command."""
    return str(uuid.uuid4())
