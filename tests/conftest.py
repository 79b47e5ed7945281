"""What every test may use: the shared folder, a fresh log's URL, hypothesis profiles, and seeds told on failure."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import kafka_server

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

# No deadline: two shared cores are slow now and then, and a hang is pytest-timeout's to find. Every run makes new
# examples: a failure prints the blob that repeats it.
settings.register_profile("ci", deadline=None, derandomize=False, print_blob=True)
settings.register_profile("dev", deadline=None, derandomize=False, print_blob=True)
settings.register_profile("thorough", deadline=None, derandomize=False, print_blob=True, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Path:
    """The folder of real input beside the repository; a test that needs it is skipped, by name, where there is none."""
    if not SHARED.is_dir():
        pytest.skip(
            f"{request.node.name} needs the folder of real input beside the repository (../shared), and it is not there"
        )
    return SHARED


@pytest.fixture(autouse=True)
def _same_path() -> Iterator[None]:
    """What a command puts in Python's path, for as long as the process lives, is gone with the test."""
    before = [*sys.path]
    yield
    sys.path[:] = before


@pytest.fixture
def tmp_log_url(tmp_path: Path) -> str:
    """The URL of a file log that does not exist yet."""
    return f"file:{tmp_path}/log"


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Kafka broker that all tests of a run share. Who uses it keeps to a namespace of its own."""
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent  # the processes of a run have it in common
    with kafka_server.shared(folder / "kafka") as bootstrap:
        yield bootstrap


@pytest.fixture
def kafka_namespace() -> str:
    """A namespace that no other test uses."""
    return f"t-{secrets.token_hex(6)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """After a failure, says how to get the same order and the same random numbers again."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return
    seed = config.getoption("randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"For the same order and random numbers again: --randomly-seed={seed}")
