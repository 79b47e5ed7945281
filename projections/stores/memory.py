"""Projections of a log in memory: gone with it, shared by all who open a store for it in this process.

SQLite files in a temporary directory, because SQLite's own databases in memory let a reader wait for who writes. Nothing in
them is synced, and the directory is removed once no handle of the log is left, or at the end of the process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary, finalize

from gasoline_es.log.port import Log
from projections.stores.port import Reach, nothing
from projections.stores.sqlite import SqliteStore


@dataclass(slots=True, weakref_slot=True)
class _Folder:
    path: str


_folders: WeakValueDictionary[tuple[str, str], _Folder] = WeakValueDictionary()
"""By the log's id and the namespace."""
_kept: WeakKeyDictionary[Log, dict[str, _Folder]] = WeakKeyDictionary()
_opening: Final = threading.Lock()


class MemoryStore(SqliteStore):
    """See :class:`~projections.stores.port.Store`."""

    kind = "memory"

    def __init__(self, log: Log, *, reach: Reach = nothing) -> None:
        with _opening:
            folder = _folders.get((log.log_id, log.namespace))
            if folder is None:
                folder = _folders[log.log_id, log.namespace] = _make_folder()
            _kept.setdefault(log, {})[log.namespace] = folder
        super().__init__(
            folder.path, log_id=log.log_id, namespace=log.namespace, private=True, reach=reach, synced=False
        )


def _make_folder() -> _Folder:
    path = tempfile.mkdtemp(prefix="gasoline-projections-")
    folder = _Folder(path)
    finalize(folder, _remove, path, os.getpid())
    return folder


def _remove(path: str, made_by: int) -> None:
    if os.getpid() == made_by:  # a forked child that ends has nothing to remove
        shutil.rmtree(path, ignore_errors=True)
