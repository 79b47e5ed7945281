"""The web applications of examples/ as real processes: a server of two of them, the worker, all on one log."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE_S = 60.0

GUNICORN = ("gunicorn", "--pythonpath", str(EXAMPLES), "--workers", "2", "--access-logfile", "-")
SERVERS = {
    "fastapi": ("uvicorn", "--app-dir", str(EXAMPLES), "web_fastapi:app", "--fd", "{fd}"),
    "flask": (*GUNICORN, "--access-logformat", "served by %(p)s", "--bind", "fd://{fd}", "web_flask:create_app()"),
    "django": (
        *(*GUNICORN, "--access-logformat", "served by %(p)s", "--bind", "fd://{fd}"),
        "web_django:create_application()",
    ),
}


class Process:
    """A program under way; what it writes is in a file."""

    def __init__(self, arguments: tuple[str, ...], written: Path, log: str, fds: tuple[int, ...] = ()) -> None:
        self._written = written
        self._file = written.open("wb")
        environment = {**os.environ, "GASOLINE_LOG": log, "PYTHONUNBUFFERED": "1"}
        self.popen = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=written.parent,
            env=environment,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            pass_fds=fds,
        )

    @property
    def written(self) -> str:
        """All it has written so far."""
        return self._written.read_text()

    def stop(self) -> str:
        """Ask it to end, as a supervisor does; return what it has written. It must end well."""
        self.popen.send_signal(signal.SIGTERM)
        code = self.popen.wait(PATIENCE_S)
        # uvicorn, once it has closed everything, ends by the very signal that it was sent.
        assert code in (0, -signal.SIGTERM), f"ended with {code}:\n{self.written}"
        assert ("Application shutdown complete" in self.written) == (code != 0)
        assert "Traceback" not in self.written, self.written
        return self.written

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self._file.close()
        print(f"--- {self._written.name}\n{self.written}")  # pytest shows it when the test has failed


@contextmanager
def worker(folder: Path, log: str, name: str = "worker") -> Generator[Process]:
    """The process that runs the orders."""
    process = Process((str(EXAMPLES / "web_orders.py"), "--log", log), folder / f"{name}.txt", log)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def server(kind: str, folder: Path, log: str) -> Generator[tuple[Process, str]]:
    """A web application, with its address. Its socket is bound before it starts: nobody else gets the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        program, *arguments = (part.format(fd=listening.fileno()) for part in SERVERS[kind])
        process = Process(("-m", program, *arguments), folder / f"{kind}.txt", log, (listening.fileno(),))
        port = listening.getsockname()[1]
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()


class Browser:
    """What the page does, without the page."""

    def __init__(self, kind: str, address: str) -> None:
        self._json = kind == "fastapi"
        self._client = httpx.Client(base_url=address, timeout=PATIENCE_S)
        self.page = self._client.get("/").raise_for_status().text
        self._token = self._client.cookies.get("csrftoken")

    def post(self, path: str, body: dict[str, Any], request: str | None = None) -> httpx.Response:
        sent = {"request": request or str(uuid.uuid4()), **body}
        headers = {} if self._token is None else {"X-CSRFToken": self._token}
        if self._json:
            return self._client.post(path, json=sent, headers=headers)
        return self._client.post(path, data=sent, headers=headers)

    def get(self, path: str) -> httpx.Response:
        return self._client.get(path)

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """What a stream of server-sent events tells, until it ends."""
        with self._client.stream("GET", path) as response:
            response.raise_for_status()
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line:
                    assert line.startswith("data: ")
                    yield cast(dict[str, Any], json.loads(line.removeprefix("data: ")))

    def close(self) -> None:
        self._client.close()


@contextmanager
def browser(kind: str, address: str) -> Generator[Browser]:
    opened = Browser(kind, address)
    try:
        yield opened
    finally:
        opened.close()
