"""Running the command line: in this process through typer's runner, as a process with pipes, and on a terminal."""

from __future__ import annotations

import errno
import fcntl
import importlib
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import typer.main
import typer.testing
from typer.testing import CliRunner

from gasoline_es.cli.app import app

_COMMAND = [sys.executable, "-c", "from gasoline_es.cli import main; main()"]
_STYLES = re.compile(r"\x1b\[[0-9;]*m")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Done:
    """What a command wrote, and its exit status."""

    stdout: str
    stderr: str
    status: int

    @property
    def objects(self) -> list[Any]:
        """The JSON Lines on standard output."""
        assert self.stdout == "" or self.stdout.endswith("\n")
        return [json.loads(line) for line in self.stdout.split("\n")[:-1]]


_command = typer.main.get_command(app)


def _made_once(_: typer.Typer) -> Any:
    """Typer's runner makes the commands out of the application's functions for each call, which takes longer than most."""
    return _command


def invoke(*args: str, columns: int = 120, **environment: str) -> Done:
    """Run a command in this process, with pipes for streams."""
    env = {"GASOLINE_LOG": None, "GASOLINE_OPERATOR": None, "COLUMNS": str(columns), **environment}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", _made_once)
        result = CliRunner().invoke(app, list(args), env=env, prog_name="gasoline")
    stdout, stderr = result.stdout_bytes.decode(), result.stderr_bytes.decode()
    assert "Traceback (most" not in stderr, stderr
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(stdout, stderr, result.exit_code)


def environment(**more: str) -> dict[str, str]:
    drop = {"GASOLINE_LOG", "GASOLINE_OPERATOR", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    return {**{k: v for k, v in os.environ.items() if k not in drop}, "TERM": "xterm-256color", **more}


def run(*args: str, **more: str) -> Done:
    """Run a command as a process with pipes."""
    done = subprocess.run(
        [*_COMMAND, *args], capture_output=True, check=False, env=environment(**more), stdin=subprocess.DEVNULL
    )
    return Done(done.stdout.decode(), done.stderr.decode(), done.returncode)


def run_on_terminal(*args: str, columns: int = 80, stderr: bool = False) -> Done:
    """Run a command as a process whose output (and error output, if asked for) is a terminal of that width."""
    return _on_terminal([*_COMMAND, *args], columns, stderr=stderr)


_EACH = """
import json, sys
from typer.main import get_command
from gasoline_es.cli.app import app
command = get_command(app)
for args in json.load(sys.stdin):
    try:
        command(args, prog_name="gasoline")
    except SystemExit as end:
        status = end.code
    print("\\x1d%d" % status, end="\\x1d", flush=True)
    print(end="\\x1d", flush=True, file=sys.stderr)
"""


def run_each_on_terminal(calls: Sequence[Sequence[str]], columns: int = 400) -> list[Done]:
    """Run commands one after the other in one process, whose output is a terminal of that width.

    Arguments may hold what no process can be given: they come as JSON.
    """
    done = _on_terminal([sys.executable, "-c", _EACH], columns, stderr=False, given=json.dumps(calls).encode())
    *shown, rest = done.stdout.split("\x1d")
    *errors, last = done.stderr.split("\x1d")
    assert (done.status, rest, last) == (0, "", ""), done
    assert len(errors) == len(calls)
    parts = zip(shown[0::2], errors, shown[1::2], strict=True)
    return [Done(text, error, int(status)) for text, error, status in parts]


def _on_terminal(command: Sequence[str], columns: int, *, stderr: bool, given: bytes | None = None) -> Done:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=slave,
        stderr=slave if stderr else subprocess.PIPE,
        env=environment(),
    ) as process:
        os.close(slave)
        if given is not None:
            assert process.stdin is not None
            process.stdin.write(given)
            process.stdin.close()
        shown = bytearray()
        while True:
            try:
                data = os.read(master, 65_536)
            except OSError as error:
                if error.errno != errno.EIO:  # what Linux says when the last writer is gone
                    raise
                break
            if not data:
                break
            shown += data
        errors = b"" if process.stderr is None else process.stderr.read()
    os.close(master)
    return Done(shown.decode().replace("\r\n", "\n"), errors.decode(), process.returncode)


def plain(shown: str) -> str:
    """Take the command line's own styles out."""
    return _STYLES.sub("", shown)


def jq(program: str, text: str) -> list[Any]:
    """Run a jq program over JSON Lines."""
    compiled: Any = importlib.import_module("jq").compile(program)  # a module without types
    return compiled.input_text(text).all()


def settled(text: str, **names: str) -> str:
    """Replace what differs from run to run: given ids by name, other ids, times, durations; and trailing blanks."""
    for name, value in names.items():
        text = text.replace(value, f"<{name}>")
    text = _UUID.sub("<id>", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>", text)
    text = re.sub(r"\b\d+(\.\d+)? s\b", "<s>", text)
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))
