"""The manifest: what a log's directory is, and how many partitions each namespace has.

``manifest.json``: ``{"format":1,"log":"<32 hex digits>","namespaces":{"shop":{"partitions":16}},"check":"<16 hex
digits>"}``. It is replaced as a whole (written beside, synced, renamed, directory synced), under a lock on
``manifest.lock``. ``check``: the first 16 digits of the sha-256 of the rest, written without spaces and with its members
sorted. With another number of partitions nothing would be found where it is.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, cast

from portalocker.constants import LockFlags
from portalocker.portalocker import FlockLocker

from gasoline_es.errors import LogCorrupt, LogError
from gasoline_es.log.file.disk import Disk
from gasoline_es.log.file.epochs import Epochs, list_names
from gasoline_es.log.names import PARTITIONS_DEFAULT, check_namespace, check_partitions, check_wanted

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """A log's directory, described."""

    log_id: str
    namespaces: Mapping[str, int] = field(default_factory=dict[str, int])


def read_manifest(directory: str, disk: Disk) -> Manifest | None:
    """Return the manifest, None if there is no log.

    Raises: LogError if it is not one this version reads; LogCorrupt if there is a log without one.
    """
    path = f"{directory}/manifest.json"
    try:
        data = disk.read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        if _used(directory, disk):
            raise _corrupt(path, "is missing, though the directory holds a log") from None
        return None
    try:
        members = cast(dict[str, Any], json.loads(data))
        version = members["format"]
        if version != FORMAT:
            raise LogError(f"{path} has format {version}; this version reads format {FORMAT}", format=version)
        check = members.pop("check", None)  # manifests of the first days have none
        if check is not None and check != _check(members):
            raise _corrupt(path, "fails its check")
        namespaces = {name: int(entry["partitions"]) for name, entry in members["namespaces"].items()}
        for namespace, count in namespaces.items():
            check_namespace(namespace)
            check_wanted(count)
        return Manifest(log_id=str(members["log"]), namespaces=namespaces)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LogError(f"{path} is not a log's manifest", path=path) from error


def _used(directory: str, disk: Disk) -> bool:
    """Return whether anything was ever done in the directory's log: a file of a segment, or an epoch."""
    if any(name.partition(".")[0].isdigit() for name in list_names(disk, f"{directory}/segments")):
        return True
    return bool(Epochs(directory, disk).taken())


def _check(members: dict[str, Any]) -> str:
    return sha256(json.dumps(members, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def _corrupt(path: str, reason: str) -> LogCorrupt:
    return LogCorrupt(
        f"the log is damaged: {path} {reason}. Nothing was changed; put the file back from a copy",
        segment=None,
        position=0,
        reason=f"{path} {reason}",
        path=path,
    )


def create_namespace(directory: str, namespace: str, wanted: int | None, disk: Disk) -> Manifest:
    """Make the directory a log and the namespace a part of it, durably, unless they are; return the manifest."""
    for name in ("", "/segments", "/epochs", "/workers", "/messages"):
        disk.make_directory(directory + name)
    fd = os.open(f"{directory}/manifest.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        FlockLocker().lock(fd, LockFlags.EXCLUSIVE)
        manifest = read_manifest(directory, disk) or Manifest(secrets.token_hex(16))
        if check_partitions(manifest.namespaces, namespace, wanted, directory) is not None:
            return manifest
        count = PARTITIONS_DEFAULT if wanted is None else wanted
        # The epoch directories first: once the manifest names the namespace they are there, durably, and can be watched.
        for partition in range(count):
            disk.make_directory(f"{directory}/epochs/{namespace}/{partition}")
        disk.sync_directory(f"{directory}/epochs/{namespace}")
        disk.sync_directory(f"{directory}/epochs")
        manifest = Manifest(manifest.log_id, {**manifest.namespaces, namespace: count})
        _write(directory, manifest, disk)
        disk.sync_directory(os.path.dirname(directory) or "/")
        return manifest
    finally:
        os.close(fd)


def _write(directory: str, manifest: Manifest, disk: Disk) -> None:
    members: dict[str, Any] = {
        "format": FORMAT,
        "log": manifest.log_id,
        "namespaces": {name: {"partitions": count} for name, count in sorted(manifest.namespaces.items())},
    }
    members["check"] = _check(members)
    beside = f"{directory}/manifest.json.tmp"
    disk.unlink(beside)
    fd = disk.create(beside)
    try:
        disk.write(fd, json.dumps(members, indent=1).encode() + b"\n", 0)
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.rename(beside, f"{directory}/manifest.json")
    disk.sync_directory(directory)
