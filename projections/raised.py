"""Where in a user's code an error was raised, for those who are to mend it."""

from __future__ import annotations

import os
import sysconfig
import traceback
from typing import Final

import gasoline_es.core

_OURS: Final = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (__file__, os.path.dirname(gasoline_es.core.__file__))
)
"""The folders of this library's packages."""

_INSTALLED: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))


def place_of(error: BaseException) -> str | None:
    """Return ``file:line`` of an error: the deepest line that is of the user's own; None: there is none."""
    called = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_OURS)
    ]
    own = [one for one in called if not one[0].startswith(_INSTALLED)]
    if not called:
        return None
    file, line = own[-1] if own else called[0]  # code that is installed itself: what was called of it
    return f"{os.path.basename(file)}:{line}"


def told(error: BaseException | None) -> str:
    """Return an error as people are told it: its type, what it says, and where it was raised."""
    said = f"{type(error).__name__}: {error}"
    place = None if error is None else place_of(error)
    return said if place is None else f"{said} ({place})"
