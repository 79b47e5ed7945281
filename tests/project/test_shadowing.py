"""A module of the user's that is called `projections` is in the way of the library's: the error names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def ran(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    (folder / "app.py").write_text(script + "\n")
    return subprocess.run([sys.executable, "app.py"], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("script", "file"),
    [
        ("from gasoline_es import Gasoline", "projections.py"),
        ("from gasoline_es import Gasoline", "projections/__init__.py"),
        ("from gasoline_es.testing import fold", "projections.py"),
        ("import projections", "projections.py"),
        ("from gasoline_es.cli import main; main()", "projections.py"),
    ],
    ids=["the engine", "a package", "the tests' fold", "their own, which imports the library", "the command line"],
)
def test_a_module_in_the_way_is_named_with_what_to_do(script: str, file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("from gasoline_es import Event\n")
    done = ran(tmp_path, script)
    assert done.returncode == 1
    assert f"{tmp_path / file} has the name of a package that gasoline_es installs" in done.stderr.splitlines()[-1]
    assert "'projections', and is found first: give it another name, as views.py" in done.stderr
    assert "PackageShadowed" in done.stderr or done.stderr.startswith("gasoline: ")


def test_a_folder_of_that_name_that_is_no_package_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "projections").mkdir()
    (tmp_path / "projections" / "turnover.sql").touch()
    done = ran(tmp_path, "from gasoline_es import Gasoline; from projections import Projection")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("code", ["projections.py", "projections"])
def test_the_command_line_says_so_of_code_that_it_loads(code: str, tmp_path: Path) -> None:
    """It puts the module's folder before everything else only then."""
    (tmp_path / "projections.py").write_text("from gasoline_es import Gasoline\n")
    (tmp_path / "recorded.jsonl").touch()
    command = [sys.executable, "-P", "-c", "from gasoline_es.cli import main; main()"]
    done = subprocess.run(
        [*command, "replay-check", code, "--from", "recorded.jsonl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"gasoline: {code} cannot be loaded: ")
    assert said.endswith("'projections', and is found first: give it another name, as views.py")
