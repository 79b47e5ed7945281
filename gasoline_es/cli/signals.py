"""``gasoline signal …``: list, get, send, discard."""

from __future__ import annotations

from typing import Annotated

import typer

from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.typed import (
    Json,
    Limit,
    OlderThan,
    Since,
    TagOptions,
    Until,
    checked_name,
    json_of,
    length_of,
    settings_of,
    tags_of,
    time_range,
    workflow_name,
)

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Signals: which are queued and not taken, what became of one; sending one, or taking one away, by hand.",
)

To = Annotated[
    str | None, typer.Option("--to", metavar="ID", help="Only of this workflow, by its id.", show_default=False)
]


@commands.command("list")
def list_(
    context: typer.Context,
    workflow: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only of workflows of this name.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only signals of this name.", show_default=False)
    ] = None,
    to: To = None,
    parked: Annotated[
        bool, typer.Option("--parked", help="Those instead that wait for a workflow to be started.")
    ] = False,
    since: Since = None,
    until: Until = None,
    older_than: OlderThan = None,
    limit: Limit = None,
    json: Json = None,
) -> None:
    """List the signals that are queued and not taken yet, in order of receipt.

    Times are of receipt. A signal waits for a listen that comes later; one of a name that its workflow never listens for is
    discarded when that ends. With --parked: those that wait for a workflow of a name, with tags, to be started; times are of
    parking.

    \b
    Examples:
      gasoline signal list --workflow fulfil --older-than 1d
      gasoline signal list --name paid --json | jq -r .workflow_id
      gasoline signal list --parked

    \b
    JSON keys: id, name, workflow_id, workflow, status (of the workflow),
    received, sender, partition. With --parked: id, name, workflow, tags,
    parked, until, partition. The body: see `signal get`.
    """
    from gasoline_es.cli import parked as standing
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.queues import Wanted, members, queued, show
    from gasoline_es.cli.reading import reading

    signal = None if name is None else checked_name("signal", name)
    made = time_range(since, until, older_than)
    output = Output(json)
    if parked and to is not None:
        raise Misuse("--to goes without --parked: a parked signal is for no workflow by its id")
    with reading(settings_of(context)) as log:
        if parked:
            waiting = standing.waiting(log, standing.Wanted(workflow_name(workflow), signal, *made))
            waiting = waiting if limit is None else waiting[-limit:]
            for one in waiting if output.json else ():
                output.object(standing.members(one))
            if not output.json:
                standing.show(waiting, output)
            return
        rows = queued(log, Wanted(workflow_name(workflow), signal, to, *made))
        rows = rows if limit is None else rows[-limit:]
        if output.json:
            for row in rows:
                output.object(members(row))
        else:
            show(rows, output)


@commands.command(short_help="Show what became of one signal.")
def get(
    context: typer.Context,
    id: Annotated[str, typer.Argument(metavar="SIGNAL_ID", help="The signal's id.", show_default=False)],
    to: To = None,
    full: Annotated[bool, typer.Option("--full", help="Show the body whole (text).")] = False,
    json: Json = None,
) -> None:
    """Show a signal: its body, who received it and when, and whether it is queued, was taken (where), or discarded.

    One that waits for a workflow to be started is parked. An id that its sender made up may have come to several workflows:
    each is shown, unless --to names one.

    \b
    Examples:
      gasoline signal get "payment of 42"
      gasoline signal get "payment of 42" --to ID --json | jq .body

    \b
    JSON keys: id, name, workflow_id, workflow, stands (parked, queued, taken,
    discarded), received, ended, location (of the listen), sender, body; and of
    one that was parked: tags, parked, until.
    """
    from gasoline_es.cli import parked
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.queues import find, found_members, show_found
    from gasoline_es.cli.reading import reading

    output = Output(json)
    with reading(settings_of(context)) as log:
        found, others = find(log, id, to)
        if output.json:
            for other in others:
                output.object(parked.found_members(other))
            for one in found:
                output.object(found_members(one))
        else:
            for number, other in enumerate(others):
                if number:
                    output.console.print()
                parked.show_found(other, output, full=full)
            if others and found:
                output.console.print()
            show_found(found, output, full=full)


@commands.command(short_help="Send a signal.")
def send(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name on the log.", show_default=False)],
    body: Annotated[
        str, typer.Argument(metavar="BODY_JSON", help="Its fields as a JSON object; - reads them.", show_default=False)
    ],
    to: Annotated[
        str | None, typer.Option("--to", metavar="ID", help="To this workflow, by its id.", show_default=False)
    ] = None,
    workflow: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="To the oldest workflow of this name that is not over.", show_default=False),
    ] = None,
    tag: TagOptions = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="SIGNAL_ID", help="Your own id: a repeat with it changes nothing.", show_default=False
        ),
    ] = None,
    park: Annotated[
        str | None,
        typer.Option(
            "--park",
            metavar="AGE",
            help="If there is none yet, the first one that is started within this time gets it: 90s, 15m, 2h, 7d.",
            show_default=False,
        ),
    ] = None,
    json: Json = None,
) -> None:
    """Send a signal to a workflow by id, or to the oldest one of a name, with these tags, that is not over.

    It is durably queued (or parked) when this returns, with or without a worker. The body is not held against the signal's
    class, which is not here: a workflow whose code cannot read it dies, so look at one that is there first (`signal get`).

    \b
    Examples:
      gasoline signal send paid '{"cents": 900}' --to ID --id "payment of 42"
      gasoline signal send held '{}' --workflow fulfil --tag order=42 --park 15m

    \b
    JSON keys: id (of the signal), name, workflow_id (null: it is parked, or was
    before), stands (then: parked, or delivered, as a workflow got it before).
    """
    from gasoline_es.cli.sending import send

    settings = settings_of(context)
    signal, target = checked_name("signal", name), workflow_name(workflow)
    raw = json_of("the body", body)
    if not raw.startswith(b"{"):
        raise Misuse(
            f"the body of a signal is a JSON object of its fields, as in '{{}}' or '{{\"cents\": 900}}', not {raw[:40]!r}"
        )
    send(settings, signal, raw, to, target, tags_of(tag), id, length_of("--park", park), json)


@commands.command(short_help="Take away a signal that nobody has taken yet.")
def discard(
    context: typer.Context,
    id: Annotated[str, typer.Argument(metavar="SIGNAL_ID", help="The signal's id.", show_default=False)],
    to: To = None,
    parked: Annotated[bool, typer.Option("--parked", help="Only where it waits for a workflow to be started.")] = False,
    json: Json = None,
) -> None:
    """Take away a signal that nobody has taken yet: queued for a workflow, or parked for one that is not there.

    For one that a workflow cannot do with. No listen and no replay gets it; its sender's repeat with the id does not bring it
    back. An id that its sender made up may wait in several places: then say which, with --to or --parked. What a listen has
    taken is refused: it stands in the history. Discarding it again changes nothing. A dead workflow stays dead until it is
    woken.

    \b
    Examples:
      gasoline signal discard "payment of 42"
      gasoline signal discard "payment of 42" --to ID
      gasoline signal discard "payment of 42" --parked

    \b
    JSON keys: id, name, workflow_id (null: it was parked), workflow, status
    (of the workflow; null: it was parked), discarded (false: it was before).
    """
    from gasoline_es.cli.discarding import discard

    if parked and to is not None:
        raise Misuse("--to goes without --parked: a parked signal is for no workflow by its id")
    discard(settings_of(context), id, to, parked, json)
