"""Who works on a namespace: owners of partitions, and what processes tell about themselves, as a fold of one small topic.

``<ns>.workers`` has one partition and is compacted. Its keys:

* ``log``: which log this is; read when it is opened.
* ``owner/<partition>``: the newest epoch. It is written in a transaction of that partition's own transactional id, so that a
  fenced owner cannot write it.
* ``worker/<incarnation>``: a sign of life every few seconds; a tombstone when it leaves.

Who gives no sign of life is taken for dead. How long ago the last one came is measured by this process's own monotonic
clock, not by anybody's wall clock; only for what was there before it looked, the record's time says how old it is. That
clock stands still while this process hears nothing of the broker: in an outage everybody is silent, and nobody is dead.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from gasoline_es.engine_log import EngineLog
from gasoline_es.log.kafka.drivers.port import In
from gasoline_es.log.port import Epoch, Member, Owner

_log = EngineLog(__name__)

LOG_KEY: Final = b"log"


@dataclass(frozen=True, slots=True)
class Held:
    """The newest epoch of a partition."""

    epoch: int
    incarnation: str
    released: bool
    host: str
    pid: int

    def json(self) -> bytes:
        """Render it as the value of its record."""
        return json.dumps(
            {
                "epoch": self.epoch,
                "owner": self.incarnation,
                "released": self.released,
                "host": self.host,
                "pid": self.pid,
            },
            separators=(",", ":"),
        ).encode()


def owner_key(partition: int) -> bytes:
    """The key under which a partition's owner is told."""
    return b"owner/%d" % partition


def worker_key(incarnation: str) -> bytes:
    """The key of a process's signs of life."""
    return f"worker/{incarnation}".encode()


class Hearing:
    """A clock that stands still while this process hears nothing: it runs on for ``slack_s`` after it has last heard."""

    def __init__(self, slack_s: float, now_s: float) -> None:
        self._slack_s: Final = slack_s
        self._heard_s = now_s
        self._stood_s = 0.0

    def heard(self, now_s: float) -> None:
        """Note that everything that was told before this moment has come."""
        if now_s > self._heard_s:
            self._stood_s += max(now_s - self._heard_s - self._slack_s, 0.0)
            self._heard_s = now_s

    def stands(self, now_s: float) -> bool:
        """Whether it stands still now."""
        return now_s > self._heard_s + self._slack_s

    def at(self, now_s: float) -> float:
        """Return its time at a moment of the monotonic clock."""
        return min(now_s, self._heard_s + self._slack_s) - self._stood_s


@dataclass(slots=True)
class _Sign:
    """The last sign of life of a process: by the clock of hearing, and what it told."""

    seen_s: float
    about: Mapping[str, Any] | None
    host: str
    pid: int


class Who:
    """The fold. Any thread may use it."""

    def __init__(self, incarnation: str, silent_after_s: float, now_s: float | None = None) -> None:
        self._me: Final = incarnation
        self._silent_after_s: Final = silent_after_s
        self._hearing: Final = Hearing(silent_after_s / 2, time.monotonic() if now_s is None else now_s)
        self._lock: Final = threading.Lock()
        self._held: dict[int, Held] = {}
        self._signs: dict[str, _Sign] = {}

    def heard(self, now_s: float) -> None:
        """Note that everything that was told before this moment is folded."""
        with self._lock:
            self._hearing.heard(now_s)

    # --- folding ------------------------------------------------------------------------------------------------------

    def fold(self, record: In, now_s: float, age_s: float) -> bool:
        """Take a record; whether it tells more than that somebody lives on. ``age_s``: how long it has been on the broker.

        What is none of ours is passed over: in a compacted topic it stays, and would keep everybody out for good.
        """
        try:
            return self._fold(record, now_s, age_s)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            _log.warning(
                "a record of %s at offset %d is not what is written there, and is passed over: %s",
                record.feed.topic,
                record.offset,
                type(error).__name__,
                extra={"topic": record.feed.topic, "offset": record.offset, "error": repr(error)},
            )
            return False

    def _fold(self, record: In, now_s: float, age_s: float) -> bool:
        key = record.key or b""
        kind, _, name = key.partition(b"/")
        with self._lock:
            if kind == b"owner" and record.value is not None:
                return self._fold_owner(int(name), _read(record.value))
            if kind == b"worker":
                return self._fold_sign(
                    name.decode(errors="replace"), record.value, self._hearing.at(now_s) - max(age_s, 0.0)
                )
        return False

    def _fold_owner(self, partition: int, told: Mapping[str, Any]) -> bool:
        epoch, released = told["epoch"], told["released"]
        if type(epoch) is not int or epoch < 1 or type(released) is not bool or partition < 0:
            raise TypeError(f"no owner: epoch={epoch!r}, released={released!r}")
        host, pid = _process(told)
        held = Held(epoch, _text(told["owner"]), released, host, pid)
        before = self._held.get(partition)
        if before is None or held.epoch >= before.epoch:
            self._held[partition] = held
        return True

    def _fold_sign(self, incarnation: str, value: bytes | None, seen_s: float) -> bool:
        if value is None:
            return self._signs.pop(incarnation, None) is not None
        told = _read(value)
        before = self._signs.get(incarnation)
        about = told.get("about")
        if about is not None and not isinstance(about, dict):
            raise TypeError(f"nothing about a process: {about!r}")
        self._signs[incarnation] = _Sign(seen_s, cast(Mapping[str, Any] | None, about), *_process(told))
        return before is None or before.about != about or seen_s - before.seen_s >= self._silent_after_s

    # --- what is known ------------------------------------------------------------------------------------------------

    def held(self, partition: int) -> Held | None:
        """Return the newest epoch of a partition; None: it never had any."""
        return self._held.get(partition)

    def lives(self, incarnation: str, now_s: float) -> bool:
        """Whether a process gave a sign of life lately; this one does in any case."""
        if incarnation == self._me:
            return True
        sign = self._signs.get(incarnation)
        return sign is not None and self._hearing.at(now_s) - sign.seen_s < self._silent_after_s

    def living(self, now_s: float) -> frozenset[str]:
        """Return the other processes that live."""
        with self._lock:
            return frozenset(name for name in self._signs if name != self._me and self.lives(name, now_s))

    def silent_in(self, now_s: float) -> float | None:
        """Return in how many seconds the next of the other processes that live will be taken for dead; None: there is none."""
        with self._lock:
            left = [
                sign.seen_s + self._silent_after_s - self._hearing.at(now_s)
                for name, sign in self._signs.items()
                if name != self._me and self.lives(name, now_s)
            ]
            least = self._silent_after_s / 10 if self._hearing.stands(now_s) else 0.0
        return max(min(left), least) if left else None

    def owner(self, partition: int, now_s: float, *, mine: bool) -> Owner | None:
        """Return who holds a partition. ``mine``: this handle does, as far as it knows."""
        held = self._held.get(partition)
        if held is None:
            return None
        return Owner(
            partition=partition,
            epoch=Epoch(held.epoch),
            incarnation=held.incarnation,
            alive=self.lives(held.incarnation, now_s),
            mine=mine and held.incarnation == self._me and not held.released,
            released=held.released,
            host=held.host,
            pid=held.pid,
        )

    def members(self, now_s: float, own: Mapping[str, Any] | None) -> list[Member]:
        """Return the processes that live and have told something, by incarnation. ``own``: what this one tells."""
        with self._lock:
            found = [
                Member(name, sign.about, False, sign.host, sign.pid)
                for name, sign in self._signs.items()
                if sign.about is not None and name != self._me and self.lives(name, now_s)
            ]
        if own is not None:
            found.append(Member(self._me, own, True))
        return sorted(found, key=lambda member: member.incarnation)

    def others(self, now_s: float) -> list[Member]:
        """Return the other processes that live, by incarnation."""
        with self._lock:
            return [
                Member(name, sign.about or {}, False, sign.host, sign.pid)
                for name, sign in sorted(self._signs.items())
                if name != self._me and self.lives(name, now_s)
            ]


def _read(value: bytes) -> Mapping[str, Any]:
    told: Any = json.loads(value)
    if not isinstance(told, dict):
        raise TypeError(f"no object: {told!r}")
    return cast(Mapping[str, Any], told)


def _process(told: Mapping[str, Any]) -> tuple[str, int]:
    """Read on which host a process runs, and its id there."""
    pid = told.get("pid", 0)
    if type(pid) is not int:
        raise TypeError(f"no process: {pid!r}")
    return _text(told.get("host", "")), pid


def _text(told: object) -> str:
    if not isinstance(told, str):
        raise TypeError(f"no text: {told!r}")
    return told
