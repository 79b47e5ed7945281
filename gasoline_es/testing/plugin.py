"""The pytest plugin, registered by the entry point ``pytest11``: fixtures only, whose code is imported when one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

if TYPE_CHECKING:
    from gasoline_es.testing.replays import ReplayCheck
    from gasoline_es.testing.simulation import Simulation

_Scope = Literal["function", "class", "module", "package", "session"]
_SCOPES: Final[tuple[_Scope, ...]] = ("function", "class", "module", "package", "session")


def _simulations() -> Iterator[Callable[..., Simulation]]:
    """Make simulations, as ``Simulation(…)`` would, that are open until the fixture's scope ends."""
    from gasoline_es.testing.simulation import Simulation

    with ExitStack() as stack:

        def make(*args: Any, **settings: Any) -> Simulation:
            return stack.enter_context(Simulation(*args, **settings))

        yield make


for _scope in _SCOPES:
    _name = "gasoline_simulation" if _scope == "function" else f"{_scope}_gasoline_simulation"
    globals()[_name] = pytest.fixture(scope=_scope, name=_name)(_simulations)


@pytest.fixture
def gasoline_replay_check() -> ReplayCheck:
    """Check recorded histories against workflows: ``gasoline_replay_check([fulfil], "tests/histories.jsonl.gz")``.

    Takes the arguments of :func:`gasoline_es.testing.replay_check`, returns its report, and fails the test, naming each
    history, unless all of them replay.
    """
    from gasoline_es.testing.replays import replay_check_or_fail

    return replay_check_or_fail
