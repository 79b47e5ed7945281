"""The check of ``gasoline replay-check`` in a test: recorded histories, kept beside the tests, in the code as it is now.

    def test_old_histories_replay(gasoline_replay_check: ReplayCheck) -> None:
        gasoline_replay_check([fulfil, ship], "tests/histories.jsonl.gz")

The fixture comes with the package (an entry point of pytest). It loads the library when it is called, not when pytest starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gasoline_es.checking.report import Report
    from gasoline_es.definitions import Workflow


class ReplayCheck(Protocol):
    """What the fixture ``gasoline_replay_check`` gives: :func:`replay_check`, which fails the test unless all replay."""

    def __call__(
        self,
        workflows: Iterable[Workflow[Any, Any]],
        log_or_file: str | os.PathLike[str],
        *,
        namespace: str | None = None,
        incomplete: bool = False,
    ) -> Report:
        """Check, and fail the test with every history that diverges or cannot be read."""
        ...


def replay_check(
    workflows: Iterable[Workflow[Any, Any]],
    log_or_file: str | os.PathLike[str],
    *,
    namespace: str | None = None,
    incomplete: bool = False,
) -> Report:
    """Replay every recorded history in these workflows, with no side effect; say which would diverge.

    ``log_or_file``: the URL of a log (``file:DIRECTORY``, ``memory:NAME``), or a file that ``gasoline log dump --json`` wrote
    of its events, packed with gzip or not. ``namespace``: "default" for a log, all there are for a file. ``incomplete``: only
    histories that can still run, not those of complete and cancelled workflows. May be called with or without a running
    event loop; the call blocks.

    Raises: CodeRefused: two workflows have one name, or a type cannot be resolved. LogError: there is no such log.
    """
    from gasoline_es.checking.check import Wish, check_here
    from gasoline_es.checking.code import by_name_of
    from gasoline_es.checking.histories import FileSource, LogSource

    by_name = by_name_of(workflows)
    given = os.fspath(log_or_file)
    is_log = isinstance(log_or_file, str) and given.partition(":")[0] in ("file", "memory")
    source = LogSource(given, namespace or "default") if is_log else FileSource(given, namespace)
    return _outside_of_loops(lambda: check_here(by_name, source, Wish(incomplete=incomplete)))


def replay_check_or_fail(
    workflows: Iterable[Workflow[Any, Any]],
    log_or_file: str | os.PathLike[str],
    *,
    namespace: str | None = None,
    incomplete: bool = False,
) -> Report:
    """Check as :func:`replay_check` does, and fail the test that calls this unless everything replays."""
    import pytest

    __tracebackhide__ = True
    report = replay_check(workflows, log_or_file, namespace=namespace, incomplete=incomplete)
    if not report.ok:
        pytest.fail(str(report), pytrace=False)
    return report


def _outside_of_loops(check: Callable[[], Report]) -> Report:
    """Call it where no event loop runs: opening a log takes one."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return check()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(check).result()
