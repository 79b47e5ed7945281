"""What kafka-python is called by here, and what its errors mean."""

from __future__ import annotations

import logging
import ssl
import time
import warnings
from collections.abc import Callable
from typing import Any

from gasoline_es.errors import LogError
from gasoline_es.log.kafka.drivers.port import BrokerError, NotAllowed

with warnings.catch_warnings():
    # It reads its schemas, while it is imported, by a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as _kafka  # pyright: ignore[reportMissingTypeStubs]
    import kafka.admin as _admin  # pyright: ignore[reportMissingTypeStubs]
    import kafka.coordinator.assignors.cooperative_sticky as _sticky  # pyright: ignore[reportMissingTypeStubs]
    import kafka.errors as _errors  # pyright: ignore[reportMissingTypeStubs]
    import kafka.net.compat as _net  # pyright: ignore[reportMissingTypeStubs]
    import kafka.net.inet as _inet  # pyright: ignore[reportMissingTypeStubs]
    import kafka.net.manager as _manager  # pyright: ignore[reportMissingTypeStubs]

# The library has no types of its own that could be relied on.
kafka: Any = _kafka
admin: Any = _admin
sticky: Any = _sticky
errors: Any = _errors
net: Any = _net
inet: Any = _inet
manager: Any = _manager

KafkaError: type[Exception] = errors.KafkaError


class _WithoutSecrets(logging.Filter):
    """Keeps back what the library tells of logging in while it is debugged: the password, and the bytes that it sends."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.DEBUG:
            return True
        said = record.getMessage()
        return "Sasl" not in said and " Send: " not in said


for _name in ("kafka.net.connection", "kafka.protocol.parser", "kafka.net.manager", "kafka.net.selector"):
    logging.getLogger(_name).addFilter(_WithoutSecrets())


REPEATS_S = 10.0
REMEMBERED_MAX = 1_000


class Seldom(logging.Filter):
    """Lets the same message through once in ten seconds: while a topic is away, the library says so ten times a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._until: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        said, now_s = record.getMessage(), self._clock()
        if now_s < self._until.get(said, now_s):
            return False
        if len(self._until) >= REMEMBERED_MAX:
            self._until.clear()
        self._until[said] = now_s + REPEATS_S
        return True


logging.getLogger("kafka.cluster").addFilter(Seldom())


class _Sockets(inet.KafkaNetSocket):  # type: ignore[misc]  # the library has no types
    """Connects. The library's own leaves a socket open that reaches nobody; it is found by its scheme, as proxies are."""

    SCHEMES = ("gasoline-direct",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        """Connect a socket, or close it."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        except BaseException:
            sock.close()
            raise


class _Tls(manager.KafkaSSLTransport):  # type: ignore[misc]  # the library has no types
    """A connection by TLS. The library's own waits without end for who takes a connection and says nothing."""

    async def agree(self, timeout_at: float | None) -> None:
        """Do what has to be done before anything is sent, in time. Raises: KafkaTimeoutError, OSError."""
        while True:
            try:
                self._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at)


class _Manager(manager.KafkaConnectionManager):  # type: ignore[misc]  # the library has no types
    """Makes connections. The library's own leaves the socket of one open whose TLS comes to nothing."""

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        options, direct = self.config["socket_options"], f"{_Sockets.SCHEMES[0]}:"
        sock = await inet.create_connection(
            self._net, node.host, node.port, options, proxy_url=direct, timeout_at=timeout_at
        )
        if not self.ssl_enabled:
            return manager.KafkaTCPTransport(self._net, sock, host=node.host)
        held: Any = sock
        try:
            tls = {name: value for name, value in self.config.items() if name.startswith("ssl_")}
            held = transport = _Tls(self._net, sock, host=node.host, **tls)
            await transport.agree(timeout_at)
        except BaseException as error:  # also that it is cancelled
            held.close()
            if isinstance(error, Exception):
                raise errors.KafkaConnectionError(f"Handshake failed: {error}") from error
            raise
        return transport


class _Client(net.KafkaNetClient):  # type: ignore[misc]  # the library has no types
    """What the clients of the library have below them. Its own end leaves a socket open that is about to connect."""

    def __init__(self, **config: Any) -> None:
        loop = net.NetworkSelector(**config)
        super().__init__(net=loop, manager=_Manager(loop, **config))  # pyright: ignore[reportUnknownMemberType]

    def close(self, node_id: Any = None) -> None:
        """Let go of a connection; None: of all, and of every socket that something is waited for of."""
        if node_id is not None:
            super().close(node_id)  # pyright: ignore[reportUnknownMemberType]
            return
        internal(self, "_manager").close()
        loop = internal(self, "_net")
        loop.stop()
        known: Any = internal(loop, "_selector").get_map() or {}  # none once it is closed
        waiting: list[Any] = [key.fileobj for key in [*known.values()]]
        super().close()  # pyright: ignore[reportUnknownMemberType]
        for one in waiting:
            one.close()


def made(kind: Any, **config: Any) -> Any:
    """Make a client. One that reaches no broker raises, and leaves its sockets and its thread behind by itself."""
    below: list[Any] = []

    def make(*args: Any, **more: Any) -> Any:
        below.append(_Client(*args, **more))
        return below[-1]

    try:
        return kind(**config, kafka_client=make)
    except BaseException:
        for one in below:
            one.close()
        raise


def internal(of: Any, name: str) -> Any:
    """Return what the library has for itself. Raises: LogError: this version of it has no such thing."""
    try:
        return getattr(of, name)
    except AttributeError:
        raise LogError(
            f"kafka-python {kafka.__version__} has no {type(of).__name__}.{name}, on which this driver relies: install one of "
            f"the versions that it was written for, pip install 'kafka-python>=3.0.12,<3.1', or use driver=confluent"
        ) from None


def is_too_large(error: BaseException) -> bool:
    """Whether a record was refused for its size."""
    return isinstance(error, errors.MessageSizeTooLargeError | errors.RecordListTooLargeError)


def is_refused(error: object) -> bool:
    """Whether a topic has refused a record for what it is."""
    return isinstance(
        error,
        errors.InvalidTimestampError
        | errors.InvalidRecordError
        | errors.PolicyViolationError
        | errors.UnsupportedForMessageFormatError
        | errors.UnsupportedCompressionTypeError,
    )


def is_fenced(error: BaseException | None, producer: Any) -> bool:
    """Whether this says that a producer was fenced.

    Only the first error says so by its type; the later ones are plain, and carry it, or tell it in words.
    """
    manager = getattr(producer, "_transaction_manager", None)
    said: list[Any] = [error, *getattr(error, "args", ()), getattr(manager, "last_error", None)]
    fenced = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
    return any(isinstance(one, fenced) or "ProducerFencedError" in str(one) for one in said)


def describe(error: BaseException) -> str:
    """Tell an error with its kind: many have no words of their own."""
    words = str(error)
    kind = type(error).__name__
    return words if kind in words else f"{kind}: {words}"


def broker_error(what: str, config: dict[str, Any], error: BaseException) -> BrokerError:
    """Make the error for what did not work, with where that was."""
    where = ",".join(config["bootstrap_servers"])
    hint = " (is a broker there, and do its advertised listeners name it so that it is reached from here?)"
    away = isinstance(error, errors.KafkaTimeoutError | errors.KafkaConnectionError | TimeoutError)
    kind = NotAllowed if isinstance(error, errors.AuthorizationError) else BrokerError
    return kind(f"Kafka at {where}: {what}: {describe(error)}{hint if away else ''}", bootstrap=where)
