"""Epoch files: who took which partition, in what order.

``epochs/<namespace>/<partition>/<epoch, 10 digits>`` is a link to the file in which its taker names itself. link(2) fails if
the name exists, so exactly one process gets each epoch; the files are never removed (filelog.md §4.1).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, cast

from gasoline_es.errors import LogCorrupt, LogError, NoSpace
from gasoline_es.log.file.disk import FULL, Disk
from gasoline_es.log.file.incarnation import Incarnation, valid_incarnation


@dataclass(frozen=True, slots=True)
class Holder:
    """Who took an epoch."""

    incarnation: str
    host: str
    pid: int


class Epochs:
    """The epoch files of every namespace. ``highest`` only ever grows, so that it costs one look once it is known."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._root: Final = f"{directory}/epochs"
        self._disk: Final = disk
        self._highest: dict[tuple[str, int], int] = {}
        self._holders: dict[tuple[str, int, int], Holder] = {}

    def path(self, namespace: str, partition: int, epoch: int) -> str:
        """Return the name of an epoch's file. The namespace was validated when it came in."""
        return f"{self._root}/{namespace}/{partition}/{epoch:010d}"

    def highest(self, namespace: str, partition: int) -> int:
        """Return the highest epoch anybody took, 0 if none."""
        epoch = self._highest.get((namespace, partition))
        if epoch is None:
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
        """Return the epochs of which there are files, in no order; None if there is no directory for them."""
        try:
            names = self._disk.names(self.directory(namespace, partition))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return [int(name) for name in names if name.isascii() and name.isdigit() and f"{int(name):010d}" == name]

    def exists(self, namespace: str, partition: int, epoch: int) -> bool:
        """Return whether there is a file of the epoch."""
        return (namespace, partition, epoch) in self._holders or self._disk.exists(
            self.path(namespace, partition, epoch)
        )

    def taken(self) -> list[tuple[str, int]]:
        """Return the namespaces and partitions of which there are epochs."""
        return [
            (namespace, int(name))
            for namespace in list_names(self._disk, self._root)
            for name in list_names(self._disk, f"{self._root}/{namespace}")
            if name.isascii() and name.isdigit() and str(int(name)) == name and self.listed(namespace, int(name))
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
            self._holders[namespace, partition, epoch] = holder
        return holder


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
