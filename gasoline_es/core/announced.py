"""What a worker says on the log about what it runs: a record of the registry (design §5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import orjson
from pydantic_core import from_json

WORKER: Final = "worker/"
"""What the keys of these records begin with."""


def announced_as(incarnation: str) -> str:
    """Return the registry's key under which the worker of a process says what it runs."""
    return f"{WORKER}{incarnation}"


@dataclass(frozen=True, slots=True)
class Announced:
    """What a worker said it runs. ``activities``: those that its bodies name directly; it may meet more.

    ``version``: of this library, in that process. ``started``: when the worker did, RFC 3339.
    """

    worker: str
    started: str
    version: str
    workflows: tuple[str, ...]
    activities: tuple[str, ...]

    def json(self) -> bytes:
        """Write it as the value of its record."""
        return orjson.dumps(self)

    @classmethod
    def read(cls, raw: bytes) -> Announced:
        """Read what :meth:`json` wrote. Raises: ValueError: it is none."""
        try:
            told = cast(dict[str, Any], from_json(raw))
            names = (tuple(map(str, told["workflows"])), tuple(map(str, told["activities"])))
            return cls(str(told["worker"]), str(told["started"]), str(told["version"]), *names)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not what a worker announces: {error!r}") from error
