"""Inserts on the caller's own thread: they count, fail and are found out about as all others (decision 0030)."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from eventsourcing.persistence import StoredEvent
from eventsourcing.utils import Environment

from gasoline_es.core.stored_events import EventStored, embed
from gasoline_es.core.storing import Store
from gasoline_es.errors import GasolineError, LogFailed, NoSpace, StoreConflict
from gasoline_es.log.file import log
from gasoline_es.log.memory import MemoryLog, open_memory_log
from gasoline_es.log.opening import open_log
from gasoline_es.persistence import GasolineApplicationRecorder, GasolineFactory
from gasoline_es.persistence.journal import Journal, StoreIds, journal_on
from gasoline_es.runtime.lending import Not
from gasoline_es.runtime.loop_thread import LoopThread
from gasoline_es.testing.faults import Call, FaultyDisk
from tests.engine.harness import PATIENCE_S

T = TypeVar("T")
Thread = LoopThread[Journal]


new_store_id = StoreIds()


def events(originator: str, *versions: int) -> Store:
    return Store(
        new_store_id(), "events", [EventStored(originator, False, version, "t", embed(b"{}")) for version in versions]
    )


@contextmanager
def journal_thread(url: str, **options: Any) -> Generator[Thread]:
    @asynccontextmanager
    async def opening() -> AsyncGenerator[Journal]:
        async with journal_on(await open_log(url, namespace="es-shop", partitions=1, **options)) as journal:
            await journal.store(events(new_store_id(), 1))  # from here on it owns the partition
            yield journal

    thread = LoopThread(url, opening(), among_tasks=True)
    try:
        yield thread
    finally:
        thread.close()


def in_place(thread: Thread, deed: Callable[[Journal], T]) -> T:
    """Do it in the loop's place, on a thread that is not the main one; raises what it raises."""
    done: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            while (found := thread.in_place("test", deed)) is Not.NOW:
                pass
            done.append(found)
        except BaseException as error:
            raised.append(error)

    caller = threading.Thread(target=run)
    caller.start()
    caller.join(PATIENCE_S)
    if raised:
        raise raised[0]
    return done[0]


def store(thread: Thread, command: Store) -> int | Store:
    """Store it in the loop's place, once nothing is under way there."""
    while (stored := in_place(thread, lambda journal: journal.store_now([command]))[0]) is command:
        pass
    if isinstance(stored, GasolineError):
        raise stored
    return stored


def end(thread: Thread) -> int:
    return thread.call("end", lambda: thread.opened.look(lambda view: view.end("events")))


@pytest.fixture(autouse=True)
def any_disk_is_fast_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_READY_SYNC_S", math.inf)


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file:{tmp_path}/log" if request.param == "file" else f"memory:in-place-{uuid4()}"


def test_what_is_stored_in_place_is_there_for_everybody(url: str) -> None:
    with journal_thread(url) as thread:
        assert store(thread, events("a", 1, 2)) == 2
        assert in_place(thread, lambda journal: journal.look_now(lambda view: view.end("events"))) == 3
        assert end(thread) == 3
        with pytest.raises(StoreConflict, match="version 2 of a is stored already"):
            store(thread, events("a", 2))
        assert thread.call("store", lambda: thread.opened.store(events("a", 3))) == 4
    with journal_thread(url) as thread:
        assert end(thread) == 5


def test_subscribers_hear_of_it(url: str) -> None:
    with journal_thread(url) as thread:
        told = threading.Event()
        thread.call("listen", lambda: thread.opened.on_news(told.set))
        told.clear()

        store(thread, events("a", 1))

        assert told.is_set()


def test_threads_that_store_at_once_get_numbers_without_gaps(url: str) -> None:
    factory = GasolineFactory(Environment("shop", {"GASOLINE_LOG": url}))
    recorder = factory.application_recorder()
    assert isinstance(recorder, GasolineApplicationRecorder)
    ids: list[int] = []

    def insert() -> None:
        originator = uuid4()
        for version in range(1, 26):
            found = recorder.insert_events([StoredEvent(originator, version, "t", b"{}")])
            assert found is not None
            assert recorder.select_notifications(found[0], 1)[0].originator_version == version
            ids.extend(found)

    threads = [threading.Thread(target=insert) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert sorted(ids) == list(range(1, 101))
    factory.close()


def test_what_threads_store_while_another_syncs_goes_into_one_append(tmp_path: Path) -> None:
    disk = FaultyDisk(f"{tmp_path}/log")
    with journal_thread(f"file:{tmp_path}/log", disk=disk) as thread:
        syncing, may_end = threading.Event(), threading.Event()

        def hold(call: Call) -> None:
            if call.what == "datasync":
                disk.before = None
                syncing.set()
                may_end.wait(PATIENCE_S)

        disk.before = hold
        syncs = sum(call.what == "datasync" for call in disk.calls)
        first = threading.Thread(target=lambda: store(thread, events("a", 1)))
        first.start()
        assert syncing.wait(PATIENCE_S)
        numbers: list[int] = []

        def call(name: str) -> None:
            numbers.append(thread.call("store", lambda: thread.opened.store(events(name, 1))))

        others = [threading.Thread(target=call, args=(name,)) for name in "bcde"]
        for other in others:
            other.start()
        while len(thread._under_way) < len(others):
            pass
        may_end.set()
        for one in (first, *others):
            one.join(PATIENCE_S)

        assert sorted(numbers) == [3, 4, 5, 6]
        assert sum(call.what == "datasync" for call in disk.calls) - syncs == 2


def test_many_are_read_as_each_alone_is(url: str) -> None:
    factory = GasolineFactory(Environment("shop", {"GASOLINE_LOG": url}))
    recorder = factory.application_recorder()
    for count in (1, 3, *[1] * 20, 5, 2):
        originator = uuid4()
        recorder.insert_events([StoredEvent(originator, version, "t", b"%d" % version) for version in range(count)])

    found = recorder.select_notifications(2, 28)

    assert [one.id for one in found] == list(range(2, 30))
    assert found == [recorder.select_notifications(number, 1)[0] for number in range(2, 30)]
    factory.close()


def test_more_than_is_written_at_once_is_handed_over() -> None:
    big = Store(new_store_id(), "events", [EventStored("a", False, 1, "t", embed(b'"%b"' % (b"x" * 300_000)))])
    with journal_thread("memory:") as thread:
        assert in_place(thread, lambda journal: journal.store_now([big])) == [big]


def test_several_commands_are_one_append_and_each_has_its_own_end(tmp_path: Path) -> None:
    disk = FaultyDisk(f"{tmp_path}/log")
    with journal_thread(f"file:{tmp_path}/log", disk=disk) as thread:
        commands = [events("a", 1), events("b", 1, 2), events("a", 1), events("a", 2)]
        syncs = 0

        def count(call: Call) -> None:
            nonlocal syncs
            syncs += call.what == "datasync"

        disk.before = count
        while (stored := in_place(thread, lambda journal: journal.store_now(commands))) is commands:
            pass
        disk.before = None

        assert syncs == 1
        first, second, refused, last = stored
        assert (first, second, last) == (2, 3, 5)
        assert isinstance(refused, StoreConflict)
        assert end(thread) == 5


def test_without_owning_the_application_nothing_is_done_in_place(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    with journal_thread(url) as owner:
        factory = GasolineFactory(Environment("shop", {"GASOLINE_LOG": url}))
        recorder = factory.application_recorder()
        assert recorder.max_notification_id() == 1

        store(owner, events("a", 1))

        assert recorder.max_notification_id() == 2
        assert recorder.insert_events([StoredEvent(uuid4(), 1, "t", b"{}")]) == [3]
        factory.close()


# --- what fails -------------------------------------------------------------------------------------------------------


def test_a_full_disk_records_nothing_in_place(tmp_path: Path) -> None:
    disk = FaultyDisk(f"{tmp_path}/log")
    with journal_thread(f"file:{tmp_path}/log", disk=disk) as thread:
        disk.space = 0
        with pytest.raises(NoSpace):
            store(thread, events("a", 1))
        disk.space = None

        assert store(thread, events("a", 1)) == 2
        assert end(thread) == 2


def test_a_sync_that_fails_in_place_ends_it_for_this_process(tmp_path: Path) -> None:
    disk = FaultyDisk(f"{tmp_path}/log")
    with journal_thread(f"file:{tmp_path}/log", disk=disk) as thread:
        disk.fail_once("datasync")
        with pytest.raises(LogFailed):
            store(thread, events("a", 1))

        with pytest.raises(LogFailed, match="the log failed in this process"):
            end(thread)
        assert thread.opened.failed
    with journal_thread(f"file:{tmp_path}/log") as thread:
        assert end(thread) == 2  # the two that came first in the lives of the two threads


@pytest.mark.parametrize("counts", [True, False])
def test_what_was_fenced_in_place_is_asked_again_and_counts_once(counts: bool) -> None:
    logs: list[MemoryLog] = []

    @asynccontextmanager
    async def opening() -> AsyncGenerator[Journal]:
        opened = await open_memory_log("", namespace="es-shop", partitions=1)
        logs.append(opened)
        async with journal_on(opened) as journal:
            await journal.store(events(new_store_id(), 1))
            yield journal

    thread = LoopThread("memory:", opening(), among_tasks=True)
    (memory,) = logs
    real, command = memory.append_now, events("a", 1)

    def fenced_once(sections: object) -> object:
        memory.append_now = real  # type: ignore[method-assign]
        if counts:
            real(sections)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        memory.steal(0)
        return real(sections)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    memory.append_now = fenced_once  # type: ignore[method-assign, assignment]  # pyright: ignore[reportAttributeAccessIssue]

    left = store(thread, command)

    assert isinstance(left, Store)
    assert (left.store_id, left.at) == (command.store_id, 2)
    assert thread.call("store", lambda: thread.opened.store(left)) == 2
    assert end(thread) == 2
    thread.close()


class Thrown(BaseException):
    """What a debugger, a time limit or the like throws into a thread."""


def test_whatever_breaks_off_an_append_in_the_middle_leaves_a_sound_log(tmp_path: Path) -> None:
    fatal = 0
    for fatal in range(100):
        url, disk = f"file:{tmp_path}/{fatal}", FaultyDisk(f"{tmp_path}/{fatal}")
        with journal_thread(url, disk=disk) as thread:
            assert store(thread, events("a", 1)) == 2
            left = fatal

            def throw(_: Call) -> None:
                nonlocal left
                left -= 1
                if left == -1:
                    raise Thrown

            disk.before = throw
            try:
                assert store(thread, events("a", 2)) == 3
            except Thrown:
                assert thread.opened.failed
            else:
                disk.before = None
                break
            disk.before = None
        with journal_thread(url) as thread:
            # What was acknowledged is there. Of what broke off nothing is known, but that it is whole or not at all.
            stored = end(thread)
            assert stored in (3, 4)
            assert store(thread, events("a", 9)) == stored + 1
    assert fatal >= 3
