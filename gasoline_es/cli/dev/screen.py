"""Where it is shown: a live tree on a terminal, lines of text, or JSON Lines. One of them at a time."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
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
    from rich.tree import Tree

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

    def worker_line(self, line: str) -> None:
        """Show a line that the worker's process wrote; only asked of one that takes them (``live``)."""
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
    """A tree that is drawn again in its place, with notices and the worker's lines above it."""

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
        self._live.start()

    def tell(self, notice: Notice) -> None:
        from rich.text import Text

        at = render.moment(_now_us())[11:19]
        self._console.print(Text(f"{at} ", FAINT, overflow="fold").append(notice.text, f"not dim {notice.style}"))
        for line in notice.more:
            self._console.print(Text(f"         {line}", overflow="fold"))

    def worker_line(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text(escape(line), FAINT, overflow="fold"))

    def draw(self, head: Line, scene: Scene) -> None:
        from rich.console import Group

        height = max(self._console.height - _BESIDES, _ROWS_MIN)
        shown: list[RenderableType] = [_one_row(head), *map(_tree, rows(scene, height))]
        self._live.update(Group(*shown), refresh=True)

    def close(self) -> None:
        self._live.stop()


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
