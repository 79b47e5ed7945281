"""Where a Kafka log is and how its cluster is reached: its URL, a file, the environment.

The URL names servers and namespace, and has nothing secret in it. What else a cluster wants to be told comes from a file of
properties with the names of librdkafka (``?config=FILE`` or ``GASOLINE_KAFKA_CONFIG``), and from ``KAFKA_…`` variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlencode

from gasoline_es.errors import ExtraMissing, LogError
from gasoline_es.log.kafka.security import Security, TokenCall, read_security
from gasoline_es.log.names import check_namespace

if TYPE_CHECKING:
    from gasoline_es.log.kafka.drivers.port import Driver

CONFIG_VARIABLE: Final = "GASOLINE_KAFKA_CONFIG"
DRIVERS: Final = ("kafka-python", "confluent")
_PORT: Final = "9092"
_SHAPE: Final = "kafka://HOST:PORT[,HOST:PORT…]/NAMESPACE"
_OPTIONS: Final = ("config", "driver", "prefix", "replication", "state_dir")
_SERVER: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/?#@]+)(?::(?P<port>[0-9]{1,5}))?")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{0,64}")


@dataclass(frozen=True, slots=True)
class Address:
    """What the URL of a Kafka log says."""

    servers: tuple[str, ...]
    """Some brokers of the cluster, as ``host:port``."""
    namespace: str | None = None
    """None: the URL leaves it open."""
    prefix: str = ""
    """Of the names of its topics."""
    driver: str | None = None
    """None: ``confluent`` where it is installed, else ``kafka-python``."""
    state_dir: str | None = None
    """Where on this machine what can be computed again is kept."""
    replication: int = -1
    """Of topics that are made; -1: as the cluster is set."""
    config: str | None = None
    """A file of properties."""

    @classmethod
    def of(cls, url: str) -> Address:
        """Read a URL. Raises: LogError, with what is wrong and how it is written; nothing secret is repeated."""
        scheme, colon, rest = url.partition("://")
        if not colon or scheme != "kafka":
            raise _wrong("this", f"is not the URL of a Kafka log: write {_SHAPE}")
        whole = unquote(rest)
        rest, _, query = rest.partition("?")
        authority, _, path = rest.partition("/")
        # A password may have '/' and '?' in it, which should have been written otherwise. Options may have '@' in them.
        servers = authority.split(",")
        option = query.partition("=")[0]
        if "@" in unquote(rest) + option or ("@" in query and not all(map(_SERVER.fullmatch, servers))):
            raise _wrong(
                f"kafka://…@{re.split('[/?#]', whole.rpartition('@')[2])[0]}",
                f"has a user in it: name the user and the password in KAFKA_SASL_USERNAME and KAFKA_SASL_PASSWORD, or in the "
                f"file that {CONFIG_VARIABLE} names, and write {_SHAPE}",
            )
        shown = f"kafka://{rest}"
        namespace = path.rstrip("/") or None
        if namespace is not None:
            check_namespace(namespace)
        options = _options(shown, query)
        return cls(
            servers=tuple(_server(shown, server) for server in servers),
            namespace=namespace,
            prefix=_checked(
                shown, "prefix", options.get("prefix", ""), _PREFIX, "up to 64 of A-Z, a-z, 0-9, '.', '_', '-'"
            ),
            driver=_one_of(shown, "driver", options.get("driver"), DRIVERS),
            state_dir=options.get("state_dir"),
            replication=_replication(shown, options.get("replication")),
            config=options.get("config"),
        )

    def __str__(self) -> str:
        """Return the URL."""
        given = {
            "prefix": self.prefix,
            "driver": self.driver,
            "state_dir": self.state_dir,
            "replication": "" if self.replication == -1 else str(self.replication),
            "config": self.config,
        }
        query = urlencode({name: value for name, value in given.items() if value}, safe="/~:")
        path = f"/{self.namespace}" if self.namespace else ""
        return f"kafka://{','.join(self.servers)}{path}{'?' if query else ''}{query}"


def _wrong(shown: str, what: str) -> LogError:
    return LogError(f"{shown!r} {what}" if shown != "this" else f"this {what}", url=shown)


def _server(shown: str, text: str) -> str:
    found = _SERVER.fullmatch(text)
    if found is None or not 0 < int(found["port"] or _PORT) < 65536:
        raise _wrong(shown, f"names {text!r} as a server, which is not HOST:PORT: write {_SHAPE}")
    return f"{found['host']}:{found['port'] or _PORT}"


def _options(shown: str, query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise _wrong(
                shown,
                f"is followed by the unknown option {name!r}; there are {', '.join(_OPTIONS)}. What else the cluster wants to "
                f"be told comes from the file that config= names, or from KAFKA_… variables",
            )
        if name in found:
            raise _wrong(shown, f"is followed by {name!r} twice")
        if value:
            found[name] = value
    return found


def _checked(shown: str, name: str, value: str, pattern: re.Pattern[str], allowed: str) -> str:
    if pattern.fullmatch(value) is None:
        raise _wrong(shown, f"has {name}={value!r}, which is not {allowed}")
    return value


def _one_of(shown: str, name: str, value: str | None, allowed: tuple[str, ...]) -> str | None:
    if value is not None and value not in allowed:
        raise _wrong(shown, f"has {name}={value!r}, which is not one of {', '.join(allowed)}")
    return value


def _replication(shown: str, value: str | None) -> int:
    if value is None:
        return -1
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 32767:
        raise _wrong(shown, f"has replication={value!r}, which is not the number of copies of each partition")
    return int(value)


def make_driver(
    address: Address, *, environ: Mapping[str, str] | None = None, oauth_token: TokenCall | None = None
) -> Driver:
    """Make the driver that an address asks for, set up for its cluster. Nothing is reached yet.

    ``environ``: the process's, unless given. ``oauth_token``: called for a token and the time at which it ends, in seconds
    since 1970, whenever the cluster wants to be shown one (``sasl.mechanism`` OAUTHBEARER).

    Raises: LogError: a setting is unknown, missing or contradicts another. ExtraMissing: the driver is not installed.
    """
    security = security_of(address, environ, oauth_token)
    installed = find_spec("confluent_kafka") is not None
    if address.driver == "confluent" and not installed:
        raise ExtraMissing(
            "driver=confluent needs a package that is not installed: pip install 'gasoline_es[confluent]', or leave "
            "driver=confluent out of the URL"
        )
    if address.driver == "confluent" or (address.driver is None and installed):
        return _confluent(address, security)
    return _kafka_python(address, security)


def security_of(
    address: Address, environ: Mapping[str, str] | None = None, oauth_token: TokenCall | None = None
) -> Security:
    """Read how a cluster is reached. Raises: as :func:`make_driver`, which says what is what."""
    environ = os.environ if environ is None else environ
    return read_security(address.servers, address.config or environ.get(CONFIG_VARIABLE) or None, environ, oauth_token)


def _confluent(address: Address, security: Security) -> Driver:
    from gasoline_es.log.kafka.drivers.confluent import ConfluentDriver
    from gasoline_es.log.kafka.drivers.confluent.settings import settings

    return ConfluentDriver(settings(address.servers, security))


def _kafka_python(address: Address, security: Security) -> Driver:
    from gasoline_es.log.kafka.drivers.kafka_python import KafkaPythonDriver
    from gasoline_es.log.kafka.drivers.kafka_python.settings import settings

    return KafkaPythonDriver(settings(address.servers, security))
