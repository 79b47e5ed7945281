"""Which changes of files call for a reload, and when: a burst of saves is one of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gasoline_es.cli.failures import USED_WRONGLY, Failure

SUFFIXES: Final = (".py", ".pyi")
PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Directories whose files are nobody's source, besides hidden ones (.git, .venv, and the log)."""
QUIET_S: Final = 0.25
"""So long nothing must have been saved before the code is loaded: editors and formatters save more than once."""
LONGEST_S: Final = 2.0
"""After so long it is loaded although saving goes on."""
_HEARD_AFTER_MS: Final = 100
"""At most so late a change is heard of. The log may lie below a watched directory and change all the time."""


def is_source(path: str, watched: Sequence[str]) -> bool:
    """Tell whether a changed file is Python source below a watched directory, wherever that itself lies."""
    for directory in watched:
        if path.startswith(directory.rstrip(os.sep) + os.sep):
            *folders, name = os.path.relpath(path, directory).split(os.sep)
            hidden = any(part.startswith(".") for part in (*folders, name))  # also `.#orders.py`, an editor's lock
            if name.endswith(SUFFIXES) and not hidden and PASSED_OVER.isdisjoint(folders):
                return True
    return False


class Burst:
    """Changes that came soon after each other. Times are seconds of one monotonic clock."""

    def __init__(self, quiet_s: float = QUIET_S, longest_s: float = LONGEST_S) -> None:
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._files: dict[str, None] = {}
        self._first_s = 0.0
        self._last_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._files)

    def add(self, now_s: float, files: Iterable[str]) -> None:
        """Take note that these were saved."""
        before = bool(self._files)
        self._files.update(dict.fromkeys(files))
        if self._files and not before:
            self._first_s = now_s
        self._last_s = now_s

    def due_in(self, now_s: float) -> float | None:
        """Return in how many seconds the burst is over, unless more comes; 0: it is. None: there is none."""
        if not self._files:
            return None
        return max(min(self._last_s + self._quiet_s, self._first_s + self._longest_s) - now_s, 0.0)

    def take(self) -> list[str]:
        """Return what was saved, each file once, in order, and begin anew."""
        files, self._files = list(self._files), {}
        return files


class Pause:
    """How long to wait before a worker that died by itself is started again: longer each time, unless it had lived a while."""

    def __init__(self, first_s: float = 1.0, longest_s: float = 30.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def after(self, lived_s: float) -> float:
        """Return the pause, in seconds, for one that has lived so long."""
        if lived_s >= self._longest_s:
            self._next_s = self._first_s
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, self._longest_s)
        return pause_s

    def reset(self) -> None:
        """Its code was changed: what it died of may be mended."""
        self._next_s = self._first_s


def directories(given: Sequence[str]) -> list[str]:
    """Return what to watch as absolute paths; the current directory unless given. Raises: Failure: one is no directory."""
    for one in given:
        if not os.path.isdir(one):
            raise Failure(f"--watch {one!r} is no directory", USED_WRONGLY)
    return [str(Path(one).resolve()) for one in given or (".",)]


def check_watching() -> None:
    """Raises: Failure: what watches files is not installed."""
    if find_spec("watchfiles") is None:
        raise Failure(
            'gasoline dev watches files by the package watchfiles, which is not installed: pip install "gasoline_es[reload]"',
            USED_WRONGLY,
        )


async def saved(watched: Sequence[str]) -> AsyncIterator[list[str]]:
    """Yield the source files that were changed, made or removed, soon after each change. Raises: Failure."""
    from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType] -- it names a type of trio's

    try:
        async for changes in awatch(
            *watched,
            watch_filter=lambda _, path: is_source(path, watched),
            debounce=_HEARD_AFTER_MS,
            step=_HEARD_AFTER_MS // 2,
            rust_timeout=500,
            yield_on_timeout=False,
            ignore_permission_denied=True,
        ):
            yield sorted(path for _, path in changes)
    except OSError as error:
        raise Failure(
            f"{', '.join(watched)} cannot be watched: {error}. Name fewer directories with --watch DIR, or let the system "
            "watch more (sysctl fs.inotify.max_user_watches)"
        ) from error
