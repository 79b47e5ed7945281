"""The main example, killed again and again (issue 1/6: "20 kills at random moments … no line lost or doubled")."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.examples.helpdesk_runs import (
    Line,
    as_printed,
    check_every_line_is_recorded_once,
    command,
    expected,
    lines_of,
    made_up,
    summary,
    written,
)


@pytest.mark.timeout(400)  # the starts of processes, on a machine that may have other things to do
async def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    lines = made_up(random.Random(7), 1_200)
    await kill_and_restart(written(tmp_path / "desk.jsonl", lines), lines, tmp_path, 8)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_twenty_kills_on_the_real_log_lose_and_double_nothing(shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "helpdesk.jsonl.gz"
    await kill_and_restart(path, lines_of(path), tmp_path, 20)


async def kill_and_restart(path: Path, lines: Sequence[Line], folder: Path, count: int) -> None:
    """Kill runs over one log until it is complete, then over the next, until enough were killed before their end."""
    seed = random.getrandbits(32)
    print(f"kills from random.Random({seed})")
    rng = random.Random(seed)
    wanted = as_printed(expected(lines))
    whole = folder / "whole"
    assert summary(path, whole, timeout_s=600) == wanted
    whole_bytes = segment_bytes(whole)
    kills, logs = 0, 0
    while kills < count:
        log = folder / f"log-{logs}"
        logs += 1
        while kills < count and killed(path, log, rng, 2 * whole_bytes / count):
            kills += 1
        assert summary(path, log, timeout_s=600) == wanted
        await check_every_line_is_recorded_once(log, lines)
        assert summary(path, log, timeout_s=600) == wanted
    print(f"{kills} kills over {logs} logs")


def killed(path: Path, log: Path, rng: random.Random, bytes_max: float) -> bool:
    """Start a run and kill it at a random moment; False if it came to its end before.

    Most moments are told by how much the run has written, so that they lie inside of it however slow the machine is;
    the others by the clock, so that they also hit the start and the recovery.
    """
    with subprocess.Popen(command(path, log), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        started, bytes_before = time.monotonic(), segment_bytes(log)
        after_s = rng.uniform(0, 1.0) if rng.random() < 0.3 else None
        after_bytes = rng.uniform(0, bytes_max)
        while process.poll() is None:
            grown, passed_s = segment_bytes(log) - bytes_before, time.monotonic() - started
            if grown > after_bytes if after_s is None else passed_s > after_s:
                process.kill()
                process.wait()
                return process.returncode != 0
            time.sleep(0.002)
    assert process.returncode == 0
    return False


def segment_bytes(log: Path) -> int:
    return sum(segment.stat().st_size for segment in (log / "segments").glob("*.jsonl"))
