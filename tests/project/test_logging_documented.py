"""Operations list each message that the library logs, and none that it does not (docs/operations.md, "Logging")."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")

LEVELS = {"info": "info", "warning": "warning", "error": "error", "exception": "error", "critical": "critical"}
"""The levels by the methods of a logger, as the table calls them."""
UNSEEN = {"log", "warn", "fatal", "debug"}
"""Methods that this test could not hold against the table. What is worth logging is worth a row."""
PLACEHOLDER = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[a-z]")
NOTE = re.compile(r" \((?:[^()]|\([^()]*\))*\)$")
"""What a row says beside the message, at its end."""


def loggers(tree: ast.Module) -> set[str]:
    """Return the names that a module has given to loggers."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(("logging.getLogger(", "EngineLog("))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def logged(tree: ast.Module, where: str) -> Iterator[tuple[str, str]]:
    """Yield the level and message of each call of a logger; a use that shows neither is refused."""
    names = loggers(tree) | {"logging"}
    messages = {
        id(node.func): node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names):
            continue
        assert node.attr not in UNSEEN, f"{where}:{node.lineno} uses .{node.attr}; call {', '.join(LEVELS)}"
        if node.attr in LEVELS:
            message = messages.get(id(node))
            assert isinstance(message, str), f"{where}:{node.lineno}: call the logger, with a constant message"
            yield LEVELS[node.attr], PLACEHOLDER.sub("…", message)


def in_the_code() -> set[tuple[str, str]]:
    return {
        one
        for package in ("gasoline_es", "projections")
        for file in sorted((ROOT / package).rglob("*.py"))
        for one in logged(ast.parse(file.read_text(encoding="utf-8")), str(file.relative_to(ROOT)))
    }


def rows() -> list[tuple[str, str]]:
    section = PAGE.partition("\n## Logging\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (info|warning|error|critical) \| (.+?) \| .*\|$", section, re.MULTILINE)


def messages_of(row: tuple[str, str]) -> set[tuple[str, str]]:
    """What a row may mean: the message ends with parentheses itself, or is explained in them."""
    level, text = row
    return {(level, text), (level, NOTE.sub("", text))}


def test_every_message_has_one_row_in_operations_and_each_row_is_a_message() -> None:
    code, table = in_the_code(), rows()
    found = [code & messages_of(row) for row in table]
    assert [row for row, messages in zip(table, found, strict=True) if not messages] == [], "rows without a call"
    listed = sorted(one for messages in found for one in messages)
    assert sorted(code - set(listed)) == [], "calls without a row"
    assert len(listed) == len(set(listed)), "one row each"


def test_calls_are_found_by_whatever_name_a_module_calls_its_logger() -> None:
    code = "import logging\nodd = logging.getLogger(__name__)\nodd.exception('%r is %.1f s late', 1, 2)\nother.error('x')\n"
    assert list(logged(ast.parse(code), "odd.py")) == [("error", "… is … s late")]


def test_uses_that_show_no_message_are_refused() -> None:
    for use in (
        "logging.error(text)",
        "_log.log(level, 'x')",
        "tell = _log.warning",
        "_log.error(text)",
        "_log.debug('x')",
    ):
        tree = ast.parse(f"import logging\n_log = logging.getLogger(__name__)\n{use}\n")
        try:
            found = list(logged(tree, "odd.py"))
        except AssertionError:
            continue
        raise AssertionError(f"{use} was taken for {found}")
