"""Whatever a projection's functions raise is an error of that projection: the others go on."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Event
from gasoline_es.errors import ProjectionError
from gasoline_es.log.memory import open_memory_log
from projections import Projection, projection
from projections.building import rebuild
from projections.running import Runner
from projections.stores.opening import open_store
from tests.projection.orders import append_orders


def make_tables(db: Any) -> None:
    db.execute("CREATE TABLE orders(n INTEGER NOT NULL)")
    db.execute("INSERT INTO orders VALUES (0)")


@projection("counts", setup=make_tables)
def counts(event: Event, db: Any) -> None:
    db.execute("UPDATE orders SET n = n + 1")


class Raises(Projection):
    """Raises what it is given, at the second event, or where it makes its tables."""

    name = "raises"

    def __init__(self, error: BaseException, *, at_setup: bool = False) -> None:
        self.error = error
        self.at_setup = at_setup
        self.seen = 0

    def setup(self, db: Any) -> None:
        make_tables(db)
        if self.at_setup:
            raise self.error

    def apply(self, event: Event, db: Any) -> None:
        self.seen += 1
        if self.seen >= 2:
            raise self.error
        db.execute("UPDATE orders SET n = n + 1")


ENDS = (SystemExit(3), GeneratorExit(), asyncio.CancelledError())


@pytest.mark.parametrize("error", ENDS, ids=repr)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_an_exit_out_of_apply_stops_that_partition_alone(
    kind: str, error: BaseException, request: pytest.FixtureRequest
) -> None:
    store_url = request.getfixturevalue("postgres_url") if kind == "postgres" else None
    log = await open_memory_log(partitions=1)
    await append_orders(log, 1, 2, 3)
    store = open_store(log, store_url)
    with closing(Runner(log, store, [Raises(error), counts])) as runner:
        while runner.step():
            pass
        (stopped,) = runner.kept[0].stopped
    assert stopped.cause.startswith(type(error).__name__)
    with store.snapshot("counts") as snapshot:
        assert snapshot.db.execute("SELECT n FROM orders").fetchone() == (3,)
    await log.close()


@pytest.mark.parametrize("error", ENDS, ids=repr)
async def test_an_exit_out_of_setup_is_an_error_of_its_projection(error: BaseException) -> None:
    log = await open_memory_log(partitions=1)
    await append_orders(log, 1, 2, 3)
    store = open_store(log)
    raises = Raises(error, at_setup=True)
    with closing(Runner(log, store, [raises, counts])) as runner:
        while runner.step():
            pass
        assert [kept.standing for kept in runner.kept] == ["failing", "folding"]
    with pytest.raises(ProjectionError, match="the setup of projection 'raises' raised"):
        rebuild(log, store, raises)
    await log.close()


async def test_ctrl_c_in_apply_ends_the_process_that_folds(tmp_path: Path) -> None:
    log = await open_memory_log(partitions=1)
    await append_orders(log, 1, 2, 3)
    with pytest.raises(KeyboardInterrupt):
        Runner(log, open_store(log), [Raises(KeyboardInterrupt())]).run_once()
    await log.close()
