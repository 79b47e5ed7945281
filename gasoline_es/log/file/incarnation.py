"""Incarnations: who opened the log for writing, whether it still lives, and whether it still moves.

``workers/<incarnation>`` is held by a POSIX record lock for as long as the handle is open. The kernel drops that lock with
the process, however it ends, and does not pass it to forked children. Its price is a trap: a process that closes *any*
descriptor of the file drops its own lock. So a process never opens the file of an incarnation of its own; those are
looked up in a registry in memory (filelog.md §4.6).

The file's bytes, rewritten in place every second and never synced: one JSON object that says who it is, what it tells about
itself, and a beat count.
An observer compares the bytes it saw with the bytes it sees, and times the difference by its own monotonic clock.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from portalocker.constants import LockFlags
from portalocker.exceptions import LockException
from portalocker.portalocker import LockfLocker

from gasoline_es.errors import LogError
from gasoline_es.log.file.disk import Disk

_NAME: Final = re.compile(r"[0-9a-z][0-9a-z-]{0,63}")
_BYTES: Final = 768
_LOCK: Final = LockfLocker()


@dataclass(slots=True)
class _Own:
    """An incarnation of this very process. ``content`` stands in for the heartbeat file, which must not be opened here."""

    alive: bool = True
    content: bytes = b""


@dataclass(slots=True)
class _Process:
    """``forks``: how many forks lie between the process that imported this and this one."""

    forks: int = 0


_own: dict[str, _Own] = {}
_process = _Process()


def _forget_parent() -> None:
    """A forked child holds none of its parent's locks: the parent's incarnations are strangers to it."""
    _own.clear()
    _process.forks += 1


os.register_at_fork(after_in_child=_forget_parent)


def valid_incarnation(name: object) -> bool:
    """Return whether a name read from a file may be used in a path."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class Incarnation:
    """One opening of the log for writing: its name, its lock and its heartbeat. Created locked, or not at all."""

    def __init__(self, directory: str, namespace: str, disk: Disk) -> None:
        self.name: Final = f"{time.time_ns() // 1_000_000:x}-{os.getpid():x}-{secrets.token_hex(6)}"
        self.host: Final = socket.gethostname()
        self.pid: Final = os.getpid()
        self.name_path: Final = f"{directory}/workers/{self.name}.name"
        """A synced file that says who this is; linked as an epoch to take a partition."""
        self._path: Final = f"{directory}/workers/{self.name}"
        self._namespace: Final = namespace
        self._disk: Final = disk
        self._about: Mapping[str, Any] | None = None
        self._beats = 0
        self._beating: Final = threading.Lock()
        self._forks: Final = _process.forks
        self._state: Final = _Own()
        # The lock comes before the name: nobody can find the file and take its owner for dead.
        nameless = f"{self._path}.tmp"
        self._fd = disk.create(nameless)
        try:
            _LOCK.lock(self._fd, LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING)
            _own[self.name] = self._state
            self.beat()
            disk.rename(nameless, self._path)
            self._write_name()
        except BaseException:
            self._state.alive = False
            os.close(self._fd)
            raise

    def _write_name(self) -> None:
        who = {"incarnation": self.name, "host": self.host, "pid": self.pid, "opened": time.time_ns() // 1000}
        fd = self._disk.create(self.name_path)
        try:
            self._disk.write(fd, json.dumps(who).encode() + b"\n", 0)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    @property
    def alive(self) -> bool:
        """Return whether the lock is still held by this process."""
        return self._state.alive

    def require_same_process(self) -> None:
        """Raises: LogError in a forked child: it holds neither the lock nor the loop, and must open the log itself."""
        if self._forks != _process.forks:
            raise LogError("this log was opened before a fork; the child process must open it itself", pid=os.getpid())

    def beat(self) -> None:
        """Show that the process moves."""
        with self._beating:  # the heart has a thread of its own
            self._beats += 1
            who: dict[str, Any] = {
                "incarnation": self.name,
                "host": self.host[:64],
                "pid": self.pid,
                "beat": self._beats,
                "namespace": self._namespace,
            }
            if self._about is not None:
                who["about"] = self._about
            self._state.content = json.dumps(who).encode().ljust(_BYTES - 1) + b"\n"
            os.pwrite(self._fd, self._state.content, 0)

    def tell(self, about: Mapping[str, Any] | None) -> None:
        """Tell the others something about this process, at once. Raises: OSError: they may not see it before a beat."""
        self._about = about
        self.beat()

    def drop(self) -> None:
        """Let go of the lock, as the end of the process would."""
        if self._state.alive and self._forks == _process.forks:
            self._state.alive = False
            os.close(self._fd)

    def retire(self) -> None:
        """Let go of the lock and remove the files: what the epochs say about it stays."""
        if self._state.alive and self._forks == _process.forks:
            self._disk.unlink(self.name_path)
            self._disk.unlink(self._path)
            self.drop()


class Observer:
    """Tells living, silent and dead incarnations apart."""

    def __init__(self, directory: str, clock: Callable[[], float], silent_after_s: float) -> None:
        self._workers: Final = f"{directory}/workers"
        self._clock: Final = clock
        self._silent_after_s: Final = silent_after_s
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._dead: set[str] = set()

    def alive(self, name: str) -> bool:
        """Return whether the incarnation's lock is held. Once False it stays False: names are never used again."""
        if name in self._dead:
            return False
        content = self._probe(name)
        if content is None:
            self._dead.add(name)
            self._seen.pop(name, None)
            return False
        seen = self._seen.get(name)
        if seen is None or seen[0] != content:
            self._seen[name] = (content, self._clock())
        return True

    def silent(self, name: str) -> bool:
        """Return whether a living incarnation showed no new heartbeat for as long as this observer has to wait."""
        if not self.alive(name):
            return False
        return self._clock() - self._seen[name][1] >= self._silent_after_s

    def known_dead(self, name: str) -> bool:
        """Return whether the incarnation was already found dead, without looking again."""
        return name in self._dead

    def told(self, namespace: str, disk: Disk) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the incarnations that live, move, and told something on the namespace: the name and the file's content."""
        try:
            names = disk.names(self._workers)
        except FileNotFoundError:
            return  # nobody ever wrote here
        for name in names:
            if not valid_incarnation(name) or self.silent(name) or name in self._dead:
                continue
            try:
                who = json.loads(self._seen[name][0])
            except ValueError:
                continue  # read in the middle of a beat: at the next look
            if who.get("namespace") == namespace and "about" in who:
                yield name, who

    def living(self, namespace: str, disk: Disk) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the incarnations that live on the namespace, also those that do not move: the name and the file's content.

        One whose file is read in the middle of a beat is yielded, whatever its namespace is.
        """
        try:
            names = disk.names(self._workers)
        except FileNotFoundError:
            return  # nobody ever wrote here
        for name in names:
            if not valid_incarnation(name) or not self.alive(name):
                continue
            try:
                who = json.loads(self._seen[name][0])
            except ValueError:
                who = {"host": "", "pid": 0}
            if who.get("namespace", namespace) == namespace:
                yield name, who

    def _probe(self, name: str) -> bytes | None:
        own = _own.get(name)
        if own is not None:
            return own.content if own.alive else None
        if not valid_incarnation(name):
            return None
        try:
            fd = os.open(f"{self._workers}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            # Shared: two observers must not take each other for the owner.
            _LOCK.lock(fd, LockFlags.SHARED | LockFlags.NON_BLOCKING)
        except LockException:
            return os.pread(fd, _BYTES, 0)
        else:
            return None
        finally:
            os.close(fd)

    def sweep(self, disk: Disk) -> None:
        """Remove the files of dead incarnations."""
        for entry in disk.names(self._workers):
            name = entry.removesuffix(".name")
            if valid_incarnation(name) and not self.alive(name):
                disk.unlink(f"{self._workers}/{name}.name")
                disk.unlink(f"{self._workers}/{name}")
