"""`gasoline worker`: a worker in a process of its own, and the list of those that run."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from gasoline_es import Gasoline
from tests.cli.terminal import environment, invoke, plain, run, run_on_terminal
from tests.engine.harness import soon
from tests.engine.workflows import Note, echo, notes

_COMMAND = [sys.executable, "-c", "from gasoline_es.cli import main; main()"]
ROOT = Path(__file__).resolve().parents[2]


async def start(url: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(*_COMMAND, "--log", url, "worker", *arguments),
        cwd=ROOT,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_worker_of_a_module_runs_until_sigterm_and_is_listed_meanwhile(tmp_path: Path) -> None:
    """api.md: the noun `worker`; semantics.md §8."""
    url = f"file:{tmp_path}/log"
    process = await start(url, "tests.engine.workflows", "--code-version", "7")
    try:
        assert process.stderr is not None
        while b"worker runs" not in await soon(process.stderr.readline()):
            pass
        (listed,) = run("--log", url, "worker", "list").objects
        assert (listed["pid"], listed["version"], listed["weight"], listed["partitions"]) == (process.pid, 7, 1.0, 16)
        shown = plain(run_on_terminal("--log", url, "worker", "list", columns=120).stdout)
        assert listed["worker"] in shown
        async with Gasoline.open(url) as gasoline:
            handle = await soon(gasoline.dispatch(notes, 1))
            await soon(handle.signal(Note(text="to a worker of the command line")))
            assert await soon(handle.output()) == ["to a worker of the command line"]
        process.send_signal(signal.SIGTERM)
        _, err = await soon(process.communicate())
        assert process.returncode == 0
        assert b"worker stopped" in err
        assert b"Traceback" not in err
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "no worker runs" in run_on_terminal("--log", url, "worker", "list").stdout


@pytest.mark.parametrize(
    "arguments", [["nosuchmodule"], ["run", "nosuchmodule"], ["tests.engine.harness"], ["not a module"]]
)
def test_worker_without_code_is_refused_and_makes_no_log(tmp_path: Path, arguments: list[str]) -> None:
    """style.md: what, where, what to do; nothing is left behind."""
    done = invoke("--log", f"file:{tmp_path}/log", "worker", *arguments)
    assert done.status == 2
    assert done.stderr.startswith("gasoline: ")
    assert not (tmp_path / "log").exists()


def test_workers_of_what_is_no_log(tmp_path: Path) -> None:
    done = invoke("--log", f"file:{tmp_path}/log", "worker", "list")
    assert (done.status, done.stdout) == (1, "")
    assert not (tmp_path / "log").exists()


def test_worker_needs_a_log() -> None:
    done = invoke("worker", "tests.engine.workflows")
    assert done.status == 2
    assert "no log was given" in done.stderr


async def test_worker_serves_metrics_at_the_port_it_is_given_and_tells_which(tmp_path: Path) -> None:
    """docs/operations.md, "Metrics": a real process, scraped over HTTP."""
    url = f"file:{tmp_path}/log"
    process = await start(url, "tests.engine.workflows", "--metrics-port", "0")
    try:
        assert process.stderr is not None
        while (told := re.search(rb"metrics are served at port (\d+)", await soon(process.stderr.readline()))) is None:
            pass
        port = int(told[1])
        async with Gasoline.open(url) as gasoline:
            handle = await soon(gasoline.dispatch(echo, "counted"))
            assert await soon(handle.output()) == "counted"
        with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        assert 'gasoline_workflows_completed_total{workflow="echo"} 1.0' in text
        assert "gasoline_partitions_owned 16.0" in text
        second = await start(url, "tests.engine.workflows", "--metrics-port", str(port))
        _, err = await soon(second.communicate())
        assert second.returncode == 1
        assert f"gasoline: metrics cannot be served at 127.0.0.1:{port}: ".encode() in err
        assert b"Traceback" not in err
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = await soon(process.communicate())
    assert process.returncode == 0
    assert b"Traceback" not in err


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_worker_refuses_what_is_no_port(tmp_path: Path, port: str) -> None:
    done = invoke("--log", f"file:{tmp_path}/log", "worker", "tests.engine.workflows", "--metrics-port", port)
    assert done.status == 2
    assert "--metrics-port" in done.stderr
    assert not (tmp_path / "log").exists()
