"""What a run waits for: one small object for each step whose answer is not recorded yet, for the runtime to see to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gasoline_es.core.location import Location
from gasoline_es.core.steps import ActivityStep, DispatchStep, EmitStep, ListenStep, OutputStep, SignalStep, SleepStep
from gasoline_es.errors import Cancelled

if TYPE_CHECKING:
    from gasoline_es.core.branch import Branch


Failure = BaseException
"""What a step may give in place of a value: an error, a cancel, or what else left the body of a closure."""


def made_cancel() -> Cancelled:
    """Make what is thrown into a body that is cancelled."""
    return Cancelled._made()  # pyright: ignore[reportPrivateUsage] -- made for the engine, which makes it here only


class Asker(Protocol):
    """Who waits for an answer: a body, or a join, race or catch between it and the step."""

    branch: Branch
    """The branch the step stands on."""

    def answered(self, value: Any, error: Failure | None) -> None:
        """Take the answer: a value, or the error that was recorded in its stead."""


@dataclass(slots=True, eq=False)
class WaitActivity:
    """An attempt of an activity is to run, now or at ``not_before_us``.

    ``heartbeat``: the details of the failed attempt's last one. ``alone``: no other step goes on beside it, so it may
    touch the workflow's state. ``over``: nobody waits for it any more.
    """

    location: Location
    step: ActivityStep
    asker: Asker
    attempt: int = 1
    first_started_us: int | None = None
    not_before_us: int | None = None
    heartbeat: bytes | None = None
    alone: bool = True
    suspect: bool = False
    over: bool = False

    @property
    def ephemeral(self) -> bool:
        """Whether its answer may be given before it is durable. Not a suspect's: that it ended must be known."""
        return self.step.ephemeral and not self.suspect


@dataclass(slots=True, eq=False)
class WaitSleep:
    """The deadline is to pass."""

    location: Location
    step: SleepStep
    asker: Asker
    deadline_us: int
    over: bool = False


@dataclass(slots=True, eq=False)
class WaitListen:
    """A signal is to come, or ``deadline_us`` to pass.

    ``location`` is the listen's own; a timed one is a sleep there, and the signals it takes go to ``taken_at``: the next
    location, or, where steps beside it may stand at that one, a location below.
    """

    location: Location
    step: ListenStep
    asker: Asker
    deadline_us: int | None = None
    taken_at: Location | None = None
    over: bool = False


@dataclass(slots=True, eq=False)
class WaitSend:
    """A signal is to be sent, a workflow dispatched, or a record emitted."""

    location: Location
    step: SignalStep | DispatchStep | EmitStep
    asker: Asker
    over: bool = False


@dataclass(slots=True, eq=False)
class WaitOutput:
    """Another workflow is to complete. ``asked``: it knows that this one waits, and will tell it."""

    location: Location
    step: OutputStep
    asker: Asker
    asked: bool = False
    over: bool = False


@dataclass(slots=True, eq=False)
class WaitCancel:
    """The body is to be thrown a cancel when its turn comes, among the answers."""

    over: bool = False


@dataclass(slots=True, eq=False)
class WaitCommit:
    """Somebody goes on once the event ``seq`` is durable: a loop behind its commit, a body behind its message."""

    asker: Asker
    seq: int
    over: bool = False


Wait = WaitActivity | WaitSleep | WaitListen | WaitSend | WaitOutput
"""What the runtime sees to. (A commit becomes durable by itself.)"""
