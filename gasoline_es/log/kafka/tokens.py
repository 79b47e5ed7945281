"""Tokens by a function of the user's own: it is named where the cluster's other settings are, not handed over.

A log is opened by its URL alone in many places: by the command line, by processes that build projections, by a copy. A name
reaches them all. What the function returns is shown to nobody but the cluster.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Final

from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError

_log = EngineLog(__name__)


class Provided:
    """Returns tokens of a function, checked."""

    def __init__(self, name: str, function: Any) -> None:
        self.name: Final = name
        self._function: Final = function

    def __call__(self) -> tuple[str, float]:
        """Return a token and the time at which it ends, in seconds since 1970. Raises: what the function does; LogError."""
        try:
            given: Any = self._function()
        except Exception as error:
            # Its words may have something secret in them.
            _log.warning(
                "no token for Kafka: %s raised %s", self.name, type(error).__name__, extra={"provider": self.name}
            )
            raise
        match given:
            case (str() as token, int() | float() as ends_s) if token:
                return token, float(ends_s)
            case _:
                pass
        _log.warning(
            "no token for Kafka: %s returned no token with the time at which it ends",
            self.name,
            extra={"provider": self.name},
        )
        raise LogError(f"{self.name} is to return a token and the time at which it ends, in seconds since 1970")

    def __repr__(self) -> str:
        return f"Provided({self.name!r})"


def provided(name: str, where: str) -> Provided:
    """Return the tokens of ``module:function``. ``where``: that is named. Raises: LogError: there is no such function.

    The module is looked for where Python looks, and then in the working directory.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise LogError(f"{where} names {name!r}, which is not module:function")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a command is not started by the directory that it works in
    try:
        found: Any = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise LogError(f"{where} names {name!r}, which cannot be loaded: {error!r}") from error
    if not callable(found):
        raise LogError(f"{where} names {name!r}, which is no function")
    return Provided(name, found)
