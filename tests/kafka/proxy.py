"""A proxy in front of a broker that loses, holds or cuts what a test chooses.

It knows of Kafka's protocol what it needs for that: a request is its length, the number of its API, a version, and a number
that its answer has too. Clients come to it because the broker sends them here (``OtherListener.advertised_port``).
"""

from __future__ import annotations

import enum
import socket
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


class Api(enum.IntEnum):
    """The requests that tests meddle with, by their numbers."""

    PRODUCE = 0
    FETCH = 1
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


class Fault(enum.Enum):
    """What happens to a request, or its answer."""

    CUT = "the connection breaks before the broker gets the request"
    LOSE_ANSWER = "the broker gets the request; the connection breaks instead of an answer"
    HOLD = "the request waits until the rule is released, and is passed on then"
    SWALLOW = "the request is lost, and the connection stays"
    HOLD_ANSWER = "the broker gets the request; its answer waits until the rule is released"


@dataclass(slots=True)
class Rule:
    """One fault, for the next ``times`` requests of an API."""

    api: Api
    fault: Fault
    times: int
    met: threading.Event = field(default_factory=threading.Event)
    """Set once the fault is there: the request has come; for answers, the broker has given one."""
    released: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Passes connections on, and does to their requests what its rules say."""

    def __init__(self, port: int) -> None:
        self.target: tuple[str, int] = ("", 0)
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", port))
        self.port = port
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End every connection, and take no more."""
        self.forget()
        # Closing alone does not wake a thread that waits in accept.
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut_all()

    def cut_all(self) -> None:
        """Break every connection there is."""
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            _shut(one)

    @contextmanager
    def rule(self, api: Api, fault: Fault, times: int = 1) -> Generator[Rule]:
        """Do this to the next so many requests; at the end, whatever is held is let go."""
        rule = Rule(api, fault, times)
        with self._lock:
            self._rules.append(rule)
        try:
            yield rule
        finally:
            with self._lock:
                if rule in self._rules:
                    self._rules.remove(rule)
            rule.released.set()

    def forget(self) -> None:
        """Let go of everything that is held, and do nothing more to anything."""
        with self._lock:
            rules, self._rules = self._rules, []
        for rule in rules:
            rule.released.set()

    def _taken(self, api: int) -> Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.api == api and rule.times > 0:
                    rule.times -= 1
                    return rule
        return None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self.target, 5)
                broker.settimeout(None)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets.update((client, broker))
            answers: dict[int, Rule] = {}
            for pump in (self._requests, self._answers):
                threading.Thread(target=self._pumped, args=(pump, client, broker, answers), daemon=True).start()

    def _pumped(self, pump: object, client: socket.socket, broker: socket.socket, answers: dict[int, Rule]) -> None:
        try:
            with suppress(OSError):
                pump(client, broker, answers)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]
        finally:
            for one in (client, broker):
                _shut(one)
            with self._lock:
                self._sockets.difference_update((client, broker))

    def _requests(self, client: socket.socket, broker: socket.socket, answers: dict[int, Rule]) -> None:
        while (frame := _frame(client)) is not None:
            api, _, number = struct.unpack_from(">hhi", frame, 4)
            rule = self._taken(api)
            if rule is not None:
                if rule.fault is Fault.CUT:
                    rule.met.set()
                    return
                if rule.fault is Fault.SWALLOW:
                    rule.met.set()
                    continue
                if rule.fault is Fault.HOLD:
                    rule.met.set()
                    rule.released.wait()
                else:
                    answers[number] = rule
            broker.sendall(frame)

    def _answers(self, client: socket.socket, broker: socket.socket, answers: dict[int, Rule]) -> None:
        while (frame := _frame(broker)) is not None:
            (number,) = struct.unpack_from(">i", frame, 4)
            rule = answers.pop(number, None)
            if rule is not None:
                rule.met.set()
                if rule.fault is Fault.LOSE_ANSWER:
                    return
                rule.released.wait()
            client.sendall(frame)


def _frame(source: socket.socket) -> bytes | None:
    """Read one message, its length included; None: the connection has ended."""
    head = _exactly(source, 4)
    if head is None:
        return None
    body = _exactly(source, struct.unpack(">i", head)[0])
    return None if body is None else head + body


def _exactly(source: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            return None
        data += more
    return bytes(data)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
