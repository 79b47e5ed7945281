"""One log with every kind of history in it, made once for a process of tests, which only look at it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gasoline_es.log import open_log
from tests.cli.histories import Story, tell


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A log that nobody may change."""
    return tell(tmp_path_factory.mktemp("story") / "log")


@pytest.fixture
def empty_log(tmp_path: Path) -> str:
    """The URL of a log in which nothing ever happened."""

    async def make() -> None:
        await (await open_log(f"file:{tmp_path}/empty", partitions=2)).close()

    asyncio.run(make())
    return f"file:{tmp_path}/empty"
