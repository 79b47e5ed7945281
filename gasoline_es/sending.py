"""The verbs that reach others: ``signal``, ``dispatch``, ``output``, ``message``, ``emit`` (semantics.md §4, §5, §9)."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar, overload

from gasoline_es.branching import Branching
from gasoline_es.core.ids import check_workflow_id
from gasoline_es.core.steps import DispatchStep, EmitStep, MessageStep, OutputStep, SignalStep
from gasoline_es.core.tags import Tags, canonical, check_tags
from gasoline_es.core.values import codec_for, dump_json
from gasoline_es.definitions import I, O, Workflow
from gasoline_es.errors import DefinitionError, RecordTooLarge
from gasoline_es.log.port import PAYLOAD_BYTES_MAX, check_foreign
from gasoline_es.messages import Message, check_message, message_codec
from gasoline_es.signals import Signal, signal_codec
from gasoline_es.signatures import frame_at
from gasoline_es.verbs import Step

T = TypeVar("T", covariant=True)


class SubWorkflow(Generic[T]):
    """A workflow that this one dispatched: its id, and its output to wait for."""

    __slots__ = ("_context", "_definition", "id")

    def __init__(self, context: Sending, definition: Workflow[Any, T], id: str) -> None:
        self._context = context
        self._definition = definition
        self.id = id

    def output(self) -> Step[T]:
        """Wait until it has completed; give its output. The same as ``ctx.output(definition, sub.id)``."""
        return self._context.output(self._definition, self.id)

    def __repr__(self) -> str:
        return f"<SubWorkflow {self._definition.name} {self.id}>"


class Sending(Branching):
    """``signal``, ``message``, ``emit``, ``dispatch`` and ``output``."""

    __slots__ = ()

    @overload
    def signal(self, signal: Signal, /, *, to: str) -> Step[str]: ...
    @overload
    def signal(self, signal: Signal, /, *, to: str, graceful_not_found: bool) -> Step[str | None]: ...
    @overload
    def signal(
        self,
        signal: Signal,
        workflow: Workflow[Any, Any],
        /,
        *,
        tags: Tags | None = None,
        graceful_not_found: Literal[False] = False,
    ) -> Step[str]: ...
    @overload
    def signal(
        self, signal: Signal, workflow: Workflow[Any, Any], /, *, tags: Tags | None = None, graceful_not_found: bool
    ) -> Step[str | None]: ...
    def signal(
        self,
        signal: Signal,
        workflow: Workflow[Any, Any] | None = None,
        /,
        *,
        to: str | None = None,
        tags: Tags | None = None,
        graceful_not_found: bool = False,
    ) -> Any:
        """Send a signal to a workflow by id (``to=``), or to the oldest incomplete one of a definition with these tags.

        Gives the signal's id. It goes out in the very append that records it: once, whatever dies when.

        Raises at the call: ValueError: both ways of addressing were used, or none; InvalidTags; NotSerializable;
        RecordTooLarge; DefinitionError, which ends the run, for anything but a signal. Raises from the await, recorded:
        WorkflowNotFound: there is none such, or it is complete; with ``graceful_not_found`` None is given instead.
        """
        if not isinstance(signal, Signal):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._refused(
                DefinitionError(f"ctx.signal was given {signal!r}; give an instance of a class derived from Signal.")
            )
        if (to is None) == (workflow is None) or (to is not None and tags is not None):
            raise ValueError("ctx.signal: give `to=` (a workflow id) or a workflow with tags, one of the two")
        kind = type(signal)
        body = signal_codec(kind).encode(signal, kind.__signal_name__)
        _check_size(f"signal {kind.__signal_name__!r}", body)
        if to is not None:
            check_workflow_id(to)
        frame = frame_at(1)
        return self._made(
            SignalStep(
                self._version,
                "signal",
                frame.f_code,
                frame.f_lasti,
                kind.__signal_name__,
                body,
                to,
                "" if workflow is None else workflow.name,
                check_tags(tags, "ctx.signal"),
                graceful_not_found,
            )
        )

    def message(self, message: Message, /, *, topic: Tags | None = None) -> Step[None]:
        """Send a message to whoever subscribes to its name and to a part of its topic, if anybody does.

        It goes out in the very append that records it, which is durable on return: once, whatever dies when, and not again
        on a replay. Nobody acknowledges it. Many at once: ``ctx.join_all([ctx.message(…), …])`` sends them in one append.

        Raises at the call: NotSerializable; InvalidTags for the topic; RecordTooLarge; DefinitionError, which ends the run,
        for anything but a message.
        """
        try:
            kind = type(check_message(message, "ctx.message"))
        except DefinitionError as error:
            raise self._refused(error) from None
        name = kind.__message_name__
        checked = check_tags(topic, f"the topic of message {name!r}")
        body = message_codec(kind).encode(message, name)
        _check_size(f"message {name!r}", body, canonical(checked).encode())
        frame = frame_at(1)
        return self._made(MessageStep(self._version, "message", frame.f_code, frame.f_lasti, name, checked, body))

    def emit(self, topic: str, key: str, value: Any, /) -> Step[None]:
        """Write a record on a topic that is not the library's own, for whoever reads it: on Kafka, any of the cluster.

        ``value``: a model, or what else payloads hold, written as plain JSON; None: a tombstone, which a compacted topic
        takes as the key's end. Headers make it a CloudEvent in binary mode. The partition follows from ``key`` as Kafka's own
        clients have it. It is written in the very append that records the step, and durable on return: once, whatever dies
        when, and not again on a replay. Records of one workflow are written in the order of the calls.

        Raises at the call: TypeError; TopicRefused: the name cannot be a topic's, or is one of the library's own;
        ValueError: the key has half a surrogate pair; NotSerializable; RecordTooLarge. If the log has no such topic,
        or one that is closed to this process or takes too little, the workflow is dead with TopicRefused, and goes on there
        when it is woken.
        """
        for what, given in (("topic", topic), ("key", key)):
            if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"ctx.emit: the {what} is a text, not {given!r}")
        check_foreign(topic)
        try:
            encoded_key = key.encode()
        except UnicodeEncodeError:
            raise ValueError(f"ctx.emit: the key {key!r} has half a surrogate pair, which UTF-8 cannot hold") from None
        where = f"the value for topic {topic!r}"
        encoded = None if value is None else codec_for(type(value), where).named(where).encode(value, "value")
        # As the event has it: what JSON escapes takes up to six bytes.
        _check_size(f"the record for topic {topic!r}, key {key[:100]!r},", encoded or b"", dump_json(key), encoded_key)
        frame = frame_at(1)
        return self._made(
            EmitStep(
                self._version, "emit", frame.f_code, frame.f_lasti, topic, key, None if encoded == b"null" else encoded
            )
        )

    def dispatch(
        self, definition: Workflow[I, O], input: I, /, *, tags: Tags | None = None, unique: bool = False
    ) -> Step[SubWorkflow[O]]:
        """Start another workflow, which has a life of its own; give its id, and its output to wait for.

        ``unique``: if an incomplete workflow of this definition has all these tags, it is the one that is given. It is
        started once, whatever dies when; it shares this one's ray id.

        Raises at the call: NotSerializable; InvalidTags; RecordTooLarge; DefinitionError, which ends the run, for
        anything but a workflow.
        """
        if not isinstance(definition, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._refused(
                DefinitionError(f"ctx.dispatch was given {definition!r}; give a workflow and its input.")
            )
        checked = check_tags(tags, f"dispatch of {definition.name!r}")
        encoded = definition.input_codec.encode(input, definition.parameter)
        _check_size(f"the input of {definition.what}", encoded, canonical(checked).encode())
        frame = frame_at(1)

        def made(workflow_id: str) -> SubWorkflow[O]:
            return SubWorkflow(self, definition, workflow_id)

        return self._made(
            DispatchStep(
                self._version, "dispatch", frame.f_code, frame.f_lasti, definition.name, encoded, checked, unique, made
            )
        )

    def output(self, definition: Workflow[Any, O], workflow_id: str, /) -> Step[O]:
        """Wait until another workflow has completed, wherever it runs; give its output.

        A workflow that died is waited for until it was mended and woken. Raises at the call: WorkflowNotFound for what
        is no id; DefinitionError, which ends the run, for anything but a workflow, and for this one's own id. Raises from
        the await, recorded: WorkflowNotFound: there is no such workflow.
        """
        if not isinstance(definition, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._refused(DefinitionError(f"ctx.output was given {definition!r}; give a workflow and an id."))
        check_workflow_id(workflow_id)
        if workflow_id == self._run.workflow_id:
            raise self._refused(DefinitionError("ctx.output was given this workflow's own id: it would wait for ever."))
        frame = frame_at(1)
        decode = definition.output_codec.decode
        return self._made(
            OutputStep(self._version, "output", frame.f_code, frame.f_lasti, definition.name, workflow_id, decode)
        )


def _check_size(what: str, *parts: bytes) -> None:
    size = sum(map(len, parts))
    if size > PAYLOAD_BYTES_MAX:
        raise RecordTooLarge(
            f"{what} takes {size:,} bytes as JSON, more than {PAYLOAD_BYTES_MAX:,}. Keep the data elsewhere and pass a "
            f"reference to it",
            size=size,
        )
