"""What tests of programs on this library may use. Every name loads when it is first asked for.

:class:`Simulation` runs workflows over a virtual clock; :func:`crash_everywhere` runs a scenario again with a crash at each
append; :func:`replay_check` drives recorded histories through today's code; :func:`fold` lets a projection fold events.
``log_contract`` (which needs pytest) and ``faults`` are for those who write a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gasoline_es.lazy import lazily

if TYPE_CHECKING:
    from gasoline_es.testing.crashes import crash_everywhere
    from gasoline_es.testing.fakes import Call, UnfakedActivity
    from gasoline_es.testing.folding import fold
    from gasoline_es.testing.process import CrashPoint
    from gasoline_es.testing.replays import ReplayCheck, replay_check
    from gasoline_es.testing.simulation import SimulatedWorkflow, Simulation
    from gasoline_es.testing.stuck import Stuck

__all__ = [
    "Call",
    "CrashPoint",
    "ReplayCheck",
    "SimulatedWorkflow",
    "Simulation",
    "Stuck",
    "UnfakedActivity",
    "crash_everywhere",
    "fold",
    "replay_check",
]

_MODULES = {
    "Call": "fakes",
    "CrashPoint": "process",
    "ReplayCheck": "replays",
    "SimulatedWorkflow": "simulation",
    "Simulation": "simulation",
    "Stuck": "stuck",
    "UnfakedActivity": "fakes",
    "crash_everywhere": "crashes",
    "fold": "folding",
    "replay_check": "replays",
}


__getattr__, __dir__ = lazily(globals(), _MODULES)
