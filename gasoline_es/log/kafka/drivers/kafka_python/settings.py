"""How kafka-python is told of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import kafka.net.sasl.oauth as _oauth  # pyright: ignore[reportMissingTypeStubs]

from gasoline_es.errors import LogError
from gasoline_es.log.kafka.security import MSK, Security, TokenCall

oauth: Any = _oauth

_NAMES: Final[Mapping[str, str]] = {
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}


class _Tokens(oauth.AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
    def __init__(self, call: TokenCall) -> None:
        self._call = call

    def token(self) -> str:
        return self._call()[0]


def settings(servers: Sequence[str], security: Security) -> dict[str, Any]:
    """Return what every client is made with. Raises: LogError: the library cannot do what is asked for."""
    if security.settings.get("sasl.oauthbearer.method") == "oidc":
        raise LogError(
            "sasl.oauthbearer.method=oidc is not to be had from kafka-python: use driver=confluent, or name a function in "
            "KAFKA_OAUTH_TOKEN_PROVIDER"
        )
    found: dict[str, Any] = {
        _NAMES[name]: value for name, value in security.settings.items() if name in _NAMES and value
    }
    if "ssl.endpoint.identification.algorithm" in security.settings:
        found["ssl_check_hostname"] = security.settings["ssl.endpoint.identification.algorithm"] == "https"
    if security.mechanism == MSK:
        found["sasl_mechanism"] = "OAUTHBEARER"
    if security.token is not None:
        found["sasl_oauth_token_provider"] = _Tokens(security.token)
    return {"bootstrap_servers": list(servers), **found}
