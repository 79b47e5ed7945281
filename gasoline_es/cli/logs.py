"""``gasoline log …``: info, verify, compact, dump, copy, reopen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gasoline_es.cli.settings import Settings
from gasoline_es.cli.typed import Json

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The log itself: what it holds, and whether every byte is sound.",
)


@commands.command(short_help="Show what a log is made of, and who owns it.")
def info(context: typer.Context, json: Json = None) -> None:
    """Show what a log is made of: namespaces, who owns their partitions, segments, torn tails, damage met on the way.

    \b
    Example:
      gasoline --log file:./data log info

    \b
    JSON, one object: url, log_id, namespaces {name: partitions},
    owners [{namespace, partition, epoch, incarnation, alive, released, host,
    pid}],
    segments [{number, writer, bytes, batches, records, closed,
    compacted}], torn [text],
    problems [text] (log verify looks for all).
    """
    from gasoline_es.cli.contents import describe, members, show
    from gasoline_es.cli.output import Output

    output = Output(json)
    contents = describe(_settings(context))
    if output.json:
        output.object(members(contents))
    else:
        show(contents, output)


@commands.command(short_help="Check every byte against its checksum.")
def verify(
    context: typer.Context,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="If all is sound, write a digest of the log there, to hold it to later.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FILE",
            help="Hold the log to such a digest: what was there is there, or was removed by a cleaning.",
            show_default=False,
        ),
    ] = None,
    json: Json = None,
) -> None:
    """Check every byte that was ever published against its checksum; exit with 1 and name the place if one is wrong.

    That finds accidents. Whoever can write to the directory can write a history anew, with checksums that fit: a digest
    taken before, and kept elsewhere, tells.

    \b
    Examples:
      gasoline --log file:./data log verify && echo sound
      gasoline log verify --checkpoint monday.json
      gasoline log verify --against monday.json

    \b
    JSON, told apart by the key kind:
      problem: segment, position (a byte of it), reason; segment is null if it
        is another file, which reason names
      segment: number, writer, bytes, batches, records, closed, compacted
      summary: segments, bytes, records, problems
    """
    from gasoline_es.cli.output import Output
    from gasoline_es.cli.verifying import verify_log

    verify_log(_settings(context), Output(json), checkpoint=checkpoint, against=against)


@commands.command(short_help="Remove what nobody needs any more.")
def compact(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", metavar="MIB", min=0.01, help="Read no more than so many MiB a second.", show_default=False
        ),
    ] = None,
    json: Json = None,
) -> None:
    """Remove from the log what nobody needs any more, and what never counted. Workers may go on meanwhile.

    What goes: events of workflows that were pruned, commands that were consumed, older records where the newest of a
    key stands for them, and replies and messages by age. Segments that are still written to are left alone. It may be
    broken off at any time.

    \b
    Examples:
      gasoline --log file:./data log compact --dry-run
      gasoline --log file:./data log compact --rate 20

    \b
    JSON, one object: by ("log"; "broker", which cleans by itself; "another", who
    is at it: status 1), dry_run, segments (looked at), open (left alone),
    rewritten, emptied, bytes_before, bytes_after,
    removed {topic: {why: records}}.

    Exit status: 0 cleaned; 1 another process is at it, or a namespace of the log is being copied; 2 used wrongly.
    """
    from gasoline_es.cli.cleaning import compact as compact_it
    from gasoline_es.cli.output import Output

    compact_it(_settings(context), Output(json), dry_run=dry_run, mib_per_s=rate)


@commands.command(short_help="Write the log's records as JSON Lines.")
def dump(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Only this topic: events, inbox, index, messages, registry, replies, or NAMESPACE.TOPIC.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only this partition.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only records with this key.", show_default=False)
    ] = None,
    workflow: Annotated[
        str | None, typer.Option(metavar="ID", help="Only records about this workflow.", show_default=False)
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Only the values, such as the events' CloudEvents.")] = False,
    json: Json = None,
) -> None:
    """Write the log's records as JSON Lines, also on a terminal.

    Topic by topic and partition by partition, each in its own order. Records that do not count, written by a process
    that had lost its partition, are left out. A record removed later (a tombstone) has the value null; --values
    leaves tombstones out.

    \b
    Examples:
      gasoline --log file:./data log dump | gzip > records.jsonl.gz
      gasoline log dump --topic events --values | jq -r .type | sort | uniq -c
      gasoline log dump --workflow 0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f

    \b
    JSON keys: topic, partition, offset (null in inbox, messages and replies),
    key, time, headers, value.
    """
    from gasoline_es.cli.dumping import Selection, dump_log
    from gasoline_es.cli.output import Output

    del json  # there is one form; the option is taken so that every command takes it
    dump_log(_settings(context), Selection(topic, partition, key, workflow, values), Output(True))


@commands.command(short_help="Move a namespace to another log, and check every record.")
def copy(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FROM", help="The log as it is: file:DIRECTORY or kafka://….")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The log that it goes to, which is new.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            metavar="N",
            min=1,
            max=4096,
            help="So many at the new place. Unless given 16 in files and 32 on Kafka; 1 for an application of eventsourcing.",
            show_default=False,
        ),
    ] = None,
    json: Json = None,
) -> None:
    """Move a namespace to another log: files to Kafka, Kafka to files, to another number of partitions.

    It is called the same at both places: as a Kafka URL says, or --namespace, or else default. What else the log holds
    stays, such as applications of eventsourcing, which have a namespace each: log info lists them.

    Nobody may have it open for writing meanwhile, neither here nor there: end its workers and clients first. From the
    first record on the old place is closed; the new one opens when all of it is there and was read again from there,
    compared record by record. Running workflows go on there, where they stood.

    Broken off at any point, the same command again goes on from there. To stay at the old place instead:
    gasoline --log FROM log reopen, as long as not all was copied. What was copied for good stays at the old place, to
    be looked at.

    \b
    Examples:
      gasoline log copy file:./data kafka://broker:9092/default --partitions 64
      gasoline --namespace shop log copy file:./data file:./larger --partitions 128

    \b
    JSON, one object: source, target, namespace, partitions [before, now],
    topics {name: {records, found (there already, of a copy that was broken off),
    digest (the same for equal records)}}, again (all had been copied before).
    """
    from gasoline_es.cli.copying import copy as copy_them
    from gasoline_es.cli.output import Output

    copy_them(_settings(context), source, target, partitions, Output(json))


@commands.command(short_help="Go on in a log whose copy was broken off.")
def reopen(context: typer.Context, json: Json = None) -> None:
    """Let a namespace go on in its log although a copy of it was begun, which was broken off before all was copied.

    What was copied so far stays closed at the new place, and is of no use but to copy again.

    \b
    Example:
      gasoline --log file:./data log reopen

    \b
    JSON, one object: url, namespace.
    """
    from gasoline_es.cli.copying import open_again
    from gasoline_es.cli.output import Output

    open_again(_settings(context), Output(json))


def _settings(context: typer.Context) -> Settings:
    settings = context.find_object(Settings)
    assert settings is not None
    return settings
