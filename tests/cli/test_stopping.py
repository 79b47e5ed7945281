"""A SIGTERM that comes while a command is only about to begin ends it as one that was stopped, and not as a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gasoline_es import Gasoline
from gasoline_es.cli.stopping import stopping
from tests.cli.terminal import environment
from tests.engine.workflows import echo

ROOT = Path(__file__).resolve().parents[2]
_ENDED_FIRST = """
import os, signal
from gasoline_es.cli import main, stopping

hold = stopping.hold
def held():
    hold()
    os.kill(os.getpid(), signal.SIGTERM)
stopping.hold = held
main()
"""
"""The command line, with a SIGTERM right after its first line."""


def run(program: str, *arguments: str, folder: Path = ROOT) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**environment(), "PYTHONPATH": f"{ROOT}"},
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "command",
    [("worker", "tests.engine.workflows"), ("worker", "run", "tests.engine.workflows"), ("projections", "run")],
)
def test_a_signal_before_anything_ends_what_runs_until_one_with_status_0(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    assert run(_ENDED_FIRST, "--log", f"file:{tmp_path}/log", *command) == (0, "")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("command", [("worker", "list"), ("projections", "status"), ("workflow", "list")])
def test_a_signal_ends_every_other_command_as_it_ends_any_process(tmp_path: Path, command: tuple[str, ...]) -> None:
    status, said = run(_ENDED_FIRST, "--log", f"file:{tmp_path}/log", *command)
    assert (status, said) == (-signal.SIGTERM, "")


def test_a_signal_while_the_code_is_loaded_ends_the_worker_with_status_0(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    program = "from gasoline_es.cli import main; main()"
    assert run(program, "--log", f"file:{tmp_path}/log", "worker", "shop", folder=tmp_path) == (0, "")
    assert not (tmp_path / "log").exists()


def test_a_signal_while_the_log_is_opened_or_has_been_lets_go_of_it(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    reached: list[str] = []

    async def work() -> None:
        async with Gasoline.open(url) as gasoline:
            await gasoline.dispatch(echo, "x")
            reached.append("open")
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.get_running_loop().create_future()

    async def owners() -> list[bool]:
        async with Gasoline.open(url, readonly=True) as gasoline:
            found = [gasoline.log.owner(partition) for partition in range(gasoline.log.partition_count)]
            return [one.released for one in found if one is not None]

    before = signal.getsignal(signal.SIGTERM)
    with stopping() as early:
        early.run(work())
    assert reached == ["open"]
    assert signal.getsignal(signal.SIGTERM) == before
    assert all(asyncio.run(owners()))


def test_a_signal_while_everything_is_let_go_of_interrupts_nothing() -> None:
    ended: list[str] = []

    async def work() -> None:
        with early.ending():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended.append("let go of")

    with stopping() as early:
        early.run(work())
    assert ended == ["let go of"]


def test_what_is_cancelled_otherwise_is_no_stop() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with stopping() as early, pytest.raises(asyncio.CancelledError):
        early.run(work())
