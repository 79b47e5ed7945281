"""What tests of programs on this library may use: contract suites, faults below the log, the check of recorded histories.

``from gasoline_es.testing import replay_check`` loads the check when it is asked for, and nothing else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gasoline_es.testing.replays import ReplayCheck, replay_check

__all__ = ["ReplayCheck", "replay_check"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.replays"), name)
    globals()[name] = value  # found directly from now on
    return value
