"""The sequences of one application, on the event loop that its log belongs to (design §7)."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from itertools import count, pairwise
from typing import Final, NamedTuple, TypeVar

from gasoline_es.clock import SystemClock
from gasoline_es.core.commands import Reply
from gasoline_es.core.ports import StoredView
from gasoline_es.core.stored_events import Numbered, decode_some
from gasoline_es.core.storing import Store
from gasoline_es.engine import node_on
from gasoline_es.errors import Fenced, GasolineError, LogError, NoOwner, RecordTooLarge
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log
from gasoline_es.persistence.together import BYTES_AT_ONCE, Result, StoredTogether
from gasoline_es.runtime.calls import LOOK_AT_OWNER_S, REPLY_TIMEOUT_S, Calls, asked_again
from gasoline_es.runtime.lending import Not, NotNow
from gasoline_es.runtime.node import Node

T = TypeVar("T")

_PLAIN: Final = re.compile(r"[a-z0-9]{1,40}")
_READ_AT_ONCE: Final = 500
"""So many events are read before the event loop gets a turn; more, where one record holds them."""
_RUN_MIN: Final = 8
"""So many records that lie one after the other are read in one go, and fewer each from its place."""


def namespace_of(application: str) -> str:
    """Return the namespace of an application's sequences: one of its own for every name, whatever is in it."""
    if not application:
        return "es"
    if _PLAIN.fullmatch(application) is not None:
        return f"es-{application}"
    spelled = re.sub("[^a-z0-9]+", "-", application.lower())[:40].strip("-")
    return f"es-{spelled}-{sha256(application.encode()).hexdigest()[:12]}"


class Selection(NamedTuple):
    """The numbers of the events that are wanted, in the order in which they are, and of the last event there is."""

    sequence: str
    seqs: Sequence[int]
    end: int = 0


class Selected(NamedTuple):
    """The events, and the number of the last event there is, wanted or not."""

    events: list[Numbered]
    end: int


Part = tuple[list[int], list[int], list[list[int]]]
"""Records: their offsets, their places, and the numbers of the events that are wanted of each."""


class Journal:
    """Stores events, and reads them, in a namespace of one partition. All of it as of the call, whichever process wrote it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._calls = Calls(node)
        self.new_store_id: Final = StoreIds()
        self.together: Final = StoredTogether()

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
        return _position(reply)

    def store_now(self, commands: Sequence[Store]) -> Sequence[Result]:
        """The same of each before this returns, in one append, in the event loop's place. Raises nothing."""
        if sum(command.size for command in commands) > BYTES_AT_ONCE:
            return commands
        try:
            replies = self._calls.decide_now(commands)
        except Fenced as fenced:
            return asked_again(commands, fenced)
        except GasolineError as error:
            return [error] * len(commands)
        return commands if replies is None else [reply.error or _position(reply) for reply in replies]

    async def look(self, question: Callable[[StoredView], T]) -> T:
        """Return what the view answers."""
        return question(await self._view())

    def look_now(self, question: Callable[[StoredView], T]) -> T | NotNow:
        """The same before this returns, in the event loop's place. ``Not.NOW``: another process may know more."""
        view = self._view_now()
        return Not.NOW if view is None else question(view)

    async def select(self, question: Callable[[StoredView], Selection]) -> Selected:
        """Return the events that the view answers with."""
        view = await self._view()
        selection = question(view)
        events, parts = list[Numbered](), self._parts(view, selection)
        for number, part in enumerate(parts):
            if number:
                await asyncio.sleep(0)
            events += self._read(*part)
        return _in_order(events, selection)

    def select_now(self, question: Callable[[StoredView], Selection]) -> Selected | NotNow:
        """The same before this returns, in the event loop's place. ``Not.NOW``: as of :meth:`look_now`, or there are many."""
        view = self._view_now()
        if view is None:
            return Not.NOW
        selection = question(view)
        parts = self._parts(view, selection)
        if len(parts) > 1:
            return Not.NOW
        return _in_order([event for part in parts for event in self._read(*part)], selection)

    async def on_news(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on this loop whenever there may be more events, by whichever process, or never will be again.

        Returns what ends it, to be called on this loop.
        """
        return self._node.on_stored(callback)

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
        return self._readable(await self._node.viewing.stored(0))

    def _view_now(self) -> StoredView | None:
        view = self._node.viewing.stored_now(0)
        return None if view is None else self._readable(view)

    def _readable(self, view: StoredView) -> StoredView:
        if view.unreadable is not None:
            raise GasolineError(f"{self._node.log.url}: {view.unreadable}")
        return view

    def _parts(self, view: StoredView, selection: Selection) -> list[Part]:
        """Return where the events lie, in parts that do not keep the event loop for long."""
        if not selection.seqs:
            return []
        offsets, places, held = view.located(selection.sequence, sorted(selection.seqs))
        parts, start, count = list[Part](), 0, 0
        for at, wanted in enumerate(held):
            if count and count + len(wanted) > _READ_AT_ONCE:
                parts.append((offsets[start:at], places[start:at], held[start:at]))
                start, count = at, 0
            count += len(wanted)
        parts.append((offsets[start:], places[start:], held[start:]))
        return parts

    def _read(self, offsets: list[int], places: list[int], held: list[list[int]]) -> list[Numbered]:
        found: list[Numbered] = []
        log, topic = self._node.log, self._node.topics.stored
        if len(offsets) >= _RUN_MIN and offsets[-1] - offsets[0] == len(offsets) - 1:
            records = list(log.read(topic, 0, offsets[0], offsets[-1] + 1))
        else:
            records = log.read_at(topic, 0, offsets, places)
        for record, wanted in zip(records, held, strict=True):
            assert record.value is not None
            found += decode_some(record.value, wanted)
        return found


def _position(reply: Reply) -> int:
    """Return where it was stored. Raises: why it was not."""
    if reply.error is not None:
        raise reply.error
    assert reply.position is not None
    return reply.position


def _in_order(events: list[Numbered], selection: Selection) -> Selected:
    seqs = selection.seqs
    if len(seqs) > 1 and any(after < before for before, after in pairwise(seqs)):
        by_seq = {event.seq: event for event in events}
        events = [by_seq[seq] for seq in seqs]
    return Selected(events, selection.end)


@asynccontextmanager
async def open_journal(url: str, namespace: str) -> AsyncGenerator[Journal]:
    """Open an application's sequences for as long as the block lasts. Raises on entering: as of ``Gasoline.open``."""
    try:
        log = await open_log(url, namespace=namespace, partitions=1)
    except LogError as error:
        if "wanted" not in error.fields:
            raise
        # Whoever uses the package has wanted no number of partitions: what is told of one helps nobody.
        raise LogError(
            f"namespace {namespace!r} in {url} was made with {error.fields['partitions']} partitions, and an application's "
            f"has one. Nothing that it recorded is there: remove the namespace's topics from the cluster, and make them with "
            f"--partitions 1 or let the application do it; in files, take another directory",
            **error.fields,
        ) from error
    async with journal_on(log) as journal:
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


class StoreIds:
    """Ids of commands: UUIDs that are random in all but what counts them. One of these is no use in a forked child."""

    def __init__(self) -> None:
        # The last twelve digits count; the version among the others says that they are random.
        self._random = str(uuid.uuid4())[:24]
        self._count = count(1)

    def __call__(self) -> str:
        """Return one that nobody else has, nor any other of these. From any thread."""
        return f"{self._random}{next(self._count):012x}"
