"""Processes that are killed in the midst of a swap, and what is there afterwards (design §7)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gasoline_es.errors import Superseded
from projections.stores.port import START
from projections.stores.sqlite import SqliteStore
from tests.projection.conftest import closed_at_the_end
from tests.projection.counting import FEED, at, built, catching_up, change, counted, setup

ROOT = Path(__file__).resolve().parents[2]

SWAPPER = """
import sys
from projections.stores.sqlite import SqliteStore
from tests.projection.conftest import closed_at_the_end
from tests.projection.counting import catching_up, setup
from tests.projection.dying import dies_at

directory, point = sys.argv[1:]

store = SqliteStore(directory, log_id="log", namespace="default", reach=dies_at(point))
with store.building("counts") as held:
    assert held
    new = store.create("counts", 2, setup)
    store.swap(new, catching_up(new))
"""


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("point", "current"),
    [
        ("created", 1),
        ("begun", 1),
        ("moved", 1),
        ("stored", 1),
        ("swap locked", 1),
        ("swap caught up", 1),
        ("swapped", 2),
        ("marked", 2),
    ],
)
def test_a_process_killed_in_a_swap_leaves_one_generation_that_is_current(
    point: str, current: int, tmp_path: Path, opened: ExitStack
) -> None:
    store = SqliteStore(str(tmp_path), log_id="log", namespace="default")
    closed_at_the_end(store, opened)
    old = built(store, up_to=3)
    command = [sys.executable, "-c", SWAPPER, str(tmp_path), point]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert killed.returncode == -9, killed.stderr

    assert counted(store) == (4, 3)
    found = store.current("counts")
    assert found is not None
    assert found.meta.generation == current
    if current == 1:
        change(old, at(3), at(4))
    else:
        with pytest.raises(Superseded):
            change(old, at(3), at(4))
        change(found, at(3), at(4))
    assert counted(store) == (5, 4)

    with store.building("counts", wait=False) as held:  # the dead hold nothing
        assert held
        again = store.unfinished("counts", 2) or store.create("counts", 2, setup)
        store.swap(again, catching_up(again))
    assert counted(store) == (5, 4)
    now = store.current("counts")
    assert now is not None
    assert now.meta.version == 2
    assert now.positions().get(FEED, START) == at(4)
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.endswith(".sqlite"))
    assert left == sorted(["counts.sqlite", f"counts.{now.meta.generation}.sqlite"])
