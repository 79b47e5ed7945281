"""Clients of kafka-python leave no socket open, whatever they were at when they ended."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from gasoline_es.log.kafka.drivers.kafka_python.client import made


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A server that takes connections and never reads."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=5)) as server:
        yield server


class Below:
    """In the place of a client: what it has below it."""

    def __init__(self, kafka_client: Any, **config: Any) -> None:
        self.client = kafka_client(**config)


def below(server: socket.socket) -> Any:
    host, port = server.getsockname()
    return made(Below, bootstrap_servers=[f"{host}:{port}"], metrics=None).client


def connected(client: Any) -> Any:
    """Have it connect, and return its end."""
    (node,) = client.cluster.bootstrap_brokers()
    connection = client._manager.get_connection(node.node_id)
    while connection.transport is None:
        client._net.poll(timeout_ms=10)
    return connection.transport


def test_what_was_still_to_be_sent_keeps_no_socket_open(mute: socket.socket) -> None:
    client = below(mute)
    transport = connected(client)
    transport.write(b"x" * 30_000_000)
    client._net.poll(timeout_ms=10)
    assert transport._write_buffer, "something is still to be sent"
    ours = transport._sock
    client.close()
    assert ours.fileno() == -1
    client.close()


def test_who_was_about_to_connect_keeps_no_socket_open(mute: socket.socket) -> None:
    mute.listen(0)
    host, port = mute.getsockname()
    others: list[socket.socket] = []
    for _ in range(3):  # the queue of who is to be taken is full: the next one waits
        other = socket.socket()
        other.setblocking(False)
        other.connect_ex((host, port))
        others.append(other)
    client = below(mute)
    (node,) = client.cluster.bootstrap_brokers()
    client._manager.get_connection(node.node_id)
    client._net.poll(timeout_ms=10)
    connecting = [
        key.fileobj for key in client._net._selector.get_map().values() if key.fileobj is not client._net._wakeup_r
    ]
    client.close()
    assert connecting
    assert [one.fileno() for one in connecting] == [-1]
    for other in others:
        other.close()
