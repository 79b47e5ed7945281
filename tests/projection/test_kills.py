"""Processes killed between reading, applying and storing: what they leave is folded on as if nothing had been (design §7)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gasoline_es.log.opening import open_log
from projections.comparing import verify
from projections.running import Runner
from projections.stores.opening import open_store
from tests.projection.orders import append_orders, read, turnover

ROOT = Path(__file__).resolve().parents[2]

FOLDER = """
import asyncio, sys
from gasoline_es.log.opening import open_log
from projections.running import Runner
from projections.stores.opening import open_store
from tests.projection.dying import dies_at
from tests.projection.orders import turnover

url, store_url, point = sys.argv[1], sys.argv[2] or None, sys.argv[3]
times, version = int(sys.argv[4]), int(sys.argv[5])

reach = dies_at(point, times)

async def main():
    log = await open_log(url, readonly=True)
    projection = turnover(version, then=lambda event, db: reach("applied"))
    read = projection.read
    projection.read = lambda record: (reach("read"), read(record))[1]
    runner = Runner(log, open_store(log, store_url, reach=reach), [projection])
    while True:
        runner.run_once()
        if runner.kept[0].standing != "waiting":  # until a server has noticed that the one before is dead
            break
    print("done")

asyncio.run(main())
"""


def run(url: str, store_url: str | None, point: str, times: int, version: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", FOLDER, url, store_url or "", point, str(times), str(version)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


KILLS = (
    ("created", 1, 1),
    ("read", 3, 1),
    ("applied", 4, 1),
    ("moved", 2, 1),
    ("swap caught up", 1, 1),
    ("swapped", 1, 1),
    # From here on it is built: what comes is folded on.
    ("begun", 2, 1),
    ("applied", 2, 1),
    ("moved", 1, 1),
    ("stored", 1, 1),
    # And now it is built anew.
    ("swap locked", 1, 2),
    ("marked", 1, 2),
)
"""Where the next process is killed, when it comes there for the how manieth time, with the projection's version."""
KILLS_POSTGRES = (("created", 1, 1), ("applied", 4, 1), ("swap caught up", 1, 1), ("moved", 2, 1), ("swapped", 1, 2))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_killed_processes_left_is_folded_on_to_what_a_fresh_fold_gives(
    kind: str, tmp_log_url: str, request: pytest.FixtureRequest
) -> None:
    store_url = request.getfixturevalue("postgres_url") if kind == "postgres" else None
    kills = KILLS_POSTGRES if kind == "postgres" else KILLS
    log = await open_log(tmp_log_url, partitions=2)
    first = 1
    for point, times, version in kills:
        for partition in (0, 1):
            await append_orders(log, first, first + 1, partition=partition, first=first + 10_000 * partition)
        first += 2
        killed = run(tmp_log_url, store_url, point, times, version)
        assert killed.returncode == -9, (point, times, killed.stdout, killed.stderr)
    store = open_store(log, store_url)
    Runner(log, store, [turnover(2)]).run_once()
    events = 2 * len(kills)
    assert read(store) == [(0, events, sum(range(1, first))), (1, events, sum(range(1, first)))]
    assert verify(log, store, turnover(2)).difference is None
    assert [info.current for info in store.generations("turnover")] == [True]
    await log.close()
