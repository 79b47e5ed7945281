"""Decisions of ``eventsourcing.dcb``: events that are found by type and tags, appended only if nothing new matches a query.

Positions are 1, 2, 3 … without gaps. The condition of an append is looked at by the process that decides there, against all
that is durable or on its way before it: of two appends that exclude each other, one fails, whichever processes they come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eventsourcing.dcb.api import (
    DCBAppendCondition,
    DCBEvent,
    DCBQuery,
    DCBReadResponse,
    DCBRecorder,
    DCBSequencedEvent,
)
from eventsourcing.dcb.persistence import DCBListenNotifySubscription
from eventsourcing.persistence import DataError, ProgrammingError

from gasoline_es.core.stored_events import DECISIONS, DecisionStored, Numbered, embed, extract
from gasoline_es.core.storing import Condition, Query, Store, checked
from gasoline_es.errors import GasolineError
from gasoline_es.persistence.journal import Selection
from gasoline_es.persistence.lease import JournalLease, Leased
from gasoline_es.persistence.subscriptions import Listening


class GasolineDCBRecorder(Leased[JournalLease], DCBRecorder):
    """Decisions of one application."""

    def read(
        self, query: DCBQuery | None = None, *, after: int | None = None, limit: int | None = None
    ) -> DCBReadResponse:
        """Return the events above ``after`` that match, in order. ``head``: the last position there is, or with ``limit`` the
        last one returned; None: there is none. Raises: PersistenceError.
        """
        wanted = _query(query)
        found, end = self._lease.select(
            "read",
            lambda view: Selection(DECISIONS, view.matching(DECISIONS, wanted, after or 0, limit), view.end(DECISIONS)),
        )
        head = end if limit is None else found[-1].seq if found else 0
        return GasolineDCBReadResponse(map(_sequenced, found), head or None)

    def append(self, events: Sequence[DCBEvent], condition: DCBAppendCondition | None = None) -> int:
        """Append events, all or none; return the position of the last one. Durable on return.

        Raises: IntegrityError: an event that ``condition`` names is there. ProgrammingError: there is none to append.
            DataError, OperationalError: as of the other recorders.
        """
        if not events:
            raise ProgrammingError("`append` needs at least one event")
        try:
            command = checked(
                Store(
                    self._lease.opened.new_store_id(),
                    DECISIONS,
                    tuple(DecisionStored(one.type, tuple(one.tags), embed(bytes(one.data))) for one in events),
                    condition=None
                    if condition is None
                    else Condition(_query(condition.fail_if_events_match), condition.after or 0),
                )
            )
        except (TypeError, ValueError, AttributeError, GasolineError) as error:
            raise DataError(f"this cannot be appended: {error}") from error
        first = self._lease.store("append", command)
        return first + len(events) - 1

    def subscribe(self, query: DCBQuery | None = None, *, after: int | None = None) -> GasolineDCBSubscription:
        """Return an iterator of the events above ``after`` that match, which goes on with those any process appends later."""
        return GasolineDCBSubscription(self, query=query, after=after)


class GasolineDCBReadResponse(DCBReadResponse):
    """What a read has found."""

    def __init__(self, events: Iterator[DCBSequencedEvent], head: int | None) -> None:
        self._events = events
        self._head = head

    @property
    def head(self) -> int | None:
        return self._head

    def __next__(self) -> DCBSequencedEvent:
        return next(self._events)


class GasolineDCBSubscription(Listening, DCBListenNotifySubscription[GasolineDCBRecorder]):
    """An iterator of decisions, which blocks where there are no more yet. Raises from it: OperationalError of the log."""

    def __init__(self, recorder: GasolineDCBRecorder, query: DCBQuery | None = None, after: int | None = None) -> None:
        super().__init__(recorder=recorder, query=query, after=after)
        self._listen(recorder)


def _query(query: DCBQuery | None) -> Query:
    items = () if query is None else query.items
    return Query(tuple((tuple(item.types), tuple(item.tags)) for item in items))


def _sequenced(event: Numbered) -> DCBSequencedEvent:
    data = event.data
    assert isinstance(data, DecisionStored)
    return DCBSequencedEvent(DCBEvent(data.type, extract(data.payload), list(data.tags)), event.seq)
