"""Worlds for the engine's tests; each ends with a look at every history in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gasoline_es.runtime import node
from tests.engine.harness import World


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Views are stored as soon as they change: nearly everything that is over is read from the store."""
    with pytest.MonkeyPatch.context() as patch:  # one of its own: a test's is to be undone before its world ends
        patch.setattr(node, "SAVE_AFTER_S", 0.0)
        yield


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A memory log and a virtual clock."""
    made = World()
    yield made
    await made.end()


@pytest.fixture(params=["memory", "file"])
async def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """The same on the memory log and on the file log."""
    made = World() if request.param == "memory" else World(f"file:{tmp_path}/log")
    yield made
    await made.end()


@pytest.fixture
async def file_world(tmp_path: Path) -> AsyncIterator[World]:
    """A file log and a virtual clock."""
    made = World(f"file:{tmp_path}/log")
    yield made
    await made.end()
