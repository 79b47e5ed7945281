"""Linux tells of changes in directories: inotify(7), by the C library, as Python has no module for it.

Events come in order and none is missed, unless so many wait that the kernel drops some, which it says. What this asks for
is little: names that were made, written to or renamed in a directory; what happened to each is of no interest.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_MODIFY: Final = 0x2
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_OVERFLOW: Final = 0x4000
_ONLY_DIRECTORIES: Final = 0x0100_0000
_IS_DIRECTORY: Final = 0x4000_0000
_HEADER: Final = struct.Struct("iIII")
_READ_BYTES: Final = 4096


class Change(NamedTuple):
    """Something happened to what ``name`` stands for in a directory; both are empty where changes were lost."""

    directory: str
    name: str
    is_directory: bool


class Inotify:
    """Directories watched. ``fd`` becomes readable when something happened in one of them."""

    def __init__(self) -> None:
        self._libc: Final = ctypes.CDLL(None, use_errno=True)
        self.fd: Final[int] = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")
        self._directories: Final[dict[int, str]] = {}

    def watch(self, directory: str) -> None:
        """Tell of this directory from now on, if it is there. One that is watched already costs nothing.

        Raises: OSError: there are as many watches or instances as the system allows (fs.inotify in sysctl).
        """
        mask = _MODIFY | _MOVED_TO | _CREATE | _ONLY_DIRECTORIES
        found = self._libc.inotify_add_watch(self.fd, os.fsencode(directory), mask)
        self._directories[self._checked(found, directory)] = directory

    def read(self) -> bytes:
        """Return some of what happened since the last call, for :meth:`changes` to read; empty: nothing did.

        The same happening twice gives the same bytes, so that what they mean can be remembered.
        """
        try:
            return os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return b""

    def changes(self, data: bytes) -> Iterator[Change]:
        """Yield what was made, written to or renamed."""
        at = 0
        while at < len(data):
            number, mask, _, size = _HEADER.unpack_from(data, at)
            name = data[at + _HEADER.size : at + _HEADER.size + size].rstrip(b"\0")
            at += _HEADER.size + size
            if mask & _OVERFLOW:
                yield Change("", "", False)
            elif name and number in self._directories:
                yield Change(self._directories[number], os.fsdecode(name), bool(mask & _IS_DIRECTORY))

    def close(self) -> None:
        """End it."""
        os.close(self.fd)

    def _checked(self, result: int, what: str) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), what)
        return result
