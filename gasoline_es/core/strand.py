"""One coroutine of a run: a workflow's body, a closure's, a loop's iteration. Driven with ``send()`` (design §3).

Nothing is thrown to suspend it: it is simply not resumed. What its steps wait for is seen to by the run it belongs to.
"""

from __future__ import annotations

import contextvars
import ctypes
import hashlib
import sys
import uuid
from collections.abc import Callable, Coroutine, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from gasoline_es.core.branch import Branch
from gasoline_es.core.error_info import error_info, traceback_in
from gasoline_es.core.flow import Node, place
from gasoline_es.core.guard import Told, awaited_twice, close_unstarted_behind, explained, guarded, refuse, watch
from gasoline_es.core.location import Location, format_location
from gasoline_es.core.rollback import Handler
from gasoline_es.core.steps import ActivityPlan, ActivityStep, CheckpointStep, CheckVersionStep, RemovedStep, Step
from gasoline_es.core.waits import Asker, Failure, WaitActivity, made_cancel
from gasoline_es.errors import Cancelled, DefinitionError, GasolineError, ReplayError, StepMisused

if TYPE_CHECKING:
    from gasoline_es.core.replay import Run

CLOSED_STEPS_MAX = 1_000
"""A body that goes on asking for steps after it was closed is left behind after so many."""
CLOSES_MAX = 10
"""A body that awaits again each time it is closed is left behind after so many."""


class Pending:
    """The answer is not recorded yet."""

    __slots__ = ()


PENDING: Final = Pending()
OVER: Final[Any] = Pending()
"""In place of a step: the body has ended."""


class Closed(BaseException):
    """Raised at a step of a body that was closed: neither eviction nor death runs another step."""


class _Failed(Exception):
    """A step was answered with an error while it was taken."""

    def __init__(self, error: Failure) -> None:
        super().__init__()
        self.error = error


class Strand:
    """It is what a ``WorkflowContext`` stands on, and the asker of the steps that its coroutine awaits."""

    __slots__ = (
        "_asker",
        "_cancelled",
        "_closed_steps",
        "_coroutine",
        "_drawn_at",
        "_draws",
        "_driving",
        "_early",
        "_node",
        "_run",
        "_steps",
        "_swallowed",
        "_taking",
        "branch",
        "context",
    )

    def __init__(self, run: Run, asker: Asker, branch: Branch, context: contextvars.Context) -> None:
        self.branch = branch
        self._run = run
        self._asker = asker
        self.context = context
        watch(context, self)
        self._driving = False
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._node: Node | WaitActivity | None = None
        """What is awaited now."""
        self._taking = False
        self._cancelled = False
        """Whether the step that is awaited now gives a cancel, whatever it would have given."""
        self._early: tuple[Any, Failure | None] | None = None
        """The answer of a step that was answered while it was taken."""
        self._steps: list[Step] = []
        self._closed_steps = 0
        self._swallowed: Step | None = None
        self._draws = 0
        self._drawn_at: Location = ()

    # --- what the context asks of it ----------------------------------------------------------------------------------

    @property
    def workflow_id(self) -> str:
        return self._run.state.summary.id

    @property
    def workflow_name(self) -> str:
        return self._run.state.summary.name

    @property
    def ray_id(self) -> str:
        return self._run.state.summary.ray_id

    @property
    def tags(self) -> Mapping[str, str]:
        return self.branch.tags()

    @property
    def version(self) -> int:
        return self.branch.version

    def made(self, step: Step) -> None:
        """Note a step the body made, to find the ones it never awaits; refuse it if the body was closed."""
        if not self._driving:
            if self._outside:
                raise self._refused_outside(f"`ctx.{step.verb}(…)`", step.file, step.line)
            self._run.closed = True  # Python closes it, because this run was dropped (at exit, say)
        if self._run.closed or self._coroutine is None:
            self._refuse_closed(step)
        else:
            self._steps.append(step)

    def now_us(self) -> int:
        """The time of the last event delivered to the body."""
        return self.branch.clock_us

    def random(self) -> float:
        """A number in [0, 1) that every replay draws again."""
        return (self._draw() >> 75) / (1 << 53)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._draw(), version=4)

    def give_handler(self, plan: ActivityPlan, input: bytes) -> None:
        """Note what undoes something. Raises: StepMisused, which ends the run: there was no checkpoint."""
        if self._outside or not self._run.handlers.accepted:
            frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] -- of who called the context
            file, line = frame.f_code.co_filename, frame.f_lineno
            if self._outside:
                raise self._refused_outside("`ctx.on_rollback(…)`", file, line)
            error = _no_checkpoint(plan.name, file, line)
            self.refuse(error)
            raise error
        handler = Handler(plan.name, input, self.branch.seq, self.branch.cursor.prefix, plan)
        self._run.handlers.give(handler)

    def refuse(self, error: Exception) -> None:
        """End the run with this error as soon as the body gives control back, whatever it catches."""
        self._run.refuse(error)

    @property
    def _outside(self) -> bool:
        """Whether whoever calls now is not this strand's body."""
        return not self._driving and not getattr(self._coroutine, "cr_running", False)

    def place(self) -> tuple[str, int]:
        """The file and line where the body stands, for messages."""
        frame: FrameType | None = getattr(self._coroutine, "cr_frame", None)
        return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)

    def told(self) -> Told:
        """What a log record that the body makes now is to say of it."""
        summary, at = self._run.state.summary, self.branch.cursor.last_location
        return Told(summary.id, summary.name, format_location(at) if at else "", self._run.came_past(self.branch))

    def _draw(self) -> int:
        if self._outside:
            # A loop that forgets its iterations would forget what they drew of another branch's numbers.
            frame = sys._getframe(3)  # pyright: ignore[reportPrivateUsage] -- of who called the context
            raise self._refused_outside("`ctx.random()` or `ctx.uuid()`", frame.f_code.co_filename, frame.f_lineno)
        # Depends on the place, not on the count of all draws: an edit elsewhere in the body does not shift it.
        here = self.branch.cursor.last_location
        if here and here == self.branch.cursor.prefix:
            here = (*here, (0,))  # the branch's start, which is not the place of who goes on after the branch
        if here != self._drawn_at:
            self._drawn_at, self._draws = here, 0
        self._draws += 1
        seed = f"{self._run.state.seed_of_draw(here)}|{format_location(here)}|{self._draws}"
        return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16], "big")

    # --- driving ------------------------------------------------------------------------------------------------------

    def start(self, body: Callable[[Strand], Coroutine[Any, Any, Any]]) -> None:
        """Make the coroutine and drive it over everything recorded. ``body`` calls the function with its context."""
        self._driving = True
        try:
            self._coroutine = self.context.run(body, self)
        finally:
            self._driving = False
        self._drive(None, None)

    def answered(self, value: Any, error: Failure | None) -> None:
        """Go on with the answer of the step that is awaited."""
        if self._cancelled:
            self._cancelled = False
            if not isinstance(error, Cancelled):
                value, error = None, made_cancel()
        if self._taking:
            self._early = (value, error)
        else:
            self._node = None
            self._drive(value, error)

    def cancel(self) -> None:
        """Have a cancel thrown into the coroutine, and into those below it, in place of what they await now."""
        if self._coroutine is None or self._node is None:
            return
        self._cancelled = True
        if isinstance(self._node, WaitActivity):
            self._run.interrupt(self._node)
        else:
            self._node.cancel()

    def _drive(self, value: Any, error: BaseException | None) -> None:
        """Resume the body with a value or an error and answer its steps, until one has to wait or the body ends."""
        coroutine, run, made = self._coroutine, self._run, self._steps
        assert coroutine is not None
        resume, send = self.context.run, coroutine.send
        branch, recorded = self.branch, self.branch.cursor.recorded_activity
        left: BaseException | None = None
        while True:
            self._driving = True
            try:
                step = resume(send, value) if error is None else resume(coroutine.throw, error)
            except StopIteration as stopped:
                step, value = OVER, stopped.value
            except KeyboardInterrupt:
                self._driving, self._coroutine = False, None
                run.close()
                raise
            except BaseException as raised:
                step, left = OVER, raised
            self._driving = False
            if step is OVER:
                # Not in the handlers above: an error that is raised further up next would have this end as its context.
                try:
                    if left is None:
                        self._returned(value)
                    else:
                        self._raised(left)
                finally:
                    del left  # it holds this frame
                return
            if run.violation is not None:
                run.die(run.violation)
                return
            try:
                if len(made) == 1 and made[0] is step and not step.whole:
                    made.clear()
                    step.taken = True
                else:
                    self._check_awaited(step)
                entry = recorded(step) if type(step) is ActivityStep and not run.side_by_side else None
                value, error = self._take(step) if entry is None else branch.output(step, entry), None
            except _Failed as failed:
                value, error = None, failed.error
            except (GasolineError, ValueError) as refused:
                run.die(refused, code_at_fault=True)
                return
            if value is PENDING or run.end is not None:
                return

    def _take(self, step: Step) -> Any:
        """Answer a step from what is recorded, or give PENDING. An activity is not recorded here, or others are under way."""
        run, branch = self._run, self.branch
        if isinstance(step, ActivityStep):
            at, _ = branch.cursor.place(step, "activity", step.plan.name)
            self._node = wait = WaitActivity(at, step, self)
            run.wait_for(wait)
            return PENDING
        if isinstance(step, RemovedStep):
            return branch.removed(step)
        if isinstance(step, CheckVersionStep):
            return branch.check_version(step)
        if isinstance(step, CheckpointStep) and run.alone:
            branch.checkpoint(step)
            run.handlers.reach_checkpoint(branch.cursor.prefix)
            return None
        self._taking = True
        try:
            self._node = node = place(run, step, self, joined=False)
            node.start()
        finally:
            self._taking = False
        early, self._early = self._early, None
        if early is None:
            return PENDING
        self._node = None
        value, error = early
        if error is not None:
            raise _Failed(error)
        return value

    def _returned(self, value: Any) -> None:
        self._coroutine = None
        if self._run.violation is not None:
            self._run.die(self._run.violation)
            return
        try:
            self._check_none_left("the body returned")
            self.branch.cursor.finish()
        except GasolineError as error:
            self._run.die(error)
            return
        self._end(value, None)

    def _raised(self, raised: BaseException) -> None:
        self._coroutine = None
        close_unstarted_behind(traceback_in(raised))
        error = self._run.violation or explained(raised, place_of(raised))
        if isinstance(error, FATAL) or (isinstance(error, Cancelled) and not self._run.cancelled):
            self._run.die(error)
        else:
            self._end(None, error)  # also a SystemExit: it leaves body after body, as in any code, and is rolled back

    def _end(self, value: Any, error: Failure | None) -> None:
        above = self._asker.branch
        above.catch_up(self.branch)
        self._let_go()
        self._asker.answered(value, error)

    # --- letting go ---------------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """Take the body out of memory, with what it awaits. Its steps in ``finally`` blocks are refused."""
        coroutine, self._coroutine = self._coroutine, None
        node, self._node = self._node, None
        try:
            if isinstance(node, WaitActivity):
                self._run.give_up(node)
            elif node is not None:
                node.drop()
            if coroutine is not None:
                self._close(coroutine)
        finally:
            self._let_go()
        swallowed, self._swallowed = self._swallowed, None
        if swallowed is not None:
            self._run.complaints.append(
                f"the body swallowed that it was taken out of memory, with a bare `except:` or an `except "
                f"BaseException:`, and went on: {self._closed_steps} of its steps were refused, the first "
                f"`ctx.{swallowed.verb}(…)` in {swallowed.file}:{swallowed.line}; none of them was recorded. Catch "
                f"`Exception` instead"
            )

    def _let_go(self) -> None:
        self._steps.clear()
        watch(self.context, None)  # the two hold each other

    def _close(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Throw GeneratorExit into the body until it ends, as ``coroutine.close()`` does once."""
        self._driving = True
        try:
            for _ in range(CLOSES_MAX):
                guarded(self.context.run, coroutine.throw, GeneratorExit())
        except (GeneratorExit, Closed):
            return  # a step in a `finally` or after a swallowed close was refused and the body let go: as it should be
        except StopIteration:
            if self._swallowed is None:
                self._run.complaints.append(
                    "the body swallowed that it was taken out of memory, with a bare `except:`, an `except "
                    "BaseException:` or a `return` in a `finally:`, and returned. What it returned was dropped; "
                    "nothing was recorded"
                )
            return
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._run.complaints.append(
                f"the body raised an error when it was taken out of memory: {error_info(error)}"
            )
            return
        finally:
            self._driving = False
        self._run.complaints.append(
            "the body does not let go: it was taken out of memory, and each time it awaits again. It is left behind, "
            "which costs its memory"
        )
        _leave_behind(coroutine)

    def _refuse_closed(self, step: Step) -> None:
        self._closed_steps += 1
        if self._swallowed is None and not _is_closing(sys.exc_info()[1]):
            self._swallowed = step
        if self._closed_steps > CLOSED_STEPS_MAX:
            # A body that catches everything in a loop cannot be stopped by raising: let its step wait for ever instead.
            return
        raise Closed(f"this run is closed: `ctx.{step.verb}(…)` is refused")

    def _refused_outside(self, what: str, file: str, line: int) -> StepMisused:
        error = StepMisused(
            f"{what} in {file}:{line} was called on the context of workflow {self.workflow_id} outside of that workflow's "
            f"body, or of the closure or iteration it was made for: a context belongs to one run of one body. Use the `ctx` "
            f"that this function was given",
            file=file,
            line=line,
        )
        refuse(error)
        return error

    # --- steps that were made and not awaited -------------------------------------------------------------------------

    def _check_awaited(self, step: object) -> None:
        if not isinstance(step, Step):
            file, line = self.place()
            shown = "a bare yield, as in asyncio.sleep(0)" if step is None else f"a {type(step).__name__}"
            raise StepMisused(
                f"a workflow body awaited something that is not a step ({shown}) in {file}:{line}: a body may only "
                f"await the verbs of `ctx`. Wait with `ctx.sleep(…)`, do I/O in an activity with `ctx.activity(…)`",
                file=file,
                line=line,
            )
        if step not in self._steps:
            if step.taken:
                raise awaited_twice(*self.place())
            where = f"{step.file}:{step.line}"
            raise StepMisused(f"a step was awaited that belongs to another run: `ctx.{step.verb}(…)` in {where}")
        self._steps.remove(step)
        step.taken = True
        self._take_parts(step)
        self._check_none_left(f"`ctx.{step.verb}(…)` was awaited in line {step.line}")

    def _take_parts(self, whole: Step) -> None:
        """The steps a join was given are awaited with it."""
        parts: dict[int, Step] = {}
        to_see = list(whole.parts())
        while to_see:
            part = to_see.pop()
            if part.taken or id(part) in parts:
                raise awaited_twice(part.file, part.line)
            parts[id(part)] = part
            to_see += part.parts()
        left = [step for step in self._steps if id(step) not in parts]
        if len(left) + len(parts) != len(self._steps):
            raise StepMisused(
                f"`ctx.{whole.verb}(…)` in {whole.file}:{whole.line} was given a step that another context made: give it the "
                f"steps of the `ctx` it is called on, and use the `ctx` that a closure is given inside that closure only",
                file=whole.file,
                line=whole.line,
            )
        for part in parts.values():
            part.taken = True
        self._steps[:] = left

    def _check_none_left(self, when: str) -> None:
        if not self._steps:
            return
        held = {id(part) for whole in self._steps for part in whole.parts()}
        lost = next(step for step in self._steps if id(step) not in held)
        raise StepMisused(
            f"a step was made but never awaited: `ctx.{lost.verb}(…)` in {lost.file}:{lost.line}, when {when}. Write "
            f"`await ctx.{lost.verb}(…)`: what is not awaited is neither done nor recorded",
            file=lost.file,
            line=lost.line,
        )


def place_of(error: BaseException) -> tuple[str, int]:
    """The file and line of the body that an error left."""
    found = traceback_in(error)
    while found is not None and found.tb_frame.f_globals.get("__name__") in _DRIVERS:
        found = found.tb_next
    return ("", 0) if found is None else (found.tb_frame.f_code.co_filename, found.tb_lineno)


def _is_closing(error: BaseException | None) -> bool:
    """Whether the close is still on its way through the body (a ``finally:``), rather than swallowed."""
    while error is not None:
        if isinstance(error, GeneratorExit | Closed):
            return True
        error = error.__context__
    return False


def _no_checkpoint(name: str, file: str, line: int) -> StepMisused:
    return StepMisused(
        f"`ctx.on_rollback({name}, …)` in {file}:{line} was called before any checkpoint, so it is not known how far back "
        f"the workflow may be rolled. Write `await ctx.checkpoint()` first",
        file=file,
        line=line,
    )


def _leave_behind(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Keep a body that would not let go for good: collecting it, at exit too, would only run into the same again."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coroutine))


FATAL: Final = (ReplayError, StepMisused, DefinitionError)
"""Mistakes in the code: they end the run whatever catches them."""
_DRIVERS: Final = frozenset({__name__, "gasoline_es.core.replay", guarded.__module__})
