"""Measure the file log: appending and scanning rates, a lone append, and one fdatasync of the same disk beside them.

Run: ``python bench/log_rates.py [--directory DIR] [--records N] [--json]``. The directory decides which disk is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time

from gasoline_es.log import open_log
from gasoline_es.log.port import Log, NewRecord, Section

_BATCH = 1_000
_VALUE = b'{"specversion":"1.0","data":"%b"}' % (b"x" * (700 - 33))


def fdatasync_s(directory: str, size: int = 1_000, rounds: int = 500) -> float:
    """Return the median time of one fdatasync after an appending write of ``size`` bytes."""
    path = f"{directory}/fdatasync"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    times: list[float] = []
    try:
        for _ in range(rounds):
            os.write(fd, b"x" * size)
            started = time.perf_counter()
            os.fdatasync(fd)
            times.append(time.perf_counter() - started)
    finally:
        os.close(fd)
        os.unlink(path)
    return statistics.median(times)


def _records(first: int, count: int) -> list[NewRecord]:
    return [
        NewRecord(
            "default.events", 0, f"0198c7f0-0000-7000-8000-000000000000/{first + i}", _VALUE, 1_700_000_000_000_000
        )
        for i in range(count)
    ]


async def _lone_append_s(log: Log, epoch: int, rounds: int = 500) -> float:
    times: list[float] = []
    from gasoline_es.log.port import Epoch

    for i in range(rounds):
        section = Section(0, Epoch(epoch), _records(i, 1))
        started = time.perf_counter()
        await log.append([section])
        times.append(time.perf_counter() - started)
    return statistics.median(times)


async def measure(directory: str, records: int) -> dict[str, float]:
    """Return the rates, measured in ``directory``."""
    log = await open_log(f"file:{directory}/log")
    owned = await log.acquire(0)
    lone_s = await _lone_append_s(log, owned.epoch)
    sync_s = fdatasync_s(directory)
    batches = [Section(0, owned.epoch, _records(first, _BATCH)) for first in range(0, records, _BATCH)]
    started = time.perf_counter()
    for section in batches:
        await log.append([section])
    append_s = time.perf_counter() - started
    log.end("default.events", 0)
    started = time.perf_counter()
    count = sum(1 for _ in log.read("default.events", 0))
    scan_s = time.perf_counter() - started
    assert count >= records
    await log.close()
    shutil.rmtree(f"{directory}/log/verified")  # with it nothing is verified: bench/opening.py
    started = time.perf_counter()
    again = await open_log(f"file:{directory}/log")
    open_s = time.perf_counter() - started
    await again.close()
    return {
        "append_records_per_s": records / append_s,
        "scan_records_per_s": count / scan_s,
        "open_records_per_s": count / open_s,
        "lone_append_us": lone_s * 1e6,
        "fdatasync_us": sync_s * 1e6,
        "lone_append_in_fdatasyncs": lone_s / sync_s,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default=None, help="where to make the log (default: a temporary directory)")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="log-rates-", dir=arguments.directory)
    try:
        rates = asyncio.run(measure(directory, arguments.records))
    finally:
        shutil.rmtree(directory)
    if arguments.json:
        print(json.dumps(rates))
        return
    print(f"append, batches of {_BATCH} records of {len(_VALUE)} B   {rates['append_records_per_s']:>12,.0f} records/s")
    print(f"scan, digests checked                     {rates['scan_records_per_s']:>12,.0f} records/s")
    print(f"open for writing, every byte verified     {rates['open_records_per_s']:>12,.0f} records/s")
    print(f"one lone append                           {rates['lone_append_us']:>12,.0f} us")
    print(f"one fdatasync                             {rates['fdatasync_us']:>12,.0f} us")


if __name__ == "__main__":
    main()
