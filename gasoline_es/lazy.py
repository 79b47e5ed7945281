"""Packages whose public names load when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: dict[str, Any], modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``.

    ``package``: its ``globals()``, with ``__all__``. ``modules``: which of its modules each name is in.
    """
    where: str = package["__name__"]

    def get(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {where!r} has no attribute {name!r}")
        value = getattr(import_module(f"{where}.{module}"), name)
        package[name] = value  # found directly from now on
        return value

    def names() -> list[str]:
        return sorted({*package, *package["__all__"]})

    return get, names
