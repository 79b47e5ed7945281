"""A log opens where there is no space for its stored views: they stay in memory then, and a warning says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OPEN = """
import asyncio, resource, sys
from gasoline_es import Gasoline

async def main():
    async with Gasoline.open(sys.argv[1]) as gasoline:
        print(await gasoline.counts())

# No file grows beyond this: enough for a new log, too little for the tables. Written to further, it is as on a full disk.
resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))
asyncio.run(main())
"""


def test_a_log_opens_where_its_views_find_no_space(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OPEN, f"file:{tmp_path}/log"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "{}\n"
    assert "the views cannot be stored" in ran.stderr


REBUILD = """
import resource, sys
from gasoline_es.cli import main

resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))
sys.argv = ["gasoline", "--log", sys.argv[1], "projections", "rebuild"]
main()
"""


def test_a_rebuild_without_space_says_what_failed(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    made = subprocess.run([sys.executable, "-c", OPEN, url], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    ran = subprocess.run([sys.executable, "-c", REBUILD, url], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "the store of projection 'workflows' in" in ran.stderr
    assert "mistake" not in ran.stderr
