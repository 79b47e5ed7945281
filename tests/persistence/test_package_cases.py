"""The test cases of ``eventsourcing`` itself, unchanged, on every log (design §7); of its decisions, on all but Kafka."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import tempfile
import threading
from typing import ClassVar
from unittest import TestCase, mock
from urllib.parse import urlencode

import pytest
from eventsourcing.dcb import tests as dcb_cases
from eventsourcing.dcb.msgpack import MessagePackMapper
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    ProcessRecorder,
    TrackingRecorder,
)
from eventsourcing.tests import application as application_cases
from eventsourcing.tests import persistence as cases
from eventsourcing.tests import projection as projection_cases
from eventsourcing.utils import Environment, get_topic

from gasoline_es.log.kafka import opening
from gasoline_es.persistence import (
    GasolineAggregateRecorder,
    GasolineApplicationRecorder,
    GasolineFactory,
    GasolineProcessRecorder,
    GasolineTrackingRecorder,
)
from gasoline_es.runtime import lending
from tests.kafka.cluster_of_memory import Cluster, MemoryDriver
from tests.persistence.views import CountersOnTheLog

pytestmark = pytest.mark.timeout(240)
_names = itertools.count()


class OnMemory(TestCase):
    """Each test has a log of its own."""

    def setUp(self) -> None:
        self.environ = {"PERSISTENCE_MODULE": "gasoline_es.persistence", "GASOLINE_LOG": self.new_log()}
        self.saved = dict(os.environ)
        os.environ.update(self.environ)
        for name in ("env", "projection_env"):
            if hasattr(self, name):
                self._fill(getattr(self, name))
        super().setUp()

    def tearDown(self) -> None:
        super().tearDown()
        os.environ.clear()
        os.environ.update(self.saved)

    def new_log(self) -> str:
        return f"memory:cases-{next(_names)}"

    def factory_of(self) -> GasolineFactory:
        factory = GasolineFactory(Environment("TestCase", self.environ))
        self.addCleanup(factory.close)
        return factory

    def _fill(self, env: dict[str, str]) -> None:
        env.clear()
        env.update(self.environ)


class OnFiles(OnMemory):
    """On files, and on the callers' own threads: the main one too, which tests' time limits keep from that by a handler."""

    def setUp(self) -> None:
        stands_in = mock.patch.object(lending, "_only_interrupts", return_value=True)
        stands_in.start()
        self.addCleanup(stands_in.stop)
        super().setUp()

    def new_log(self) -> str:
        self.directory = tempfile.mkdtemp(prefix="gasoline-cases-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        return f"file:{self.directory}"


class OnClusterOfMemory(OnMemory):
    """On the Kafka log, over a cluster in memory."""

    def new_log(self) -> str:
        self.state = tempfile.mkdtemp(prefix="gasoline-cases-")
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)
        stands_in = mock.patch.object(opening, "make_driver", return_value=MemoryDriver(Cluster()))
        stands_in.start()
        self.addCleanup(stands_in.stop)
        return f"kafka://in-memory:9092?{urlencode({'state_dir': self.state})}"


@pytest.mark.usefixtures("_broker")
class OnBroker(OnMemory):
    """On a real broker. Each test has topics of its own there, by their prefix."""

    bootstrap: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def _broker(cls, kafka_bootstrap: str) -> None:
        cls.bootstrap = kafka_bootstrap

    def new_log(self) -> str:
        self.state = tempfile.mkdtemp(prefix="gasoline-cases-")
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)
        options = {"state_dir": self.state, "prefix": f"t-{secrets.token_hex(6)}."}
        return f"kafka://{self.bootstrap}?{urlencode(options)}"


# --- recorders --------------------------------------------------------------------------------------------------------


class Aggregates(OnMemory, cases.AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        return self.factory_of().aggregate_recorder()


class Notifications(OnMemory, cases.ApplicationRecorderTestCase[ApplicationRecorder]):
    def create_recorder(self) -> ApplicationRecorder:
        return self.factory_of().application_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class Tracked(OnMemory, cases.TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        return self.factory_of().tracking_recorder()


class Processes(OnMemory, cases.ProcessRecorderTestCase):
    def create_recorder(self) -> ProcessRecorder:
        return self.factory_of().process_recorder()


class NonInterleaving(OnMemory, cases.NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> ApplicationRecorder:
        return self.factory_of().application_recorder()


class SubclassOfOurs(GasolineTrackingRecorder):
    pass


class Factories(OnMemory, cases.InfrastructureFactoryTestCase[GasolineFactory]):
    env = Environment("TestCase")

    def expected_factory_class(self) -> type[GasolineFactory]:
        return GasolineFactory

    def expected_aggregate_recorder_class(self) -> type[AggregateRecorder]:
        return GasolineAggregateRecorder

    def expected_application_recorder_class(self) -> type[ApplicationRecorder]:
        return GasolineApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[TrackingRecorder]:
        return GasolineTrackingRecorder

    def tracking_recorder_subclass(self) -> type[TrackingRecorder]:
        return SubclassOfOurs

    def expected_process_recorder_class(self) -> type[ProcessRecorder]:
        return GasolineProcessRecorder


# --- applications and projections -------------------------------------------------------------------------------------


class ExampleApplication(OnMemory, application_cases.ExampleApplicationTestCase):
    expected_factory_topic = get_topic(GasolineFactory)


@pytest.mark.filterwarnings("default:'log' is deprecated")  # a test of theirs looks for the warning
class Applications(OnMemory, application_cases.ApplicationTestCase):
    pass


class Counters(OnMemory, projection_cases.EventCountersViewTestCase):
    def construct_event_counters_view(self) -> projection_cases.EventCountersView:
        view = self.factory_of().tracking_recorder(CountersOnTheLog)
        assert isinstance(view, CountersOnTheLog)
        return view


class CountersProjection(OnMemory, projection_cases.AggregateEventCountersProjectionTestCase):
    view_class = CountersOnTheLog
    env: ClassVar[dict[str, str]] = {}


class EventSourcedProjections(OnMemory, projection_cases.EventSourcedProjectionTestCase):
    env: ClassVar[dict[str, str]] = {}


# --- decisions --------------------------------------------------------------------------------------------------------


class Decisions(OnMemory, dcb_cases.DCBRecorderTestCase):
    """Theirs have no names that a runner finds."""

    def test_append_read(self) -> None:
        self._test_append_read(self.factory_of().dcb_recorder())

    def test_append_subscribe(self) -> None:
        self._test_append_subscribe(self.factory_of().dcb_recorder())


class DecisionCountersProjection(OnMemory, projection_cases.TaggedDecisionCountersProjectionTestCase):
    view_class = CountersOnTheLog
    env: ClassVar[dict[str, str]] = {}

    def _fill(self, env: dict[str, str]) -> None:
        super()._fill(env)
        env["MAPPER_TOPIC"] = get_topic(MessagePackMapper)


# --- the same on files ------------------------------------------------------------------------------------------------


class AggregatesOnFiles(OnFiles, Aggregates):
    pass


class NotificationsOnFiles(OnFiles, Notifications):
    pass


class TrackedOnFiles(OnFiles, Tracked):
    pass


class ProcessesOnFiles(OnFiles, Processes):
    pass


class NonInterleavingOnFiles(OnFiles, NonInterleaving):
    pass


class FactoriesOnFiles(OnFiles, Factories):
    env = Environment("TestCase")


class ExampleApplicationOnFiles(OnFiles, ExampleApplication):
    pass


class ApplicationsOnFiles(OnFiles, Applications):
    pass


class CountersOnFiles(OnFiles, Counters):
    pass


class CountersProjectionOnFiles(OnFiles, CountersProjection):
    env: ClassVar[dict[str, str]] = {}


class EventSourcedProjectionsOnFiles(OnFiles, EventSourcedProjections):
    env: ClassVar[dict[str, str]] = {}


class DecisionsOnFiles(OnFiles, Decisions):
    pass


class DecisionCountersProjectionOnFiles(OnFiles, DecisionCountersProjection):
    env: ClassVar[dict[str, str]] = {}


# --- the same on Kafka ------------------------------------------------------------------------------------------------


class PatientCounters(CountersOnTheLog):
    """Waits as long as a broker on a busy machine takes: the package's second is for a database at hand."""

    def wait(
        self,
        application_name: str,
        notification_id: int | None,
        timeout: float = 1.0,
        interrupt: threading.Event | None = None,
    ) -> None:
        super().wait(application_name, notification_id, max(timeout, 10.0), interrupt)


class AggregatesOnClusterOfMemory(OnClusterOfMemory, Aggregates):
    pass


class NotificationsOnClusterOfMemory(OnClusterOfMemory, Notifications):
    pass


class TrackedOnClusterOfMemory(OnClusterOfMemory, Tracked):
    pass


class ProcessesOnClusterOfMemory(OnClusterOfMemory, Processes):
    pass


class NonInterleavingOnClusterOfMemory(OnClusterOfMemory, NonInterleaving):
    pass


class FactoriesOnClusterOfMemory(OnClusterOfMemory, Factories):
    env = Environment("TestCase")


class ExampleApplicationOnClusterOfMemory(OnClusterOfMemory, ExampleApplication):
    pass


class ApplicationsOnClusterOfMemory(OnClusterOfMemory, Applications):
    pass


class CountersOnClusterOfMemory(OnClusterOfMemory, Counters):
    pass


class CountersProjectionOnClusterOfMemory(OnClusterOfMemory, CountersProjection):
    env: ClassVar[dict[str, str]] = {}


class EventSourcedProjectionsOnClusterOfMemory(OnClusterOfMemory, EventSourcedProjections):
    env: ClassVar[dict[str, str]] = {}


@pytest.mark.soak
class AggregatesOnBroker(OnBroker, Aggregates):
    pass


class NotificationsOnBroker(OnBroker, Notifications):
    pass


@pytest.mark.soak
class TrackedOnBroker(OnBroker, Tracked):
    pass


@pytest.mark.soak
class ProcessesOnBroker(OnBroker, Processes):
    pass


@pytest.mark.soak
class NonInterleavingOnBroker(OnBroker, NonInterleaving):
    pass


@pytest.mark.soak
class FactoriesOnBroker(OnBroker, Factories):
    env = Environment("TestCase")


@pytest.mark.soak
class ExampleApplicationOnBroker(OnBroker, ExampleApplication):
    pass


@pytest.mark.soak
class ApplicationsOnBroker(OnBroker, Applications):
    pass


@pytest.mark.soak
class CountersOnBroker(OnBroker, Counters):
    pass


@pytest.mark.soak
class CountersProjectionOnBroker(OnBroker, CountersProjection):
    view_class = PatientCounters
    env: ClassVar[dict[str, str]] = {}


@pytest.mark.soak
class EventSourcedProjectionsOnBroker(OnBroker, EventSourcedProjections):
    env: ClassVar[dict[str, str]] = {}


del OnMemory, OnFiles, OnClusterOfMemory, OnBroker  # they have no tests
