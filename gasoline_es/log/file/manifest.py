"""The manifest: what a log's directory is, and how many partitions each namespace has.

``manifest.json``: ``{"format":1,"log":"<32 hex digits>","namespaces":{"shop":{"partitions":16}}}``. It is replaced as a
whole (written beside, synced, renamed, directory synced), under a lock on ``manifest.lock``.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from portalocker.constants import LockFlags
from portalocker.portalocker import FlockLocker

from gasoline_es.errors import LogError
from gasoline_es.log.file.disk import Disk
from gasoline_es.log.names import PARTITIONS_DEFAULT, check_namespace, check_partitions

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """A log's directory, described."""

    log_id: str
    namespaces: Mapping[str, int] = field(default_factory=dict[str, int])


def read_manifest(directory: str, disk: Disk) -> Manifest | None:
    """Return the manifest, None if there is no log. Raises: LogError if it is not one this version reads."""
    path = f"{directory}/manifest.json"
    try:
        data = disk.read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        members = cast(dict[str, Any], json.loads(data))
        version = members["format"]
        if version != FORMAT:
            raise LogError(f"{path} has format {version}; this version reads format {FORMAT}", format=version)
        namespaces = {name: int(entry["partitions"]) for name, entry in members["namespaces"].items()}
        for namespace in namespaces:
            check_namespace(namespace)
        return Manifest(log_id=str(members["log"]), namespaces=namespaces)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogError(f"{path} is not a log's manifest", path=path) from error


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
    members = {
        "format": FORMAT,
        "log": manifest.log_id,
        "namespaces": {name: {"partitions": count} for name, count in sorted(manifest.namespaces.items())},
    }
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
