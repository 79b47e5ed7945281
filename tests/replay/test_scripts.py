"""Every script in ``scripts/`` tells what happens (semantics.md §2–§5, B06, B11)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.replay.runner import run

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
REWRITE = os.environ.get("REWRITE_SCRIPTS") == "1"


@pytest.mark.parametrize("script", [pytest.param(path, id=path.stem) for path in SCRIPTS])
def test_script_tells_what_happens(script: Path) -> None:
    written = script.read_text()
    seen = run(written)
    if REWRITE:
        script.write_text(seen)
    else:
        assert seen == written, f"{script.name} tells otherwise; REWRITE_SCRIPTS=1 writes what is seen into it"


def test_there_are_scripts_for_every_rule() -> None:
    assert len(SCRIPTS) >= 30


def test_script_that_tells_otherwise_is_found_out() -> None:
    script = "# A story\n\ncode\n    return 1\n\nrun\n----\n 1 dispatched told\n 2 completed -> 2\n"
    assert run(script) == script.replace("-> 2", "-> 1")
