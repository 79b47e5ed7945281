"""The parked signals of an owned partition: decided from what is durable and what is on its way to the log (design §4, §5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gasoline_es.core.commands import DiscardParked, Land, Park, Reply, SendSignal
from gasoline_es.core.discarding import discard_parked
from gasoline_es.core.parked import Ended, Parked, fold_parked, land, park
from gasoline_es.core.parked_events import (
    ParkedData,
    ParkedDiscarded,
    ParkedEvent,
    SignalOffered,
    SignalUnparked,
    encode_parked_event,
)
from gasoline_es.core.ports import ParkedView
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import GasolineError, RecordTooLarge
from gasoline_es.runtime.standing import Described, Standing

if TYPE_CHECKING:
    from gasoline_es.runtime.partition import Partition

_log = EngineLog(__name__)


def _name_of(parked: Parked | Ended) -> str:
    return parked.signal.name if isinstance(parked, Parked) else ""


PARKED: Final[Described[ParkedData, ParkedEvent, Parked | Ended]] = Described(
    attrgetter("parked"), ParkedEvent, encode_parked_event, fold_parked, _name_of
)


class ParkedSignals(Standing[ParkedData, ParkedEvent, Parked | Ended]):
    """See :class:`Standing`. Who they are for is looked up by ``runtime.unparking``."""

    def __init__(self, partition: Partition, view: ParkedView) -> None:
        super().__init__(partition, view, PARKED)
        self._durable = view

    @property
    def view(self) -> ParkedView:
        """What is durable."""
        return self._durable

    def decide(self, command: Park | Land | DiscardParked) -> Reply:
        """Decide a command now. The reply may be told once it is durable."""
        parked = self.get(command.parked_id)
        if isinstance(command, Land):
            for data in land(parked, command):
                self.record(command.parked_id, data)
            return Reply(command.parked_id)
        if isinstance(command, DiscardParked):
            discarded, reply = discard_parked(parked, command)
            for data in discarded:
                self.record(command.parked_id, data)
            return reply
        events, reply = park(parked, command, self._partition.now_us())
        try:
            for data in events:
                self.record(command.parked_id, data, command.name)
        except RecordTooLarge as error:
            return Reply(error=error)
        return reply

    def offer(self, parked: Parked, target: str) -> bool:
        """Give it to a workflow, or send it there, in one append with that fact; whether that could be done.

        The id counts as the sender's, however old: it is this stream that sees to it that it comes once.
        """
        signal = parked.signal
        here = self._partition.holds(target)
        send = SendSignal(
            target,
            signal.signal_id,
            signal.name,
            signal.body,
            by_caller=True,
            parked=None if here else parked.id,
            traceparent=signal.traceparent,
        )
        try:
            if here:
                reply = self._partition.decide(send)
                if reply.error is not None:
                    raise reply.error
            else:
                self._partition.tell(send)
        except GasolineError as error:
            _log.info(
                "parked signal %s is not given to workflow %s: %s",
                signal.signal_id,
                target,
                error,
                extra={"signal": signal.name, "workflow_id": target},
            )
            return False
        self.record(parked.id, SignalUnparked(target) if here else SignalOffered(target))
        return True

    def discard(self, parked: Parked) -> None:
        """Let it go: nobody came within its time."""
        signal = parked.signal
        _log.warning(
            "parked signal %s is discarded: no workflow %s with its tags came in time",
            signal.signal_id,
            signal.workflow,
            extra={"signal": signal.name, "workflow": signal.workflow},
        )
        self.record(parked.id, ParkedDiscarded(signal.signal_id))

    def arm_all(self) -> None:
        """See that all that wait are looked after: the partition was taken over, or decisions were dropped."""
        self._wait(list(self.view.live()))

    def durable(self, events: Sequence[ParkedEvent], first_offset: int, place: int) -> None:
        """Fold what has become durable; those that wait from here on are looked after."""
        super().durable(events, first_offset, place)
        touched = dict.fromkeys(event.subject for event in events)
        self._wait([parked for parked in map(self.view.get, touched) if parked is not None])
        for parked_id in touched:
            parked = self.view.get(parked_id)
            if parked is None or not parked.live:
                self._partition.alarm(parked_id, None)

    def _wait(self, among: Sequence[Parked | Ended]) -> None:
        live = [parked for parked in among if isinstance(parked, Parked) and parked.live]
        for parked in live:
            self._partition.alarm(parked.id, parked.signal.until_us)
        if among:
            self._partition.parked_wait([parked.id for parked in live])

    def _armed(self) -> Iterator[str]:
        return (parked.id for parked in self.view.live())
