"""Programs of ``tests.engine.programs`` in processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tests.engine.harness import PATIENCE_S, soon

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def program(*arguments: str, **environment: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a program; it is killed when the block ends, if it still runs then."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "error", "-m", "tests.engine.programs", *arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def worker_process(url: str, *arguments: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run a worker for all of ``workflows.ALL``."""
    return program("worker", url, *arguments)


async def line(process: asyncio.subprocess.Process, patience_s: float = PATIENCE_S) -> str:
    """Wait for the next line the program prints."""
    assert process.stdout is not None
    raw: bytes = await soon(process.stdout.readline(), patience_s)
    return raw.decode().strip()


async def errors(process: asyncio.subprocess.Process) -> str:
    """All it wrote to stderr, once it has ended."""
    assert process.stderr is not None
    return (await process.stderr.read()).decode()
