"""Clients of kafka-python leave no socket open, whatever they were at when they ended."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from gasoline_es.log.kafka.drivers.kafka_python.client import inet, made
from tests.kafka_server import free_port


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A server that takes connections and never reads."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=5)) as server:
        yield server


class Below:
    """In the place of a client: what it has below it."""

    def __init__(self, kafka_client: Any, **config: Any) -> None:
        self.client = kafka_client(**config)


def below(server: socket.socket, **config: Any) -> Any:
    return below_at(server.getsockname()[1], **config)


def below_at(port: int, **config: Any) -> Any:
    return made(Below, bootstrap_servers=[f"127.0.0.1:{port}"], metrics=None, **config).client


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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """Every socket that is opened, and every one of TLS: as long as they are held here, no collector closes them."""
    found: list[socket.socket] = []
    plain, secure = inet.KafkaNetSocket.socket, ssl.SSLContext.wrap_socket

    def open_plain(*args: Any, **more: Any) -> socket.socket:
        found.append(plain(*args, **more))
        return found[-1]

    def open_secure(*args: Any, **more: Any) -> socket.socket:
        found.append(secure(*args, **more))
        return found[-1]

    monkeypatch.setattr(inet.KafkaNetSocket, "socket", open_plain)
    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", open_secure)
    return found


def failed(client: Any) -> str:
    """Have it try to connect, and return why that came to nothing."""
    (node,) = client.cluster.bootstrap_brokers()
    connection = client._manager.get_connection(node.node_id)
    while not connection.init_future.is_done:
        client._net.poll(timeout_ms=10)
    return str(connection.init_future.exception)


def test_who_reaches_nobody_keeps_no_socket_open(opened: list[socket.socket]) -> None:
    client = below_at(free_port())
    assert "ECONNREFUSED" in failed(client)
    assert [one.fileno() for one in opened] == [-1]
    client.close()


def test_who_is_answered_in_no_tls_keeps_no_socket_open(mute: socket.socket, opened: list[socket.socket]) -> None:
    """As where a certificate is one that nobody vouches for: the handshake fails once a socket of TLS is there."""
    client = below(mute, security_protocol="SSL")
    (node,) = client.cluster.bootstrap_brokers()
    connection = client._manager.get_connection(node.node_id)
    client._net.poll(timeout_ms=10)
    with closing(mute.accept()[0]) as accepted:
        accepted.sendall(b"in plain words\n")
        while not connection.init_future.is_done:
            client._net.poll(timeout_ms=10)
    assert "Handshake failed" in str(connection.init_future.exception)
    assert isinstance(opened[-1], ssl.SSLSocket)
    assert [one.fileno() for one in opened] == [-1, -1]
    client.close()


def test_whose_certificates_cannot_be_read_keeps_no_socket_open(
    mute: socket.socket, opened: list[socket.socket]
) -> None:
    client = below(mute, security_protocol="SSL", ssl_cafile="/nowhere/ca.pem")
    assert "No such file" in failed(client)
    assert [one.fileno() for one in opened] == [-1]
    client.close()


def test_who_ends_while_tls_is_agreed_on_keeps_no_socket_open(mute: socket.socket, opened: list[socket.socket]) -> None:
    client = below(mute, security_protocol="SSL")
    (node,) = client.cluster.bootstrap_brokers()
    client._manager.get_connection(node.node_id)
    while not any(isinstance(one, ssl.SSLSocket) for one in opened):
        client._net.poll(timeout_ms=10)
    client.close()
    assert [one.fileno() for one in opened] == [-1, -1]


def test_who_says_nothing_to_tls_is_given_up_in_time(mute: socket.socket, opened: list[socket.socket]) -> None:
    client = below(mute, security_protocol="SSL", socket_connection_setup_timeout_ms=50)
    assert "timed out" in failed(client)
    assert [one.fileno() for one in opened] == [-1, -1]
    client.close()
