"""The fixture ``gasoline_replay_check``, for every project that has this package installed. Imports nothing but pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gasoline_es.testing.replays import ReplayCheck


@pytest.fixture
def gasoline_replay_check() -> ReplayCheck:
    """Check recorded histories against workflows: ``gasoline_replay_check([fulfil], "tests/histories.jsonl.gz")``.

    Takes the arguments of :func:`gasoline_es.testing.replay_check`, returns its report, and fails the test, naming each
    history, unless all of them replay.
    """
    from gasoline_es.testing.replays import replay_check_or_fail

    return replay_check_or_fail
