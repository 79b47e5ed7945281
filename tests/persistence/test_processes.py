"""Several processes on one application, and what is left of those that are killed (design §5)."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

import pytest
from eventsourcing.persistence import DataError, IntegrityError, OperationalError, StoredEvent
from eventsourcing.utils import Environment

from gasoline_es.core.stored_events import DecisionStored, EventStored, embed
from gasoline_es.core.storing import Condition, Query, Store
from gasoline_es.errors import Fenced, NoSpace, StoreConflict
from gasoline_es.log.memory import MemoryLog
from gasoline_es.log.port import Outcome, Section
from gasoline_es.persistence import GasolineApplicationRecorder, GasolineFactory
from gasoline_es.persistence.journal import Journal, Selection, StoreIds
from gasoline_es.runtime.lending import Not
from tests.engine.conftest import kafka_world
from tests.engine.harness import Fate, Process, World, kills, soon
from tests.kafka.cluster_of_memory import Cluster, Fault

ROOT = Path(__file__).resolve().parents[2]


new_store_id = StoreIds()


def events(originator: str, *versions: int, size: int = 0) -> Store:
    state = b'"%b"' % (b"x" * size)
    return Store(
        new_store_id(), "events", [EventStored(originator, False, version, "t", embed(state)) for version in versions]
    )


async def end(journal: Journal, sequence: str = "events") -> int:
    return await journal.look(lambda view: view.end(sequence))


async def stored(journal: Journal) -> list[tuple[str, int]]:
    """Return originators and versions, in the order of their numbers, which must have no gap."""
    found = (
        await journal.select(lambda view: Selection("events", view.of_kinds("events", [], 1, None, 10_000)))
    ).events
    assert [event.seq for event in found] == list(range(1, await end(journal) + 1))
    datas = [event.data for event in found]
    return [(data.originator, data.version) for data in datas if isinstance(data, EventStored)]


@contextmanager
def on_kafka(state_dir: Path) -> Generator[tuple[World, Cluster]]:
    with pytest.MonkeyPatch.context() as patch:
        made = kafka_world(patch, state_dir)
        assert made.cluster is not None
        yield made, made.cluster


@pytest.fixture(params=["memory", "file", "kafka"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[World]:
    with ExitStack() as stack:
        match request.param:
            case "memory":
                made = World()
            case "file":
                made = World(f"file:{tmp_path}/log")
            case _:
                made, _ = stack.enter_context(on_kafka(tmp_path))
        yield made
        await made.end()


async def process(world: World) -> tuple[Process, Journal]:
    made = await world.process(partitions=1)
    return made, Journal(made.node)


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("fate", ["lost", "unanswered"])
async def test_killed_at_every_append_nothing_acknowledged_is_lost_and_no_number_is_missing(
    fate: Fate, kind: str, tmp_path: Path
) -> None:
    acknowledged: list[int] = []

    async def life(living: Process) -> None:
        acknowledged.clear()
        journal = Journal(living.node)
        for number in range(4):
            position = await journal.store(events("a", 2 * number, 2 * number + 1))
            acknowledged.append(position)

    deaths = 0
    async for world, _ in kills(fate, life, tmp_path if kind == "file" else None, partitions=1):
        deaths += 1
        _, journal = await process(world)
        found = await stored(journal)
        # Pairs come whole. What was acknowledged is there; at most one more is, of which nobody was told.
        assert found == [("a", version) for version in range(len(found))]
        assert len(found) % 2 == 0
        assert 0 <= len(found) // 2 - len(acknowledged) <= (1 if fate == "unanswered" else 0)
        assert acknowledged == [2 * number + 1 for number in range(len(acknowledged))]
        assert await journal.store(events("a", len(found))) == len(found) + 1
    assert deaths == 5


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("sequence", ["events", "decisions"])
async def test_an_append_that_was_fenced_is_asked_again_and_counts_once(counts: bool, sequence: str) -> None:
    world = World()
    a, journal = await process(world)
    inner = a.log.inner
    assert isinstance(inner, MemoryLog)
    command = (
        events("a", 2)
        if sequence == "events"
        else Store(new_store_id(), sequence, [DecisionStored("t", (), embed(b""))])
    )
    await journal.store(events("a", 1))
    real = inner.append

    async def fenced_once(sections: Sequence[Section]) -> list[Outcome]:
        inner.append = real  # type: ignore[method-assign]
        if counts:
            await real(sections)
        inner.steal(0)
        return [Fenced("another process has it now", partition=0) for _ in sections]

    inner.append = fenced_once  # type: ignore[method-assign]

    position = await soon(journal.store(command))

    assert position == await end(journal, sequence) == (2 if sequence == "events" else 1)
    await world.end()


async def test_a_full_disk_records_nothing_and_leaves_no_gap(world: World) -> None:
    a, journal = await process(world)
    await journal.store(events("a", 1))
    a.log.always = NoSpace

    with pytest.raises(NoSpace):
        await soon(journal.store(events("a", 2, 3)))

    a.log.always = None
    assert await journal.store(events("a", 2)) == 2
    assert await stored(journal) == [("a", 1), ("a", 2)]


# --- several processes ------------------------------------------------------------------------------------------------


async def test_processes_share_one_order_and_see_what_each_has_written(world: World) -> None:
    (_, here), (_, there) = await process(world), await process(world)
    told = asyncio.Event()
    await here.on_news(told.set)

    assert await here.store(events("a", 1)) == 1
    assert await soon(there.store(events("b", 1, 2))) == 2
    assert await here.store(events("a", 2)) == 4

    for journal in (there, here):
        assert await stored(journal) == [("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    await soon(told.wait())


async def test_a_version_is_stored_once_whichever_process_asks(world: World) -> None:
    (_, here), (_, there) = await process(world), await process(world)
    await here.store(events("a", 1))

    with pytest.raises(StoreConflict, match="version 1 of a is stored already"):
        await soon(there.store(events("a", 1)))
    outcomes = await soon(
        asyncio.gather(*(journal.store(events("a", 2)) for journal in (here, there) * 3), return_exceptions=True)
    )

    assert sorted(map(str, map(type, outcomes))) == sorted([str(int), *5 * [str(StoreConflict)]])
    assert await stored(there) == [("a", 1), ("a", 2)]


async def test_of_appends_that_exclude_each_other_one_counts_whichever_process_asks(world: World) -> None:
    (_, here), (_, there) = await process(world), await process(world)
    only = Condition(Query(((("Registered",), ("course:1", "student:7")), (("Closed",), ("course:1",)))))

    def decision(kind: str, *tags: str) -> Store:
        return Store(new_store_id(), "decisions", [DecisionStored(kind, tags, embed(b"{}"))], condition=only)

    outcomes = await soon(
        asyncio.gather(
            *(journal.store(decision("Registered", "student:7", "course:1", "paid")) for journal in (here, there) * 3),
            return_exceptions=True,
        )
    )

    assert sorted(map(str, map(type, outcomes))) == sorted([str(int), *5 * [str(StoreConflict)]])
    assert await soon(there.store(Store(new_store_id(), "decisions", [DecisionStored("Closed", (), embed(b""))]))) == 2
    with pytest.raises(StoreConflict, match="decision 1 matches"):
        await soon(there.store(decision("Other", "course:1")))
    found, last = await here.select(
        lambda view: Selection("decisions", view.matching("decisions", only.query, 0, None), view.end("decisions"))
    )
    assert ([event.seq for event in found], last) == ([1], 2)


async def test_what_another_process_has_read_already_is_there_for_the_owner(world: World) -> None:
    (a, here), (_, there) = await process(world), await process(world)
    await here.store(events("a", 1))
    a.log.learns.clear()

    assert await soon(there.store(events("b", 1))) == 2
    assert await end(there) == 2
    assert here.look_now(lambda view: view.end("events")) is Not.NOW
    question = asyncio.ensure_future(end(here))
    for _ in range(50):
        await asyncio.sleep(0)
    a.log.learns.set()

    assert await soon(question) == 2


async def test_who_is_killed_is_succeeded_by_whoever_asks(world: World) -> None:
    (a, here), (_, there) = await process(world), await process(world)
    await here.store(events("a", 1))
    await a.kill()

    assert await soon(there.store(events("b", 1))) == 2


async def test_what_is_too_much_for_a_request_is_decided_where_it_is_asked(world: World) -> None:
    (_, here), (_, there) = await process(world), await process(world)
    await here.store(events("a", 1))

    first = await soon(there.store(events("b", *range(10), size=200_000)))

    assert first == 2
    assert await soon(here.store(events("a", 2))) == 12
    assert await end(there) == 12


# --- over a network ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["owner", "client"])
@pytest.mark.parametrize("fault", ["unanswered", "lost", "open", "aborted"])
async def test_of_two_that_write_one_version_one_wins_also_when_an_answer_gets_lost(
    fault: Fault, whose: str, tmp_path: Path
) -> None:
    with on_kafka(tmp_path) as (world, cluster):
        (_, here), (b, there) = await process(world), await process(world)
        await here.store(events("a", 1))
        transactional_id = "default.0" if whose == "owner" else f"default.client.{b.log.incarnation}"
        cluster.faults[transactional_id] = [fault]

        outcomes = await soon(
            asyncio.gather(here.store(events("a", 2)), there.store(events("a", 2)), return_exceptions=True)
        )

        assert cluster.faults[transactional_id] == [], "the answer that gets lost was asked for"
        assert sorted(map(str, map(type, outcomes))) == sorted([str(int), str(StoreConflict)])
        assert 2 in outcomes
        for journal in (here, there):
            assert await stored(journal) == [("a", 1), ("a", 2)]
        await world.end()


async def test_an_owner_that_was_frozen_reads_what_its_successor_has_written(tmp_path: Path) -> None:
    """It is not told that it was taken for dead, and appends nothing by which it would find out."""
    with on_kafka(tmp_path) as (world, _):
        (a, here), (_, there) = await process(world), await process(world)
        await here.store(events("a", 1))
        assert world.tell_death is not None
        world.tell_death(a.log.incarnation)
        while await there._node.own(0) is None:
            await there._node.log.refresh()
        assert await soon(there.store(events("a", 2))) == 2

        assert await soon(end(here)) == 2
        assert await stored(here) == [("a", 1), ("a", 2)]
        await world.end()


async def test_reads_wait_for_what_is_being_appended_and_then_have_it(tmp_path: Path) -> None:
    with on_kafka(tmp_path) as (world, _):
        a, here = await process(world)
        await here.store(events("a", 1))
        a.log.open_gate.clear()
        a.log.asked.clear()
        storing = asyncio.ensure_future(here.store(events("a", 2)))
        await soon(a.log.asked.wait())
        reading = asyncio.ensure_future(end(here))

        a.log.open_gate.set()

        assert await soon(storing) == await soon(reading) == 2
        await world.end()


# --- processes of the operating system --------------------------------------------------------------------------------


def recorder_on(url: str) -> tuple[GasolineFactory, GasolineApplicationRecorder]:
    factory = GasolineFactory(Environment("shop", {"GASOLINE_LOG": url}))
    recorder = factory.application_recorder()
    assert isinstance(recorder, GasolineApplicationRecorder)
    return factory, recorder


def writer(url: str, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.persistence.writer", url, name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def acknowledged(process: subprocess.Popen[str]) -> tuple[int, int]:
    assert process.stdout is not None
    first, second = process.stdout.readline().split()
    return int(first), int(second)


def test_writers_that_are_killed_lose_nothing_and_a_subscription_elsewhere_sees_all_of_it(tmp_path: Path) -> None:
    url, told = f"file:{tmp_path}/log", dict[UUID, list[tuple[int, int]]]()
    factory, recorder = recorder_on(url)
    with recorder.subscribe() as subscription:
        for life in range(3):
            names = [f"{life}-{name}" for name in "ab"]
            writers = [writer(url, name) for name in names]
            for one, name in zip(writers, names, strict=True):
                told[uuid5(NAMESPACE_URL, name)] = [acknowledged(one) for _ in range(5 + life)]
            for one in writers:
                one.kill()
                one.communicate()
        last = recorder.insert_events([StoredEvent(uuid4(), 1, "last", b"")])
        assert last is not None
        seen = list(itertools.islice(subscription, last[0]))
    factory.close()

    assert [one.id for one in seen] == list(range(1, last[0] + 1))
    by_id = {one.id: one for one in seen}
    for originator, pairs in told.items():
        for version, pair in enumerate(pairs, 1):
            for notification_id, more in zip(pair, (0, 1), strict=True):
                one = by_id[notification_id]
                assert (one.originator_id, one.originator_version) == (originator, 2 * version + more)
    kept = [(one.originator_id, one.originator_version) for one in seen]
    assert len(set(kept)) == len(kept)


@pytest.mark.soak
def test_rivals_on_a_broker_record_each_version_once_and_a_subscription_elsewhere_sees_all_of_it(
    kafka_bootstrap: str, kafka_namespace: str, tmp_path: Path
) -> None:
    versions, urls = (
        40,
        [f"kafka://{kafka_bootstrap}?prefix={kafka_namespace}.&state_dir={tmp_path}/{n}" for n in "abc"],
    )
    factory, recorder = recorder_on(urls[0])
    originator = uuid4()
    with recorder.subscribe() as subscription:
        rivals = [
            subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.persistence.rival", url, str(originator), str(versions)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for url in urls[1:]
        ]
        seen = list(itertools.islice(subscription, versions))
        told = [rival.communicate(timeout=60)[0].split() for rival in rivals]
    factory.close()

    assert [rival.returncode for rival in rivals] == [0, 0]
    assert [(one.id, one.originator_version) for one in seen] == [(n, n) for n in range(1, versions + 1)]
    won = [[int(number) for number in one if number != "-"] for one in told]
    assert [len(one) for one in told] == [versions, versions], "each of them has tried each version"
    assert sorted(won[0] + won[1]) == list(range(1, versions + 1))
    assert {one.id: one.state.decode() for one in seen} == {
        number: str(rival.pid) for rival, numbers in zip(rivals, won, strict=True) for number in numbers
    }


# --- errors -----------------------------------------------------------------------------------------------------------


def test_what_fails_is_an_error_of_the_package_and_says_what_to_do(tmp_path: Path) -> None:
    factory, recorder = recorder_on(f"file:{tmp_path}/log")
    event = StoredEvent(uuid4(), 1, "t", b"{}")
    recorder.insert_events([event])

    with pytest.raises(IntegrityError, match="stored already"):
        recorder.insert_events([event])
    with pytest.raises(DataError, match="more than a record may have"):
        recorder.insert_events([StoredEvent(uuid4(), 1, "t", b"x" * 1_000_000)])
    with pytest.raises(DataError, match="64 bits"):
        recorder.insert_events([StoredEvent(uuid4(), 2**70, "t", b"")])
    with pytest.raises(DataError, match="surrogates"):
        recorder.insert_events([StoredEvent("\ud800", 1, "t", b"")])
    factory.close()
    with pytest.raises(OperationalError, match="was closed"):
        recorder.insert_events([event])
    with pytest.raises(OperationalError, match="was closed"):
        factory.application_recorder()
    with pytest.raises(OperationalError, match="not the URL of a log"):
        recorder_on("somewhere")

    factory, recorder = recorder_on(f"file:{tmp_path}/log")
    assert recorder.max_notification_id() == 1
    factory.close()


def test_a_subscription_ends_with_an_error_when_its_log_is_closed() -> None:
    factory, recorder = recorder_on("memory:closed")

    with recorder.subscribe() as subscription:
        factory.close()
        with pytest.raises(OperationalError, match="was closed"):
            next(subscription)
