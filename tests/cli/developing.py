"""`gasoline dev` as a process in a folder of its own, whose code a test saves; with pipes, or on a terminal of its own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import queue
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.cli.terminal import environment, invoke
from tests.engine.harness import PATIENCE_S

_MAIN = "from gasoline_es.cli import main; main()"
# Ctrl-C is a signal only to the processes of the terminal's session that stand in front.
_ON_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {_MAIN}"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def wait_until(true: Callable[[], bool], what: str, seen: Callable[[], str] = str) -> None:
    """Wait for what nothing tells of. ``seen``: what there is instead, for who reads of a failure."""
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, f"not within {PATIENCE_S} s: {what}; {seen()}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


class Developing:
    """One run of the command. Its log is ``.gasoline`` of the folder, which is the current directory."""

    def __init__(self, folder: Path, *arguments: str, json: bool = True, main: str = _MAIN, **more: str) -> None:
        self.folder = folder
        self.url = f"file:{folder}/.gasoline"
        self.told: list[dict[str, Any]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.errors = ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", main, "dev", *arguments, *(["--json"] if json else [])],
            cwd=folder,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.errors += line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.interrupt()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self) -> str:
        """Wait for the next line on standard output."""
        try:
            line = self._lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"nothing more is told; so far {self.told}; {self.errors}") from None
        assert line is not None, f"it has ended: {self.told}; {self.errors}"
        return line

    def until(self, kind: str, **members: Any) -> dict[str, Any]:
        """Wait until something of this kind is told, with these members."""
        while True:
            self.told.append(json.loads(self.line()))
            if self.told[-1]["kind"] == kind and members.items() <= self.told[-1].items():
                return self.told[-1]

    def kinds(self) -> list[str]:
        """What was told so far."""
        return [one["kind"] for one in self.told]

    def save(self, name: str, code: str) -> None:
        save(self.folder, name, code)

    def dispatch(self, name: str, payload: str = "null") -> str:
        """Start a workflow from elsewhere; return its id."""
        (dispatched,) = invoke("--log", self.url, "workflow", "dispatch", name, payload).objects
        return str(dispatched["id"])

    def signal(self, name: str, workflow_id: str, body: str = "{}") -> None:
        assert invoke("--log", self.url, "signal", "send", name, body, "--to", workflow_id).status == 0

    def get(self, workflow_id: str) -> dict[str, Any]:
        (got,) = invoke("--log", self.url, "workflow", "get", workflow_id).objects
        return dict(got)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        status = self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return status


class OnTerminal:
    """The same on a terminal, of which it is told what stands on it by and by. Not what is seen in the end."""

    def __init__(self, folder: Path, *arguments: str, columns: int = 120, rows: int = 30, **more: str) -> None:
        self.folder = folder
        self.url = f"file:{folder}/.gasoline"
        self._shown = bytearray()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, "dev", *arguments],
            cwd=folder,
            env=environment(**more),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # the last writer is gone
                return
            if not data:
                return
            self._shown += data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE_S)
        os.close(self._master)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def raw(self) -> str:
        """All that was written to the terminal so far."""
        return bytes(self._shown).decode(errors="replace")

    @property
    def text(self) -> str:
        """The same without what moves the cursor or colours."""
        return _CONTROL.sub("", self.raw)

    def until(self, pattern: str, since: int = 0) -> re.Match[str]:
        """Wait until this is written, behind so many characters of ``text``."""
        found: list[re.Match[str]] = []

        def there() -> bool:
            match = re.compile(pattern, re.DOTALL).search(self.text, since)
            found.extend([match] if match else [])
            return match is not None

        wait_until(there, pattern, lambda: self.text[since:][-3_000:])
        return found[0]

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait(self) -> int:
        status = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return status


def save(folder: Path, name: str, code: str) -> None:
    """Save a file as editors do: another one in its place, whole."""
    draft = folder / f".{name}.draft"
    draft.write_text(code)
    draft.replace(folder / name)
