"""``gasoline projections …``: status, run, rebuild, verify, remove."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gasoline_es.cli.failures import NOT_FOUND
from gasoline_es.cli.stopping import let, stopping
from gasoline_es.cli.typed import Json, settings_of

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Projections: how they stand, kept up, built anew, compared with a fresh fold.",
)

Module = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODULE]",
        help="The code: shop.views, shop/views.py, or shop.views:turnover for some of its projections. Without it: workflows, "
        "the engine's own.",
        show_default=False,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Only the projections of these names.", show_default=False),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="GASOLINE_PROJECTIONS_STORE",
        help="Where their tables are: sqlite:DIRECTORY or postgresql://…; with the log unless given.",
        show_default=False,
    ),
]


@commands.callback()
def begin(context: typer.Context) -> None:
    """Let SIGTERM come, but for the one command that sees to it itself."""
    if context.invoked_subcommand != "run":
        let()


@commands.command(short_help="Show how the projections stand.")
def status(
    context: typer.Context,
    store: Store = None,
    full: Annotated[
        bool, typer.Option("--full", help="Each partition that stands still, not only the first of each reason.")
    ] = False,
    json: Json = None,
) -> None:
    """Show the projections there are: which generation is read, how far it is behind the log, and what stands still.

    \b
    Examples:
      gasoline projections status
      gasoline projections status --json | jq 'select(.stopped != [])'

    \b
    JSON keys: projection, generation, version, state (building, live,
    superseded), current (whether it is the one that is read), behind (records
    that are not folded; of more than 20,000, those that the log's cleaner has
    removed may be among them), bytes (null: not known), problem (null: the log knows
    where it stands; where it cannot be read, the others are null), failing (null,
    or {error, since}: why nobody goes on with it, such as a setup that raises),
    stopped [{topic, partition, offset, event, error, since}].

    Exit status: 0 fine; 1 something stands still, or the log does not know where it stands.
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.projected import all_of, show
    from gasoline_es.cli.reading import reading

    output = Output(json)
    with reading(settings_of(context)) as opened:
        found = all_of(opened.log, store)
        show(found, output, full=full)
    if any(one.stands_still for one in found):
        sys.stdout.flush()
        raise typer.Exit(NOT_FOUND)


@commands.command(short_help="Keep the projections of a module up until SIGTERM.")
def run(
    context: typer.Context,
    module: Module = None,
    names: Names = None,
    once: Annotated[bool, typer.Option("--once", help="Fold what there is now, then end.")] = False,
    store: Store = None,
    json: Json = None,
) -> None:
    """Keep the projections of a module up with the log, until SIGTERM or Ctrl-C.

    All partitions are folded here, whoever owns them. Any number of processes may do so, and workers too: each event
    counts once. What happens is logged on standard error.

    \b
    Examples:
      gasoline --log file:./data projections run shop.views
      gasoline --log file:./data projections run shop.views turnover --once
      gasoline --log file:./data projections run --store postgresql://db/views

    \b
    JSON, with --once, a line for each projection: projection, standing (folding;
    waiting: another process builds it; outdated: newer code built it; failing),
    error, stopped [{topic, partition, offset, event, error}].

    Exit status: 0 stopped, or all is folded; 1 with --once, something is not; 2 used wrongly.
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.projected import chosen, keep_up

    with stopping() as early:
        output = Output(json)
        if not keep_up(settings_of(context), chosen(module, names), store, output, early, once=once):
            sys.stdout.flush()
            raise typer.Exit(NOT_FOUND)


@commands.command(short_help="Build projections anew beside what is read, and swap.")
def rebuild(
    context: typer.Context, module: Module = None, names: Names = None, store: Store = None, json: Json = None
) -> None:
    """Build projections anew from the log's start, beside the tables that are read, then swap them in.

    Whoever reads sees the old tables until then; whoever folds goes on in the new ones. A version that is raised does
    this by itself: the command is for code that changed without that, and for going back to older code.

    \b
    Examples:
      gasoline --log file:./data projections rebuild shop.views
      gasoline --log file:./data projections rebuild shop.views turnover
      gasoline --log file:./data projections rebuild

    \b
    JSON, a line for each: projection, generation, records.

    Exit status: 0 swapped; 1 an event could not be applied, and the old tables stay; 2 used wrongly.
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.projected import chosen, rebuild_all

    rebuild_all(settings_of(context), chosen(module, names), store, Output(json))


@commands.command(short_help="Compare projections with a fresh fold of the log.")
def verify(
    context: typer.Context, module: Module = None, names: Names = None, store: Store = None, json: Json = None
) -> None:
    """Fold the log anew up to where the tables stand, compare row by row, and name the first difference.

    Nothing is changed, and others may go on folding. A difference means that the code changed without a new version, that
    it depends on more than events and tables (the time, the order of partitions), or that somebody wrote to the tables.

    \b
    Examples:
      gasoline --log file:./data projections verify shop.views
      gasoline --log file:./data projections verify shop.views turnover --json
      gasoline --log file:./data projections verify

    \b
    JSON, a line for each: projection, generation, records, tables, rows,
    difference (null, or {table, key, stored, fresh, reason}), stopped (how many
    partitions stand before an event, so that what comes after it is in neither).

    Exit status: 0 all is alike; 1 there is a difference; 2 used wrongly.
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.projected import chosen, verify_all

    if not verify_all(settings_of(context), chosen(module, names), store, Output(json)):
        sys.stdout.flush()
        raise typer.Exit(NOT_FOUND)


@commands.command(short_help="Remove a projection and its tables.")
def remove(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The projection.", show_default=False)],
    store: Store = None,
    json: Json = None,
) -> None:
    """Remove the tables of a projection that nobody needs any more, with all its generations.

    Take it out of the code first: whoever still keeps it up builds it anew. The log is not touched.

    \b
    Examples:
      gasoline projections remove turnover
      gasoline projections remove turnover --store postgresql://db/views

    \b
    JSON keys: projection, generations (how many were removed).

    Exit status: 0 removed; 1 there is none of this name, or somebody builds or reads it now; 2 used wrongly.
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.projected import remove_one

    remove_one(settings_of(context), name, store, Output(json))
