"""What one may ask of a workflow from outside, and how a request and its reply travel through a log (design §1, §5).

A command is decided by the owner of its workflow's partition: at once when that is this process, through the partition's
inbox otherwise. Either way the same bytes could be written: a command is data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args

import orjson
from pydantic_core import from_json, to_json

from gasoline_es import errors
from gasoline_es.core.durations import DURATION_US_MAX, MAX_US
from gasoline_es.core.events import fact
from gasoline_es.core.ids import check_caller_id, check_name, check_workflow_id, is_workflow_id, slot_of
from gasoline_es.core.letters import Letter, read_letter
from gasoline_es.core.location import parse_location
from gasoline_es.core.schedule_events import MISSED, OVERLAPS, Missed, Overlap
from gasoline_es.core.storing import Store, read_store, store_members
from gasoline_es.core.tags import check_tags
from gasoline_es.core.timetable import INTERVAL_US_MIN, Cron, Every, Timetable, check_cron
from gasoline_es.core.traceparent import readable
from gasoline_es.core.values import check_depth
from gasoline_es.errors import GasolineError


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Start a workflow. With ``unique`` an incomplete one that matches is the answer instead; with ``key`` the same one."""

    TYPE: ClassVar[str] = "dispatch"
    workflow_id: str
    name: str
    input: bytes
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    unique: bool = False
    key: str | None = None
    parent: str | None = None
    ray_id: str = ""
    schedule: str | None = None
    traceparent: str | None = None
    """Of the span that dispatches, see ``core.traceparent``."""


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Queue a signal for a workflow. ``by_caller``: the id was made by the caller, not by this library.

    ``parked``: the stream of a parked signal, which is told whether the workflow took it.
    """

    TYPE: ClassVar[str] = "signal"
    workflow_id: str
    signal_id: str
    name: str
    body: bytes
    by_caller: bool = False
    sender: str | None = None
    parked: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Wake:
    """Run a workflow again: a dead one replays from what is recorded, a sleeping one looks again."""

    TYPE: ClassVar[str] = "wake"
    workflow_id: str
    by: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a workflow for good, after its body has cleaned up. ``now``: without that. Asked again, nothing changes."""

    TYPE: ClassVar[str] = "cancel"
    workflow_id: str
    by: str
    now: bool = False


@dataclass(frozen=True, slots=True)
class Silence:
    """Take a workflow out of sight: it is over, as it stands, and will not run again. Asked again, nothing changes."""

    TYPE: ClassVar[str] = "silence"
    workflow_id: str
    by: str


@dataclass(frozen=True, slots=True)
class Recover:
    """Clear the final failure that a workflow died of, and run it again."""

    TYPE: ClassVar[str] = "recover"
    workflow_id: str
    by: str


@dataclass(frozen=True, slots=True)
class Revive:
    """Wake a workflow if it is dead of an error whose text contains ``error`` when this is decided; else leave it alone.

    ``recover``: it is recovered instead, or left alone where it cannot be. The reply says with ``created`` whether it was
    woken or recovered.
    """

    TYPE: ClassVar[str] = "revive"
    workflow_id: str
    by: str
    error: str = ""
    recover: bool = False


@dataclass(frozen=True, slots=True)
class Rerun:
    """Let a workflow start over from its step at ``start`` (a location as text); or a new one do so, with the id ``fork_id``.

    ``rerun_id``: the caller's, new for each time, by which a repeat of the command is recognised.
    """

    TYPE: ClassVar[str] = "rerun"
    workflow_id: str
    start: str
    by: str
    rerun_id: str
    fork_id: str | None = None


@dataclass(frozen=True, slots=True)
class Prune:
    """Prune a workflow that is over since before ``before_us``, if it still is when this is decided; else leave it alone.

    ``by_rule``: as its definition says; else its history, whatever that says. ``seq``: only if its last event still has this
    number, as when it was archived. The reply says with ``created`` whether this command did it.
    """

    TYPE: ClassVar[str] = "prune"
    workflow_id: str
    by: str
    before_us: int
    by_rule: bool
    reason: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class AwaitOutput:
    """Workflow ``waiter`` wants the output of this one, for its step at ``waiting_at`` (a location as text).

    ``generation``: of that place, see ``core.generations``.
    """

    TYPE: ClassVar[str] = "await_output"
    workflow_id: str
    waiter: str
    waiting_at: str
    version: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class TellOutput:
    """The workflow ``of`` that this one waits for, at ``waiting_at``, has completed with this output.

    None: it was cancelled, or, as ``silenced`` says, silenced.
    """

    TYPE: ClassVar[str] = "tell_output"
    workflow_id: str
    waiting_at: str
    version: int
    of: str
    name: str
    output: bytes | None = None
    generation: int = 0
    silenced: bool = False


@dataclass(frozen=True, slots=True)
class SetSchedule:
    """Make a schedule, or, with ``replace``, change the one of this name. Either ``cron`` or ``interval_us`` is set."""

    TYPE: ClassVar[str] = "set_schedule"
    schedule_id: str
    name: str
    workflow: str
    input: bytes
    tags: Mapping[str, str]
    cron: str | None
    timezone: str
    interval_us: int | None
    missed: Missed
    overlap: Overlap
    by: str
    replace: bool = False

    @property
    def workflow_id(self) -> str:
        """Which partition decides it."""
        return self.schedule_id

    def timetable(self, now_us: int) -> Timetable:
        """Return when it is due; an interval is counted from now."""
        if self.cron is not None:
            return Cron(self.cron, self.timezone)
        assert self.interval_us is not None
        return Every(self.interval_us, now_us)


ScheduleVerb = Literal["pause", "resume", "trigger", "remove"]


@dataclass(frozen=True, slots=True)
class ChangeSchedule:
    """Do something about a schedule. ``name``: as it was asked for, for people. ``run_id``: what ``trigger`` starts.

    That one is the caller's, new for each time, by which a repeat of the command is recognised.
    """

    TYPE: ClassVar[str] = "change_schedule"
    schedule_id: str
    verb: ScheduleVerb
    by: str
    name: str = ""
    run_id: str = ""

    @property
    def workflow_id(self) -> str:
        """Which partition decides it."""
        return self.schedule_id


@dataclass(frozen=True, slots=True)
class Park:
    """Keep a signal for ``park_us`` for a workflow of this name with these tags that nobody has dispatched yet."""

    TYPE: ClassVar[str] = "park"
    parked_id: str
    signal_id: str
    name: str
    body: bytes
    workflow: str
    tags: Mapping[str, str]
    park_us: int
    by: str
    by_caller: bool = False
    traceparent: str | None = None

    @property
    def workflow_id(self) -> str:
        """Which partition decides it."""
        return self.parked_id


@dataclass(frozen=True, slots=True)
class Land:
    """Tell a parked signal what became of the offer to ``target``. ``refused``: why it did not take it; None: it did."""

    TYPE: ClassVar[str] = "land"
    parked_id: str
    target: str
    refused: str | None = None

    @property
    def workflow_id(self) -> str:
        """Which partition decides it."""
        return self.parked_id


@dataclass(frozen=True, slots=True)
class Discard:
    """Take a signal out of a workflow's queue: no listen gets it. Asked again, nothing changes.

    The reply says with ``created`` whether this command did it.
    """

    TYPE: ClassVar[str] = "discard"
    workflow_id: str
    signal_id: str
    by: str


@dataclass(frozen=True, slots=True)
class DiscardParked:
    """Let go of a parked signal: no workflow gets it. ``workflow`` is the name that it waits for; else as :class:`Discard`."""

    TYPE: ClassVar[str] = "discard_parked"
    parked_id: str
    signal_id: str
    workflow: str
    by: str

    @property
    def workflow_id(self) -> str:
        """Which partition decides it."""
        return self.parked_id


@dataclass(frozen=True, slots=True)
class Yield:
    """A worker asks a process that drives nothing to release the partition. ``workflow_id`` is empty: it is for the owner."""

    TYPE: ClassVar[str] = "yield"
    to: str
    workflow_id: str = ""


Decidable = Dispatch | SendSignal | Wake | Cancel | Silence | Recover | Revive | AwaitOutput | TellOutput
"""What is decided about one workflow, from its state."""
Asked = Decidable | Rerun | Prune | Discard | SetSchedule | ChangeSchedule | Park | Land | DiscardParked | Store
"""What one may ask of a workflow, or of what stands beside. (A rerun, a discard and a pruning are decided from its history.)"""
Command = Asked | Yield

_A = TypeVar("_A", bound=Asked)

_KINDS: tuple[type[Command], ...] = (
    Dispatch,
    SendSignal,
    Wake,
    Cancel,
    Silence,
    Recover,
    Revive,
    Rerun,
    Prune,
    AwaitOutput,
    TellOutput,
    SetSchedule,
    ChangeSchedule,
    Park,
    Land,
    Discard,
    DiscardParked,
    Store,
    Yield,
)
_TYPES: dict[str, type[Command]] = {kind.TYPE: kind for kind in _KINDS}
_PAYLOADS = frozenset({"input", "body", "output"})
_TRACEPARENT = "traceparent"
_LEFT_OUT = frozenset({_TRACEPARENT, "schedule", "parked"})
"""What is not written where it is None: the line is that of a version which does not know it, and can read it."""


@fact
class Reply:
    """What became of a command: the workflow or signal id it names, or an error.

    ``created``: it made that workflow, or woke it, or discarded that signal. ``output``: of a completed workflow. ``stands``:
    of a parked signal that was sent before, "delivered" if a workflow has got it. ``position``: the number that the first of
    what was stored has got.
    """

    id: str = ""
    created: bool = False
    error: GasolineError | None = None
    output: bytes | None = None
    stands: Literal["delivered"] | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A command on its way through an inbox. ``client`` gets the reply under ``request_id``; "": nobody waits for one.

    ``letter``: what is written, by whoever decides, if the command is refused.
    """

    request_id: str
    client: str
    command: Command
    letter: Letter | None = None


def encode_request(request: Request) -> bytes:
    """Render a request as one line of JSON."""
    command = request.command
    fields: dict[str, Any] = store_members(command) if isinstance(command, Store) else {}
    for name in () if fields else (known.name for known in dataclasses.fields(command)):
        value = getattr(command, name)
        if name in _PAYLOADS:
            if value is None:
                continue  # which is no JSON null
            value = orjson.Fragment(value)
        if value is None and name in _LEFT_OUT:
            continue
        fields[name] = value
    fields["request_id"], fields["client"], fields["command"] = request.request_id, request.client, command.TYPE
    if request.letter is not None:  # left out else: older versions read the request, too
        fields["letter"] = request.letter.members()
    return orjson.dumps(fields)


def decode_request(raw: bytes) -> Request:
    """Read a request. Raises: ValueError: it is none of ours, or of a newer version."""
    try:
        fields = cast(dict[str, Any], from_json(raw))
        request_id, client = fields.pop("request_id"), fields.pop("client")
        if not isinstance(request_id, str) or not isinstance(client, str):
            raise TypeError("request_id and client are texts")
        kind = _TYPES[fields.pop("command")]
        letter = read_letter(fields.pop("letter")) if "letter" in fields else None
        if kind is Store:
            return Request(request_id, client, _checked(read_store(fields)), letter)
        for name in _PAYLOADS & fields.keys():
            fields[name] = to_json(fields[name])
            check_depth(fields[name])  # it must still be readable inside an event
        if _TRACEPARENT in fields:
            fields[_TRACEPARENT] = readable(fields[_TRACEPARENT])
        return Request(request_id, client, _checked(kind(**fields)), letter)
    except (KeyError, TypeError, AttributeError, GasolineError) as error:
        raise ValueError(f"not a request of gasoline_es: {error!r} in {raw[:200]!r}") from error


def address_of(raw: bytes) -> tuple[str, str] | None:
    """Return the request id and the client of a request that cannot be read otherwise, so that it can be answered."""
    try:
        fields = cast(dict[str, Any], from_json(raw))
        request_id, client = fields["request_id"], fields["client"]
    except (ValueError, KeyError, TypeError):
        return None
    return (request_id, client) if request_id and isinstance(request_id, str) and isinstance(client, str) else None


def _is_text(given: object) -> bool:
    """Whether it is a text, or left out."""
    return given is None or type(given) is str


def _checked(command: Command) -> Command:
    """Refuse what no client of this library would send: an inbox is open to everybody who can write to the log."""
    if isinstance(command, Yield):
        return command
    check_workflow_id(command.workflow_id)
    if isinstance(command, Store):
        return command  # its reader has looked at the rest
    if isinstance(command, Dispatch):
        check_name("workflow", command.name)
        if command.ray_id and not is_workflow_id(command.ray_id):
            raise TypeError(f"ray id {command.ray_id!r}")
        if check_tags(command.tags, "dispatch") != command.tags:
            raise TypeError("tags are not canonical")
        if command.schedule is not None:
            raise TypeError("only a schedule's owner dispatches for it")
        if type(command.unique) is not bool or not _is_text(command.key) or not _is_text(command.parent):
            raise TypeError(f"unique {command.unique!r}, key {command.key!r}, parent {command.parent!r}")
    elif isinstance(command, SendSignal):
        check_name("signal", command.name)
        check_caller_id("signal id", command.signal_id)
        if type(command.by_caller) is not bool or not _is_text(command.sender):
            raise TypeError(f"by_caller {command.by_caller!r}, sender {command.sender!r}")
        if command.parked is not None:
            check_workflow_id(command.parked)
    elif isinstance(command, Land):
        check_workflow_id(command.target)
        if command.refused is not None and type(command.refused) is not str:
            raise TypeError(f"refused {command.refused!r}")
    elif isinstance(command, Rerun):
        parse_location(command.start)
        check_caller_id("rerun id", command.rerun_id)
        check_caller_id("by", command.by)
        if command.fork_id is not None and slot_of(check_workflow_id(command.fork_id)) != slot_of(command.workflow_id):
            raise TypeError(f"a fork stays in the slot of its workflow: {command.fork_id!r}")
    elif isinstance(command, AwaitOutput | TellOutput):
        parse_location(command.waiting_at)
        if type(command.generation) is not int or command.generation < 0:
            raise TypeError(f"generation {command.generation!r}")
        check_workflow_id(command.waiter if isinstance(command, AwaitOutput) else command.of)
        if type(command.version) is not int or command.version < 1:
            raise TypeError(f"version {command.version!r}")
        if isinstance(command, TellOutput) and type(command.silenced) is not bool:
            raise TypeError(f"silenced {command.silenced!r}")
    elif type(command.by) is not str:
        raise TypeError(f"by {command.by!r}")
    elif isinstance(command, SetSchedule):
        _check_schedule(command)
    elif isinstance(command, Park):
        _check_parking(command)
    elif isinstance(command, Discard | DiscardParked):
        check_caller_id("signal id", command.signal_id)
        if isinstance(command, DiscardParked):
            check_name("workflow", command.workflow)
    elif isinstance(command, ChangeSchedule):
        if command.verb not in get_args(ScheduleVerb) or type(command.name) is not str:
            raise TypeError(f"verb {command.verb!r}, name {command.name!r}")
        if command.verb == "trigger" and slot_of(check_workflow_id(command.run_id)) != slot_of(command.schedule_id):
            raise TypeError(f"a workflow stays in the slot of its schedule: {command.run_id!r}")
    elif isinstance(command, Prune):
        if type(command.before_us) is not int or type(command.by_rule) is not bool or not _is_text(command.reason):
            raise TypeError(f"before {command.before_us!r}, by_rule {command.by_rule!r}, reason {command.reason!r}")
    elif isinstance(command, Cancel) and type(command.now) is not bool:
        raise TypeError(f"now {command.now!r}")
    elif isinstance(command, Revive) and (type(command.error) is not str or type(command.recover) is not bool):
        raise TypeError(f"error {command.error!r}, recover {command.recover!r}")
    return command


def _check_schedule(command: SetSchedule) -> None:
    check_name("schedule", command.name)
    check_name("workflow", command.workflow)
    if check_tags(command.tags, "a schedule") != command.tags:
        raise TypeError("tags are not canonical")
    if command.missed not in MISSED or command.overlap not in OVERLAPS or type(command.replace) is not bool:
        raise TypeError(f"missed {command.missed!r}, overlap {command.overlap!r}, replace {command.replace!r}")
    if command.cron is None:
        if type(command.interval_us) is not int or not INTERVAL_US_MIN <= command.interval_us <= MAX_US:
            raise TypeError(f"interval {command.interval_us!r}")
    elif check_cron(command.cron, command.timezone) != Cron(command.cron, command.timezone):
        raise TypeError(f"the cron expression is not canonical: {command.cron!r}")


def _check_parking(command: Park) -> None:
    check_name("signal", command.name)
    check_name("workflow", command.workflow)
    check_caller_id("signal id", command.signal_id)
    if check_tags(command.tags, "a parked signal") != command.tags:
        raise TypeError("tags are not canonical")
    if type(command.park_us) is not int or not 1 <= command.park_us <= DURATION_US_MAX:
        raise TypeError(f"park {command.park_us!r}")
    if type(command.by_caller) is not bool:
        raise TypeError(f"by_caller {command.by_caller!r}")


def encode_reply(request_id: str, reply: Reply) -> bytes:
    """Render the reply to a request as one line of JSON."""
    shown: dict[str, Any] = {"request_id": request_id, "id": reply.id, "created": reply.created}
    if reply.error is not None:
        fields = {name: value for name, value in reply.error.fields.items() if isinstance(value, (str, int, float))}
        shown["error"] = {"type": type(reply.error).__name__, "message": reply.error.message, "fields": fields}
    if reply.output is not None:
        shown["output"] = orjson.Fragment(reply.output)
    if reply.stands is not None:
        shown["stands"] = reply.stands
    if reply.position is not None:
        shown["position"] = reply.position
    return orjson.dumps(shown)


def decode_reply(raw: bytes) -> tuple[str, Reply]:
    """Read a reply: the request's id, and what became of it."""
    shown = cast(dict[str, Any], from_json(raw))
    error: GasolineError | None = None
    if "error" in shown:
        told = shown["error"]
        found = getattr(errors, told["type"], None)
        kind = found if isinstance(found, type) and issubclass(found, GasolineError) else GasolineError
        error = kind(told["message"], **told["fields"])
    output = to_json(shown["output"]) if "output" in shown else None
    return shown["request_id"], Reply(
        shown["id"], shown["created"], error, output, shown.get("stands"), shown.get("position")
    )


def repeated(command: _A, decided: Reply) -> _A:
    """Return the command as it is asked again, of an owner that may have to find out whether ``decided`` counts.

    All others are recognised by what they name.
    """
    if isinstance(command, Store) and decided.position is not None:
        return dataclasses.replace(command, at=decided.position)
    return command
