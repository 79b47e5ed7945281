"""Opening a log by its URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gasoline_es.errors import ExtraMissing, LogError

if TYPE_CHECKING:
    from gasoline_es.log.port import Log


async def open_log(
    url: str, *, namespace: str = "default", partitions: int | None = None, readonly: bool = False, **options: Any
) -> Log:
    """Open the log at ``url`` for one namespace, creating both unless ``readonly``.

    ``memory:`` is a log of its own; ``memory:NAME`` is shared by all who open it in this process; ``file:DIRECTORY`` is a
    directory, absolute or relative; ``kafka://HOST:9092/NAMESPACE`` a namespace of a cluster. The number of partitions is
    fixed when a namespace is created; None takes it as it is.
    ``options`` go to the kind of log (file: ``final``, ``segment_bytes_max``, ``silent_after_s``, ``disk``, ``clock``).

    Raises: LogError if it cannot be opened so; LogCorrupt if it is damaged and ``readonly`` is not set.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory":
        from gasoline_es.log.memory import open_memory_log

        return await open_memory_log(rest, namespace=namespace, partitions=partitions, readonly=readonly, **options)
    if colon and scheme == "file":
        from gasoline_es.log.file.log import open_file_log

        directory = directory_of(url)
        return await open_file_log(directory, namespace=namespace, partitions=partitions, readonly=readonly, **options)
    if colon and scheme == "kafka":
        try:
            from gasoline_es.log.kafka.opening import open_kafka_log
        except ImportError as error:
            raise ExtraMissing(f"a Kafka log needs a client of Kafka, which is not installed ({error})") from error

        return await open_kafka_log(url, namespace=namespace, partitions=partitions, readonly=readonly, **options)
    raise LogError(
        f"{url!r} is not the URL of a log: memory:, memory:NAME, file:DIRECTORY or kafka://HOST:9092/NAMESPACE", url=url
    )


def directory_of(url: str) -> str:
    """Return the directory of a file URL: both ``file:/d`` and ``file:///d`` are absolute, ``file:~/d`` is at home.

    Raises: LogError: it names none, or a host, as ``file://d`` does, which many mean to be the directory d.
    """
    rest = url.removeprefix("file:")
    if not rest:
        raise LogError(f"{url!r} names no directory: write file:DIRECTORY", url=url)
    if rest.startswith("//") and not rest.startswith("///"):
        raise LogError(
            f"{url!r} names a host, {rest[2:].partition('/')[0]!r}, and not a directory: write file:{rest[2:]} for a directory "
            f"below this one, or file:/{rest[2:]} for one at the root",
            url=url,
        )
    path = rest[2:] if rest.startswith("///") else rest
    return os.path.expanduser(path)  # no shell does it behind "file:"
