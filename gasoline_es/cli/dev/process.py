"""The worker's process, as the one that supervises it holds it: starts it, hears what it says, ends it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

from gasoline_es.cli.dev.reports import Order, Refused, Report, read

LINE_CHARACTERS_MAX: Final = 4_000
"""What a worker writes without a line feed is broken into lines of so many."""
_READ_BYTES: Final = 65_536
_LAST_WORDS_S: Final = 1.0
"""So long its last lines are waited for once it has ended: what it started may hold its streams open."""

_REPORT_BYTES_MAX: Final = 10_000_000

OnReport = Callable[[Report], None]
OnLines = Callable[[Sequence[str]], None]


class LineSplitter:
    """Makes lines of bytes as they come. Line feeds end them, and so do too many characters."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that are complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [part for line in whole for part in _parts(line)]
        if len(self._rest) > LINE_CHARACTERS_MAX:
            *parts, last = _parts(self._rest)
            lines += parts
            self._rest = last.encode(errors="surrogateescape")
        return lines

    def end(self) -> list[str]:
        """Return what came without a line feed at last."""
        rest, self._rest = self._rest, b""
        return _parts(rest) if rest else []


def _parts(line: bytes) -> list[str]:
    text = line.removesuffix(b"\r").decode(errors="surrogateescape")
    return [text[at : at + LINE_CHARACTERS_MAX] for at in range(0, max(len(text), 1), LINE_CHARACTERS_MAX)]


class WorkerProcess:
    """One life of a worker. It has a process group of its own: what the keyboard sends goes to the supervisor alone."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._started_s = time.monotonic()
        self._hearing: list[asyncio.Task[None]] = []
        self.pid: Final = process.pid
        self.ready = False
        self.refused: str | None = None
        self.ended: Final[asyncio.Task[int]] = asyncio.create_task(self._wait(), name="gasoline-dev-worker")
        """Done once the process has ended and what it said was heard: its exit status, negative for a signal."""

    @classmethod
    async def start(cls, order: Order, to_wake: Sequence[str], on_report: OnReport, on_lines: OnLines | None) -> Self:
        """Start one. ``on_lines``: takes what it writes; None: all of that goes to this process's standard error.

        Error output that goes elsewhere than to a terminal goes there by itself.
        """
        ours, theirs = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "gasoline_es.cli.dev.child", replace(order, report_fd=theirs).text()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if on_lines is not None else sys.stderr.fileno(),
                stderr=asyncio.subprocess.PIPE if on_lines is not None and sys.stderr.isatty() else None,
                pass_fds=(theirs,),
                process_group=0,
                # What the code itself opens by GASOLINE_LOG is this log too, whatever the shell has there.
                env={**os.environ, "GASOLINE_LOG": order.url, "PYTHONUNBUFFERED": "1"},
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        worker = cls(process)
        worker._hearing.append(asyncio.create_task(worker._hear_reports(ours, on_report)))
        for stream in (process.stdout, process.stderr):
            if stream is not None and on_lines is not None:
                worker._hearing.append(asyncio.create_task(_hear_lines(stream, on_lines)))
        assert process.stdin is not None
        process.stdin.write(json.dumps(list(to_wake)).encode() + b"\n")
        return worker

    @property
    def lived_s(self) -> float:
        """For how long it has lived, or lived until it was asked, in seconds."""
        return time.monotonic() - self._started_s

    def stop(self) -> None:
        """Ask it to stop at the next step; again: to give up what runs at once."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and what it started, now."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _wait(self) -> int:
        status = await self._process.wait()
        if self._hearing:
            _, deaf = await asyncio.wait(self._hearing, timeout=_LAST_WORDS_S)
            for task in deaf:
                task.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return status

    async def _hear_reports(self, fd: int, on_report: OnReport) -> None:
        reader = asyncio.StreamReader(limit=_REPORT_BYTES_MAX)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
        )
        try:
            while line := await reader.readline():
                report = read(line)
                if isinstance(report, Refused):
                    self.refused = report.message
                elif report is not None:
                    on_report(report)
        finally:
            transport.close()


async def _hear_lines(stream: asyncio.StreamReader, on_lines: OnLines) -> None:
    splitter = LineSplitter()
    while data := await stream.read(_READ_BYTES):
        if lines := splitter.feed(data):
            on_lines(lines)
        await asyncio.sleep(0)  # one that writes without end must not keep everything else from its turn
    if lines := splitter.end():
        on_lines(lines)
