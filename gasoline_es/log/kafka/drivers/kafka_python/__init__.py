"""The driver on kafka-python, which is always installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gasoline_es.log.kafka.drivers.kafka_python.admin import KafkaPythonAdmin
from gasoline_es.log.kafka.drivers.kafka_python.reading import KafkaPythonReader
from gasoline_es.log.kafka.drivers.kafka_python.writing import KafkaPythonWriter
from gasoline_es.log.kafka.drivers.lookups import OffsetAdmin, SharingDriver
from gasoline_es.log.kafka.drivers.port import Reader, Writer


class KafkaPythonDriver(SharingDriver):
    """Makes clients of kafka-python. ``config``: how the cluster is reached, as its clients take it."""

    name = "kafka-python"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self._config = dict(config)

    def writer(self, transactional_id: str, timeout_s: float) -> Writer:
        """Make a writer (see the port)."""
        return KafkaPythonWriter(self._config, transactional_id, timeout_s)

    def reader(self, *, uncommitted: bool = False) -> Reader:
        """Make a reader (see the port)."""
        return KafkaPythonReader(self._config, uncommitted, self._shared_admin)

    def admin(self) -> OffsetAdmin:
        """Make an admin (see the port)."""
        return KafkaPythonAdmin(self._config)
