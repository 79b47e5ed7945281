"""What projections promise and do not hold (design §7, decision 0033)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gasoline_es.errors import Fenced
from gasoline_es.log.port import Record
from gasoline_es.testing.log_contract import EVENTS, event, numbers, put
from projections.definition import Projection
from projections.running import Runner
from projections.stores.sqlite import SqliteStore
from tests.log.test_ownership import (
    _take_and_put,  # pyright: ignore[reportPrivateUsage]
    at_once,
    before,
    begin,
)


class Numbers(Projection):
    """The numbers of the records it is given."""

    name = "numbers"
    version = 1

    def setup(self, db: Any) -> None:
        db.execute("CREATE TABLE number(at INTEGER PRIMARY KEY, number INTEGER NOT NULL)")

    def folding(self, partition: int, db: Any) -> _Folding:
        return _Folding()


class _Folding:
    def prepare(self, records: Sequence[Record]) -> None: ...

    def apply(self, records: Sequence[Record], db: Any) -> None:
        rows = zip([record.offset for record in records], numbers(iter(records)), strict=True)
        db.executemany("INSERT INTO number VALUES (?, ?)", rows)

    def committed(self) -> None: ...

    def rolled_back(self) -> None: ...


async def test_a_projection_folds_nothing_that_turns_out_not_to_count(tmp_path: Path) -> None:
    """0033: "Each event counts once"; 0034: the same danger, averted for histories."""
    scene, a, _, epoch, b, b_disk = await begin(tmp_path / "log")
    reader, _ = await scene.open(readonly=True, final=True)  # as ProjectionThread and `gasoline projections` open it
    store = SqliteStore(str(tmp_path / "store"), log_id=reader.log_id, namespace="default")
    runner = Runner(reader, store, [Numbers()])
    while runner.step():
        pass
    scene.freeze(a, seen_by=b)

    def publish() -> None:
        assert isinstance(at_once(put(a, epoch, event(3))), Fenced)
        while runner.step():
            pass

    before(b_disk, "write", ".jsonl", publish)
    await _take_and_put(b, 10)
    await _put_more(b, 11)
    while runner.step():
        pass
    runner.close()
    with store.snapshot("numbers") as snapshot:
        found = [number for (number,) in snapshot.db.execute("SELECT number FROM number ORDER BY at")]
    assert numbers(reader.read(EVENTS, 0)) == [1, 2, 10, 11]
    assert found == [1, 2, 10, 11]
    await scene.close()


async def _put_more(log: Any, number: int) -> None:
    owner = log.owner(0)
    await put(log, owner.epoch, event(number))
