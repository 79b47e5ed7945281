"""One recorded history through the code it is to replay in: no side effect, nothing recorded (semantics.md §3).

The body is started as the engine starts it (``runtime/driver.py``) and driven over everything recorded. What it would
record newly goes into a list and into the state that was folded for this check alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gasoline_es.checking.ledger import Observed, ObservedRun
from gasoline_es.checking.reasons import advice, placed, recorded
from gasoline_es.checking.report import Finding, Kind
from gasoline_es.checking.watch import WatchedRun
from gasoline_es.context import WorkflowContext
from gasoline_es.core import events as ev
from gasoline_es.core.location import format_location
from gasoline_es.core.replay import Returned, Unwound
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.strand import FATAL
from gasoline_es.core.values import parse_json
from gasoline_es.core.waits import Wait, WaitActivity, WaitListen, WaitSleep
from gasoline_es.definitions import Workflow
from gasoline_es.errors import GasolineError, HistoryDiverged, LatentHistoryFound
from gasoline_es.registry import Registry

Definition = Workflow[Any, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``replays`` may come with a finding, which is a warning then; ``partly``: up to a step that was inserted."""

    replays: bool
    partly: bool = False
    finding: Finding | None = None


REPLAYS = Verdict(True)
PARTLY = Verdict(True, partly=True)


def judge(definition: Definition, state: WorkflowState, observed: Observed | None = None) -> Verdict:
    """Replay a workflow's history in the code of its definition. The state is of no further use.

    ``observed``: takes note of the calls of ``ctx.v`` and its like that an incomplete history needs.
    """
    summary = state.summary
    if summary.status == "unreadable":
        why = "" if summary.error is None else summary.error.message
        return Verdict(False, finding=_finding("unreadable", definition.name, state, summary.status, message=why))
    return _Trial(definition, state, observed).verdict()


class _Trial:
    """One history and its replay."""

    def __init__(self, definition: Definition, state: WorkflowState, observed: Observed | None) -> None:
        self.definition = definition
        self.state = state
        self.status = state.summary.status
        self.news: list[ev.EventData] = []
        self.stands: Literal["complete", "dead", "incomplete"] = "incomplete"
        if self.status == "complete":
            self.stands = "complete"
        elif self.status in ("dead", "cancelled"):
            self.stands = "dead"  # nobody minds how a body that was cancelled leaves its clean-up
        # One that is over will never run again, so it needs nothing.
        self.observed = observed if state.summary.incomplete else None
        kind = WatchedRun if self.observed is None else ObservedRun
        # A registry as an engine's that runs this workflow; made when it is asked: few histories have handlers.
        self.run = kind(state, self._record, plan_of=lambda name: Registry([definition]).plan_of(name))

    def _record(self, data: ev.EventData) -> None:
        summary = self.state.summary
        self.news.append(data)
        self.state.apply(summary.seq + 1, summary.updated_us, data, summary.ray_id, "")

    def verdict(self) -> Verdict:
        run, observed = self.run, self.observed
        recorded_output, seq = self.state.output, self.state.summary.seq
        try:
            self._start(seq)
        except Exception as error:  # a bug of the library's, or a history that makes no sense: as in the driver
            run.error = error
            verdict = self._fails("raises", error)
        else:
            verdict = self._ended(recorded_output)
        if observed is not None and isinstance(run, ObservedRun):
            run.tell(observed, sure=verdict.replays and not run.left())
        if run.end is None:
            run.close()
        return verdict

    def _start(self, seq: int) -> None:
        definition, dispatched = self.definition, self.state.dispatched
        assert dispatched is not None
        try:
            given = definition.input_codec.decode(dispatched.input)
        except Exception as error:
            fix = "Give the type a default or a validator that reads the old form"
            self.run.die(
                HistoryDiverged(
                    f"the recorded input does not read as the type {definition.name!r} takes now: {error}. {fix}",
                    location="{}",
                    recorded="the input",
                    attempted=definition.what,
                    file=definition.file,
                    line=definition.line,
                    fix=fix,
                )
            )
            return
        # Only what is recorded is delivered: what the code decides beyond it would have to become durable first.
        self.run.start(lambda strand: definition.fn(WorkflowContext(strand), given), self.state.summary.updated_us, seq)

    # --- what came of it ----------------------------------------------------------------------------------------------

    def _ended(self, recorded_output: bytes | None) -> Verdict:
        end = self.run.end
        if end is None:
            return self._waits()
        if isinstance(end, Returned):
            return self._returned(end.value, recorded_output)
        if isinstance(end, Unwound):
            return PARTLY if self.run.left() else REPLAYS
        error = self.run.error
        if isinstance(error, HistoryDiverged):
            return self._fails("diverged", error)
        if isinstance(error, LatentHistoryFound):
            return self._fails("latent", error)
        at_the_end = self.stands != "complete" and self.run.left() == 0
        if self.stands == "dead" and at_the_end:
            return REPLAYS  # it died there before
        if isinstance(error, FATAL):
            return self._fails("misused", error)
        failed = self._fails("raises_at_end" if at_the_end else "raises", error)
        return Verdict(True, finding=failed.finding) if at_the_end else failed

    def _waits(self) -> Verdict:
        waits = self.run.waits
        wait = waits[min(waits)] if waits else None
        if self.stands != "complete":
            return PARTLY if self.run.left() else REPLAYS
        marked = _deliberate(self.news) if wait is None else wait.step.version > 1 or _checks_version(self.news)
        return PARTLY if marked else self._goes_on(wait)

    def _returned(self, value: Any, recorded_output: bytes | None) -> Verdict:
        if self.stands != "complete":
            return REPLAYS
        if self.news and not _deliberate(self.news):
            return self._goes_on(None)
        assert recorded_output is not None
        codec = self.definition.output_codec
        try:
            output = codec.encode(value, "output")
        except GasolineError as error:
            return self._fails("raises", error)
        if output == recorded_output or parse_json(output) == parse_json(recorded_output):
            return REPLAYS
        try:
            read = codec.encode(codec.decode(recorded_output), "output")
        except Exception as error:
            message = f"the recorded output does not read as the type the code returns now: {error}"
            return self._warns("output_type", message, recorded_output, output)
        if read == output:
            return REPLAYS
        return self._warns("output_differs", "the code returns another output", recorded_output, output)

    def _warns(self, kind: Kind, message: str, recorded_output: bytes, output: bytes) -> Verdict:
        definition = self.definition
        finding = _finding(
            kind,
            definition.name,
            self.state,
            self.status,
            recorded=_shown(recorded_output),
            found=_shown(output),
            file=definition.file,
            line=definition.line,
            message=f"{message}: recorded is {_shown(recorded_output)}, the code gives {_shown(output)}",
        )
        return Verdict(True, finding=finding)

    def _fails(self, kind: Kind, error: BaseException | None) -> Verdict:
        place = placed(error, self.definition)
        finding = _finding(
            kind,
            self.definition.name,
            self.state,
            self.status,
            error=type(error).__name__,
            location=place.location,
            recorded=recorded(error),
            found=place.found,
            file=place.file,
            line=place.line,
            fix=advice(error, self.state.history),
            message=place.message,
        )
        return Verdict(False, finding=finding)

    def _goes_on(self, wait: Wait | None) -> Verdict:
        """The history is complete, and the code has a step more."""
        at, found, file, line = "", "another step", self.definition.file, self.definition.line
        verb = "activity"
        if wait is not None:
            verb, file, line = wait.step.verb, wait.step.file, wait.step.line
            at, found = format_location(wait.location), _waited(wait)
        elif self.news:
            at = format_location(getattr(self.news[0], "location", ()))
            found = self.news[0].TYPE
            if isinstance(self.news[0], ev.MessageSent):
                verb, found = "message", f"message {self.news[0].name!r}"
        fix = f"If the step was added, write `ctx.v(2).{verb}(…)`"
        finding = _finding(
            "goes_on",
            self.definition.name,
            self.state,
            self.status,
            location=at,
            recorded="the return",
            found=found,
            file=file,
            line=line,
            fix=fix,
            message=f"the recorded workflow returned at {at}, the code goes on with {found} in {file}:{line}. {fix}",
        )
        return Verdict(False, finding=finding)


def _deliberate(news: Sequence[ev.EventData]) -> bool:
    """Whether all that is new was marked as new in the code: no accident, and of no matter to a workflow that is over."""
    if _checks_version(news):
        return True
    return all(isinstance(data, ev.StepRemoved) or getattr(data, "version", 2) > 1 for data in news)


def _checks_version(news: Sequence[ev.EventData]) -> bool:
    """Whether what comes next may be the new way of a ``ctx.check_version``."""
    return any(isinstance(data, ev.VersionChecked) for data in news)


def _waited(wait: Wait) -> str:
    if isinstance(wait, WaitActivity):
        return f"activity {wait.step.plan.name!r}"
    if isinstance(wait, WaitSleep):
        return "sleep"
    if isinstance(wait, WaitListen):
        return f"listen for {', '.join(sorted(wait.step.decoders))}"
    return f"{wait.step.verb} {wait.step.name!r}"


_SHOWN_MAX = 200


def _shown(raw: bytes) -> str:
    text = raw.decode()
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _finding(
    kind: Kind,
    name: str,
    state: WorkflowState,
    status: str,
    *,
    error: str = "",
    location: str = "",
    recorded: str = "",
    found: str = "",
    file: str = "",
    line: int = 0,
    fix: str = "",
    message: str = "",
) -> Finding:
    workflow_id = state.summary.id
    return Finding(kind, workflow_id, name, status, error, location, recorded, found, file, line, fix, message)
