"""A stand-in for the program `jq` on machines without it: jq's own engine, by its Python binding (the `dev` extra).

As much of the command line as documents need: programs over files or standard input, any number of JSON values in each,
with -c -r -j -s -R -n -e -S (also together, as `-cr`), --tab, --arg and --argjson. Exit codes are jq's: 1 and 4 with -e (the
last output was false or null; there was none), 2 for wrong use or input, 3 for a program that does not compile, 5 for an
error in it. Not supported: `input` and `inputs`, colours, and whole numbers beyond 2^53, which lose digits as in jq 1.6.
"""

from __future__ import annotations

import importlib
import json
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

USED_WRONGLY, NOT_COMPILED, FAILED = 2, 3, 5
_LETTERS = {
    "c": "compact",
    "r": "raw",
    "j": "join",
    "s": "slurp",
    "R": "raw_input",
    "n": "null_input",
    "e": "exit_status",
    "S": "sort_keys",
}
_WORDS = {
    "compact-output": "c",
    "raw-output": "r",
    "join-output": "j",
    "slurp": "s",
    "raw-input": "R",
    "null-input": "n",
    "exit-status": "e",
    "sort-keys": "S",
}
_SPACE = re.compile(r"[ \t\r\n]*")


class WrongUse(Exception):
    """The command line, or what there is to read, is none that this program takes."""


@dataclass
class Options:
    """What was asked for. ``set`` holds the names of the flags; ``files`` is empty for standard input."""

    set: set[str] = field(default_factory=set[str])
    program: str | None = None
    files: list[str] = field(default_factory=list[str])
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    indent: int | str = 2


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `jq … | head -1` ends quietly
    try:
        return run(parse(arguments))
    except WrongUse as error:
        print(f"jq: error: {error}", file=sys.stderr)
        return USED_WRONGLY


def parse(arguments: list[str]) -> Options:
    """Read the command line. Raises: WrongUse."""
    options = Options()
    words = iter(arguments)
    flags_ended = False
    for word in words:
        if flags_ended or not word.startswith("-") or word == "-":
            if options.program is None:
                options.program = word
            else:
                options.files.append(word)
        elif word == "--":
            flags_ended = True
        elif word == "--tab":
            options.indent = "\t"
        elif word in ("--arg", "--argjson"):
            name, value = next(words, None), next(words, None)
            if name is None or value is None:
                raise WrongUse(f"{word} takes a name and a value")
            options.arguments[name] = value if word == "--arg" else _json(value, word)
        else:
            letters = _WORDS.get(word[2:], "?") if word.startswith("--") else word[1:]
            unknown = [letter for letter in letters if letter not in _LETTERS]
            if unknown:
                raise WrongUse(f"the shim for jq does not know {word}")
            options.set.update(_LETTERS[letter] for letter in letters)
    if options.program is None:
        raise WrongUse("no program was given")
    return options


def run(options: Options) -> int:
    """Run the program over every input. Returns the exit code."""
    engine: Any = importlib.import_module("jq")  # a module without types
    assert options.program is not None
    try:
        program = engine.compile(options.program, args=options.arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return NOT_COMPILED
    code = 0
    last: list[Any] = []
    try:
        for value in inputs(options):
            try:
                for output in program.input_value(value):
                    show(output, options)
                    last = [output]
            except ValueError as error:
                print(f"jq: error: {error}", file=sys.stderr)
                code = FAILED
    except (ValueError, OSError) as error:
        print(f"jq: error: {error}", file=sys.stderr)
        code = USED_WRONGLY
    sys.stdout.flush()
    if code or "exit_status" not in options.set:
        return code
    if not last:
        return 4
    return 1 if last[0] is None or last[0] is False else 0


def inputs(options: Options) -> Iterator[Any]:
    """Give what the program runs over, one value after the other. Raises: ValueError, OSError."""
    if "null_input" in options.set:
        yield None
        return
    raw, slurp = "raw_input" in options.set, "slurp" in options.set
    texts = map(_read, options.files or ["-"])
    if raw and slurp:
        yield "".join(texts)
    elif raw:
        text = "".join(texts)
        yield from text.removesuffix("\n").split("\n") if text else ()
    elif slurp:
        yield [value for text in texts for value in values(text)]
    else:
        for text in texts:
            yield from values(text)


def values(text: str) -> Iterator[Any]:
    """Give the JSON values of a text, one after the other. Raises: ValueError where it is no JSON."""
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value
        at = _skip(text, at)


def show(value: Any, options: Options) -> None:
    raw = isinstance(value, str) and bool(options.set & {"raw", "join"})
    compact = "compact" in options.set
    text = (
        value
        if raw
        else json.dumps(
            value,
            ensure_ascii=False,
            indent=None if compact else options.indent,
            separators=(",", ":") if compact else (",", ": "),
            sort_keys="sort_keys" in options.set,
        )
    )
    sys.stdout.write(text if "join" in options.set else text + "\n")


def _read(name: str) -> str:
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return data.decode(errors="replace")


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _json(text: str, flag: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise WrongUse(f"{flag}: {text!r} is no JSON") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
