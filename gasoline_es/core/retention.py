"""What may be removed from a log: which records of a namespace's topics nobody needs any more (design §5, §8).

| topic | what goes |
|---|---|
| ``index``, ``registry`` | what a newer record of the same key stands for; a tombstone, once nothing older is left |
| ``schedules``, ``parked`` | the former life of a subject that began anew (its event 1 came once more) |
| ``inbox`` | what the owner has consumed, as its registry says: the log compares the positions |
| ``replies``, ``messages`` | by age |
| ``events`` | what lies before the newest mark of its workflow's pruning, which does not keep it; such a mark, as a tombstone |

All else stays: sequences of stored events, topics of others, and whatever bears no name of ours. Pure: the time comes in.

The last record of a partition of ``events`` and ``registry`` stays also where it is a tombstone: whoever folds stands at a
record, so a new fold that finds the last ones gone would never come to where an old one stood. (Kafka's cleaner leaves the
newest segment alone, so it is so there.)

Records are shown by the log in no promised order but for this: what is not sealed comes last. Nothing is given up for the
sake of a record that is not sealed; but while one is there that a tombstone takes back, the tombstone stays.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, cast

import orjson

from gasoline_es.core.ids import is_workflow_id
from gasoline_es.core.topics import is_reserved

TOMBSTONE: Final = "tombstone"
"""Nothing that it took back is left, and whoever might have missed it had time to hear of it."""
SUPERSEDED: Final = "superseded"
"""A newer record of the same key stands for it."""
RESTARTED: Final = "restarted"
"""Its subject began anew."""
EXPIRED: Final = "expired"
"""It is older than records of its topic are kept."""
PRUNED: Final = "pruned"
"""Its workflow was pruned."""

TOMBSTONES_S: Final = 24 * 3600.0
REPLIES_S: Final = 3600.0
MESSAGES_S: Final = 24 * 3600.0
_BY_KEY: Final = frozenset({"index", "registry"})
_STREAMS: Final = frozenset({"schedules", "parked"})
_BY_AGE: Final = frozenset({"replies", "messages"})
_MARK: Final = b'"gasoline.workflow.pruned.v1"'
_DIGITS_MAX: Final = 19
"""No number of an event has more."""
_POSITION_KEY: Final = "inbox/"

Feed = tuple[str, int]
"""A topic and one of its partitions."""


class Seen(Protocol):
    """A record as the log shows it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int | None: ...
    @property
    def key(self) -> str: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def time_us(self) -> int: ...


@dataclass(slots=True)
class _Newest:
    """The newest sealed record of a key. ``older``: some are left that it stands for."""

    offset: int
    tombstone_us: int | None
    older: bool = False


class _Mark(NamedTuple):
    """The newest mark of a workflow's pruning. ``gone_us``: when it was made, if it keeps nothing; None: it keeps some.

    ``keeps``: the numbers of events that stay. That the mark is the newest its offset says, whatever numbers older ones had.
    ``older``: something is left that it gave up.
    """

    offset: int
    gone_us: int | None
    keeps: tuple[int, ...] = ()
    older: bool = False

    def packed(self) -> bytes:
        """Return it in few bytes: there may be a million of them."""
        gone_us = -1 if self.gone_us is None else self.gone_us
        return struct.pack(f"<2q?{len(self.keeps)}q", self.offset, gone_us, self.older, *self.keeps)

    @classmethod
    def unpacked(cls, packed: bytes) -> _Mark:
        offset, gone_us, older, *keeps = struct.unpack(f"<2q?{(len(packed) - 17) // 8}q", packed)
        return cls(offset, None if gone_us < 0 else gone_us, tuple(keeps), older)


class _Marks:
    """The newest mark of each workflow of a partition of which the log holds one. Each takes about 200 bytes."""

    def __init__(self) -> None:
        self._packed: dict[bytes, bytes] = {}

    def get(self, workflow_id: str) -> _Mark | None:
        packed = self._packed.get(_key(workflow_id))
        return None if packed is None else _Mark.unpacked(packed)

    def put(self, workflow_id: str, mark: _Mark) -> None:
        self._packed[_key(workflow_id)] = mark.packed()

    def __iter__(self) -> Iterator[_Mark]:
        return map(_Mark.unpacked, self._packed.values())


@dataclass(slots=True)
class _Known:
    """What was observed of one topic's partition."""

    newest: dict[str, _Newest] = field(default_factory=dict[str, _Newest])
    begun: dict[str, int] = field(default_factory=dict[str, int])
    """Subject → the offset of the newest event 1 of it."""
    marks: _Marks = field(default_factory=_Marks)
    last: int = -1
    """The offset of the last record, sealed or not."""


class Retention:
    """The rules for one cleaning of a log, all namespaces of it (log port: ``Rules``).

    Kept in memory: one entry for each key of ``index`` and ``registry``, each subject beside workflows, and each workflow of
    whose pruning the mark is still there; nothing for events, commands, replies or messages.
    """

    def __init__(
        self,
        now_us: int,
        *,
        tombstones_s: float = TOMBSTONES_S,
        replies_s: float = REPLIES_S,
        messages_s: float = MESSAGES_S,
    ) -> None:
        """``now_us``: when it is. The rest: for how long what is of that kind is kept."""
        self._now_us: Final = now_us
        self._tombstones_us: Final = round(tombstones_s * 1e6)
        self._kept_us: Final = {"replies": round(replies_s * 1e6), "messages": round(messages_s * 1e6)}
        self._known: dict[Feed, _Known] = {}
        self._positions: dict[Feed, tuple[int, bytes]] = {}
        """Inbox → offset and value of the newest position that its owner has recorded."""
        self._reviewing = False
        """Whether everything is shown for the second time: to find out which marks of prunings stand for something."""

    # --- what there is ------------------------------------------------------------------------------------------------

    def observes(self, topic: str) -> bool:
        """Whether records of this topic are to be shown, in this pass."""
        kind = _kind(topic)
        if self._reviewing:
            return kind == "events"
        return kind in _BY_KEY or kind in _STREAMS or kind == "events"

    def observe(self, record: Seen, *, sealed: bool) -> None:
        """Take note of a record that counts."""
        if record.offset is None:
            return
        feed = record.topic, record.partition
        known = self._known.get(feed)
        if known is None:
            known = self._known[feed] = _Known()
        known.last = max(known.last, record.offset)
        kind = _kind(record.topic)
        if kind in _BY_KEY:
            self._observe_key(known, record, record.offset, sealed)
        elif kind in _STREAMS:
            subject, _, seq = record.key.rpartition("/")
            if sealed and seq == "1":
                known.begun[subject] = max(record.offset, known.begun.get(subject, -1))
        elif self._reviewing:
            workflow_id = record.key.rpartition("/")[0]
            mark = known.marks.get(workflow_id)
            if mark is not None and record.offset < mark.offset and not mark.older:
                known.marks.put(workflow_id, mark._replace(older=True))
        elif sealed:
            self._observe_event(known, record, record.offset)

    def _observe_key(self, known: _Known, record: Seen, offset: int, sealed: bool) -> None:
        newest = known.newest.get(record.key)
        if not sealed:
            if newest is not None and offset < newest.offset:
                newest.older = True
            return
        if newest is not None and offset < newest.offset:
            newest.older = True
            return
        tombstone_us = record.time_us if record.value is None else None
        known.newest[record.key] = _Newest(offset, tombstone_us, older=newest is not None)
        if record.key.startswith(_POSITION_KEY) and _kind(record.topic) == "registry" and record.value is not None:
            partition = record.key.removeprefix(_POSITION_KEY)
            if partition == str(record.partition):
                inbox = f"{record.topic.rpartition('.')[0]}.inbox"
                self._positions[inbox, record.partition] = offset, record.value

    def _observe_event(self, known: _Known, record: Seen, offset: int) -> None:
        if record.value is None or _MARK not in record.value:
            return
        workflow_id = record.key.rpartition("/")[0]
        try:
            event = cast(dict[str, Any], orjson.loads(record.value))
            if event["type"] != "gasoline.workflow.pruned.v1":
                return
            keeps = tuple(map(int, event["data"].get("keeps") or ()))
            mark = known.marks.get(workflow_id)
            if mark is None or mark.offset < offset:
                known.marks.put(workflow_id, _Mark(offset, None if keeps else record.time_us, keeps))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error):
            return  # whoever cannot read it gives up nothing for it

    def again(self) -> bool:
        """Whether all are to be shown once more: if the mark of a pruning is old enough to go, should nothing be left."""
        if self._reviewing:
            return False
        self._reviewing = any(
            mark.gone_us is not None and self._over(mark.gone_us)
            for known in self._known.values()
            for mark in known.marks
        )
        return self._reviewing

    def _over(self, time_us: int) -> bool:
        return time_us + self._tombstones_us <= self._now_us

    # --- what goes ----------------------------------------------------------------------------------------------------

    def judges(self, topic: str) -> bool:
        """Whether any record of this topic may ever be given up."""
        kind = _kind(topic)
        return kind == "inbox" or kind in _BY_KEY or kind in _STREAMS or kind in _BY_AGE or kind == "events"

    def gives_up(self, record: Seen) -> str | None:
        """Return why a record may go, None if it stays."""
        kind = _kind(record.topic)
        if kind in _BY_AGE:
            return EXPIRED if record.time_us + self._kept_us[kind] <= self._now_us else None
        known = self._known.get((record.topic, record.partition))
        if known is None or record.offset is None:
            return None
        if kind in _BY_KEY:
            if kind == "registry" and record.offset == known.last:
                return None
            return self._key_gives_up(known, record, record.offset)
        subject, _, seq = record.key.rpartition("/")
        if kind in _STREAMS:
            return RESTARTED if record.offset < known.begun.get(subject, -1) else None
        if kind == "events":
            return self._event_gives_up(known, subject, seq, record.offset)
        return None

    def _key_gives_up(self, known: _Known, record: Seen, offset: int) -> str | None:
        newest = known.newest.get(record.key)
        if newest is None or offset > newest.offset:
            return None
        if offset < newest.offset:
            return SUPERSEDED
        if newest.tombstone_us is not None and not newest.older and self._over(newest.tombstone_us):
            return TOMBSTONE
        return None

    def _event_gives_up(self, known: _Known, workflow_id: str, seq: str, offset: int) -> str | None:
        mark = known.marks.get(workflow_id)
        if mark is None or offset > mark.offset or not seq.isdecimal() or len(seq) > _DIGITS_MAX:
            return None
        if offset < mark.offset:
            return None if int(seq) in mark.keeps else PRUNED
        if offset == known.last:
            return None
        gone_us = mark.gone_us
        return TOMBSTONE if gone_us is not None and not mark.older and self._reviewed(gone_us) else None

    def _reviewed(self, gone_us: int) -> bool:
        return self._reviewing and self._over(gone_us)

    def consumed(self, topic: str, partition: int) -> Mapping[str, Any] | None:
        """Return the position up to which the owner has consumed an inbox, as it recorded; None: it is not known."""
        found = self._positions.get((topic, partition))
        return None if found is None else cast(dict[str, Any], orjson.loads(found[1]))


def _key(workflow_id: str) -> bytes:
    """Return an id in sixteen bytes; what is none, in more."""
    if is_workflow_id(workflow_id):
        return bytes.fromhex(workflow_id.replace("-", ""))
    return bytes(17) + workflow_id.encode(errors="surrogatepass")


def _kind(topic: str) -> str:
    """Return what kind of a namespace's topics it is; "": none."""
    return topic.rpartition(".")[2] if is_reserved(topic) else ""
