"""What was typed: options that several commands share, and what their texts mean."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from gasoline_es.cli.failures import Misuse
from gasoline_es.cli.settings import Settings

_AGE: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_UNITS_US: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_TIME: Final = "an age (90s, 15m, 2h, 7d) or an RFC 3339 time."

Json = Annotated[
    bool | None,
    typer.Option(
        "--json/--text",
        help="One JSON object a line, or text; without it JSON when piped and text on a terminal.",
        show_default=False,
    ),
]
TagOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="KEY=VALUE",
        help="Only with this tag; give it again for more, all must match.",
        show_default=False,
    ),
]
Since = Annotated[str | None, typer.Option(metavar="TIME", help=f"Only those made since: {_TIME}", show_default=False)]
Until = Annotated[str | None, typer.Option(metavar="TIME", help=f"Only those made before: {_TIME}", show_default=False)]
OlderThan = Annotated[
    str | None,
    typer.Option(metavar="AGE", help="Only those older than this age: 90s, 15m, 2h, 7d.", show_default=False),
]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help=f"As they stood then, by the events of each partition before the first that is younger: {_TIME}",
        show_default=False,
    ),
]
KeptUp = Annotated[
    str | None,
    typer.Option(
        "--projections",
        metavar="MODULE",
        help="Keep the projections of a module up too, as shop.views or shop.views:turnover.",
        show_default=False,
    ),
]
Pipelines = Annotated[
    str | None,
    typer.Option(
        "--pipelines",
        metavar="MODULE",
        help="Ingest the topics of a module too, as shop.intake or shop.intake:orders.",
        show_default=False,
    ),
]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the newest N of them.", show_default=False)]


def settings_of(context: typer.Context) -> Settings:
    """Return what the options before the command say."""
    settings = context.find_object(Settings)
    assert settings is not None
    return settings


def workflow_name(name: str | None) -> str | None:
    """Return a workflow's name as it was typed. Raises: Misuse: nothing can have it."""
    return None if name is None else checked_name("workflow", name)


def checked_name(kind: str, name: str) -> str:
    """Return a name as it was typed. Raises: Misuse: no ``kind`` of thing can have it."""
    from gasoline_es.core.ids import check_name
    from gasoline_es.errors import DefinitionError

    try:
        return check_name(kind, name)
    except DefinitionError as refused:
        raise Misuse(refused.message) from refused


def tags_of(tags: Sequence[str] | None) -> dict[str, str]:
    """Return tags by name. Raises: Misuse: one is none, or has two values."""
    wanted: dict[str, str] = {}
    for tag in tags or ():
        key, equals, value = tag.partition("=")
        if not equals:
            raise Misuse(f"--tag {tag!r} is not a tag: write it as --tag key=value")
        if wanted.setdefault(key, value) != value:
            raise Misuse(f"--tag {key!r} was given with two values, which nothing can match")
    return wanted


def time_range(since: str | None, until: str | None, older_than: str | None) -> tuple[int | None, int | None]:
    """Return from when on and before when, microseconds UTC. Raises: Misuse: one is no time, or nothing is between."""
    from gasoline_es.core.durations import MIN_US

    now_us = time.time_ns() // 1000
    since_us = None if since is None else _time_us("--since", since, now_us)
    ends = [] if until is None else [_time_us("--until", until, now_us)]
    if older_than is not None:
        if (age_us := _age_us(older_than)) is None:
            raise Misuse(f"--older-than {older_than!r} is no age: write it as 90s, 15m, 2h or 7d")
        ends.append(max(now_us - age_us, MIN_US))
    until_us = min(ends, default=None)
    if since_us is not None and until_us is not None and until_us <= since_us:
        raise Misuse("nothing is made since a time and before an earlier one: see --since, --until and --older-than")
    return since_us, until_us


def moment_of(option: str, text: str | None) -> int | None:
    """Return a time, or so long ago, in microseconds UTC. Raises: Misuse: it is none."""
    return None if text is None else _time_us(option, text, time.time_ns() // 1000)


def length_of(option: str, text: str | None) -> int | None:
    """Return a length of time in microseconds. Raises: Misuse: it is none, or nothing."""
    if text is None:
        return None
    if not (age_us := _age_us(text)):
        raise Misuse(f"{option} {text!r} is no length of time: write it as 90s, 15m, 2h or 7d")
    return age_us


def _age_us(text: str) -> int | None:
    match = _AGE.fullmatch(text)
    return None if match is None else int(match[1]) * _UNITS_US[match[2]]


def _time_us(option: str, text: str, now_us: int) -> int:
    from gasoline_es.core.durations import MIN_US, parse_time

    age_us = _age_us(text)
    if age_us is not None:
        return max(now_us - age_us, MIN_US)  # nothing is older
    try:
        return parse_time(text)
    except ValueError as error:
        raise Misuse(
            f"{option} {text!r} is no time: write an age such as 15m, 2h or 7d, or a time with its zone such as "
            "2026-01-01T00:00:00Z"
        ) from error


def json_of(what: str, text: str) -> bytes:
    """Return JSON as it is recorded; ``-`` is read from standard input. Raises: Misuse: it is none, or cannot be kept."""
    from gasoline_es.core.values import check_depth, dump_json, parse_json

    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise Misuse(f"{what}: what came from standard input is not UTF-8") from error
    try:
        raw = dump_json(parse_json(text.encode()))  # refuses what is no UTF-8, too
        check_depth(raw)
    except ValueError as error:
        raise Misuse(f"{what} is no JSON that can be kept: {error}. Text is JSON with its quotes: '\"42\"'") from error
    return raw
