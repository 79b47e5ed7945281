"""The cleaner killed after each call of the disk, losing power, out of space; two of them; and random lives with cleanings."""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gasoline_es.errors import Fenced, LogError, NoSpace, PartitionOwned
from gasoline_es.log.file.cleaning import Pace
from gasoline_es.log.file.log import FileLog, open_file_log
from gasoline_es.log.port import Epoch, Position
from gasoline_es.testing.faults import Call, FaultyDisk, Killed, UnsyncedDisk
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put
from tests.log.cleaned import (
    HOUR_US,
    INDEX,
    NOW_US,
    clean,
    consumed,
    happened,
    keyed,
    life,
    newest,
    offsets,
    problems,
    pruned,
    rules,
    taken,
    tombstone,
)
from tests.log.test_crashes import fingerprint, segment


async def _something_to_clean(directory: Path) -> None:
    """Three segments: values, then a tombstone and a pruning, then what replaces some of the values."""
    old = NOW_US - 100 * HOUR_US
    await life(
        directory, [keyed("k", 1), keyed("a", 1), happened("w", 1), happened("x", 1)], [happened("w", 2)], partitions=1
    )
    await life(directory, [tombstone("k", time_us=old), pruned("w", 3, [], time_us=old)], [keyed("b", 1)])
    await life(directory, [keyed("a", 2)], [happened("x", 2)])


def _state(log: FileLog) -> tuple[dict[str, bytes], list[str]]:
    """What folds of the log know: the newest of each key; the events of workflows that are not pruned."""
    gone = {
        r.key.partition("/")[0] for r in log.read(EVENTS, 0) if r.value is not None and b"workflow.pruned" in r.value
    }
    left = [r.key for r in log.read(EVENTS, 0) if r.key.partition("/")[0] not in gone]
    return newest(log.read(INDEX, 0)), left


@pytest.mark.parametrize("power", [False, True])
async def test_killed_after_any_call_the_log_folds_to_the_same_and_the_next_cleaning_ends_alike(
    tmp_path: Path, power: bool
) -> None:
    """filelog.md §5, required.md B05: at each moment there is one whole file of each segment."""
    origin = tmp_path / "origin"
    await _something_to_clean(origin)
    log = await open_file_log(str(origin), readonly=True)
    expected = _state(log)
    ends = log.end(EVENTS, 0), log.end(INDEX, 0)
    await log.close()
    assert expected[0].keys() == {"a", "b"}
    finals: set[tuple[int, ...]] = set()
    kills = cut = 0
    while True:
        copy = tmp_path / "copy"
        shutil.copytree(origin, copy)
        disk = FaultyDisk(str(copy))
        killed = False
        for _ in range(2):  # the second one removes the tombstones
            log = await open_file_log(str(copy), disk=disk)
            if power:
                for path in copy.rglob("*"):
                    if path.is_dir():
                        disk.sync_directory(str(path))
                    else:
                        disk._remember(str(path))
            disk.kill_after = len(disk.calls) + cut - kills if not killed else None
            before = len(disk.calls)
            try:
                await log.compact(rules())
            except Killed:
                killed = True
            disk.kill_after = None
            kills += 0 if killed else len(disk.calls) - before
            await log.crash()
            if killed:
                break
        if power:
            disk.lose_power(Random(cut))
        again = await open_file_log(str(copy))
        assert _state(again) == expected, cut
        assert (again.end(EVENTS, 0), again.end(INDEX, 0)) == ends
        assert problems(again) == [], cut
        for _ in range(3):
            await again.compact(rules())
        assert _state(again) == expected, cut
        assert problems(again) == [], cut
        assert list(copy.glob("segments/*.jsonl.tmp")) == []
        finals.add(tuple(offsets(again.read(EVENTS, 0)) + offsets(again.read(INDEX, 0))))
        await again.close()
        shutil.rmtree(copy)
        if not killed:
            break
        cut, kills = cut + 1, 0
    assert cut > 25, "each of the calls of two cleanings"
    assert len(finals) == 1


def _behind(disk: FaultyDisk, renamed: str) -> Callable[[Call], None]:
    """Kill at the first call after a file was renamed to that."""

    def kill(_: Call) -> None:
        if Call("rename", renamed) in disk.calls[:-1]:
            raise Killed

    return kill


async def test_a_tombstone_never_goes_before_what_it_took_back_is_surely_gone(tmp_path: Path) -> None:
    """required.md B05: killed behind a rename, cleaned by another, killed behind a rename again, then the power is lost."""
    await life(tmp_path / "log", [keyed("k", 1)], partitions=1)
    await life(tmp_path / "log", [tombstone("k")])
    await life(tmp_path / "log", [keyed("other", 1)])
    for seed in range(30):
        copy = tmp_path / f"copy{seed}"
        shutil.copytree(tmp_path / "log", copy)
        disk = FaultyDisk(str(copy))
        for path in copy.rglob("*"):
            disk.sync_directory(str(path)) if path.is_dir() else disk._remember(str(path))
        for number in (1, 2):
            log = await open_file_log(str(copy), disk=disk)

            disk.before = _behind(disk, f"segments/000000000{number}.jsonl")
            with pytest.raises(Killed):
                await log.compact(rules())
            disk.before = None
            await log.crash()
        disk.lose_power(Random(seed))
        again = await open_file_log(str(copy))
        assert newest(again.read(INDEX, 0)).keys() == {"other"}, seed
        await again.close()


async def test_what_is_renamed_is_synced_before_and_the_directory_after_and_the_horizon_is_raised_first(
    tmp_path: Path,
) -> None:
    """required.md B03, filelog.md §5: the order of the calls."""
    await _something_to_clean(tmp_path)
    disk = FaultyDisk(str(tmp_path))
    log = await open_file_log(str(tmp_path), disk=disk)
    await log.compact(rules())
    first = [
        call for call in disk.calls if ".jsonl" in call.path or "horizon" in call.path or call.what == "sync_directory"
    ]
    assert not any("horizon" in call.path for call in first), "no tombstone goes together with what it took back"
    start = len(disk.calls)
    await log.compact(rules())
    calls = disk.calls[start:]
    assert calls[0] == Call("sync_directory", "segments"), (
        "what was renamed before is durable before anything rests on it"
    )
    renamed = calls.index(Call("rename", "segments/0000000002.jsonl"))
    assert Call("sync", "segments/0000000002.jsonl.tmp") in calls[:renamed]
    raised = calls.index(Call("rename", "horizon.json"))
    assert calls.index(Call("sync", "horizon.json.tmp")) < raised < renamed
    assert calls[raised + 1] == Call("sync_directory", ".")
    assert calls[renamed + 1] == Call("sync_directory", "segments")
    await log.close()


async def test_a_full_disk_leaves_the_original_and_the_next_cleaning_does_it(tmp_path: Path) -> None:
    """required.md B04: no room for what is left of a segment."""
    await _something_to_clean(tmp_path)
    disk = FaultyDisk(str(tmp_path))
    log = await open_file_log(str(tmp_path), disk=disk)
    before = {path: hash_ for path, hash_ in fingerprint(tmp_path).items() if path.startswith("segments")}
    for space in (0, 1, 100, 600):
        disk.space = space
        with pytest.raises(NoSpace):
            await log.compact(rules())
        disk.space = None
        assert {p: h for p, h in fingerprint(tmp_path).items() if p.startswith("segments")} == before
    disk.fail_once("sync", ".jsonl.tmp")
    with pytest.raises(LogError, match="as it was"):
        await log.compact(rules())
    disk.before = None
    disk.fail_once("rename", ".jsonl", errno.EIO)
    with pytest.raises(LogError):
        await log.compact(rules())
    disk.before = None
    assert {p: h for p, h in fingerprint(tmp_path).items() if p.startswith("segments")} == before
    assert (await log.compact(rules())).rewritten == 1
    await log.close()


async def test_only_one_cleaner_works_at_a_time_and_the_other_is_told_at_once(tmp_path: Path) -> None:
    """filelog.md §5: under one kernel lock, however long its holder keeps still."""
    await _something_to_clean(tmp_path)
    one, two = await open_file_log(str(tmp_path)), await open_file_log(str(tmp_path))
    seen: list[str] = []

    def frozen(done: int, total: int) -> None:
        if not seen:
            seen.append("")
            seen.append(asyncio.run(_attempt(str(tmp_path))))

    report = await one.compact(rules(), progress=frozen)
    assert seen == ["", "another"]
    assert report.by == "log"
    assert report.rewritten > 0
    assert (await two.compact(rules())).by == "log"
    await one.close()
    await two.close()


async def _attempt(directory: str) -> str:
    log = await open_file_log(directory, disk=UnsyncedDisk())
    report = await log.compact(rules())
    await log.close()
    return report.by


async def test_a_cancelled_cleaning_stops_between_two_batches_and_leaves_no_trace(tmp_path: Path) -> None:
    await _something_to_clean(tmp_path)
    log = await open_file_log(str(tmp_path))
    before = {path: hash_ for path, hash_ in fingerprint(tmp_path).items() if path.startswith("segments")}
    loop, under_way = asyncio.get_running_loop(), asyncio.Event()
    # A byte in ten seconds: it waits for its turn at the first batch, until it is told to stop.
    cleaning = asyncio.create_task(
        log.compact(
            rules(), bytes_per_s=0.1, progress=lambda done, total: loop.call_soon_threadsafe(under_way.set) and None
        )
    )
    await under_way.wait()
    cleaning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cleaning
    assert {path: hash_ for path, hash_ in fingerprint(tmp_path).items() if path.startswith("segments")} == before
    assert (await log.compact(rules())).rewritten == 1
    await log.close()


def test_the_cleaner_reads_no_faster_than_it_may() -> None:
    """The time that it waits for is that of the bytes it has read."""
    now = [0.0]
    pace = Pace(1_000.0, lambda: now[0])
    waited: list[float] = []

    def wait(timeout: float | None = None) -> bool:
        assert timeout is not None
        waited.append(timeout)
        now[0] += timeout
        return False

    pace.stop.wait = wait  # type: ignore[method-assign]
    for _ in range(50):
        pace.spend(500)
    assert 24.0 <= now[0] <= 25.0
    assert sum(waited) == pytest.approx(now[0])


# --- random lives -----------------------------------------------------------------------------------------------------

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["set", "set", "delete", "happen", "prune"]), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.sampled_from(["send", "consume", "look"]), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.sampled_from(["take", "release", "die", "reopen", "freeze"]), st.integers(0, 1), st.just(0)),
        st.tuples(st.sampled_from(["clean", "clean", "clock"]), st.integers(0, 1), st.integers(-60, 60)),
        st.tuples(st.just("killed"), st.integers(0, 1), st.integers(0, 30)),
    ),
    min_size=10,
    max_size=60,
)


class Model:
    """What was acknowledged, and two handles with their readers, which go on through every cleaning."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.disk = FaultyDisk(directory)
        self.logs: list[FileLog] = []
        self.epochs: list[Epoch | None] = [None, None]
        self.now_us = NOW_US
        self.monotonic_s = 0.0
        self.keys: dict[str, int] = {}
        self.happened: dict[str, int] = defaultdict(int)
        self.life: dict[str, int] = defaultdict(int)
        self.unsure: set[str] = set()
        self.sent: list[int] = []
        self.read: list[int] = []
        self.position = Position({})
        self.next = 0
        self.highest = -1

    async def open(self) -> FileLog:
        return await open_file_log(
            self.directory, partitions=1, segment_bytes_max=1_200, disk=self.disk, clock=lambda: self.monotonic_s
        )

    async def step(self, what: str, who: int, amount: int) -> None:
        log = self.logs[who]
        name = f"k{amount}"
        match what:
            case "set" | "delete" | "happen" | "prune":
                await self._write(who, what, name)
            case "send":
                self.next += 1
                await put(log, None, event(self.next, 0, INBOX))
                self.sent.append(self.next)
            case "consume":
                await self._consume(who)
            case "take":
                await self._take(who)
            case "release":
                await log.release(0)
                self.epochs[who] = None
            case "freeze":
                self.logs[1 - who].owner(0)
                self.monotonic_s += 10.0
                other = self.logs[1 - who]._incarnation
                assert other is not None
                other.beat()
            case "die" | "reopen":
                await (log.crash() if what == "die" else log.close())
                self.logs[who], self.epochs[who] = await self.open(), None
            case "clock":
                self.now_us += amount * HOUR_US
            case "clean":
                await log.compact(rules(self.now_us))
                self.look()
            case "killed":
                self.disk.kill_after = len(self.disk.calls) + amount
                with suppress(Killed):
                    await log.compact(rules(self.now_us))
                self.disk.kill_after = None
                self.look()
            case _:
                self.look()

    async def _take(self, who: int) -> None:
        with suppress(PartitionOwned, Fenced):
            self.epochs[who] = await taken(self.logs[who])

    async def _write(self, who: int, what: str, name: str) -> None:
        if self.epochs[who] is None:
            await self._take(who)
        epoch = self.epochs[who]
        if epoch is None:
            return
        self.next += 1
        workflow = f"{name}.{self.life[name]}"
        seq = self.happened[workflow] + 1
        new = {
            "set": keyed(name, self.next, time_us=self.now_us),
            "delete": tombstone(name, time_us=self.now_us),
            "happen": happened(workflow, seq, time_us=self.now_us),
            "prune": pruned(workflow, seq, [], time_us=self.now_us),
        }[what]
        outcome = await put(self.logs[who], epoch, new)
        if isinstance(outcome, LogError):
            self.epochs[who] = None
            self.unsure.add(workflow if what in ("happen", "prune") else name)
            self.life[name] += 1  # nobody knows what its next event would be
            return
        for offset in outcome.offsets.values():
            assert offset >= 0
        self.unsure.discard(name) if what in ("set", "delete") else None
        match what:
            case "set":
                self.keys[name] = self.next
            case "delete":
                self.keys.pop(name, None)
            case "happen":
                self.happened[workflow] = seq
            case _:
                self.happened.pop(workflow, None)
                self.life[name] += 1

    async def _consume(self, who: int) -> None:
        if self.epochs[who] is None:
            await self._take(who)
        epoch = self.epochs[who]
        if epoch is None:
            return
        tail = self.logs[who].tail(INBOX, 0, self.position)
        found = numbers(tail.poll(2))
        if not isinstance(await put(self.logs[who], epoch, consumed(tail.position)), LogError):
            self.read += found
            self.position = tail.position

    def look(self) -> None:
        for log in self.logs:
            state = newest(log.read(INDEX, 0))
            known = {key: int(value.split(b":")[1].split(b",")[0]) for key, value in state.items()}
            sure = {key for key in known | self.keys if key not in self.unsure}
            assert {key: known.get(key) for key in sure} == {key: self.keys.get(key) for key in sure}
            gone = {
                r.key.rpartition("/")[0]
                for r in log.read(EVENTS, 0)
                if r.value is not None and b"workflow.pruned" in r.value
            }
            left: dict[str, int] = defaultdict(int)
            for record in log.read(EVENTS, 0):
                workflow = record.key.rpartition("/")[0]
                if workflow not in gone:
                    left[workflow] += 1
            for workflow in {*left, *self.happened} - self.unsure:
                assert left.get(workflow, 0) == self.happened.get(workflow, 0), workflow
            rest = numbers(log.tail(INBOX, 0, self.position).poll())
            assert sorted(self.read + rest) == self.sent
            assert set(rest) <= set(numbers(log.tail(INBOX, 0).poll()))
            assert log.end(EVENTS, 0) >= self.highest
            self.highest = max(self.highest, log.end(EVENTS, 0))


async def _live(steps: list[tuple[str, int, int]], directory: str) -> None:
    model = Model(directory)
    model.logs = [await model.open(), await model.open()]
    for what, who, amount in steps:
        await model.step(what, who, amount)
    model.look()
    for log in model.logs:
        await log.close()
    await clean(directory, rules(model.now_us))
    reader = await open_file_log(directory, readonly=True)
    model.logs = [reader]
    model.look()
    assert problems(reader) == []
    await reader.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(steps=_STEPS)
def test_whatever_happens_a_cleaned_log_folds_to_what_was_acknowledged(steps: list[tuple[str, int, int]]) -> None:
    """filelog.md §5, required.md B05: cleanings, some of them killed, between take-overs, deaths and clocks that go back."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_live(steps, directory))


async def test_clocks_that_go_back_and_records_from_the_future_bring_nothing_back(tmp_path: Path) -> None:
    """required.md B05, its case: again and again, in every order, killed between two segments."""
    year = 365 * 24 * HOUR_US
    await life(tmp_path / "log", [keyed("k", 1, time_us=NOW_US)], partitions=1)
    await life(tmp_path / "log", [keyed("other", 1, time_us=NOW_US + year), keyed("k", 2, time_us=NOW_US - year)])
    await life(tmp_path / "log", [tombstone("k", time_us=NOW_US - 2 * year)])
    await life(tmp_path / "log", [keyed("other", 2, time_us=NOW_US)])
    for seed in range(12):
        random, copy = Random(seed), tmp_path / f"copy{seed}"
        shutil.copytree(tmp_path / "log", copy)
        for _ in range(6):
            disk = FaultyDisk(str(copy))
            log = await open_file_log(str(copy), disk=disk)
            disk.kill_after = len(disk.calls) + random.randrange(40)
            with suppress(Killed):
                await log.compact(rules(NOW_US + random.randrange(-2, 2) * year))
            disk.kill_after = None
            assert newest(log.read(INDEX, 0)).keys() == {"other"}, seed
            assert offsets(log.read(INDEX, 0))[-1] == 4
            await log.crash()
        assert not segment(copy, 9).exists()
