"""The wheel holds what users install and nothing else; the public names are the listed ones (style.md §12)."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINNED = {"gasoline_es": "public_names.txt", "projections": "public_names_projections.txt"}


def test_the_wheel_has_both_packages_typed_and_licensed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(f"{info}/METADATA").decode()
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert {name.split("/")[0] for name in names} == {"gasoline_es", "projections", info}
    assert {
        "gasoline_es/__init__.py",
        "gasoline_es/py.typed",
        "projections/__init__.py",
        "projections/py.typed",
    } <= names
    assert f"{info}/licenses/LICENSE" in names
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Requires-Python: >=3.11\n" in metadata
    assert "gasoline = gasoline_es.cli:main" in entry_points


@pytest.mark.parametrize("package", PINNED)
def test_the_public_names_are_the_pinned_ones(package: str) -> None:
    """A name more or less is a decision: it goes into the file beside this one, and into CHANGELOG.md."""
    public: list[str] = list(getattr(importlib.import_module(package), "__all__", ()))
    pinned = (Path(__file__).parent / PINNED[package]).read_text().split()
    assert sorted(public) == sorted(pinned)
    assert len(set(public)) == len(public)
    assert [name for name in public if not hasattr(importlib.import_module(package), name)] == []
