"""What a cluster wants to be shown: certificates, names and passwords, tokens; from a file and the environment.

Every setting has the name that librdkafka gives it, wherever it comes from. Values that are secret are never told again, by
errors least of all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from gasoline_es.errors import ExtraMissing, LogError
from gasoline_es.log.kafka.tokens import provided

TokenCall = Callable[[], tuple[str, float]]
"""Returns a token, and the time at which it ends, in seconds since 1970."""

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_WITH_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MSK: Final = "AWS_MSK_IAM"
MECHANISMS: Final = (*_WITH_PASSWORD, "OAUTHBEARER", MSK)
_PROVIDER: Final = "oauth.token.provider"
_OIDC: Final = "sasl.oauthbearer."

# Each setting, and the variables it may come from.
_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "client.id": ("KAFKA_CLIENT_ID",),
    "security.protocol": ("KAFKA_SECURITY_PROTOCOL",),
    "sasl.mechanism": ("KAFKA_SASL_MECHANISM", "KAFKA_SASL_MECHANISMS"),
    "sasl.username": ("KAFKA_SASL_USERNAME",),
    "sasl.password": ("KAFKA_SASL_PASSWORD",),
    "ssl.ca.location": ("KAFKA_SSL_CA_LOCATION", "KAFKA_SSL_CAFILE"),
    "ssl.certificate.location": ("KAFKA_SSL_CERTIFICATE_LOCATION", "KAFKA_SSL_CERTIFICATE", "KAFKA_SSL_CERTFILE"),
    "ssl.key.location": ("KAFKA_SSL_KEY_LOCATION", "KAFKA_SSL_KEY", "KAFKA_SSL_KEYFILE"),
    "ssl.key.password": ("KAFKA_SSL_KEY_PASSWORD",),
    "ssl.endpoint.identification.algorithm": ("KAFKA_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM",),
    "sasl.oauthbearer.method": ("KAFKA_SASL_OAUTHBEARER_METHOD",),
    "sasl.oauthbearer.client.id": ("KAFKA_SASL_OAUTHBEARER_CLIENT_ID",),
    "sasl.oauthbearer.client.secret": ("KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET",),
    "sasl.oauthbearer.scope": ("KAFKA_SASL_OAUTHBEARER_SCOPE",),
    "sasl.oauthbearer.token.endpoint.url": ("KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL",),
    "sasl.oauthbearer.extensions": ("KAFKA_SASL_OAUTHBEARER_EXTENSIONS",),
    "oauth.token.provider": ("KAFKA_OAUTH_TOKEN_PROVIDER",),
    "aws.region": ("KAFKA_AWS_REGION",),
}
_OTHER_NAMES: Final = {"sasl.mechanisms": "sasl.mechanism"}
_SECRETS: Final = frozenset({"sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret"})
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
# Variables of other programs' Kafka; what they say is in the URL here.
_IN_THE_URL: Final = "bootstrap.servers"


class Secret(str):
    """A text that does not show itself where a container of it is shown, as in the clients' own log lines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


@dataclass(frozen=True, slots=True)
class Security:
    """How a cluster is reached, checked. ``settings``: by librdkafka's names; secret ones do not show themselves."""

    settings: Mapping[str, str]
    token: TokenCall | None = field(default=None, repr=False)
    """Where the tokens come from, if this process itself has to bring them."""

    @property
    def protocol(self) -> str:
        """How the bytes travel."""
        return self.settings.get("security.protocol", "PLAINTEXT")

    @property
    def mechanism(self) -> str | None:
        """How the cluster is told who this is."""
        return self.settings.get("sasl.mechanism")


@dataclass(frozen=True, slots=True)
class _Given:
    """A value, and where it was found."""

    value: str
    where: str


def read_security(
    servers: Sequence[str], config: str | None, environ: Mapping[str, str], token: TokenCall | None = None
) -> Security:
    """Read the file, if there is one, and the variables. Raises: LogError; ExtraMissing."""
    found: dict[str, _Given] = {}
    if config is not None:
        for name, given in _file(config, servers):
            _take(found, name, given)
    for name, variables in _VARIABLES.items():
        for variable in variables:
            if environ.get(variable):
                _take(found, name, _Given(environ[variable], variable))
    _normalise(found)
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region and "aws.region" not in found and "sasl.mechanism" in found and found["sasl.mechanism"].value == MSK:
        found["aws.region"] = _Given(region, "AWS_REGION")
    token = _check_protocol(found, token)
    _check_files(found)
    found.pop(_PROVIDER, None)  # no client library knows it
    settings = {name: Secret(given.value) if name in _SECRETS else given.value for name, given in found.items()}
    return Security(settings, _msk(settings) if settings.get("sasl.mechanism") == MSK else token)


def _take(found: dict[str, _Given], name: str, given: _Given) -> None:
    before = found.get(name)
    if before is not None and before.value != given.value:
        raise LogError(f"{before.where} and {given.where} say different things about {name}: leave one of them out")
    found[name] = given


def _file(path: str, servers: Sequence[str]) -> list[tuple[str, _Given]]:
    try:
        text = Path(os.path.expanduser(path)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise LogError(f"the file of Kafka settings {path!r} cannot be read: {error}", path=path) from error
    found: list[tuple[str, _Given]] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        name, where = name.strip(), f"{path}, line {number},"
        if not equals:
            raise LogError(f"{where} is not NAME=VALUE", path=path, line=number)
        name, value = _OTHER_NAMES.get(name, name), value.strip()
        if name == _IN_THE_URL:
            if sorted(value.replace(" ", "").split(",")) != sorted(servers):
                raise LogError(
                    f"{where} names other servers than the URL: leave {_IN_THE_URL} out", path=path, line=number
                )
            continue
        if name not in _VARIABLES:
            known = ", ".join(_VARIABLES)
            raise LogError(f"{where} has the unknown setting {name!r}; there are {known}", path=path, line=number)
        if value:
            found.append((name, _Given(value, where.rstrip(","))))
    return found


def _normalise(found: dict[str, _Given]) -> None:
    """Bring what has a few values only into one writing, and refuse others."""
    allowed = {
        "security.protocol": PROTOCOLS,
        "sasl.mechanism": MECHANISMS,
        "ssl.endpoint.identification.algorithm": ("https", "none"),
        "sasl.oauthbearer.method": ("default", "oidc"),
    }
    for name, values in allowed.items():
        given = found.get(name)
        if given is None:
            continue
        by_writing = {value.upper(): value for value in values}
        value = by_writing.get(given.value.upper().replace("SCRAM_SHA_", "SCRAM-SHA-"))
        if value is None:
            raise LogError(f"{given.where} says {name}={given.value!r}, which is not one of {', '.join(values)}")
        found[name] = _Given(value, given.where)


def _check_protocol(found: Mapping[str, _Given], token: TokenCall | None) -> TokenCall | None:
    """Raises: LogError: settings contradict each other. Returns where tokens come from."""
    protocol = found["security.protocol"].value if "security.protocol" in found else "PLAINTEXT"
    mechanism = found["sasl.mechanism"].value if "sasl.mechanism" in found else None
    for name, given in found.items():
        if name.startswith("ssl.") and "SSL" not in protocol:
            raise LogError(
                f"{given.where} sets {name}, which security.protocol={protocol} does not use: set SSL or SASL_SSL"
            )
        if name.startswith("sasl.") and "SASL" not in protocol:
            raise LogError(
                f"{given.where} sets {name}, which security.protocol={protocol} does not use: set SASL_SSL or SASL_PLAINTEXT"
            )
    if "ssl.key.location" in found and "ssl.certificate.location" not in found:
        raise LogError(
            f"{found['ssl.key.location'].where} names a key without a certificate: set ssl.certificate.location"
        )
    provider = found.get(_PROVIDER)
    if provider is not None and token is not None:
        raise LogError(f"oauth_token is given, and {provider.where} names another: leave one out")
    told = "oauth_token is given" if provider is None else f"{provider.where} sets {_PROVIDER}"
    if (provider is not None or token is not None) and ("SASL" not in protocol or mechanism != "OAUTHBEARER"):
        unused = f"security.protocol={protocol}" if "SASL" not in protocol else f"sasl.mechanism={mechanism}"
        raise LogError(f"{told}, which {unused} does not use")
    if "SASL" in protocol:
        _check_mechanism(found, protocol, mechanism, None if provider is None and token is None else told)
    return token if provider is None else provided(provider.value, provider.where)


def _check_mechanism(found: Mapping[str, _Given], protocol: str, mechanism: str | None, tokens: str | None) -> None:
    """``tokens``: says where a function for them was given; None: nowhere."""
    if mechanism is None:
        raise LogError(f"security.protocol={protocol} needs sasl.mechanism: one of {', '.join(MECHANISMS)}")
    password = {name for name in ("sasl.username", "sasl.password") if name in found}
    if mechanism in _WITH_PASSWORD:
        missing = {"sasl.username", "sasl.password"} - password
        if missing:
            raise LogError(f"sasl.mechanism={mechanism} needs {' and '.join(sorted(missing))}")
    elif password:
        raise LogError(
            f"{found[min(password)].where} sets {min(password)}, which sasl.mechanism={mechanism} does not use"
        )
    oidc = sorted(name for name in found if name.startswith(_OIDC))
    if mechanism != "OAUTHBEARER" and oidc:
        raise LogError(f"{found[oidc[0]].where} sets {oidc[0]}, which sasl.mechanism={mechanism} does not use")
    if mechanism == "OAUTHBEARER":
        _check_tokens(found, tokens, oidc)
    if mechanism == MSK:
        if protocol != "SASL_SSL":
            raise LogError(f"sasl.mechanism={MSK} needs security.protocol=SASL_SSL")
        if "aws.region" not in found:
            raise LogError(f"sasl.mechanism={MSK} needs the cluster's region: set KAFKA_AWS_REGION or AWS_REGION")


def _check_tokens(found: Mapping[str, _Given], tokens: str | None, oidc: Sequence[str]) -> None:
    by_oidc = "sasl.oauthbearer.method" in found and found["sasl.oauthbearer.method"].value == "oidc"
    if tokens is not None and by_oidc:
        raise LogError(f"{tokens}, and {found['sasl.oauthbearer.method'].where} asks for OIDC: leave one out")
    if by_oidc:
        needed = [_OIDC + name for name in ("client.id", "client.secret", "token.endpoint.url")]
        missing = [name for name in needed if name not in found]
        if missing:
            raise LogError(f"sasl.oauthbearer.method=oidc needs {', '.join(missing)}")
    elif tokens is None:
        raise LogError(
            "sasl.mechanism=OAUTHBEARER needs tokens: name a function that returns them, KAFKA_OAUTH_TOKEN_PROVIDER="
            "module:function, or set sasl.oauthbearer.method=oidc and the client's id, secret and token endpoint"
        )
    elif oidc and oidc != ["sasl.oauthbearer.method"]:
        raise LogError(f"{found[oidc[0]].where} sets {oidc[0]}, which only sasl.oauthbearer.method=oidc uses")


def _check_files(found: Mapping[str, _Given]) -> None:
    for name in _FILES:
        given = found.get(name)
        if given is not None and not os.access(given.value, os.R_OK):
            raise LogError(f"{given.where} sets {name}={given.value!r}, and no such file can be read")


def _msk(settings: Mapping[str, str]) -> TokenCall:
    """Return what signs tokens for a cluster of Amazon MSK, by the credentials that this machine has."""
    try:
        signer: Any = import_module("aws_msk_iam_sasl_signer")
    except ImportError as error:
        raise ExtraMissing(
            f"sasl.mechanism={MSK} needs a package that is not installed: pip install 'gasoline_es[msk]'"
        ) from error

    def sign() -> tuple[str, float]:
        token, ends_ms = signer.MSKAuthTokenProvider.generate_auth_token(settings["aws.region"])
        return str(token), float(ends_ms) / 1000

    return sign
