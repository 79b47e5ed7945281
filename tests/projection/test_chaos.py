"""Processes that fold, rebuild and raise versions side by side, and are killed at random points (design §7)."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from gasoline_es.log.opening import open_log
from projections.building import rebuild
from projections.comparing import verify
from projections.stores.opening import open_store
from projections.stores.port import POINTS
from tests.projection.orders import append_orders, read, turnover

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import asyncio, random, sys, time
from gasoline_es.errors import GasolineError
from gasoline_es.log.opening import open_log
from projections.building import rebuild
from projections.running import Runner
from projections.stores.opening import open_store
from tests.projection.dying import dies_at
from tests.projection.orders import turnover

url, store_url, seed, points, version = sys.argv[1], sys.argv[2] or None, int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
chosen = random.Random(seed)
point, times = chosen.choice(points.split(",")), chosen.randrange(1, 9)

reach = dies_at(point, times)

async def main():
    log = await open_log(url, readonly=True)
    projection = turnover(version, then=lambda event, db: reach("applied"))
    until = time.monotonic() + 2
    while time.monotonic() < until:
        store = open_store(log, store_url, reach=reach)
        if chosen.random() < 0.2:
            rebuild(log, store, projection)
        Runner(log, store, [projection]).run_once()

asyncio.run(main())
"""


ANYWHERE = ",".join([*POINTS, "applied"])
SURE = "begun,applied,moved,stored"
"""Points that whoever folds comes past again and again."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize(("rounds", "points"), [(1, SURE), pytest.param(12, ANYWHERE, marks=pytest.mark.soak)])
async def test_whatever_dies_where_each_event_counts_once(
    kind: str, rounds: int, points: str, tmp_log_url: str, request: pytest.FixtureRequest
) -> None:
    store_url = request.getfixturevalue("postgres_url") if kind == "postgres" else None
    log = await open_log(tmp_log_url, partitions=2)
    seed = random.randrange(1 << 30)
    chosen = random.Random(seed)
    first, version, killed = 1, 1, 0
    for _ in range(rounds):
        version += chosen.random() < 0.2
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-c", WORKER, tmp_log_url, store_url or "", str(chosen.randrange(1 << 30))),
                    *(points, str(version - (chosen.random() < 0.3 and version > 1))),
                ],
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(3)
        ]
        while any(process.poll() is None for process in processes):
            for partition in (0, 1):
                await append_orders(log, first, partition=partition, first=first + 1_000_000 * partition)
            first += 1
            await asyncio.sleep(0.02)
        for process in processes:
            _, told = process.communicate()
            assert process.returncode in (0, -9), (seed, told)
            killed += process.returncode == -9
    store = open_store(log, store_url)
    rebuilt = turnover(version)
    found = store.generations("turnover")
    assert sum(info.current for info in found) <= 1, seed
    current = [info for info in found if info.current]
    if current:
        assert verify(log, store, turnover(current[0].meta.version)).difference is None, seed
    rebuild(log, store, rebuilt)
    assert read(store) == [(0, first - 1, first * (first - 1) // 2), (1, first - 1, first * (first - 1) // 2)], seed
    assert verify(log, store, rebuilt).difference is None, seed
    assert killed > rounds / 2, (seed, killed)
    await log.close()
