"""``gasoline workflow …``: list, get, history; dispatch; wake, revive, cancel, silence, recover, rerun, prune-history."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final

import typer

from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.typed import (
    AsOf,
    Json,
    OlderThan,
    Since,
    TagOptions,
    Until,
    checked_name,
    json_of,
    moment_of,
    settings_of,
    tags_of,
    time_range,
    workflow_name,
)

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Workflows: which there are, where each stands, what happened; and what an operator does with one.",
)


_NUMBER: Final = re.compile("[0-9]{1,18}")


class Statuses(StrEnum):
    """Where a workflow can stand (semantics.md §7)."""

    running = "running"
    sleeping = "sleeping"
    complete = "complete"
    cancelled = "cancelled"
    silenced = "silenced"
    dead = "dead"
    unreadable = "unreadable"


Full = Annotated[bool, typer.Option("--full", help="Show payloads and tracebacks whole (text).")]
WorkflowId = Annotated[
    str, typer.Argument(metavar="ID", help="The workflow's id, as `workflow list` shows it.", show_default=False)
]


@commands.command("list")
def list_(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this name.", show_default=False)] = None,
    tag: TagOptions = None,
    status: Annotated[Statuses | None, typer.Option(help="Only those that stand so.", show_default=False)] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those whose error contains this.", show_default=False)
    ] = None,
    since: Since = None,
    until: Until = None,
    older_than: OlderThan = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Only the newest N of them; with --after the first N.", show_default=False
        ),
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Only those behind this one in the list.", show_default=False)
    ] = None,
    as_of: AsOf = None,
    json: Json = None,
) -> None:
    """List workflows in order of creation.

    --limit shows the newest, which is what one looks for by hand; `gasoline.list(limit=…)` in code gives the oldest. For a
    page after another, give the last id of the page before as --after. With --as-of the log is folded from its start.

    \b
    Examples:
      gasoline workflow list --name fulfil --tag order=42
      gasoline workflow list --status dead --error Timeout --since 2h
      gasoline workflow list --status sleeping --older-than 30d
      gasoline workflow list --limit 50 --after ID
      gasoline workflow list --status sleeping --as-of 2026-01-31T12:00:00Z
      gasoline workflow list --json | jq -r 'select(.queued != {}) | .id'

    \b
    JSON keys: id, name, status, tags, error {type, message, traceback, details},
    created, completed, ray_id, waiting_for, waiting_until, queued {id: name},
    partition, worker, events.
    """
    from gasoline_es.cli.listing import find, find_as_of, members, show
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.reading import reading
    from gasoline_es.cli.single import load
    from gasoline_es.core.filters import Filters
    from gasoline_es.core.state import created

    since_us, until_us = time_range(since, until, older_than)
    moment_us = moment_of("--as-of", as_of)
    stands = None if status is None else status.value
    named, tags = workflow_name(name), tags_of(tag)
    output = Output(json)
    with reading(settings_of(context)) as log:
        behind = None if after is None else created(load(log, after).state.summary)
        filters = Filters(named, tags, stands, error, since_us, until_us, behind)
        rows = find(log, filters) if moment_us is None else find_as_of(log, filters, moment_us)
        if limit is not None:
            rows = rows[-limit:] if after is None else rows[:limit]
        if output.json:
            for row in rows:
                output.object(members(row))
        else:
            show(rows, output)


@commands.command(short_help="Show where one workflow stands, with its payloads.")
def get(
    context: typer.Context,
    id: WorkflowId,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="TIME|N",
            help="As it stood then, an age (90s, 15m, 2h, 7d) or an RFC 3339 time; or behind its event of that number.",
            show_default=False,
        ),
    ] = None,
    full: Full = False,
    json: Json = None,
) -> None:
    """Show where one workflow stands, with its input, output, state, error and queued signals.

    As text it also says where the workflows stand whose outputs it waits for, but not with --as-of. The numbers of its events
    are the key seq of `workflow history ID --json`.

    \b
    Examples:
      gasoline workflow get 0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f
      gasoline workflow get ID --as-of 2026-01-31T12:00:00Z
      gasoline workflow get ID --as-of 3
      gasoline workflow get ID --json | jq .output

    \b
    JSON keys: those of `workflow list`, and input, output, state.
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.reading import reading
    from gasoline_es.cli.single import load, members, show, waited_for

    events = int(as_of) if as_of is not None and _NUMBER.fullmatch(as_of) else None
    if events == 0:
        raise Misuse("--as-of 0: events are numbered from 1")
    moment_us = moment_of("--as-of", as_of if events is None else None)
    output = Output(json)
    with reading(settings_of(context)) as log:
        workflow = load(log, id, moment_us=moment_us, events=events)
        if output.json:
            output.object(members(workflow))
        else:
            show(workflow, output, full=full, others=waited_for(log, workflow) if as_of is None else ())


@commands.command(short_help="Show all that happened to one workflow.")
def history(
    context: typer.Context,
    id: WorkflowId,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Read what was archived there before it was pruned, and not the log.",
            show_default=False,
        ),
    ] = None,
    full: Full = False,
    json: Json = None,
) -> None:
    """Show all that happened to one workflow, as a tree of its steps by location; as JSON, its events as recorded.

    Each step shows its attempts, times, input and output. What happened to the workflow as a whole stands between the
    steps: when it was suspended and why, woken, failed, completed. Times are UTC. The steps of closures, of workflows run
    inline, of a race's competitors and of a loop's iterations stand below them. Of a loop the last three iterations are
    shown and the others counted, unless --full; those that replay does not look at any more are marked. Steps that hold no
    more, because the workflow started over, stand dim at the end, under the rerun that superseded them.

    \b
    Examples:
      gasoline workflow history 0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f
      gasoline workflow history ID --text --full | less
      gasoline workflow history ID --json | jq -c '[.seq, .type, .data]'
      gasoline workflow history ID --archive ./archive
      gasoline workflow history ID | jq '.data | select(.location == "{4, 1, 2}")'

    \b
    JSON: one CloudEvent 1.0 a line, in order of its key seq.
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.reading import reading
    from gasoline_es.cli.single import history_records

    output = Output(json)
    if archive is not None:
        from gasoline_es.cli.archived import show_history

        show_history(id, archive, output, full=full)
        return
    with reading(settings_of(context)) as log:
        records = history_records(log, id)
        if output.json:
            for record in records:
                if record.value is not None:
                    output.raw(record.value)
        else:
            from gasoline_es.cli.tree import show

            show([event for record in records if (event := log.decode(record)) is not None], output, full=full)


@commands.command(short_help="Start a workflow.")
def dispatch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The workflow's name.", show_default=False)],
    input: Annotated[
        str, typer.Argument(metavar="INPUT_JSON", help="Its input as JSON; - reads it.", show_default=False)
    ],
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A tag; give it again for more.", show_default=False),
    ] = None,
    unique: Annotated[
        bool, typer.Option("--unique", help="Unless one of this name with all these tags is there that is not over.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Your own name for this one: a repeat gives the same.", show_default=False),
    ] = None,
    json: Json = None,
) -> None:
    """Start a workflow by its name.

    It is durable when this returns, with or without a worker; one that has registered the name runs it. The input is not held
    against the type that the code takes, which is not here: a workflow whose code cannot read it dies.

    \b
    Examples:
      gasoline workflow dispatch fulfil '{"number": 42}' --tag order=42 --unique
      gasoline workflow dispatch report '"2026-01"' --key 2026-01 | jq -r .id
      gasoline workflow dispatch fulfil - < order.json

    \b
    JSON keys: id, name, created (false: --unique or --key found it there).
    """
    from gasoline_es.cli.sending import dispatch

    settings, named = settings_of(context), checked_name("workflow", name)
    dispatch(settings, named, json_of("the input", input), tags_of(tag), unique, key, json)


# --- what an operator does ---------------------------------------------------------------------------------------------


@commands.command(short_help="Run a dead or sleeping workflow again.")
def wake(context: typer.Context, id: WorkflowId, json: Json = None) -> None:
    """Run a workflow again: a dead one replays what is recorded, with the code of the worker that runs it.

    One that died of a mistake in the code goes on from where it was once the code is mended. A failure of an activity
    that is recorded as final stays so, which is said: see `workflow recover`. One that runs, or is over, is left alone.

    \b
    Examples:
      gasoline workflow wake 0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f
      gasoline workflow wake ID --json | jq -r .status

    \b
    JSON keys: id, name, status, final (true: it had died of an activity's final
    failure, and will of it again).
    """
    from gasoline_es.cli.acting import wake

    wake(settings_of(context), json, id)


@commands.command(short_help="Run every dead workflow that matches again.")
def revive(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this name.", show_default=False)] = None,
    error: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help='Only those whose error contains this; "" is any.', show_default=False),
    ] = None,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover", help="Let the activities run again whose final failures they died of: `workflow recover`."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which they are.")] = False,
    json: Json = None,
) -> None:
    """Run every dead workflow of a name, or with a text in its error, again: `workflow wake` for all of them.

    A hundred at a time, each hundred durable before the next; with a bar on a terminal. It may be called beside a worker,
    and again: those that are not dead any more, or died of something else since, are left alone. A failure of an activity
    that is recorded as final stays so, and it is said how many die of it again; with --recover these are recovered, and
    those that died of something else are left alone.

    \b
    Examples:
      gasoline workflow revive --name fulfil --error KeyError --dry-run
      gasoline workflow revive --error "is closed" --json | jq '.ids | length'
      gasoline workflow revive --error ActivityMaxFailuresReached --recover

    \b
    JSON keys: dry_run, ids, names {name: how many}, errors {text: how many, the
    commonest 20}, passed (how many were not dead of that any more), final (how
    many of these died of an activity's final failure), left (with --recover: how
    many died of something else).
    """
    from gasoline_es.cli.reviving import revive

    revive(settings_of(context), workflow_name(name), error, recover, dry_run, json)


@commands.command(short_help="End a workflow for good.")
def cancel(
    context: typer.Context,
    id: WorkflowId,
    now: Annotated[bool, typer.Option("--now", help="Do not let its body clean up: end it at once.")] = False,
    json: Json = None,
) -> None:
    """End a workflow for good: its body may clean up, and then it is cancelled.

    The request is durable when this returns. It is carried out by a worker that runs the workflow, also by one that comes
    later. A dead workflow is cancelled at once. Cancelling one again changes nothing.

    \b
    Examples:
      gasoline workflow cancel 0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f
      gasoline workflow cancel ID --now

    \b
    JSON keys: id, name, status (running while it cleans up, then cancelled).
    """
    from gasoline_es.cli.acting import act

    act(settings_of(context), json, id, lambda gasoline: gasoline.cancel(id, now=now))


@commands.command(short_help="Take a workflow out of sight: it will not run again.")
def silence(context: typer.Context, id: WorkflowId, json: Json = None) -> None:
    """Take a workflow out of sight: it is over as it stands, and will not run again.

    For one that nobody will mend. Its body does not clean up and nothing is undone: to have that, `workflow cancel`. It takes
    no signals, is found by no tags, and no longer stands among the dead; `workflow list --status silenced` shows it,
    and its history stays. There is no way back, but for a copy that starts over: `workflow rerun ID --from LOCATION --fork`.

    It is durable when this returns, with or without a worker. Silencing one again changes nothing.

    \b
    Examples:
      gasoline workflow silence 0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f
      gasoline workflow list --status dead --name fulfil | jq -r .id |
        xargs -n 1 gasoline workflow silence

    \b
    JSON keys: id, name, status.
    """
    from gasoline_es.cli.acting import act

    act(settings_of(context), json, id, lambda gasoline: gasoline.silence(id))


@commands.command(short_help="Let the activity that a workflow died of run again.")
def recover(context: typer.Context, id: WorkflowId, json: Json = None) -> None:
    """Let the activities whose final failures a workflow died of run again, from their first attempts.

    For when the cause outside is mended: the service is back, the account has money. Everything else that is recorded
    stays, and so do the failed attempts in the history. A workflow that died of a mistake in the code is woken instead.

    \b
    Examples:
      gasoline workflow recover 0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f
      gasoline workflow list --status dead --error MaxFailures | jq -r .id |
        xargs -n 1 gasoline workflow recover

    \b
    JSON keys: id, name, status.
    """
    from gasoline_es.cli.acting import act

    act(settings_of(context), json, id, lambda gasoline: gasoline.recover(id))


@commands.command(short_help="Let a workflow start over from a step, in the code of today.")
def rerun(
    context: typer.Context,
    id: WorkflowId,
    start: Annotated[
        str,
        typer.Option("--from", metavar="LOCATION", help='The step, as "{2, 5, 3}" or 2,5,3.', show_default=False),
    ],
    fork: Annotated[bool, typer.Option("--fork", help="Do so in a new workflow; leave this one alone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    json: Json = None,
) -> None:
    """Let a workflow start over from a step, in the code of today, whatever became of it since.

    What came after the step, on its branch and on the branches around it, stays in the history and holds no more: signals it
    took are queued again, and state and tags are those of before the step. Branches beside it in a join or race stay. The
    location is that of the step in `workflow history`; "{}" is the start. What was done outside is not undone.

    It is durable when this returns; the steps are done by a worker.

    \b
    Examples:
      gasoline workflow rerun ID --from 3 --dry-run
      gasoline workflow rerun ID --from "{2, 5, 3}"
      gasoline workflow rerun ID --from 3 --fork --json | jq -r .id

    \b
    JSON keys: id (of the workflow that goes on), start, generation, events (how
    many hold no more), signals (ids of those queued again), beside.
    """
    from gasoline_es.cli.rerunning import rerun

    rerun(settings_of(context), id, start, fork, dry_run, json)


@commands.command("prune-history", short_help="Give up the histories of workflows that are over.")
def prune_history(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this name.", show_default=False)] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only those that ended so long ago: 90s, 15m, 2h, 7d.", show_default=False),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY", help="Write each history to files there, before it is given up.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many they are.")] = False,
    json: Json = None,
) -> None:
    """Give up the histories of complete and cancelled workflows, whatever their definitions say.

    Input, state, output or error and tags stay, and so does the log's record that it was done, by whom. There is no way back:
    nothing of it is shown any more, and it is removed from the log when that is cleaned. A hundred at a time, each hundred
    durable before the next; beside a worker, and again: then there is nothing left of them to prune. The dead and the
    silenced keep theirs.

    \b
    Examples:
      gasoline workflow prune-history --name fulfil --older-than 30d --dry-run
      gasoline workflow prune-history --older-than 365d
      gasoline workflow prune-history --older-than 365d --archive ./archive

    \b
    JSON keys: dry_run, workflows (how many), names {name: how many}, events (how
    many may be removed from the log).
    """
    from gasoline_es.cli.pruning import prune_history

    prune_history(settings_of(context), workflow_name(name), older_than, archive, dry_run, json)
