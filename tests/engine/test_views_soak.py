"""Workers and clients that are killed and frozen at random: what the stored views say is what a fresh fold of the log says."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Gasoline
from gasoline_es.log.opening import open_log
from projections import Workflows
from projections.building import rebuild
from projections.comparing import verify
from projections.stores.opening import open_store

ROOT = Path(__file__).resolve().parents[2]
QUIET_S = 90.0


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with (folder / "ids").open("ab") as ids, (folder / "errors").open("ab") as errors:
        command = [sys.executable, "-m", "tests.engine.views_programs", *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=ids, stderr=errors)


async def said(url: str) -> Mapping[str, Any]:
    async with Gasoline.open(url, readonly=True) as gasoline:
        infos = [info async for info in gasoline.list(payloads=True)]
        tagged = [[info.id async for info in gasoline.list(tags={"customer": tag})] for tag in range(4)]
        return {
            "infos": {info.id: repr(info) for info in infos},
            "order": [info.id async for info in gasoline.list()],
            "counts": await gasoline.counts(),
            "tagged": tagged,
            "histories": {info.id: [repr(event) for event in await gasoline.history(info.id)] for info in infos},
        }


async def quiet(url: str) -> None:
    until = time.monotonic() + QUIET_S
    async with Gasoline.open(url, readonly=True) as gasoline:
        while running := [info.id async for info in gasoline.list(status="running")]:
            assert time.monotonic() < until, f"still running: {running}"


async def built_anew(url: str) -> None:
    log = await open_log(url, readonly=True)
    _ = rebuild(log, open_store(log), Workflows())
    await log.close()


async def live(folder: Path, url: str, chosen: random.Random, seconds: float) -> None:
    """Let three workers and two clients be killed and frozen; end when nothing runs any more."""
    client = ("client", url, str(chosen.randrange(1 << 30)), str(seconds))
    workers, clients = [start(folder, "worker", url) for _ in range(3)], [start(folder, *client) for _ in range(2)]
    until, killed = time.monotonic() + seconds, set[int]()
    while time.monotonic() < until:
        time.sleep(chosen.uniform(0.2, 1.5))  # the moments are what is random here
        what, at = chosen.random(), chosen.randrange(3)
        if what < 0.5:
            workers[at].kill()
            workers[at].wait()
            workers[at] = start(folder, "worker", url)
        elif what < 0.6:
            clients[at % 2].kill()
            killed.add(clients[at % 2].pid)
        elif what < 0.8:
            workers[at].send_signal(signal.SIGSTOP)
            time.sleep(chosen.choice((0.3, 2.0, 11.0)))
            workers[at].send_signal(signal.SIGCONT)
        else:
            await built_anew(url)
    for one in clients:
        assert one.wait(QUIET_S) == (-signal.SIGKILL if one.pid in killed else 0), (folder / "errors").read_text()[
            -3000:
        ]
    await quiet(url)
    end = chosen.choice((signal.SIGTERM, signal.SIGKILL))
    for one in workers:
        one.send_signal(end)
    for one in workers:
        # One that was started just now may not have come to where it stops at SIGTERM.
        assert one.wait(QUIET_S) in (0, -signal.SIGTERM, -signal.SIGKILL), (folder / "errors").read_text()[-3000:]


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("rounds", [6])
async def test_stored_views_say_what_a_fresh_fold_says_whatever_is_killed(tmp_path: Path, rounds: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chosen, log, copy = random.Random(seed), tmp_path / "log", tmp_path / "copy"
    async with Gasoline.open(f"file:{log}"):
        pass  # whoever reads it comes before the first worker has made it, or behind
    for _ in range(rounds):
        await live(tmp_path, f"file:{log}", chosen, chosen.uniform(6, 12))
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(log, copy, ignore=shutil.ignore_patterns("projections"))
        stored, fresh = await said(f"file:{log}"), await said(f"file:{copy}")
        for what in fresh:
            assert stored[what] == fresh[what], (seed, what)
        acknowledged = set((tmp_path / "ids").read_text().split())
        assert acknowledged <= fresh["infos"].keys(), seed
        opened = await open_log(f"file:{log}", readonly=True)
        assert list(opened.verify())
        assert verify(opened, open_store(opened), Workflows()).difference is None, seed
        await opened.close()
        if chosen.random() < 0.3:
            shutil.rmtree(log / "projections")
