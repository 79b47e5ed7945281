"""What undoes a workflow's steps once an error has left its body (semantics.md §12).

A body gives handlers as it goes (``ctx.on_rollback``): activities with their inputs. They are no steps: each replay gives
them again, but for those given in iterations of loops that are forgotten, which the loop's commit carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gasoline_es.core import events as ev
from gasoline_es.core.error_info import ERROR_BYTES_MAX, shortened
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

    __slots__ = ("_checkpoint", "_handlers", "checkpoints")

    def __init__(self) -> None:
        self._handlers: list[Handler] = []
        self.checkpoints = 0
        """How many checkpoints were reached."""
        self._checkpoint: Location | None = None
        """The branch on which the last checkpoint was reached."""

    @property
    def accepted(self) -> bool:
        """Whether a checkpoint was reached."""
        return self._checkpoint is not None

    def reach_checkpoint(self, branch: Location) -> None:
        """What was given so far stays as it is, whatever comes."""
        self._checkpoint = branch
        self.checkpoints += 1
        self._handlers.clear()

    def give(self, handler: Handler) -> None:
        self._handlers.append(handler)

    def restore(self, loop: LoopEntry) -> Carried:
        """Take over what the forgotten iterations of a loop have reached and given."""
        if loop.checkpoint:
            self.reach_checkpoint(loop.location)
        for one in loop.handlers:
            self.give(Handler(one.name, one.input, one.seq, loop.location, None))
        return Carried(self, loop.location, self.checkpoints, len(loop.handlers))

    def below(self, loop: Location) -> list[Handler]:
        """Return what the iterations of a loop have given, oldest first."""
        depth = len(loop)
        return [one for one in self._handlers if one.given_on[:depth] == loop]

    def reached_below(self, loop: Location) -> bool:
        """Whether the last checkpoint was reached in an iteration of a loop."""
        return self._checkpoint is not None and self._checkpoint[: len(loop)] == loop

    def newest_first(self) -> Sequence[Handler]:
        """Return what is to be undone, in that order: by what each one's branch had seen, then as they were given."""
        in_order = sorted(enumerate(self._handlers), key=lambda given: (given[1].seq, given[0]))
        return [handler for _, handler in reversed(in_order)]


@dataclass(slots=True, eq=False)
class Carried:
    """How much of what a loop's iterations gave its commits carry by now: each carries what is new since the one before."""

    handlers: Handlers
    loop: Location
    checkpoints: int
    count: int

    def next(self) -> tuple[bool, tuple[ev.RollbackHandler, ...]]:
        """Return what the next commit carries: whether a checkpoint was reached, and what was given since."""
        all_of_them = self.handlers
        if not all_of_them.accepted:
            return False, ()
        checkpoint = False
        if all_of_them.checkpoints != self.checkpoints:
            checkpoint = all_of_them.reached_below(self.loop)
            self.checkpoints, self.count = all_of_them.checkpoints, 0
        given = all_of_them.below(self.loop)
        fresh, self.count = given[self.count :], len(given)
        return checkpoint, tuple(ev.RollbackHandler(one.name, one.input, one.seq) for one in fresh)


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
    message = shortened(error, ERROR_BYTES_MAX // 2).message  # there is room for what follows
    told = f"{message}. And what was to undo its steps failed: {shown}"
    return shortened(ev.ErrorInfo(error.type, told, error.traceback, error.details))
