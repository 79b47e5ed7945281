"""Nothing of one machine, and nothing unfinished, is in what git tracks (style.md §14)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Put together from parts, so that this file does not hold them.
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:" + "|".join(("work", "farm", "root")) + r")/")
REGISTRIES = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("npmjs", "org"),
            ("static", "crates", "io"),
            ("maven", "apache", "org"),
            ("maven", "org"),
            ("proxy", "golang", "org"),
            ("deb", "debian", "org"),
        )
    )
)
UNFINISHED = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
PLACES_OF_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}


@pytest.fixture(scope="module")
def tracked() -> dict[str, str]:
    """The text files that git tracks, by path. A folder that is no repository (an unpacked sdist) is skipped."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"what git tracks is not known here: {error}")
    texts: dict[str, str] = {}
    for name in filter(None, listed.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            texts[name] = content.decode("utf-8", errors="replace")
    return texts


def found(pattern: re.Pattern[str], texts: dict[str, str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        for number, line in enumerate(text.split("\n"), start=1)
        if pattern.search(line)
    ]


def test_no_path_of_one_machine_is_named(tracked: dict[str, str]) -> None:
    assert found(MACHINE_PATHS, tracked) == []


def test_no_package_registry_is_named(tracked: dict[str, str]) -> None:
    assert found(REGISTRIES, tracked) == []


def test_nothing_is_left_to_be_done(tracked: dict[str, str]) -> None:
    code = {name: text for name, text in tracked.items() if name != "LICENSE"}
    assert found(UNFINISHED, code) == []


def test_no_file_has_a_name_that_says_nothing(tracked: dict[str, str]) -> None:
    python = [Path(name) for name in tracked if name.endswith(".py")]
    assert [str(path) for path in python if PLACES_OF_NAMES & {path.stem, *path.parts[:-1]}] == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (MACHINE_PATHS, 'open("' + "/work" + '/main/x")'),
        (MACHINE_PATHS, "cd " + "/root" + "/x"),
        (REGISTRIES, "https://files.python" + "hosted.org/x"),
        (UNFINISHED, "# TO" + "DO: later"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], line: str) -> None:
    assert found(pattern, {"a.py": line})


@pytest.mark.parametrize("line", ["see docs/work/log.md", "the /workflows/ page", "a todo list"])
def test_the_patterns_leave_the_rest_alone(line: str) -> None:
    texts = {"a.py": line}
    assert [*found(MACHINE_PATHS, texts), *found(REGISTRIES, texts), *found(UNFINISHED, texts)] == []
