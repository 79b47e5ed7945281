"""The factory that ``eventsourcing`` finds in this module, configured by the application's environment."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Final, TypeVar

from eventsourcing.dcb.api import DCBRecorder
from eventsourcing.dcb.persistence import DCBInfrastructureFactory
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    InfrastructureFactory,
    InfrastructureFactoryError,
    OperationalError,
    ProcessRecorder,
)
from eventsourcing.utils import Environment, EnvType, resolve_topic

from gasoline_es.errors import LogError
from gasoline_es.log.kafka.settings import Address
from gasoline_es.persistence.decisions import GasolineDCBRecorder
from gasoline_es.persistence.journal import namespace_of
from gasoline_es.persistence.lease import JournalLease, translated
from gasoline_es.persistence.recorders import (
    GasolineAggregateRecorder,
    GasolineApplicationRecorder,
    GasolineProcessRecorder,
    GasolineRecorder,
    GasolineTrackingRecorder,
)

_R = TypeVar("_R", bound=GasolineRecorder)


GASOLINE_LOG: Final = "GASOLINE_LOG"


def url_of(env: Environment) -> str:
    """Return the URL of the log that an environment names. Raises: InfrastructureFactoryError: it names none."""
    url = (env.get(GASOLINE_LOG) or "").strip()
    if not url:
        keys = " or ".join(env.create_keys(GASOLINE_LOG))
        raise InfrastructureFactoryError(
            f"no log is named for application {env.name!r}: set {keys} to the URL of one, file:DIRECTORY, "
            f"kafka://HOST:9092 or memory:NAME"
        )
    return url


def _is_kafka(url: str) -> bool:
    return url.startswith("kafka:")


def _refuse_another_namespace(env: Environment, url: str) -> None:
    """Raises: InfrastructureFactoryError: the URL names a namespace that is not the application's. OperationalError: no URL."""
    if not _is_kafka(url):
        return
    try:
        named = Address.of(url).namespace
    except LogError as error:
        raise translated(error) from error
    own = namespace_of(env.name)
    if named not in (None, own):
        keys = " or ".join(env.create_keys(GASOLINE_LOG))
        raise InfrastructureFactoryError(
            f"the URL of the log of application {env.name!r} names the namespace {named!r}, and the application has one of its "
            f"own, {own!r}: leave the namespace out of {keys}, as in kafka://HOST:9092"
        )


class GasolineFactory(
    InfrastructureFactory[GasolineTrackingRecorder], DCBInfrastructureFactory[GasolineTrackingRecorder]
):
    """Makes recorders on the log that ``GASOLINE_LOG`` names: ``file:./data``, ``kafka://HOST:9092``, or ``memory:NAME`` in
    this process alone.

    Each application has its own numbers there, by its name. The log is opened with the first recorder, once for a process;
    ``close`` lets go of it.
    """

    GASOLINE_LOG: ClassVar[str] = GASOLINE_LOG

    def __init__(self, env: Environment | EnvType | None) -> None:
        """Raises: InfrastructureFactoryError: the environment names no log, or a namespace that is not the application's."""
        super().__init__(env)
        self._url = url_of(self.env)
        _refuse_another_namespace(self.env, self._url)
        self._lock = threading.Lock()
        self._lease: JournalLease | None = None
        self._closed = False

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """Return a recorder for a purpose, ``events`` or ``snapshots``. Raises: OperationalError: the log cannot be opened."""
        return GasolineAggregateRecorder(self._leased(), purpose)

    def application_recorder(self) -> ApplicationRecorder:
        """Return a recorder of events that are notifications too. Raises: OperationalError."""
        return self._class(self.APPLICATION_RECORDER_TOPIC, GasolineApplicationRecorder)(self._leased())

    def tracking_recorder(
        self, tracking_recorder_class: type[GasolineTrackingRecorder] | None = None
    ) -> GasolineTrackingRecorder:
        """Return a recorder of tracking, or a view. Raises: OperationalError; InfrastructureFactoryError: no class of ours."""
        made = tracking_recorder_class or self._class(self.TRACKING_RECORDER_TOPIC, GasolineTrackingRecorder)
        return self._ours(made, GasolineTrackingRecorder)(self._leased())

    def process_recorder(self) -> ProcessRecorder:
        """Return a recorder of events with tracking. Raises: OperationalError."""
        return self._class(self.PROCESS_RECORDER_TOPIC, GasolineProcessRecorder)(self._leased())

    def dcb_recorder(self) -> DCBRecorder:
        """Return a recorder of decisions. Raises: InfrastructureFactoryError: the log is on Kafka. OperationalError."""
        if _is_kafka(self._url):
            keys = " or ".join(self.env.create_keys(GASOLINE_LOG))
            raise InfrastructureFactoryError(
                f"application {self.env.name!r} records decisions (eventsourcing.dcb), which a log on Kafka does not keep: set "
                f"{keys} to file:DIRECTORY or memory:NAME, or make aggregates of them"
            )
        return GasolineDCBRecorder(self._leased())

    def close(self) -> None:
        """Let go of the log: nothing of this factory works from here on. What was recorded is durable without it."""
        with self._lock:
            lease, self._lease, self._closed = self._lease, None, True
        if lease is not None:
            lease.close()

    def _leased(self) -> JournalLease:
        with self._lock:
            if self._closed:
                raise OperationalError(f"the factory of application {self.env.name!r} was closed")
            if self._lease is None:
                self._lease = JournalLease(self._url, namespace_of(self.env.name))
            return self._lease

    def _class(self, key: str, standard: type[_R]) -> type[_R]:
        topic = self.env.get(key)
        return self._ours(resolve_topic(topic), standard) if topic else standard

    def _ours(self, made: Any, base: type[_R]) -> type[_R]:
        if not isinstance(made, type) or not issubclass(made, base):
            key = self.env.create_keys(self.PERSISTENCE_MODULE)[0]
            raise InfrastructureFactoryError(
                f"{made!r} cannot record on a log of gasoline_es: make it a subclass of "
                f"gasoline_es.persistence.{base.__name__}; or set {key} to the module that it is of, as eventsourcing.popo"
            )
        return made
