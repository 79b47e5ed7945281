"""The follower: waits until something may have been published, by this process or another.

Other processes' publications show as changes of files: published ends and epochs. The event loop hears of them from the
kernel, without a thread: one that polled would take the interpreter from whoever runs, a thousand times a second. What
this handle publishes is no news to it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

import inotify_simple  # pyright: ignore[reportMissingTypeStubs]

_inotify: Final[Any] = inotify_simple  # it has no types
_flags: Final = _inotify.flags
_parse: Final[Callable[[bytes], list[tuple[int, int, int, str]]]] = _inotify.parse_events
_MADE: Final[int] = _flags.MOVED_TO | _flags.CREATE | _flags.ONLYDIR
_WRITTEN: Final[int] = _flags.MODIFY
_READ_BYTES: Final = 4096
_PROBE_S: Final = 0.5
_PARTITION_DEPTH: Final = 2
"""`epochs/<namespace>/<partition>`"""


class Follower:
    """Wakes one waiter. Belongs to one event loop."""

    def __init__(self, directory: str, own: Callable[[str], bool], lost_owner: Callable[[], bool]) -> None:
        """``own``: whether a name in ``segments`` is this handle's. ``lost_owner``: whether an owner died or fell silent."""
        self._segments: Final = f"{directory}/segments"
        self._epochs: Final = f"{directory}/epochs"
        self._own: Final = own
        self._lost_owner: Final = lost_owner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._dirty = False
        self._closed = False
        self._error: OSError | None = None
        self._changes: Any = None
        self._directories: dict[int, str] = {}
        self._ends: set[int] = set()
        """The watches of other handles' published ends."""

    async def changed(self) -> None:
        """Return once something may have changed since the last call returned. Raises: OSError: it cannot be told."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._start(self._loop)
            return
        if self._waiter is not None:
            raise RuntimeError("only one task at a time may wait for changes of a log")
        while not self._dirty and not self._closed:
            self._waiter = self._loop.create_future()
            probe = self._loop.call_later(_PROBE_S, self._probe)
            try:
                await self._waiter
            finally:
                probe.cancel()
                self._waiter = None
        if self._error is not None:
            raise self._error
        self._dirty = False

    def _probe(self) -> None:
        if self._lost_owner():
            self._wake()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)  # goes round once more: a timer of its own for every wait

    def _wake(self) -> None:
        self._dirty = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._changes = _inotify.INotify(nonblocking=True)
        self._watch_segments()
        self._watch_epochs(self._epochs)
        loop.add_reader(self._changes.fileno(), self._read)

    def _watch(self, directory: str) -> None:
        """Hear of what is made there. One that is watched already costs nothing."""
        self._directories[self._changes.add_watch(directory, _MADE)] = directory

    def _watch_segments(self) -> None:
        """Watch the ends that others may still publish: all but those of the segments that have their index.

        One by one, because the directory would tell of every write of this handle's own too, and wake the event loop.
        """
        self._watch(self._segments)
        names = set(os.listdir(self._segments))
        for name in names:
            if name.endswith(".end") and f"{name.removesuffix('.end')}.index" not in names:
                self._watch_end(name)

    def _watch_end(self, name: str) -> bool:
        """Hear of what is written to a published end; False: it is this handle's own, or gone."""
        if self._own(name):
            return False
        try:
            self._ends.add(self._changes.add_watch(f"{self._segments}/{name}", _WRITTEN))
        except FileNotFoundError:
            return False
        return True

    def _watch_epochs(self, top: str) -> None:
        """Watch a directory of epochs and those in it: each before it is listed, so that nothing is made unseen.

        That of a partition holds epochs only, as many as it ever had owners: it is not listed.
        """
        directories = [top]
        for directory in directories:
            self._watch(directory)
            if directory.count("/") - self._epochs.count("/") >= _PARTITION_DEPTH:
                continue
            with os.scandir(directory) as entries:
                directories.extend([entry.path for entry in entries if entry.is_dir(follow_symlinks=False)])

    def _read(self) -> None:
        try:
            data = os.read(self._changes.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        try:
            news = self._look(data)
        except OSError as error:
            self._error = error  # from here on changes would be missed
            news = True
        if news:
            self._wake()

    def _look(self, data: bytes) -> bool:
        """Return whether any of the changes is news, after watching what directories are new."""
        news = False
        for number, mask, _, name in _parse(data):
            directory = self._directories.get(number)
            if mask & _flags.Q_OVERFLOW:
                self._watch_segments()  # changes were lost: files and directories may be among them
                self._watch_epochs(self._epochs)
                news = True
            elif mask & _flags.IGNORED:
                self._ends.discard(number)
            elif number in self._ends:
                news = True
            elif directory == self._segments:
                if name.endswith(".end"):
                    news = self._watch_end(name) or news
            elif directory is not None and name:
                if mask & _flags.ISDIR:
                    self._watch_epochs(f"{directory}/{name}")  # of a new namespace or partition
                news = True
        return news

    def close(self) -> None:
        """Stop following and wake the waiter. Idempotent."""
        self._closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._changes is not None:
            assert self._loop is not None
            if not self._loop.is_closed():
                self._loop.remove_reader(self._changes.fileno())
            self._changes.close()
            self._changes = None
