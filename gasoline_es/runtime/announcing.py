"""A worker's word on the log about what it runs: one record of the registry, taken back when it stops (design §5).

It decides nothing and nothing waits for it: it is for people, who want to know why a workflow waits. So it rides in the
first append of a partition that the worker owns, and asks for one of its own only when none has come for a while.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from gasoline_es.core.announced import Announced, announced_as
from gasoline_es.core.durations import format_time
from gasoline_es.errors import LogError
from gasoline_es.registry import Registry
from gasoline_es.runtime.node import Node
from gasoline_es.runtime.partition import Partition


class Announcement:
    """The announcement of one worker."""

    def __init__(self, node: Node, registry: Registry) -> None:
        self._node = node
        self._registry = registry
        self._value = b""
        self._on_its_way: Partition | None = None
        self._durable = False

    def make(self) -> None:
        """Put it into the next append of the first partition that is owned. None is: :meth:`see_to` does, later."""
        node = self._node
        self._durable = False
        self._value = Announced(
            worker=node.log.incarnation,
            started=format_time(node.clock.now_us()),
            version=_version(),
            workflows=tuple(sorted(self._registry)),
            activities=tuple(self._registry.activities),
        ).json()
        self._note()

    def see_to(self) -> None:
        """Ask for the append if none has come since; begin anew if it failed."""
        if self._durable:
            return
        if self._on_its_way is None or self._on_its_way.lost:
            self._note()
        else:
            self._on_its_way.hurry()

    def take_back(self) -> None:
        """Put a tombstone into the next append of a partition that is owned, if there was anything to take back."""
        if self._durable or self._on_its_way is not None:
            partition = self._first()
            if partition is not None:
                partition.note(announced_as(self._node.log.incarnation), None, _nobody_minds)
        self._durable, self._on_its_way = False, None

    def _note(self) -> None:
        partition = self._on_its_way = self._first()
        if partition is not None:
            partition.note(announced_as(self._node.log.incarnation), self._value, self._settled)

    def _first(self) -> Partition | None:
        owned = self._node.partitions
        return owned[min(owned)] if owned else None

    def _settled(self, error: LogError | None) -> None:
        self._durable = error is None
        self._on_its_way = None


def _nobody_minds(error: LogError | None) -> None:
    """A tombstone that is not written is of a process that has lost its partitions: nobody takes it for alive."""


def _version() -> str:
    try:
        return version("gasoline_es")
    except PackageNotFoundError:  # run from where it was not installed
        return ""
