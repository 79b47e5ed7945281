"""Wakes or recovers every dead workflow that matches: a deed for an operator, once the cause is mended (semantics.md §7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gasoline_es.core.commands import Revive
from gasoline_es.core.filters import Filters
from gasoline_es.core.ids import check_name
from gasoline_es.core.state import Summary, created
from gasoline_es.runtime.calls import Calls
from gasoline_es.runtime.node import Node

AT_A_TIME: Final = 100
"""So many are woken by one call of the log: durable together, before the next are asked for."""
ERRORS_SHOWN_MAX: Final = 20
"""So many different errors are told, the commonest first."""
ERROR_CHARACTERS_MAX: Final = 200

Progress = Callable[[int, int], None]
"""Told how many of how many were asked for, after each step."""


@dataclass(frozen=True, slots=True)
class ReviveInfo:
    """What a revival did, or with ``dry_run`` would do.

    ``ids``: of the workflows that were woken (with ``recover``: recovered), in order of their creation. ``names``: how many
    of each name they are. ``errors``: how many had died of each error, as its text (cut at 200 characters), the commonest 20.
    ``passed``: how many had matched, but were dead of that no more when they had their turn: somebody else had woken or ended
    them; or they could not be recovered, as they were rolled back since. ``final``: of those in ``ids``, how many had died of
    a final failure of an activity; unless they are recovered they die of it again. ``left``: with ``recover``, how many match
    and were left alone, dead, as they died of something else.
    """

    dry_run: bool
    ids: tuple[str, ...]
    names: Mapping[str, int]
    errors: Mapping[str, int]
    passed: int = 0
    final: int = 0
    left: int = 0


def check_revival(name: str | None, error: str | None) -> Filters:
    """Return which workflows are to be woken. Raises: ValueError, TypeError, DefinitionError: that says nothing usable."""
    if name is None and error is None:
        raise ValueError(
            'revive which? Give `name=` (of the workflow) or `error=` (a part of the error\'s text); `error=""` is every dead '
            "one"
        )
    if name is not None:
        check_name("workflow", name)
    if error is not None and type(error) is not str:
        raise TypeError(f"error is a part of an error's text, not {error!r}")
    return Filters(name=name, status="dead", error=error)


async def revive(
    node: Node, calls: Calls, by: str, wanted: Filters, progress: Progress | None, *, recover: bool = False
) -> ReviveInfo:
    """Wake or recover those that match now, some at a time. Each is looked at again where its partition's owner decides it.

    Raises: NoOwner, LogError: as of any call. Those of the times before are woken, and do not match any more.
    """
    matching = await dead_ones(node, wanted)
    dead = fit(matching, recover=recover)
    woken: list[Summary] = []
    if progress is not None:
        progress(0, len(dead))
    for first in range(0, len(dead), AT_A_TIME):
        some = dead[first : first + AT_A_TIME]
        replies = await calls.decide_many([Revive(one.id, by, wanted.error or "", recover) for one in some])
        for one, reply in zip(some, replies, strict=True):
            if reply.error is not None:
                raise reply.error
            if reply.created:
                woken.append(one)
        if progress is not None:
            progress(first + len(some), len(dead))
    left = len(matching) - len(dead)
    return told(woken, dry_run=False, passed=len(dead) - len(woken), left=left)


def fit(dead: list[Summary], *, recover: bool) -> list[Summary]:
    """Return those that can be woken, which are all; or be recovered, which are those that died of an activity's failure."""
    return [one for one in dead if one.failures] if recover else dead


async def dead_ones(node: Node, wanted: Filters) -> list[Summary]:
    """Return where those stand that match now, as of what is durable, in order of their creation."""
    found: list[Summary] = []
    current = await node.viewing.asked()
    for index in range(node.log.partition_count):
        # As they stand now: what they died of is told, and that is gone once they are woken.
        found += [one.copy() for one in (await node.viewing.views(index, current)).matching(wanted)]
    return sorted(found, key=created)


def told(workflows: list[Summary], *, dry_run: bool, passed: int = 0, left: int = 0) -> ReviveInfo:
    """Say it of these workflows."""
    errors = Counter(str(one.error)[:ERROR_CHARACTERS_MAX] for one in workflows)
    return ReviveInfo(
        dry_run=dry_run,
        ids=tuple(one.id for one in workflows),
        names=dict(Counter(one.name for one in workflows).most_common()),
        errors=dict(errors.most_common(ERRORS_SHOWN_MAX)),
        passed=passed,
        final=sum(one.failures > 0 for one in workflows),
        left=left,
    )
