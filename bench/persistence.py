"""Measure the persistence module for ``eventsourcing`` beside that package's own SQLite recorder, on one disk, in one run.

Both record the same events, by turns: one event an insert, and 100; then threads that insert one event at a time. Run:
``python bench/persistence.py [--directory DIR] [--rounds N] [--json]``. The directory decides which disk is measured; in one
that is in memory (/dev/shm), where a sync is nothing, the ``best`` figures are what the processor takes: means of the best
turn of 20 inserts, which load moves least.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from uuid import uuid4

from eventsourcing.persistence import ApplicationRecorder, StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore
from eventsourcing.utils import Environment

from gasoline_es.persistence import GasolineFactory

_STATE = (
    b'{"timestamp":{"_type_":"datetime_iso","_data_":"2026-01-01T12:00:00+00:00"},"amount":"25.00","what":"%b"}'
    % (b"x" * 100)
)
_AT_A_TURN = 20
_THREADS = (1, 8, 32)


def events(count: int) -> list[StoredEvent]:
    originator = uuid4()
    return [StoredEvent(originator, version, "bank:Account.Credited", _STATE) for version in range(1, count + 1)]


def fdatasync_s(directory: str, rounds: int) -> float:
    """Return the median time of one fdatasync after an appending write of a kilobyte."""
    path, times = f"{directory}/fdatasync", list[float]()
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        for _ in range(rounds):
            os.write(fd, b"x" * 1_000)
            started = time.perf_counter()
            os.fdatasync(fd)
            times.append(time.perf_counter() - started)
    finally:
        os.close(fd)
    return statistics.median(times)


def inserts_s(recorders: dict[str, ApplicationRecorder], count: int, rounds: int) -> dict[str, list[float]]:
    """Return the times of inserts of ``count`` events, for each recorder: they take turns, so that both meet the same disk."""
    times: dict[str, list[float]] = {name: [] for name in recorders}
    for turn in range(-1, max(rounds // _AT_A_TURN, 1)):
        for name, recorder in recorders.items():
            for _ in range(_AT_A_TURN):
                new = events(count)
                started = time.perf_counter()
                recorder.insert_events(new)
                if turn >= 0:  # the first turn warms up
                    times[name].append(time.perf_counter() - started)
    return times


def rate(recorder: ApplicationRecorder, threads: int, inserts: int) -> float:
    """Return how many inserts of one event a second so many threads do together."""

    def insert() -> None:
        for _ in range(inserts // threads):
            recorder.insert_events(events(1))

    callers = [threading.Thread(target=insert) for _ in range(threads)]
    started = time.perf_counter()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return inserts // threads * threads / (time.perf_counter() - started)


def reading_s(recorder: ApplicationRecorder) -> float:
    """Return how long a notification takes to be read, in sections of 500, the first 5,000 of them."""
    started, read = time.perf_counter(), 0
    while read < 5_000 and (found := recorder.select_notifications(read + 1, 500)):
        read += len(found)
    return (time.perf_counter() - started) / max(read, 1)


def measure(directory: str, rounds: int) -> dict[str, float]:
    factory = GasolineFactory(Environment("bench", {"GASOLINE_LOG": f"file:{directory}/log"}))
    datastore = SQLiteDatastore(f"{directory}/events.db")
    sqlite = SQLiteApplicationRecorder(datastore)
    sqlite.create_table()
    recorders: dict[str, ApplicationRecorder] = {"gasoline": factory.application_recorder(), "sqlite": sqlite}
    told = {"fdatasync_us": fdatasync_s(directory, rounds) * 1e6}
    for count in (1, 100):
        times = inserts_s(recorders, count, rounds)
        for name, taken in times.items():
            told[f"{name}_{count}_us"] = statistics.median(taken) * 1e6
            told[f"{name}_{count}_mean_us"] = statistics.mean(taken) * 1e6
            turns = [taken[at : at + _AT_A_TURN] for at in range(0, len(taken), _AT_A_TURN)]
            told[f"{name}_{count}_best_us"] = min(map(statistics.mean, turns)) * 1e6
        told[f"ratio_{count}"] = told[f"sqlite_{count}_us"] / told[f"gasoline_{count}_us"]
        told[f"ratio_{count}_best"] = told[f"sqlite_{count}_best_us"] / told[f"gasoline_{count}_best_us"]
        told[f"ratio_{count}_mean"] = told[f"sqlite_{count}_mean_us"] / told[f"gasoline_{count}_mean_us"]
    for threads in _THREADS:
        rates = {name: [rate(one, threads, rounds) for _ in range(5)] for name, one in recorders.items()}
        for name, found in rates.items():
            told[f"{name}_{threads}_threads_per_s"] = statistics.median(found)
        told[f"ratio_{threads}_threads"] = (
            told[f"gasoline_{threads}_threads_per_s"] / told[f"sqlite_{threads}_threads_per_s"]
        )
    for name, recorder in recorders.items():
        told[f"{name}_read_us"] = reading_s(recorder) * 1e6
    factory.close()
    datastore.close()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="bench-persistence-", dir=arguments.directory)
    try:
        told = measure(directory, arguments.rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if arguments.json:
        print(json.dumps({name: round(value, 2) for name, value in told.items()}))
        return
    for name, value in told.items():
        print(f"{name:24} {value:10.2f}")


if __name__ == "__main__":
    main()
