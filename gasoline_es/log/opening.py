"""Opening a log by its URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gasoline_es.errors import LogError

if TYPE_CHECKING:
    from gasoline_es.log.port import Log


async def open_log(
    url: str, *, namespace: str = "default", partitions: int | None = None, readonly: bool = False, **options: Any
) -> Log:
    """Open the log at ``url`` for one namespace, creating both unless ``readonly``.

    ``memory:`` is a log of its own; ``memory:NAME`` is shared by all who open it in this process; ``file:DIRECTORY`` is a
    directory, absolute or relative. The number of partitions is fixed when a namespace is created; None takes it as it is.
    ``options`` go to the kind of log (file: ``segment_bytes_max``, ``silent_after_s``, ``disk``, ``clock``).

    Raises: LogError if it cannot be opened so; LogCorrupt if it is damaged and ``readonly`` is not set.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory":
        from gasoline_es.log.memory import open_memory_log

        return await open_memory_log(rest, namespace=namespace, partitions=partitions, readonly=readonly, **options)
    if colon and scheme == "file":
        if not rest:
            raise LogError(f"{url!r} names no directory: write file:DIRECTORY", url=url)
        from gasoline_es.log.file.log import open_file_log

        return await open_file_log(
            _path(rest), namespace=namespace, partitions=partitions, readonly=readonly, **options
        )
    raise LogError(f"{url!r} is not the URL of a log: memory:, memory:NAME or file:DIRECTORY", url=url)


def _path(rest: str) -> str:
    """Return the directory of a file URL: both ``file:/d`` and ``file:///d`` are absolute, ``file:~/d`` is at home."""
    path = rest[2:] if rest.startswith("///") else rest
    return os.path.expanduser(path)  # no shell does it behind "file:"
