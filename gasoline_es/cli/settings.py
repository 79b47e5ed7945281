"""What the options before the command say: which log, and which namespace of it."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass

from gasoline_es.cli.failures import Misuse


@dataclass(frozen=True, slots=True)
class Settings:
    """``namespace`` None: not given; "default" to what looks at workflows, every one to what looks at a log.

    ``operator``: who does something, None: whoever runs this process. ``reason``: why.
    """

    log: str | None = None
    namespace: str | None = None
    operator: str | None = None
    reason: str | None = None

    @property
    def url(self) -> str:
        """The log's URL. Raises: Misuse if none was given."""
        if not self.log:
            raise Misuse("no log was given: write gasoline --log file:DIRECTORY …, or set GASOLINE_LOG=file:DIRECTORY")
        return self.log

    @property
    def decided_by(self) -> str:
        """Who does something, and why, for the events. Raises: Misuse: no event can hold that."""
        from gasoline_es.core.ids import check_operator  # --help loads nothing of it

        who = whoever() if self.operator is None else self.operator
        try:
            return check_operator(who if self.reason is None else f"{who}: {self.reason}")
        except ValueError as refused:
            raise Misuse(f"--operator and --reason are recorded: {refused}") from refused


def whoever() -> str:
    """Return the user and the host of this process, as far as the system knows them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return "".join(character for character in f"{user}@{socket.gethostname()}" if character.isprintable())[:100]
