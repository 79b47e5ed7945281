"""What the worker's process says to the one that supervises it: JSON Lines through a pipe of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

LINE_BYTES_MAX: Final = 4_000
"""A line that is written while the worker works: so long the kernel takes it whole or not at all (POSIX, PIPE_BUF)."""
ATTEMPTS_MAX: Final = 20
"""So many attempts are told, the others counted."""
_MESSAGE_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Order:
    """What the worker's process is to do, given on its command line. ``report_fd``: where it reports to.

    ``projections``: the module of those that it keeps up; ``store``: where their tables are, None: with the log.
    ``pipelines``: the module of those that it runs.
    """

    module: str
    url: str
    namespace: str
    max_concurrency: int
    stop_limit_s: float
    report_fd: int
    projections: str | None = None
    store: str | None = None
    pipelines: str | None = None

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def read(cls, text: str) -> Order:
        """The reverse of ``text``."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Refused:
    """The code cannot be loaded: nothing runs until it is saved again."""

    message: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker runs these workflows. ``woken``: so many dead ones were woken for it."""

    workflows: tuple[str, ...]
    woken: int = 0


@dataclass(frozen=True, slots=True)
class UnderWay:
    """One attempt of an activity that runs right now."""

    workflow_id: str
    location: str
    name: str
    attempt: int
    started_us: int


@dataclass(frozen=True, slots=True)
class Running:
    """The attempts that run right now, the oldest first; ``more``: how many besides these."""

    attempts: tuple[UnderWay, ...] = ()
    more: int = 0


Report = Refused | Ready | Running


def running(attempts: Iterable[UnderWay]) -> Running:
    """Return what is told of all attempts, as many as a line holds."""
    ordered = sorted(attempts, key=lambda one: one.started_us)
    told = Running(tuple(ordered[:ATTEMPTS_MAX]), max(len(ordered) - ATTEMPTS_MAX, 0))
    while told.attempts and len(write(told)) > LINE_BYTES_MAX:  # long names, deep places
        told = Running(told.attempts[:-1], told.more + 1)
    return told


def write(report: Report) -> bytes:
    """Return a report as a line."""
    members: dict[str, Any]
    match report:
        case Refused():
            members = {"refused": report.message[:_MESSAGE_MAX]}
        case Ready():
            members = {"ready": report.workflows, "woken": report.woken}
        case Running():
            rows = [(one.workflow_id, one.location, one.name, one.attempt, one.started_us) for one in report.attempts]
            members = {"running": rows, "more": report.more}
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"


def read(line: bytes) -> Report | None:
    """The reverse of ``write``. None: that is no report; whoever writes to foreign pipes may have written it."""
    try:
        members = json.loads(line)
        if "refused" in members:
            return Refused(str(members["refused"]))
        if "ready" in members:
            return Ready(tuple(map(str, members["ready"])), int(members["woken"]))
        return Running(tuple(UnderWay(*row) for row in members["running"]), int(members["more"]))
    except (ValueError, TypeError, KeyError):
        return None
