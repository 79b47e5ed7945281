"""What the verified mark may vouch for, and that it vouches for nothing else (decision 0032)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gasoline_es.errors import LogCorrupt
from gasoline_es.log.file.disk import Disk, Status
from gasoline_es.log.file.lines import with_head
from gasoline_es.log.file.log import FileLog
from gasoline_es.log.port import Appended, Position, Problem, Tail
from gasoline_es.testing.faults import Call, CountingDisk, FaultyDisk, UnsyncedDisk
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put
from tests.log.test_crashes import fingerprint, opened, segment

LONG = b'"%b"' % (b"z" * 400)


async def live(directory: Path, first: int, count: int = 8, *, killed: bool = False, **options: object) -> FileLog:
    """Append so many events, and as many to an inbox, in a life of its own; it is over on return."""
    options = {"partitions": 2, "disk": UnsyncedDisk(), "segment_bytes_max": 4_500} | options
    log = await opened(directory, **options)
    owned = await log.acquire(0)
    for number in range(first, first + count):
        outcome = await put(log, owned.epoch, event(number, value=LONG), event(number, 1, INBOX, LONG))
        assert isinstance(outcome, Appended)
    if killed:
        await log.crash()
        last = max(directory.glob("segments/*.jsonl"))  # those before it are stamped
        os.utime(last, ns=(0, last.stat().st_mtime_ns - 10**9))  # that long ago, as it is when a new process comes
    else:
        await log.close()
    return log


async def grown(directory: Path) -> list[int]:
    """Make a log of three lives, one of them killed, and open it once more, so that all of it is vouched for."""
    for life in range(3):
        await live(directory, 8 * life, killed=life == 1)
    await (await opened(directory, disk=UnsyncedDisk())).close()
    return list(range(24))


def changed_in_place(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change a file as a disk would that rots: the file system knows nothing of it."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    change(data)
    with path.open("r+b") as file:
        file.write(data)
        file.truncate(len(data))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip(of: bytes, *, last: bool = False) -> Callable[[bytearray], None]:
    """Flip a bit in the middle of the first (or last) place where these bytes are."""

    def change(data: bytearray) -> None:
        data[(data.rindex(of) if last else data.index(of)) + len(of) // 2] ^= 1

    return change


async def looked(directory: Path) -> CountingDisk:
    """Open the log for writing, and say what was read for it."""
    disk = CountingDisk(str(directory))
    await (await opened(directory, disk=disk)).crash()
    return disk


def bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("segments/*.jsonl"))


async def read_whole(directory: Path) -> bool:
    """Whether an opening for writing reads all that is in the segments."""
    return (await looked(directory)).read_of(".jsonl") >= bytes_of(directory)


# --- what it saves ----------------------------------------------------------------------------------------------------


async def test_an_opening_reads_two_lines_of_a_segment_that_is_vouched_for(tmp_path: Path) -> None:
    expected = await grown(tmp_path)
    disk = await looked(tmp_path)
    segments = sorted(tmp_path.glob("segments/*.jsonl"))
    assert len(segments) > 6
    for path in segments:
        lines = path.read_bytes().splitlines(keepends=True)
        last = next(line for line in reversed(lines) if line.startswith(b'{"batch"'))
        assert disk.bytes[f"segments/{path.name}"] == len(lines[0]) + len(last)
    assert disk.read_of(".index") == disk.read_of(".end") == 0
    log = await opened(tmp_path)
    assert numbers(log.read(EVENTS, 0)) == expected
    assert numbers(log.tail(INBOX, 1).poll()) == expected
    await log.close()


async def test_a_writer_vouches_for_what_it_wrote_as_soon_as_a_segment_is_complete(tmp_path: Path) -> None:
    """A process that runs for months leaves nothing to be verified but its last segment, and closed well not even that."""
    await (await opened(tmp_path, partitions=2)).close()
    await live(tmp_path, 0, 40)
    assert len(list(tmp_path.glob("segments/*.jsonl"))) > 10
    disk = await looked(tmp_path)
    assert disk.read_of(".jsonl") < bytes_of(tmp_path) / 3
    assert not list(tmp_path.glob("verified/0*.json")), "taken into the mark of the log"


async def test_what_a_killed_process_left_is_verified_by_the_next_opening_and_then_vouched_for(tmp_path: Path) -> None:
    await grown(tmp_path)
    await live(tmp_path, 24, killed=True)
    last = max(tmp_path.glob("segments/*.jsonl"))
    before, after = await looked(tmp_path), await looked(tmp_path)
    assert before.bytes[f"segments/{last.name}"] >= last.stat().st_size
    assert 0 < after.bytes[f"segments/{last.name}"] < last.stat().st_size / 2
    changed_in_place(last, flip(b"zzz"))
    shutil.rmtree(tmp_path / "verified")
    with pytest.raises(LogCorrupt):
        await opened(tmp_path)


async def test_a_killed_processes_last_bytes_are_vouched_for_by_nobody_before(tmp_path: Path) -> None:
    await grown(tmp_path)
    await live(tmp_path, 24, killed=True)
    last = max(tmp_path.glob("segments/*.jsonl"))
    changed_in_place(last, flip(b"zzz"))
    with pytest.raises(LogCorrupt) as caught:
        await opened(tmp_path)
    assert caught.value.segment == int(last.stem)


async def test_nobody_vouches_for_what_another_process_wrote_meanwhile(tmp_path: Path) -> None:
    """Its headers were walked; the bodies were not read."""
    await grown(tmp_path)
    one = await opened(tmp_path)
    await live(tmp_path, 24)
    for claim in tmp_path.glob("verified/0*.json"):
        claim.unlink()
    assert one.end(EVENTS, 0) == 32
    await put(one, None, event(99, 1, INBOX))
    await one.close()
    changed_in_place(sorted(tmp_path.glob("segments/*.jsonl"))[-3], flip(b"zzz"))
    with pytest.raises(LogCorrupt):
        await opened(tmp_path)


async def test_a_segment_of_a_writer_is_vouched_for_only_with_all_before_it(tmp_path: Path) -> None:
    """What an epoch says where it begins is needed for what it says later."""
    await (await opened(tmp_path, partitions=2)).close()
    await live(tmp_path, 0, 40)
    claims = sorted(tmp_path.glob("verified/0*.json"))
    claims[3].unlink()
    disk = await looked(tmp_path)
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("segments/*.jsonl")}
    whole = [int(name[:10]) for name, size in sizes.items() if disk.bytes[f"segments/{name}"] >= size]
    assert min(whole) == int(claims[3].stem)
    assert (await looked(tmp_path)).read_of(".jsonl") < bytes_of(tmp_path) / 3


async def test_a_claim_that_does_not_fit_costs_its_own_segment_and_all_behind_it_of_its_writer(tmp_path: Path) -> None:
    await grown(tmp_path)
    await live(tmp_path, 24)
    await live(tmp_path, 32)
    claims = sorted(tmp_path.glob("verified/0*.json"))
    first = segment(tmp_path, int(claims[0].stem))
    os.utime(first, ns=(0, first.stat().st_mtime_ns + 10**6))
    disk = await looked(tmp_path)
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("segments/*.jsonl")}
    whole = {name for name, size in sizes.items() if disk.bytes[f"segments/{name}"] >= size}
    writers = {
        path.name: json.loads(path.read_bytes().splitlines()[0])["writer"] for path in first.parent.glob("*.jsonl")
    }
    assert whole == {name for name, writer in writers.items() if writer == writers[first.name]}


async def test_opening_for_reading_uses_the_mark_and_writes_nothing(tmp_path: Path) -> None:
    expected = await grown(tmp_path)
    await live(tmp_path, 24, killed=True)
    for changed in (False, True):
        if changed:
            shutil.copytree(tmp_path / "segments", tmp_path / "copy")
            shutil.rmtree(tmp_path / "segments")
            (tmp_path / "copy").rename(tmp_path / "segments")
        before = fingerprint(tmp_path)
        disk = CountingDisk(str(tmp_path))
        reader = await opened(tmp_path, readonly=True, disk=disk)
        assert (disk.bytes["segments/0000000001.jsonl"] < segment(tmp_path, 1).stat().st_size / 2) or changed
        assert numbers(reader.read(EVENTS, 0)) == [*expected, *range(24, 32)]
        assert not [found for found in reader.verify() if isinstance(found, Problem)]
        await reader.close()
        assert fingerprint(tmp_path) == before


# --- when it is not believed ------------------------------------------------------------------------------------------


def _remove(path: Path) -> None:
    path.unlink()


def _garble(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _of_another_log(path: Path) -> None:
    members = json.loads(path.read_bytes())
    del members["head"]
    members["log"] = "0" * 32
    path.write_bytes(with_head(json.dumps(members)[:-1].encode())[0])


def _of_another_form(path: Path) -> None:
    members = json.loads(path.read_bytes())
    del members["head"]
    members["format"] = 2
    path.write_bytes(with_head(json.dumps(members)[:-1].encode())[0])


def _of_a_strange_form(path: Path) -> None:
    members = json.loads(path.read_bytes())
    del members["head"]
    members["segments"][0] = [1, 2]
    path.write_bytes(with_head(json.dumps(members)[:-1].encode())[0])


@pytest.mark.parametrize("change", [_remove, _garble, _cut, _of_another_log, _of_another_form, _of_a_strange_form])
async def test_without_a_whole_mark_of_this_log_everything_is_verified(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    await grown(tmp_path)
    change(tmp_path / "verified" / "log.json")
    assert await read_whole(tmp_path)
    assert not await read_whole(tmp_path), "and vouched for again"


async def test_a_copy_is_verified_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy is other bytes, that nobody has read yet; a mark does not go with it, though its file does."""
    await grown(tmp_path / "log")
    shutil.copytree(tmp_path / "log", tmp_path / "copy", copy_function=shutil.copy2)
    caplog.set_level("INFO", "gasoline_es.log")
    assert await read_whole(tmp_path / "copy")
    assert [record.getMessage() for record in caplog.records] == [
        "the log is not the one that was verified before, so all of it is verified"
    ]
    assert not await read_whole(tmp_path / "copy")


async def test_a_mark_that_is_newer_than_a_restored_copy_is_not_believed(tmp_path: Path) -> None:
    await live(tmp_path / "log", 0)
    await (await opened(tmp_path / "log")).close()
    shutil.copytree(tmp_path / "log", tmp_path / "backup", copy_function=shutil.copy2)
    await live(tmp_path / "log", 8)
    await live(tmp_path / "log", 16, killed=True)
    await (await opened(tmp_path / "log")).close()
    for name in ("segments", "epochs"):
        shutil.rmtree(tmp_path / "log" / name)
        shutil.copytree(tmp_path / "backup" / name, tmp_path / "log" / name, copy_function=shutil.copy2)
    assert await read_whole(tmp_path / "log")
    log = await opened(tmp_path / "log")
    assert numbers(log.read(EVENTS, 0)) == list(range(8))
    owned = await log.acquire(0)
    assert await put(log, owned.epoch, event(8)) == Appended({EVENTS: 8})  # type: ignore[dict-item] # pyright: ignore[reportArgumentType]
    assert not [found for found in log.verify() if isinstance(found, Problem)]
    await log.close()


async def test_a_file_that_was_written_to_is_verified_again_though_it_looks_the_same(tmp_path: Path) -> None:
    await grown(tmp_path)
    path = segment(tmp_path, 2)
    data = bytearray(path.read_bytes())
    flip(b"zzz")(data)
    with path.open("r+b") as file:
        file.write(data)
    with pytest.raises(LogCorrupt) as caught:
        await opened(tmp_path)
    assert caught.value.segment == 2


# --- damage beside it -------------------------------------------------------------------------------------------------


async def _refused(directory: Path) -> tuple[object, ...]:
    before = fingerprint(directory)
    with pytest.raises(LogCorrupt) as caught:
        await opened(directory)
    assert fingerprint(directory) == before
    return caught.value.segment, caught.value.position, caught.value.reason


def _cut_to(data: bytearray, size: int) -> None:
    del data[size:]


DAMAGE: dict[str, Callable[[Path], None]] = {
    "removed": _remove,
    "shorter by a byte": lambda path: changed_in_place(path, lambda data: _cut_to(data, len(data) - 1)),
    "cut": lambda path: changed_in_place(path, lambda data: _cut_to(data, len(data) // 2)),
    "longer": lambda path: changed_in_place(path, lambda data: data.extend(b"x")),
    "its header": lambda path: changed_in_place(path, flip(b'"writer"')),
    "its last batch": lambda path: changed_in_place(path, flip(b'"sha256"', last=True)),
    "its last batch's head": lambda path: changed_in_place(path, flip(b'"head":"', last=True)),
}


@pytest.mark.parametrize("number", [1, 3, 5])
@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_that_can_be_seen_without_reading_a_segment_is_named_as_without_a_mark(
    tmp_path: Path, number: int, what: str
) -> None:
    await grown(tmp_path)
    DAMAGE[what](segment(tmp_path, number))
    if what == "longer":
        disk = await looked(tmp_path)  # torn bytes, for all that anybody can tell
        assert disk.bytes[f"segments/{number:010d}.jsonl"] >= segment(tmp_path, number).stat().st_size - 1
        return
    with_mark = await _refused(tmp_path)
    shutil.rmtree(tmp_path / "verified")
    assert await _refused(tmp_path) == with_mark
    assert with_mark[0] == number


def _batch_of(log: FileLog, number: int) -> int:
    data = segment(Path(log.url.removeprefix("file:")), 1).read_bytes()
    return data.rindex(b'{"batch"', 0, data.index(b'"workflow/%d"' % number))


def _poll_all(tail: Tail) -> None:
    while tail.poll():  # what comes before the damage is given first
        pass


def _raise_found(log: FileLog) -> None:
    for found in log.verify():
        if isinstance(found, Problem):
            raise LogCorrupt(found.reason, segment=found.segment, position=found.position, reason=found.reason)


Read = Callable[[FileLog], object]
READS: dict[str, Read] = {
    "read": lambda log: list(log.read(EVENTS, 0)),
    "read_at": lambda log: log.read_at(EVENTS, 0, [1]),
    "read_at with its place": lambda log: log.read_at(EVENTS, 0, [1], [1 << 40 | _batch_of(log, 1)]),
    "tail": lambda log: _poll_all(log.tail(INBOX, 1)),
    "tail at a position": lambda log: _poll_all(log.tail(INBOX, 1, Position({"finished": [], "at": {"1": [2, 0]}}))),
    "newest": lambda log: log.newest(INBOX, 1, 0, lambda record: record.key.endswith("/1")),
    "verify": _raise_found,
}


@pytest.fixture
def silent_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that changes bytes by itself tells nobody. Who does it in a test changes the kernel's own time of the file."""
    status = Disk.status

    def without(disk: Disk, fd: int) -> Status:
        return status(disk, fd)._replace(kept_ns=0)

    monkeypatch.setattr(Disk, "status", without)


@pytest.mark.usefixtures("silent_disk")
@pytest.mark.parametrize("of", ["body", "batch header"])
@pytest.mark.parametrize("read", READS)
async def test_a_byte_that_rots_within_an_old_segment_is_found_by_whoever_reads_it_and_then_refused(
    tmp_path: Path, read: str, of: str
) -> None:
    """B02: what the next opening cannot see, no reader takes for what was written; once it is known, nobody writes on."""
    await grown(tmp_path)
    data = segment(tmp_path, 1).read_bytes()
    line = data.index(b'"workflow/1"')
    at = data.index(b"zzz", line) if of == "body" else data.index(b'"prev"', data.rindex(b'{"batch"', 0, line)) + 20
    inbox = data.index(b"zzz", data.index(b'"workflow/1"', line + 1))

    def change(found: bytearray) -> None:
        found[at] ^= 1
        if of == "body":
            found[inbox] ^= 1

    changed_in_place(segment(tmp_path, 1), change)
    log = await opened(tmp_path, disk=UnsyncedDisk())
    assert log.damage is None
    with pytest.raises(LogCorrupt) as caught:
        READS[read](log)
    assert caught.value.segment == 1
    assert abs(caught.value.position - at) < 2_000
    await log.close()
    assert (await _refused(tmp_path))[0] == 1


async def test_a_reader_that_finds_damage_changes_nothing(tmp_path: Path) -> None:
    await grown(tmp_path)
    changed_in_place(segment(tmp_path, 1), flip(b"zzz"))
    before = fingerprint(tmp_path)
    reader = await opened(tmp_path, readonly=True)
    for read in ("read", "tail", "verify"):
        with pytest.raises(LogCorrupt):
            READS[read](reader)
    await reader.close()
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("suffix", [".index", ".end"])
async def test_other_files_of_a_segment_that_is_vouched_for_may_be_anything(tmp_path: Path, suffix: str) -> None:
    expected = await grown(tmp_path)
    for number in (1, 2):
        segment(tmp_path, number, suffix).write_bytes(segment(tmp_path, number, suffix).read_bytes()[:-20] + b"?" * 20)
    segment(tmp_path, 3, suffix).unlink()
    log = await opened(tmp_path)
    assert numbers(log.read(EVENTS, 0)) == expected
    assert numbers(log.tail(INBOX, 1).poll()) == expected
    await log.close()
    if suffix == ".index":
        other = await opened(tmp_path, readonly=True)
        assert all(other._catalog.indexes.stored(other._catalog.segments[number]) for number in (1, 2, 3))
        await other.close()


# --- epoch files ------------------------------------------------------------------------------------------------------


async def test_epoch_files_that_were_read_are_listed_and_not_read_again(tmp_path: Path) -> None:
    await grown(tmp_path)
    disk = await looked(tmp_path)
    read = sorted(path for path in disk.bytes if path.startswith("epochs/"))
    assert read == ["epochs/default/0/0000000003"], "the highest one that began"
    names = sorted((tmp_path / "epochs" / "default" / "0").iterdir())
    data = names[0].read_bytes()
    changed_in_place(names[0], lambda found: _cut_to(found, 5))
    assert str(names[0]) in str((await _refused(tmp_path))[2])
    changed_in_place(names[0], lambda found: found.extend(data[5:]))
    names[1].unlink()
    assert str(names[1]) in str((await _refused(tmp_path))[2])


async def test_a_claimed_begin_is_compared_with_its_epoch_file(tmp_path: Path) -> None:
    """No opening has done that yet: only the process that began it vouches for it."""
    await grown(tmp_path)
    await live(tmp_path, 24)
    newest = max((tmp_path / "epochs" / "default" / "0").iterdir())
    shutil.copyfile(newest.with_name("0000000001"), newest)
    assert "names" in str((await _refused(tmp_path))[2])


# --- writing it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["create", "write", "sync", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
async def test_a_mark_that_cannot_be_stored_costs_time_only(
    tmp_path: Path, what: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected = await grown(tmp_path)
    await live(tmp_path, 24, killed=True)
    disk = FaultyDisk(str(tmp_path))

    def fail(call: Call) -> None:
        if call.what == what and call.path.startswith("verified/"):
            raise OSError(number, os.strerror(number))

    disk.before = fail
    log = await opened(tmp_path, disk=disk)
    await put(log, None, event(77, 1, INBOX))
    assert numbers(log.read(EVENTS, 0)) == [*expected, *range(24, 32)]
    await log.close()
    told = [record.getMessage() for record in caplog.records]
    assert told == ["what was verified could not be stored"] * (1 if what == "sync" else 2)
    assert not list(tmp_path.glob("verified/*.tmp"))
    last = await opened(tmp_path)
    assert numbers(last.read(EVENTS, 0)) == [*expected, *range(24, 32)]
    await last.close()


async def test_the_mark_of_the_log_is_synced_before_it_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    await grown(tmp_path)
    await live(tmp_path, 24)
    disk = FaultyDisk(str(tmp_path))
    log = await opened(tmp_path, disk=disk)
    calls = [call.what for call in disk.calls if call.path.startswith("verified/")]
    claims = calls.count("unlink")
    assert calls == ["create", "write", "sync", "rename", *["unlink"] * claims]
    assert claims > 1
    await log.close()
    disk.calls.clear()
    again = await opened(tmp_path, disk=disk)
    assert not [call for call in disk.calls if call.path.startswith("verified/")], "it says all that is to be said"
    await again.close()


@pytest.mark.parametrize("at", range(8))
async def test_two_that_open_at_once_leave_a_mark_that_is_right(tmp_path: Path, at: int) -> None:
    """The other's whole opening and closing lies before one of the calls that store the first one's mark."""
    expected = await grown(tmp_path)
    await live(tmp_path, 24)
    disk = FaultyDisk(str(tmp_path))
    others: list[FileLog] = []
    seen = 0

    def before(call: Call) -> None:
        nonlocal seen
        if call.path.startswith("verified/"):
            seen += 1
            if seen == at + 1:
                opening = opened(tmp_path, disk=UnsyncedDisk())
                with pytest.raises(StopIteration) as done:
                    opening.send(None)
                others.append(done.value.value)

    disk.before = before
    log = await opened(tmp_path, disk=disk)
    disk.before = None
    if not others:
        assert at >= seen
        others.append(await opened(tmp_path, disk=UnsyncedDisk()))
    for number, other in enumerate((log, *others)):
        await put(other, None, event(100 + number, 1, INBOX))
        await other.close()
    assert not list(tmp_path.glob("verified/*.tmp"))
    for _ in range(2):
        last = await opened(tmp_path)
        assert numbers(last.read(EVENTS, 0)) == [*expected, *range(24, 32)]
        assert sorted(numbers(last.tail(INBOX, 1).poll())) == [*expected, *range(24, 32), 100, 101]
        assert not [found for found in last.verify() if isinstance(found, Problem)]
        await last.close()
    assert not await read_whole(tmp_path)


_DYING = """
import asyncio, os, signal, sys
from gasoline_es.log.file.log import open_file_log
from gasoline_es.log.port import Problem
from gasoline_es.testing.faults import Call, FaultyDisk, UnsyncedDisk
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put

directory = sys.argv[1]

async def live(first, disk):
    log = await open_file_log(directory, partitions=2, segment_bytes_max=900, disk=disk)
    owned = await log.acquire(0)
    for number in range(first, first + 6):
        await put(log, owned.epoch, event(number))
    await log.close()

def dying(at):
    disk, seen = FaultyDisk(directory), 0
    def before(call):
        nonlocal seen
        if call.path.startswith("verified"):
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
    disk.before = before
    return disk

async def check():
    log = await open_file_log(directory, disk=UnsyncedDisk())
    found = numbers(log.read(EVENTS, 0))
    assert found == sorted(set(found)), found
    assert not [one for one in log.verify() if isinstance(one, Problem)]
    await log.close()
    return found

at, found = 0, []
asyncio.run(live(0, UnsyncedDisk()))
while True:
    first = 100 * (at + 1)
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(live(first, dying(at)))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    before, found = found, asyncio.run(check())
    assert found[:len(before)] == before
    here = [number for number in found if number >= first]
    assert here == list(range(first, first + len(here)))  # as many as were appended before it died
    if not os.WIFSIGNALED(status):
        assert status == 0 and len(here) == 6
        break
    at += 1
left = [name for name in os.listdir(directory + "/verified") if name.endswith(".tmp")]
print(at, len(left))
"""


def test_a_process_killed_at_any_call_that_writes_a_mark_leaves_a_log_that_opens(tmp_path: Path) -> None:
    """Real processes: at the opening, where a segment is rolled, and at the close."""
    done = subprocess.run([sys.executable, "-c", _DYING, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True)
    kills, left = map(int, done.stdout.split())
    assert kills >= 10
    assert left <= 1, "what a dead one left beside is removed by the next that stores a mark"


# --- writes that leave no trace ---------------------------------------------------------------------------------------


async def test_what_was_written_to_a_moment_ago_is_vouched_for_later(tmp_path: Path) -> None:
    """The kernel's times are as coarse as its ticks: a second write within one does not show."""
    await (await opened(tmp_path, partitions=2)).close()
    await live(tmp_path, 0, 2, killed=True)
    (last,) = tmp_path.glob("segments/*.jsonl")
    tick_ns = time.time_ns() + 10**9
    for _ in range(2):
        os.utime(last, ns=(0, tick_ns))
        assert (await looked(tmp_path)).read_of(".jsonl") >= last.stat().st_size
    os.utime(last, ns=(0, tick_ns - 10**10))
    await looked(tmp_path)
    assert (await looked(tmp_path)).read_of(".jsonl") < last.stat().st_size / 2


@pytest.mark.parametrize("then", ["close", "append", "roll"])
async def test_a_writer_does_not_vouch_for_a_segment_that_somebody_else_wrote_to(tmp_path: Path, then: str) -> None:
    """Between two of its appends, or between the last one and the close, which may be long after."""
    await (await opened(tmp_path, partitions=1)).close()
    log = await opened(tmp_path, disk=UnsyncedDisk(), segment_bytes_max=5_500)
    for number in range(4):
        await put(log, None, event(number, 0, INBOX, LONG))
    path = segment(tmp_path, 1)
    written = path.stat()
    data = bytearray(path.read_bytes())
    flip(b"zzz")(data)
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(0, written.st_mtime_ns + 4_000_000))  # at the next tick of the clock
    for number in range(4, {"close": 4, "append": 5, "roll": 12}[then]):
        await put(log, None, event(number, 0, INBOX, LONG))
    await log.close()
    assert (tmp_path / "verified" / "0000000002.json").exists() == (then == "roll")
    assert not (tmp_path / "verified" / "0000000001.json").exists()
    assert (await _refused(tmp_path))[0] == 1


async def test_a_closed_segment_is_stamped_so_that_the_next_write_shows_however_soon_it_comes(tmp_path: Path) -> None:
    await (await opened(tmp_path, partitions=2)).close()
    times: list[int] = []
    for life in range(5):
        await live(tmp_path, 8 * life, 1)
        times.append(segment(tmp_path, life + 1).stat().st_mtime_ns)
    # A kernel that ticks gives times that are whole microseconds apart; a stamp has digits of its own.
    assert len({stamp % 1_000_000 for stamp in times}) > 1
    await looked(tmp_path)
    path = segment(tmp_path, 3)
    data = bytearray(path.read_bytes())
    flip(b"zzz")(data)
    log = await opened(tmp_path)
    with path.open("r+b") as file:
        file.write(data)
    await log.close()
    assert (await _refused(tmp_path))[0] == 3


async def test_a_segment_that_is_written_to_while_it_is_verified_is_not_vouched_for(tmp_path: Path) -> None:
    await (await opened(tmp_path, partitions=2)).close()
    await live(tmp_path, 0, 2, killed=True)
    (last,) = tmp_path.glob("segments/*.jsonl")
    disk = FaultyDisk(str(tmp_path))

    def before(call: Call) -> None:
        if call.what == "sync" and call.path.endswith(".jsonl"):  # it is about to be read
            data = last.read_bytes()
            with last.open("r+b") as file:
                file.write(data)

    disk.before = before
    await (await opened(tmp_path, disk=disk)).crash()
    os.utime(last, ns=(0, last.stat().st_mtime_ns - 10**9))
    assert (await looked(tmp_path)).read_of(".jsonl") >= last.stat().st_size
    assert (await looked(tmp_path)).read_of(".jsonl") < last.stat().st_size / 2
