"""Every command of the command line, read from the application itself, so that a new one is met by what must hold of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import typer

from gasoline_es.cli.app import app
from tests.cli.histories import Story

NEVER_RUN = frozenset({("worker", "run"), ("projections", "run"), ("dev",)})
"""What does not come back by itself. It is only ever given what it refuses."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command. ``option``: as it is typed; None: an argument. ``takes``: whether a value follows."""

    name: str
    option: str | None
    required: bool
    takes: bool


@dataclass(frozen=True)
class Command:
    """A command, by the words that call it."""

    words: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    @property
    def json(self) -> bool:
        """Whether it can answer with JSON."""
        return any(one.option == "--json" for one in self.parameters)

    def typed(self, ordinary: Mapping[str, str], hostile: str | None = None, text: str = "") -> list[str]:
        """Return how it is called with what it needs; the parameter named ``hostile`` gets ``text``."""
        options: list[str] = []
        arguments: list[str] = []
        for one in self.parameters:
            if one.name != hostile and not one.required:
                continue
            value = text if one.name == hostile else ordinary[one.name]
            if one.option is None:
                arguments.append(value)
            else:
                options += [f"{one.option}={value}"]
        return [*self.words, *options, *self.also(hostile, ordinary), "--", *arguments]

    def also(self, hostile: str | None, ordinary: Mapping[str, str]) -> list[str]:
        """Return the options that it cannot do without, although none of them is required by itself."""
        match self.words:
            case ("projections", "run"):
                return ["--once"]
            case ("signal", "send"):
                return (
                    [f"--workflow={ordinary['workflow']}"]
                    if hostile == "tag"
                    else (
                        [f"--tag={ordinary['tag']}"]
                        if hostile == "workflow"
                        else []
                        if hostile == "to"
                        else [f"--to={ordinary['to']}"]
                    )
                )
            case ("schedule", "set") if hostile not in ("cron", "every"):
                return ["--cron=0 3 * * *"]
            case ("workflow", "revive") if hostile not in ("name", "error"):
                return [f"--error={ordinary['error']}"]
            case ("workflow", "prune-history") if hostile not in ("name", "older_than"):
                return ["--older-than=7d"]
            case _:
                return []


def commands() -> dict[str, Command]:
    """All commands by what is typed."""
    root: Any = typer.main.get_command(app)
    return {" ".join(one.words): one for one in _below(root, ())}


def _below(command: Any, words: tuple[str, ...]) -> Iterator[Command]:
    if hasattr(command, "commands"):
        for name in command.list_commands(None):
            yield from _below(command.get_command(None, name), (*words, name))
        return
    parameters = [
        Parameter(
            one.name,
            None if one.param_type_name == "argument" else one.opts[0],
            bool(one.required),
            one.param_type_name == "argument" or not one.is_flag,
        )
        for one in command.params
        if one.name != "help"
    ]
    yield Command(words, tuple(parameters))


def ordinary(story: Story, workflow_id: str) -> dict[str, str]:
    """What each parameter gets where it is not what a test is about. A new one that is required has to get a value here."""
    return {
        "id": workflow_id,
        "name": "waiting",
        "input": "null",
        "body": "{}",
        "module": "tests.cli.histories",
        "start": "1",
        "to": story.waiting,
        "workflow": "waiting",
        "tag": "order=44",
        "error": "lorry",
        "source": "file:./not-there",
        "target": "file:./not-made",
    }


COMMANDS = commands()
DIRECTORIES = frozenset({("dev", "watch"), ("log verify", "checkpoint")})
"""What names a directory, or a file to be written, on purpose."""
TEXTS = [
    (name, parameter.name)
    for name, command in COMMANDS.items()
    for parameter in command.parameters
    if parameter.takes and (name, parameter.name) not in DIRECTORIES
]
"""Each command with each of its parameters that takes a text, whatever it is read as, but for a directory."""
