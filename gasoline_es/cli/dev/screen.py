"""Where it is shown: a live tree on a terminal, lines of text, or JSON Lines. One of them at a time."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gasoline_es.cli import render
from gasoline_es.cli.dev.notices import Notice
from gasoline_es.cli.dev.rows import Scene, rows
from gasoline_es.cli.escape import escape
from gasoline_es.cli.lines import FAINT, Line
from gasoline_es.cli.output import Output, make_console
from gasoline_es.core.durations import format_time

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text
    from rich.tree import Tree

_MANY: Final = frozenset({"dispatched", "completed", "cancelled", "silenced", "woken", "rerun", "attempt_failed"})
_ABOVE_MAX: Final = 100
"""Behind so many lines, notices of these kinds are only counted until the next drawing."""
_ROWS_MIN: Final = 6
_BESIDES: Final = 3
"""Rows that are not the tree's: its head, and the cursor's."""


class Screen(ABC):
    """Shows what happens. Every text it is given comes from the log or the worker, and is made safe here or before."""

    live = False
    """Whether it wants to be drawn."""

    @abstractmethod
    def tell(self, notice: Notice) -> None:
        """Say what happened."""

    def worker_lines(self, lines: Sequence[str]) -> None:
        """Show lines that the worker's process wrote; only asked of one that takes them (``live``)."""
        raise NotImplementedError

    def draw(self, head: Line, scene: Scene) -> None:  # noqa: B027  # only a tree is drawn again and again
        """Show how everything stands now."""

    def close(self) -> None:  # noqa: B027  # lines stay as they are
        """Leave the terminal as it was found."""


class Lines(Screen):
    """One line for each notice, with its time, on standard output. What the worker writes goes to standard error by itself."""

    def tell(self, notice: Notice) -> None:
        sys.stdout.write(f"{render.moment(_now_us())} {notice.text}\n")
        sys.stdout.flush()


class Objects(Screen):
    """One JSON object for each notice."""

    def __init__(self) -> None:
        self._output = Output(True)

    def tell(self, notice: Notice) -> None:
        self._output.object({"time": format_time(_now_us()), "kind": notice.kind, **notice.members})
        sys.stdout.flush()


class LiveTree(Screen):
    """A tree that is drawn again in its place, with notices and the worker's lines above it.

    They are printed when the tree is drawn: each print costs a drawing. Of what happens by the thousand between two
    drawings the first are told and the others counted.
    """

    live = True

    def __init__(self) -> None:
        from rich.live import Live

        # Nothing is redirected: this process prints through the console alone. It draws when it is told to.
        self._console = make_console(stderr=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._above: list[Text] = []
        self._untold = 0
        self._live.start()

    def tell(self, notice: Notice) -> None:
        from rich.text import Text

        if notice.kind in _MANY and len(self._above) >= _ABOVE_MAX:
            self._untold += 1
            return
        at = render.moment(_now_us())[11:19]
        self._above.append(Text(f"{at} ", FAINT, overflow="fold").append(notice.text, f"not dim {notice.style}"))
        self._above += [Text(f"         {line}", overflow="fold") for line in notice.more]

    def worker_lines(self, lines: Sequence[str]) -> None:
        from rich.text import Text

        self._above += [Text(escape(line), FAINT, overflow="fold") for line in lines]

    def draw(self, head: Line, scene: Scene) -> None:
        from rich.console import Group

        self._print_above()
        height = max(self._console.height - _BESIDES, _ROWS_MIN)
        shown: list[RenderableType] = [_one_row(head), *map(_tree, rows(scene, height))]
        self._live.update(Group(*shown), refresh=True)

    def close(self) -> None:
        try:
            self._print_above()
        finally:
            self._live.stop()

    def _print_above(self) -> None:
        from rich.console import Group
        from rich.text import Text

        above, self._above = self._above, []
        if self._untold:
            above.append(Text(f"         … and {self._untold:,} more", FAINT))
            self._untold = 0
        if above:
            self._console.print(Group(*above))


def screen(as_json: bool | None) -> Screen:
    """Return what was asked for; None: the tree on a terminal, lines elsewhere."""
    if as_json:
        return Objects()
    return LiveTree() if as_json is None and sys.stdout.isatty() else Lines()


def _tree(line: Line) -> Tree:
    from rich.tree import Tree

    tree = Tree(_one_row(line), guide_style=FAINT)
    for below in line.below:
        tree.add(_tree(below))
    return tree


def _one_row(line: Line) -> RenderableType:
    text = line.text()
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _now_us() -> int:
    return time.time_ns() // 1000
