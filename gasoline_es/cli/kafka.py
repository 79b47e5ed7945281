"""``gasoline kafka …``: topics, acls, asyncapi: what an administrator of a cluster needs."""

from __future__ import annotations

from typing import Annotated

import typer

from gasoline_es.cli.typed import Json, settings_of

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="What an administrator of a Kafka cluster needs: topics, permissions, and what is in the topics.",
)


AsCommands = Annotated[
    bool, typer.Option("--commands", help="As a script of the commands that Kafka itself comes with, in a pipe too.")
]
Partitions = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="How many partitions the namespace has or is to have; 32 unless given.",
        show_default=False,
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no broker, although --log names some.")]


@commands.command(short_help="Show which topics a namespace needs, and how those of a cluster differ.")
def topics(
    context: typer.Context,
    partitions: Partitions = None,
    offline: Offline = False,
    as_commands: AsCommands = False,
    json: Json = None,
) -> None:
    """Show the topics of a namespace with their settings, and compare them with those of the cluster that --log names.

    Opening a namespace for writing makes what is missing and refuses what would lose records; where nobody but an
    administrator may make topics, do it by the script. Without --log nothing is asked, and the namespace is "default"
    unless --namespace says otherwise. A setting that differs and is not refused is the administrator's to decide.

    \b
    Examples:
      gasoline --log kafka://broker:9092/shop kafka topics
      gasoline --log kafka://broker:9092/shop kafka topics --commands >make.sh
      gasoline --namespace shop kafka topics --partitions 8 --json

    \b
    JSON, one object a topic: topic, partitions, replication (-1: as the brokers
    are set), config {name: value}, public (others may read it), there (null: no
    cluster was asked), differences [{setting (null: the number of partitions),
    wanted, found, refused}]. With --commands --json: script.

    Exit status: 1 if a topic is missing, or would be refused.
    """
    from gasoline_es.cli.administering import show_topics
    from gasoline_es.cli.output import Output

    show_topics(settings_of(context), Output(json), partitions, ask=not offline, as_commands=as_commands)


@commands.command(short_help="Show which permissions workers, clients and readers need.")
def acls(
    context: typer.Context,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--principal",
            metavar="ROLE=PRINCIPAL",
            help="Who has a role, as worker=User:shop; give it again for more. Only those that are given are shown.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX", help="What consumers' groups begin with; as the topics unless given.", show_default=False
        ),
    ] = None,
    emit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="What bodies emit to, or all that begins so as 'sales.*'; give it again for more.",
            show_default=False,
        ),
    ] = None,
    ingest: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:DEAD-LETTERS]",
            help="What a pipeline reads; its dead letters go to TOPIC.dead-letter unless said. Again for more.",
            show_default=False,
        ),
    ] = None,
    as_commands: AsCommands = False,
    json: Json = None,
) -> None:
    """Show what each kind of process must be allowed: no more than that, so that nothing but owners can write events.

    \b
    Roles:
      administrator  makes the topics; nobody else has to
      worker         runs workflows, and acts from the command line
      client         dispatches, signals, asks and subscribes; runs nothing
      reader         looks, as the command line does; writes nothing
      consumer       any other program that reads the public topics

    A worker opens the namespace first: only it may give the log its name. No broker is asked.

    Topics of others are a worker's too, if they are named: --emit for ctx.emit, whose topics no definition tells, and
    --ingest for gasoline.ingest. They are called as in the cluster, without the prefix of the URL.

    \b
    Examples:
      gasoline --log kafka://broker:9092/shop kafka acls
      gasoline --namespace shop kafka acls --principal worker=User:shop --commands >allow.sh
      gasoline --namespace shop kafka acls --emit sales --ingest orders

    \b
    JSON, one object a permission: role, principal, resource (topic,
    transactional-id or group), name, pattern (literal or prefixed), operation.
    With --commands --json: script.
    """
    from gasoline_es.cli.administering import Others, show_acls
    from gasoline_es.cli.output import Output

    others = Others(emit or [], ingest or [])
    show_acls(settings_of(context), Output(json), role or [], group, others, as_commands=as_commands)


@commands.command(short_help="Write an AsyncAPI document of the public topics.")
def asyncapi(context: typer.Context, partitions: Partitions = None, json: Json = None) -> None:
    """Write an AsyncAPI 3.0 document of a namespace's public topics, with the JSON Schema of every event; on a terminal, too.

    The number of partitions is asked of no broker: say it if it is not 32.

    \b
    Example:
      gasoline --log kafka://broker:9092/shop kafka asyncapi >shop.json

    JSON: the document, in one line.
    """
    from gasoline_es.cli.administering import write_asyncapi
    from gasoline_es.cli.output import Output

    del json  # there is one form; the option is taken so that every command takes it
    write_asyncapi(settings_of(context), Output(True), partitions)
