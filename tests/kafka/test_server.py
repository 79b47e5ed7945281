"""The brokers that tests use: shared while anybody uses them, and gone with those who did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kafka_server import BOOTSTRAP_VARIABLE, living_brokers, own_broker, shared

ROOT = Path(__file__).resolve().parents[2]
_USER = """
import sys
from pathlib import Path
from tests.kafka_server import shared
with shared(Path(sys.argv[1])) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


@contextmanager
def user(folder: Path) -> Generator[subprocess.Popen[str]]:
    """Run a process that uses the broker which is shared through a folder."""
    environment = {name: value for name, value in os.environ.items() if name != BOOTSTRAP_VARIABLE}
    process = subprocess.Popen(
        [sys.executable, "-c", _USER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    with process:
        yield process
        process.kill()


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_until_gone(bootstrap: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while living_brokers(bootstrap):
        assert time.monotonic() < deadline, f"the broker at {bootstrap} still answers"
        time.sleep(0.02)


def test_a_broker_is_shared_by_processes_and_ends_with_the_last_of_them_even_if_killed(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    del kafka_bootstrap  # asked for so that this is skipped where there can be no broker
    with user(tmp_path / "shared") as first, user(tmp_path / "shared") as second:
        where = address(first)
        assert where == address(second)
        first.send_signal(signal.SIGKILL)  # whichever of the two has started it
        first.wait()
        assert living_brokers(where) == {1}
        second.send_signal(signal.SIGKILL)
        second.wait()
        wait_until_gone(where)


@pytest.mark.soak
def test_a_broker_that_was_killed_starts_again_where_it_was() -> None:
    with own_broker() as broker:
        broker.kill()
        assert living_brokers(broker.bootstrap) == set()
        broker.start()
        assert living_brokers(broker.bootstrap) == {1}
        broker.stop()
        assert living_brokers(broker.bootstrap) == set()
        folder = broker.folder
    assert not folder.exists()


@pytest.mark.parametrize("given", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"])
def test_a_given_broker_that_does_not_answer_fails_the_tests(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, given)
    with pytest.raises(pytest.fail.Exception, match="no broker answers there"), shared(tmp_path / "shared"):
        pass
