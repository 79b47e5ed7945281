"""A namespace that moves from one log to another: where each record belongs there, and who may go on where (0040).

Both logs say in their registries how far it came, under one key in every partition. What stands there last counts:

| at the old place | at the new place | who may work |
|---|---|---|
| | | at the old place |
| ``leaving`` | ``arriving``, or nothing yet | nobody |
| ``left`` | ``arriving`` | nobody |
| ``left`` | ``arrived`` | at the new place |
| ``staying`` | ``arriving``, or nothing | at the old place: the copy was given up |

No order of these writes, and no end of the process between them, lets both go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

import orjson
from pydantic_core import from_json

from gasoline_es.core.commands import Yield, decode_request
from gasoline_es.core.ids import is_workflow_id, partition_of

KEY: Final = "copy"
"""The registry's key of a :class:`Mark`."""
STREAMS: Final = ("events", "schedules", "parked", "stored")
"""The owners' topics whose records all stay what they are, in their order. No two keys of one are equal."""

State = Literal["leaving", "left", "staying", "arriving", "arrived"]
_CLOSED: Final = frozenset({"leaving", "left", "arriving"})


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a namespace has moved. ``log_id``, ``url`` and ``partitions`` are of the other log.

    ``time``: when it was written, RFC 3339. ``suspects``: the workflows of this partition whose activities may have taken
    down its last owner, which the next owner is to know of; None: all that run. Only where it leaves.
    """

    state: State
    log_id: str
    url: str
    partitions: int
    time: str
    suspects: tuple[str, ...] | None = ()

    @property
    def closed(self) -> bool:
        """Whether nobody may work where it stands."""
        return self.state in _CLOSED

    def json(self) -> bytes:
        """Write it as the value of its record."""
        return orjson.dumps(self)

    @classmethod
    def read(cls, raw: bytes) -> Mark:
        """Read what :meth:`json` wrote. Raises: ValueError: it is none, or of a newer version."""
        try:
            told = cast(dict[str, Any], from_json(raw))
            if told["state"] not in get_args(State):
                raise TypeError(f"state {told['state']!r}")
            named = told["suspects"]
            suspects = None if named is None else tuple(map(str, named))
            return cls(
                told["state"],
                str(told["log_id"]),
                str(told["url"]),
                int(told["partitions"]),
                str(told["time"]),
                suspects,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not what a copy leaves in the registry: {error!r}") from error

    def refusal(self, url: str, namespace: str) -> str:
        """Say why nobody may work on the namespace of this log, and what to do."""
        here = f"namespace {namespace!r} of {url}"
        if self.state == "left":
            return f"{here} was moved to {self.url} at {self.time}: it goes on there, open that"
        if self.state == "arriving":
            return (
                f"{here} is a copy of {self.url} that is not whole yet: run `gasoline log copy` again, from there to here, "
                f"until it says that all is copied"
            )
        return (
            f"{here} is being moved to {self.url}, since {self.time}: run `gasoline log copy` again, from here to there, until "
            f"it says that all is copied; or, to go on here, `gasoline log reopen`"
        )


def home_of(topic: str, key: str, count: int) -> int:
    """Return the partition of an owners' record among so many. ``topic``: without the namespace.

    Raises: ValueError: the key tells of none.
    """
    if topic == "stored":
        if count != 1:
            raise ValueError(
                f"record {key!r} is of an application that is event-sourced by itself, and namespaces with such have one "
                f"partition, not {count}"
            )
        return 0
    subject = key.partition("/")[0]
    if not is_workflow_id(subject):
        raise ValueError(f"record {key!r} of {topic} is about no workflow: it has no partition to go to")
    return partition_of(subject, count)


def home_of_command(key: str, value: bytes | None, partition: int, before: int, count: int) -> int | None:
    """Return the partition among ``count`` to whose inbox a command goes that was in ``partition`` among ``before``.

    What cannot be read is refused there as it would have been here, and its caller told. None: it means nothing there.
    """
    if value is None:
        return None
    try:
        command = decode_request(value).command
    except ValueError:
        return partition_of(key, count) if is_workflow_id(key) else partition * count // before
    return None if isinstance(command, Yield) else partition_of(command.workflow_id, count)


def suspects_of(
    partition: int, count: int, told: Mapping[int, tuple[str, ...] | None], before: int
) -> tuple[str, ...] | None:
    """Return the suspects of a partition among ``count`` from those told by partitions among ``before``; None: all that run.

    A suspect is only started with more care than others: one too many does no harm.
    """
    found: list[str] = []
    for index, suspects in told.items():
        if suspects is None:
            if index * count < (partition + 1) * before and partition * before < (index + 1) * count:
                return None  # they have slots in common
        else:
            found += [one for one in suspects if is_workflow_id(one) and partition_of(one, count) == partition]
    return tuple(found)


def tracks_histories(tracked: Iterable[str], namespace: str) -> str | None:
    """Return one of these applications that is a history of the namespace, whose notifications are offsets; None: none is."""
    for application in tracked:
        named, _, partition = application.rpartition("/")
        if named == namespace and partition.isdecimal():
            return application
    return None
