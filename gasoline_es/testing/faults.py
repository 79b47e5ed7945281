"""Disks for tests of the file log: one that fails, fills up, stops or loses power on command; one that counts.

Pass it as ``open_log("file:…", disk=FaultyDisk(directory))``. Everything really happens in the directory; what a power loss
would take is put back by :meth:`FaultyDisk.lose_power`.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from gasoline_es.log.file.disk import Disk


class UnsyncedDisk(Disk):
    """A disk that says it synced and did not: for tests that open a log hundreds of times and are about something else."""

    def datasync(self, fd: int) -> None:
        """Do nothing."""

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""


class CountingDisk(Disk):
    """A disk that counts the bytes read of each file, and the entries read of each directory."""

    def __init__(self, directory: str) -> None:
        self.bytes: Counter[str] = Counter()
        """By path relative to the directory."""
        self.entries_read = 0
        self._directory: Final = directory
        self._opened: dict[int, str] = {}

    def open(self, path: str) -> int:
        """Open a file and remember its name."""
        fd = super().open(path)
        self._opened[fd] = os.path.relpath(path, self._directory)
        return fd

    def duplicate(self, fd: int) -> int:
        """Open it once more and remember its name."""
        twin = super().duplicate(fd)
        self._opened[twin] = self._opened[fd]
        return twin

    def create(self, path: str) -> int:
        """Create a file and remember its name."""
        fd = super().create(path)
        self._opened[fd] = os.path.relpath(path, self._directory)
        return fd

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Read and count."""
        data = super().read(fd, size, position)
        self.bytes[self._opened[fd]] += len(data)
        return data

    def names(self, path: str) -> list[str]:
        """List and count."""
        names = super().names(path)
        self.entries_read += len(names)
        return names

    def entries(self, path: str) -> list[tuple[str, int]]:
        """List and count."""
        entries = super().entries(path)
        self.entries_read += len(entries)
        return entries

    def forget(self) -> None:
        """Begin to count anew."""
        self.bytes.clear()
        self.entries_read = 0

    def read_of(self, suffix: str = "") -> int:
        """Return how many bytes were read of the files whose names end so."""
        return sum(count for path, count in self.bytes.items() if path.endswith(suffix))


class Killed(BaseException):
    """The process "dies" here: this call and all later ones of the disk do nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: ``what`` is the method's name, ``path`` the file's, relative to the directory."""

    what: str
    path: str


class FaultyDisk(Disk):
    """See the module. ``calls`` are those that change or sync something, in order."""

    def __init__(self, directory: str) -> None:
        self.calls: list[Call] = []
        self.before: Callable[[Call], None] | None = None
        """Called before each of the calls; what it raises comes from the call."""
        self.kill_after: int | None = None
        """Die at the first call after this many."""
        self.space: int | None = None
        """Bytes that can still be written; then the disk is full. Bytes written over do not count."""
        self._directory: Final = directory
        self._paths: dict[int, str] = {}
        self._durable: dict[str, bytes] = {}
        self._names: dict[str, set[str]] = {}
        self._replaced: dict[str, bytes] = {}
        """Files that were renamed over since their directory was synced → what a power loss may put back there."""

    # --- faults -------------------------------------------------------------------------------------------------------

    def fail_once(self, what: str, suffix: str = "", number: int = errno.EIO, skip: int = 0) -> None:
        """Make the next call of ``what`` on a path that ends with ``suffix`` fail, after ``skip`` that do not."""
        left = skip

        def before(call: Call) -> None:
            nonlocal left
            if call.what == what and call.path.endswith(suffix):
                if left == 0:
                    self.before = None
                    raise OSError(number, os.strerror(number))
                left -= 1

        self.before = before

    def _called(self, what: str, path: str) -> None:
        if self.kill_after is not None and len(self.calls) >= self.kill_after:
            raise Killed
        call = Call(what, os.path.relpath(path, self._directory))
        self.calls.append(call)
        if self.before is not None:
            self.before(call)

    # --- what a power loss leaves -------------------------------------------------------------------------------------

    def lose_power(self, random: Random | None = None) -> None:
        """Put back what is surely on the disk: synced bytes and synced names. ``random`` keeps some of the rest."""
        for path, before in self._replaced.items():
            if random is None or random.random() < 0.5:
                self._durable[path] = before
                with open(path, "wb") as file:
                    file.write(before)
        self._replaced.clear()
        for folder, _, files in os.walk(self._directory):
            for name in files:
                path = f"{folder}/{name}"
                if path.endswith(("manifest.json", "manifest.lock")):
                    continue
                named = name in self._names.get(folder, set())
                if not named and not (random and random.random() < 0.5):
                    os.unlink(path)
                    continue
                self._cut(path, random)

    def _cut(self, path: str, random: Random | None) -> None:
        with open(path, "rb") as file:
            now = file.read()
        durable = self._durable.get(path, b"")
        if not now.startswith(durable):
            kept = now if random and random.random() < 0.5 else durable
        else:
            kept = now[: random.randint(len(durable), len(now))] if random else durable
            if random and random.random() < 0.3:
                kept = kept.ljust(len(now), b"\0")
        if kept != now:  # what a power loss leaves as it was, nobody has written to
            with open(path, "wb") as file:
                file.write(kept)

    def _remember(self, path: str) -> None:
        with open(path, "rb") as file:
            self._durable[path] = file.read()

    # --- the calls ----------------------------------------------------------------------------------------------------

    def open(self, path: str) -> int:
        fd = super().open(path)
        self._paths[fd] = path
        return fd

    def duplicate(self, fd: int) -> int:
        twin = super().duplicate(fd)
        self._paths[twin] = self._paths[fd]
        return twin

    def create(self, path: str) -> int:
        self._called("create", path)
        if self.space == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fd = super().create(path)
        self._paths[fd] = path
        self._durable.pop(path, None)
        return fd

    def write(self, fd: int, data: bytes, position: int) -> None:
        self._called("write", self._paths[fd])
        grows = max(0, position + len(data) - os.fstat(fd).st_size)
        if self.space is not None and grows > self.space:
            os.pwrite(fd, data[: len(data) - grows + self.space], position)
            self.space = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.space is not None:
            self.space -= grows
        super().write(fd, data, position)

    def truncate(self, fd: int) -> None:
        self._called("truncate", self._paths[fd])
        super().truncate(fd)

    def datasync(self, fd: int) -> None:
        self._called("datasync", self._paths[fd])
        self._remember(self._paths[fd])

    def sync(self, fd: int) -> None:
        self._called("sync", self._paths[fd])
        self._remember(self._paths[fd])

    def sync_directory(self, path: str) -> None:
        self._called("sync_directory", path)
        self._names[path] = set(os.listdir(path))
        self._replaced = {name: data for name, data in self._replaced.items() if os.path.dirname(name) != path}

    def link(self, source: str, target: str) -> None:
        self._called("link", target)
        super().link(source, target)
        self._durable[target] = self._durable.get(source, b"")

    def rename(self, source: str, target: str) -> None:
        self._called("rename", target)
        if os.path.basename(target) in self._names.get(os.path.dirname(target), set()):
            self._replaced.setdefault(target, self._durable.get(target, b""))
        super().rename(source, target)
        self._durable[target] = self._durable.pop(source, b"")

    def unlink(self, path: str) -> None:
        self._called("unlink", path)
        super().unlink(path)
