"""What a body asks the driver for: one small object per durable step, awaited by the body, understood only by the core.

``context`` makes them, ``core.replay`` answers them. Awaiting one yields the object itself to whoever drives the
coroutine with ``send()``; the driver sends the step's value back, or throws its recorded error (design §3).

They are plain (not frozen) slotted dataclasses because one is made for every step, on the hot path; nobody changes them.
Times are integer microseconds: durations relative, deadlines since the epoch in UTC. Payloads are JSON in UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Step:
    """One call of a ``ctx`` verb. ``version`` is absolute (semantics.md §3); ``verb`` is how users write it.

    ``code`` and ``instruction`` (the offset in it) tell where the call stands. The line is looked up only for a message:
    finding it takes a walk through the function's table of lines.
    """

    version: int
    verb: str
    code: CodeType | None
    instruction: int
    taken: bool = field(default=False, init=False, repr=False)
    """Whether the driver has it: what is taken a second time was awaited twice."""

    def __await__(self) -> Generator[Step, Any, Any]:
        return (yield self)

    @property
    def file(self) -> str:
        """The file of the call; "" if it is not known."""
        return "" if self.code is None else self.code.co_filename

    @property
    def line(self) -> int:
        """The line of the call; 0 if it is not known."""
        for start, end, line in () if self.code is None else self.code.co_lines():
            if start <= self.instruction < end:
                return line or 0
        return 0

    whole: ClassVar[bool] = False
    """Whether it was given other steps, see :meth:`parts`."""

    def parts(self) -> Iterable[Step]:
        """The steps this one was given: they are awaited with it."""
        return ()


@dataclass(slots=True, eq=False)
class ActivityPlan:
    """How an activity is to be run: made once for each definition, or for a call that overrides its settings.

    ``definition`` is the ``Activity`` object; the core only passes it through to the runtime. ``encode`` writes an input,
    which the function calls ``parameter``; ``decode`` reads an output.
    """

    name: str
    definition: Any
    encode: Callable[[Any, str], bytes]
    parameter: str
    decode: Callable[[bytes], Any]
    max_attempts: int
    timeout_us: int
    retry_on_timeout: bool
    backoff_base_us: int
    backoff_doublings: int
    heartbeat_timeout_us: int | None = None


@dataclass(slots=True, eq=False)
class ActivityStep(Step):
    """An activity to be run with this input.

    ``ephemeral``: its answer is given before it is durable, and asks for no append of its own (design §1.1).
    """

    plan: ActivityPlan
    input: bytes
    ephemeral: bool = False


@dataclass(slots=True, eq=False)
class SleepStep(Step):
    """Exactly one of ``duration_us`` and ``until_us`` is set."""

    duration_us: int | None = None
    until_us: int | None = None


@dataclass(slots=True, eq=False)
class ListenStep(Step):
    """``decoders``: signal name → decoder of its body. ``limit`` None: one signal (or None); else a list.

    At most one of ``timeout_us`` and ``until_us`` is set; neither: waits for ever.
    """

    decoders: Mapping[str, Callable[[bytes], Any]]
    limit: int | None = None
    timeout_us: int | None = None
    until_us: int | None = None


@dataclass(slots=True, eq=False)
class RemovedStep(Step):
    """``ctx.removed(kind, name)``: kind is one of the removable kinds of api.md; name None where it is no part of the match."""

    kind: str
    name: str | None = None


@dataclass(slots=True, eq=False)
class CheckVersionStep(Step):
    """``ctx.check_version(n)``: ``latest`` is absolute; the answer the driver sends is relative to ``context_version``."""

    latest: int
    context_version: int


@dataclass(slots=True, eq=False)
class CheckpointStep(Step):
    """``ctx.checkpoint()``: what is given to be rolled back counts from here on."""


@dataclass(slots=True, eq=False)
class RollbackStep(Step):
    """What follows an error that left the body: the handlers' activities, on a branch of their own."""


# --- other workflows --------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class SignalStep(Step):
    """A signal to be sent ``to`` a workflow; or to the oldest incomplete one of the name ``workflow`` with these tags.

    ``graceful``: that nobody is there to take it is no error.
    """

    name: str
    body: bytes
    to: str | None
    workflow: str = ""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    graceful: bool = False


@dataclass(slots=True, eq=False)
class MessageStep(Step):
    """A message to be sent to whoever subscribes to its name and topic (canonical tags)."""

    name: str
    topic: Mapping[str, str]
    body: bytes


@dataclass(slots=True, eq=False)
class EmitStep(Step):
    """A record to be written on a topic of others. ``value`` None: a tombstone."""

    topic: str
    key: str
    value: bytes | None

    @property
    def name(self) -> str:
        """What a place is compared by, as with other steps: the topic."""
        return self.topic


@dataclass(slots=True, eq=False)
class DispatchStep(Step):
    """A workflow to be started. ``made`` makes the step's value of its id."""

    name: str
    input: bytes
    tags: Mapping[str, str]
    unique: bool
    made: Callable[[str], Any]


@dataclass(slots=True, eq=False)
class OutputStep(Step):
    """The output of another workflow, of the name ``name``, is to be waited for."""

    name: str
    workflow_id: str
    decode: Callable[[bytes], Any]


# --- flow -------------------------------------------------------------------------------------------------------------

Body = Callable[[Any], Coroutine[Any, Any, Any]]
"""Makes a branch's coroutine of the port its context stands on."""


class Break(Generic[T]):
    """Ends a loop: ``return Break(value)`` from its body makes ``value`` what the loop gives."""

    __slots__ = ("value",)
    __match_args__ = ("value",)

    def __init__(self, value: T = None) -> None:  # type: ignore[assignment]
        self.value = value

    def __repr__(self) -> str:
        return f"Break({self.value!r})"


@dataclass(slots=True, eq=False)
class ValueStep(Step):
    """A value that is there already: ``ctx.maybe(None)``. It takes no location."""

    value: Any


@dataclass(slots=True, eq=False)
class ClosureStep(Step):
    """A body on a branch of its own; with a ``name``, another workflow's, run inline."""

    body: Body
    name: str | None = None


@dataclass(slots=True, eq=False)
class JoinStep(Step):
    """Steps to go side by side. ``make`` puts their values together: a tuple or a list."""

    steps: Sequence[Step]
    make: Callable[[Iterable[Any]], Any]

    whole: ClassVar[bool] = True

    def parts(self) -> Iterable[Step]:
        return self.steps


@dataclass(slots=True, eq=False)
class RaceStep(Step):
    """Steps to go side by side until the first of them succeeds. ``encoders``: what each gives, as JSON."""

    steps: Sequence[Step]
    encoders: Sequence[Callable[[Any], bytes]]

    whole: ClassVar[bool] = True

    def parts(self) -> Iterable[Step]:
        return self.steps


@dataclass(slots=True, eq=False)
class CatchStep(Step):
    """A step whose terminal failure is a value: ``made`` makes it of what it gave, ``failed`` of its error."""

    step: Step
    made: Callable[[Any], Any]
    failed: Callable[[Exception], Any]

    whole: ClassVar[bool] = True

    def parts(self) -> Iterable[Step]:
        return (self.step,)


@dataclass(slots=True, eq=False)
class LoopStep(Step):
    """A body that runs again and again, each time on a branch of its own, until it returns a :class:`Break`.

    ``state``: the first one, as JSON. ``roundtrip`` encodes a state and gives it as it comes back; ``encode`` and
    ``decode`` are for the value of the ``Break``. ``commit_interval``: iterations between two commits.
    """

    body: Callable[[Any, Any], Coroutine[Any, Any, Any]]
    state: bytes
    roundtrip: Callable[[Any], tuple[bytes, Any]]
    decode_state: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    commit_interval: int
