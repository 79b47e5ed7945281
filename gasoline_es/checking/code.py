"""The code that histories are to replay in: the workflows of a module, named as it is imported or by its file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from gasoline_es.definitions import Workflow
from gasoline_es.errors import GasolineError, PackageShadowed
from gasoline_es.registry import Registry
from gasoline_es.shadowing import check_package

Workflows = Mapping[str, Workflow[Any, Any]]
"""By the name that histories have."""


class CodeRefused(Exception):
    """There is no such code, or it cannot be loaded."""


@dataclass(frozen=True, slots=True)
class Code:
    """Where the workflows are. ``names``: only these, by their names in the module or in histories; empty: all."""

    module: str
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Code:
        """Read ``MODULE`` or ``MODULE:NAME,NAME``. Raises: CodeRefused."""
        module, colon, listed = text.rpartition(":")
        if not colon or os.sep in listed:
            module, listed = text, ""
        names = tuple(name.strip() for name in listed.split(",")) if colon and module is not text else ()
        if not module or not all(name.isidentifier() for name in names):
            raise CodeRefused(f"{text!r} names no code: write shop.orders, shop/orders.py or shop.orders:fulfil,ship")
        return cls(module, names)

    def require(self) -> None:
        """See that there is such a module, without running any of it. Raises: CodeRefused: there is none.

        That it can be loaded is not said: a file that is being written may not be sound yet.
        """
        if self._is_file:
            if not Path(self.module).is_file():
                raise CodeRefused(f"{self.module} cannot be read: there is no such file")
            return
        _require_importable(self.module)

    def load(self) -> Workflows:
        """Import the module and return its workflows. Raises: CodeRefused."""
        return self._chosen(self.imported())

    def imported(self) -> types.ModuleType:
        """Import the module. What it prints goes to standard error. Raises: CodeRefused."""
        with contextlib.redirect_stdout(sys.stderr):
            try:
                return _run_file(self.module) if self._is_file else _import(self.module)
            except CodeRefused:
                raise
            except Exception as error:
                if isinstance(error, ImportError):
                    _check_package(self.module)
                raise CodeRefused(f"{self.module} cannot be loaded: {type(error).__name__}: {error}") from error

    @property
    def _is_file(self) -> bool:
        return self.module.endswith(".py") or os.sep in self.module

    def _chosen(self, module: types.ModuleType) -> Workflows:
        all_of_it = [found for value in vars(module).values() if (found := _workflow(value)) is not None]
        if not all_of_it:
            raise CodeRefused(f"there is no workflow in {self.module}: name the module where @workflow stands")
        chosen: list[Workflow[Any, Any]] = []
        for name in self.names:
            found = _workflow(getattr(module, name, None)) or next((one for one in all_of_it if one.name == name), None)
            if found is None:
                there = ", ".join(sorted({one.name for one in all_of_it}))
                raise CodeRefused(f"there is no workflow {name!r} in {self.module}: it has {there}")
            chosen.append(found)
        return by_name_of(chosen or all_of_it, self.module)


def _workflow(value: object) -> Workflow[Any, Any] | None:
    # By its type: to ask the value for its class would run code of whatever lies in the module.
    return cast("Workflow[Any, Any]", value) if issubclass(type(value), Workflow) else None


def by_name_of(workflows: Iterable[Workflow[Any, Any]], module: str = "") -> Workflows:
    """Return the workflows by the names their histories have. Raises: CodeRefused: two have one name, or a wrong type."""
    try:
        return dict(Registry(workflows))
    except GasolineError as error:
        choose = f"; or name one of them, as in {module}:NAME" if module and "have the name" in error.message else ""
        raise CodeRefused(error.message + choose) from error


def _import(dotted: str) -> types.ModuleType:
    _make_importable(dotted)
    try:
        return import_module(dotted)
    except ModuleNotFoundError as error:
        if error.name is not None and (dotted == error.name or dotted.startswith(f"{error.name}.")):
            raise _no_module(dotted) from error
        raise


def _make_importable(dotted: str) -> None:
    """Let modules of the current directory be found, as `python -m` does. Raises: CodeRefused: that can be no module."""
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise CodeRefused(f"{dotted!r} is no module: write shop.orders, or the path of a file as shop/orders.py")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _check_not_hidden(dotted.partition(".")[0])


def _check_not_hidden(name: str) -> None:
    """Refuse a module that lies here, but is hidden by another that has its name. Raises: CodeRefused."""
    if (loaded := sys.modules.get(name)) is None:
        return
    here = Path.cwd()
    found = {
        Path(place).resolve()
        for place in (getattr(loaded, "__file__", None), *getattr(loaded, "__path__", ()))
        if place
    }
    for file in (here / f"{name}.py", here / name / "__init__.py"):
        if file.is_file() and found.isdisjoint({file.resolve(), file.parent.resolve()}):
            where = getattr(loaded, "__file__", None) or "built into Python"
            raise CodeRefused(
                f"{file.relative_to(here)} cannot be loaded as {name!r}, which is another module ({where}): give it another "
                f"name"
            )


def _check_package(module: str) -> None:
    """Say which file is in the way, if that is why something could not be imported. Raises: CodeRefused: it is."""
    try:
        check_package()
    except PackageShadowed as shadowed:
        raise CodeRefused(f"{module} cannot be loaded: {shadowed.message}") from shadowed


def _no_module(dotted: str) -> CodeRefused:
    return CodeRefused(f"there is no module {dotted!r} here or among what is installed")


def _require_importable(dotted: str) -> None:
    """Look for a module as an import does, part by part, but run none of its packages. Raises: CodeRefused."""
    _make_importable(dotted)
    path: Sequence[str] | None = None
    parts = dotted.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if name in sys.modules:
            path = getattr(sys.modules[name], "__path__", None)
        else:
            finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
            found = (find(name, path) for find in finders if find is not None)
            spec = next((one for one in found if one is not None), None)
            if spec is None:
                raise _no_module(dotted)
            path = spec.submodule_search_locations
        if path is None and count < len(parts) and ".".join(parts[: count + 1]) not in sys.modules:
            raise _no_module(dotted)


def _run_file(path: str) -> types.ModuleType:
    """Run a file as a module of its name, with what lies beside it within reach. Nothing is written beside it."""
    file = Path(path).resolve()
    try:
        source = file.read_bytes()
    except OSError as error:
        raise CodeRefused(f"{path} cannot be read: {error.strerror or error}") from error
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = file.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) != str(file):
        name = f"{name}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"  # another module has the name
    module = types.ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module  # annotations are resolved by it
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)  # noqa: S102  # it is the user's own code
    finally:
        sys.dont_write_bytecode = writes
    return module


def sources(workflows: Workflows) -> dict[str, str]:
    """Return the source of every file in which one of the workflows stands, by file."""
    found: dict[str, str] = {}
    for definition in workflows.values():
        if definition.file not in found:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found[definition.file] = Path(definition.file).read_text(encoding="utf-8")
    return found
