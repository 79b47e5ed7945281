"""Recorders of ``eventsourcing`` over an application's journal: events and snapshots of aggregates, notifications, tracking.

What an insert returns from is durable, and every process on the log sees it; what raises has recorded nothing, except where
the error says that it may yet be decided. Notification ids are 1, 2, 3 … without gaps, in the order of what was recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    DataError,
    Notification,
    ProcessRecorder,
    StoredEvent,
    Subscription,
    Tracking,
    TrackingRecorder,
    WaitInterruptedError,
)

from gasoline_es.core.stored_events import EVENTS, EventStored, Numbered, TrackingStored, embed, extract
from gasoline_es.core.storing import Store, checked
from gasoline_es.errors import GasolineError
from gasoline_es.persistence.journal import Selection
from gasoline_es.persistence.lease import JournalLease, Leased
from gasoline_es.persistence.subscriptions import GasolineSubscription

_LOOK_AT_INTERRUPT_S: Final = 0.1


class GasolineRecorder(Leased[JournalLease]):
    """What stores into, and reads from, a journal."""

    def __init__(self, lease: JournalLease, purpose: str = EVENTS) -> None:
        """``purpose``: names the sequence; an application has ``events`` and ``snapshots``."""
        super().__init__(lease)
        self._purpose = purpose

    def _store(self, events: Sequence[StoredEvent], tracking: Tracking | None) -> range:
        """Store all of it or nothing; return the numbers of the events. Durable on return. Raises: PersistenceError."""
        try:
            command = checked(
                Store(self._lease.opened.new_store_id(), self._purpose, _written(events), _written_tracking(tracking))
            )
        except (TypeError, ValueError, AttributeError, GasolineError) as error:
            raise DataError(f"this cannot be recorded: {error}") from error
        first = self._lease.store("insert_events", command)
        return range(first, first + len(events))


class GasolineAggregateRecorder(GasolineRecorder, AggregateRecorder):
    """Events of aggregates, or their snapshots."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Record events, all or none. Raises: IntegrityError: one of the versions was recorded before. PersistenceError."""
        self._insert(stored_events, **kwargs)
        return None

    def _insert(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> list[int]:
        tracking: Tracking | None = kwargs.get("tracking")
        if not stored_events and tracking is None:
            return []
        return list(self._store(stored_events, tracking))

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Return an aggregate's events with ``gt < version <= lte`` in order of version, the newest first if ``desc``."""
        purpose, originator = self._purpose, str(originator_id)
        found = self._lease.select(
            "select_events",
            lambda view: Selection(
                purpose, view.of_originator(purpose, originator, gt, lte, newest_first=desc, limit=limit)
            ),
        )
        return [StoredEvent(*read) for _, read in _read(found.events)]


class GasolineApplicationRecorder(GasolineAggregateRecorder, ApplicationRecorder):
    """Events of aggregates, which are also the notifications of their application, in one order."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Record events, all or none; return their notification ids. Raises: as of :class:`GasolineAggregateRecorder`."""
        return self._insert(stored_events, **kwargs)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Return at most ``limit`` notifications from ``start`` to ``stop``, both included unless said otherwise, in order.

        ``topics``: only of these.
        """
        first = 1 if start is None else start if inclusive_of_start else start + 1
        end, purpose = None if stop is None else stop + 1, self._purpose
        found = self._lease.select(
            "select_notifications",
            lambda view: Selection(purpose, view.of_kinds(purpose, topics, max(first, 1), end, max(limit, 0))),
        )
        return [Notification(*read, id=seq) for seq, read in _read(found.events)]

    def max_notification_id(self) -> int | None:
        """Return the id of the last notification, None if there is none."""
        return self._lease.look("max_notification_id", lambda view: view.end(self._purpose)) or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Return an iterator of the notifications above ``gt``, which goes on with those that any process records later."""
        return GasolineSubscription(self, gt=gt, topics=topics)


class GasolineTrackingRecorder(GasolineRecorder, TrackingRecorder):
    """How far the notifications of other applications were processed here.

    A view is a subclass of this, or of :class:`GasolineProcessRecorder`, which records what it shows as events, in one append
    with the tracking.
    """

    def insert_tracking(self, tracking: Tracking) -> None:
        """Record that all up to this notification were processed. Raises: IntegrityError: so was this one, or a later one."""
        self._store((), tracking)

    def max_tracking_id(self, application_name: str) -> int | None:
        """Return the highest notification id that was processed, None if none was."""
        return self._lease.look("max_tracking_id", lambda view: view.tracked(application_name))

    def wait(
        self,
        application_name: str,
        notification_id: int | None,
        timeout: float = 1.0,
        interrupt: threading.Event | None = None,
    ) -> None:
        """Return once a notification was processed, by whichever process. ``timeout``: in seconds.

        Raises: TimeoutError: it was not in time. WaitInterruptedError: ``interrupt`` was set.
        """
        deadline, more = monotonic() + timeout, threading.Event()
        self.listen(more)
        try:
            while True:
                more.clear()
                if self.has_tracking_id(application_name, notification_id):
                    return
                if interrupt is not None and interrupt.is_set():
                    raise WaitInterruptedError
                remaining = deadline - monotonic()
                if remaining <= 0:
                    raise TimeoutError(
                        f"notification {notification_id} of application {application_name!r} was not processed in "
                        f"{timeout:g} s"
                    )
                more.wait(remaining if interrupt is None else min(remaining, _LOOK_AT_INTERRUPT_S))
        finally:
            self.unlisten(more)


class GasolineProcessRecorder(GasolineTrackingRecorder, GasolineApplicationRecorder, ProcessRecorder):
    """Both: events are recorded in one append with the ``tracking`` of what they follow from, or neither is."""


def _written(events: Sequence[StoredEvent]) -> list[EventStored]:
    written: list[EventStored] = []
    last, text, is_uuid = None, "", False
    for event in events:
        originator = event.originator_id
        if originator is not last:  # the events of one aggregate mostly come together
            last, text, is_uuid = originator, str(originator), isinstance(originator, UUID)
        state = event.state
        payload = embed(state if type(state) is bytes else bytes(state))
        written.append(EventStored(text, is_uuid, event.originator_version, event.topic, payload))
    return written


def _written_tracking(tracking: Tracking | None) -> TrackingStored | None:
    return None if tracking is None else TrackingStored(tracking.application_name, tracking.notification_id)


def _read(events: Sequence[Numbered]) -> Iterator[tuple[int, tuple[UUID | str, int, str, bytes]]]:
    """Yield each event's number and what the package's own classes hold of it."""
    last, originator = None, UUID(int=0)
    for seq, data in events:
        assert isinstance(data, EventStored)
        text, uuid, version, topic, payload = data
        if not uuid:
            yield seq, (text, version, topic, extract(payload))
            continue
        if text != last:  # the events of one aggregate mostly come together
            last, originator = text, UUID(text)
        yield seq, (originator, version, topic, extract(payload))


__all__ = [
    "GasolineAggregateRecorder",
    "GasolineApplicationRecorder",
    "GasolineProcessRecorder",
    "GasolineRecorder",
    "GasolineTrackingRecorder",
]
