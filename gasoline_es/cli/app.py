"""The application: the options before the command, the nouns, and what becomes of errors."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group_from_info
from typer.models import TyperInfo

from gasoline_es.cli import kafka, logs, projections, registry, replaying, schedules, signals, workers, workflows
from gasoline_es.cli.dev.command import dev
from gasoline_es.cli.failures import BROKEN_PIPE, explain
from gasoline_es.cli.settings import Settings
from gasoline_es.cli.stopping import let

_NOUNS: Final = {
    "workflow": workflows.commands,
    "signal": signals.commands,
    "schedule": schedules.commands,
    "projections": projections.commands,
    "worker": workers.commands,
    "log": logs.commands,
    "kafka": kafka.commands,
}


class Commands(TyperGroup):
    """The root group: turns every error into one line on stderr and a status. No traceback ever reaches the user.

    The commands of a noun are made when it is used: to make all of them takes a quarter of the time that most commands take.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, the nouns last."""
        return [*dict.fromkeys((*super().list_commands(ctx), *_NOUNS))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command or the group of a noun; None: there is none, and what is like it is looked for among all."""
        if cmd_name not in self.commands:
            for noun in [cmd_name] if cmd_name in _NOUNS else _NOUNS.keys() - self.commands.keys():
                self.commands[noun] = get_group_from_info(
                    TyperInfo(_NOUNS[noun], name=noun),
                    pretty_exceptions_short=True,
                    suggest_commands=True,
                    rich_markup_mode=None,
                )
        return super().get_command(ctx, cmd_name)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and exit with its status."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # an encoding that lacks a character
        try:
            from gasoline_es.shadowing import check_package  # in the try: what is in the way is told as any other error

            check_package()
            status = super().main(
                args, prog_name, complete_var, standalone_mode=False, windows_expand_args=windows_expand_args, **extra
            )
            sys.stdout.flush()
        except BrokenPipeError:
            status = _hang_up()
        except Exception as error:
            told, status = explain(error)
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.flush()
            sys.stderr.write(told.rstrip("\n") + "\n")
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; whoever reads its output may leave early."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            return _hang_up()


def _hang_up() -> int:
    """Let what is still buffered go nowhere, silently."""
    with contextlib.suppress(OSError, ValueError):  # no file descriptor: a test's stream
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return BROKEN_PIPE


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"gasoline {version('gasoline_es')}")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    name="gasoline",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("dev", short_help="Run the workflows of a module while you write them: reload when saved.")(dev)
app.command("registry", short_help="Show which workers live, and what they have registered.")(registry.registry)
app.command("replay-check", short_help="Replay every recorded history in the code of a module.")(replaying.replay_check)


@app.callback()
def options(
    context: typer.Context,
    log: Annotated[
        str | None,
        typer.Option(
            "--log", metavar="URL", envvar="GASOLINE_LOG", help="The log, as in file:./data.", show_default=False
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            help='The namespace; "default" for workflows and every one for a log unless given.',
            show_default=False,
        ),
    ] = None,
    operator: Annotated[
        str | None,
        typer.Option(
            "--operator",
            metavar="WHO",
            envvar="GASOLINE_OPERATOR",
            help="Who does it, for the history: this user and host unless given.",
            show_default=False,
        ),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="WHY", help="Why it is done, for the history.", show_default=False),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Look into a log of durable workflows: what runs, what failed and why, and whether every byte is sound.

    Looking changes nothing and needs no lock: a log can be looked at beside its workers or with none running. What does
    something to a workflow is decided by the process that owns it, or by this one if there is none.
    Answers are tables on a terminal, and one JSON object a line with --json or when piped.

    \b
    Examples:
      gasoline --log file:./data workflow list --status dead
      export GASOLINE_LOG=file:./data
      gasoline workflow history 0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f
      gasoline workflow rerun ID --from 3 --dry-run
      gasoline --reason "INC-81: paid twice" workflow silence ID
      gasoline workflow revive --error "the bank is closed"
      gasoline signal list --older-than 1d
      gasoline schedule list
      gasoline projections status
      gasoline registry
      gasoline log verify
      gasoline kafka topics
      gasoline log copy file:./data kafka://broker:9092/shop
      gasoline replay-check shop.orders
      gasoline dev shop.orders

    Exit status: 0 fine; 1 not found, refused, or damaged; 2 used wrongly.
    """
    if context.invoked_subcommand not in ("worker", "projections"):  # these have commands that see to it themselves
        let()
    context.obj = Settings(log, namespace, operator, reason)
