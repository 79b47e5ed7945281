"""Measures what opening a log for writing costs, and what a take-over reads: with the verified mark, and without it.

    python bench/opening.py [--json] [--events 1000000] [--lives 20] [--directory DIR]

A log of so many events is made through the log's own interface: sixteen partitions, events of 650 bytes in batches of about
a thousand, each batch with records of all partitions in four topics, by so many processes one after the other. Each
opening is measured in a process of its own:

* open_s: until the log is open. ``all``: every byte is verified, as without a mark; ``mark``: with the one that this left;
  ``killed``: with a mark, behind a process that was killed with a segment half full. ``cold``: with nothing of the log in the
  page cache (as far as the kernel heeds posix_fadvise).
* take_s: until all sixteen partitions are owned, the last 100 events of each were read, and each inbox was opened where
  it was left and polled.
* rss_mb: by how much the resident memory has grown by then, and read_kb: how many bytes that read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from gasoline_es.log.file.log import FileLog, open_file_log
from gasoline_es.log.port import Appended, Epoch, NewRecord, Position, Section
from gasoline_es.testing.faults import CountingDisk

PARTITIONS: Final = 16
_VALUE: Final = b'{"specversion":"1.0","data":"%b"}' % (b"x" * (650 - 33))
_SMALL: Final = b'{"name":"ship_order"}'
_EACH: Final = 64
"""So many events of each partition are in a batch."""


def _section(partition: int, epoch: Epoch, first: int, count: int, position: bytes) -> Section:
    key = f"0198c7f0-{partition:04x}-7000-8000-000000000000"
    now_us = time.time_ns() // 1000
    events = [NewRecord("default.events", partition, f"{key}/{first + i}", _VALUE, now_us) for i in range(count)]
    beside = [
        NewRecord("default.index", partition, key, _SMALL, now_us),
        NewRecord("default.inbox", (partition + 1) % PARTITIONS, key, _SMALL, now_us),
        NewRecord("default.registry", partition, "position", position, now_us),
    ]
    return Section(partition, epoch, events + beside)


async def make(directory: str, events: int, lives: int, killed: bool = False) -> None:
    """Append so many events, in so many lives; ``killed``: the last of them ends without a word."""
    for life in range(lives):
        log = await open_file_log(directory)
        epochs = [(await log.acquire(partition)).epoch for partition in range(PARTITIONS)]
        tails = [log.tail("default.inbox", partition) for partition in range(PARTITIONS)]
        for tail in tails:
            tail.skip()
        written = 0
        while written < events // lives:
            sections: list[Section] = []
            for partition in range(PARTITIONS):
                tails[partition].skip()
                position = json.dumps(tails[partition].position).encode()
                sections.append(_section(partition, epochs[partition], written, _EACH, position))
            outcomes = await log.append(sections)
            assert all(isinstance(outcome, Appended) for outcome in outcomes)
            written += _EACH * PARTITIONS
        await (log.crash() if killed and life == lives - 1 else log.close())


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _last_position(log: FileLog, partition: int) -> Position:
    stop = log.end("default.registry", partition)
    (record,) = log.read("default.registry", partition, stop - 1, stop)
    assert record.value is not None
    return Position(json.loads(record.value))


async def measure(directory: str) -> dict[str, float]:
    """Open the log and take all partitions over, in this process."""
    disk = CountingDisk(directory)
    before = _rss()
    started = time.perf_counter()
    log = await open_file_log(directory, disk=disk)
    open_s = time.perf_counter() - started
    opened_rss, opened_bytes = _rss(), disk.read_of()
    started = time.perf_counter()
    for partition in range(PARTITIONS):
        await log.acquire(partition)
        end = log.end("default.events", partition)
        assert len(list(log.read("default.events", partition, end - 100))) == 100
        log.tail("default.inbox", partition, _last_position(log, partition)).poll()
    take_s = time.perf_counter() - started
    found = {
        "open_s": round(open_s, 4),
        "take_s": round(take_s, 4),
        "open_rss_mb": round((opened_rss - before) / 1e6, 1),
        "rss_mb": round((_rss() - before) / 1e6, 1),
        "open_read_kb": round(opened_bytes / 1e3),
        "read_kb": round(disk.read_of() / 1e3),
    }
    await log.crash()  # as it was found, but for a small segment
    return found


def alone(directory: str, cold: bool) -> dict[str, float]:
    """Measure in a new process."""
    if cold:
        for path in Path(directory).rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
    done = subprocess.run([sys.executable, __file__, "--alone", directory], stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def report(directory: str, events: int, lives: int) -> dict[str, Any]:
    started = time.perf_counter()
    asyncio.run(make(directory, events, lives))
    segments = list(Path(directory, "segments").glob("*.jsonl"))
    found: dict[str, Any] = {
        "events": events,
        "segments": len(segments),
        "bytes": sum(path.stat().st_size for path in segments),
        "made_s": round(time.perf_counter() - started, 1),
    }
    for temperature in ("cold", "warm"):
        shutil.rmtree(f"{directory}/verified")
        found |= {f"all_{temperature}_{name}": value for name, value in alone(directory, temperature == "cold").items()}
        alone(directory, False)  # takes in the small segment that was just left
        found |= {
            f"mark_{temperature}_{name}": value for name, value in alone(directory, temperature == "cold").items()
        }
    asyncio.run(make(directory, 40_000, 1, killed=True))
    found |= {f"killed_warm_{name}": value for name, value in alone(directory, False).items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--lives", type=int, default=20)
    parser.add_argument("--directory", default=None, help="where to make the log (default: a temporary directory)")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(asyncio.run(measure(args.alone))))
        return
    folder = tempfile.mkdtemp(prefix="bench-opening-", dir=args.directory)
    try:
        found = report(f"{folder}/log", args.events, args.lives)
    finally:
        shutil.rmtree(folder)
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>28}  {value:,}")


if __name__ == "__main__":
    main()
