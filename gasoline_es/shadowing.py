"""Whether ``projections`` is this library's package, or a module of the user's that is found first.

Importing this module checks it, so it stands above every first import of ``projections``: what Python says by itself
(``'projections' is not a package``) names neither the file in the way nor what to do.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Final

from gasoline_es.errors import PackageShadowed

_NAME: Final = "projections"
_OURS_ALONE: Final = f"{_NAME}.generation_fold"
"""A module that no other package of that name has."""


def check_package() -> None:
    """Check that ``import projections`` gives, or gave, this library's package. Raises: PackageShadowed."""
    loaded = sys.modules.get(_NAME)
    spec: ModuleSpec | None = find_spec(_NAME) if loaded is None else loaded.__spec__
    if loaded is None and spec is None:
        return  # it is not there at all, which the import says
    places = None if spec is None else spec.submodule_search_locations
    if places is not None and PathFinder.find_spec(_OURS_ALONE, list(places)) is not None:
        return
    file = getattr(loaded, "__file__", None) or (None if spec is None else spec.origin) or ", ".join(places or ())
    raise PackageShadowed(
        f"{file or 'a module of yours'} has the name of a package that gasoline_es installs and imports, {_NAME!r}, and is "
        f"found first: give it another name, as views.py",
        file=file,
    )


def is_found_anew() -> bool:
    """Whether another process that gets this one's path would find this library's package too, and not a module before it."""
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    specs = (find(_NAME, None) for find in finders if find is not None)
    spec = next((one for one in specs if one is not None), None)
    places = None if spec is None else spec.submodule_search_locations
    return places is not None and PathFinder.find_spec(_OURS_ALONE, list(places)) is not None


check_package()  # importing is enough where no call can stand above the import of `projections`
