"""What the cleaner adds to the header lines of a segment that it writes anew. No I/O here.

Each line stays as it was written, with one member more before its `head`, which is of the whole line again::

    {"segment":42,…,"started":T,"compacted":C,"head":"H"}
    {"batch":4711,"prev":"D","sections":[S,…],"kept":[K,…],"head":"H"}

    C   {"bytes":N,"batch":4790,"batches":80,"records":812,"digest":"D","was":[bytes,records]}
        `bytes`: of the whole file, with this line. `batch`, `digest`: of the last batch, as it was written. `batches`: how many
        there were. `records`: how many are left. `was`: bytes and records, as the segment was written.
        Where no record is left, the batches are not either, and C ends with
        "epochs":[[partition,epoch,[begin,batch] or null,released,{topic:next offset}],…]: what their headers said of epochs.
    K   of each section: true: all of its lines are there. false: none is. Otherwise
        {"bytes":N,"lines":[[first,count],…],"removed":"D…"}: the lines that are left, by their numbers among those that
        were written (from 0), how long they are, and the sha-256s of all that are not, in order, in hex.
    D   as in lines.py. The digest of a line is of what stands before the member, so `prev` goes on as it was written, and a
        section's `sha256` is that of the lines that are left and the digests of those that are not, in their order.

A batch of which all is left, and that has no member more, is as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, cast

COMPACTED: Final = b',"compacted":'
KEPT: Final = b',"kept":'
"""Neither can stand within a JSON text: a quote is escaped there."""
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class KeptLines:
    """Which lines of a section are left: ``runs`` of (first, count), ascending. ``removed``: digests of the others, raw.

    ``removed`` is empty where no line is left: the digest of the whole section stands for them.
    """

    runs: tuple[tuple[int, int], ...]
    size: int
    """How many bytes they take, with their line feeds."""
    removed: bytes

    @property
    def count(self) -> int:
        """Return how many lines are left."""
        return sum(count for _, count in self.runs)


NOTHING: Final = KeptLines((), 0, b"")


@dataclass(frozen=True, slots=True)
class Compacted:
    """What the header of a compacted segment says. ``epochs``: None unless nothing is left of its batches."""

    bytes: int
    batch: int
    batches: int
    records: int
    digest: str
    was_bytes: int
    was_records: int
    epochs: Sequence[Any] | None = None


def with_member(core: bytes, member: bytes, value: Any) -> bytes:
    """Return a header line with one member more, with its head and its line feed. ``core``: its bytes as written."""
    line = core + member + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return b'%b,"head":"%b"}\n' % (line, sha256(line).hexdigest()[:16].encode())


def as_written(line: bytes, member: bytes) -> bytes:
    """Return a header line's bytes before its head, and before the member if it has that one."""
    core, found, _ = line.rpartition(member)
    return core if found else line.rpartition(b',"head":')[0]


def encode_compacted(compacted: Compacted) -> dict[str, Any]:
    """Return what a segment header says, as JSON values."""
    members: dict[str, Any] = {
        "bytes": compacted.bytes,
        "batch": compacted.batch,
        "batches": compacted.batches,
        "records": compacted.records,
        "digest": compacted.digest,
        "was": [compacted.was_bytes, compacted.was_records],
    }
    if compacted.epochs is not None:
        members["epochs"] = compacted.epochs
    return members


def decode_compacted(members: Mapping[str, Any]) -> Compacted:
    """Return the same, read back. Raises: KeyError, TypeError, ValueError."""
    was_bytes, was_records = members["was"]
    numbers = (members["bytes"], members["batch"], members["batches"], members["records"], was_bytes, was_records)
    if not all(type(number) is int for number in numbers):
        raise TypeError("a number is not one")
    size, batch, batches, records, *_ = numbers
    return Compacted(size, batch, batches, records, members["digest"], was_bytes, was_records, members.get("epochs"))


def encode_kept(kept: KeptLines | None) -> Any:
    """Return what a batch header says of a section's lines, as JSON values; None: all are left."""
    if kept is None:
        return True
    if not kept.runs:
        return False
    return {"bytes": kept.size, "lines": [list(run) for run in kept.runs], "removed": kept.removed.hex()}


def decode_kept(value: Any, written: int) -> KeptLines | None:
    """Return the same, read back; ``written``: how many lines there were. Raises: ValueError, KeyError, TypeError."""
    if value is True:
        return None
    if value is False:
        return NOTHING
    members = cast(dict[str, Any], value)
    runs = tuple([(int(first), int(count)) for first, count in members["lines"]])
    removed = bytes.fromhex(members["removed"])
    end = 0
    for first, count in runs:
        if first < end or count < 1:
            raise ValueError("the lines that are left are not in order")
        end = first + count
    kept = KeptLines(runs, int(members["bytes"]), removed)
    if not runs or end > written or len(removed) != (written - kept.count) * _DIGEST_BYTES:
        raise ValueError("the lines that are left and those that are not do not make up the section")
    return kept


def merged_digests(kept: KeptLines, left: Sequence[bytes]) -> list[bytes]:
    """Return the digests of all lines of a section in their order; ``left``: those of the lines that are there."""
    digests: list[bytes] = []
    line = gone = at = 0
    for first, count in kept.runs:
        while at < first:
            digests.append(kept.removed[gone : gone + _DIGEST_BYTES])
            gone += _DIGEST_BYTES
            at += 1
        digests += left[line : line + count]
        line += count
        at += count
    for start in range(gone, len(kept.removed), _DIGEST_BYTES):
        digests.append(kept.removed[start : start + _DIGEST_BYTES])
    return digests


def runs_of(mask: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the runs of what is not 0 in a mask."""
    runs: list[tuple[int, int]] = []
    start = -1
    for at, one in enumerate(mask):
        if one and start < 0:
            start = at
        elif not one and start >= 0:
            runs.append((start, at - start))
            start = -1
    if start >= 0:
        runs.append((start, len(mask) - start))
    return tuple(runs)
