"""Drives a workflow's body with ``send()``, over what is recorded and on from there (design §3, semantics.md §3–§4).

A :class:`Run` owns one coroutine. :meth:`Run.advance` resumes it as long as the fold of the history answers what it waits
for, and stops at the first step whose answer is not recorded yet. Nothing is thrown to suspend: the coroutine is simply
not resumed.
"""

from __future__ import annotations

import contextvars
import ctypes
import hashlib
import sys
import traceback
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from gasoline_es.core import events as ev
from gasoline_es.core.branch import PENDING, Branch, Record, Wait
from gasoline_es.core.guard import (
    awaited_twice,
    close_unstarted_behind,
    enter,
    explained,
    guarded,
    leave,
    refuse,
    watch,
)
from gasoline_es.core.location import Location, format_location
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.steps import Step
from gasoline_es.errors import ActivityFailed, DefinitionError, GasolineError, ReplayError, StepMisused

CLOSED_STEPS_MAX = 1_000
"""A body that goes on asking for steps after it was closed is left behind after so many."""
CLOSES_MAX = 10
"""A body that awaits again each time it is closed is left behind after so many."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The body returned ``value``; whoever knows the definition encodes it."""

    value: Any


@dataclass(frozen=True, slots=True)
class Died:
    """The run cannot go on: an error left the body, or code and history do not fit together.

    ``code_at_fault``: the engine ended it over a mistake in the code, which will be mended; then nothing that this turn
    decided is to be recorded, or the mended code could not replay it.
    """

    error: ev.ErrorInfo
    code_at_fault: bool = False


class _Closed(BaseException):
    """Raised at a step of a body that was closed: neither eviction nor death runs another step."""


class Run:
    """One life of a body in memory: from its first line to where it waits, ends, or is closed.

    It is what a ``WorkflowContext`` stands on. After :meth:`start` and :meth:`advance`, either ``wait`` tells what it waits
    for or ``end`` how it ended.
    """

    __slots__ = (
        "_branch",
        "_closed_steps",
        "_context",
        "_coroutine",
        "_drawn_at",
        "_draws",
        "_driving",
        "_steps",
        "_swallowed",
        "_violation",
        "closed",
        "complaints",
        "end",
        "state",
    )

    def __init__(self, state: WorkflowState, record: Record) -> None:
        self.state = state
        self.end: Returned | Died | None = None
        self.closed = False
        self.complaints: list[str] = []
        """What an operator should hear about how the body was closed; the core itself never logs."""
        self._branch = Branch(state, record, (), 1, state.summary.created_us)
        self._context = contextvars.Context()
        watch(self._context, self)
        self._driving = False
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._steps: list[Step] = []
        self._violation: Exception | None = None
        self._closed_steps = 0
        self._swallowed: Step | None = None
        self._draws = 0
        self._drawn_at: Location = ()

    # --- what the context asks of it ----------------------------------------------------------------------------------

    @property
    def workflow_id(self) -> str:
        return self.state.summary.id

    @property
    def workflow_name(self) -> str:
        return self.state.summary.name

    @property
    def ray_id(self) -> str:
        return self.state.summary.ray_id

    @property
    def tags(self) -> Mapping[str, str]:
        return self.state.summary.tags

    @property
    def version(self) -> int:
        return self._branch.version

    def made(self, step: Step) -> None:
        """Note a step the body made, to find the ones it never awaits; refuse it if the body was closed."""
        if not self._driving:
            if not getattr(self._coroutine, "cr_running", False):
                raise self._refused_outside(step)
            self.closed = True  # Python closes it, because this run was dropped (at exit, say)
        if self.closed:
            self._refuse_closed(step)
        else:
            self._steps.append(step)

    def now_us(self) -> int:
        """The time of the last event delivered to the body."""
        return self._branch.clock_us

    def random(self) -> float:
        """A number in [0, 1) that every replay draws again."""
        return (self._draw() >> 75) / (1 << 53)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._draw(), version=4)

    def refuse(self, error: Exception) -> None:
        """End the run with this error as soon as the body gives control back, whatever it catches."""
        if self._violation is None:
            self._violation = error

    def place(self) -> tuple[str, int]:
        """The file and line where the body stands, for messages."""
        frame: FrameType | None = getattr(self._coroutine, "cr_frame", None)
        return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)

    def _draw(self) -> int:
        # Depends on the place, not on the count of all draws: an edit elsewhere in the body does not shift it.
        here = self._branch.cursor.last_location
        if here != self._drawn_at:
            self._drawn_at, self._draws = here, 0
        self._draws += 1
        seed = f"{self.workflow_id}|{format_location(here)}|{self._draws}"
        return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16], "big")

    # --- driving ------------------------------------------------------------------------------------------------------

    @property
    def wait(self) -> Wait | None:
        return self._branch.wait

    def start(self, body: Callable[[], Coroutine[Any, Any, Any]], now_us: int) -> None:
        """Make the coroutine and drive it over everything recorded. ``body`` calls the workflow's function."""
        self._coroutine = self._context.run(body)
        self._drive(None, None, now_us)

    def advance(self, now_us: int) -> None:
        """Go on if what it waits for is recorded by now; else change nothing. May record the answer, for a later look."""
        if self.end is not None or self.closed:
            return
        try:
            answer, failure = self._branch.look(now_us), None
        except ActivityFailed as failed:
            answer, failure = None, failed
        except GasolineError as misfit:
            self._die(misfit)
            return
        if answer is not PENDING:
            self._drive(answer, failure, now_us)

    def _drive(self, value: Any, error: BaseException | None, now_us: int) -> None:
        """Resume the body with a value or an error and answer its steps, until one has to wait or the body ends."""
        coroutine = self._coroutine
        assert coroutine is not None
        resume, send, take, made = self._context.run, coroutine.send, self._branch.take, self._steps
        # Under one guard from the first step to the last: a replay resumes the body for every recorded step.
        outside = enter()
        self._driving = True
        try:
            while True:
                try:
                    step = resume(send, value) if error is None else resume(coroutine.throw, error)
                except StopIteration as stopped:
                    self._returned(stopped.value)
                    return
                except KeyboardInterrupt:
                    self._coroutine = self._branch.wait = None
                    self.close()
                    raise
                except BaseException as raised:
                    self._coroutine = None
                    close_unstarted_behind(raised.__traceback__)
                    self._die(self._violation or explained(raised, _place_of(raised)))
                    return
                if self._violation is not None:
                    self._die(self._violation)
                    return
                error = None
                try:
                    if len(made) == 1 and made[0] is step:
                        made.clear()
                    else:
                        self._check_awaited(step)
                    step.taken = True
                    value = take(step, now_us)
                except ActivityFailed as failed:
                    value, error = None, failed
                except (GasolineError, ValueError) as refused:
                    self._die(refused)
                    return
                if value is PENDING:
                    return
        finally:
            self._driving = False
            leave(outside)

    def _returned(self, value: Any) -> None:
        self._coroutine = None
        try:
            if self._violation is not None:
                raise self._violation
            self._check_none_left("the body returned")
            self._branch.cursor.finish()
        except GasolineError as error:
            self._die(error)
            return
        self.end = Returned(value)

    def _die(self, error: BaseException) -> None:
        self._branch.wait = None
        self.end = Died(error_info(error), isinstance(error, ReplayError | StepMisused | DefinitionError))
        self.close()

    # --- letting go ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take the body out of memory. Steps in its ``finally`` blocks are refused; what it returns is dropped."""
        if self.closed:
            return
        self.closed = True
        coroutine, self._coroutine = self._coroutine, None
        try:
            if coroutine is not None:
                self._close(coroutine)
        finally:
            self._steps.clear()
            watch(self._context, None)  # the two hold each other
        swallowed = self._swallowed
        if swallowed is not None:
            self.complaints.append(
                f"the body swallowed that it was taken out of memory, with a bare `except:` or an `except "
                f"BaseException:`, and went on: {self._closed_steps} of its steps were refused, the first "
                f"`ctx.{swallowed.verb}(…)` in {swallowed.file}:{swallowed.line}; none of them was recorded. Catch "
                f"`Exception` instead"
            )

    def _close(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Throw GeneratorExit into the body until it ends, as ``coroutine.close()`` does once."""
        self._driving = True
        try:
            for _ in range(CLOSES_MAX):
                guarded(self._context.run, coroutine.throw, GeneratorExit())
        except (GeneratorExit, _Closed):
            return  # a step in a `finally` or after a swallowed close was refused and the body let go: as it should be
        except StopIteration:
            if self._swallowed is None:
                self.complaints.append(
                    "the body swallowed that it was taken out of memory, with a bare `except:`, an `except "
                    "BaseException:` or a `return` in a `finally:`, and returned. What it returned was dropped; "
                    "nothing was recorded"
                )
            return
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.complaints.append(f"the body raised an error when it was taken out of memory: {error!r}")
            return
        finally:
            self._driving = False
        self.complaints.append(
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
        raise _Closed(f"this run is closed: `ctx.{step.verb}(…)` is refused")

    def _refused_outside(self, step: Step) -> StepMisused:
        error = StepMisused(
            f"`ctx.{step.verb}(…)` in {step.file}:{step.line} was called on the context of workflow "
            f"{self.workflow_id} outside of that workflow's body: a context belongs to one run of one body. Use the `ctx` "
            f"that this function was given",
            file=step.file,
            line=step.line,
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
        self._check_none_left(f"`ctx.{step.verb}(…)` was awaited in line {step.line}")

    def _check_none_left(self, when: str) -> None:
        if not self._steps:
            return
        lost = self._steps[0]
        raise StepMisused(
            f"a step was made but never awaited: `ctx.{lost.verb}(…)` in {lost.file}:{lost.line}, when {when}. Write "
            f"`await ctx.{lost.verb}(…)`: what is not awaited is neither done nor recorded",
            file=lost.file,
            line=lost.line,
        )


def error_info(error: BaseException) -> ev.ErrorInfo:
    """Turn an exception into data, with its traceback as text."""
    try:
        message = str(error)
    except Exception as broken:
        message = f"(its text cannot be shown: {type(broken).__name__})"
    shown = traceback.TracebackException.from_exception(error, limit=-50)
    _keep_users_frames(shown)
    return ev.ErrorInfo(type(error).__qualname__, message, "".join(shown.format()))


def _keep_users_frames(shown: traceback.TracebackException | None) -> None:
    """Leave out the engine's own frames: they are the same for every error, and hide the author's line."""
    while shown is not None:
        kept = [frame for frame in shown.stack if not frame.filename.startswith(_PACKAGE)]
        shown.stack = traceback.StackSummary.from_list(kept)
        shown = shown.__cause__ or shown.__context__


def _place_of(error: BaseException) -> tuple[str, int]:
    """The file and line of the body that an error left."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_globals.get("__name__") in _DRIVERS:
        found = found.tb_next
    return ("", 0) if found is None else (found.tb_frame.f_code.co_filename, found.tb_lineno)


def _is_closing(error: BaseException | None) -> bool:
    """Whether the close is still on its way through the body (a ``finally:``), rather than swallowed."""
    while error is not None:
        if isinstance(error, GeneratorExit | _Closed):
            return True
        error = error.__context__
    return False


def _leave_behind(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Keep a body that would not let go for good: collecting it, at exit too, would only run into the same again."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coroutine))


_PACKAGE: Final = __file__.rpartition("core")[0]
_DRIVERS: Final = frozenset({__name__, guarded.__module__})
