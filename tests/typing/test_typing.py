"""Both checkers, strict, infer what a user writes and report what they get wrong (api.md, "Typing that was tried")."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROWS = sorted(path.name for path in HERE.glob("*.py") if not path.name.startswith(("test_", "__")))

MARKS = re.compile(r"\s*#\s*(type|pyright): ignore\[([^\]]*)\]")

Report = set[tuple[str, int, str]]
"""(file name, line, code)"""


def reports_of_pyright(folder: Path) -> Report:
    config = {
        "include": [str(folder)],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {(Path(item["file"]).name, item["range"]["start"]["line"] + 1, item.get("rule", "syntax")) for item in found}


def reports_of_mypy(folder: Path) -> Report:
    config = folder / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = true\nenable_error_code = unused-awaitable\nmypy_path = {ROOT}\n")
    files = sorted(str(path) for path in folder.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--no-error-summary", *files]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^([^:]+):(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    return {(Path(file).name, int(line), code) for file, line, code in found}


def stripped(names: Iterable[str], folder: Path) -> tuple[Report, Report]:
    """Copy the files without their ignores; give what the ignores say pyright and mypy must report."""
    expected: dict[str, Report] = {"pyright": set(), "type": set()}
    for name in names:
        lines = (HERE / name).read_text().split("\n")
        for number, line in enumerate(lines, start=1):
            for checker, codes in MARKS.findall(line):
                expected[checker] |= {(name, number, code.strip()) for code in codes.split(",")}
        (folder / name).write_text("\n".join(MARKS.sub("", line) for line in lines))
    return expected["pyright"], expected["type"]


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_programs_too(name: str) -> None:
    importlib.import_module(f"tests.typing.{name.removesuffix('.py')}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_checkers_infer_every_row_and_report_every_mistake_and_nothing_else(checker: str, tmp_path: Path) -> None:
    for_pyright, for_mypy = stripped(ROWS, tmp_path)
    assert len(for_pyright) > 30
    assert len(for_mypy) > 30
    if checker == "pyright":
        assert sorted(reports_of_pyright(tmp_path)) == sorted(for_pyright)
    else:
        assert sorted(reports_of_mypy(tmp_path)) == sorted(for_mypy)
