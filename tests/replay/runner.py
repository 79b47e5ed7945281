"""Runs the scripts in ``scripts/``: code before → history → code after → outcome (style.md §11), in etcd/raft's manner.

A script is a title (lines that start with ``#``) and blocks with a blank line between them. A block of ``code`` sets the
code of whatever process starts next; it has an indented body and no outcome:

    code
        await ctx.activity(charge, 1)
        await ctx.sleep(3600)

Every other block is a command, ``----``, and what is to be seen: the events recorded by it, each with its number; what the
body says (``say(…)`` in the code); what it waits for or how it ended.

    run                          a new workflow starts with the code
    replay                       the process dies, and one with the present code comes back
    stop                         the process dies, and none comes back until ``replay``
    suspend                      the body leaves memory (and comes back by ``replay``)
    advance SECONDS              time passes
    signal NAME JSON             somebody sends a signal
    complete LOCATION JSON       an activity it waits for succeeds: the one there
    fail LOCATION TYPE: MESSAGE  … or fails (``fail! …``: with an error that is not retried)
    sent LOCATION NAME           a signal it sends has left, to nobody
    received LOCATION JSON       the output it waits for came (``received! LOCATION``: the other was cancelled)
    wake                         an operator wakes it
    cancel                       an operator cancels it (``cancel!``: now, without its clean-up)
    complete+cancel LOCATION JSON    an activity succeeds, and it is cancelled in the same append
    cancel+complete LOCATION JSON    … the other way round
    recover                      an operator recovers it
    rerun LOCATION               an operator lets it start over from there, with the present code
    history                      shows all of its events
    error                        shows the whole of the error that it died of

Run with REWRITE_SCRIPTS=1 to write what is seen into the scripts, and review the difference.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from gasoline_es.core import events as ev
from gasoline_es.core.commands import Reply
from gasoline_es.core.location import Location, format_location, parse_location
from gasoline_es.core.values import dump_json
from gasoline_es.errors import RerunRefused
from tests.replay import telling
from tests.replay.code import body_of
from tests.replay.world import Body, When, World

MARK = "----"


@dataclass
class Block:
    """``lines`` as written, without the expectation; ``expected`` None: a block that has none."""

    lines: list[str]
    expected: list[str] | None

    def text(self) -> str:
        return "\n".join(self.lines if self.expected is None else [*self.lines, MARK, *self.expected])


def parse(text: str) -> list[Block]:
    """Cut a script into its blocks."""
    blocks: list[Block] = []
    for lines in _paragraphs(text):
        if MARK in lines:
            at = lines.index(MARK)
            blocks.append(Block(lines[:at], lines[at + 1 :]))
        else:
            blocks.append(Block(lines, None if lines[0].startswith(("#", "code")) else []))
    return blocks


def _paragraphs(text: str) -> Iterator[list[str]]:
    lines: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line.strip():
            lines.append(line)
        elif lines:
            yield lines
            lines = []


def run(text: str) -> str:
    """Run a script; give it back with what was seen as its expectations."""
    story = Story()
    blocks: list[Block] = []
    for block in parse(text):
        if block.expected is None:
            story.note(block.lines)
            blocks.append(block)
        else:
            blocks.append(Block(block.lines, story.tell(block.lines)))
    story.end()
    return "\n\n".join(block.text() for block in blocks) + "\n"


class Story:
    def __init__(self) -> None:
        self._body: Body | None = None
        self._world: World | None = None
        self._seen: list[str] = []
        self._shown = 0

    def note(self, lines: list[str]) -> None:
        """Take a block without an outcome: code, or a comment."""
        if lines[0] == "code":
            self._body = body_of("\n".join(lines[1:]), self._said)

    def tell(self, lines: list[str]) -> list[str]:
        """Do what the block says, and give what is to be seen."""
        (line,) = lines
        self._seen = []
        command, _, rest = line.partition(" ")
        if command == "run":
            assert self._body is not None, "there is no code yet"
            self.end()
            self._world = World(self._body, self._around_append)
            self._shown = 0
            self._world.dispatch()
        else:
            self._do(self._there(), command, rest)
        return self._outcome()

    def end(self) -> None:
        if self._world is not None:
            self._world.close()

    def _do(self, world: World, command: str, rest: str) -> None:
        match command:
            case "replay":
                world.restart(self._body)
            case "stop":
                world.stop()
            case "suspend":
                world.suspend()
            case "advance":
                world.advance(int(Decimal(rest) * 1_000_000))
            case "signal":
                name, _, body = rest.partition(" ")
                self._refused(world.signal(name, dump_json(json.loads(body or "{}"))))
            case "wake":
                world.wake()
            case "cancel" | "cancel!":
                self._refused(world.cancel(now=command == "cancel!"))
            case "recover":
                self._refused(world.recover())
            case "complete+cancel" | "cancel+complete":
                at, rest = _located(rest)
                cancel, outcomes = ev.WorkflowCancelRequested("operator"), {at: json.loads(rest)}
                if command.startswith("cancel"):
                    world.finish(outcomes, before=cancel)
                else:
                    world.finish(outcomes, behind=cancel)
            case "sent":
                at, name = _located(rest)
                world.answer(ev.SignalSent(at, 1, "sent", name, b"{}", None))
            case "received" | "received!":
                at, rest = _located(rest)
                self._refused(world.told(at, None if command == "received!" else dump_json(json.loads(rest))))
            case "rerun":
                self._rerun(world, rest)
            case "complete":
                at, rest = _located(rest)
                world.complete(json.loads(rest), at=at)
            case "fail" | "fail!":
                at, rest = _located(rest)
                kind, _, message = rest.partition(": ")
                world.fail(kind, message, final=command == "fail!", at=at)
            case "history":
                self._shown = 0
            case "error":
                error = world.state.summary.error
                assert error is not None, "it did not die"
                self._seen += textwrap.wrap(f"{error.type}: {error.message}", 110, break_on_hyphens=False)
            case _:
                raise AssertionError(f"no such command: {command}")

    def _refused(self, reply: Reply) -> None:
        if reply.error is not None:
            self._seen.append(f"refused: {type(reply.error).__name__}: {reply.error}")

    def _rerun(self, world: World, start: str) -> None:
        assert self._body is not None
        world.body, world.up = self._body, True
        try:
            planned = world.rerun(parse_location(start))
        except RerunRefused as refused:
            self._seen += textwrap.wrap(f"refused: {refused}", 110)
            return
        self._seen += [f"queued again: {name} {signal_id}" for signal_id, name in planned.returned]
        self._seen += [f"stays: {format_location(branch)}" for branch in planned.beside]

    def _there(self) -> World:
        assert self._world is not None, "nothing runs yet"
        return self._world

    def _said(self, what: object) -> None:
        self._show_events()
        self._seen.append(f"said: {what if isinstance(what, str | Exception) else repr(what)}")

    def _around_append(self, _when: When) -> None:
        self._show_events()

    def _show_events(self) -> None:
        if self._world is not None:
            for seq, data in enumerate(self._world.events[self._shown :], start=self._shown + 1):
                self._seen.append(telling.event(seq, data))
            self._shown = len(self._world.events)

    def _outcome(self) -> list[str]:
        world = self._there()
        before = self._shown
        self._show_events()
        recorded = self._shown > before or any(line[:2].strip().isdigit() for line in self._seen)
        seen = self._seen if recorded else [*self._seen, "recorded: nothing"]
        if world.waits:
            seen = [*seen, *map(telling.wait, world.waits)]
        elif world.status in ("running", "sleeping"):
            seen = [*seen, "not in memory"]
        elif not recorded:
            seen = [*seen, f"stays {world.status}"]
        return seen


def _located(rest: str) -> tuple[Location, str]:
    """Cut the location off that a line begins with."""
    location, _, rest = rest.partition("}")
    return parse_location(f"{location}}}"), rest.strip()
