"""The processes of a rebuild end with the one that started them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.projection.test_parallel import recorded

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0
PATIENCE_S = 3.0

REBUILD = """
import asyncio, sys
from gasoline_es.log.opening import open_log
from projections import building
from projections.stores.opening import open_store
from tests.projection.waiting import waits

async def main():
    log = await open_log(sys.argv[1], readonly=True)
    building.RECORDS_WORTH_IT = 0
    building.rebuild(log, open_store(log), waits, jobs=2)

if __name__ == "__main__":
    asyncio.run(main())
"""


CHECK = """
import multiprocessing, os, time
from gasoline_es import WorkflowContext, workflow

@workflow
async def order(ctx: WorkflowContext, n: int) -> int:
    return n

if multiprocessing.parent_process() is not None:  # one of those that check: it has the code once nobody waits for it
    began = os.getppid()
    with open(os.environ["PIDS"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    while os.getppid() == began:
        time.sleep(0.01)
"""


async def test_a_check_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    await recorded(url, 20)
    (tmp_path / "checked.py").write_text(CHECK)
    command = [
        sys.executable,
        "-c",
        "from gasoline_es.cli import main; main()",
        "--log",
        url,
        "replay-check",
        "checked",
        "--jobs",
        "2",
    ]
    await _leaves_no_process(command, signal.SIGKILL, tmp_path)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_rebuild_that_is_killed_leaves_no_process(how: signal.Signals, tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    await recorded(url, 20)
    script = tmp_path / "rebuild.py"
    script.write_text(REBUILD)
    await _leaves_no_process([sys.executable, str(script), url], how, tmp_path)


async def _leaves_no_process(command: list[str], how: signal.Signals, tmp_path: Path) -> None:
    """Kill a command once a process that it started has said that it is at work."""
    pids = tmp_path / "pids"
    pids.touch()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "PIDS": str(pids)},
    )
    children: list[int] = []
    begun = time.monotonic()
    try:
        while not pids.read_text():
            assert process.poll() is None
            assert time.monotonic() < begun + START_S, "nothing is folded"
            await asyncio.sleep(0.01)
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert children
        process.send_signal(how)
        process.wait()
        until = time.monotonic() + PATIENCE_S
        while alive := [pid for pid in children if _lives(pid)]:
            assert time.monotonic() < until, f"{alive} go on without {process.pid}"
            await asyncio.sleep(0.02)
    finally:
        process.kill()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
