"""What undoes a workflow's steps once an error has left its body (semantics.md §12).

A body gives handlers as it goes (``ctx.on_rollback``): activities with their inputs. They are no steps: each replay gives
them again, but for those given in iterations of loops that are forgotten, which the loop's commit carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gasoline_es.core import events as ev
from gasoline_es.core.location import Location, format_location
from gasoline_es.core.steps import ActivityPlan, ActivityStep
from gasoline_es.errors import ActivityFailed, DefinitionError

if TYPE_CHECKING:
    from gasoline_es.core.history import LoopEntry
    from gasoline_es.core.strand import Strand

PlanOf = Callable[[str], ActivityPlan | None]
"""Finds an activity by its name; None: the code has none of that name."""

SHOWN_MAX: Final = 5
"""So many handlers that failed are named in the error of the workflow."""


@dataclass(slots=True, eq=False)
class Handler:
    """``given_on``: the branch on which it was given. ``plan`` None: a loop's commit carried it, and it is yet to be found."""

    name: str
    input: bytes
    seq: int
    given_on: Location
    plan: ActivityPlan | None


class Handlers:
    """The handlers given since the last checkpoint, oldest first."""

    __slots__ = ("_checkpoint", "_handlers")

    def __init__(self) -> None:
        self._handlers: list[Handler] = []
        self._checkpoint: Location | None = None
        """The branch on which the last checkpoint was reached."""

    @property
    def accepted(self) -> bool:
        """Whether a checkpoint was reached."""
        return self._checkpoint is not None

    def reach_checkpoint(self, branch: Location) -> None:
        """What was given so far stays as it is, whatever comes."""
        self._checkpoint = branch
        self._handlers.clear()

    def give(self, handler: Handler) -> None:
        self._handlers.append(handler)

    def below(self, loop: Location) -> tuple[bool, tuple[ev.RollbackHandler, ...]]:
        """Return whether the last checkpoint was reached in a loop's iterations, and what they gave since: for its commit."""
        if self._checkpoint is None:
            return False, ()
        depth = len(loop)
        given = [one for one in self._handlers if one.given_on[:depth] == loop]
        return self._checkpoint[:depth] == loop, tuple(
            ev.RollbackHandler(one.name, one.input, one.seq) for one in given
        )

    def restore(self, loop: LoopEntry) -> None:
        """Take over what the forgotten iterations of a loop have reached and given."""
        if loop.checkpoint:
            self.reach_checkpoint(loop.location)
        for one in loop.handlers:
            self.give(Handler(one.name, one.input, one.seq, loop.location, None))

    def newest_first(self) -> Sequence[Handler]:
        """Return what is to be undone, in that order: by what each one's branch had seen, then as they were given."""
        in_order = sorted(enumerate(self._handlers), key=lambda given: (given[1].seq, given[0]))
        return [handler for _, handler in reversed(in_order)]


async def undo(strand: Strand, steps: Iterable[ActivityStep]) -> list[ActivityFailed]:
    """Run the handlers' activities one after the other, each whatever became of the one before; return what failed."""
    failed: list[ActivityFailed] = []
    for step in steps:
        strand.made(step)
        try:
            await step
        except ActivityFailed as error:
            failed.append(error)
    return failed


def steps_of(handlers: Iterable[Handler], version: int, plan_of: PlanOf) -> list[ActivityStep]:
    """Make the steps that undo. Raises: DefinitionError: the code has no such activity any more."""
    steps: list[ActivityStep] = []
    for handler in handlers:
        plan = plan_of(handler.name) if handler.plan is None else handler.plan
        if plan is None:
            raise DefinitionError(
                f"activity {handler.name!r} is to be rolled back with, as an iteration of the loop at "
                f"{format_location(handler.given_on)} asked for, and the code has no activity of that name where it is looked "
                f"for: put it into the module of the workflow, or import it there"
            )
        steps.append(ActivityStep(version, "on_rollback", None, 0, plan, handler.input))
    return steps


def error_of(error: ev.ErrorInfo, failed: Sequence[ActivityFailed]) -> ev.ErrorInfo:
    """Return the error that the workflow dies of: the one that left its body, and which handlers failed besides."""
    if not failed:
        return error
    shown = "; ".join(str(one) for one in failed[:SHOWN_MAX]) + ("; …" if len(failed) > SHOWN_MAX else "")
    told = f"{error.message}. And what was to undo its steps failed: {shown}"
    return ev.ErrorInfo(error.type, told, error.traceback, error.details)
