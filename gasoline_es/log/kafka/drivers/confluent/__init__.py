"""The driver on confluent-kafka, which the extra `confluent` installs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gasoline_es.log.kafka.drivers.confluent.admin import ConfluentAdmin
from gasoline_es.log.kafka.drivers.confluent.reading import ConfluentReader
from gasoline_es.log.kafka.drivers.confluent.writing import ConfluentWriter
from gasoline_es.log.kafka.drivers.lookups import OffsetAdmin, SharingDriver
from gasoline_es.log.kafka.drivers.port import Reader, Writer


class ConfluentDriver(SharingDriver):
    """Makes clients of confluent-kafka. ``config``: how the cluster is reached, as its clients take it."""

    name = "confluent"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self._config = dict(config)

    def writer(self, transactional_id: str, timeout_s: float) -> Writer:
        """Make a writer (see the port)."""
        return ConfluentWriter(self._config, transactional_id, timeout_s)

    def reader(self, *, uncommitted: bool = False) -> Reader:
        """Make a reader (see the port)."""
        return ConfluentReader(self._config, uncommitted, self._shared_admin)

    def admin(self) -> OffsetAdmin:
        """Make an admin (see the port)."""
        return ConfluentAdmin(self._config)
