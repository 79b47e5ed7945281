"""Every rule of filelog.md §3–4 that leaving out would lose or double records, each at the call where it matters.

Another handle acts in the middle of a handle's append or take-over: a hook of the disk runs it before a chosen call. A handle
whose heartbeat stands still is what a frozen process looks like from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gasoline_es.errors import Fenced, LogError, PartitionOwned
from gasoline_es.log.file.log import FileLog, open_file_log
from gasoline_es.log.port import Appended, Epoch, NewRecord, Offset, Outcome, Section
from gasoline_es.testing.faults import Call, FaultyDisk, Killed
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put

T = TypeVar("T")


class Clock:
    """A monotonic clock set by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend: another process's whole action between two calls of this one."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the coroutine suspended")


def freeze(log: FileLog) -> None:
    """Let the handle's heartbeat stand still."""
    log._still.set()


def before(disk: FaultyDisk, what: str, suffix: str, action: Callable[[], None]) -> None:
    """Run ``action`` once, before the next call of ``what`` on a path that ends with ``suffix``."""

    def hook(call: Call) -> None:
        if call.what == what and call.path.endswith(suffix):
            disk.before = None
            action()

    disk.before = hook


class Scene:
    """A log's directory with handles of several "processes". Everyone takes a frozen handle for silent after ``wait``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock()
        self.logs: list[FileLog] = []

    async def open(self, **options: Any) -> tuple[FileLog, FaultyDisk]:
        disk = FaultyDisk(str(self.directory))
        log = await open_file_log(str(self.directory), partitions=2, disk=disk, clock=self.clock, **options)
        self.logs.append(log)
        if log._writer is not None:
            # Appends stay on the loop's thread even where syncs are slow: `at_once` runs them to their end.
            log._writer._measured = lambda sync_s: None  # type: ignore[method-assign]
        return log, disk

    def freeze(self, frozen: FileLog, seen_by: FileLog) -> None:
        freeze(frozen)
        for partition in range(2):
            seen_by.owner(partition)
        self.clock.now_s += 10.0

    async def history(self) -> list[int]:
        """Return what every handle, a fresh one and one opened for reading count of partition 0; they must agree."""
        fresh, _ = await self.open()
        reader, _ = await self.open(readonly=True)
        found = {tuple(numbers(log.read(EVENTS, 0))) for log in self.logs if not log._closed}
        assert len(found) == 1, found
        await fresh.close()
        await reader.close()
        return list(found.pop())

    async def close(self) -> None:
        for log in self.logs:
            await log.close()


async def begin(directory: Path) -> tuple[Scene, FileLog, FaultyDisk, Epoch, FileLog, FaultyDisk]:
    """Return a scene in which A owns partition 0 and wrote 1 and 2, and B looks on."""
    scene = Scene(directory)
    a, a_disk = await scene.open()
    owned = await a.acquire(0)
    await put(a, owned.epoch, event(1), event(2))
    b, b_disk = await scene.open()
    return scene, a, a_disk, owned.epoch, b, b_disk


@pytest.mark.parametrize(
    ("what", "suffix"), [("write", ".jsonl"), ("datasync", ".jsonl"), ("write", ".end")], ids=["write", "sync", "end"]
)
async def test_a_take_over_before_the_end_is_published_voids_the_append(tmp_path: Path, what: str, suffix: str) -> None:
    """§3.1: publish, then look, then acknowledge (H2a); a taker reads `.end`, not a living writer's bytes (H2b)."""
    scene, a, a_disk, epoch, b, _ = await begin(tmp_path)
    scene.freeze(a, seen_by=b)
    before(a_disk, what, suffix, lambda: at_once(_take_and_put(b, 10)))
    assert isinstance(await put(a, epoch, event(3)), Fenced)
    assert await scene.history() == [1, 2, 10]
    await scene.close()
    assert await Scene(tmp_path).history() == [1, 2, 10]


async def test_what_a_taker_may_leave_out_is_not_shown_to_a_reader_of_what_is_final(tmp_path: Path) -> None:
    """§4: the taker has read how far its predecessor is published, which publishes once more; then the taker begins."""
    scene, a, _, epoch, b, b_disk = await begin(tmp_path)
    reader, _ = await scene.open(readonly=True, final=True)
    assert numbers(reader.read(EVENTS, 0)) == [1, 2]
    scene.freeze(a, seen_by=b)
    seen: list[tuple[bool, int, list[int]]] = []

    def publish() -> None:
        assert isinstance(at_once(put(a, epoch, event(3))), Fenced)
        fresh = FileLog(str(tmp_path), "default", None, readonly=True, final=True)
        for one in (reader, fresh):
            seen.append((one.undecided(EVENTS, 0), one.end(EVENTS, 0), numbers(one.read(EVENTS, 0))))
            assert one.undecided(EVENTS, 0)
        at_once(fresh.close())

    before(b_disk, "write", ".jsonl", publish)
    await _take_and_put(b, 10)

    assert [(end, found) for _, end, found in seen] == [(2, [1, 2]), (0, [])]
    assert numbers(reader.read(EVENTS, 0)) == [1, 2, 10]
    assert not reader.undecided(EVENTS, 0)
    assert await scene.history() == [1, 2, 10]
    await scene.close()


async def _take_and_put(log: FileLog, number: int, partition: int = 0) -> None:
    owned = await log.acquire(partition)
    assert isinstance(await put(log, owned.epoch, event(number, partition), partition=partition), Appended)


async def test_an_append_published_before_a_take_over_counts_though_it_is_fenced(tmp_path: Path) -> None:
    """§4.4: `Fenced` means undecided; here the taker's begin decides for it."""
    scene, a, _, epoch, b, _ = await begin(tmp_path)
    scene.freeze(a, seen_by=b)
    real = a._writer
    assert real is not None
    append = real.append

    def publish_then_freeze(drafts: Any) -> None:
        append(drafts)
        at_once(_take_and_put(b, 10))

    real.append = publish_then_freeze  # type: ignore[method-assign]
    assert isinstance(await put(a, epoch, event(3)), Fenced)
    assert await scene.history() == [1, 2, 3, 10]
    await scene.close()


async def test_a_reader_looks_at_the_epochs_after_the_published_ends(tmp_path: Path) -> None:
    """§4.3 (H1): what a fenced owner publishes after the taker read its end is never counted, not for a moment."""
    scene, a, _, epoch, b, b_disk = await begin(tmp_path)
    c, _ = await scene.open()
    assert numbers(c.read(EVENTS, 0)) == [1, 2]
    scene.freeze(a, seen_by=b)

    def late() -> None:
        assert isinstance(at_once(put(a, epoch, event(3))), Fenced)
        assert numbers(c.read(EVENTS, 0)) == [1, 2]
        assert c.end(EVENTS, 0) == 2
        assert numbers(a.read(EVENTS, 0)) == [1, 2]

    before(b_disk, "write", ".jsonl", late)
    await _take_and_put(b, 10)
    assert await scene.history() == [1, 2, 10]
    await scene.close()


async def test_a_dead_writers_bytes_count_beyond_a_stale_published_end(tmp_path: Path) -> None:
    """§3.3 (H3, H12): `.end` is unsynced; after a power loss it may be old, and the synced batches count all the same."""
    scene, a, _, epoch, b, b_disk = await begin(tmp_path)
    path = tmp_path / "segments" / "0000000001.end"
    stale = path.read_bytes()
    await put(a, epoch, event(3))
    await put(a, None, event(4, 1, INBOX))
    await a.crash()
    path.write_bytes(stale)
    b_disk.calls.clear()
    await _take_and_put(b, 10)
    calls = [(call.what, call.path) for call in b_disk.calls]
    # §3.3 (H4): a dead writer's bytes are made durable before anything rests on them.
    assert calls.index(("sync", "segments/0000000001.jsonl")) < calls.index(("write", "segments/0000000002.jsonl"))
    assert calls.index(("sync_directory", "segments")) < calls.index(("write", "segments/0000000002.jsonl"))
    assert await scene.history() == [1, 2, 3, 10]
    assert numbers(b.tail(INBOX, 1).poll()) == [4]
    await scene.close()


@pytest.mark.parametrize("end", [b"", b"x" * 256, b"\0" * 256], ids=["empty", "noise", "zeroes"])
async def test_an_unreadable_published_end_promises_nothing(tmp_path: Path, end: bytes) -> None:
    """§3.1."""
    scene, a, _, epoch, b, _ = await begin(tmp_path)
    await put(a, epoch, event(3))
    await a.crash()
    await b.close()
    (tmp_path / "segments" / "0000000001.end").write_bytes(end)
    assert await scene.history() == [1, 2, 3]
    await scene.close()


async def test_a_segment_may_hold_epochs_of_one_partition_with_anothers_between(tmp_path: Path) -> None:
    """§4.5 (H7): A, B, A: a section is judged by its own epoch."""
    scene, a, _, epoch, b, _ = await begin(tmp_path)
    scene.freeze(a, seen_by=b)
    await _take_and_put(b, 10)
    await put(a, None, event(99, 1, INBOX))
    assert isinstance(await put(a, epoch, event(3)), Fenced)
    await b.release(0)
    await _take_and_put(a, 11)
    assert [path.name for path in sorted((tmp_path / "segments").glob("*.jsonl"))] == [
        "0000000001.jsonl",
        "0000000002.jsonl",
    ]
    assert await scene.history() == [1, 2, 10, 11]
    await scene.close()


async def test_a_taker_reads_every_segment_of_its_predecessor(tmp_path: Path) -> None:
    """§4.1 (H8): a writer that rolled has several."""
    scene = Scene(tmp_path)
    a, _ = await scene.open(segment_bytes_max=800)
    owned = await a.acquire(0)
    for number in range(12):
        await put(a, owned.epoch, event(number))
    assert len(list((tmp_path / "segments").glob("*.jsonl"))) > 4
    b, _ = await scene.open()
    scene.freeze(a, seen_by=b)
    await _take_and_put(b, 20)
    assert await scene.history() == [*range(12), 20]
    await scene.close()


async def test_sections_of_one_batch_are_fenced_by_themselves(tmp_path: Path) -> None:
    """§2 (H10, H17): a section counts whole or not at all, independently of its neighbours."""
    scene, a, a_disk, epoch, b, _ = await begin(tmp_path)
    other = await a.acquire(1)
    scene.freeze(a, seen_by=b)
    before(a_disk, "write", ".end", lambda: at_once(_take_and_put(b, 10)))
    outcomes = await a.append(
        [
            Section(0, epoch, [event(3)]),
            Section(1, other.epoch, [event(4, 1)]),
            Section(0, None, [event(5, 0, INBOX)]),
        ]
    )
    assert [type(outcome) for outcome in outcomes] == [Fenced, Appended, Appended]
    assert await scene.history() == [1, 2, 10]
    assert numbers(b.read(EVENTS, 1)) == [4]
    assert await put(a, other.epoch, event(6, 1), partition=1) == Appended({EVENTS: Offset(1)})
    await scene.close()


async def test_a_command_sent_by_an_undecided_section_waits_for_the_begin(tmp_path: Path) -> None:
    """§4.7 (H11): it holds back the rest of its own writer's segment, and nothing else."""
    scene, a, _, epoch, b, b_disk = await begin(tmp_path)
    c, _ = await scene.open()
    tail = c.tail(INBOX, 1)
    await put(a, epoch, event(7, 1, INBOX))
    assert numbers(tail.poll()) == [7]
    scene.freeze(a, seen_by=b)

    def late() -> None:
        undecided = at_once(put(a, epoch, event(3), event(100, 1, INBOX)))
        assert isinstance(undecided, Fenced)
        at_once(put(a, None, event(101, 1, INBOX)))
        at_once(put(c, None, event(102, 1, INBOX)))
        assert numbers(tail.poll()) == [102]
        again = c.tail(INBOX, 1, tail.position)
        assert again.poll() == []

    before(b_disk, "write", ".jsonl", late)
    await _take_and_put(b, 10)
    position = tail.position
    assert numbers(tail.poll()) == [101]
    assert numbers(c.tail(INBOX, 1, position).poll()) == [101]
    assert sorted(numbers(c.tail(INBOX, 1).poll())) == [7, 101, 102]
    await scene.close()


async def test_a_taker_that_begins_too_late_is_void(tmp_path: Path) -> None:
    """§4.1 (H15): those passed over are void for ever, whatever they still write."""
    scene, a, _, _, b, b_disk = await begin(tmp_path)
    c, _ = await scene.open()
    scene.freeze(a, seen_by=b)

    def overtaken() -> None:
        scene.freeze(b, seen_by=c)
        at_once(_take_and_put(c, 20))

    before(b_disk, "write", ".jsonl", overtaken)
    with pytest.raises((Fenced, PartitionOwned)):
        await b.acquire(0)
    assert await scene.history() == [1, 2, 20]
    owner = b.owner(0)
    assert owner is not None
    assert (owner.epoch, owner.incarnation) == (3, c.incarnation)
    await scene.close()


async def test_a_taker_that_dies_before_its_begin_delays_nobody(tmp_path: Path) -> None:
    """§4.6: a dead taker's epoch is free at once, and what was published below it counts."""
    scene, a, _, epoch, b, b_disk = await begin(tmp_path)
    scene.freeze(a, seen_by=b)
    b_disk.before = lambda call: _die(call, "write", ".jsonl")
    with pytest.raises(Killed):
        await b.acquire(0)
    b_disk.before = None
    await b.crash()
    assert isinstance(await put(a, epoch, event(3)), Fenced)
    c, _ = await scene.open()
    assert numbers(c.read(EVENTS, 0)) == [1, 2, 3]
    await _take_and_put(c, 20)
    assert await scene.history() == [1, 2, 3, 20]
    await scene.close()


def _die(call: Call, what: str, suffix: str) -> None:
    if call.what == what and call.path.endswith(suffix):
        raise Killed


async def test_an_undecided_epoch_of_a_silent_taker_is_free_after_the_wait(tmp_path: Path) -> None:
    """§4.6: so is an undecided epoch."""
    scene, a, _, _, b, b_disk = await begin(tmp_path)
    c, _ = await scene.open()
    scene.freeze(a, seen_by=b)

    def look() -> None:
        assert b._incarnation is not None
        b._incarnation.beat()
        freeze(b)
        with pytest.raises(PartitionOwned):
            at_once(c.acquire(0))
        raise Killed

    before(b_disk, "write", ".jsonl", look)
    with pytest.raises(Killed):
        await b.acquire(0)
    scene.clock.now_s += 9.9
    with pytest.raises(PartitionOwned):
        await c.acquire(0)
    scene.clock.now_s += 0.2
    await _take_and_put(c, 20)
    assert numbers(c.read(EVENTS, 0)) == [1, 2, 20]


async def test_epoch_files_are_never_removed_and_incarnations_never_repeat(tmp_path: Path) -> None:
    """§1, §4.6 (H14, H16)."""
    names: list[str] = []
    for _ in range(5):
        log, _ = await Scene(tmp_path).open()
        await log.acquire(0)
        names.append(log.incarnation)
        await log.close()
    assert len(set(names)) == 5
    assert sorted(path.name for path in (tmp_path / "epochs/default/0").iterdir()) == [f"{n:010d}" for n in range(1, 6)]
    assert list((tmp_path / "workers").iterdir()) == []


async def test_a_living_owner_keeps_its_partition_as_long_as_its_heart_beats(tmp_path: Path) -> None:
    """§4.6: the observer's own monotonic clock times the heartbeats it sees."""
    scene, a, _, epoch, b, _ = await begin(tmp_path)
    freeze(a)
    for _ in range(5):
        owner = b.owner(0)
        assert owner is not None
        assert owner.alive
        scene.clock.now_s += 9.0
        assert a._incarnation is not None
        a._incarnation.beat()
        with pytest.raises(PartitionOwned):
            await b.acquire(0)
    scene.clock.now_s += 10.0
    owner = b.owner(0)
    assert owner is not None
    assert not owner.alive
    await _take_and_put(b, 10)
    assert isinstance(await put(a, epoch, event(3)), Fenced)
    await scene.close()


async def test_two_takers_of_one_epoch_are_told_apart_by_link(tmp_path: Path) -> None:
    """§4.1: link(2) fails if the name exists."""
    scene, a, _, _, b, b_disk = await begin(tmp_path)
    c, _ = await scene.open()
    await a.release(0)
    before(b_disk, "link", "0000000002", lambda: at_once(_take_and_put(c, 20)))
    with pytest.raises(PartitionOwned) as caught:
        await b.acquire(0)
    assert caught.value.owner == c.incarnation
    assert await scene.history() == [1, 2, 20]
    await scene.close()


async def test_a_stale_epoch_is_refused_without_a_write(tmp_path: Path) -> None:
    """The port: `Fenced` for an epoch this handle does not hold."""
    scene, a, a_disk, epoch, _, _ = await begin(tmp_path)
    await a.release(0)
    a_disk.calls.clear()
    outcome: Outcome = await put(a, epoch, event(3))
    assert isinstance(outcome, Fenced)
    assert a_disk.calls == []
    await scene.close()


async def test_a_position_of_another_log_is_refused(tmp_path: Path) -> None:
    """The port: a position belongs to its log."""
    scene, a, _, _, _, _ = await begin(tmp_path)
    from gasoline_es.log.port import Position

    with pytest.raises(LogError):
        a.tail(INBOX, 0, Position({"finished": [[1, 9]], "at": {}}))
    with pytest.raises(LogError):
        a.tail(INBOX, 0, Position({"at": {"1": "x"}}))
    await scene.close()


async def test_the_tail_of_a_small_queue_finds_what_it_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail that is not polled forgets what waits and finds it again."""
    monkeypatch.setattr("gasoline_es.log.file.tail._PENDING_MAX", 3)
    scene, a, _, _, b, _ = await begin(tmp_path)
    tail = b.tail(INBOX, 0)
    tail.poll()
    for number in range(10):
        await put(a, None, NewRecord(INBOX, 0, f"x/{number}", None, 0))
        b.end(EVENTS, 0)
    assert numbers(tail.poll()) == list(range(10))
    await put(a, None, NewRecord(INBOX, 0, "x/10", None, 0))
    assert numbers(tail.poll()) == [10]
    await scene.close()


async def test_acquiring_twice_at_once_takes_one_epoch(tmp_path: Path) -> None:
    """The port: a handle does not fence itself."""
    log = await open_file_log(str(tmp_path))
    first, second = await asyncio.gather(log.acquire(0), log.acquire(0))
    assert first == second
    await log.close()


async def test_what_a_writer_published_just_before_it_died_is_found_in_a_segment_made_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§4.1: dead is looked at first, and the segments are listed after that."""
    scene = Scene(tmp_path)
    a, _ = await scene.open(segment_bytes_max=900)
    owned = await a.acquire(0)
    await put(a, owned.epoch, event(1))
    b, _ = await scene.open()
    assert numbers(b.read(EVENTS, 0)) == [1]
    alive = b._observer.alive
    last_words = [2, 3, 4, 5]

    def dies_now(name: str) -> bool:
        while last_words:
            at_once(put(a, owned.epoch, event(last_words.pop(0))))
            if not last_words:
                assert (tmp_path / "segments/0000000002.jsonl").exists()
                at_once(a.crash())
        return alive(name)

    monkeypatch.setattr(b._observer, "alive", dies_now)
    taken = await b.acquire(0)
    assert dict(taken.ends) == {EVENTS: 5}
    await put(b, taken.epoch, event(10))
    assert await scene.history() == [1, 2, 3, 4, 5, 10]
    await scene.close()


async def test_an_undecided_section_holds_back_its_writers_later_segments_too(tmp_path: Path) -> None:
    """The port: oldest first per writer, also where the writer has rolled meanwhile."""
    scene = Scene(tmp_path)
    a, _ = await scene.open(segment_bytes_max=1)
    owned = await a.acquire(0)
    b, b_disk = await scene.open()
    c, _ = await scene.open()
    tail = c.tail(INBOX, 1)
    scene.freeze(a, seen_by=b)

    def late() -> None:
        assert isinstance(at_once(put(a, owned.epoch, event(100, 1, INBOX))), Fenced)
        at_once(put(a, None, event(101, 1, INBOX)))
        at_once(put(c, None, event(102, 1, INBOX)))
        assert numbers(tail.poll()) == [102]
        assert numbers(c.tail(INBOX, 1).poll()) == [102]

    before(b_disk, "write", ".jsonl", late)
    await _take_and_put(b, 10)
    assert numbers(tail.poll()) == [101]
    await scene.close()


async def test_a_process_that_does_not_move_is_no_member(tmp_path: Path) -> None:
    """§4.6: a frozen process holds its lock, and is counted out once its heart was still for 10 s by the observer's clock."""
    scene, a, _, _, b, _ = await begin(tmp_path)
    a.announce({"version": 1})
    freeze(a)
    assert [member.incarnation for member in b.members()] == [a.incarnation]
    scene.clock.now_s += 9.9
    assert len(b.members()) == 1
    scene.clock.now_s += 0.1
    assert b.members() == []
    assert a._incarnation is not None
    a._incarnation.beat()
    assert [dict(member.about) for member in b.members()] == [{"version": 1}]
    await scene.close()


async def test_members_are_of_one_namespace_and_read_in_the_middle_of_a_beat_are_passed_over(tmp_path: Path) -> None:
    """§4.6: the heartbeat file is rewritten in place, and not synced."""
    scene, a, _, _, b, _ = await begin(tmp_path)
    other = await open_file_log(str(tmp_path), namespace="other")
    a.announce({"version": 1})
    other.announce({"version": 2})
    assert [dict(member.about) for member in b.members()] == [{"version": 1}]
    assert [dict(member.about) for member in other.members()] == [{"version": 2}]
    assert a._incarnation is not None
    a._incarnation._state.content = b'{"incarnation":'
    assert b.members() == []
    a._incarnation.beat()
    assert len(b.members()) == 1
    await other.close()
    await scene.close()
