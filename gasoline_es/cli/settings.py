"""What the options before the command say: which log, and which namespace of it."""

from __future__ import annotations

from dataclasses import dataclass

from gasoline_es.cli.failures import Misuse


@dataclass(frozen=True, slots=True)
class Settings:
    """``namespace`` None: not given; "default" to what looks at workflows, every one to what looks at a log."""

    log: str | None = None
    namespace: str | None = None

    @property
    def url(self) -> str:
        """The log's URL. Raises: Misuse if none was given."""
        if not self.log:
            raise Misuse("no log was given: write gasoline --log file:DIRECTORY …, or set GASOLINE_LOG=file:DIRECTORY")
        return self.log
