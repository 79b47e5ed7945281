"""What an administrator of a cluster is told: the topics of a namespace, what each process may do, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from shlex import quote
from typing import Any, Final, NamedTuple, cast, get_args

from gasoline_es.cli.failures import Failure, Misuse
from gasoline_es.cli.output import Output
from gasoline_es.cli.settings import Settings
from gasoline_es.errors import LogError, TopicRefused
from gasoline_es.log.kafka.acls import ROLES, Acl, Ingested, Role, acls_of
from gasoline_es.log.kafka.drivers.port import TopicInfo
from gasoline_es.log.kafka.settings import Address, make_driver, security_of
from gasoline_es.log.kafka.topics import (
    ASK_S,
    PARTITIONS_DEFAULT,
    PUBLIC_TOPICS,
    Difference,
    Wanted,
    differences,
    topics_of,
)
from gasoline_es.log.names import check_namespace, check_wanted
from gasoline_es.log.port import check_foreign

_SCRIPT: Final = "#!/bin/sh\nset -eu\n"
_CONFIG: Final = '${COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"}'
"""How a script shows who it is to a cluster that wants to know: by a file that a variable names."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Which namespace, and where. ``address`` None: no cluster was named."""

    address: Address | None
    namespace: str

    @property
    def prefix(self) -> str:
        return "" if self.address is None else self.address.prefix

    @property
    def servers(self) -> Sequence[str]:
        return () if self.address is None else self.address.servers


def _place(settings: Settings) -> _Place:
    """Raises: Misuse, LogError: the log is no cluster, or it and --namespace name different namespaces."""
    address = None
    if settings.log:
        if not settings.log.startswith("kafka://"):
            raise LogError(
                f"the log {settings.log!r} is not on Kafka: write --log kafka://HOST:PORT/NAMESPACE, or none"
            )
        address = Address.of(settings.log)
    named = None if address is None else address.namespace
    if named is not None and settings.namespace not in (None, named):
        raise Misuse(
            f"--log names the namespace {named!r}, and --namespace {settings.namespace!r}: leave one of them out"
        )
    namespace = named or settings.namespace or "default"
    check_namespace(namespace)
    return _Place(address, namespace)


# --- topics -----------------------------------------------------------------------------------------------------------


def show_topics(settings: Settings, output: Output, partitions: int | None, *, ask: bool, as_commands: bool) -> None:
    """Show the topics of a namespace, compared with a cluster's if one was named and is to be asked.

    Raises: Failure: one is missing, or would be refused. BrokerError: no broker answers.
    """
    place = _place(settings)
    check_wanted(partitions)
    there = _there(place) if ask and place.address is not None else None
    events = None if there is None else there.get(f"{place.prefix}{place.namespace}.events")
    count = partitions or (PARTITIONS_DEFAULT if events is None else events.partitions)
    wanted = topics_of(place.prefix, place.namespace, count)
    replication = -1 if place.address is None else place.address.replication
    if as_commands:
        _write_script(output, _topic_commands(wanted, there, place, replication))
        return
    found = [_compared(one, there) for one in wanted]
    if output.json:
        for one, (is_there, differing) in zip(wanted, found, strict=True):
            output.object(_topic_members(one, replication, is_there, differing))
    else:
        _show_topics(output, list(zip(wanted, found, strict=True)))
    missing = [one.name for one, (is_there, _) in zip(wanted, found, strict=True) if is_there is False]
    refused = [one for _, differing in found for one in differing if one.refused]
    told = [
        *([f"missing: {', '.join(missing)}"] if missing else []),
        *(f"{one.topic} has {_told(one)}" for one in refused),
    ]
    if told:
        raise Failure(f"the topics of {place.namespace!r} are not as they must be: {'; '.join(told)}")


def _there(place: _Place) -> Mapping[str, TopicInfo]:
    assert place.address is not None
    driver = make_driver(place.address)
    with closing(driver), closing(driver.admin()) as admin:
        return admin.describe([one.name for one in topics_of(place.prefix, place.namespace, 1)], ASK_S)


def _compared(wanted: Wanted, there: Mapping[str, TopicInfo] | None) -> tuple[bool | None, list[Difference]]:
    """Whether a topic is there (None: not asked), and in what it differs."""
    if there is None:
        return None, []
    info = there.get(wanted.name)
    return info is not None, [] if info is None else differences(wanted, info)


def _topic_members(
    wanted: Wanted, replication: int, there: bool | None, differing: Iterable[Difference]
) -> dict[str, Any]:
    return {
        "topic": wanted.name,
        "partitions": wanted.partitions,
        "replication": replication,
        "config": dict(wanted.policy),
        "public": wanted.kind in PUBLIC_TOPICS,
        "there": there,
        "differences": [
            {"setting": one.setting, "wanted": one.wanted, "found": one.found, "refused": one.refused}
            for one in differing
        ],
    }


def _told(one: Difference) -> str:
    return f"{one.setting or 'partitions'}={one.found} and not {one.wanted}"


def _show_topics(output: Output, found: Sequence[tuple[Wanted, tuple[bool | None, list[Difference]]]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("topic", "partitions", "settings", "in the cluster"):
        table.add_column(name, overflow="fold")
    for wanted, (there, differing) in found:
        settings = "\n".join(f"{name}={value}" for name, value in wanted.policy.items())
        state = {None: "-", False: "missing", True: "\n".join(map(_told, differing)) or "as it should be"}[there]
        style = "red" if there is False or any(one.refused for one in differing) else ""
        table.add_row(Text(wanted.name), str(wanted.partitions), Text(settings), Text(state, style))
    output.console.print(table)


def _topic_commands(
    wanted: Sequence[Wanted], there: Mapping[str, TopicInfo] | None, place: _Place, replication: int
) -> Iterable[str]:
    """Make what is missing, and set what would be refused. A number of partitions is not changed: records would be lost."""
    for one in wanted:
        info = None if there is None else there.get(one.name)
        if info is None:
            copies = f" --replication-factor {replication}" if replication > 0 else ""
            configs = "".join(f" --config {name}={value}" for name, value in one.policy.items())
            yield (
                f"kafka-topics.sh {_reach(place)} --create --if-not-exists --topic {quote(one.name)} "
                f"--partitions {one.partitions}{copies}{configs}"
            )
            continue
        for differing in differences(one, info):
            if differing.setting is None:
                yield f"# {one.name} has {_told(differing)}: that cannot be set right, start with another namespace"
            elif differing.refused:
                yield (
                    f"kafka-configs.sh {_reach(place)} --alter --topic {quote(one.name)} "
                    f"--add-config {differing.setting}={differing.wanted}"
                )


def _reach(place: _Place) -> str:
    servers = quote(",".join(place.servers)) if place.servers else '"$BOOTSTRAP_SERVER"'
    return f"--bootstrap-server {servers} {_CONFIG}"


def _write_script(output: Output, lines: Iterable[str]) -> None:
    script = _SCRIPT + "".join(f"{line}\n" for line in lines)
    if output.json_wanted:
        output.object({"script": script})
    else:
        # In a pipe too: it is made for a shell, or a file.
        output.console.print(script, end="", soft_wrap=True)


# --- permissions ------------------------------------------------------------------------------------------------------


class Others(NamedTuple):
    """Topics of others, as they are written on the command line."""

    emit: Sequence[str]
    ingest: Sequence[str]


def show_acls(
    settings: Settings,
    output: Output,
    principals: Sequence[str],
    group: str | None,
    others: Others,
    *,
    as_commands: bool,
) -> None:
    """Show what each role must be allowed. Raises: Misuse: a principal or topic is given in a way that means nothing."""
    place = _place(settings)
    given = _principals(principals)
    who = given or {role: [f"User:{role}"] for role in ROLES}
    if group is not None and not group.isprintable():
        raise Misuse(f"--group {group!r}: groups have names that can be printed")
    emit = [_emitted(place, topic) for topic in others.emit]
    ingest = [_ingested(place, text) for text in others.ingest]
    needed = acls_of(place.prefix, place.namespace, group, emit=emit, ingest=ingest)
    allowed = [one for one in needed if one.role in who]
    if as_commands:
        _write_script(output, _acl_commands(allowed, who, place))
        return
    rows = [(one, principal) for one in allowed for principal in who[one.role]]
    if output.json:
        for one, principal in rows:
            output.object(_acl_members(one, principal))
    else:
        _show_acls(output, rows)


def _principals(given: Sequence[str]) -> dict[Role, list[str]]:
    found: dict[Role, list[str]] = {}
    for text in given:
        role, equals, principal = text.partition("=")
        kind, colon, name = principal.partition(":")
        if not equals or role not in get_args(Role):
            raise Misuse(f"--principal {text!r}: write ROLE=PRINCIPAL, and for ROLE one of {', '.join(ROLES)}")
        if not colon or not kind or not name or not principal.isprintable():
            raise Misuse(f"--principal {text!r}: a principal is written as User:NAME")
        found.setdefault(cast(Role, role), []).append(principal)
    return found


def _emitted(place: _Place, topic: str) -> str:
    _check_other(place, "--emit", topic.removesuffix("*"))
    return topic


def _ingested(place: _Place, text: str) -> Ingested:
    topic, colon, letters = text.partition(":")
    pipeline = Ingested(topic, letters if colon else f"{topic}.dead-letter")
    for one in pipeline:
        _check_other(place, "--ingest", one)
    if pipeline.topic == pipeline.dead_letters:
        raise Misuse(f"--ingest {text!r}: dead letters cannot go to the topic that is read")
    return pipeline


def _check_other(place: _Place, option: str, topic: str) -> None:
    try:
        check_foreign(topic, place.namespace)
        check_foreign(topic.removeprefix(place.prefix), place.namespace)
    except TopicRefused as refused:
        raise Misuse(f"{option}: {refused.message}") from refused


def _pattern(one: Acl) -> str:
    return "prefixed" if one.prefixed else "literal"


def _acl_members(one: Acl, principal: str) -> dict[str, Any]:
    return {
        "role": one.role,
        "principal": principal,
        "resource": one.resource,
        "name": one.name,
        "pattern": _pattern(one),
        "operation": one.operation,
    }


def _together(allowed: Iterable[Acl]) -> dict[tuple[Role, str, str, str], list[str]]:
    """The operations of each resource."""
    found: dict[tuple[Role, str, str, str], list[str]] = {}
    for one in allowed:
        found.setdefault((one.role, one.resource, one.name, _pattern(one)), []).append(one.operation)
    return found


def _show_acls(output: Output, rows: Sequence[tuple[Acl, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in ("principal", "resource", "name", "operations"):
        table.add_column(name, overflow="fold")
    by_principal: dict[str, list[Acl]] = {}
    for one, principal in rows:
        by_principal.setdefault(principal, []).append(one)
    for principal, allowed in by_principal.items():
        for (_, resource, name, pattern), operations in _together(allowed).items():
            shown = f"{name}*" if pattern == "prefixed" else name
            table.add_row(Text(principal), resource, Text(shown), ", ".join(operations))
    output.console.print(table)


def _acl_commands(allowed: Sequence[Acl], who: Mapping[Role, Sequence[str]], place: _Place) -> Iterable[str]:
    for (role, resource, name, pattern), operations in _together(allowed).items():
        principals = "".join(f" --allow-principal {quote(one)}" for one in who[role])
        wanted = "".join(f" --operation {one}" for one in operations)
        yield (
            f"kafka-acls.sh {_reach(place)} --add{principals}{wanted} --{resource} {quote(name)} "
            f"--resource-pattern-type {pattern}"
        )


# --- what is in them --------------------------------------------------------------------------------------------------


def write_asyncapi(settings: Settings, output: Output, partitions: int | None) -> None:
    """Write the document of a namespace's public topics."""
    from gasoline_es.contract.asyncapi import asyncapi

    place = _place(settings)
    check_wanted(partitions)
    topics = topics_of(place.prefix, place.namespace, partitions or PARTITIONS_DEFAULT)
    secure = place.address is not None and security_of(place.address).protocol.endswith("SSL")
    protocol = "kafka-secure" if secure else "kafka"
    output.object(asyncapi(topics, namespace=place.namespace, servers=place.servers, protocol=protocol))
