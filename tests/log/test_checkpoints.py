"""What verify proves of a log that was cleaned: by itself, and held to a checkpoint that was taken before."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from gasoline_es.errors import LogError
from gasoline_es.log.file.lines import with_head
from gasoline_es.log.file.log import open_file_log
from gasoline_es.log.port import Problem
from gasoline_es.testing.faults import UnsyncedDisk
from gasoline_es.testing.log_contract import EVENTS, INBOX, event, put
from tests.log.cleaned import INDEX, clean, happened, keyed, life, problems, pruned, taken, tombstone
from tests.log.test_crashes import segment


async def _cleaned(directory: Path) -> bytes:
    """A log with a segment that lost some records, one that lost all and one as it was written; its checkpoint from before."""
    await life(
        directory, *[[happened("w", seq), happened("x", seq), keyed("k", seq)] for seq in range(1, 9)], partitions=1
    )
    await life(directory, [keyed("k", 9)], [keyed("k", 10)])
    await life(directory, [keyed("k", 11), pruned("w", 9, [2])], [happened("x", 9)])
    log = await open_file_log(str(directory), readonly=True)
    checkpoint = log.checkpoint()
    await log.close()
    report = await clean(directory)
    assert (report.rewritten, report.emptied) == (2, 1)
    assert report.removed == {EVENTS: {"pruned": 7}, INDEX: {"superseded": 10}}
    return checkpoint


async def _found(directory: Path, checkpoint: bytes | None = None) -> list[Problem]:
    log = await open_file_log(str(directory), readonly=True, disk=UnsyncedDisk())
    try:
        return problems(log) if checkpoint is None else list(log.against(checkpoint))
    finally:
        await log.close()


async def test_a_cleaned_log_is_what_it_was_without_what_was_removed(tmp_path: Path) -> None:
    checkpoint = await _cleaned(tmp_path)
    assert await _found(tmp_path) == []
    assert await _found(tmp_path, checkpoint) == []
    await life(tmp_path, [keyed("k", 12)])
    for _ in range(2):
        await clean(tmp_path)
        assert await _found(tmp_path, checkpoint) == []
    log = await open_file_log(str(tmp_path), readonly=True)
    later = log.checkpoint()
    await log.close()
    assert json.loads(later)["segments"][:3] == json.loads(checkpoint)["segments"]
    assert await _found(tmp_path, later) == []


async def test_any_byte_of_a_cleaned_segment_that_is_changed_is_found(tmp_path: Path) -> None:
    """filelog.md §2: the digests of what was removed prove what was kept. One byte in four, from each of the lines."""
    await _cleaned(tmp_path)
    for number in (1, 2):
        path = segment(tmp_path, number)
        data = path.read_bytes()
        for at in range(number, len(data), 4):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            found = await _found(tmp_path)
            assert {problem.segment for problem in found} >= {number}, (number, at, found)
        path.write_bytes(data)
    assert await _found(tmp_path) == []


def _cut(lines: list[bytes]) -> list[bytes]:
    return lines[:-1]


def _without_a_record(lines: list[bytes]) -> list[bytes]:
    at = next(at for at, line in enumerate(lines) if line.startswith(b'{"topic"'))
    return lines[:at] + lines[at + 1 :]


def _batches_exchanged(lines: list[bytes]) -> list[bytes]:
    starts = [at for at, line in enumerate(lines) if line.startswith(b'{"batch"')]
    first, second, third = starts[1:4]
    return lines[:first] + lines[second:third] + lines[first:second] + lines[third:]


def _records_exchanged(lines: list[bytes]) -> list[bytes]:
    at = [at for at, line in enumerate(lines) if line.startswith(b'{"topic"')]
    lines = list(lines)
    lines[at[0]], lines[at[1]] = lines[at[1]], lines[at[0]]
    return lines


def _without_a_digest(lines: list[bytes]) -> list[bytes]:
    at = next(at for at, line in enumerate(lines) if b'"removed":"' in line)
    before, _, rest = lines[at].partition(b'"removed":"')
    core = (before + b'"removed":"' + rest[64:]).rpartition(b',"head":')[0]
    return [*lines[:at], with_head(core)[0], *lines[at + 1 :]]


def _with_a_digest_of_another(lines: list[bytes]) -> list[bytes]:
    """As if another record had been removed there. The head is right."""
    at = next(at for at, line in enumerate(lines) if b'"removed":"' in line)
    before, _, rest = lines[at].partition(b'"removed":"')
    digest = sha256(b"another record").hexdigest().encode()
    core = (before + b'"removed":"' + digest + rest[64:]).rpartition(b',"head":')[0]
    return [*lines[:at], with_head(core)[0], *lines[at + 1 :]]


def _a_batch_twice(lines: list[bytes]) -> list[bytes]:
    first, second = [at for at, line in enumerate(lines) if line.startswith(b'{"batch"')][1:3]
    return lines[:second] + lines[first:second] + lines[second:]


@pytest.mark.parametrize(
    "change",
    [
        _cut,
        _without_a_record,
        _batches_exchanged,
        _a_batch_twice,
        _records_exchanged,
        _without_a_digest,
        _with_a_digest_of_another,
    ],
    ids=lambda f: f.__name__,
)
async def test_a_cleaned_segment_cut_or_rearranged_is_found_with_its_place(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    await _cleaned(tmp_path)
    path = segment(tmp_path, 1)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    found = await _found(tmp_path)
    assert found
    assert found[0].segment == 1
    assert found[0].position > 0


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_cleaned_segment_of_another_log_is_found_by_a_checkpoint(tmp_path: Path, number: int) -> None:
    """One that was written and cleaned alike: each of its batches is as sound as those of the one that it stands for."""
    checkpoint = await _cleaned(tmp_path / "log")
    await _cleaned(tmp_path / "other")
    shutil.copyfile(segment(tmp_path / "other", number), segment(tmp_path / "log", number))
    found = await _found(tmp_path / "log", checkpoint)
    assert number in {problem.segment for problem in found}
    assert await _found(tmp_path / "other") == []


async def test_a_checkpoint_of_which_any_byte_was_changed_is_none_or_names_a_segment(tmp_path: Path) -> None:
    """Taken before a cleaning and kept for long: what became of it in between is not passed over."""
    checkpoint = await _cleaned(tmp_path)
    refused = 0
    for at in range(0, len(checkpoint.rstrip()), 3):
        changed = checkpoint[:at] + bytes([checkpoint[at] ^ 1 << at % 7]) + checkpoint[at + 1 :]
        try:
            assert await _found(tmp_path, changed) != [], at
        except LogError:
            refused += 1
    assert refused > len(checkpoint) // 6
    assert await _found(tmp_path, checkpoint) == []


async def test_a_history_that_was_written_anew_is_found_only_by_a_checkpoint(tmp_path: Path) -> None:
    """design §8: that a removal was allowed can be proven only against a digest taken before. Segment and batch are named."""
    for number, forged in enumerate((False, True)):
        directory = tmp_path / str(number)
        await life(directory, [happened("w", 1)], [happened("w", 2)], partitions=1)
        log = await open_file_log(str(directory), readonly=True)
        checkpoint = log.checkpoint()
        await log.close()
        if forged:
            _forge(segment(directory, 1))
        assert await _found(directory) == []
        found = await _found(directory, checkpoint)
        assert [problem.segment for problem in found] == ([1] if forged else [])
        if forged:
            assert "batch 4" in found[0].reason


def _forge(path: Path) -> None:
    """Change a record, and every digest that would tell."""
    lines = path.read_bytes().splitlines()
    prev = sha256(lines[0].rpartition(b',"head":')[0]).hexdigest()
    out, at = [lines[0]], 1
    while at < len(lines):
        header = json.loads(lines[at])
        count = sum(group[3] for section in header["sections"] for group in section["records"])
        records = [line.replace(b"yyy", b"zzz", 1) for line in lines[at + 1 : at + 1 + count]]
        header["prev"] = prev
        if records:
            digests = b"".join(sha256(line).digest() for line in records)
            header["sections"][0]["sha256"] = sha256(digests).hexdigest()
        header.pop("head")
        line, prev = with_head(json.dumps(header, separators=(",", ":")).encode()[:-1])
        out += [line[:-1], *records]
        at += 1 + count
    status = path.stat()
    path.write_bytes(b"\n".join(out) + b"\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


async def test_what_is_missing_cut_or_of_another_log_is_told_apart_by_a_checkpoint(tmp_path: Path) -> None:
    await life(tmp_path / "log", [keyed("a", 1)], partitions=1)
    await life(tmp_path / "log", [keyed("b", 1)])
    log = await open_file_log(str(tmp_path / "log"), readonly=True)
    checkpoint = log.checkpoint()
    await log.close()
    lost = tmp_path / "lost"
    shutil.copytree(tmp_path / "log", lost)
    for suffix in (".jsonl", ".end", ".index"):
        segment(lost, 2, suffix).unlink()
    shutil.rmtree(lost / "verified")
    found = await _found(lost, checkpoint)
    assert [problem.segment for problem in found] == [2]
    assert "missing" in found[0].reason
    await life(tmp_path / "other", [keyed("a", 1)], partitions=1)
    other = await open_file_log(str(tmp_path / "other"), readonly=True)
    with pytest.raises(LogError, match="of log"):
        list(other.against(checkpoint))
    with pytest.raises(LogError, match="not a checkpoint"):
        list(other.against(checkpoint.replace(b"1", b"2", 1)))
    await other.close()


async def test_a_checkpoint_of_a_segment_that_grows_is_held_to_what_it_had(tmp_path: Path) -> None:
    log = await open_file_log(str(tmp_path), partitions=1)
    epoch = await taken(log)
    random = Random(1)
    checkpoints = [log.checkpoint()]
    for number in range(8):
        await put(log, epoch, keyed(f"k{random.randrange(3)}", number), event(number, 0, INBOX))
        checkpoints.append(log.checkpoint())
    await put(log, epoch, tombstone("k0"))
    await log.close()
    for _ in range(3):
        for checkpoint in checkpoints:
            assert await _found(tmp_path, checkpoint) == []
        await clean(tmp_path)
