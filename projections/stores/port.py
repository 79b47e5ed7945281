"""The store port: what SQLite, memory and PostgreSQL promise to whoever folds events into tables (design §7).

A *store* holds the projections of one namespace of one log. A projection has *generations*, numbered from 1 and never twice;
one of them at most is *current*, which is the one that is read. A generation is a small database of its own: the projection's
tables, made by its ``setup``, and three of ours:

* ``gasoline_meta``: one row with ``projection, version, log_id, namespace, generation, state``;
* ``gasoline_positions``: ``topic, partition`` → ``offset, place, digest``, the last record that is in the tables;
* ``gasoline_stops``: ``topic, partition`` → ``offset, event, error, time_us``, an event that could not be applied.

What holds in every store:

* **Tables and positions change in one transaction** (:meth:`Generation.writing`). One at a time writes to a generation.
* **A position moves from where it stands**: :meth:`Write.move` names that, and is refused (``PositionMoved``) if it stands
  elsewhere. It never goes back. So processes may fold the same generation side by side, and each event counts once.
* **A generation that is not current any more takes no write** (``Superseded``), which is seen under its write lock.
* **A swap** (:meth:`Store.swap`) holds that lock of the old generation while the new one catches up with it, and lets go
  after the new one is current. So no position that was ever read goes back.
* **Readers** (:meth:`Store.snapshot`) see one generation as of one moment, the old or the new.
* A transaction that was committed may be lost with the machine's power, together with what it moved; it is never half there.

Whoever folds does, for a chunk of records of one topic and partition:

    generation = store.current(name)              # or build one: create, fold, swap
    before = generation.positions().get(feed, START)
    with generation.writing() as write:           # begins; commits at the end, rolls back if anything is raised
        …                                         # change tables with write.db
        write.move(feed, before, position_of(last_record))

``write.db`` is the store's own connection: a ``sqlite3.Connection`` or a ``psycopg.Connection``. It cannot be committed or
rolled back by whoever changes tables with it; savepoints are theirs.

Threads: a generation is used by one thread at a time. A store may be used by several.
"""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from gasoline_es.errors import GenerationDamaged, PositionMoved, ProjectionError, ProjectionNotBuilt, Superseded
from gasoline_es.log.port import Record

Db = TypeVar("Db")

State = Literal["building", "live", "superseded"]
"""``building``: being folded from the start. ``live``: current, or about to be. ``superseded``: another took its place."""

Setup: TypeAlias = Callable[[Db], None]
"""Makes a projection's tables, in the transaction that makes the generation."""

Reach = Callable[[str], None]
"""Told of points a store comes past (:data:`POINTS`), for tests that stop or kill it there."""

POINTS: Final = (
    "created",  # tables made, not committed
    "begun",  # the write lock is held, nothing is changed
    "moved",  # tables and position changed, not committed
    "stored",  # committed
    "swap locked",  # the old generation's write lock is held
    "swap caught up",  # the new one stands where the old one does, or further
    "swapped",  # the new one is current, the old one not yet marked
    "marked",  # the old one's lock is free
)

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*")
_NAME_CHARACTERS_MAX: Final = 40


class Forked(ProjectionError):
    """This process was forked from one that has the store open, and cannot use it."""


class Feed(NamedTuple):
    """One partition of one topic: what has an order, and a position."""

    topic: str
    partition: int


class Position(NamedTuple):
    """The last record of a feed that is in the tables.

    ``place`` is where the log says it lies, to find it fast. ``digest`` (:func:`digest_of`) is of its key and value: a log in
    which it is another one is another log, or has another past.
    """

    offset: int
    place: int
    digest: str

    @property
    def next_offset(self) -> int:
        """Where to read on."""
        return self.offset + 1


START: Final = Position(-1, 0, "")
"""Nothing is folded yet."""


class Stop(NamedTuple):
    """The event that a feed stands before, because it could not be applied. ``event``: what is known of it, for people."""

    offset: int
    event: str
    error: str
    time_us: int


class Failure(NamedTuple):
    """Why a projection could not be kept up when somebody last tried: its ``setup`` raised, or the store could not be used."""

    error: str
    time_us: int


def digest_of(record: Record) -> str:
    """Return the digest of a record, as positions have it."""
    return digest(record.key, record.value)


def digest(key: str, value: bytes | None) -> str:
    """Return the first 16 hex digits of the sha-256 of a record's key and value (a key has no NUL in it)."""
    return sha256(key.encode() + b"\0" + (b"" if value is None else value)).hexdigest()[:16]


def position_of(record: Record) -> Position:
    """Return the position of one who has folded up to this record, which must be of a single-writer topic."""
    assert record.offset is not None, "a many-writer topic has no offsets to stand at"
    return Position(record.offset, record.place, digest_of(record))


def check_name(name: str) -> str:
    """Return a projection's name. Raises: ProjectionError: it cannot be a file's and a schema's."""
    if _NAME.fullmatch(name) is None or len(name) > _NAME_CHARACTERS_MAX:
        raise ProjectionError(
            f"a projection's name is words of a-z and 0-9 joined by single '-' or '_', from a letter on, "
            f"{_NAME_CHARACTERS_MAX} characters at most, not {name!r}",
            projection=name,
        )
    return name


@dataclass(frozen=True, slots=True)
class Meta:
    """What a generation says of itself (``gasoline_meta``)."""

    projection: str
    version: int
    log_id: str
    namespace: str
    generation: int
    state: State


@dataclass(frozen=True, slots=True)
class GenerationInfo:
    """A generation as shown to people. ``size_bytes`` None: not known."""

    meta: Meta
    current: bool
    positions: Mapping[Feed, Position]
    stops: Mapping[Feed, Stop]
    size_bytes: int | None


class Write(ABC, Generic[Db]):
    """A transaction on a generation: it holds the write lock, and the generation is the current one or is being built."""

    db: Db

    @abstractmethod
    def positions(self) -> dict[Feed, Position]:
        """Return where each feed stands, within this transaction."""

    @abstractmethod
    def move(self, feed: Feed, before: Position, after: Position) -> None:
        """Move a feed's position from ``before`` (:data:`START`: it has none) to ``after``, which is further on.

        An event that it stood before (:meth:`stop`) is applied then, and no longer told of. Raises: PositionMoved: it stands
        elsewhere. Let that leave the ``with`` block.
        """

    @abstractmethod
    def stop(self, feed: Feed, stop: Stop) -> bool:
        """Say that a feed stands before this event, in place of what was said before; False: it is past it already."""


class Generation(ABC, Generic[Db]):
    """One generation, opened to be folded into. ``meta`` is as of the opening."""

    meta: Meta
    db: Db

    @abstractmethod
    def positions(self) -> dict[Feed, Position]:
        """Return where each feed stands now; one that was never moved is not there."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Mapping[Feed, Position]]:
        """Read in this block as of one moment: tables, and positions, which it gives. Nothing is written in it."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Write[Db]]:
        """Begin a transaction; commit it at the block's end, roll it back if anything is raised.

        Waits for the write lock. Raises: Superseded: another generation is current. ProjectionError: the store failed, or
        the lock was not to be had in time.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of it. Idempotent."""

    def __repr__(self) -> str:
        return f"<generation {self.meta.generation} of projection {self.meta.projection!r}>"


class Snapshot(ABC, Generic[Db]):
    """A generation as of one moment, to read. ``db`` writes nothing. A context manager."""

    meta: Meta
    db: Db
    positions: Mapping[Feed, Position]
    """Where the tables stand, as of the same moment."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it. Idempotent."""

    def __enter__(self) -> Snapshot[Db]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a projection. ``key``: the columns of its primary key, of its ``columns``; none if it has none."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


Row: TypeAlias = tuple[Any, ...]


CatchUp = Callable[[Mapping[Feed, Position]], None]
"""Folds a new generation on until each feed stands at least there."""


class Store(ABC, Generic[Db]):
    """The projections of one namespace of one log, in one kind of database.

    ``private``: it lies with the log, so that nothing else can be in it; what is there of another log is old.
    """

    kind: str
    url: str
    log_id: str
    namespace: str
    private: bool

    def _failed(self, name: str, why: str) -> ProjectionError:
        return ProjectionError(
            f"projection {name!r} in {self.url} cannot be used: {why}", projection=name, store=self.url
        )

    def _damaged(self, name: str, why: str) -> GenerationDamaged:
        return GenerationDamaged(
            f"projection {name!r} in {self.url} cannot be used: {why}", projection=name, store=self.url
        )

    def _too_fast(self, name: str) -> ProjectionError:
        return self._failed(name, "its generations replace each other faster than one can be opened")

    def _not_built(self, name: str) -> ProjectionNotBuilt:
        return ProjectionNotBuilt(
            f"projection {name!r} in {self.url} cannot be read yet: it was never built, or is being built anew. "
            f"A worker with it, or `gasoline projections run`, builds it",
            projection=name,
            store=self.url,
        )

    @abstractmethod
    def current(self, name: str, *, readonly: bool = False) -> Generation[Db] | None:
        """Open the current generation; None if there is none. Whether the log knows its positions is the caller's to ask.

        ``readonly``: to read it for long; as of one moment in :meth:`Generation.reading`, and else as of each statement.

        Raises: GenerationDamaged: nobody can use it: :meth:`discard` it. ProjectionError: it cannot be opened by this process,
            or not now.
        """

    @abstractmethod
    def again(self, meta: Meta) -> Generation[Db]:
        """Open a generation once more, for another thread or process. Raises: Superseded: it is gone."""

    @abstractmethod
    def create(self, name: str, version: int, setup: Setup[Db]) -> Generation[Db]:
        """Make the next generation, with its tables, to be built. It is whole or not there; not current before a :meth:`swap`.

        Raises: whatever ``setup`` raises; ProjectionError.
        """

    @abstractmethod
    def unfinished(self, name: str, version: int) -> Generation[Db] | None:
        """Open the newest generation if it is of this version and log, and still being built: one whose builder died.

        Call it with the :meth:`building` lock.
        """

    @abstractmethod
    def abandon(self, new: Generation[Db]) -> None:
        """Close a generation of :meth:`create` and remove it, unless it is current. Call it with the :meth:`building` lock."""

    @abstractmethod
    def swap(self, new: Generation[Db], catch_up: CatchUp) -> None:
        """Make a generation of :meth:`create` the current one, as told at the top; ``catch_up`` gets the old one's positions.

        Whatever dies wherever in it: either the old or the new one is current, and what is not takes no write. Old ones
        are removed. Raises: Superseded: a newer one is current. What ``catch_up`` raises; then the old one stays.
        """

    @abstractmethod
    def discard(self, name: str) -> None:
        """Make no generation the current one: what there is cannot be relied on. Its writers get ``Superseded``."""

    @abstractmethod
    def building(self, name: str, *, wait: bool = True) -> AbstractContextManager[bool]:
        """Hold the lock of whoever builds a generation of this projection; False: somebody else has it (without ``wait``).

        The lock is free once its holder's process is dead.
        """

    @abstractmethod
    def snapshot(self, name: str) -> Snapshot[Db]:
        """Open the current generation to read it as of now.

        Raises: ProjectionNotBuilt: there is none, or it was given up. GenerationDamaged. ProjectionError: it cannot be opened.
        """

    @abstractmethod
    def scratch(self, name: str, version: int, setup: Setup[Db]) -> Generation[Db]:
        """Make a generation that nobody else sees and that is gone when it is closed, for a fold to compare with."""

    @abstractmethod
    def tables(self, db: Db) -> list[Table]:
        """Return the projection's own tables in a generation or snapshot, by name."""

    @abstractmethod
    def rows(self, db: Db, table: Table) -> Iterator[Row]:
        """Yield a table's rows in order of its key, or of all its columns if it has none."""

    @abstractmethod
    def has_key(self, db: Db, table: Table, key: Row) -> bool:
        """Whether a table has a row with this key."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the projections there are, sorted."""

    @abstractmethod
    def generations(self, name: str) -> list[GenerationInfo]:
        """Return what there is of a projection, oldest first."""

    @abstractmethod
    def failure(self, name: str) -> Failure | None:
        """Return why a projection could not be kept up, until somebody has gone on with it."""

    @abstractmethod
    def tell_failure(self, name: str, failure: Failure | None) -> None:
        """Keep why a projection cannot be kept up, for whoever looks, in place of what was kept; None: it goes on."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a projection: what is current and all its other generations. Call it with the :meth:`building` lock.

        Whoever folds it gets ``Superseded``. A number is not used again by those who still know of it. Raises: ProjectionError.
        """

    @abstractmethod
    def remove_begun(self, name: str) -> None:
        """Remove the generations above the current one. Call it with the :meth:`building` lock: nobody builds them."""

    @abstractmethod
    def remove_old(self, name: str) -> None:
        """Remove what is below the current generation. Whoever has one open goes on with it until they close it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Idempotent."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())


def is_damage(error: BaseException) -> bool:
    """Whether an error says that what is stored can be relied on by nobody.

    Others concern this process, or this moment: a file of another user, a full disk, a lock, a partition being taken over.
    """
    if isinstance(error, sqlite3.Error):  # one that SQLite did not make has no name
        return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
    return isinstance(error, GenerationDamaged)


def store_failed(url: str, projection: str, error: Exception) -> str:
    """Return in one line what a database says of the store itself. ``projection``: "" if it is of none."""
    of = f" of projection {projection!r}" if projection else ""
    return f"the store{of} in {url} failed: {' '.join(str(error).split())}"


def superseded(meta: Meta, store: str, why: str) -> Superseded:
    """Return the refusal of a write to a generation that is not current."""
    return Superseded(
        f"generation {meta.generation} of projection {meta.projection!r} in {store} takes no write any more: {why}. "
        f"Nothing of this write counts; open the current generation",
        projection=meta.projection,
        generation=meta.generation,
    )


def moved_elsewhere(meta: Meta, feed: Feed, before: Position, stored: Position) -> PositionMoved:
    """Return the refusal of a move from where the position is not."""
    return PositionMoved(
        f"projection {meta.projection!r}, generation {meta.generation}, is at offset {stored.offset} of topic {feed.topic!r}, "
        f"partition {feed.partition}, and not at {before.offset}: somebody else folded it on. Nothing of this write counts; "
        f"go on from there",
        projection=meta.projection,
        generation=meta.generation,
        topic=feed.topic,
        partition=feed.partition,
        stored=stored.offset,
        expected=before.offset,
    )


def still_behind(new: Mapping[Feed, Position], old: Mapping[Feed, Position]) -> Feed | None:
    """Return a feed in which a new generation is behind the old one. A topic that it does not fold at all is none."""
    topics = {feed.topic for feed in new}
    for feed, position in old.items():
        if feed.topic in topics and new.get(feed, START).offset < position.offset:
            return feed
    return None


def nothing(point: str) -> None:
    """Reach nothing: what a store does outside of tests."""


AnyStore: TypeAlias = Store[Any]
AnyGeneration: TypeAlias = Generation[Any]
