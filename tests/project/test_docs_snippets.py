"""Every snippet of README.md and docs/ runs, and every relative link leads somewhere (style.md §13)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote
from zlib import crc32

import pytest

from tests.project.doc_console import run_page
from tests.project.doc_pages import read_page

ROOT = Path(__file__).resolve().parents[2]
NO_RUN_MAX = 3  # over all pages: each is a promise that nothing checks
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)")


def pages() -> list[str]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found if path.is_file()]


def pages_of_this_run() -> list[str]:
    """All but a half of the guides, another one in each run of several processes: what takes longest here is to start them."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return [name for name in pages() if run is None or name not in guides() or crc32(f"{run} {name}".encode()) % 2]


def guides() -> list[str]:
    return [name for name in pages() if name.startswith("docs/guides/")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", pages_of_this_run())
def test_a_page_does_what_it_says(name: str, tmp_path: Path) -> None:
    run_page(read_page(ROOT / name, name=name), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", guides())
def test_every_guide_does_what_it_says(name: str, tmp_path: Path) -> None:
    run_page(read_page(ROOT / name, name=name), tmp_path)


@pytest.mark.parametrize("name", pages())
def test_a_page_links_to_files_that_exist(name: str) -> None:
    page = ROOT / name
    prose = re.sub(r"`[^`]*`", "", read_page(page, name=name).prose)
    targets = [unquote(link["target"].split("#", 1)[0]) for link in _LINK.finditer(prose)]
    relative = [target for target in targets if target and "://" not in target and not target.startswith("mailto:")]
    assert [target for target in relative if not (page.parent / target).exists()] == []


def test_few_blocks_are_left_unrun() -> None:
    unrun = [
        f"{block.page}:{block.line}: {block.no_run}"
        for name in pages()
        for block in read_page(ROOT / name, name=name).blocks
        if block.no_run is not None
    ]
    assert len(unrun) <= NO_RUN_MAX, unrun
