"""The URL of a Kafka log (to be replaced by the one of branch kafka1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qs, urlsplit

from gasoline_es.log.kafka.drivers.port import Driver


@dataclass(frozen=True, slots=True)
class Address:
    servers: tuple[str, ...]
    namespace: str | None = None
    prefix: str = ""
    driver: str | None = None
    state_dir: str | None = None
    replication: int = -1
    config: str | None = None

    @classmethod
    def of(cls, url: str) -> Self:
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return cls(
            tuple(parts.netloc.split(",")),
            parts.path.strip("/") or None,
            query.get("prefix", ""),
            query.get("driver"),
            query.get("state_dir"),
            int(query.get("replication", "-1")),
            query.get("config"),
        )

    def __str__(self) -> str:
        return f"kafka://{','.join(self.servers)}/{self.namespace or ''}"


def make_driver(address: Address) -> Driver:
    if address.driver == "kafka-python":
        from gasoline_es.log.kafka.drivers.kafka_python import KafkaPythonDriver

        return KafkaPythonDriver({"bootstrap_servers": list(address.servers)})
    from gasoline_es.log.kafka.drivers.confluent import ConfluentDriver

    return ConfluentDriver({"bootstrap.servers": ",".join(address.servers)})
