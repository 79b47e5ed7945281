"""Runs the blocks of a page in one folder: scripts by this Python, commands by one bash on a pseudo-terminal.

A reader sits at a terminal, so the commands do too (tables and not JSON); it is 120 columns wide and knows no colours.
Where there is no `jq`, one made of the Python binding stands in; `GASOLINE_DOCS_JQ=shim` puts it before a real one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.project.doc_pages import Block, Command, Page, check_parses, commands, matches, trimmed

ROOT = Path(__file__).resolve().parents[2]
# CI runs these as such; a page that shows them is not the place to do it again.
RUN_BY_CI_OR_BY_HAND = frozenset({"make demo", "make test", "make soak", "make bench"})
BLOCK_TIMEOUT_S = 60.0
JQ_VARIABLE = "GASOLINE_DOCS_JQ"
_JQ_SHIM = Path(__file__).with_name("jq_shim.py")
_ROWS, _COLUMNS = 50, 120
_END = re.compile(r"\x1e(?P<code>\d+)\x1e\r?\n")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# How a bash without job control words what an interactive one says as `Killed`.
_DIED = re.compile(r"^(?:/\S+/)?bash: line \d+: +\d+ (?P<how>Killed|Terminated|Aborted|Segmentation fault)\b.*$")


def run_page(page: Page, folder: Path, *, timeout_s: float = BLOCK_TIMEOUT_S) -> None:
    """Runs a page's blocks in order in an empty folder. Raises: PageError where one does not do as the page says."""
    whole = page.prose + "".join(block.body for block in page.blocks)
    with (
        tempfile.TemporaryDirectory(prefix="gasoline-docs-") as programs,
        Console(folder, environment := page_environment(Path(programs), project="$PROJECT" in whole)) as console,
    ):
        for block in page.blocks:
            if block.no_run is not None:
                continue
            if block.language == "python":
                _run_python(block, folder, environment, timeout_s)
            elif block.language == "console":
                for command in commands(block):
                    if command.text.strip() not in RUN_BY_CI_OR_BY_HAND:
                        _run_command(block, command, console, timeout_s)
            elif block.language in ("json", "toml"):
                check_parses(block)


def page_environment(programs: Path, *, project: bool) -> dict[str, str]:
    """This process's environment with the tools of .venv first, a plain terminal and, if used, ``$PROJECT``.

    ``programs``: an empty folder that lasts as long as the page; what a fresh machine may lack is put there.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GASOLINE_"))}
    for name in ("CI", "COLUMNS", "LINES", "FORCE_COLOR", "PROJECT", "BASH_ENV", "ENV"):
        environment.pop(name, None)
    _write_jq(programs / "jq")
    path = [str(Path(sys.executable).parent), environment.get("PATH", os.defpath), str(programs)]
    if os.environ.get(JQ_VARIABLE) == "shim":
        path.insert(0, path.pop())
    environment["PATH"] = os.pathsep.join(path)
    environment["TERM"] = "dumb"
    environment["NO_COLOR"] = "1"
    if project:
        environment["PROJECT"] = str(ROOT)
    return environment


def _write_jq(path: Path) -> None:
    # By way of sh: the line after `#!` takes neither long paths nor spaces in them.
    command = shlex.join([sys.executable, str(_JQ_SHIM)])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    path.chmod(0o755)


def _run_python(block: Block, folder: Path, environment: dict[str, str], timeout_s: float) -> None:
    path = folder / (block.file or f"block_at_line_{block.line}.py")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise block.error(f"{block.file} lies outside of the page's folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.body + "\n", encoding="utf-8")
    if block.is_script:
        return
    try:
        done = subprocess.run(
            [sys.executable, "-W", "error", path.relative_to(folder)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise block.error(f"this script did not end within {timeout_s:.0f} s") from error
    finally:
        if block.file is None:
            path.unlink()  # the reader never made that file
    if done.returncode != 0:
        raise block.error(f"this script ended with {done.returncode}:\n{done.stdout}")


def _run_command(block: Block, command: Command, console: Console, timeout_s: float) -> None:
    code, output = console.run(command.text, timeout_s=timeout_s)
    shown = "\n".join(output)
    if code is None:
        raise block.error(f"`{command.text}` did not end within {timeout_s:.0f} s:\n{shown}", line=command.line)
    if code != command.exit_code:
        message = f"`{command.text}` ended with {code} and not {command.exit_code}:\n{shown}"
        raise block.error(message, line=command.line)
    if command.expected and not matches(command.expected, output):
        expected = "\n".join(command.expected)
        message = f"`{command.text}` printed\n{shown}\nand the page says\n{expected}"
        raise block.error(message, line=command.line)


class Console:
    """One bash for one page, so that `cd`, `export` and `&` work as at a terminal. Leaving it ends all it started."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._terminal, inner = pty.openpty()
        _make_plain(inner)
        # Not a session of its own: a leader would take the terminal as its controlling one, and be hung up with it.
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-s"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=inner,
            stderr=inner,
            process_group=0,
        )
        os.close(inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        assert self._bash.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.close()
        os.close(self._terminal)

    def run(self, command: str, *, timeout_s: float) -> tuple[int | None, list[str]]:
        """Runs one command. Returns its exit code (None if it did not end in time) and the lines it printed."""
        assert self._bash.stdin is not None
        line = f"eval {shlex.quote(command)} </dev/null; printf '\\036%d\\036\\n' $?\n"
        try:
            self._bash.stdin.write(line.encode())
            self._bash.stdin.flush()
        except BrokenPipeError:
            return self._bash.wait(), ["(the shell had ended before)"]
        return self._read_to_end(time.monotonic() + timeout_s)

    def _read_to_end(self, deadline: float) -> tuple[int | None, list[str]]:
        read = b""
        while True:
            text = read.decode(errors="replace")
            if end := _END.search(text):
                return int(end["code"]), _as_lines(text[: end.start()])
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None, _as_lines(text)
            try:
                more = os.read(self._terminal, 65_536)
            except OSError:  # EIO: the shell itself ended, by `exit`
                return self._bash.wait(), _as_lines(text)
            read += more


def _make_plain(terminal: int) -> None:
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST  # newlines stay as they are
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))


def _as_lines(output: str) -> list[str]:
    lines = _ANSI.sub("", output).replace("\r\n", "\n").split("\n")
    overwritten = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines]
    return trimmed([_DIED.sub(r"\g<how>", line) for line in overwritten])
