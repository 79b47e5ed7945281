"""OpenTelemetry spans of what this process does. Loaded only where they are asked for: ``Gasoline.open(…, tracing=True)``.

No span stays open while a workflow waits, and none is made on a replay: there is one for each call of a client, for each
attempt of an activity, and one for a whole workflow, written when its end is durable. They are joined by the ``traceparent``
that the workflow's first event has (docs/design/0026). Whatever a tracer does wrong costs spans, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gasoline_es.core import events as ev
from gasoline_es.core.commands import Dispatch
from gasoline_es.core.history import SignalsEntry, SleepEntry
from gasoline_es.core.location import Location
from gasoline_es.core.state import WorkflowState
from gasoline_es.core.traceparent import readable
from gasoline_es.engine_log import EngineLog
from gasoline_es.runtime.call_span import C, CallSpan

if TYPE_CHECKING:
    from gasoline_es.core.decide import AttemptFailed
    from gasoline_es.runtime.activities import Attempt
    from gasoline_es.runtime.batch import Batch, Done
    from gasoline_es.runtime.live import Live

P = ParamSpec("P")
T = TypeVar("T")

_log = EngineLog(__name__)

TEXT_CHARACTERS_MAX: Final = 10_000
"""Of an error's message and traceback, each; spans are for looking at, the whole of it is in the history."""
LINKS_MAX: Final = 100
"""So many signals are linked to an attempt: a listen may take ten thousand."""

_SYSTEM: Final = {"messaging.system": "gasoline_es"}
_NO_PARENT: Final = Context()

_STATUS: Final[dict[type[ev.EventData], str]] = {
    ev.WorkflowCompleted: "complete",
    ev.WorkflowFailed: "dead",
    ev.WorkflowCancelled: "cancelled",
    ev.WorkflowSilenced: "silenced",
}


class TracerProvider(Protocol):
    """A tracer provider of OpenTelemetry, as far as it is needed here."""

    def get_tracer(
        self, instrumenting_module_name: str, instrumenting_library_version: str | None = None, /
    ) -> Any: ...


class Tracing:
    """Makes the spans of one opened log. ``provider``: None is the global one, also if that is set later."""

    def __init__(self, provider: TracerProvider | None, namespace: str) -> None:
        of = trace if provider is None else provider
        self._tracer: trace.Tracer = of.get_tracer("gasoline_es", version("gasoline_es"))
        self._namespace = {"gasoline.namespace": namespace}
        self._complained = False

    # --- clients ------------------------------------------------------------------------------------------------------

    def call(self, verb: str, name: str, count: int | None = None) -> CallSpan:
        """Start the span of a client's call, below the span that is current. ``count``: of the signals of a batch."""
        attributes = self._sent(verb, name)
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        return _TracedCall(self, self._start(f"{verb} {name}", SpanKind.PRODUCER, attributes, None))

    def adopt(self, command: Dispatch) -> tuple[Dispatch, Done]:
        """Start a trace for a workflow that is dispatched without one; what is returned ends the span once that is durable.

        All that happens to the workflow has one trace so, whoever dispatched it.
        """
        attributes = self._sent("dispatch", command.name) | {"gasoline.workflow.id": command.workflow_id}
        span = self._start(f"dispatch {command.name}", SpanKind.PRODUCER, attributes, _NO_PARENT)

        def done(error: Exception | None) -> None:
            if error is None:  # else nothing was dispatched, and whoever asked comes again
                self.touch(_end, span)

        return replace(command, traceparent=readable(self.touch(_traceparent, span))), done

    def _sent(self, verb: str, name: str) -> dict[str, Any]:
        operation = {"messaging.operation.name": verb, "messaging.operation.type": "send"}
        return {**_SYSTEM, **self._namespace, **operation, "messaging.destination.name": name}

    # --- attempts of activities ---------------------------------------------------------------------------------------

    def attempt(self, attempt: Attempt) -> AttemptSpan:
        """Start the span of an attempt that starts now."""
        state, wait = attempt.live.state, attempt.wait
        attributes = {
            **self._of(attempt.live),
            "gasoline.activity.name": attempt.context.name,
            "gasoline.activity.location": attempt.context.location,
            "gasoline.activity.attempt": attempt.number,
        }
        links = [Link(found) for found in _signals_before(state, wait.location)]
        name = f"activity {attempt.context.name}"
        return AttemptSpan(self, self._start(name, SpanKind.INTERNAL, attributes, _parent(state.traceparent), links))

    # --- workflows ----------------------------------------------------------------------------------------------------

    def durable(self, batch: Batch) -> None:
        """Write a span for each workflow that ended or died in what is durable now."""
        for live, data, time_us in zip(batch.lives, batch.facts, batch.times, strict=True):
            if type(data) in _STATUS:
                self._ended(live, data, time_us)

    def _ended(self, live: Live, data: ev.EventData, time_us: int) -> None:
        summary = live.state.summary
        attributes = {
            **_SYSTEM,
            **self._of(live),
            "messaging.operation.name": "run",
            "messaging.operation.type": "process",
            "messaging.destination.name": summary.name,
            "gasoline.workflow.status": _STATUS[type(data)],
        }
        parent, start_ns = _parent(live.state.traceparent), summary.created_us * 1_000
        span = self._start(f"workflow {summary.name}", SpanKind.CONSUMER, attributes, parent, start_ns=start_ns)
        if isinstance(data, ev.WorkflowFailed):
            self.touch(_tell, span, data.error)
        self.touch(_end, span, time_us * 1_000)

    # ------------------------------------------------------------------------------------------------------------------

    def _of(self, live: Live) -> dict[str, Any]:
        summary = live.state.summary
        of_it = {
            "gasoline.workflow.id": summary.id,
            "gasoline.workflow.name": summary.name,
            "gasoline.ray_id": summary.ray_id,
        }
        return {**self._namespace, **of_it}

    def _start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        parent: Context | None,
        links: Sequence[Link] = (),
        start_ns: int | None = None,
    ) -> Span:
        """``parent`` None: the span that is current."""
        span = self.touch(_started, self._tracer, name, parent, kind, attributes, links, start_ns)
        return trace.INVALID_SPAN if span is None else span

    def touch(self, use: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | None:
        """Return what a use of the tracer, or of one of its spans, gives; None: it raised, which is told once.

        The only way to them, and ``use`` is a function of this module: even looking up a span's ``end`` runs the user's
        code. Samplers, processors and spans are the user's, and what calls from here are appends that have become durable
        and attempts that end. Whatever is raised there would break the engine.
        """
        try:
            return use(*given, **named)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a CancelledError would end the task that appends
            self._complain()
            return None

    def _complain(self) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("the tracer failed, and spans are lost; this is said once", exc_info=True)


class _TracedCall(CallSpan):
    """The span of one call. Its end is when the call's is: what was asked for is durable then."""

    __slots__ = ("_span", "_tracing")

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._tracing.touch(_tell_raised, self._span, error)
        self._tracing.touch(_end, self._span)

    def carry(self, command: C) -> C:
        return replace(command, traceparent=readable(self._tracing.touch(_traceparent, self._span)))

    def reached(self, workflow_id: str, signal_id: str | None = None) -> None:
        self._tracing.touch(_set, self._span, "gasoline.workflow.id", workflow_id)
        if signal_id is not None:
            self._tracing.touch(_set, self._span, "messaging.message.id", signal_id)


class AttemptSpan:
    """The span of one attempt of an activity."""

    __slots__ = ("_span", "_tracing")

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span

    def enter(self) -> None:
        """Make it the current one in the context of the activity's task or thread, which ends with the attempt.

        It takes everything else's place there: that context is a copy of whatever happened to start the attempt.
        """
        self._tracing.touch(_make_current, self._span)

    def end(self, outcome: bytes | AttemptFailed | None) -> None:
        """The attempt is over. None: nobody waits for its outcome any more."""
        if outcome is None:
            self._tracing.touch(_set, self._span, "gasoline.activity.given_up", True)
        elif not isinstance(outcome, bytes):
            self._tracing.touch(_tell, self._span, outcome.error)
        self._tracing.touch(_end, self._span)


def _started(tracer: trace.Tracer, *given: Any) -> Span:
    return tracer.start_span(*given)


def _end(span: Span, time_ns: int | None = None) -> None:
    if time_ns is None:
        span.end()
    else:
        span.end(time_ns)


def _set(span: Span, key: str, value: str | bool) -> None:
    span.set_attribute(key, value)


def _make_current(span: Span) -> None:
    contexts.attach(trace.set_span_in_context(span, Context()))


def _tell_raised(span: Span, error: Exception) -> None:
    """Record an error that was raised here."""
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, _cut(f"{type(error).__name__}: {error}")))


def _tell(span: Span, error: ev.ErrorInfo) -> None:
    """Record an error that is known as data only, as OpenTelemetry's conventions have it for exceptions."""
    told = {"exception.type": error.type, "exception.message": _cut(error.message)}
    if error.traceback:
        told["exception.stacktrace"] = _cut(error.traceback)
    span.add_event("exception", told)
    span.set_attribute("error.type", error.type)
    span.set_status(Status(StatusCode.ERROR, _cut(str(error))))


def _cut(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # exporters know no lone surrogates
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}… (cut)"


def _traceparent(span: Span) -> str | None:
    found = span.get_span_context()
    if not found.is_valid:
        return None  # there is no SDK
    ids = f"{trace.format_trace_id(found.trace_id)}-{trace.format_span_id(found.span_id)}"
    return f"00-{ids}-{found.trace_flags & 0xFF:02x}"


def _named(traceparent: str) -> SpanContext:
    """Return the span that a text names which was found to be readable."""
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


def _parent(traceparent: str | None) -> Context:
    if traceparent is None:
        return _NO_PARENT
    return trace.set_span_in_context(NonRecordingSpan(_named(traceparent)), _NO_PARENT)


def _signals_before(state: WorkflowState, location: Location) -> Iterator[SpanContext]:
    """Yield the spans that sent the signals which listens directly before a place have taken, newest first."""
    left = LINKS_MAX
    for entry in reversed(state.history.branches().get(location[:-1], ())):
        if entry.location >= location or isinstance(entry, SleepEntry):
            continue  # it stands behind that, or is the time limit of a listen, or a pause
        if not isinstance(entry, SignalsEntry):
            return
        for signal in reversed(entry.signals):
            if signal.traceparent is not None and left:
                left -= 1
                yield _named(signal.traceparent)
