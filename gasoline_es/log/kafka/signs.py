"""Signs of life: what a process tells about itself, again and again, from a thread that no event loop can hold up."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import Feed, Out
from gasoline_es.log.kafka.records import now_ms
from gasoline_es.log.kafka.sender import Sender
from gasoline_es.log.kafka.who import worker_key


class Signs:
    """The thread. It begins with the first thing that is to be told, and ends with the process."""

    def __init__(self, workers: Feed, incarnation: str, sender: Sender, every_s: float) -> None:
        self.about: Mapping[str, Any] | None = None
        """What it tells besides that it lives."""
        self.shown: Final = threading.Event()
        """Set once a sign is durable."""
        self._workers: Final = workers
        self._incarnation: Final = incarnation
        self._sender: Final = sender
        self._every_s: Final = every_s
        self._news: Final = threading.Event()
        self._stopped = False
        self._thread: Final = threading.Thread(target=self._run, name="gasoline-kafka-signs", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def tell(self, about: Mapping[str, Any] | None) -> None:
        """Tell this from now on, and at once. From any thread; nothing is waited for."""
        self.about = about
        self._news.set()

    def sign(self) -> Out:
        """Return a sign of life."""
        told = {"about": self.about, "host": socket.gethostname(), "pid": os.getpid()}
        value = json.dumps(told, separators=(",", ":")).encode()
        return Out(self._workers, worker_key(self._incarnation), value, (), now_ms())

    def leave(self) -> None:
        """End, and tell that."""
        self._end()
        with suppress(LogError):
            self._sender.send([Out(self._workers, worker_key(self._incarnation), None, (), now_ms())])

    def stop(self) -> None:
        """End without a word."""
        self._sender.stop()
        self._end()

    def _end(self) -> None:
        self._stopped = True
        self._news.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stopped:
            self._news.clear()
            with suppress(LogError):  # it was stopped
                self._sender.send([self.sign()])
                self.shown.set()
            self._news.wait(self._every_s)
