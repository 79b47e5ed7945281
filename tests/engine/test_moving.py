"""A namespace that is copied to another log: all goes on there as it would have here, and nothing here (0040)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.core.commands import Request, SendSignal, encode_request
from gasoline_es.core.ids import partition_of
from gasoline_es.core.letters import WAITING, Waiting
from gasoline_es.core.topics import OWNERS_TOPICS
from gasoline_es.errors import CopyRefused, LogCorrupt, LogError, LogMoved, NoSpace
from gasoline_es.log import copying
from gasoline_es.log.copying import Copied, Progress, copy_between, copy_log, reopen
from gasoline_es.log.kafka import log as kafka_log
from gasoline_es.log.kafka import opening
from gasoline_es.log.kafka.drivers.port import Feed
from gasoline_es.log.kafka.settings import Address
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Appended, Log, NewRecord, Outcome, Section
from tests.engine.harness import Process, World, assert_sound, consumed, soon
from tests.engine.test_schedules import report
from tests.engine.workflows import Note, echo, nap, notes
from tests.kafka.cluster_of_memory import Cluster, MemoryDriver

NewWorld = Callable[[str], World]
HOUR_S = 3600.0
attempts: list[str] = []
entered: list[asyncio.Event] = []
gates: list[asyncio.Event] = []


@activity
async def charge(ctx: ActivityContext, what: str) -> str:
    attempts.append(what)
    entered[0].set()
    await gates[0].wait()
    return f"charged {what}"


@workflow
async def buy(ctx: WorkflowContext, what: str) -> str:
    return await ctx.activity(charge, what)


@workflow
async def parent(ctx: WorkflowContext, seconds: float) -> str:
    children = [await ctx.dispatch(nap, seconds) for _ in range(3)]
    return ", ".join([await child.output() for child in children])


@workflow
async def never_works(ctx: WorkflowContext, what: str) -> None:
    raise ValueError(what)


@workflow
async def long_nap(ctx: WorkflowContext, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "rested"


ALL = (buy, parent, never_works, long_nap, nap, notes, echo, report)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[NewWorld]:
    """Makes worlds on logs of all kinds, each of its own: "memory", "file" or "kafka", a cluster in memory."""
    attempts.clear()
    entered[:], gates[:] = [asyncio.Event()], [asyncio.Event()]
    clusters: dict[str, Cluster] = {}
    numbers = itertools.count()
    made: list[World] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "make_driver", partial(_driver, clusters))
        patch.setattr(kafka_log, "SILENT_AFTER_S", 1.0)
        patch.setattr(opening, "SILENT_AFTER_S", 1.0)

        def one(kind: str) -> World:
            number = next(numbers)
            if kind == "memory":
                world = World(f"memory:moving-{tmp_path.name}-{number}")
            elif kind == "file":
                world = World(f"file:{tmp_path}/{number}")
            else:
                cluster = clusters[f"c{number}:9092"] = Cluster()
                world = World(f"kafka://c{number}:9092/default?state_dir={tmp_path}/{number}")
                world.tell_death = partial(cluster.tell_death, Feed("default.workers", 0))
            made.append(world)
            return world

        yield one
        for world in made:
            for process in world._processes:
                await process.kill()


def _driver(clusters: dict[str, Cluster], address: Address) -> MemoryDriver:
    return MemoryDriver(clusters[address.servers[0]])


async def move(old: World, new: World, partitions: int | None = None, progress: Progress | None = None) -> Copied:
    new.clock = old.clock
    return await soon(copy_log(old.url, new.url, partitions=partitions, clock=old.clock, progress=progress))


async def contents(url: str) -> dict[str, list[tuple[str, bytes | None, int]]]:
    """What a log holds in each of the owners' topics that move, in no order of partitions; of the index, what stands."""
    log = await open_log(url, readonly=True)
    found: dict[str, list[tuple[str, bytes | None, int]]] = {}
    for name in OWNERS_TOPICS:
        topic = f"default.{name}"
        await log.refresh(*((topic, p) for p in range(log.partition_count)))
        for p in range(log.partition_count):
            records = [(one.key, one.value, one.time_us // 1000) for one in log.read(topic, p)]
            if name != "registry":
                found.setdefault(name, []).extend(records)
            by_workflow: dict[str, list[int]] = {}
            for key, _, _ in records if name == "events" else ():
                workflow_id, _, seq = key.rpartition("/")
                assert partition_of(workflow_id, log.partition_count) == p
                by_workflow.setdefault(workflow_id, []).append(int(seq))
            assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in by_workflow.values())
    await log.close()
    standing = {key: value for key, value, _ in found["index"]}
    found["index"] = [(key, value, 0) for key, value in standing.items() if value is not None]
    return {name: sorted(records, key=lambda one: one[0]) for name, records in found.items()}


# --- a life with everything in it ------------------------------------------------------------------------------------------


async def live(world: World, partitions: int) -> dict[str, str]:
    """Bring workflows into every state, and leave; return their ids by what they are."""
    process = await world.process(partitions=partitions)
    await process.work(*ALL)
    gasoline = process.gasoline
    ids: dict[str, str] = {}

    async def start(name: str, definition: Any, given: Any, **more: Any) -> None:
        ids[name] = (await gasoline.dispatch(definition, given, key=name, **more)).id

    await start("complete", echo, "done", tags={"kind": "echo"})
    await start("sleeping", long_nap, 100.0, tags={"kind": "nap"})
    await start("waits for children", parent, 50.0)
    await start("listening", notes, 3, tags={"kind": "notes"})
    await start("silenced", long_nap, 700.0)
    await start("cancelled", long_nap, 800.0)
    await start("dead", never_works, "broken")
    await start("mid-activity", buy, "tea")
    await gasoline.schedule(60.0, report, "sales", name="hourly")
    await gasoline.signal(Note(text="early"), notes, tags={"order": "1"}, park=HOUR_S)
    await gasoline.handle(ids["silenced"], long_nap).silence()
    await gasoline.handle(ids["cancelled"], long_nap).cancel()
    await soon(entered[0].wait())
    await process.until(ids["dead"], lambda history: history[-1].type == "workflow.failed")
    await process.settle()
    await process.evict()
    await process.kill()
    # What comes now waits: nobody runs anything. The signals are queued, and one more is in the inbox.
    client = await world.process()
    for text in ("one", "two"):
        await client.gasoline.signal(Note(text=text), to=ids["listening"])
    await start_in(client, ids)
    await client.settle()
    await client.stop()
    log = await open_log(world.url)
    home = partition_of(ids["listening"], log.partition_count)
    signal = SendSignal(ids["listening"], "inboxed", "note", b'{"text":"three"}', True)
    request = encode_request(Request("r1", "nobody", signal))
    record = NewRecord("default.inbox", home, ids["listening"], request, world.clock.now_us())
    assert isinstance((await log.append([Section(home, None, [record])]))[0], Appended)
    await log.close()
    return ids


async def start_in(client: Process, ids: dict[str, str]) -> None:
    """Dispatch where nobody runs it."""
    ids["not begun"] = (await client.gasoline.dispatch(echo, "later", key="not begun")).id


async def go_on(world: World, ids: dict[str, str]) -> dict[str, Any]:
    """Let everything come to its end; return what became of it."""
    gates[0].set()
    process = await world.worker(*ALL)
    gasoline = process.gasoline
    found: dict[str, Any] = {"bought": await soon(gasoline.handle(ids["mid-activity"], buy).output())}
    found["notes"] = await soon(gasoline.handle(ids["listening"], notes).output())
    found["not begun"] = await soon(gasoline.handle(ids["not begun"], echo).output())
    await process.advance(60.0)
    await process.advance(60.0)
    found["children"] = await soon(gasoline.handle(ids["waits for children"], parent).output())
    found["rested"] = await soon(gasoline.handle(ids["sleeping"], long_nap).output())
    found["done"] = await soon(gasoline.handle(ids["complete"], echo).output())
    late = await gasoline.dispatch(notes, 1, tags={"order": "1"})
    found["parked"] = await soon(late.output())
    found["once more"] = (await gasoline.dispatch(echo, "done", key="complete", tags={"kind": "echo"})).id
    found["statuses"] = {name: (await gasoline.get(its)).status for name, its in ids.items()}
    found["fired"] = sorted([info.tags["scheduled_for"] async for info in gasoline.list(tags={"schedule": "hourly"})])
    found["consumed"] = len(consumed(await gasoline.history(ids["listening"])))
    for its in ids.values():
        assert_sound(await gasoline.history(its))
    await process.settle()
    await process.stop()
    return found


DIRECTIONS = [
    ("memory", 1, "file", 32),
    ("file", 32, "memory", 3),
    ("file", 16, "kafka", 5),
    ("kafka", 5, "file", 16),
    pytest.param("kafka", 3, "kafka", 8, marks=pytest.mark.soak),
    ("memory", 4, "memory", 4),
]


@pytest.mark.parametrize(("old_kind", "before", "new_kind", "after"), DIRECTIONS)
async def test_everything_goes_on_at_the_new_place_as_it_would_have_at_the_old(
    place: NewWorld, old_kind: str, before: int, new_kind: str, after: int
) -> None:
    """design §5: a workflow is one stream; where it lies is a function of its id."""
    stayed = place("memory")
    expected = await go_on(stayed, await live(stayed, before))
    attempts.clear()
    entered[:], gates[:] = [asyncio.Event()], [asyncio.Event()]
    old, new = place(old_kind), place(new_kind)
    ids = await live(old, before)
    held = await contents(old.url)
    copied = await move(old, new, after)
    assert copied.partitions == (before, after)
    assert await contents(new.url) == held
    assert {name: topic.records for name, topic in copied.topics.items()} == {
        **{name: len(records) for name, records in held.items()},
        "inbox": 1,
    }
    assert attempts == ["tea"]
    found = await go_on(new, ids)
    assert attempts == ["tea", "tea"]
    assert found == expected
    assert found["notes"] == ["one", "two", "three"]
    assert await contents(old.url) == held, "nothing is changed at the old place"


async def test_there_and_back_again_everything_is_as_it_was(place: NewWorld) -> None:
    old, between, new = place("file"), place("kafka"), place("file")
    await live(old, 7)
    there = await move(old, between, 3)
    back = await move(between, new, 7)
    assert {name: (one.records, one.digest) for name, one in there.topics.items()} == {
        name: (one.records, one.digest) for name, one in back.topics.items()
    }
    assert await contents(new.url) == await contents(old.url)


# --- only one place is open ------------------------------------------------------------------------------------------------


async def test_dead_letters_that_wait_for_their_topic_go_along_and_are_there_once(place: NewWorld) -> None:
    old, new = place("kafka"), place("file")
    process = await old.worker(echo)
    waiting = Waiting("late.dead-letter", 0, "late", "key", b'{"reason":"no"}')
    for index in (0, 3):
        told: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()
        process.node.partitions[index].note(f"{WAITING}late.dead-letter/{index}", waiting.json(), told.set_result)
        process.node.partitions[index].hurry()
        assert await soon(told) is None
    await process.stop()

    await move(old, new, 2)

    there = await new.worker(echo)
    source = await there.log.source("late.dead-letter", 0)
    found: list[bytes | None] = []
    while len(found) < 2:
        found += [named.record.value for named in await soon(source.poll(10))]
        await asyncio.sleep(0.01)
    assert found == [waiting.value] * 2
    async with asyncio.timeout(20):
        while any(one.views.registry.letters for one in there.node.partitions.values()):
            await asyncio.sleep(0.01)
    await source.close()


@pytest.mark.parametrize("kinds", [("memory", "file"), ("file", "kafka"), ("kafka", "memory")])
async def test_nobody_goes_on_at_the_old_place(place: NewWorld, kinds: tuple[str, str]) -> None:
    old, new = map(place, kinds)
    client = await old.process(partitions=2)
    handle = await client.gasoline.dispatch(echo, "here")
    await client.settle()
    await client.stop()
    await move(old, new)
    with pytest.raises(LogMoved, match=r"was moved to .* it goes on there, open that") as refused:
        async with Gasoline.open(old.url):
            pass
    assert (refused.value.state, refused.value.other) == ("left", (await opened_url(new)))
    async with Gasoline.open(old.url, readonly=True) as reading:  # it can be looked at
        assert (await reading.get(handle.id)).status == "running"
    late = await old.process()  # as one that was opened before, and did not look
    with pytest.raises(LogMoved):
        await late.gasoline.dispatch(echo, "lost?")
    worker = await new.worker(echo)
    assert await soon(worker.gasoline.handle(handle.id, echo).output()) == "here"


async def opened_url(world: World) -> str:
    log = await open_log(world.url, readonly=True)
    await log.close()
    return log.url


@pytest.mark.parametrize("kind", ["memory", "file", "kafka"])
async def test_a_log_that_somebody_works_on_is_not_copied(place: NewWorld, kind: str) -> None:
    old, new = place(kind), place("memory")
    process = await old.process(partitions=2)
    await process.gasoline.dispatch(echo, "mine")
    with pytest.raises(CopyRefused, match=r"is open for writing elsewhere .*: end that, and copy then"):
        await move(old, new)
    await process.gasoline.dispatch(echo, "undisturbed")
    await process.stop()
    await move(old, new)


@pytest.mark.parametrize("kind", ["memory", "file", "kafka"])
async def test_a_place_that_somebody_works_on_is_not_copied_to(place: NewWorld, kind: str) -> None:
    old, new = place("memory"), place(kind)
    client = await old.process(partitions=2)
    await client.gasoline.dispatch(echo, "mine")
    await client.stop()
    worker = await new.worker(echo)
    await worker.gasoline.dispatch(echo, "else")
    await worker.settle()
    with pytest.raises(CopyRefused, match="is open for writing elsewhere"):
        await move(old, new)
    await worker.stop()
    with pytest.raises(CopyRefused, match=r"holds something else: [0-9]+ records of "):
        await move(old, new)
    async with Gasoline.open(old.url):  # nothing was closed
        pass


async def test_who_comes_while_the_old_place_is_being_closed_is_seen_by_the_copy(
    place: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of both sees the other: whoever closes says so first and then looks; whoever comes is there first and then looks."""
    old, new = place("memory"), place("memory")
    client = await old.process(partitions=2)
    await client.stop()
    came: list[Log] = []
    look = copying._Copying._look_who_came

    async def come(self: Any) -> None:
        came.append(await open_log(old.url))
        await look(self)

    monkeypatch.setattr(copying._Copying, "_look_who_came", come)
    with pytest.raises(CopyRefused, match="is open for writing elsewhere"):
        await move(old, new)
    await came[0].close()
    async with Gasoline.open(old.url) as gasoline:  # open again
        await gasoline.dispatch(echo, "still here")
    monkeypatch.undo()
    await move(old, new)


async def test_a_log_is_copied_to_one_place_only(place: NewWorld) -> None:
    old, new, third = place("memory"), place("file"), place("memory")
    client = await old.process(partitions=2)
    await client.gasoline.dispatch(echo, "a")
    await client.stop()
    await move(old, new)
    with pytest.raises(CopyRefused, match="was moved to"):
        await move(old, third)
    again = await move(old, new)
    assert again.again
    worker = await new.worker(echo)
    assert (await move(old, new)).again, "also while they work there"
    await worker.stop()
    with pytest.raises(CopyRefused, match="was moved for good"):
        await reopen(old.url)


async def test_what_cannot_be_copied_is_refused_before_anything_happens(place: NewWorld) -> None:
    old, new = place("memory"), place("file")
    with pytest.raises(LogError, match="no namespace 'default'"):
        await move(old, new)
    assert not Path(new.url.removeprefix("file:")).exists(), "nothing was made"
    client = await old.process(partitions=2)
    await client.stop()
    with pytest.raises(CopyRefused, match="are the same log"):
        await copy_log(old.url, old.url)
    with pytest.raises(CopyRefused, match="two namespaces are named, 'default' and 'shop'"):
        await copy_log(place("kafka").url, new.url, namespace="shop")
    await move(old, new)


@pytest.mark.parametrize("kind", ["memory", "file", "kafka"])
async def test_a_copy_that_is_refused_for_its_source_makes_nothing_at_the_new_place(place: NewWorld, kind: str) -> None:
    old, new = place(kind), place("file")
    worker = await old.worker(echo)
    directory = Path(new.url.removeprefix("file:"))
    with pytest.raises(CopyRefused, match="is open for writing elsewhere"):
        await move(old, new)
    assert not directory.exists()
    await worker.stop()
    await move(old, place("memory"))
    with pytest.raises(CopyRefused, match="was moved to"):
        await move(old, new)
    assert not directory.exists()


async def test_a_directory_is_not_copied_into_itself(place: NewWorld) -> None:
    old = place("file")
    client = await old.process(partitions=2)
    await client.stop()
    directory = Path(old.url.removeprefix("file:"))
    before = sorted(directory.rglob("*"))
    for target in (f"{old.url}/sub", f"{old.url}/a/b", f"file:{directory.parent}"):
        with pytest.raises(CopyRefused, match="lie one in the other: copy to a directory beside it"):
            await copy_log(old.url, target)
    (directory.parent / "link").symlink_to(directory)
    with pytest.raises(CopyRefused, match="lie one in the other"):
        await copy_log(old.url, f"file:{directory.parent}/link/sub")
    with pytest.raises(CopyRefused, match="are the same log"):
        await copy_log(old.url, f"file:{directory.parent}/link")
    assert sorted(directory.rglob("*")) == before


# --- broken off, and again ---------------------------------------------------------------------------------------------------


class Ends(Exception):
    """The process ends here."""


class Counted:
    """Lets appends of both logs through until one is reached: there the process ends, before or after it is durable."""

    def __init__(self, dies_at: int, *, written: bool) -> None:
        self.count = 0
        self._dies_at = dies_at
        self._written = written

    def watch(self, log: Any) -> Any:
        append = log.append

        async def counted(sections: list[Section]) -> list[Outcome]:
            self.count += 1
            if self.count == self._dies_at and not self._written:
                raise Ends
            outcomes: list[Outcome] = await append(sections)
            if self.count == self._dies_at:
                raise Ends
            return outcomes

        log.append = counted
        return log


async def die(log: Log) -> None:
    result = log.crash()  # type: ignore[attr-defined]
    if result is not None:
        await result


@pytest.mark.parametrize("written", [False, True], ids=["lost", "unanswered"])
@pytest.mark.parametrize(
    "kinds",
    [
        ("memory", "memory"),
        pytest.param(("memory", "file"), marks=pytest.mark.soak),
        pytest.param(("memory", "kafka"), marks=pytest.mark.soak),
        pytest.param(("kafka", "file"), marks=pytest.mark.soak),
    ],
    ids="-".join,
)
async def test_killed_at_any_append_and_run_again_nothing_is_lost_doubled_or_invented(
    place: NewWorld, kinds: tuple[str, str], written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_APPEND_RECORDS", 7)
    number, over = 0, False
    while not over:
        number += 1 if kinds == ("memory", "memory") else 3
        old, new = map(place, kinds)
        gates[:], entered[:] = [asyncio.Event()], [asyncio.Event()]
        ids = await live(old, 2)
        held = await contents(old.url)
        counted = Counted(number, written=written)
        first, second = counted.watch(await open_log(old.url)), counted.watch(await open_log(new.url, partitions=3))
        try:
            await copy_between(first, second, partial(copying._open_again, second, "default"), clock=old.clock)
            over = True
        except Ends:
            await assert_at_most_one_is_open(old, new)
        for log in (first, second):
            await die(log)
        for world, log in ((old, first), (new, second)):
            if world.tell_death is not None:
                world.tell_death(log.incarnation)
        await move(old, new)
        assert await contents(new.url) == held
        await assert_at_most_one_is_open(old, new)
        if over or number % 5 == 1:
            found = await go_on(new, ids)
            assert found["notes"] == ["one", "two", "three"]
            assert found["consumed"] == 3
    assert number > 8


async def assert_at_most_one_is_open(old: World, new: World) -> None:
    open_ones = 0
    for world in (old, new):
        log = await open_log(world.url, readonly=True)
        try:
            topic = "default.registry"
            await log.refresh((topic, 0))
            mark = copying.newest_mark(log, 0, log.end(topic, 0))
            open_ones += mark is None or not mark.closed if world is old else mark is not None and not mark.closed
        finally:
            await log.close()
    assert open_ones <= 1


@pytest.mark.parametrize(("kind", "dies_at"), [("memory", 4), ("file", 8), ("kafka", 8)])
async def test_a_copy_that_was_broken_off_can_be_given_up(place: NewWorld, kind: str, dies_at: int) -> None:
    old, new = place(kind), place("memory")
    ids = await live(old, 2)
    expected = {"notes": ["one", "two", "three"], "bought": "charged tea", "parked": ["early"]}
    counted = Counted(dies_at, written=True)
    first, second = await open_log(old.url), counted.watch(await open_log(new.url, partitions=3))
    with pytest.raises(Ends):
        await copy_between(first, second, lambda: copying._open_again(second, "default"), clock=old.clock)
    await die(first)
    await die(second)
    if old.tell_death is not None:
        old.tell_death(first.incarnation)
    with pytest.raises(LogMoved, match=r"is being moved to .*`gasoline log reopen`"):
        async with Gasoline.open(old.url):
            pass
    with pytest.raises(LogMoved, match=r"is a copy of .* that is not whole yet"):
        async with Gasoline.open(new.url):
            pass
    await reopen(old.url)
    with pytest.raises(CopyRefused, match="is not being moved from here"):
        await reopen(old.url)
    found = await go_on(old, ids)
    assert {name: found[name] for name in expected} == expected
    with pytest.raises(LogMoved):  # what was copied stays closed
        async with Gasoline.open(new.url):
            pass
    if dies_at == 4:  # so far there were events only, which are still the first of all there are
        await move(old, new)
        assert await contents(new.url) == await contents(old.url)
        return
    # The command from the inbox has been consumed meanwhile: it must not be there too. Another place gets what is right.
    with pytest.raises(CopyRefused, match="opy to a new place"):
        await move(old, new)
    await reopen(old.url)
    await move(old, place("memory"))


async def test_an_append_that_fails_ends_the_copy_and_it_goes_on_later(place: NewWorld) -> None:
    old, new = place("memory"), place("memory")
    await live(old, 2)
    first, second = await open_log(old.url), await open_log(new.url, partitions=2)
    for _ in range(2):
        await second.append([])
    second.fail_next(NoSpace)  # type: ignore[attr-defined]
    with pytest.raises(NoSpace):
        await copy_between(first, second, lambda: copying._open_again(second, "default"), clock=old.clock)
    await first.close()
    await second.close()
    await move(old, new)


# --- what was read again ----------------------------------------------------------------------------------------------------


class Wrong:
    """Shows a log otherwise than it is."""

    def __init__(self, log: Any, change: Callable[[Any], Any]) -> None:
        self._log = log
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, topic: str, *given: Any) -> Iterator[Any]:
        for record in self._log.read(topic, *given):
            shown = self._change(record) if topic == "default.events" else record
            if shown is not None:
                yield shown


def _other_value(record: Any) -> Any:
    return replace(record, value=record.value.replace(b"tea", b"tee")) if b"tea" in record.value else record


def _other_time(record: Any) -> Any:
    return replace(record, time_us=record.time_us + 1) if record.key.endswith("/2") else record


def _left_out(record: Any) -> Any:
    return None if record.key.endswith("/2") else record


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_other_value, r"record '[0-9a-f-]+/[0-9]+' of topic 'default.events' .*: the value differs"),
        (_other_time, "the time differs"),
        (_left_out, "the key differs|is not in partition"),
    ],
)
async def test_a_copy_that_is_not_the_same_is_told_and_not_opened(
    place: NewWorld, change: Callable[[Any], Any], named: str
) -> None:
    old, new = place("memory"), place("memory")
    await live(old, 2)
    first, second = await open_log(old.url), await open_log(new.url, partitions=2)

    @asynccontextmanager
    async def wrong() -> AsyncGenerator[Any]:
        yield Wrong(second, change)

    with pytest.raises(CopyRefused, match=named):
        await copy_between(first, second, wrong, clock=old.clock)
    await first.close()
    await second.close()
    with pytest.raises(LogMoved):
        async with Gasoline.open(new.url):
            pass


async def test_damage_of_the_old_place_is_an_error_that_names_where(place: NewWorld, tmp_path: Path) -> None:
    old, new = place("file"), place("memory")
    await live(old, 2)
    segment = Path(old.url.removeprefix("file:")) / "segments" / "0000000001.jsonl"
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 1
    segment.write_bytes(raw)
    with pytest.raises(LogCorrupt, match=r"segment 1 .*byte [0-9]+"):
        await move(old, new)


async def test_progress_is_told(place: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_TURN", 1)
    old, new = place("memory"), place("memory")
    await live(old, 2)
    told: list[tuple[str, int, int]] = []

    def tell(doing: str, done: int, total: int) -> None:
        told.append((doing, done, total))

    await move(old, new, 2, progress=tell)
    assert list(dict.fromkeys(doing for doing, _, _ in told)) == ["copying", "checking"]
    assert all(done <= total for _, done, total in told)
    assert (
        told[-1][1]
        == told[-1][2]
        == sum(len(one) for name, one in (await contents(old.url)).items() if name != "index")
    )
