"""The file-system calls of the file log, all in one place, so that tests can fail, count, cut or lose any of them."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from typing import Final, NamedTuple

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the errors of a full disk say."""
_MODE: Final = 0o666  # minus the umask


class Status(NamedTuple):
    """What the file system says of a file's bytes, without reading them. A copy of the file is another ``inode``."""

    inode: int
    size: int
    changed_ns: int
    """When its bytes were last written to, or so somebody has said since."""
    kept_ns: int = 0
    """When anything of the file was last changed, by the kernel's own clock, which nobody sets; 0: not asked for."""


class Disk:
    """The real file system. File descriptors are plain ints; paths are absolute strings."""

    def open(self, path: str) -> int:
        """Open an existing file for reading."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def duplicate(self, fd: int) -> int:
        """Return another descriptor of an open file, whatever its name means by now."""
        return os.dup(fd)  # not inherited by programs that are started

    def create(self, path: str) -> int:
        """Create a file that must not exist, for reading and writing. Raises: FileExistsError."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)

    def close(self, fd: int) -> None:
        """Close a file descriptor."""
        os.close(fd)

    def write(self, fd: int, data: bytes, position: int) -> None:
        """Write all of ``data`` at ``position``; on an error part of it may have been written."""
        done = os.pwrite(fd, data, position)
        while done < len(data):
            # A short write is followed by the error that explains it (a full disk), or it goes on.
            done += os.pwrite(fd, memoryview(data)[done:], position + done)

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes at ``position``; fewer only at the end of the file."""
        data = os.pread(fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(fd, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def size(self, fd: int) -> int:
        """Return a file's length in bytes."""
        return os.fstat(fd).st_size

    def status(self, fd: int) -> Status:
        """Return which file it is, its length, and when it was last written to."""
        found = os.fstat(fd)
        return Status(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def stamp(self, fd: int) -> None:
        """Set the time of a file's last change to now, to the nanosecond, without a change.

        The kernel's own times are as coarse as its ticks: of two writes that follow each other, the second may not show.
        """
        now_ns = time.time_ns()
        os.utime(fd, ns=(now_ns, now_ns))

    def status_of(self, path: str) -> Status:
        """Return the same of a path, of which others may make links: so without ``kept_ns``."""
        found = os.stat(path)
        return Status(found.st_ino, found.st_size, found.st_mtime_ns)

    def truncate(self, fd: int) -> None:
        """Cut a file to nothing. Only ever a segment of one's own in which nothing was published."""
        os.ftruncate(fd, 0)

    def datasync(self, fd: int) -> None:
        """Make a file's bytes and length durable."""
        os.fdatasync(fd)

    def sync(self, fd: int) -> None:
        """Make a file durable, with its metadata."""
        os.fsync(fd)

    def sync_directory(self, path: str) -> None:
        """Make a directory's entries durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        """Return whether the path names something."""
        return os.access(path, os.F_OK)

    def names(self, path: str) -> list[str]:
        """Return a directory's entries, sorted."""
        return sorted(os.listdir(path))

    def entries(self, path: str) -> list[tuple[str, int]]:
        """Return a directory's entries, sorted, each with its inode."""
        with os.scandir(path) as entries:
            return sorted([(entry.name, entry.inode()) for entry in entries])

    def make_directory(self, path: str) -> None:
        """Create a directory that may exist already."""
        os.makedirs(path, mode=0o700, exist_ok=True)  # payloads lie there as plain text

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. Raises: FileExistsError if the name is taken: this is what decides a race."""
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Rename a file over another."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name that may be gone already."""
        with suppress(FileNotFoundError):
            os.unlink(path)

    def linked(self, fd: int) -> bool:
        """Return whether an open file still has a name: what is written to one without is gone when it is closed."""
        return os.fstat(fd).st_nlink > 0

    def read_file(self, path: str) -> bytes:
        """Return a small file's bytes. Never a worker's file of this very process (see incarnation.py)."""
        fd = self.open(path)
        try:
            return self.read(fd, os.fstat(fd).st_size, 0)
        finally:
            self.close(fd)
