"""Any file of a log deleted, cut, changed, exchanged or doubled: nothing acknowledged vanishes without a word (B02)."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from random import Random, sample

import pytest

from gasoline_es.errors import LogCorrupt, LogError
from gasoline_es.log.file.end import PublishedEnd, encode_end
from gasoline_es.log.file.log import FileLog
from gasoline_es.log.file.recent import Recent
from gasoline_es.log.port import Appended, Position, Problem
from gasoline_es.testing.faults import UnsyncedDisk
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, numbers, put
from tests.log.test_crashes import collect, fingerprint, opened, segment

PARTITIONS = 2
Truth = tuple[list[int], list[int], list[int]]
"""The numbers acknowledged in the partitions' events, and those sent to the inbox."""


async def make(directory: Path, partitions: int = PARTITIONS) -> Truth:
    """A log of three lives: one closed in good order, one killed, one that rolled into a second segment."""
    events: list[list[int]] = [[], []]
    sent: list[int] = []
    number = 0

    async def write(log: FileLog, partition: int, epoch: int) -> None:
        nonlocal number
        for _ in range(3):
            number += 1
            outcome = await put(log, epoch, event(number, partition), event(number, 0, INBOX), partition=partition)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            assert isinstance(outcome, Appended)
            events[partition].append(number)
            sent.append(number)
        number += 1
        assert isinstance(await put(log, None, event(number, 0, INBOX)), Appended)
        sent.append(number)

    for life, taken in enumerate(([0, 1], [0], [1, 0])):
        log = await opened(directory, partitions=partitions, disk=UnsyncedDisk(), segment_bytes_max=2_500)
        for partition in taken:
            await write(log, partition, (await log.acquire(partition)).epoch)
        await (log.crash() if life == 1 else log.close())
    return events[0], events[1], sent


# --- what may be done to a file ---------------------------------------------------------------------------------------


def delete(path: Path, random: Random) -> None:
    path.unlink()


def empty(path: Path, random: Random) -> None:
    path.write_bytes(b"")


def halve(path: Path, random: Random) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes() or b"\n")
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def garble(path: Path, random: Random) -> None:
    path.write_bytes(random.randbytes(path.stat().st_size or 100))


def text(path: Path, random: Random) -> None:
    path.write_text(random.choice(["[]\n", "{}\n", '{"segment":1}\n', "[" * 5_000, "null\n", '"\\ud800"\n']))


def double(path: Path, random: Random) -> None:
    stem, dot, kind = path.name.partition(".")
    if stem.isdigit():
        following = max(int(other.name[:10]) for other in path.parent.iterdir() if other.name[:10].isdigit()) + 1
        shutil.copyfile(path, path.with_name(f"{following:010d}{dot}{kind}"))


CHANGES: tuple[Callable[[Path, Random], None], ...] = (delete, empty, halve, flip, flip, garble, text, double)


def exchange(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


# --- what must hold ---------------------------------------------------------------------------------------------------


async def look(log: FileLog, truth: Truth) -> bool:
    """Read everything; return whether all of it was there. What is read is right, and what is not there is said."""
    whole = True
    for partition in range(PARTITIONS):
        found: list[int] = []
        try:
            collect(log.read(EVENTS, partition), found)
            assert found == truth[partition]
        except LogError:
            whole = False
        assert found == truth[partition][: len(found)]
    sent: list[int] = []
    try:
        tail = log.tail(INBOX, 0)
        while polled := numbers(tail.poll()):
            sent += polled
        assert sorted(sent) == sorted(truth[2])
    except LogError:
        whole = False
    assert not Counter(sent) - Counter(truth[2])
    return whole


async def check(directory: Path, truth: Truth) -> bool:
    """Check a log after something was done to it; return whether it is refused."""
    before = fingerprint(directory)
    told = whole = False
    try:
        reader = await opened(directory, readonly=True, disk=UnsyncedDisk())
        whole = await look(reader, truth)
        told = any(isinstance(found, Problem) for found in reader.verify())
        assert told == bool(reader.info().problems) or reader.damage is None  # a record's bytes: verify alone reads all
        await reader.close()
    except LogError:
        told = True
    assert fingerprint(directory) == before
    try:
        log = await opened(directory, disk=UnsyncedDisk(), segment_bytes_max=2_500)
    except LogError:
        assert told, "refused, but verify finds nothing"
        assert fingerprint(directory) == before
        return True
    assert not told, "damaged, but opened for writing"
    assert whole, "not all can be read, but opened for writing"
    more: list[list[int]] = [list(truth[0]), list(truth[1])]
    for partition in range(PARTITIONS):
        owned = await log.acquire(partition)
        assert isinstance(await put(log, owned.epoch, event(1000, partition), partition=partition), Appended)
        more[partition].append(1000)
    assert await look(log, (more[0], more[1], truth[2]))
    await log.close()
    again = await opened(directory, readonly=True)
    assert await look(again, (more[0], more[1], truth[2]))
    assert [found for found in again.verify() if isinstance(found, Problem)] == []
    await again.close()
    return False


Case = tuple[str, Callable[[Path, Random], None]]


def _change(name: Path, change: Callable[[Path, Random], None]) -> Case:
    return f"{change.__name__} {name}", lambda directory, random: change(directory / name, random)


def _exchange(one: Path, other: Path) -> Case:
    return f"exchange {one} {other}", lambda directory, _: exchange(directory / one, directory / other)


async def _all(tmp_path: Path, rounds: int) -> Counter[tuple[str, bool]]:
    base = tmp_path / "base"
    truth = await make(base)
    done: Counter[tuple[str, bool]] = Counter()
    names = [path.relative_to(base) for path in files(base)]
    cases = [_change(name, change) for change in CHANGES * rounds for name in names]
    cases += [_exchange(*pair) for pair in combinations(names, 2) if rounds > 1 or pair[0].suffix == pair[1].suffix]
    for number, (what, change) in enumerate(sample(cases, 150) if rounds == 1 else cases):
        directory = tmp_path / "changed"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(base, directory)
        change(directory, Random(number))
        try:
            done[what.split()[0], await check(directory, truth)] += 1
        except BaseException as error:
            error.add_note(f"case {number}: {what}")
            raise
    return done


async def test_whatever_is_done_to_a_file_nothing_acknowledged_vanishes_without_a_word(tmp_path: Path) -> None:
    done = await _all(tmp_path, 1)
    assert done["delete", True]
    assert done["delete", False]


@pytest.mark.soak
async def test_everything_that_can_be_done_to_any_file(tmp_path: Path) -> None:
    await _all(tmp_path, 12)


async def check_vouched(directory: Path, truth: Truth) -> tuple[bool, bool]:
    """Check a log whose files are vouched for, after one rotted that the file system takes for unchanged.

    Return whether it is damaged, and whether it was opened for writing though it is.
    """
    before = fingerprint(directory)
    try:
        log = await opened(directory, disk=UnsyncedDisk(), segment_bytes_max=2_500)
    except LogError:
        assert fingerprint(directory) == before
        shutil.rmtree(directory / "verified", ignore_errors=True)
        assert await check(directory, truth), "refused, but only with a mark"
        return True, False
    whole = await look(log, truth)
    told = any(isinstance(found, Problem) for found in log.verify())
    assert told or whole, "not all can be read, and verify finds nothing"
    await log.crash()
    if not told:
        return await check(directory, truth), False
    assert await check(directory, truth), "known to be damaged, and opened again"
    return True, True


def rots(change: Callable[[Path, Random], None]) -> Callable[[Path, Random], None]:
    """Return what does the same to a file in place, without telling the file system."""

    def changed(path: Path, random: Random) -> None:
        before = path.stat()
        change(path, random)
        if path.exists():
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    changed.__name__ = change.__name__
    return changed


@pytest.mark.parametrize("rounds", [1, pytest.param(12, marks=pytest.mark.soak)])
async def test_whatever_rots_in_a_log_that_is_vouched_for_is_found_by_readers_at_the_latest(
    tmp_path: Path, rounds: int
) -> None:
    base = tmp_path / "base"
    truth = await make(base)
    names = [path.relative_to(base) for path in files(base) if path.suffix != ".lock"]
    cases = [_change(name, rots(change)) for change in (flip, *CHANGES) * rounds for name in names]
    done: Counter[tuple[bool, bool]] = Counter()
    for number, (what, change) in enumerate(sample(cases, 50) if rounds == 1 else cases):
        directory = tmp_path / "changed"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(base, directory)
        await (await opened(directory, disk=UnsyncedDisk())).close()
        if not (directory / what.partition(" ")[2]).exists():
            continue  # a claim that was taken into the mark
        change(directory, Random(number))
        try:
            done[await check_vouched(directory, truth)] += 1
        except BaseException as error:
            error.add_note(f"case {number}: {what}")
            raise
    assert done[True, False]
    assert done[False, False]
    assert rounds == 1 or done[True, True]


# --- segments ---------------------------------------------------------------------------------------------------------


async def refusal(directory: Path, **options: object) -> LogCorrupt:
    """Open a log for writing, which must be refused and change nothing; return what was said."""
    before = fingerprint(directory)
    with pytest.raises(LogCorrupt) as caught:
        await opened(directory, **options)
    assert fingerprint(directory) == before
    return caught.value


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_segment_that_is_gone_with_all_its_files_is_named_by_what_refers_to_it(
    tmp_path: Path, number: int
) -> None:
    truth = await make(tmp_path)
    for suffix in (".jsonl", ".end", ".index"):
        segment(tmp_path, number, suffix).unlink()
    assert (await refusal(tmp_path)).segment == number
    assert await check(tmp_path, truth)


@pytest.mark.parametrize("kinds", [(".end",), (".index",), (".end", ".index")])
async def test_the_newest_segments_other_files_tell_that_it_is_gone(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    truth = await make(tmp_path)
    last = len(list((tmp_path / "segments").glob("*.jsonl")))
    for path in (tmp_path / "segments").glob(f"{last:010d}.*"):
        if path.suffix not in kinds:
            path.unlink()
    damage = await refusal(tmp_path)
    assert (damage.segment, damage.position) == (last, 0)
    assert "missing" in damage.reason
    assert await check(tmp_path, truth)


async def test_a_cut_that_only_a_later_segment_tells_of_is_damage(tmp_path: Path) -> None:
    """No published end is left to promise anything: the batch that the next segment's header names is missing."""
    truth = await make(tmp_path)
    for path in [*(tmp_path / "segments").glob("*.end"), *(tmp_path / "segments").glob("*.index")]:
        path.unlink()
    one = segment(tmp_path, 4)
    lines = one.read_bytes().splitlines(keepends=True)
    at = max(index for index, line in enumerate(lines) if line.startswith(b'{"batch"'))
    one.write_bytes(b"".join(lines[:at]))
    damage = await refusal(tmp_path)
    assert (damage.segment, damage.position) == (4, len(b"".join(lines[:at])))
    assert "segment 5" in damage.reason
    assert await check(tmp_path, truth)


async def test_the_number_of_a_segment_lost_before_it_was_published_costs_nothing_and_is_not_given_again(
    tmp_path: Path,
) -> None:
    truth = await make(tmp_path)
    last = len(list((tmp_path / "segments").glob("*.jsonl")))
    end = encode_end(PublishedEnd(last + 1, "1a2-3-4", 17, 0))
    segment(tmp_path, last + 1, ".end").write_bytes(end)  # its name survived the power loss, the segment's did not
    assert not await check(tmp_path, truth)
    assert segment(tmp_path, last + 1, ".end").read_bytes() == end
    assert not segment(tmp_path, last + 1).exists()
    assert segment(tmp_path, last + 2).exists()


async def test_whatever_is_left_of_a_segment_keeps_its_number_from_being_given(tmp_path: Path) -> None:
    truth = await make(tmp_path)
    last = len(list((tmp_path / "segments").glob("*.jsonl")))
    segment(tmp_path, last + 1, ".end").write_bytes(b"")
    segment(tmp_path, last + 2, ".index").write_bytes(b"?")
    assert not await check(tmp_path, truth)
    assert segment(tmp_path, last + 1, ".end").read_bytes() == b""
    assert segment(tmp_path, last + 3).exists()


async def test_damage_whose_owner_is_known_leaves_the_other_partitions_whole(tmp_path: Path) -> None:
    truth = await make(tmp_path)
    alone = segment(tmp_path, 3)  # of the life that was killed, which owned partition 0 only
    assert b'"partition":1,"epoch"' not in alone.read_bytes()
    alone.unlink()
    reader = await opened(tmp_path, readonly=True)
    assert reader.damage is not None
    assert numbers(reader.read(EVENTS, 1)) == truth[1]
    found: list[int] = []
    with pytest.raises(LogCorrupt) as caught:
        collect(reader.read(EVENTS, 0), found)
    assert (found, caught.value.segment) == (truth[0][:3], 3)
    with pytest.raises(LogCorrupt):
        list(reader.read(EVENTS, 0, 0, 9))
    tail = reader.tail(INBOX, 0)
    sent = numbers(tail.poll())
    assert sent == truth[2][: len(sent)]
    for _ in range(2):
        with pytest.raises(LogCorrupt):
            tail.poll()
    await reader.close()


# --- epochs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.parametrize("change", [delete, empty, garble])
async def test_an_epoch_file_that_is_gone_or_damaged_is_named_and_stops_its_partition_only(
    tmp_path: Path, epoch: int, change: Callable[[Path, Random], None]
) -> None:
    truth = await make(tmp_path)
    path = tmp_path / "epochs" / "default" / "0" / f"{epoch:010d}"
    data = path.read_bytes()
    path.unlink()  # a file of several names: one for each partition that its process took
    path.write_bytes(data)
    change(path, Random(1))
    damage = await refusal(tmp_path)
    assert damage.segment is None
    assert str(path) in damage.message
    reader = await opened(tmp_path, readonly=True)
    assert [str(path) in found.reason for found in reader.verify() if isinstance(found, Problem)] == [True]
    assert [str(path) in problem for problem in reader.info().problems] == [True]
    assert reader.damage is not None
    assert numbers(reader.read(EVENTS, 1)) == truth[1]
    with pytest.raises(LogCorrupt) as caught:
        list(reader.read(EVENTS, 0))
    assert str(path) in str(caught.value)
    await reader.close()


async def test_an_epoch_file_that_names_another_than_its_begin_is_damage(tmp_path: Path) -> None:
    await make(tmp_path)
    first, second = (tmp_path / "epochs" / "default" / "0" / f"{epoch:010d}" for epoch in (1, 2))
    exchange(first, second)
    assert str(first) in (await refusal(tmp_path)).message


async def test_a_partition_is_not_taken_in_a_log_that_was_damaged_while_it_was_open(tmp_path: Path) -> None:
    """Found before the next epoch is made: nothing is changed."""
    await make(tmp_path)
    log = await opened(tmp_path)
    (tmp_path / "epochs" / "default" / "0" / f"{3:010d}").write_bytes(b"x")
    other = await opened(tmp_path / "other")
    await other.close()
    before = fingerprint(tmp_path / "epochs")
    log._soundness._checked.clear()  # pyright: ignore[reportPrivateUsage]
    log._epochs._holders = Recent(9)  # type: ignore[misc] # pyright: ignore[reportPrivateUsage]
    with pytest.raises(LogCorrupt):
        await log.acquire(0)
    assert fingerprint(tmp_path / "epochs") == before
    await log.close()


# --- the manifest -----------------------------------------------------------------------------------------------------


async def test_a_log_without_its_manifest_is_not_taken_for_an_empty_directory(tmp_path: Path) -> None:
    await make(tmp_path)
    (tmp_path / "manifest.json").unlink()
    assert "manifest.json is missing" in (await refusal(tmp_path)).message
    with pytest.raises(LogCorrupt):
        await opened(tmp_path, readonly=True)


async def test_another_number_of_partitions_in_the_manifest_is_damage(tmp_path: Path) -> None:
    await make(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"partitions": 2', '"partitions": 3'))
    assert "fails its check" in (await refusal(tmp_path)).message


async def test_a_manifest_without_a_check_is_read_and_its_partitions_are_compared(tmp_path: Path) -> None:
    """As logs of the first days have it."""
    truth = await make(tmp_path)
    path = tmp_path / "manifest.json"
    members = json.loads(path.read_text())
    del members["check"]
    path.write_text(json.dumps(members))
    assert not await check(tmp_path, truth)
    for partitions in (1, 3):
        members["namespaces"]["default"]["partitions"] = partitions
        path.write_text(json.dumps(members))
        assert "epochs/default/" in (await refusal(tmp_path)).message


async def test_no_namespace_is_made_in_a_damaged_log(tmp_path: Path) -> None:
    await make(tmp_path)
    segment(tmp_path, 2).unlink()
    assert (await refusal(tmp_path, namespace="another")).segment == 2


# --- directories ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["epochs", "epochs/default", "epochs/default/1", "segments"])
async def test_a_directory_that_is_gone_is_damage(tmp_path: Path, name: str) -> None:
    truth = await make(tmp_path)
    shutil.rmtree(tmp_path / name)
    assert name in (await refusal(tmp_path)).message
    assert await check(tmp_path, truth)


async def test_without_their_directory_all_workers_are_dead(tmp_path: Path) -> None:
    truth = await make(tmp_path)
    shutil.rmtree(tmp_path / "workers")
    assert not await check(tmp_path, truth)


async def test_an_epoch_file_of_a_wild_number_is_damage_and_costs_no_time(tmp_path: Path) -> None:
    truth = await make(tmp_path)
    directory = tmp_path / "epochs" / "default" / "0"
    shutil.copyfile(directory / f"{3:010d}", directory / "9999999999")
    assert f"{4:010d} is missing, and so are those up to epoch 9999999998" in (await refusal(tmp_path)).message
    assert await check(tmp_path, truth)


async def test_a_system_that_refuses_is_an_error_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError):
        await opened(tmp_path / "file")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "segments").write_text("")
    with pytest.raises(LogError):
        await opened(tmp_path / "log")


# --- what only one other file can tell --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [empty, halve])
async def test_an_index_tells_of_a_cut_where_the_published_end_is_gone(
    tmp_path: Path, cut: Callable[[Path, Random], None]
) -> None:
    truth = await make(tmp_path)
    last = len(list((tmp_path / "segments").glob("*.jsonl")))
    segment(tmp_path, last, ".end").unlink()
    cut(segment(tmp_path, last), Random(1))
    assert (await refusal(tmp_path)).segment == last
    assert await check(tmp_path, truth)


async def test_a_position_beyond_what_is_there_is_damage(tmp_path: Path) -> None:
    await make(tmp_path)
    log = await opened(tmp_path)
    with pytest.raises(LogCorrupt) as caught:
        log.tail(INBOX, 0, Position({"finished": [], "at": {"2": [900, 0]}}))
    assert caught.value.segment == 2
    await log.close()
