from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from gasoline_es.log.memory import open_memory_log
from gasoline_es.log.port import Log
from projections.stores.memory import MemoryStore
from projections.stores.port import Reach, Store, nothing
from projections.stores.sqlite import SqliteStore

OpenStore: TypeAlias = Callable[..., Store[Any]]

KINDS = ("sqlite", "memory")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of store there is: what holds for one holds for all."""
    return str(request.param)


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    opened = await open_memory_log(partitions=2)
    yield opened
    await opened.close()


@pytest.fixture
def open_store(kind: str, log: Log, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens the same store again and again, as so many processes would. ``log_id``: of another log."""
    with ExitStack() as opened:

        def open_it(*, reach: Reach = nothing, log_id: str | None = None) -> Store[Any]:
            if kind == "sqlite":
                return SqliteStore(
                    f"{tmp_path}/projections", log_id=log_id or log.log_id, namespace="default", reach=reach
                )
            return opened.enter_context(closing(MemoryStore(log, reach=reach)))

        yield open_it


@pytest.fixture
def store(open_store: OpenStore) -> Store[Any]:
    return open_store()
