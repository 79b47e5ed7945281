"""Which generation may be relied on, by whom (projections/known.py; decision 0033)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gasoline_es.errors import ProjectionError
from gasoline_es.log.port import Log
from projections.known import State, Undecided, begun, look, stands, unknown_so_far
from projections.stores.port import Position, Store, position_of
from tests.projection.conftest import OpenStore
from tests.projection.counting import FEED, built, setup
from tests.projection.orders import TOPIC, append_orders
from tests.projection.test_damage import give_up


@pytest.fixture(params=("sqlite", "postgres"))  # memory is SQLite too
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def stored(log: Log, store: Store[Any], *, version: int = 2, digest: str | None = None) -> None:
    """Build a generation that stands at the first of two records, or says so of another."""
    await append_orders(log, 5, 7)
    (first,) = log.read_at(TOPIC, 0, [0], [0])
    position = position_of(first)
    generation = built(store, version)
    with generation.writing() as write:
        write.move(FEED, Position(-1, 0, ""), position if digest is None else position._replace(digest=digest))
    generation.close()


@pytest.mark.parametrize(
    ("version", "state", "to_be_built"), [(2, "usable", False), (3, "older", True), (1, "newer", False)]
)
async def test_what_the_log_knows_stands_by_its_version(
    version: int, state: State, to_be_built: bool, log: Log, store: Store[Any]
) -> None:
    await stored(log, store)
    found = look(store, "counts", version, log)
    assert (found.state, found.to_be_built, found.useless) == (state, to_be_built, False)
    assert (found.generation is not None) == (state == "usable")
    assert found.meta is not None
    assert found.meta.version == 2
    if found.generation is not None:
        found.generation.close()


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_what_the_log_does_not_know_is_of_no_use_whatever_version_it_is(
    version: int, log: Log, store: Store[Any], open_store: OpenStore, kind: str
) -> None:
    await stored(log, store, digest="another")
    found = look(store, "counts", version, log)
    assert (found.state, found.to_be_built, found.useless, found.generation) == ("unknown", True, True, None)
    store.discard("counts")
    built(open_store(log_id="another")).close()
    found = look(store, "counts", version, log)
    assert (found.state, found.to_be_built, found.useless, found.generation) == ("foreign", True, True, None)
    assert "it is of log another" in found.why


async def test_what_there_is_not_and_what_was_given_up_is_to_be_built(log: Log, store: Store[Any]) -> None:
    assert look(store, "counts", 1, log).state == "none"
    give_up(built(store))
    found = look(store, "counts", 1, log)
    assert (found.state, found.to_be_built, found.useless) == ("damaged", True, True)
    assert "was given up" in found.why


async def test_what_cannot_be_opened_now_is_not_said_to_be_of_no_use(
    log: Log, store: Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(name: str, *, readonly: bool = False) -> None:
        raise ProjectionError("too many open files")

    built(store).close()
    monkeypatch.setattr(store, "current", failing)
    with pytest.raises(ProjectionError, match=re.escape("too many open files")):
        look(store, "counts", 1, log)


async def test_a_partition_that_is_being_taken_over_is_waited_for_or_passed_over(
    log: Log, store: Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored(log, store)
    undecided: Callable[[str, int], bool] = lambda topic, partition: True  # noqa: E731
    ends: Callable[[str, int], int] = lambda topic, partition: 0  # noqa: E731
    monkeypatch.setattr(log, "undecided", undecided)
    monkeypatch.setattr(log, "end", ends)
    with pytest.raises(Undecided):
        look(store, "counts", 2, log)
    found = look(store, "counts", 2, log, unknown_so_far)
    assert found.generation is not None
    assert stands(log, found.meta or found.generation.meta, found.generation.positions(), 2, unknown_so_far) == (
        "usable",
        "",
    )
    found.generation.close()


async def test_what_another_began_to_build_is_gone_on_with_if_the_log_knows_it(log: Log, store: Store[Any]) -> None:
    assert begun(store, "counts", 1, log) is None
    await append_orders(log, 5)
    generation = store.create("counts", 1, setup)
    generation.close()
    assert begun(store, "counts", 2, log) is None
    found = begun(store, "counts", 1, log)
    assert found is not None
    assert found.meta.generation == generation.meta.generation
    with found.writing() as write:
        write.move(FEED, Position(-1, 0, ""), Position(0, 0, "another"))
    found.close()
    assert begun(store, "counts", 1, log) is None
