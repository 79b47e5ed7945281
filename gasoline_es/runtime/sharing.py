"""How workers share the partitions of a log: who drives how many, and what a worker gives up (semantics.md §8, design §5).

Nobody assigns anything. Every worker tells the others its version and its weight, sees the same members as they do, and
computes the same shares from that. One that holds more than its share releases what it can spare; one that holds less takes
what is free. All here is pure: ``runtime.rebalancing`` looks and acts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from gasoline_es.log.port import Member, about_json

WEIGHT_LEAST: Final = 0.125
"""A worker under pressure takes at least an eighth of what it would take otherwise."""
PRESSURE_LAG_S: Final = 0.25
"""An event loop that comes so much too late, again and again, has more to do than it can."""
SHED_AFTER_S: Final = 5.0
"""For how long it has to be late before the worker gives anything up."""
TAKE_BACK_AFTER_S: Final = 60.0
"""For how long it has to be in time before the worker takes more again."""


BY_BYTES_MAX: Final = 120
"""What holds a worker up is told in so many bytes of JSON at most: a log takes little about a process."""


@dataclass(frozen=True, slots=True)
class HeldUp:
    """A worker's event loop stands still. ``since_us``: wall-clock time. ``by``: what holds it up and where, for people."""

    since_us: int
    by: str

    def json(self) -> dict[str, Any]:
        """Render it; of what is too long the end is kept, where the place is."""
        by = self.by
        while len(json.dumps(by)) > BY_BYTES_MAX:
            by = f"…{by[2:]}"
        return {"since": self.since_us, "by": by}

    @classmethod
    def of(cls, told: Any) -> Self | None:
        """Read what :meth:`json` rendered; None: it is nothing of the kind."""
        try:
            since_us, by = told["since"], told["by"]
        except (TypeError, KeyError):
            return None
        return cls(since_us, by) if type(since_us) is int and type(by) is str else None


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker that takes part in the sharing."""

    incarnation: str
    version: int
    weight: float
    held_up: HeldUp | None = None
    pipelines: tuple[str, ...] | None = None
    """The names by which it ingests; None: they are too many to be told."""

    def about(self) -> dict[str, Any]:
        """What it tells the others about itself: no more than the log's :meth:`~Log.announce` takes."""
        told: dict[str, Any] = {"version": self.version, "weight": self.weight}
        if self.held_up is not None:
            told["held_up"] = self.held_up.json()
        if self.pipelines is not None:
            told["pipelines"] = self.pipelines
            try:
                about_json({"worker": told})
            except ValueError:  # too much for the log
                del told["pipelines"]
        return {"worker": told}

    @classmethod
    def of(cls, member: Member) -> Self | None:
        """Return the worker that a member is; None: it is none, or tells what this version does not understand."""
        told: Any = member.about.get("worker")
        try:
            version, weight = told["version"], float(told["weight"])
        except (TypeError, KeyError, ValueError):
            return None
        if type(version) is not int or not WEIGHT_LEAST <= weight <= 1.0:
            return None
        names = told.get("pipelines")
        pipelines = tuple(map(str, names)) if type(names) in (list, tuple) else None
        return cls(member.incarnation, version, weight, HeldUp.of(told.get("held_up")), pipelines)


def peers_of(members: Sequence[Member]) -> list[Peer]:
    """Return the workers among the members."""
    return [peer for member in members if (peer := Peer.of(member)) is not None]


def shares(peers: Sequence[Peer], partitions: int) -> Mapping[str, int]:
    """Return how many partitions each worker is to drive, by incarnation; the sum is all of them, if there are any workers.

    Those of the newest version share by weight; the others get nothing, so that what new code has recorded is not replayed by
    old code. What does not divide goes to the largest remainders, among equals to the first by incarnation: all compute alike.
    """
    newest = max((peer.version for peer in peers), default=0)
    given = {peer.incarnation: 0 for peer in peers}
    sharing = sorted((peer for peer in peers if peer.version == newest), key=lambda peer: peer.incarnation)
    total = sum(peer.weight for peer in sharing)
    remainders: list[tuple[float, str]] = []
    for peer in sharing:
        exact = partitions * peer.weight / total
        given[peer.incarnation] = int(exact)
        remainders.append((int(exact) - exact, peer.incarnation))
    for _, incarnation in sorted(remainders)[: partitions - sum(given.values())] if sharing else ():
        given[incarnation] += 1
    return given


class Pressure:
    """Tells by how late the event loop comes whether a worker has more to do than it can, and how much less it is to take.

    Its weight halves whenever it was late for ``SHED_AFTER_S`` without a break, and doubles whenever it was in time for
    ``TAKE_BACK_AFTER_S``: quick to give, slow to take, so that partitions do not go to and fro.
    """

    def __init__(self) -> None:
        self.weight = 1.0
        self._late = False
        self._since: float | None = None
        """Since when it is so."""

    def observe(self, lag_s: float, now_s: float) -> bool:
        """Note by how much the loop came too late, by a monotonic clock; return whether the weight has changed."""
        late = lag_s >= PRESSURE_LAG_S
        if self._since is None or late is not self._late:
            self._late, self._since = late, now_s
            return False
        if now_s - self._since < (SHED_AFTER_S if late else TAKE_BACK_AFTER_S):
            return False
        before, self._since = self.weight, now_s
        self.weight = max(self.weight / 2, WEIGHT_LEAST) if late else min(self.weight * 2, 1.0)
        return self.weight != before
