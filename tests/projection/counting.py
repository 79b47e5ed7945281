"""A projection that counts what it is given, written on a store alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from projections.stores.port import START, CatchUp, Feed, Generation, Position, Store

FEED = Feed("default.events", 0)
OTHER = Feed("default.events", 1)


def setup(db: Any) -> None:
    db.execute("CREATE TABLE counted(name VARCHAR(20) PRIMARY KEY, times INTEGER NOT NULL)")


def count(db: Any, name: str) -> None:
    mark = "?" if hasattr(db, "total_changes") else "%s"
    db.execute(
        f"INSERT INTO counted VALUES ({mark}, 1) ON CONFLICT (name) DO UPDATE SET times = counted.times + 1",  # noqa: S608
        (name,),
    )


def at(offset: int) -> Position:
    return Position(offset, offset + 100, f"{offset:016x}")


def fold(generation: Generation[Any], offset: int, *, feed: Feed = FEED) -> None:
    """Count one event, from wherever the generation stands, up to this offset."""
    before = generation.positions().get(feed, START)
    with generation.writing() as write:
        count(write.db, "event")
        write.move(feed, before, at(offset))


def change(
    generation: Generation[Any],
    before: Position,
    after: Position,
    then: Callable[[Any], object] | None = None,
) -> None:
    """Count one event and move the position; in between ``then`` does what it does, and if it returns, another is counted."""
    with generation.writing() as write:
        count(write.db, "event")
        if then is not None:
            then(write.db)
            count(write.db, "event")
        write.move(FEED, before, after)


def raising(error: BaseException) -> Callable[[Any], None]:
    def do(db: Any) -> None:
        raise error

    return do


def running(statement: str) -> Callable[[Any], None]:
    def do(db: Any) -> None:
        db.execute(statement)

    return do


def built(store: Store[Any], version: int = 1, *, up_to: int = -1, name: str = "counts") -> Generation[Any]:
    """Build a generation, and make it the current one; return it."""
    generation = store.create(name, version, setup)
    store.swap(generation, catching_up(generation, up_to))
    return generation


def catching_up(generation: Generation[Any], up_to: int = -1) -> CatchUp:
    def catch_up(positions: Mapping[Feed, Position]) -> None:
        for feed in {FEED, *positions}:
            stop = max(up_to if feed == FEED else -1, positions.get(feed, START).offset)
            for offset in range(generation.positions().get(feed, START).next_offset, stop + 1):
                fold(generation, offset, feed=feed)

    return catch_up


def counted(store: Store[Any], name: str = "counts") -> tuple[int, int]:
    """Return how often was counted, and up to which offset, as a reader sees it."""
    with store.snapshot(name) as snapshot:
        row = snapshot.db.execute("SELECT times FROM counted").fetchone()
        return (0 if row is None else row[0]), snapshot.positions.get(FEED, START).offset
