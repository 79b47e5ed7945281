from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg import sql

from gasoline_es.log.memory import open_memory_log
from gasoline_es.log.opening import open_log
from gasoline_es.log.port import Log
from projections.stores.memory import MemoryStore
from projections.stores.port import Generation, Reach, Store, nothing
from projections.stores.postgres import PostgresStore
from projections.stores.sqlite import SqliteStore
from tests.kafka.cluster_of_memory import cluster_for_all
from tests.postgres_server import available

OpenStore: TypeAlias = Callable[..., Store[Any]]

KINDS = ("sqlite", "memory", "postgres")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server, one for each test process."""
    with available() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a database without any projections."""
    yield postgres_server
    with psycopg.connect(postgres_server, autocommit=True) as db:
        made = db.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%\\_\\_%'").fetchall()
        for (schema,) in made:
            db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of store there is: what holds for one holds for all."""
    return str(request.param)


@pytest.fixture
def log_kind() -> str:
    """What log there is below the projections: ``memory``, or ``kafka``."""
    return "memory"


@pytest.fixture
async def log(log_kind: str, tmp_path: Path) -> AsyncIterator[Log]:
    with pytest.MonkeyPatch.context() as patch:
        if log_kind == "memory":
            opened: Log = await open_memory_log(partitions=2)
        else:
            cluster_for_all(patch)
            opened = await open_log(f"kafka://memory:9092/default?state_dir={tmp_path}/state", partitions=2)
        yield opened
        await opened.close()


@pytest.fixture
def open_store(kind: str, log: Log, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    """Opens the same store again and again, as so many processes would. ``log_id``: of another log."""
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else ""
    with ExitStack() as opened:

        def open_it(*, reach: Reach = nothing, log_id: str | None = None) -> Store[Any]:
            one: Store[Any]
            if kind == "sqlite":
                directory = f"{tmp_path}/projections"
                one = SqliteStore(directory, log_id=log_id or log.log_id, namespace="default", reach=reach)
            elif kind == "postgres":
                one = PostgresStore(url, log_id=log_id or log.log_id, namespace="default", reach=reach)
            else:
                one = MemoryStore(log, reach=reach)
            closed_at_the_end(one, opened)
            return one

        yield open_it


def closed_at_the_end(store: Store[Any], opened: ExitStack) -> None:
    """Let what a store opens be closed when the test is over, whatever the test does with it."""
    name = "_opened" if isinstance(store, PostgresStore) else "_generation"
    make: Callable[..., Generation[Any]] = getattr(store, name)

    def opening(*args: Any) -> Generation[Any]:
        return opened.enter_context(closing(make(*args)))

    setattr(store, name, opening)


@pytest.fixture
def store(open_store: OpenStore) -> Store[Any]:
    return open_store()
