"""Epoch files: who took which partition, in what order.

``epochs/<namespace>/<partition>/<epoch, 10 digits>`` is a link to the file in which its taker names itself. link(2) fails if
the name exists, so exactly one process gets each epoch; the files are never removed (filelog.md §4.1).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

from gasoline_es.errors import LogCorrupt, LogError, NoSpace
from gasoline_es.log.file.disk import FULL, Disk, Status
from gasoline_es.log.file.incarnation import Incarnation, valid_incarnation
from gasoline_es.log.file.recent import Recent

_HOLDERS_MAX: Final = 8_192
"""Two of each partition at most are asked for again and again: the highest, and the one below it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who took an epoch."""

    incarnation: str
    host: str
    pid: int


class EpochFiles(NamedTuple):
    """Files of a partition's epochs, ascending by epoch."""

    epochs: list[int]
    inodes: list[int]

    def up_to(self, epoch: int) -> EpochFiles:
        """Return those of this epoch and below."""
        at = bisect_right(self.epochs, epoch)
        return EpochFiles(self.epochs[:at], self.inodes[:at])


class Epochs:
    """The epoch files of every namespace. ``highest`` only ever grows, so that it costs one look once it is known."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._root: Final = f"{directory}/epochs"
        self._disk: Final = disk
        self._highest: dict[tuple[str, int], int] = {}
        self._holders: Final = Recent[tuple[str, int, int], Holder](_HOLDERS_MAX)

    def path(self, namespace: str, partition: int, epoch: int) -> str:
        """Return the name of an epoch's file. The namespace was validated when it came in."""
        return f"{self._root}/{namespace}/{partition}/{epoch:010d}"

    def highest(self, namespace: str, partition: int, listed: Sequence[int] | None = None) -> int:
        """Return the highest epoch anybody took, 0 if none. ``listed``: what :meth:`listed` has just returned."""
        epoch = self._highest.get((namespace, partition))
        if epoch is None:
            if listed is None:
                listed = self.listed(namespace, partition)
            if listed is None:
                return 0
            epoch = max(listed, default=0)
        while self._disk.exists(self.path(namespace, partition, epoch + 1)):
            epoch += 1
        self._highest[namespace, partition] = epoch
        return epoch

    def directory(self, namespace: str, partition: int) -> str:
        """Return the name of the directory of a partition's epochs."""
        return f"{self._root}/{namespace}/{partition}"

    def listed(self, namespace: str, partition: int) -> list[int] | None:
        """Return the epochs of which there are files, ascending; None if there is no directory for them."""
        files = self.files(namespace, partition)
        return None if files is None else files.epochs

    def files(self, namespace: str, partition: int) -> EpochFiles | None:
        """Return the files of a partition's epochs; None if there is no directory for them."""
        try:
            entries = self._disk.entries(self.directory(namespace, partition))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not _all_epochs([name for name, _ in entries]):
            entries = [(name, inode) for name, inode in entries if _all_epochs([name])]
        return EpochFiles([int(name) for name, _ in entries], [inode for _, inode in entries])

    def seal(self, namespace: str, partition: int, files: EpochFiles, known: dict[int, Status | None]) -> str:
        """Return a digest of which files these are and when they were written to last, without reading them.

        A process that took many partitions has one file of many names: each is looked at once. ``known``: what was looked at.
        """
        for inode, epoch in dict(zip(files.inodes, files.epochs, strict=True)).items():
            if inode not in known:
                try:
                    known[inode] = self._disk.status_of(self.path(namespace, partition, epoch))
                except OSError:
                    known[inode] = None
        told = [known[inode] for inode in dict.fromkeys(files.inodes)]
        return sha256(repr((files.epochs, files.inodes, told)).encode()).hexdigest()

    def exists(self, namespace: str, partition: int, epoch: int) -> bool:
        """Return whether there is a file of the epoch."""
        return self._disk.exists(self.path(namespace, partition, epoch))

    def partitions(self) -> list[tuple[str, int]]:
        """Return the namespaces and partitions that have a directory for epochs."""
        return [
            (namespace, int(name))
            for namespace in list_names(self._disk, self._root)
            for name in list_names(self._disk, f"{self._root}/{namespace}")
            if name.isascii() and name.isdigit() and str(int(name)) == name
        ]

    def taken(self) -> list[tuple[str, int]]:
        """Return the namespaces and partitions of which there are epochs."""
        return [
            (namespace, partition) for namespace, partition in self.partitions() if self.listed(namespace, partition)
        ]

    def claim(self, namespace: str, partition: int, epoch: int, taker: Incarnation) -> bool:
        """Take the epoch, durably, unless somebody has it already."""
        try:
            self._disk.link(taker.name_path, self.path(namespace, partition, epoch))
        except FileExistsError:
            return False
        except OSError as error:
            kind = NoSpace if error.errno in FULL else LogError
            raise kind(f"partition {partition} of namespace {namespace!r} cannot be taken: {error}") from error
        self._disk.sync_directory(f"{self._root}/{namespace}/{partition}")
        return True

    def holder(self, namespace: str, partition: int, epoch: int) -> Holder | None:
        """Return who took the epoch, None if there is no such file. Raises: LogCorrupt."""
        holder = self._holders.get((namespace, partition, epoch))
        if holder is None:
            path = self.path(namespace, partition, epoch)
            try:
                holder = _decode(path, self._disk.read_file(path))
            except FileNotFoundError:
                return None
            self._holders.put((namespace, partition, epoch), holder)
        return holder


def _all_epochs(names: Sequence[str]) -> bool:
    """Return whether all of these are names of epoch files."""
    text = "".join(names)
    if not (text.isascii() and text.isdigit()):
        return False
    return {len(name) for name in names} == {10} or all(f"{int(name):010d}" == name for name in names)


def list_names(disk: Disk, path: str) -> list[str]:
    """Return a directory's entries; none if there is no such directory."""
    try:
        return disk.names(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _decode(path: str, data: bytes) -> Holder:
    try:
        who = cast(dict[str, Any], json.loads(data))
        if valid_incarnation(who["incarnation"]):
            return Holder(who["incarnation"], str(who["host"]), int(who["pid"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise LogCorrupt(
        f"the log is damaged: {path} does not name an incarnation. Nothing was changed; it can still be opened for reading",
        segment=None,
        position=0,
        reason=f"{path} does not name an incarnation",
        path=path,
    )
