"""A log opened to be looked at: read-only, without a lock, and past damage as far as it can be read.

Damage does not end a command: it is noted, what else can be read is shown, and the command fails at its end, naming the
places. Nothing of the engine is loaded: the log, the codec of events and the folds are all it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from gasoline_es.cli.failures import Failure, Misuse
from gasoline_es.cli.settings import Settings
from gasoline_es.core.codec import decode
from gasoline_es.core.events import Event
from gasoline_es.core.topics import Topics
from gasoline_es.errors import GenerationDamaged, LogCorrupt, LogError
from gasoline_es.log.file.disk import Disk
from gasoline_es.log.file.manifest import read_manifest
from gasoline_es.log.names import check_namespace
from gasoline_es.log.opening import directory_of, open_log
from gasoline_es.log.port import Log, Record

if TYPE_CHECKING:
    from gasoline_es.cli.stored import Stored

DEFAULT_NAMESPACE: Final = "default"

T = TypeVar("T")


class Reading:
    """A namespace of a log, open for reading. ``damages`` collects what was met, once each."""

    def __init__(self, log: Log, damages: list[str], refresh: Callable[[str, int], None]) -> None:
        self.log: Final = log
        self._refresh: Final = refresh
        self.damages: Final = damages
        self.topics: Final = Topics(log.namespace)
        self.events_topic: Final = self.topics.events
        self._stored: Stored | None = None

    @property
    def stored(self) -> Stored:
        """The stored views as of now, when they are first asked for."""
        if self._stored is None:
            from gasoline_es.cli.stored import open_stored  # SQLite is loaded where it is needed

            self._stored = open_stored(self.log)
        return self._stored

    def looked_up(self, look: Callable[[Stored], T]) -> T:
        """Return what is made of the stored views; if they turn out damaged, of none: then the log is folded from its start."""
        try:
            return look(self.stored)
        except GenerationDamaged:
            from gasoline_es.cli.stored import Stored

            self.close()
            self._stored = Stored(self.log, None)
            return look(self._stored)

    def close(self) -> None:
        """Let go of the stored views."""
        if self._stored is not None:
            self._stored.close()

    def note(self, damage: str) -> None:
        """Take note of something that could not be read."""
        if damage not in self.damages:
            self.damages.append(damage)

    def records(self, topic: str, partition: int, start: int = 0) -> Iterator[Record]:
        """Yield the records of a single-writer topic's partition, in order of offset, up to damage if there is any."""
        try:
            self._refresh(topic, partition)
            yield from self.log.read(topic, partition, start)
        except LogCorrupt as error:
            self.note(error.message)

    def end(self, topic: str, partition: int) -> int:
        """Return the offset behind the last record of a single-writer topic's partition, as of now."""
        self._refresh(topic, partition)
        return self.log.end(topic, partition)

    def sent(self, topic: str, partition: int) -> Iterator[Record]:
        """Yield the records of a many-writer topic's partition published by now, up to damage if there is any."""
        try:
            tail = self.log.tail(topic, partition)
            self._refresh(topic, partition)
            while records := tail.poll():
                yield from records
        except LogCorrupt as error:
            self.note(error.message)

    def decode(self, record: Record) -> Event | None:
        """Return a record of the events topic as an event; None, noted, if it is none."""
        try:
            return None if record.value is None else decode(record.value)
        except ValueError as error:
            self.note(f"topic {record.topic}, partition {record.partition}, offset {record.offset}: {error}")
            return None


@contextmanager
def reading(settings: Settings, *, namespace: str | None = None, final: bool = False) -> Generator[Reading]:
    """Open a namespace of the log, ``settings``' own unless given; at the end, fail if damage was met.

    ``final``: what is read counts for ever, also where somebody takes a partition over just then.

    Raises: Failure: there is no such log or namespace, or it is damaged. Misuse: no log, or what cannot be one.
    """
    wanted = namespace or settings.namespace or DEFAULT_NAMESPACE
    require_namespace(settings, wanted)
    damages: list[str] = []
    # One event loop for all of it; between the two coroutines everything is plain blocking calls, which Ctrl-C ends.
    with asyncio.Runner() as runner:
        try:
            log = runner.run(open_log(settings.url, namespace=wanted, readonly=True, final=final))
        except LogError as error:
            if not on_kafka(settings.url):  # of a log on disk it was made sure before
                raise
            raise Failure(error.message) from error
        opened = Reading(log, damages, lambda topic, partition: runner.run(log.refresh((topic, partition))))
        try:
            yield opened
        finally:
            opened.close()
            runner.run(log.close())
    if damages:
        more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
        raise Failure(f"{damages[0]}{more}. What could be read was shown; `gasoline log verify` names every place")


def require_namespace(settings: Settings, wanted: str) -> None:
    """Check that the log has this namespace.

    Raises: Failure: there is no such log or namespace. Misuse: no log, or what cannot be one.
    """
    known = namespaces(settings)
    if on_kafka(settings.url):
        if wanted not in known and settings.namespace is not None:
            raise Misuse(f"{settings.url} names its namespace, so --namespace {wanted} is one too many")
        return  # whether it is there shows when it is opened
    if wanted not in known:
        _check_namespace(wanted)
        there = f"it has {', '.join(known)}" if known else "it has none"
        raise Failure(f"there is no namespace {wanted!r} in {settings.url}: {there}; give one as --namespace NAME")


def check_place(settings: Settings, namespace: str) -> None:
    """Check that a log could be at that place, with that namespace. Raises: Misuse."""
    if on_kafka(settings.url):
        namespaces(settings)
    else:
        _directory(settings.url)
    _check_namespace(namespace)


def namespaces(settings: Settings) -> dict[str, int]:
    """Return the log's namespaces: name → number of partitions. Of a Kafka log only the one that its URL or the settings name.

    Raises: Failure: there is no log at that place. Misuse: the URL is not one of a log that can be looked at.
    """
    if on_kafka(settings.url):
        from gasoline_es.log.kafka.settings import Address

        try:
            address = Address.of(settings.url)
        except LogError as refused:
            raise Misuse(refused.message) from refused
        return {address.namespace or settings.namespace or DEFAULT_NAMESPACE: 0}
    directory = _directory(settings.url)
    try:
        manifest = read_manifest(directory, Disk())
    except ValueError as error:  # a NUL, a lone surrogate
        raise Misuse(f"{settings.url!r} cannot be a log: {error}") from error
    if manifest is None:
        raise Failure(f"there is no log in {directory} (no manifest.json): give the directory as file:DIRECTORY")
    return dict(sorted(manifest.namespaces.items()))


def on_kafka(url: str) -> bool:
    """Whether a log is in a cluster, and not on this disk."""
    return url.startswith("kafka:")


def _check_namespace(name: str) -> None:
    try:
        check_namespace(name)
    except LogError as error:
        raise Misuse(error.message) from error


def _directory(url: str) -> str:
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        raise Misuse(f"{url} lives inside the process that opened it: only a log on disk can be looked at from outside")
    if scheme != "file" or not rest:
        raise Misuse(
            f"{url!r} is not the URL of a log: write file:DIRECTORY, as in --log file:./data, or kafka://HOST:9092/NAMESPACE"
        )
    try:
        return directory_of(url)
    except LogError as refused:
        raise Misuse(refused.message) from refused
