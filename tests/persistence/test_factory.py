"""The factory: what it is configured by, what it shares, how it lets go (design §7)."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from eventsourcing.persistence import (
    DataError,
    InfrastructureFactory,
    InfrastructureFactoryError,
    IntegrityError,
    OperationalError,
    PersistenceError,
    ProgrammingError,
    StoredEvent,
)
from eventsourcing.popo import POPOTrackingRecorder
from eventsourcing.utils import Environment

from gasoline_es import errors
from gasoline_es.log.opening import open_log
from gasoline_es.persistence import GasolineApplicationRecorder, GasolineFactory, lease
from gasoline_es.persistence.history_reader import open_histories
from gasoline_es.persistence.journal import Journal, namespace_of
from gasoline_es.persistence.lease import Lease, Leased, translated
from gasoline_es.runtime.lending import Not


def factory_for(name: str, url: str) -> tuple[GasolineFactory, GasolineApplicationRecorder]:
    factory = GasolineFactory(Environment(name, {"GASOLINE_LOG": url}))
    recorder = factory.application_recorder()
    assert isinstance(recorder, GasolineApplicationRecorder)
    return factory, recorder


def one() -> list[StoredEvent]:
    return [StoredEvent(uuid4(), 1, "t", b"{}")]


def test_without_a_log_it_says_which_variables_name_one() -> None:
    with pytest.raises(InfrastructureFactoryError, match=r"set ORDERS_GASOLINE_LOG or GASOLINE_LOG to the URL"):
        InfrastructureFactory.construct(Environment("Orders", {"PERSISTENCE_MODULE": "gasoline_es.persistence"}))


def test_a_namespace_of_more_partitions_than_an_application_has_says_what_to_do(tmp_path: Path) -> None:
    url = f"file:{tmp_path}"
    asyncio.run(_made(url, namespace_of("shop"), 16))

    with pytest.raises(
        OperationalError, match=r"'es-shop' .* with 16 partitions, and an application's has one\. .* --part"
    ):
        factory_for("shop", url)


async def _made(url: str, namespace: str, partitions: int) -> None:
    log = await open_log(url, namespace=namespace, partitions=partitions)
    await log.close()


def test_on_kafka_decisions_are_refused_before_anything_is_opened() -> None:
    factory = GasolineFactory(Environment("shop", {"GASOLINE_LOG": "kafka://nowhere:1"}))

    with pytest.raises(InfrastructureFactoryError) as refused:
        factory.dcb_recorder()

    assert (
        "eventsourcing.dcb), which a log on Kafka does not keep: set SHOP_GASOLINE_LOG or GASOLINE_LOG to file:"
        in str(refused.value)
    )


def test_on_kafka_an_application_has_a_namespace_of_its_own() -> None:
    GasolineFactory(Environment("shop", {"GASOLINE_LOG": "kafka://nowhere:1"}))
    GasolineFactory(Environment("shop", {"GASOLINE_LOG": "kafka://nowhere:1/es-shop"}))

    with pytest.raises(
        InfrastructureFactoryError, match=r"names the namespace 'default', and .* of its own, 'es-shop': leave"
    ):
        GasolineFactory(Environment("shop", {"GASOLINE_LOG": "kafka://nowhere:1/default"}))
    with pytest.raises(OperationalError, match="a user in it"):
        GasolineFactory(Environment("shop", {"GASOLINE_LOG": "kafka://me:secret@nowhere:1"}))


def test_a_view_for_another_module_is_refused() -> None:
    factory, _ = factory_for("shop", "memory:views")

    with pytest.raises(InfrastructureFactoryError) as refused:
        factory.tracking_recorder(POPOTrackingRecorder)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert "make it a subclass of gasoline_es.persistence.GasolineTrackingRecorder; " in str(refused.value)
    assert "or set SHOP_PERSISTENCE_MODULE to the module that it is of, as eventsourcing.popo" in str(refused.value)


def test_every_name_has_a_namespace_of_its_own() -> None:
    names = ["", "orders", "Orders", "ORDERS", "or-ders", "or ders", "or_ders", "ó", "…", "x" * 500, "x" * 501]

    namespaces = [namespace_of(name) for name in names]

    assert len(set(namespaces)) == len(names)
    assert namespace_of("orders") == "es-orders"
    for namespace, name in zip(namespaces, names, strict=True):
        factory, recorder = factory_for(name, "memory:names")
        assert len(namespace) <= 64
        assert recorder.insert_events(one()) == [1]
        factory.close()


def test_applications_of_one_name_share_a_journal_until_the_last_is_closed() -> None:
    (first, here), (second, there) = factory_for("shop", "memory:shared"), factory_for("shop", "memory:shared")

    here.insert_events(one())
    first.close()
    first.close()

    assert there.insert_events(one()) == [2]
    with pytest.raises(OperationalError, match="was closed"):
        here.insert_events(one())
    second.close()
    third, again = factory_for("shop", "memory:shared")
    assert again.max_notification_id() == 2
    third.close()


def test_an_application_that_is_closed_beside_a_longer_lived_one_leaves_nothing_behind(tmp_path: Path) -> None:
    """Journals and histories call nobody any more who has let go of them."""
    url = f"file:{tmp_path}/log"
    lasting, recorder = factory_for("shop", url)
    journal = recorder._lease.opened
    assert isinstance(journal, Journal)
    node = journal._node
    before = len(node._on_stored), len(node._log_changed)
    for _ in range(3):
        factory, other = factory_for("shop", url)
        other.insert_events(one())
        factory.close()
    recorder.max_notification_id()  # behind what the loop was given to do
    assert (len(node._on_stored), len(node._log_changed)) == before
    histories = Lease(url, "es-shop", open_histories)
    for _ in range(3):
        Lease(url, "es-shop", open_histories).close()
    histories.call("max_notification_id", lambda reader: reader.end(0))
    assert len(histories.opened._callbacks) == 1
    histories.close()
    lasting.close()


def test_a_subscription_that_is_over_listens_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped by whoever has it, or by an error that it met before it listened."""
    factory, recorder = factory_for("shop", "memory:over")
    with recorder.subscribe():
        assert len(recorder._lease._listeners) == 1
    assert not recorder._lease._listeners
    listen: Any = Leased[Any].listen

    def late(leased: Leased[Any], event: threading.Event) -> None:
        for thread in threading.enumerate():
            if "_loop_on_pull" in thread.name:
                thread.join(10)
        listen(leased, event)

    def failing(*_: object, **__: object) -> None:
        raise OperationalError("injected")

    monkeypatch.setattr(recorder, "select_notifications", failing)
    monkeypatch.setattr(Leased, "listen", late)
    with recorder.subscribe() as subscription, pytest.raises(OperationalError, match="injected"):
        next(subscription)
    assert not recorder._lease._listeners
    factory.close()


def test_a_lease_that_cannot_listen_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refusing(journal: Journal, callback: Callable[[], None]) -> Callable[[], None]:
        raise errors.LogError("injected")

    lasting, recorder = factory_for("shop", "memory:given-back")
    (shared,) = lease._shared.values()
    monkeypatch.setattr(Journal, "on_news", refusing)
    with pytest.raises(OperationalError, match="injected"):
        factory_for("shop", "memory:given-back")
    assert shared.users == 1
    monkeypatch.undo()
    recorder.insert_events(one())
    lasting.close()
    assert shared.loop.closed


def test_a_log_without_a_name_is_nobody_elses() -> None:
    (first, here), (second, there) = factory_for("shop", "memory:"), factory_for("shop", "memory:")

    here.insert_events(one())

    assert there.max_notification_id() is None
    first.close()
    second.close()


def test_an_application_that_the_collector_finds_on_the_logs_own_thread_closes_without_waiting_for_itself() -> None:
    factory, recorder = factory_for("shop", "memory:collected")
    closing: list[threading.Thread] = []

    async def close_here(_: Journal) -> None:
        factory.close()
        closing.extend(thread for thread in threading.enumerate() if thread.name == "gasoline-closing")

    with suppress(OperationalError):  # closed before it had its answer
        recorder._lease.call("collect", close_here)
    for thread in closing:
        thread.join(30)
        assert not thread.is_alive()
    with pytest.raises(OperationalError, match="was closed"):
        recorder.insert_events(one())


def test_an_application_that_the_collector_finds_in_the_middle_of_a_call_closes_without_waiting_for_itself() -> None:
    factory, recorder = factory_for("shop", "memory:collected-in-place")
    closing: list[threading.Thread] = []

    def close_here(_: Journal) -> None:
        factory.close()
        closing.extend(thread for thread in threading.enumerate() if thread.name == "gasoline-closing")

    def insert() -> None:
        while recorder._lease._loop.in_place("collect", close_here) is Not.NOW:
            pass

    inserting = threading.Thread(target=insert)
    inserting.start()
    for thread in (inserting, *closing):
        thread.join(30)
        assert not thread.is_alive()
    with pytest.raises(OperationalError, match="was closed"):
        recorder.insert_events(one())


def by_python(work: Callable[[], None], name: str) -> None:
    threading.Thread(target=work, name=name).start()


def by_c(work: Callable[[], None], name: str) -> None:
    _thread.start_new_thread(work, ())  # of whose threads Python knows as much as of a C library's


@pytest.mark.parametrize(
    ("start", "name"), [(by_c, ""), (by_python, "asyncio_0"), (by_python, "kafka-python-producer-1")]
)
def test_an_application_that_the_collector_finds_on_a_clients_thread_is_not_waited_for_there(
    start: Callable[[Callable[[], None], str], None], name: str
) -> None:
    """The log waits, as it closes, for that very thread."""
    factory, recorder = factory_for("shop", f"memory:collected-by-{name}")
    shared = recorder._lease._held
    found, ended = threading.Event(), threading.Event()

    async def close_behind(_: Journal) -> None:
        await asyncio.to_thread(ended.wait, 30)

    def collect() -> None:
        factory.close()
        found.set()

    def busy() -> None:
        with suppress(OperationalError):
            recorder._lease.call("be busy", close_behind)

    waiting = threading.Thread(target=busy)
    waiting.start()
    start(collect, name)
    assert found.wait(20), "it waits for what waits for it"
    ended.set()
    waiting.join(30)
    for thread in [thread for thread in threading.enumerate() if thread.name == "gasoline-closing"]:
        thread.join(30)
    assert shared.loop.closed


async def test_a_coroutine_may_call_it_as_it_may_call_any_other_module() -> None:
    factory, recorder = factory_for("shop", "memory:coroutine")

    assert recorder.insert_events(one()) == [1]

    factory.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.StoreConflict("x"), IntegrityError),
        (errors.RecordTooLarge("x"), DataError),
        (errors.NoSpace("x"), OperationalError),
        (errors.LogFailed("x"), OperationalError),
        (errors.LogCorrupt("x"), OperationalError),
        (errors.NoOwner("x", command_id=""), OperationalError),
        (errors.StepMisused("x"), ProgrammingError),
        (errors.GasolineError("x"), OperationalError),
    ],
)
def test_each_error_is_one_of_the_packages(error: errors.GasolineError, kind: type[PersistenceError]) -> None:
    assert type(translated(error)) is kind
    assert str(translated(error)) == "x"
