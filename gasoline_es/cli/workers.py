"""``gasoline worker …``: run one, and see who runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gasoline_es.cli.failures import USED_WRONGLY, Failure, Misuse
from gasoline_es.cli.stopping import Stopping, let, stopping
from gasoline_es.cli.typed import Json, KeptUp, Pipelines, length_of, settings_of


class ModuleOrCommand(TyperGroup):
    """``gasoline worker MODULE`` is short for ``gasoline worker run MODULE``, also with options of that before MODULE."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the group's own arguments; an option that is none of its own, but one of ``run``, begins a ``run``."""
        if args and args[0].partition("=")[0] in self._options_of_run():
            rest = list(args)
            if "run" in rest[:-1]:  # written out after all; at the end it is a module's name
                rest.remove("run")
            args = ["run", *rest]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def _options_of_run(self) -> set[str]:
        run: Any = self.commands["run"]
        return {option for one in run.params for option in one.opts if option.startswith("-")} - {"-h", "--help"}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take what is no command for a module to run."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


commands = typer.Typer(
    cls=ModuleOrCommand,
    no_args_is_help=True,
    rich_markup_mode=None,
    subcommand_metavar="MODULE | COMMAND [ARGS]...",
    help="Workers: gasoline worker MODULE runs the workflows of a module; list shows who runs.",
)


@commands.callback()
def begin(context: typer.Context) -> None:
    """Let SIGTERM come, but for the one command that sees to it itself."""
    if context.invoked_subcommand != "run":
        let()


@commands.command(short_help="Run the workflows of a module until SIGTERM.")
def run(
    context: typer.Context,
    module: Annotated[
        str,
        typer.Argument(
            metavar="MODULE",
            help="The code: shop.orders, shop/orders.py, or shop.orders:fulfil,ship for some of its workflows.",
            show_default=False,
        ),
    ],
    code_version: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            envvar="GASOLINE_CODE_VERSION",
            help="The code's version, growing: older workers take no new work beside newer ones.",
        ),
    ] = 0,
    max_concurrency: Annotated[int, typer.Option(metavar="N", min=1, help="So many activities at a time.")] = 1_000,
    stop_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Running activities get so long when it stops.")
    ] = 30.0,
    tracing: Annotated[
        bool, typer.Option("--tracing", help="Make OpenTelemetry spans, with the tracer provider that the module sets.")
    ] = False,
    projections: KeptUp = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            envvar="GASOLINE_PROJECTIONS_STORE",
            help="Where their tables are: sqlite:DIRECTORY or postgresql://…; with the log unless given.",
            show_default=False,
        ),
    ] = None,
    pipelines: Pipelines = None,
    past_lost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Let this pipeline go on where its topic has lost records it had not read; may be given again.",
            show_default=False,
        ),
    ] = None,
    prune_after: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            envvar="GASOLINE_PRUNE_AFTER",
            help="Prune workflows so long after their end, as their definitions say: 90s, 15m, 2h, 7d.",
            show_default=False,
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY",
            envvar="GASOLINE_ARCHIVE",
            help="Write what is pruned to files there, before it is.",
            show_default=False,
        ),
    ] = None,
    compact_every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            envvar="GASOLINE_COMPACT_EVERY",
            help="Clean a log in files so often, in the background: 15m, 1h, 1d. On Kafka the brokers do.",
            show_default=False,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=65_535,
            envvar="GASOLINE_METRICS_PORT",
            help="Serve Prometheus metrics at this port; 0 for any, which the log tells.",
            show_default=False,
        ),
    ] = None,
    metrics_host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where that is: 127.0.0.1 unless given; 0.0.0.0 to be reached from elsewhere.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the workflows of a module until SIGTERM or Ctrl-C; a second one gives running activities up at once.

    While a body or an `async def` activity holds the event loop up, a second one ends the process as a crash would, and so
    does the end of --stop-limit.

    The log is made if it is not there. Any number of workers share it; each is to have all workflows of the namespace.
    What happens is logged on standard error.

    \b
    Examples:
      gasoline --log file:./data worker shop.orders
      gasoline --log file:./data worker shop.orders --code-version "$(git log -1 --format=%ct)"
      gasoline --log file:./data worker shop.orders --projections shop.views
      gasoline --log file:./data worker shop.orders --pipelines shop.intake
      gasoline --log file:./data worker shop.orders --prune-after 30d --compact-every 1h
      gasoline --log file:./data worker shop.orders --prune-after 30d --archive ./archive
      gasoline --log file:./data worker shop.orders --metrics-port 9464

    Exit status: 0 stopped; 1 the log failed in this process, which has to start anew; 2 used wrongly; 128 and the number
    of the signal (143, 130): it was ended because it was held up.
    """
    with stopping() as early:
        _run(
            context,
            early,
            module,
            code_version=code_version,
            max_concurrency=max_concurrency,
            stop_limit=stop_limit,
            tracing=tracing,
            projections=projections,
            store=store,
            pipelines=pipelines,
            past_lost=past_lost or (),
            prune_after=prune_after,
            compact_every=compact_every,
            archive=archive,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
        )


def _run(
    context: typer.Context,
    early: Stopping,
    module: str,
    *,
    code_version: int,
    max_concurrency: int,
    stop_limit: float,
    tracing: bool,
    projections: str | None,
    store: str | None,
    pipelines: str | None,
    past_lost: Sequence[str],
    prune_after: str | None,
    compact_every: str | None,
    archive: str | None,
    metrics_port: int | None,
    metrics_host: str | None,
) -> None:
    from gasoline_es.checking.code import Code, CodeRefused
    from gasoline_es.cli.working import work

    if metrics_host is not None and metrics_port is None:
        raise Misuse(
            f"--metrics-host {metrics_host!r} says where metrics are served, and nothing serves any: give --metrics-port"
        )
    if archive is not None and prune_after is None:
        raise Misuse(
            f"--archive {archive!r} says where histories go that are pruned, and nothing is: give --prune-after"
        )
    source = context.get_parameter_source("store")  # the variable may be there for other commands
    if store is not None and projections is None and source is not None and source.name == "COMMANDLINE":
        raise Misuse(f"--store {store!r} says where tables of projections are, and there are none: give --projections")
    try:
        workflows = Code.parse(module).load()
    except CodeRefused as refused:
        raise Failure(str(refused), USED_WRONGLY) from refused
    work(
        settings_of(context),
        workflows.values(),
        early,
        version=code_version,
        max_concurrency=max_concurrency,
        stop_limit=stop_limit,
        tracing=tracing,
        metrics_port=metrics_port,
        metrics_host=metrics_host or "127.0.0.1",
        projections=_projections(projections),
        store=store,
        pipelines=_pipelines(pipelines, past_lost),
        prune_after_us=length_of("--prune-after", prune_after),
        compact_every_us=length_of("--compact-every", compact_every),
        archive=archive,
    )


def _pipelines(module: str | None, past_lost: Sequence[str]) -> list[Any]:
    """Load the pipelines of a module; those of these names may pass what was lost. Raises: Misuse."""
    if module is None:
        if past_lost:
            raise Misuse(f"--past-lost {past_lost[0]!r} is about a pipeline, and there are none: give --pipelines")
        return []
    from gasoline_es.cli.piped import pipelines_of

    return pipelines_of(module, past_lost)


def _projections(module: str | None) -> list[Any]:
    """Load the projections of a module. Raises: Misuse."""
    if module is None:
        return []
    from gasoline_es.cli.projected import chosen

    return [*chosen(module, None)]


@commands.command("list", short_help="Show the workers of a log, and what they own.")
def list_(context: typer.Context, json: Json = None) -> None:
    """Show the workers that have a log open and move: where they run, their code's version, and how many partitions they own.

    \b
    Example:
      gasoline --log file:./data worker list

    \b
    JSON keys: worker, host, pid, code_version, weight (below 1: it is under
    pressure and takes less), partitions, held_up_since, held_up_by (what its
    event loop stands still for; null: it moves), pipelines (by which names it
    ingests; null: too many to tell). The library's version: see `registry`.
    """
    from gasoline_es.cli.working import show_workers

    show_workers(settings_of(context), json)
