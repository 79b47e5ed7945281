"""A partition this process owns: decides commands, keeps the overlay of what is not durable yet (design §5).

Decisions apply to the workflows in memory at once and go out with the next append. When an append fails for want of
space, everything decided since the last good one is dropped with the bodies that saw it, and read back from the log; when
the partition was taken by somebody else, all of it is let go.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from gasoline_es.clock import Clock
from gasoline_es.core import events as ev
from gasoline_es.core.codec import Envelope
from gasoline_es.core.commands import (
    Asked,
    Cancel,
    ChangeSchedule,
    Command,
    Discard,
    DiscardParked,
    Dispatch,
    Land,
    Park,
    Prune,
    Recover,
    Reply,
    Request,
    Rerun,
    Revive,
    SendSignal,
    SetSchedule,
    Silence,
    TellOutput,
    Wake,
    Yield,
    address_of,
    decode_request,
    encode_reply,
    encode_request,
)
from gasoline_es.core.decide import decide
from gasoline_es.core.durations import format_time
from gasoline_es.core.emitted import emitted_headers
from gasoline_es.core.error_info import error_info, shortened
from gasoline_es.core.events import ErrorInfo
from gasoline_es.core.ids import partition_of
from gasoline_es.core.letters import Letter, Waiting, waiting_key
from gasoline_es.core.location import format_location
from gasoline_es.core.packets import Packet, encode_packet
from gasoline_es.core.ports import BesideView, Views
from gasoline_es.core.pruning import Ends
from gasoline_es.core.state import Summary, WorkflowState
from gasoline_es.core.stored_events import Stored, StoredEnvelope, decode_stored
from gasoline_es.core.storing import Store
from gasoline_es.core.topics import Topics
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import Fenced, GasolineError, LogError, RecordTooLarge
from gasoline_es.log.moved import mark_in, newest_first, refuse_closed
from gasoline_es.log.port import (
    Appended,
    Log,
    NewRecord,
    Outcome,
    Owner,
    Ownership,
    Position,
    Section,
)
from gasoline_es.runtime.batch import Batch, Done
from gasoline_es.runtime.discarding import discard
from gasoline_es.runtime.fitting import require_fit
from gasoline_es.runtime.histories import begun_after, facts_of, fold, recall
from gasoline_es.runtime.live import Live
from gasoline_es.runtime.parked import ParkedSignals
from gasoline_es.runtime.pruning import ends_of, prune_one
from gasoline_es.runtime.schedules import Schedules
from gasoline_es.runtime.standing import D, Described, E
from gasoline_es.runtime.starting_over import start_over
from gasoline_es.runtime.stored import StoredEvents

if TYPE_CHECKING:
    from gasoline_es.runtime.activities import Attempt
    from gasoline_es.runtime.tracing import Tracing

_log = EngineLog(__name__)

INBOX_POLL_MAX = 1_000
POSITIONS_READ = 16
REASON_BYTES_MAX = 4_000
"""So much of an error stands in a dead letter."""
SUSPECTS_NAMED_MAX = 10_000
"""An owner that leaves names so many workflows under suspicion; more are all that run."""
RESTING_MAX = 100
"""So many workflows that nobody drives here stay in memory after the last command, instead of being read for each."""

_INDEXED = frozenset(
    {
        ev.WorkflowDispatched,
        ev.WorkflowTagsUpdated,
        ev.WorkflowCompleted,
        ev.WorkflowCancelled,
        ev.WorkflowSilenced,
        ev.WorkflowRerun,
    }
)
"""The facts that change by which tags a workflow is found, and whether it is."""


class Hooks(Protocol):
    """What an owned partition tells the one that drives bodies."""

    tracing: Tracing | None

    def turn(self, partition: Partition, live: Live) -> None:
        """Something about this workflow changed, or became durable: see whether its body can go on."""

    def ask_append(self, partition: Partition) -> None:
        """The partition has something to append."""

    def changed(self, batch: Batch) -> None:
        """The batch's events are durable and in the views."""

    def attempts_durable(self, attempts: list[Attempt]) -> None:
        """The outcomes of these attempts are durable."""

    def published(self) -> None:
        """Messages are durable."""

    def stored_here(self) -> None:
        """Events of sequences are durable."""

    def told(self, indexes: set[int]) -> None:
        """Commands to the inboxes of these partitions are durable."""

    def leave(self, old: Live, new: Live) -> None:
        """A workflow starts over: ``new`` takes the place of ``old``, whose body is to be let go of."""

    def alarm(self, subject: str, due_us: int | None) -> None:
        """A schedule is due at this time, or a parked signal's time is over; None: never, as far as is known."""

    def parked_wait(self, partition: Partition, parked_ids: list[str]) -> None:
        """These parked signals wait for workflows: look whether they are there, and whether any wait at all."""

    def dropped(self, partition: Partition, workflow_ids: list[str], error: LogError) -> None:
        """Decisions about these workflows were not recorded; they are out of memory."""

    def lost(self, partition: Partition, error: LogError, gone: Sequence[Live]) -> None:
        """The partition is not ours any more, or its log failed. ``gone``: the workflows that were in memory."""

    def prune_rule(self, name: str) -> ev.PruneRule:
        """Return what may go of a workflow of this name; nothing if nobody here knows its definition."""
        ...

    def buried(self, pipeline: str) -> None:
        """A dead letter of a pipeline goes out, or waits for its topic, with the next append."""

    def letters_wait(self, partition: Partition) -> None:
        """Dead letters wait in the registry: they are to go to their topics."""

    def yield_to(self, partition: Partition, worker: str) -> None:
        """A worker asks for the partition."""


class Beside(Protocol):
    """What stands beside workflows in a partition: decided here, ahead of what is durable."""

    @property
    def view(self) -> BesideView:
        """What is durable of it."""
        ...

    def durable(self, events: Sequence[Any], first_offset: int, place: int, /) -> None:
        """Fold what has become durable, all of it at ``place``."""

    def roll_back(self) -> None:
        """Forget what is not durable: it did not happen."""

    def arm_all(self) -> None:
        """See that all are looked after: the partition was taken over, or decisions were dropped."""

    def disarm_all(self) -> None:
        """See to none of them any more."""


class Partition:
    """One owned partition. ``views`` hold durable facts only; ``lives`` run ahead of them."""

    def __init__(self, log: Log, ownership: Ownership, views: Views, clock: Clock, hooks: Hooks, worker: str) -> None:
        self.index = ownership.partition
        self.epoch = ownership.epoch
        self.views = views
        self.lives: dict[str, Live] = {}
        self.lost: LogError | None = None
        """Why it is not ours any more, once it is not."""
        self.schedules = Schedules(self, views.schedules)
        self.parked = ParkedSignals(self, views.parked)
        self.suspects: set[str] = set()
        """The workflows that were running when the last owner died, and were not replayed since."""
        self._log = log
        self._topics = topics = Topics(log.namespace)
        self.stored = StoredEvents(self, views.stored)
        self._beside: dict[str, Beside] = {
            topics.schedules: self.schedules,
            topics.parked: self.parked,
            topics.stored: self.stored,
        }
        """What stands beside workflows here, by the topic of its events."""
        self._clock = clock
        self._hooks = hooks
        self._worker = worker
        self._stored_envelope = StoredEnvelope(log.namespace, self.index, self.epoch, worker)
        self._open = Batch()
        self._in_flight: Batch | None = None
        self._position = self._read_position(ownership)
        self._tail = log.tail(self._topics.inbox, self.index, self._position)
        self._inbox_moved = False
        self._asked = False
        self._resting: dict[str, Live] = {}

    # --- the workflows in memory --------------------------------------------------------------------------------------

    def load(self, workflow_id: str) -> Live | None:
        """Return the workflow with its undurable decisions, read from the log if it is not in memory; None: unknown."""
        live = self.lives.get(workflow_id)
        if live is not None:
            return None if live.state.summary.pruned == "all" else live
        if self.views.summary(workflow_id) is None:
            return None
        return self.hold(fold(workflow_id, self._log, self._topics.events, self.index, self.views))

    def hold(self, state: WorkflowState) -> Live:
        """Have a workflow in memory that stands so, by what is durable."""
        live = self.lives[state.summary.id] = Live(self, state, self._envelope(state))
        return live

    def let_go_of(self, live: Live) -> None:
        """Take a workflow out of memory whatever stands there; everything decided about it must be durable."""
        assert live.settled, f"{live.id} has decisions that are not durable"
        live.drop_run()
        if self.lives.get(live.id) is live:
            del self.lives[live.id]

    def ends_of(self, workflow_id: str) -> Ends:
        """Read the first and the last durable event of a workflow. Raises: LogError."""
        located = self.views.located(workflow_id)
        return ends_of(workflow_id, self._log, self._topics.events, self.index, located)

    def drop(self, live: Live) -> None:
        """Take a workflow out of memory. Everything decided about it must be durable."""
        assert live.settled, f"{live.id} has decisions that are not durable"
        live.drop_run()
        self.lives.pop(live.id, None)

    def drop_if_idle(self, live: Live) -> None:
        """Let a workflow go that has no body and nothing on its way to the log. The last few stay: more may come for them."""
        if live.run is not None or not live.settled:
            return
        self._resting.pop(live.id, None)
        self._resting[live.id] = live
        while len(self._resting) > RESTING_MAX:
            oldest = next(iter(self._resting))
            rested = self._resting.pop(oldest)
            if rested.run is None and rested.settled and self.lives.get(oldest) is rested:
                del self.lives[oldest]

    # --- deciding -----------------------------------------------------------------------------------------------------

    def record(self, live: Live, data: ev.EventData, time_us: int | None = None, *, hurry: bool = True) -> None:
        """Decide a fact about a workflow: apply it to its state, and queue it for the next append.

        ``time_us``: when it was decided, if that is not now. ``hurry`` False: no append is asked for because of it; whoever
        decides so sees that one comes, see :meth:`hurry`. Raises: RecordTooLarge: nothing happened.
        """
        state = live.state
        summary = state.summary
        seq = summary.seq + 1
        now_us = self._clock.now_us()
        decided_us = now_us if time_us is None else time_us
        value = live.envelope.encode(seq, decided_us, data)
        require_fit(data.TYPE, value)
        state.apply(seq, decided_us, data, summary.ray_id, self._worker)
        batch = self._open
        batch.records.append(NewRecord(self._topics.events, self.index, f"{summary.id}/{seq}", value, now_us))
        batch.lives.append(live)
        batch.facts.append(data)
        batch.times.append(decided_us)
        kind = type(data)
        if kind in _INDEXED:
            batch.records.append(self._index_record(live, data, now_us))
            batch.index(summary)
        if hurry and not self._asked:
            self._ask()

    def publish(self, live: Live, data: ev.MessageSent) -> None:
        """Send a message of which a body has just recorded that it is sent: in the same append, so with it or not at all.

        That is for the body's own steps. Whoever copies or shows such an event publishes nothing.
        """
        batch = self._open
        seq, time_us = live.state.summary.seq, batch.times[-1]
        assert batch.facts[-1] is data
        packet = Packet(data.name, data.topic, data.body, live.state.summary.ray_id, f"{live.id}/{seq}", time_us)
        batch.records.append(message_record(self._log, self._topics, packet))
        batch.published = True
        self.hurry()  # also where what follows may wait: whoever subscribes is to hear of it now

    def emit(self, live: Live, data: ev.RecordEmitted) -> None:
        """Record that a body emits a record, and write that in the same append: both are there, or neither.

        Raises: RecordTooLarge: nothing happened.
        """
        self.record(live, data)
        batch, summary = self._open, live.state.summary
        seq, time_us, tombstone = summary.seq, batch.times[-1], data.value is None
        headers = emitted_headers(self._log.namespace, summary.name, live.id, seq, time_us, tombstone=tombstone)
        batch.records.append(NewRecord(data.topic, data.partition, data.key, data.value, time_us, headers))

    def hurry(self) -> None:
        """See that what was recorded without hurry is appended now."""
        if not self._asked and not self.lost and not self._open.empty:
            self._ask()

    def require_room(self, live: Live, data: ev.EventData) -> None:
        """Raises: RecordTooLarge: the fact could not be recorded."""
        require_fit(data.TYPE, live.envelope.encode(live.state.summary.seq + 1, self._clock.now_us(), data))

    def undo(self, live: Live, seq: int) -> None:
        """Take back a workflow's events after ``seq``: the last decisions of this partition, and steps of the body only."""
        count = live.state.summary.seq - seq
        batch = self._open
        assert all(other is live for other in batch.lives[-count:])
        left = count
        while left:
            record = batch.records.pop()
            if record.topic == self._topics.events:
                left -= 1
            else:
                assert record.topic == self._topics.messages  # of a message that is not sent then
        del batch.lives[-count:], batch.facts[-count:], batch.times[-count:]
        state = fold(live.id, self._log, self._topics.events, self.index, self.views)
        for kept in (self._in_flight, batch):
            if kept is not None:
                for other, data, time_us in zip(kept.lives, kept.facts, kept.times, strict=True):
                    if other is live:
                        state.apply(state.summary.seq + 1, time_us, data, state.summary.ray_id, self._worker)
        state.know_as(live.state)
        live.state = state

    def facts(self, live: Live) -> list[ev.Fact]:
        """Read all events of a workflow, with those that are not durable yet. Raises: LogError."""
        summary, seq = live.state.summary, live.durable_seq
        facts = list(facts_of(live.id, self._log, self._topics.events, self.index, self.views))
        for batch in (self._in_flight, self._open):
            if batch is not None:
                for other, data, time_us in zip(batch.lives, batch.facts, batch.times, strict=True):
                    if other is live:
                        seq += 1
                        facts.append((live.id, seq, time_us, data, summary.ray_id, self._worker))
        return facts

    def replace(self, old: Live, state: WorkflowState) -> Live:
        """Put another state in a workflow's place, which has seen as many events. Whoever holds ``old`` holds nothing now."""
        assert state.summary.seq == old.state.summary.seq
        new = self.lives[old.id] = Live(self, state, self._envelope(state))
        new.durable_seq = old.durable_seq
        for batch in (self._in_flight, self._open):
            if batch is not None:
                batch.lives[:] = [new if live is old else live for live in batch.lives]
        return new

    def begin(self, live: Live, old: Live | None) -> None:
        """Let a workflow go on, in the place of ``old``, once what was decided so far is durable."""
        if old is not None:
            self._hooks.leave(old, live)
        live.blocked_on = live.state.summary.seq
        self._hooks.turn(self, live)

    def recorded(self, attempt: Attempt) -> None:
        """Tell the hooks of this attempt once everything decided so far is durable."""
        self._open.attempts.append(attempt)

    def note(self, key: str, value: bytes | None, done: Done) -> None:
        """Put a record of the registry into the next append, whenever that is; ``done`` is told what became of it."""
        if self.lost:
            done(self.lost)
            return
        self._open.records.append(self._registry_record(key, value))
        self._open.done.append(done)

    def when_durable(self, done: Done) -> None:
        """Call ``done`` once everything decided so far is durable, or has failed."""
        if self.lost:
            done(self.lost)
            return
        self._open.done.append(done)
        if not self._asked:
            self._ask()

    @property
    def appending(self) -> bool:
        """Whether an append is under way: others may know more of it than is known here."""
        return self._in_flight is not None

    def when_settled(self, done: Done) -> bool:
        """Call ``done`` once the append that is under way counts, or has failed; return False if there is none."""
        if self._in_flight is None:
            return False
        self._in_flight.done.append(done)
        return True

    def _ask(self) -> None:
        self._asked = True
        self._hooks.ask_append(self)

    def decide(self, command: Asked, request_id: str | None = None) -> Reply:
        """Decide a command now. The reply may be told once :meth:`when_durable` says so, not before."""
        if isinstance(command, Rerun):
            return start_over(self, command)
        if isinstance(command, SetSchedule | ChangeSchedule):
            return self.schedules.decide(command)
        if isinstance(command, Discard):
            return discard(self, command)
        if isinstance(command, Prune):
            return prune_one(self, command)
        if isinstance(command, Park | Land | DiscardParked):
            return self.parked.decide(command)
        if isinstance(command, Store):
            return self.stored.decide(command)
        found = self._find_unique(command) if isinstance(command, Dispatch) and command.unique else None
        if found is not None:
            return Reply(found)
        live = self.load(command.workflow_id)
        if isinstance(command, SendSignal) and live is not None and not live.state.every_signal_known:
            recall(live.state, self._log, self._topics.events, self.index, self.views)
        begun: Done | None = None
        tracing = self._hooks.tracing
        if tracing is not None and live is None and isinstance(command, Dispatch) and command.traceparent is None:
            command, begun = tracing.adopt(command)
        events, reply = decide(live.state if live is not None else None, command, request_id)
        if live is None:
            if not events:
                return reply
            assert isinstance(command, Dispatch)
            live = self.new(command.workflow_id, command.name, command.ray_id or command.workflow_id)
        try:
            for data in events:
                if isinstance(data, ev.WorkflowCancelled):
                    data = replace(data, prune=self._hooks.prune_rule(live.state.summary.name))
                self.record(live, data)
            if live.state.summary.status in ("cancelled", "silenced") and events:
                self.tell_waiters(live)
            if events and isinstance(command, Dispatch | Wake | Cancel | Silence | Recover | Revive):
                # No body before its dispatch is durable. A repeat decides nothing, so nothing would ever unblock it.
                live.blocked_on = live.state.summary.seq
        except RecordTooLarge as error:
            if live.state.summary.seq == 0:
                del self.lives[live.id]
            return Reply(error=error)  # (where another was pruned, it goes on to stand there as pruned)
        if begun is not None:
            self.when_durable(begun)
        if events:
            self._hooks.turn(self, live)
        else:
            self.drop_if_idle(live)
        return reply

    def tell(self, command: SendSignal | TellOutput | Land) -> None:
        """Send a command on, in the same append as what is decided here: nobody waits for a reply.

        Raises: RecordTooLarge: nothing happened.
        """
        if self.holds(command.workflow_id):
            self.decide(command)
            return
        self._post(Request("", "", command))

    def _post(self, request: Request) -> None:
        """Put a request for another partition into the next append. Raises: RecordTooLarge: nothing happened."""
        command = request.command
        index = partition_of(command.workflow_id, self._log.partition_count)
        value = encode_request(request)
        require_fit(f"the {command.TYPE} request", value)
        record = NewRecord(self._topics.inbox, index, command.workflow_id, value, self._clock.now_us())
        self._open.records.append(record)
        self._open.told.add(index)
        if not self._asked:
            self._ask()

    def take_in(
        self, ingested: Sequence[tuple[Sequence[Asked], Letter, ErrorInfo | None]], key: str, position: Position
    ) -> list[ErrorInfo]:
        """Decide what records of a foreign topic lead to, or send it on, in one append with how far they were read.

        Each comes with its letter, and with the reason if that is to be written instead. Returns the reasons of the letters
        that are written here: what is sent on and refused there is written there. ``key``: of the position in the registry.
        """
        refused: list[ErrorInfo] = []
        for commands, letter, reason in ingested:
            failed = reason
            for command in commands if reason is None else ():
                if (why := self._send_or_decide(command, letter)) is not None:
                    failed = failed or why
            if failed is not None:
                self._bury(letter, failed)
                refused.append(failed)
        self._open.records.append(self._registry_record(key, orjson.dumps(position)))
        self.hurry()
        return refused

    def _send_or_decide(self, command: Asked, letter: Letter) -> ErrorInfo | None:
        """Return why a command came to nothing, if that is known here."""
        try:
            if not self.holds(command.workflow_id):
                try:
                    self._post(Request("", "", command, letter))
                except RecordTooLarge:  # what it asks for is more important than what is told if it is refused
                    self._post(Request("", "", command, letter.without_value()))
                return None
            error = self.decide(command).error
        except GasolineError as refused:
            error = refused
        return None if error is None else error_info(error)

    def _bury(self, letter: Letter, reason: ErrorInfo) -> None:
        """Write a dead letter, in the same append as what is decided here: its reader has seen that it can be written."""
        value = letter.because(shortened(reason, REASON_BYTES_MAX))
        self._open.records.append(NewRecord(letter.to, letter.to_partition, letter.key, value, self._clock.now_us()))
        self._hooks.buried(letter.pipeline)
        if not self._asked:
            self._ask()

    def _let_wait(self, letter: Letter, workflow_id: str, reason: ErrorInfo) -> None:
        """Have a dead letter wait in the registry, in the same append as what is decided here.

        Its topic may be gone since it was read: written here, it would take down with it all that is decided.
        """
        value = letter.because(shortened(reason, REASON_BYTES_MAX))
        waiting = Waiting(letter.to, letter.to_partition, letter.pipeline, letter.key, value)
        self._open.records.append(self._registry_record(waiting_key(letter, workflow_id), waiting.json()))
        self._hooks.buried(letter.pipeline)
        if not self._asked:
            self._ask()

    def waiting_letter(self, key: str) -> Waiting | None:
        """Read a letter that waits in the registry; None: it does not read. Raises: LogError."""
        at = self.views.registry.letters[key]
        for record in self._log.read(self._topics.registry, self.index, at, at + 1):
            if record.key == key and record.value is not None:
                try:
                    return Waiting.read(record.value)
                except ValueError:
                    break
        return None

    def send_waiting(self, letters: Sequence[tuple[str, NewRecord]], done: Done) -> None:
        """Write letters that have waited under these keys of the registry, and take them back there, in one append."""
        if not self.lost:
            for key, record in letters:
                self._open.records += (record, self._registry_record(key, None))
        self.when_durable(done)

    def position_of(self, key: str) -> Position | None:
        """Return the newest durable position of this key of the registry; None: there is none. Reads backwards."""
        return self._newest_position(key, self._log.end(self._topics.registry, self.index))

    def clear(self, keys: Sequence[str], position: Position) -> None:
        """Take events back by their keys, in one append with how far that has come. Nothing that counts is among them."""
        topic, now_us = self._topics.events, self._clock.now_us()
        self._open.cleared += [NewRecord(topic, self.index, key, None, now_us) for key in keys]
        key = self._topics.cleared_key(self.index)
        self._open.records.append(self._registry_record(key, orjson.dumps(position)))
        self.hurry()

    def tell_waiters(self, live: Live) -> None:
        """Tell the workflows that wait for this one's output, in the append of its end. Raises: RecordTooLarge."""
        state = live.state
        name, silenced = state.summary.name, state.summary.status == "silenced"
        for (waiter, waiting_at, generation), version in state.waiters.items():
            at = format_location(waiting_at)
            self.tell(TellOutput(waiter, at, version, live.id, name, state.output, generation, silenced))

    def new(self, workflow_id: str, name: str, ray_id: str) -> Live:
        """Put a workflow in memory of which nothing is recorded yet."""
        pruned = self.lives.get(workflow_id)
        seq = self.views.pruned_seq(workflow_id) if pruned is None else pruned.state.summary.seq
        state = begun_after(workflow_id, seq)
        state.summary.name, state.summary.ray_id = name, ray_id
        return self.hold(state) if pruned is None else self.replace(pruned, state)

    def _find_unique(self, command: Dispatch) -> str | None:
        """Find an incomplete workflow of this name with these tags in this partition, also among undurable ones."""
        name, tags = command.name, command.tags
        for workflow_id in self.views.find(name, tags):
            if workflow_id not in self.lives or self._is_found(workflow_id, tags):  # not in memory: as the views say
                return workflow_id
        for batch in (self._in_flight, self._open):
            for workflow_id in batch.find(name, tags) if batch is not None else ():
                if self._is_found(workflow_id, tags):
                    return workflow_id
        return None

    def _is_found(self, workflow_id: str, tags: Mapping[str, str]) -> bool:
        live = self.lives.get(workflow_id)
        return live is not None and live.state.summary.incomplete and tags.items() <= live.state.summary.tags.items()

    def may_find_another(
        self, found: Summary | None, name: str, tags: Mapping[str, str], passed: Container[str]
    ) -> bool:
        """Whether the append under way may change which incomplete workflow with these tags is the oldest in the views."""
        batch = self._in_flight
        if batch is None:
            return False
        if found is not None and found.id in batch.indexed:
            return True
        for workflow_id in batch.find(name, tags):
            live = self.lives.get(workflow_id)
            if (
                workflow_id not in passed
                and live is not None
                and (found is None or _is_older(live.state.summary, found))
            ):
                return True
        return False

    # --- what stands beside workflows ---------------------------------------------------------------------------------

    def now_us(self) -> int:
        """Return the wall time."""
        return self._clock.now_us()

    def holds(self, workflow_id: str) -> bool:
        """Whether a workflow of this id lies in this partition."""
        return partition_of(workflow_id, self._log.partition_count) == self.index

    def goes_on(self, workflow_id: str) -> bool:
        """Whether a workflow of this partition runs or sleeps, by what is decided so far."""
        live = self.lives.get(workflow_id)
        return _goes_on(live.state.summary if live is not None else self.views.summary(workflow_id))

    def record_beside(self, described: Described[D, E, Any], subject: str, seq: int, name: str, data: D) -> E:
        """Queue an event of what stands beside workflows. Raises: RecordTooLarge: nothing happened."""
        event = described.made(subject, seq, self.now_us(), name, self.index, self.epoch, self._worker, data)
        value = described.encode(event, self._log.namespace)
        require_fit(event.type, value)
        topic, batch = described.topic(self._topics), self._open
        batch.records.append(NewRecord(topic, self.index, f"{subject}/{seq}", value, event.time_us))
        batch.standing.setdefault(topic, []).append(event)
        if not self._asked:
            self._ask()
        return event

    def store(self, stored: Sequence[Stored]) -> None:
        """Queue events of sequences, all for the same append. Raises: RecordTooLarge: nothing happened."""
        written: list[tuple[Stored, bytes]] = []
        for one in stored:
            written += self._stored_envelope.encode(one)
        for held, line in written:
            require_fit(f"{held.key} of a sequence", line)
        topic, index, batch = self._topics.stored, self.index, self._open
        batch.records += [NewRecord(topic, index, held.key, line, held.time_us) for held, line in written]
        batch.standing.setdefault(topic, []).extend([held for held, _ in written])
        if not self._asked:
            self._ask()

    def stored_at(self, sequence: str, seq: int) -> Stored:
        """Read the durable record of a sequence that holds the event of this number. Raises: LogError."""
        offsets, places, _ = self.views.stored.located(sequence, (seq,))
        (record,) = self._log.read_at(self._topics.stored, self.index, offsets, places)
        assert record.value is not None
        return decode_stored(record.value)

    def alarm(self, subject: str, due_us: int | None) -> None:
        """See that :meth:`due` is called at this time, in place of any other; None: at none."""
        self._hooks.alarm(subject, due_us)

    def due(self, subject: str) -> None:
        """Do what is due about a schedule or a parked signal."""
        if self.parked.get(subject) is None:
            self.schedules.due(subject)
        else:
            self.parked_wait([subject])

    def parked_wait(self, parked_ids: list[str]) -> None:
        """See that somebody looks for the workflows that these parked signals are for."""
        self._hooks.parked_wait(self, parked_ids)

    def arm_all(self) -> None:
        """See that what stands beside workflows is looked after: the partition was taken over, or decisions were dropped."""
        for standing in self._beside.values():
            standing.arm_all()

    # --- the inbox ----------------------------------------------------------------------------------------------------

    def consume_inbox(self) -> None:
        """Decide everything that others have sent here so far. Its position goes into the same append as the events."""
        while self.consume_some():
            pass

    def consume_some(self) -> bool:
        """Decide a part of what others have sent here; whether there may be more."""
        if self.lost:
            return False
        records = self._tail.poll(INBOX_POLL_MAX)
        for record in records:
            self._inbox_moved = True
            if record.value is None:
                continue
            try:
                request = decode_request(record.value)
            except ValueError as error:
                self._refuse(record.value, error)
                continue
            self._consume(request)
        if self._inbox_moved and not self._asked:
            self._ask()
        return len(records) == INBOX_POLL_MAX and not self.lost

    @property
    def sent(self) -> int:
        """How many commands that others have sent here are not decided yet."""
        return self._tail.waiting()

    def _refuse(self, raw: bytes, error: ValueError) -> None:
        """Answer what cannot be read (a newer client's request, say), so that its caller does not wait for nothing."""
        _log.warning(
            "a request in the inbox of partition %d was refused: %s",
            self.index,
            error,
            extra={"partition": self.index, "error": str(error)},
        )
        address = address_of(raw)
        if address is not None:
            refused = GasolineError(f"the owner of partition {self.index} cannot read this request: {error}")
            self._answer(*address, Reply(error=refused))

    def _consume(self, request: Request) -> None:
        command: Command = request.command
        if isinstance(command, Yield):
            self._hooks.yield_to(self, command.to)
            return
        try:
            reply = self.decide(command, request.request_id)
        except GasolineError as error:
            reply = Reply(error=error)
        if isinstance(command, SendSignal) and command.parked is not None:
            self.tell(Land(command.parked, command.workflow_id, None if reply.error is None else str(reply.error)))
        if request.client:
            self._answer(request.request_id, request.client, reply)
        if request.letter is not None and reply.error is not None:
            letter, reason = request.letter, error_info(reply.error)
            _log.warning(
                "record %s of %s[%d] is a dead letter: %s: %s",
                letter.record,
                letter.topic,
                letter.partition,
                reason.type,
                reason.message,
                extra={"pipeline": letter.pipeline, "topic": letter.topic, "record": letter.record},
            )
            self._let_wait(letter, command.workflow_id, reason)

    def _answer(self, request_id: str, client: str, reply: Reply) -> None:
        partition = self._topics.reply_partition(client, self._log.partition_count)
        value = encode_reply(request_id, reply)
        self._open.records.append(NewRecord(self._topics.replies, partition, client, value, self._clock.now_us()))

    def leave(self) -> None:
        """Ask for the last append before the partition is released; it tells the next owner of workflows under suspicion."""
        durable = self.views.summary  # the next owner knows of nothing else
        left = [] if self.lost else [one for one in self.suspects if _goes_on(durable(one))]
        if left:
            named = left if len(left) <= SUSPECTS_NAMED_MAX else None
            value = orjson.dumps({"epoch": self.epoch, "workflows": named})
            self._open.records.append(self._registry_record(self._topics.suspects_key(self.index), value))
        self.hurry()

    def suspect(self, former: Owner) -> None:
        """Find out which workflows are under suspicion: the last owner died, or it left with some that were before it."""
        in_flight = list(_in_flight(self.views, self._clock.now_us()))
        if not former.released:
            self.suspects.update(in_flight)
            return
        key, stop = self._topics.suspects_key(self.index), self._log.end(self._topics.registry, self.index)
        for record in self._log.read(self._topics.registry, self.index, max(0, stop - POSITIONS_READ), stop):
            if record.key == key and record.value is not None:
                left = orjson.loads(record.value)
                if left["epoch"] == former.epoch:
                    self.suspects.update(in_flight if left["workflows"] is None else left["workflows"])

    def _read_position(self, ownership: Ownership) -> Position:
        """Return how far the inbox was consumed. Raises: LogMoved: nobody is to work here."""
        key, looked = self._topics.position_key(self.index), False
        for record in newest_first(self._log, self.index, ownership.ends.get(self._topics.registry, 0)):
            if record.key == key and record.value is not None:
                return Position(orjson.loads(record.value))
            if not looked and (mark := mark_in(self._log, self.index, record)) is not None:
                refuse_closed(self._log, mark)
                looked = True  # what was said before does not count any more
        return Position({})

    def _newest_position(self, key: str, stop: int) -> Position | None:
        for record in newest_first(self._log, self.index, stop):
            if record.key == key and record.value is not None:
                return Position(orjson.loads(record.value))
        return None

    # --- appending ----------------------------------------------------------------------------------------------------

    def take(self) -> tuple[Section, Batch] | None:
        """Hand over the section of the next append (for the appender)."""
        self._asked = False
        if self.lost:
            return None
        batch = self._open
        if self._inbox_moved:
            self._inbox_moved = False
            position = orjson.dumps(self._tail.position)
            batch.records.append(self._registry_record(self._topics.position_key(self.index), position))
        if batch.empty:
            return None
        self._open = Batch()
        self._in_flight = batch
        return Section(
            self.index, self.epoch, [*batch.records, *batch.cleared] if batch.cleared else batch.records
        ), batch

    def settled(self, batch: Batch, outcome: Outcome) -> None:
        """Learn the fate of the section (from the appender)."""
        self._in_flight = None
        if isinstance(outcome, Appended):
            self._durable(batch, outcome)
        elif isinstance(outcome, Fenced) or not outcome.retryable:
            gone = list(self.lives.values())
            self.let_go(batch, outcome)
            self._hooks.lost(self, outcome, gone)
        else:
            self._roll_back(batch, outcome)

    def _durable(self, batch: Batch, outcome: Appended) -> None:
        lives = batch.lives
        if not self.lost:  # else whoever folds the views has read it in the log, or will
            self._fold(batch, outcome)
        for done in batch.done:
            done(None)
        if batch.told:
            self._hooks.told(batch.told)
        if batch.published:
            self._hooks.published()
        if self._topics.stored in batch.standing:
            self._hooks.stored_here()
        if batch.attempts:
            self._hooks.attempts_durable(batch.attempts)
        if lives or batch.standing or self._topics.registry in outcome.offsets:
            self._hooks.changed(batch)
        if lives:
            if self.lost:
                return  # let go of while this append was under way: it counts, but nothing goes on here
            turn = self._hooks.turn
            for live in dict.fromkeys(lives):
                if live.blocked_on is not None and live.durable_seq >= live.blocked_on:
                    live.blocked_on = None
                turn(self, live)

    def _fold(self, batch: Batch, outcome: Appended) -> None:
        """Fold what has become durable into the views."""
        lives = batch.lives
        if lives:
            offset: int = outcome.offsets[self._topics.events]
            place, apply, worker = outcome.place, self.views.apply, self._worker
            for live, data, time_us in zip(lives, batch.facts, batch.times, strict=True):
                summary = live.state.summary
                live.durable_seq = seq = live.durable_seq + 1
                apply(offset, place, summary.id, seq, time_us, data, summary.ray_id, worker)
                offset += 1
            topic = self._topics.events
            last = next(record for record in reversed(batch.records) if record.topic == topic)
            assert last.value is not None
            self.views.last_record = last.key, last.value
        if batch.cleared:
            last = batch.cleared[-1]
            self.views.passed(
                outcome.offsets[self._topics.events] + len(lives) + len(batch.cleared) - 1, outcome.place, last.key
            )
        for topic, events in batch.standing.items():
            self._beside[topic].durable(events, outcome.offsets[topic], outcome.place)
            last = next(record for record in reversed(batch.records) if record.topic == topic)
            self._beside[topic].view.stands_at(outcome.place, last.key, last.value)
        registry = self._topics.registry
        said = [record for record in batch.records if record.topic == registry]
        if said:
            self.views.registry.apply(said, outcome.offsets[registry], outcome.place)
            if self.views.registry.letters:
                self._hooks.letters_wait(self)

    def _roll_back(self, batch: Batch, error: LogError) -> None:
        """None of it happened: forget every decision since the last good append, and read again what others sent."""
        batches = (batch, self._open)
        self._open = Batch()
        touched = {live.id: live for failed in batches for live in failed.lives}
        for live in touched.values():
            live.drop_run()
            self.lives.pop(live.id, None)
        for standing in self._beside.values():
            standing.roll_back()
        self._tail = self._log.tail(self._topics.inbox, self.index, self._position_durable())
        for failed in batches:
            for done in failed.done:
                done(error)
        self._hooks.dropped(self, list(touched), error)

    def let_go(self, batch: Batch | None, error: LogError) -> None:
        """Drop everything in memory and fail every caller: the partition is not ours any more."""
        self.lost = error
        batches = [failed for failed in (batch, self._open) if failed is not None]
        self._open = Batch()
        for live in self.lives.values():
            live.drop_run()
        self.lives.clear()
        for standing in self._beside.values():
            standing.disarm_all()
        for failed in batches:
            for done in failed.done:
                done(error)

    def _position_durable(self) -> Position:
        end = self._log.end(self._topics.registry, self.index)
        return self._read_position(Ownership(self.index, self.epoch, {self._topics.registry: end}))

    # ------------------------------------------------------------------------------------------------------------------

    def _envelope(self, state: WorkflowState) -> Envelope:
        summary = state.summary
        return Envelope(
            namespace=self._log.namespace,
            workflow_id=summary.id,
            workflow=summary.name,
            ray_id=summary.ray_id,
            partition=self.index,
            epoch=self.epoch,
            worker=self._worker,
        )

    def _registry_record(self, key: str, value: bytes | None) -> NewRecord:
        return NewRecord(self._topics.registry, self.index, key, value, self._clock.now_us())

    def _index_record(self, live: Live, data: ev.EventData, now_us: int) -> NewRecord:
        value: bytes | None = None
        if isinstance(data, ev.WorkflowDispatched | ev.WorkflowTagsUpdated | ev.WorkflowRerun):
            summary = live.state.summary
            created = format_time(summary.created_us)
            value = orjson.dumps({"name": summary.name, "tags": dict(data.tags), "created": created})
        return NewRecord(self._topics.index, self.index, live.id, value, now_us)


def _goes_on(summary: Summary | None) -> bool:
    return summary is not None and summary.status in ("running", "sleeping")


def _is_older(one: Summary, other: Summary) -> bool:
    return (one.created_us, one.id) < (other.created_us, other.id)


def _in_flight(views: Views, now_us: int) -> Iterator[str]:
    """Yield the workflows that may have had activities under way: the running ones, and those whose retry was due."""
    yield from views.running()
    for workflow_id, deadline_us in views.deadlines().items():
        if deadline_us <= now_us:
            summary = views.summary(workflow_id)
            if summary is not None and summary.waiting is not None and summary.waiting.retry:
                yield workflow_id


def message_record(log: Log, topics: Topics, packet: Packet) -> NewRecord:
    """Make the record of a message. Raises: RecordTooLarge."""
    value = encode_packet(packet, log.namespace)
    require_fit(f"message {packet.name!r}", value)
    partition = topics.message_partition(packet.name, log.partition_count)
    return NewRecord(topics.messages, partition, packet.name, value, packet.time_us)
