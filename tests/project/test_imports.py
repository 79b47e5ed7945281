"""Every module imports alone, `import gasoline_es` is light, and the layers hold (design.md §2, api.md)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gasoline_es", "projections")
IMPORT_BUDGET_S = 0.2
# What only some users need, and all of them would wait for.
HEAVY = (
    "confluent_kafka",
    "eventsourcing",
    "kafka",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "rich",
    "typer",
    "watchfiles",
    "zstandard",
)
# Of no layer: nothing in the packages imports them, which the test below holds.
APART = frozenset({"gasoline_es.persistence", "gasoline_es.testing"})


def modules() -> list[str]:
    paths = (path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    dotted = (".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return sorted(name for name in dotted if not name.endswith("__main__"))


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    # -I: neither the folder nor PYTHONPATH may help.
    return subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", code, *args], capture_output=True, text=True, check=False
    )


_EACH_ALONE = """
import importlib, os, sys
import pydantic, pydantic_core, orjson  # what takes the time
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(name)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"{name} does not import alone")
"""


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.soak) for part in range(1, 6))])
def test_each_module_imports_alone(part: int) -> None:
    """In an interpreter that has loaded nothing of ours. All but a sixth of them are for the soak."""
    done = python(_EACH_ALONE, *modules()[part::6])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr


def test_importing_the_library_takes_no_longer_than_its_budget() -> None:
    # Time on the processor, the best of five: on a busy machine the clock on the wall tells of the neighbours.
    code = "import time; t = time.process_time(); import gasoline_es; print(time.process_time() - t)"
    times: list[float] = []
    for _ in range(5):
        done = python(code)
        assert done.returncode == 0, done.stderr
        times.append(float(done.stdout))
        if times[-1] <= IMPORT_BUDGET_S:
            return
    pytest.fail(f"`import gasoline_es` took {min(times):.3f} s at best of {len(times)}; at most {IMPORT_BUDGET_S} s")


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    done = python(f"import sys, {package}; print(*[name for name in {HEAVY!r} if name in sys.modules])")
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
        "--no-cache",
        "--no-logo",
    ]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("gasoline_es/core/__init__.py", "import gasoline_es.log", "Imports go down only"),
        ("gasoline_es/core/__init__.py", "import time", "The core is pure"),
        ("gasoline_es/core/__init__.py", "import kafka", "The core stands on"),
        ("gasoline_es/log/__init__.py", "import rich", "rich and typer are known"),
        ("gasoline_es/cli/app.py", "import watchfiles", "watchfiles is known to"),
        ("gasoline_es/log/__init__.py", "import eventsourcing.persistence", "kafka is known to"),
        ("gasoline_es/runtime/__init__.py", "import prometheus_client", "prometheus_client is known to"),
        ("projections/stores/sqlite.py", "import psycopg", "psycopg is known to"),
        ("gasoline_es/runtime/__init__.py", "import projections", "Only the engine"),
        ("gasoline_es/__init__.py", "import projections", "Only the engine"),
        ("projections/__init__.py", "import gasoline_es", "The projections know"),
        ("projections/__init__.py", "import gasoline_es.runtime", "The projections know"),
    ],
)
def test_a_layer_cannot_be_crossed_unseen(module: str, statement: str, contract: str, tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / module).open("a") as file:
        file.write(f"\n{statement}\n")
    done = lint(tmp_path)
    assert done.returncode == 1, done.stdout
    assert re.search(rf"^{re.escape(contract)}.* BROKEN", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_every_module_of_the_library_stands_in_a_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    placed = {name.strip(" ()\n") for layer in layers for name in re.split(r"[|:]", layer)}
    children = {name for name in modules() if name.startswith("gasoline_es.") and name.count(".") == 1}
    assert children - placed - APART == set()
