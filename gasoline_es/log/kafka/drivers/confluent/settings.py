"""How confluent-kafka is told of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gasoline_es.log.kafka.security import MSK, Security


def settings(servers: Sequence[str], security: Security) -> dict[str, Any]:
    """Return what every client is made with: the names are librdkafka's already."""
    found: dict[str, Any] = {name: value for name, value in security.settings.items() if name != "aws.region"}
    if security.mechanism == MSK:
        found["sasl.mechanism"] = "OAUTHBEARER"
    token = security.token
    if token is not None:

        def bring(_: str) -> tuple[str, float]:
            return token()

        found["oauth_cb"] = bring
    return {"bootstrap.servers": ",".join(servers), **found}
