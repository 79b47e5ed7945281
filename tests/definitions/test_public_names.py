"""``gasoline_es`` gives what ``__all__`` lists, each when it is asked for (style.md §12)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gasoline_es

SOURCE = ast.parse(Path(gasoline_es.__file__).read_text())


def imported_for_checkers() -> dict[str, str]:
    (block,) = (node for node in SOURCE.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {name.name: f"{node.module}".removeprefix("gasoline_es.") for node in imports for name in node.names}


def test_checkers_and_the_interpreter_see_the_same_names() -> None:
    modules: dict[str, str] = vars(gasoline_es)["_MODULES"]
    assert modules == imported_for_checkers()
    assert sorted(modules) == sorted(gasoline_es.__all__)
    assert set(gasoline_es.__all__) <= set(dir(gasoline_es))


def test_unknown_name_is_an_attribute_error() -> None:
    package: Any = gasoline_es
    with pytest.raises(AttributeError, match="has no attribute 'Activty'"):
        _ = package.Activty


def test_definitions_load_neither_the_engine_nor_a_log() -> None:
    code = (
        "import sys; from gasoline_es import activity, workflow, Signal; "
        "loaded = {'gasoline_es.engine', 'gasoline_es.client', 'gasoline_es.log', 'gasoline_es.runtime', 'asyncio'}; "
        "print(sorted(loaded & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
