"""``gasoline schedule …``: list, get, history, set, pause, resume, trigger, remove."""

from __future__ import annotations

from typing import Annotated

import typer

from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.typed import Json, checked_name, json_of, length_of, settings_of, tags_of

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Schedules: which there are and when each is due; made, paused, and triggered by hand.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)]


@commands.command("list")
def list_(context: typer.Context, json: Json = None) -> None:
    """List the schedules in order of their names, and when each is due next.

    The process that owns a schedule's partition starts what is due: workers own all of them. While no worker lives, times are
    missed; they are treated by the schedule's rule once one does.

    \b
    Examples:
      gasoline schedule list
      gasoline schedule list --json | jq -r 'select(.status == "paused") | .name'

    \b
    JSON keys: name, id, status (active, paused, finished, unreadable), workflow,
    when, timezone, next, last, last_run, fired, skipped, missed, overlap, tags,
    created, problem, partition. The input: see `schedule get`.
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.reading import reading
    from gasoline_es.cli.scheduled import all_of, members, show

    output = Output(json)
    with reading(settings_of(context)) as log:
        found = all_of(log)
        if output.json:
            for one in found:
                output.object(members(one))
        else:
            show(found, output)


@commands.command(short_help="Show where a schedule stands.")
def get(context: typer.Context, name: Name, json: Json = None) -> None:
    """Show a schedule: what it starts, with which input, when it is due next, and which workflow it started last.

    All that it started: `gasoline workflow list --tag schedule=NAME`.

    \b
    Examples:
      gasoline schedule get nightly
      gasoline schedule get nightly --json | jq -r .next

    \b
    JSON keys: as of `schedule list`, and input.
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.reading import reading
    from gasoline_es.cli.scheduled import members, one_of, show_one

    named = checked_name("schedule", name)
    output = Output(json)
    with reading(settings_of(context)) as log:
        found = one_of(log, named)
        if output.json:
            output.object(members(found, whole=True))
        else:
            show_one(found, output)


@commands.command(short_help="Show all that happened to a schedule.")
def history(context: typer.Context, name: Name, json: Json = None) -> None:
    """Show a schedule's events in order: how it was set, each time it started a workflow, and each it passed, and why.

    Also of one that was removed.

    \b
    Examples:
      gasoline schedule history nightly
      gasoline schedule history nightly --json | jq 'select(.type == "schedule.skipped")'

    \b
    JSON: one object an event: seq, time, type, worker, data (as recorded).
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.reading import reading
    from gasoline_es.cli.scheduled import event_members, events_of, show_events

    named = checked_name("schedule", name)
    output = Output(json)
    with reading(settings_of(context)) as log:
        events = events_of(log, named)
        if output.json:
            for event, raw in events:
                output.object(event_members(event, raw))
        else:
            show_events([event for event, _ in events], output)


@commands.command("set", short_help="Make a schedule, or change it.")
def set_(
    context: typer.Context,
    name: Name,
    workflow: Annotated[
        str, typer.Argument(metavar="WORKFLOW", help="The name of the workflow that it starts.", show_default=False)
    ],
    input: Annotated[
        str, typer.Argument(metavar="INPUT_JSON", help="Its input as JSON; - reads it.", show_default=False)
    ] = "null",
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help='As "0 3 * * *": minute hour day month weekday.', show_default=False),
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="AGE", help="An interval: 90s, 15m, 2h, 7d.", show_default=False)
    ] = None,
    timezone: Annotated[str, typer.Option(metavar="ZONE", help="Whose clocks --cron is about.")] = "UTC",
    missed: Annotated[
        str, typer.Option(metavar="RULE", help="About times missed: latest, all, or skip them.")
    ] = "latest",
    overlap: Annotated[
        str, typer.Option(metavar="RULE", help="While one of it runs: allow another, or skip the time.")
    ] = "allow",
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="KEY=VALUE", help="A tag of what it starts; again for more.", show_default=False),
    ] = None,
    json: Json = None,
) -> None:
    """Make a schedule of this name, or let the one that is there be this from now on.

    The input is not held against the workflow's code, which is not here. The same again changes nothing.

    \b
    Examples:
      gasoline schedule set nightly report '"sales"' --cron "0 3 * * *" --timezone Europe/Berlin
      gasoline schedule set poll fetch --every 15m --overlap skip

    \b
    JSON keys: as of `schedule get`.
    """
    from gasoline_es.cli.scheduling import made

    settings = settings_of(context)
    if (cron is None) == (every is None):
        raise Misuse('say when: --cron "0 3 * * *", or --every 15m, one of the two')
    when: str | float = cron if cron is not None else (length_of("--every", every) or 0) / 1_000_000
    named, started = checked_name("schedule", name), checked_name("workflow", workflow)
    made(settings, named, when, started, json_of("the input", input), tags_of(tag), timezone, missed, overlap, json)


@commands.command(short_help="Let a schedule start nothing until it is resumed.")
def pause(context: typer.Context, name: Name, json: Json = None) -> None:
    """Let a schedule start nothing until it is resumed. It is durable when this returns.

    \b
    JSON keys: as of `schedule get`.
    """
    from gasoline_es.cli.scheduling import changed

    changed(settings_of(context), "pause", checked_name("schedule", name), json)


@commands.command(short_help="Let a paused schedule go on.")
def resume(context: typer.Context, name: Name, json: Json = None) -> None:
    """Let a paused schedule go on with the next time that comes. Times that passed meanwhile are not made up for.

    \b
    JSON keys: as of `schedule get`.
    """
    from gasoline_es.cli.scheduling import changed

    changed(settings_of(context), "resume", checked_name("schedule", name), json)


@commands.command(short_help="Start a workflow of a schedule now.")
def trigger(context: typer.Context, name: Name, json: Json = None) -> None:
    """Start a workflow of a schedule now, also while it is paused. Its own times stay as they are.

    \b
    Examples:
      gasoline schedule trigger nightly
      gasoline workflow get "$(gasoline schedule trigger nightly --json | jq -r .id)"

    \b
    JSON keys: id, name (of the workflow that was started), schedule.
    """
    from gasoline_es.cli.scheduling import trigger

    trigger(settings_of(context), checked_name("schedule", name), json)


@commands.command(short_help="End a schedule.")
def remove(context: typer.Context, name: Name, json: Json = None) -> None:
    """End a schedule, for good. What it started goes on, and its history stays.

    \b
    JSON keys: as of `schedule get`; status is removed.
    """
    from gasoline_es.cli.scheduling import changed

    changed(settings_of(context), "remove", checked_name("schedule", name), json)
