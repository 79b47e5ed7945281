"""What a namespace may be called and how many partitions it may have, on every kind of log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gasoline_es.errors import LogError

PARTITIONS_DEFAULT: Final = 16
PARTITIONS_MAX: Final = 4096
_NAMESPACE: Final = re.compile(r"[a-z0-9-]{1,64}")


def check_namespace(namespace: str) -> None:
    """Raises: LogError unless the name may stand in a path and in topic names."""
    if _NAMESPACE.fullmatch(namespace) is None:
        raise LogError(f"a namespace is 1 to 64 of a-z, 0-9 and '-', not {namespace!r}", namespace=namespace)


def check_wanted(wanted: int | None) -> None:
    """Raises: LogError unless this many partitions can be."""
    if wanted is not None and not 1 <= wanted <= PARTITIONS_MAX:
        raise LogError(f"a namespace has 1 to {PARTITIONS_MAX} partitions, not {wanted}", wanted=wanted)


def check_partitions(namespaces: Mapping[str, int], namespace: str, wanted: int | None, where: str) -> int | None:
    """Return the namespace's partition count, None if it does not exist. Raises: LogError if another one is wanted."""
    count = namespaces.get(namespace)
    if count is not None and wanted is not None and wanted != count:
        raise LogError(
            f"namespace {namespace!r} in {where} was created with {count} partitions, which cannot change; "
            f"it was opened with partitions={wanted}: leave that out",
            namespace=namespace,
            partitions=count,
            wanted=wanted,
        )
    return count
