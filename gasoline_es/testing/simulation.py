"""Runs workflows in a test: a memory log, a worker, a client, and a clock that jumps to the next deadline.

Everything is on an event loop of the simulation's own, whose time is the virtual clock. Each verb runs that loop until
nothing can happen any more without time passing, and returns; so the verbs are plain calls, at home in every test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic, Self, TypedDict, TypeVar, overload

from gasoline_es.activity_context import ActivityContext
from gasoline_es.core.codec import decode
from gasoline_es.core.durations import deadline_us, duration_us, to_datetime
from gasoline_es.core.events import Event
from gasoline_es.core.packets import decode_packet
from gasoline_es.core.tags import Tags, check_tags, matches
from gasoline_es.core.topics import Topics
from gasoline_es.definitions import Activity, Workflow
from gasoline_es.engine import Gasoline
from gasoline_es.handles import WorkflowHandle, WorkflowInfo
from gasoline_es.messages import Message, Received, check_message_kind
from gasoline_es.runtime.worker import EVICT_AFTER_S
from gasoline_es.signals import Signal
from gasoline_es.subscribing import received
from gasoline_es.testing.fakes import NOTHING, Call, Fakes, fake_of
from gasoline_es.testing.process import CrashPoint
from gasoline_es.testing.stage import Setting, Stage

I = TypeVar("I")  # noqa: E741  # the input, next to O, the output
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")
M = TypeVar("M", bound=Message)

START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Settings(TypedDict, total=False):
    """The settings of a :class:`Simulation`, for who passes them on."""

    strict: bool
    start: datetime
    seed: int
    partitions: int
    evict_after: float
    patience: float
    jumps_max: int


class SimulatedWorkflow(Generic[O]):
    """A workflow of a simulation: the verbs of a ``WorkflowHandle`` as plain calls."""

    __slots__ = ("_handle", "_simulation")

    def __init__(self, simulation: Simulation, handle: WorkflowHandle[O]) -> None:
        self._simulation = simulation
        self._handle = handle

    def __repr__(self) -> str:
        return repr(self._handle)

    @property
    def id(self) -> str:
        return self._handle.id

    def output(self) -> O:
        """Let time pass until the workflow has completed; return its output.

        Raises: WorkflowFailed: it is dead. WorkflowCancelled, WorkflowSilenced. Stuck: it waits for what never comes; the
            message says for what.
        """
        return self._simulation.run(self._handle.output(), verb="output")

    def signal(self, signal: Signal, *, id: str | None = None) -> str:
        """Send a signal now; returns its id. Raises: WorkflowNotFound: the workflow is complete."""
        return self._simulation.run(self._handle.signal(signal, id=id), verb="signal")

    def discard_signal(self, signal_id: str) -> None:
        """Take a signal out of its queue. Raises: SignalNotFound. GasolineError: a listen has taken it."""
        self._simulation.run(self._handle.discard_signal(signal_id), verb="discard_signal")

    def get(self) -> WorkflowInfo:
        """Return where it stands."""
        return self._simulation.run(self._handle.get(), verb="get")

    def history(self) -> list[Event]:
        """Return its events so far, in order."""
        return self._simulation.run(self._handle.history(), verb="history")

    def wake(self) -> None:
        """Run it again, if it is dead."""
        self._simulation.run(self._handle.wake(), verb="wake")

    def cancel(self, *, now: bool = False) -> None:
        """Cancel it, and let it clean up as far as that comes without time passing. ``now``: it does not clean up."""
        self._simulation.run(self._handle.cancel(now=now), verb="cancel")

    def silence(self) -> None:
        """Take it out of sight, for good. Raises: GasolineError: it is over, or being cancelled."""
        self._simulation.run(self._handle.silence(), verb="silence")

    def recover(self) -> None:
        """Let the activity that it died of run again. Raises: GasolineError: it is not dead, or died of something else."""
        self._simulation.run(self._handle.recover(), verb="recover")

    def rerun(self, from_location: str, fork: bool = False) -> SimulatedWorkflow[O]:
        """Let it start over from a step; returns the workflow that goes on, with ``fork`` a new one."""
        again = self._simulation.run(self._handle.rerun(from_location, fork), verb="rerun")
        return SimulatedWorkflow(self._simulation, again)


class Simulation:
    """``with Simulation([fulfil]) as sim:`` runs these workflows until the block ends.

    ``strict``: an activity without a fake is an error that names it, instead of being run. ``start``: the time at which the
    clock begins. ``seed``: of the ids, which are the same in every run with the same calls. ``partitions`` and
    ``evict_after`` (seconds) as of a log and a worker: whoever waits longer than that leaves memory, and is replayed.
    ``patience``: how many real seconds an activity that really works (in a thread, on a socket) may keep the clock waiting.
    ``jumps_max``: of the clock in one call: two workflows that wake each other for ever are told and do not hang.

    Not for use from several threads.
    """

    def __init__(
        self,
        workflows: Iterable[Workflow[Any, Any]],
        *,
        strict: bool = False,
        start: datetime = START,
        seed: int = 0,
        partitions: int = 4,
        evict_after: float = EVICT_AFTER_S,
        patience: float = 30.0,
        jumps_max: int = 100_000,
        crash: CrashPoint | None = None,
    ) -> None:
        setting = Setting(
            workflows=tuple(workflows),
            start_us=deadline_us(start, "start of a simulation"),
            seed=seed,
            partitions=partitions,
            evict_after_s=evict_after,
            patience_s=patience,
            jumps_max=jumps_max,
            crash=crash,
        )
        self._start_us = setting.start_us
        self._fakes = Fakes(strict, self._refuse)
        self._stage = Stage(setting, self._fakes.stand_in)
        self._clock = self._stage.clock
        self._later: dict[int, list[Callable[[], Awaitable[object]]]] = {}

    def __enter__(self) -> Self:
        self._stage.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._later.clear()
        self._stage.close()

    # --- what a test does ---------------------------------------------------------------------------------------------

    @overload
    def fake(
        self,
        activity: Activity[I, O],
        fn: Callable[[ActivityContext, I], Awaitable[O]],
        /,
        *,
        raises: BaseException | type[BaseException] | None = None,
        times: int | None = None,
    ) -> None: ...
    @overload
    def fake(
        self,
        activity: Activity[I, O],
        fn: Callable[[ActivityContext, I], O],
        /,
        *,
        raises: BaseException | type[BaseException] | None = None,
        times: int | None = None,
    ) -> None: ...
    @overload
    def fake(
        self,
        activity: Activity[I, O],
        /,
        *,
        returns: O,
        raises: BaseException | type[BaseException] | None = None,
        times: int | None = None,
    ) -> None: ...
    @overload
    def fake(self, activity: Activity[I, O], /, *, raises: BaseException | type[BaseException]) -> None: ...
    def fake(
        self,
        activity: Activity[Any, Any],
        fn: Callable[[ActivityContext, Any], Any] | None = None,
        /,
        *,
        returns: Any = NOTHING,
        raises: BaseException | type[BaseException] | None = None,
        times: int | None = None,
    ) -> None:
        """Run something else in an activity's place, from its next attempt on; retries, timeouts and codecs stay.

        ``fn``: ``def`` or ``async def``, called on the simulation's loop. ``returns``: what every attempt returns.
        ``raises``: what every attempt raises, or with ``times`` only the first so many of each step.

        Raises: TypeError, ValueError: that makes no sense. NotSerializable: ``returns`` is not what the activity returns.
        """
        self._fakes.set(activity, fake_of(activity, fn, returns, raises, times))

    def calls(self, activity: Activity[I, Any]) -> list[Call[I]]:
        """Return the attempts of an activity so far, faked or real, in the order in which they started."""
        return self._fakes.calls(activity)

    def dispatch(
        self,
        workflow: Workflow[I, O],
        input: I,
        *,
        tags: Tags | None = None,
        unique: bool = False,
        key: str | None = None,
    ) -> SimulatedWorkflow[O]:
        """Start a workflow, and let it go as far as it comes without time passing. Raises: as ``Gasoline.dispatch``."""
        dispatching = self.gasoline.dispatch(workflow, input, tags=tags, unique=unique, key=key)
        return SimulatedWorkflow(self, self.run(dispatching, verb="dispatch"))

    def handle(self, workflow_id: str, workflow: Workflow[Any, O]) -> SimulatedWorkflow[O]:
        """Return a handle for an id, of a sub-workflow say."""
        return SimulatedWorkflow(self, self.gasoline.handle(workflow_id, workflow))

    def workflows(self, workflow: Workflow[Any, Any] | None = None) -> list[WorkflowInfo]:
        """Return where all workflows stand (those of one definition, if given), in order of creation, with payloads."""
        name = None if workflow is None else workflow.name

        async def listed() -> list[WorkflowInfo]:
            return [info async for info in self.gasoline.list(name=name, payloads=True)]

        return self.run(listed(), verb="workflows")

    def history(self) -> list[Event]:
        """Return the events of all workflows as a projection meets them: by partition, and in each as they were appended."""
        log = self.gasoline.log
        topic = Topics(log.namespace).events
        records = (record for partition in range(log.partition_count) for record in log.read(topic, partition))
        return [decode(record.value) for record in records if record.value is not None]

    def signal(self, signal: Signal, workflow: Workflow[Any, Any], *, tags: Tags | None = None) -> str:
        """Send a signal now to the oldest incomplete workflow of a name with these tags. Raises: WorkflowNotFound."""
        return self.run(self.gasoline.signal(signal, workflow, tags=tags), verb="signal")

    def signal_at(
        self,
        when: float | timedelta | datetime,
        signal: Signal,
        workflow: Workflow[Any, Any] | None = None,
        *,
        to: SimulatedWorkflow[Any] | str | None = None,
        tags: Tags | None = None,
    ) -> None:
        """Send a signal when the clock comes there: a time since the simulation's start (or seconds, or a datetime).

        Addressed as ``Gasoline.signal`` is: ``to=``, or a workflow with tags, which need not be dispatched yet. Signals of
        one time are sent in the order of the calls. If there is none to take it then, the verb that runs raises that.

        Raises: ValueError: the time has passed, or both ways of addressing were used, or none.
        """
        at_us = self._at_us(when)
        if (to is None) == (workflow is None) or (to is not None and tags is not None):
            raise ValueError("give `to=` (a handle or an id) or a workflow with tags, one of the two")
        gasoline = self.gasoline

        def send() -> Awaitable[object]:
            if to is not None:
                return gasoline.signal(signal, to=to if isinstance(to, str) else to.id)
            assert workflow is not None
            return gasoline.signal(signal, workflow, tags=tags)

        due = self._later.get(at_us)
        if due is None:
            due = self._later[at_us] = []
            self._stage.loop.call_at((at_us - self._start_us) / 1e6, self._send_later, at_us)
        due.append(send)

    def messages(self, kind: type[M], *, topic: Tags | None = None) -> list[Received[M]]:
        """Return the messages of a kind that were sent so far, by bodies and by clients, in order.

        ``topic``: only those whose topics contain these tags. All of them, however long ago they were sent.
        """
        name = check_message_kind(kind, "sim.messages").__message_name__
        wanted = check_tags(topic, f"the topic of {name!r}")
        log = self.gasoline.log
        topics = Topics(log.namespace)
        tail = log.tail(topics.messages, topics.message_partition(name, log.partition_count))
        found: list[Received[M]] = []
        while records := tail.poll():
            packets = [decode_packet(record.value) for record in records if record.key == name and record.value]
            found += [received(kind, packet) for packet in packets if matches(packet.topic, wanted)]
        return found

    def advance(self, duration: float | timedelta) -> None:
        """Let time pass (seconds, or a timedelta), with all that comes due in it."""
        until_us = self._clock.now_us() + duration_us(duration, "advance")

        async def passed() -> None:
            await asyncio.sleep((until_us - self._clock.now_us()) / 1e6)

        self.run(passed(), verb="advance")

    def crash(self) -> None:
        """Kill the worker now, as SIGKILL would, and start another on the same log."""
        self.run(self._stage.restart(), verb="crash")

    def restart(self) -> None:
        """Stop the worker cleanly, as SIGTERM would, and start another on the same log.

        What activities do gets up to 30 virtual seconds to end. After a crash they are restarted with care, and their
        histories say so; after this they are not.
        """
        self.run(self._stage.replace(), verb="restart")

    def run(self, coroutine: Coroutine[Any, Any, T], *, verb: str = "run") -> T:
        """Run a coroutine on the simulation's loop: all it awaits, ``asyncio.sleep`` too, takes virtual time.

        Use the ordinary client in it, :attr:`gasoline`. Raises: Stuck: what it awaits never comes.
        """
        return self._stage.run(coroutine, verb)

    @property
    def gasoline(self) -> Gasoline:
        """The ordinary client, for coroutines that are given to :meth:`run`. It outlives crashes of the worker."""
        _ = self._stage.loop  # raises where there is none
        assert self._stage.gasoline is not None
        return self._stage.gasoline

    @property
    def crashed_at(self) -> str | None:
        """The events of the append at which the worker crashed, if it did (``crash=``)."""
        return self._stage.crashed_at

    @property
    def now(self) -> datetime:
        """The virtual time, UTC."""
        return to_datetime(self._clock.now_us())

    @property
    def elapsed(self) -> timedelta:
        """How much virtual time has passed since the start."""
        return timedelta(microseconds=self._clock.now_us() - self._start_us)

    # ------------------------------------------------------------------------------------------------------------------

    def _refuse(self, error: Exception) -> None:
        self._stage.fail(error)

    def _send_later(self, at_us: int) -> None:
        self._stage.spawn(self._send(self._later.pop(at_us, [])))

    async def _send(self, due: list[Callable[[], Awaitable[object]]]) -> None:
        for send in due:
            await send()

    def _at_us(self, when: float | timedelta | datetime) -> int:
        at_us = (
            deadline_us(when, "time of a signal")
            if isinstance(when, datetime)
            else self._start_us + duration_us(when, "time of a signal")
        )
        if at_us < self._clock.now_us():
            raise ValueError(f"{to_datetime(at_us)} has passed in this simulation: it is {self.now}")
        return at_us


__all__ = ["Settings", "SimulatedWorkflow", "Simulation"]
