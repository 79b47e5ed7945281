"""The histories of workflows as applications of ``eventsourcing``, to be read by its projections (decision 0034).

Each partition of a namespace is one application: its notifications are the events of the workflows that lie there, in the order
in which its owners have decided them. Their ids are the same for every reader and for ever: 1, 2, 3 … without gaps, but for
Kafka, where they ascend with gaps (decision 0041).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Final, NoReturn
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import DomainEventProtocol
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    InfrastructureFactory,
    Mapper,
    Notification,
    OperationalError,
    ProcessRecorder,
    ProgrammingError,
    StoredEvent,
    Subscription,
    TrackingRecorder,
)
from eventsourcing.utils import Environment, EnvType

from gasoline_es.core.codec import read
from gasoline_es.core.events import Event
from gasoline_es.persistence.factory import url_of
from gasoline_es.persistence.history_reader import HistoryReader, Read, open_histories
from gasoline_es.persistence.lease import Lease, Leased
from gasoline_es.persistence.subscriptions import GasolineSubscription

_WRITTEN_BY_WORKFLOWS: Final = "histories of workflows are read here; only workflows write them"


class WorkflowEvent(Event):
    """An event of a workflow, as ``handle.history()`` has it, with the names by which ``eventsourcing`` knows its parts."""

    __slots__ = ()

    @property
    def originator_id(self) -> str:
        """The workflow's id."""
        return self.workflow_id

    @property
    def originator_version(self) -> int:
        """The event's number in its workflow's history, from 1."""
        return self.seq


class WorkflowHistory(Application[str]):
    """The events of the workflows of one partition, as an application that is read. Made by :func:`workflow_history`."""

    namespace: ClassVar[str] = "default"
    partition: ClassVar[int] = 0

    def construct_factory(self, env: Environment) -> InfrastructureFactory[Any]:
        """Return what reads the log that ``GASOLINE_LOG`` names. ``PERSISTENCE_MODULE`` is for whatever view is made of it."""
        return HistoryFactory(env, self.namespace, self.partition)

    def construct_mapper(self) -> Mapper[str]:
        """Return what makes :class:`WorkflowEvent` of notifications."""
        return _HistoryMapper(self.construct_transcoder())


@cache
def workflow_history(namespace: str, partition: int) -> type[WorkflowHistory]:
    """Return the application of one partition, which is named ``<namespace>/<partition>``: by that, tracking is kept."""
    name = f"{namespace}/{partition}"
    return type("WorkflowHistory", (WorkflowHistory,), {"name": name, "namespace": namespace, "partition": partition})


def workflow_histories(env: EnvType, namespace: str = "default") -> list[type[WorkflowHistory]]:
    """Return the applications of all partitions of a namespace, on the log that ``GASOLINE_LOG`` names.

    Raises: InfrastructureFactoryError: none is named. OperationalError: there is no such log, or no such namespace.
    """
    lease = Lease(url_of(Environment(env=env)), namespace, open_histories)
    try:
        return [workflow_history(namespace, partition) for partition in range(lease.opened.partition_count)]
    finally:
        lease.close()


class GasolineHistoryRecorder(Leased[Lease[HistoryReader]], ApplicationRecorder):
    """Reads the events of the workflows of one partition."""

    def __init__(self, lease: Lease[HistoryReader], partition: int) -> None:
        super().__init__(lease)
        self._partition = partition

    def insert_events(self, stored_events: Sequence[StoredEvent], **_: Any) -> NoReturn:
        """Raises: ProgrammingError: only workflows write their events."""
        raise ProgrammingError(_WRITTEN_BY_WORKFLOWS)

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Return a workflow's events with ``gt < seq <= lte``, the newest first if ``desc``.

        For this the whole partition is read; ``handle.history()`` reads no more than it must.
        """
        found = self._lease.call(
            "select_events", lambda reader: reader.of_workflow(self._partition, str(originator_id))
        )
        wanted = [
            StoredEvent(event.workflow_id, event.seq, event.type, raw)
            for _, event, raw in found
            if (gt is None or event.seq > gt) and (lte is None or event.seq <= lte)
        ]
        return (wanted[::-1] if desc else wanted)[:limit]

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

        ``topics``: only of these types of events, as ``workflow.completed``.
        """
        first = 1 if start is None else start if inclusive_of_start else start + 1
        behind = None if stop is None else stop + 1
        found = self._lease.call(
            "select_notifications",
            lambda reader: reader.select(self._partition, max(first, 1), behind, limit, frozenset(topics)),
        )
        return [_notification(one) for one in found]

    def max_notification_id(self) -> int | None:
        """Return the id of the last notification, None if there is none."""
        return self._lease.call("max_notification_id", lambda reader: reader.end(self._partition)) or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Return an iterator of the notifications above ``gt``, which goes on with those that any process records later."""
        return GasolineSubscription(self, gt=gt, topics=topics)


class HistoryFactory(InfrastructureFactory[TrackingRecorder]):
    """Makes the recorder of one partition's histories, and no other."""

    def __init__(self, env: Environment | EnvType | None, namespace: str, partition: int) -> None:
        """Raises: InfrastructureFactoryError: the environment names no log."""
        super().__init__(env)
        self._url: Final = url_of(self.env)
        self._namespace: Final = namespace
        self._partition: Final = partition
        self._lock: Final = threading.Lock()
        self._lease: Lease[HistoryReader] | None = None
        self._closed = False

    def application_recorder(self) -> ApplicationRecorder:
        """Return the recorder. Raises: OperationalError: there is no such log, namespace or partition."""
        with self._lock:
            if self._closed:
                raise OperationalError(f"the factory of application {self.env.name!r} was closed")
            if self._lease is None:
                lease = Lease(self._url, self._namespace, open_histories)
                count = lease.opened.partition_count
                if not 0 <= self._partition < count:
                    lease.close()
                    raise OperationalError(
                        f"partition {self._partition} is not one of the {count} of namespace {self._namespace!r} of {self._url}"
                    )
                self._lease = lease
            return GasolineHistoryRecorder(self._lease, self._partition)

    def is_snapshotting_enabled(self) -> bool:
        """Return False: there are no aggregates here."""
        return False

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """Raises: ProgrammingError."""
        raise ProgrammingError(_WRITTEN_BY_WORKFLOWS)

    def tracking_recorder(self, tracking_recorder_class: type[TrackingRecorder] | None = None) -> TrackingRecorder:
        """Raises: ProgrammingError."""
        raise ProgrammingError(_WRITTEN_BY_WORKFLOWS)

    def process_recorder(self) -> ProcessRecorder:
        """Raises: ProgrammingError."""
        raise ProgrammingError(_WRITTEN_BY_WORKFLOWS)

    def close(self) -> None:
        """Let go of the log: nothing of this factory works from here on."""
        with self._lock:
            lease, self._lease, self._closed = self._lease, None, True
        if lease is not None:
            lease.close()


class _HistoryMapper(Mapper[str]):
    """Makes events of notifications. Their text is that on the log: nothing is compressed or encrypted there."""

    def to_stored_event(self, domain_event: DomainEventProtocol[str]) -> NoReturn:
        raise ProgrammingError(_WRITTEN_BY_WORKFLOWS)

    def to_domain_event(self, stored_event: StoredEvent) -> DomainEventProtocol[str]:
        key = f"{stored_event.originator_id}/{stored_event.originator_version}"
        event = read(key, stored_event.state)
        return WorkflowEvent(
            event.workflow_id,
            event.seq,
            event.time_us,
            event.workflow,
            event.ray_id,
            event.partition,
            event.epoch,
            event.worker,
            event.data,
        )


def _notification(one: Read) -> Notification:
    number, event, raw = one
    return Notification(event.workflow_id, event.seq, event.type, raw, id=number)
