"""Projections in SQLite files: ``<directory>/<name>.<generation>.sqlite``, and a symlink ``<name>.sqlite`` to the current one.

SQLite resolves the symlink, so the write-ahead log lies beside the file it is of. What is current is what the symlink says,
and nothing else: it is looked at with the write lock held. It is replaced by renaming another over it, while the swap holds
the write lock of the file it pointed to; so between looking and committing it cannot change. Numbers are never used twice: the
file with the highest one stays until there is a higher one.

A removed file lives on for those who have it open (Linux). A reader who finds it gone asks the symlink again.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from portalocker.constants import LockFlags
from portalocker.exceptions import LockException
from portalocker.portalocker import FlockLocker

from gasoline_es.errors import GenerationDamaged, ProjectionError
from projections.stores.port import (
    CatchUp,
    Failure,
    Feed,
    Generation,
    GenerationInfo,
    Meta,
    Position,
    Reach,
    Row,
    Setup,
    Snapshot,
    Store,
    Table,
    check_name,
    is_damage,
    nothing,
    still_behind,
    superseded,
)
from projections.stores.sqlite_connection import StoreConnection, connect, mark, projection_of
from projections.stores.sqlite_generation import (
    SqliteGeneration,
    has_key,
    make_tables,
    read_meta,
    read_positions,
    read_rows,
    read_stops,
    read_tables,
    set_state,
    translated,
)

_FILE: Final = re.compile(r"(?P<name>[a-z0-9_-]+)\.(?P<number>[1-9][0-9]*)\.sqlite")
_FAILED: Final = re.compile(r"(?P<name>[a-z0-9_-]+)\.failed")
_BESIDE: Final = ("", "-wal", "-shm")
_TRIES: Final = 100


class SqliteStore(Store[sqlite3.Connection]):
    """See :class:`~projections.stores.port.Store`. ``private``: the directory is the log's."""

    kind = "sqlite"

    def __init__(
        self,
        directory: str,
        *,
        log_id: str,
        namespace: str,
        private: bool = True,
        reach: Reach = nothing,
        synced: bool = True,
    ) -> None:
        self.url = f"sqlite:{directory}"
        self.log_id = log_id
        self.namespace = namespace
        self.private = private
        self._directory: Final = os.path.abspath(directory)
        self._reach: Final = reach
        self._synchronous: Final = f"PRAGMA synchronous = {'NORMAL' if synced else 'OFF'}"

    # --- files --------------------------------------------------------------------------------------------------------

    def _path(self, name: str, number: int) -> str:
        return f"{self._directory}/{name}.{number}.sqlite"

    def _link(self, name: str) -> str:
        return f"{self._directory}/{check_name(name)}.sqlite"

    def _linked(self, name: str) -> int | None:
        """Return the number of the current generation."""
        try:
            target = _FILE.fullmatch(os.readlink(self._link(name)))
        except FileNotFoundError:
            return None
        except OSError as error:
            failed = self._damaged if error.errno == errno.EINVAL else self._failed  # EINVAL: it is no symlink
            raise failed(name, f"{self._link(name)} is not the symlink it should be: {error}") from error
        if target is None or target["name"] != name:
            raise self._damaged(name, f"{self._link(name)} does not point to a generation of it")
        return int(target["number"])

    def _numbers(self, name: str) -> list[int]:
        """Return the generations there are files of."""
        found = (_FILE.fullmatch(entry) for entry in self._entries())
        return sorted(int(match["number"]) for match in found if match is not None and match["name"] == name)

    def _entries(self) -> list[str]:
        try:
            return os.listdir(self._directory)
        except FileNotFoundError:
            return []

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _relink(self, name: str, number: int) -> None:
        """Make a generation the current one, durably."""
        beside = f"{self._link(name)}.{number}.tmp"
        with suppress(FileNotFoundError):  # of one that died here
            os.unlink(beside)
        os.symlink(os.path.basename(self._path(name, number)), beside)
        os.rename(beside, self._link(name))
        self._sync_directory()

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self, name: str, number: int, *, mode: str = "rw") -> tuple[StoreConnection, Meta] | None:
        """Open a file; None: it is gone, or nothing was ever committed in it.

        Raises: GenerationDamaged. ProjectionError: this process cannot open it, or not now.
        """
        path = self._path(name, number)
        db: StoreConnection | None = None
        try:
            db = connect(path, mode=mode)
            if mode == "rw":
                db.execute(self._synchronous)
            meta = read_meta(db)
            if meta is not None and (meta.projection, meta.generation) != (name, number):
                raise self._damaged(name, f"{path} is generation {meta.generation} of {meta.projection!r}")
            if meta is not None:
                db.projection = name
                return db, meta
        except (sqlite3.Error, TypeError) as error:  # TypeError: no row in our own table
            if os.path.exists(path):
                if db is not None:
                    db.close()
                damaged = isinstance(error, TypeError) or is_damage(error)
                raise (self._damaged if damaged else self._failed)(name, f"{path}: {error}") from error
        except BaseException:
            if db is not None:
                db.close()
            raise
        if db is not None:
            db.close()
        return None

    def _open_linked(self, name: str, *, mode: str = "rw") -> tuple[StoreConnection, Meta] | None:
        """Open the current generation. A swap may take it away in between: then there is another."""
        for _ in range(_TRIES):
            number = self._linked(name)
            if number is None:
                return None
            opened = self._open(name, number, mode=mode)
            if opened is not None:
                return opened
            if self._linked(name) == number:
                raise self._damaged(name, f"{self._path(name, number)} is missing or empty")
        raise self._too_fast(name)

    def _generation(self, db: StoreConnection, meta: Meta) -> SqliteGeneration:
        name, number = meta.projection, meta.generation
        return SqliteGeneration(db, meta, self.url, lambda: self._linked(name) == number, self._reach)

    def current(self, name: str, *, readonly: bool = False) -> Generation[sqlite3.Connection] | None:
        """Open the current generation (see the port)."""
        opened = self._open_linked(name, mode="ro" if readonly else "rw")
        if opened is None:
            return None
        db, meta = opened
        if meta.state == "superseded" and self._linked(name) == meta.generation:
            db.close()
            raise self._damaged(name, f"generation {meta.generation} was given up")
        return self._generation(db, meta)

    def again(self, meta: Meta) -> Generation[sqlite3.Connection]:
        """Open a generation once more (see the port)."""
        opened = self._open(meta.projection, meta.generation)
        if opened is None:
            raise superseded(meta, self.url, "it was removed")
        return self._generation(*opened)

    # --- building -----------------------------------------------------------------------------------------------------

    def create(self, name: str, version: int, setup: Setup[sqlite3.Connection]) -> Generation[sqlite3.Connection]:
        """Make the next generation (see the port)."""
        check_name(name)
        os.makedirs(self._directory, exist_ok=True)
        numbers = self._numbers(name)
        newest = numbers[-1] if numbers else 0
        # What was begun and never committed is nobody's, and its number was never seen: setup raised, or its process died.
        number = newest if newest and self._is_empty(name, newest) else newest + 1
        path = self._path(name, number)
        meta = Meta(name, version, self.log_id, self.namespace, number, "building")
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        os.close(fd)
        with translated(self.url, name):
            db = connect(path, mode="rw")
        try:
            with translated(self.url, name):
                db.execute("PRAGMA journal_mode = WAL")
                db.execute(self._synchronous)
            make_tables(db, meta, setup, self.url, self._reach)
        except BaseException:
            db.close()
            raise
        return self._generation(db, meta)

    def _is_empty(self, name: str, number: int) -> bool:
        try:
            opened = self._open(name, number)
        except ProjectionError:
            return False
        if opened is None:
            return True
        opened[0].close()
        return False

    def unfinished(self, name: str, version: int) -> Generation[sqlite3.Connection] | None:
        """Open the newest generation if it is still being built (see the port)."""
        numbers, linked = self._numbers(check_name(name)), self._linked(name)
        if not numbers or numbers[-1] <= (linked or 0):
            return None
        try:
            opened = self._open(name, numbers[-1])
        except GenerationDamaged:  # nobody needs it
            return None
        if opened is None:
            return None
        db, meta = opened
        if meta.state == "superseded" or (meta.version, meta.log_id, meta.namespace) != (
            version,
            self.log_id,
            self.namespace,
        ):
            db.close()
            return None
        if meta.state == "live":  # its builder died just before the rename
            try:
                with translated(self.url, name):
                    set_state(db, "building")
            except BaseException:
                db.close()
                raise
        return self._generation(db, meta)

    @contextmanager
    def building(self, name: str, *, wait: bool = True) -> Generator[bool]:
        """Hold the lock of whoever builds (see the port): a kernel lock on ``<name>.lock``."""
        with self._locked(name, "lock", wait=wait) as held:
            yield held

    @contextmanager
    def _locked(self, name: str, what: Literal["lock", "swap"], *, wait: bool = True) -> Generator[bool]:
        """Hold a kernel lock, which is free once the process is dead. ``swap``: of whoever changes what is current."""
        check_name(name)
        os.makedirs(self._directory, exist_ok=True)
        fd = os.open(f"{self._directory}/{name}.{what}", os.O_CREAT | os.O_RDWR, 0o666)
        try:
            flags = LockFlags.EXCLUSIVE if wait else LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING
            try:
                FlockLocker().lock(fd, flags)
            except (LockException, BlockingIOError):
                if wait:
                    raise
                yield False
                return
            yield True
        finally:
            os.close(fd)

    def abandon(self, new: Generation[sqlite3.Connection]) -> None:
        """Remove a generation that was not built (see the port)."""
        name, number = new.meta.projection, new.meta.generation
        new.close()
        if self._linked_or_broken(name) != number:
            self._remove(name, number)

    def swap(self, new: Generation[sqlite3.Connection], catch_up: CatchUp) -> None:
        """Make a generation the current one (see the port)."""
        assert isinstance(new, SqliteGeneration)
        name = new.meta.projection
        with translated(self.url, name):
            new.db.execute("PRAGMA wal_checkpoint(PASSIVE)")  # most of it, before anybody has to wait
        with self._locked(name, "swap"):
            linked = self._linked_or_broken(name)
            if linked == new.meta.generation:
                return
            if linked is not None and linked > new.meta.generation:
                raise superseded(new.meta, self.url, f"generation {linked} is the current one")
            with self._old_locked(name, linked) as old:
                self._take_place(new, old, catch_up)
            self._reach("marked")
        self.remove_old(name)

    @contextmanager
    def _old_locked(self, name: str, number: int | None) -> Generator[StoreConnection | None]:
        """Hold the write lock of the generation that is to be replaced. None: there is none, or nobody can write there."""
        db: StoreConnection | None = None
        try:
            with suppress(GenerationDamaged):
                opened = self._open(name, number) if number else None
                if opened is not None:
                    db = opened[0]
                    with translated(self.url, name), db.ours():
                        db.execute("BEGIN IMMEDIATE" + mark())
            yield db
        finally:
            if db is not None:
                with suppress(sqlite3.Error):
                    db.undo()
                db.close()

    def _take_place(self, new: SqliteGeneration, old: StoreConnection | None, catch_up: CatchUp) -> None:
        name = new.meta.projection
        self._reach("swap locked")
        stood: dict[Feed, Position] = {}
        with suppress(GenerationDamaged), translated(self.url, name):  # what is damaged stands nowhere
            stood = self._positions_of_log(old)
        catch_up(stood)
        behind = still_behind(new.positions(), stood)
        if behind is not None:
            raise self._failed(name, f"generation {new.meta.generation} is behind the current one at {behind}")
        self._reach("swap caught up")
        with translated(self.url, name):
            set_state(new.guarded, "live")
            new.db.execute("PRAGMA wal_checkpoint(PASSIVE)")  # synced before anything points to it
        self._relink(name, new.meta.generation)
        self._reach("swapped")
        self._supersede(name, old)

    def _supersede(self, name: str, old: StoreConnection | None) -> None:
        """Mark what is current no more. What says so is the symlink: a mark that cannot be made does no harm."""
        if old is not None and old.in_transaction:
            with suppress(GenerationDamaged), translated(self.url, name), old.ours():
                set_state(old, "superseded")
                old.execute("COMMIT" + mark())

    def _positions_of_log(self, old: StoreConnection | None) -> dict[Feed, Position]:
        """Return where the old generation stands; a generation of another log stands nowhere in this one."""
        if old is None:
            return {}
        meta = read_meta(old)
        return read_positions(old) if meta is not None and meta.log_id == self.log_id else {}

    def discard(self, name: str) -> None:
        """Make no generation the current one (see the port)."""
        linked = self._linked_or_broken(name)
        if linked is None:
            return
        with self._locked(name, "swap"), self._old_locked(name, linked) as old:
            if self._linked_or_broken(name) != linked:
                return  # somebody else has discarded or replaced it
            os.unlink(self._link(name))
            self._sync_directory()
            self._supersede(name, old)

    def _linked_or_broken(self, name: str) -> int | None:
        """As :meth:`_linked`; 0: what is there is no symlink to a generation."""
        try:
            return self._linked(name)
        except GenerationDamaged:
            return 0

    # --- reading ------------------------------------------------------------------------------------------------------

    def snapshot(self, name: str) -> Snapshot[sqlite3.Connection]:
        """Open the current generation to read it (see the port)."""
        for _ in range(_TRIES):
            opened = self._open_linked(name, mode="ro")
            if opened is None:
                raise self._not_built(name)
            with translated(self.url, name):
                snapshot = SqliteSnapshot(opened[0])
            # Opened just as it was removed, it may lack what only its write-ahead log had.
            if self._linked(name) == snapshot.meta.generation:
                if snapshot.meta.state != "superseded":
                    return snapshot
                snapshot.close()
                raise self._not_built(name)  # it was given up
            snapshot.close()
        raise self._too_fast(name)

    def scratch(self, name: str, version: int, setup: Setup[sqlite3.Connection]) -> Generation[sqlite3.Connection]:
        """Make a generation that nobody else sees: a file without a name, in the temporary directory."""
        meta = Meta(check_name(name), version, self.log_id, self.namespace, 0, "building")
        with tempfile.TemporaryDirectory(prefix="gasoline-") as directory:
            path = f"{directory}/{name}.sqlite"
            Path(path).touch()
            with translated(self.url, name):
                db = connect(path, mode="rw")
            try:
                with translated(self.url, name):
                    db.execute("PRAGMA journal_mode = MEMORY")  # it has no name to lay a journal beside
                    db.execute("PRAGMA synchronous = OFF")
                make_tables(db, meta, setup, self.url)
            except BaseException:
                db.close()
                raise
        return SqliteGeneration(db, meta, self.url, lambda: True)

    def tables(self, db: sqlite3.Connection) -> list[Table]:
        with translated(self.url, projection_of(db)):
            return read_tables(db)

    def rows(self, db: sqlite3.Connection, table: Table) -> Iterator[Row]:
        with translated(self.url, projection_of(db)):
            yield from read_rows(db, table)

    def has_key(self, db: sqlite3.Connection, table: Table, key: Row) -> bool:
        with translated(self.url, projection_of(db)):
            return has_key(db, table, key)

    def names(self) -> list[str]:
        found = (_FILE.fullmatch(entry) for entry in self._entries())
        failed = (match["name"] for match in map(_FAILED.fullmatch, self._entries()) if match is not None)
        return sorted({*failed, *(match["name"] for match in found if match is not None)})

    def generations(self, name: str) -> list[GenerationInfo]:
        found: list[GenerationInfo] = []
        linked = self._linked_or_broken(check_name(name))
        for number in self._numbers(name):
            opened = self._open(name, number, mode="ro")
            if opened is None:
                continue
            db, meta = opened
            try:
                with translated(self.url, name):
                    positions, stops = read_positions(db), read_stops(db)
            finally:
                db.close()
            found.append(GenerationInfo(meta, number == linked, positions, stops, self._size(name, number)))
        return found

    def _size(self, name: str, number: int) -> int | None:
        size = 0
        for beside in _BESIDE[:2]:
            with suppress(OSError):
                size += os.stat(self._path(name, number) + beside).st_size
        return size

    def _failed_path(self, name: str) -> str:
        return f"{self._directory}/{check_name(name)}.failed"

    def failure(self, name: str) -> Failure | None:
        """Return why a projection could not be kept up (see the port)."""
        try:
            kept = json.loads(Path(self._failed_path(name)).read_text(encoding="utf-8"))
            return Failure(str(kept["error"]), int(kept["time_us"]))
        except (OSError, ValueError, KeyError, TypeError):  # it is for people: what cannot be read is nothing to tell
            return None

    def tell_failure(self, name: str, failure: Failure | None) -> None:
        """Keep why a projection cannot be kept up (see the port): in a file that is replaced whole."""
        path = self._failed_path(name)
        if failure is None:
            with suppress(FileNotFoundError):
                os.unlink(path)
            return
        os.makedirs(self._directory, exist_ok=True)
        beside = f"{path}.{os.getpid()}.tmp"
        Path(beside).write_text(json.dumps(failure._asdict()), encoding="utf-8", errors="backslashreplace")
        os.rename(beside, path)

    def remove(self, name: str) -> None:
        """Remove a projection (see the port). Who has a file open finds it marked, and it is never another's."""
        self.discard(name)
        for number in self._numbers(name):
            with suppress(GenerationDamaged), self._old_locked(name, number) as old:
                self._supersede(name, old)
            self._remove(name, number)
        self.tell_failure(name, None)

    def remove_begun(self, name: str) -> None:
        """Remove what is above the current generation (see the port)."""
        linked = self._linked(name)
        for number in self._numbers(name):
            if linked is not None and number > linked:
                self._remove(name, number)

    def remove_old(self, name: str) -> None:
        """Remove what is below the current generation (see the port)."""
        linked = self._linked(name)
        if linked is None:
            return
        for number in self._numbers(name):
            if number < linked:
                self._remove(name, number)

    def _remove(self, name: str, number: int) -> None:
        for beside in _BESIDE:
            with suppress(FileNotFoundError):
                os.unlink(self._path(name, number) + beside)

    def close(self) -> None:
        """Hold nothing."""


class SqliteSnapshot(Snapshot[sqlite3.Connection]):
    """See :class:`~projections.stores.port.Snapshot`. Takes the connection over."""

    def __init__(self, db: StoreConnection) -> None:
        self.db = db
        try:
            with db.ours():
                db.execute("PRAGMA query_only = ON")
                db.execute("BEGIN" + mark())
            meta = read_meta(db)
            assert meta is not None, "it was there when the file was opened"
            self.meta = meta
            self.positions = read_positions(db)
        except BaseException:
            db.close()
            raise

    def close(self) -> None:
        self.db.close()
