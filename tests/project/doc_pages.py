"""Markdown pages as tests: reads a page's fenced blocks and says how each is to be run.

    ```python            run as a script in the page's own folder
    ```python            first line `# file: NAME`: written to the folder as NAME; then run, unless it has an
                         `if __name__ == "__main__":` part, which a console block runs
    ```console           `$ command` lines run by one bash, on a terminal; the lines after a command are its output
    ```json  ```toml     must parse (JSON Lines too; with an `…` in it a block of JSON is left alone)
    ```text  ```diff  ```mermaid    left alone

`no-run` after the language leaves a block alone; an HTML comment before it, `<!-- no-run: why -->`, has to say why.
In expected output `…` stands for anything within a line, a line of nothing but `…` for any lines, and `# exit: 137` for
that exit code (after the command or on a line after its output; otherwise it must be 0). A command without expected
output may print what it likes.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

LANGUAGES_RUN = frozenset({"python", "console"})
LANGUAGES_PARSED = frozenset({"json", "toml"})
LANGUAGES_LEFT_ALONE = frozenset({"text", "diff", "mermaid"})
ANYTHING = "…"

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
_COMMENT = re.compile(r"<!--(?P<text>.*?)-->\s*$", re.DOTALL)
_FILE = re.compile(r"^# file: (?P<name>[\w./-]+)\s*$")
_EXIT = re.compile(r"^(?P<before>.*?)\s*# exit: (?P<code>\d+)\s*$")
_MAIN = re.compile(r"^if __name__ == ['\"]__main__['\"]:", re.MULTILINE)


class PageError(AssertionError):
    """A page says what is not so, or says it in a way that cannot be tested. The message begins with page and line."""

    def __init__(self, page: str, line: int, message: str) -> None:
        super().__init__(f"{page}:{line}: {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One `$` line of a console block (with what continues it), the output shown for it, and its exit code."""

    line: int
    text: str
    expected: tuple[str, ...]
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block. ``line`` is that of its opening fence, from 1; ``no_run`` is the reason given, if any."""

    page: str
    line: int
    language: str
    body: str
    no_run: str | None = None

    @property
    def file(self) -> str | None:
        """The name after `# file:` on the first line."""
        found = _FILE.match(self.body.split("\n", 1)[0])
        return found["name"] if found else None

    @property
    def is_script(self) -> bool:
        """Whether a console block decides when to run it."""
        return self.file is not None and _MAIN.search(self.body) is not None

    def error(self, message: str, *, line: int | None = None) -> PageError:
        return PageError(self.page, self.line if line is None else line, message)


@dataclass(frozen=True, slots=True)
class Page:
    """A page's blocks, in order, and the text around them."""

    name: str
    blocks: tuple[Block, ...]
    prose: str = field(repr=False)


def read_page(path: Path, *, name: str) -> Page:
    """Reads a page. Raises: PageError for a fence that is not closed, or a block that nothing would test."""
    return parse_page(path.read_text(encoding="utf-8"), name=name)


def parse_page(text: str, *, name: str) -> Page:
    lines = text.split("\n")
    blocks: list[Block] = []
    prose: list[str] = []
    at = 0
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        if opening is None:
            prose.append(lines[at])
            at += 1
            continue
        end = _closing_fence(lines, at, opening, name=name)
        indent = len(opening["indent"])
        body = "\n".join(line[indent:] if line[:indent].isspace() else line for line in lines[at + 1 : end])
        blocks.append(_block(name, at + 1, opening["info"].split(), body, before="\n".join(prose)))
        prose.append("")
        at = end + 1
    return Page(name, tuple(blocks), "\n".join(prose))


def _closing_fence(lines: list[str], at: int, opening: re.Match[str], *, name: str) -> int:
    fence = opening["fence"]
    for end in range(at + 1, len(lines)):
        closing = lines[end].strip()
        if len(closing) >= len(fence) and set(closing) == {fence[0]}:
            return end
    raise PageError(name, at + 1, "this fence is never closed")


def _block(page: str, line: int, info: list[str], body: str, *, before: str) -> Block:
    language, *marks = info or [""]
    known = sorted(LANGUAGES_RUN | LANGUAGES_PARSED | LANGUAGES_LEFT_ALONE)
    if language not in known:
        raise PageError(page, line, f"a block of {language or 'no language'}: say which of {', '.join(known)} it is")
    if not marks:
        return Block(page=page, line=line, language=language, body=body)
    if marks != ["no-run"] or language not in LANGUAGES_RUN:
        raise PageError(page, line, f"{' '.join(marks)!r} after {language!r} is not understood; only `no-run` is")
    comment = _COMMENT.search(before[before.rfind("<!--") :]) if "<!--" in before else None
    reason = re.fullmatch(r"no-run:\s*(?P<why>\S.*)", comment["text"].strip(), re.DOTALL) if comment else None
    if reason is None:
        raise PageError(page, line, "a no-run block needs its reason in a comment before it: <!-- no-run: why -->")
    return Block(page=page, line=line, language=language, body=body, no_run=reason["why"])


def commands(block: Block) -> list[Command]:
    """The commands of a console block. Lines continue after a backslash, or with `> ` as bash shows it."""
    found: list[Command] = []
    lines = block.body.split("\n")
    at = 0
    while at < len(lines):
        line = block.line + 1 + at
        if not lines[at].startswith("$ "):
            if lines[at].strip():
                raise block.error("a console block begins with a `$ ` line", line=line)
            at += 1
            continue
        text, exit_code = _split_exit(lines[at][2:])
        at += 1
        while at < len(lines) and (text.endswith("\\") or lines[at].startswith("> ")):
            more, exit_code = _split_exit(lines[at].removeprefix("> "), otherwise=exit_code)
            text += "\n" + more
            at += 1
        expected: list[str] = []
        while at < len(lines) and not lines[at].startswith("$ "):
            shown, exit_code = _split_exit(lines[at], otherwise=exit_code)
            if shown or not _EXIT.match(lines[at]):
                expected.append(shown)
            at += 1
        found.append(Command(line=line, text=text, expected=tuple(trimmed(expected)), exit_code=exit_code))
    if not found:
        raise block.error("a console block begins with a `$ ` line")
    return found


def _split_exit(line: str, *, otherwise: int = 0) -> tuple[str, int]:
    annotated = _EXIT.match(line)
    return (annotated["before"], int(annotated["code"])) if annotated else (line, otherwise)


def trimmed(lines: list[str]) -> list[str]:
    """Without blanks at the ends of lines and empty lines around them."""
    kept = [line.rstrip() for line in lines]
    while kept and not kept[0]:
        kept.pop(0)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def matches(expected: list[str] | tuple[str, ...], actual: list[str]) -> bool:
    """Whether the output is as shown: `…` in a line is anything within it, a lone `…` any number of lines."""
    patterns = [
        r"(?:.*\n)*"
        if line.strip() == ANYTHING
        else ".*".join(re.escape(part) for part in line.split(ANYTHING)) + r"\n"
        for line in expected
    ]
    return re.fullmatch("".join(patterns), "".join(f"{line}\n" for line in actual)) is not None


def check_parses(block: Block) -> None:
    """Raises: PageError unless a block of JSON (or JSON Lines) or TOML parses."""
    try:
        if block.language == "toml":
            tomllib.loads(block.body)
        elif ANYTHING not in block.body:
            _parse_json(block.body)
    except ValueError as error:
        raise block.error(f"this does not parse as {block.language}: {error}") from error


def _parse_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) < 2:
            raise
        for line in lines:
            json.loads(line)
