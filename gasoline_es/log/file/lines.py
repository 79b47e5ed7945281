"""The bytes of a segment: header lines and record lines, encoded and decoded. No I/O here.

Layout of a segment (filelog.md §2). Every line is JSON in UTF-8 and ends with one line feed; members come in this order::

    {"segment":42,"writer":"<incarnation>","namespace":"shop","follows":{"segment":41,"batch":4710},"started":T,"head":"H"}
    {"batch":4711,"prev":"D","sections":[S,…],"head":"H"}
    {"topic":"shop.events","partition":3,"offset":120,"key":"0198…/5","time":T,"headers":{…},"value":{…}}
    …the other records of the batch, section after section, group after group…
    {"batch":4712,…

    S   {"partition":3,"epoch":17,"begin":B,"release":true,"records":[G,…],"bytes":812,"sha256":"D"}
        `epoch` null: a client's commands. `begin` and `release` only where they apply.
    B   {"after":{"epoch":16,"segment":41,"batch":4710},"offsets":{"shop.events":120}}   `after` null: the first epoch
    G   [topic, partition, offset of the first record (null in a many-writer topic), number of records]
    H   the first 16 hex digits of the sha-256 of the line's bytes before `,"head":`
    D   64 hex digits. Of a section: the sha-256 of its record lines' sha-256s (raw, one after the other; a line without
        its line feed). Of a header line (`prev`): the sha-256 of which `head` shows the first 16 digits.
    T   microseconds since 1970, UTC

`follows` is null in a writer's first segment; batch numbers go on from one segment of a writer to its next. `bytes` counts
the section's record lines with their line feeds. `headers` is there only when the record has any.

The cleaner adds one member to the header lines of a segment that it writes anew, before their `head` (compacted.py). What
stands before that member is what the writer wrote, and its sha-256 is still the line's digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, cast

from pydantic_core import from_json

from gasoline_es.log.file.compacted import (
    COMPACTED,
    KEPT,
    Compacted,
    KeptLines,
    as_written,
    decode_compacted,
    decode_kept,
)

HEAD_BYTES: Final = len(b',"head":"0123456789abcdef"}')


class Place(NamedTuple):
    """A batch of a segment. Places of one writer are ordered."""

    segment: int
    batch: int


class Group(NamedTuple):
    """A run of record lines of one topic and partition; ``offset`` is the first one's, None in a many-writer topic."""

    topic: str
    partition: int
    offset: int | None
    size: int


class Piece(NamedTuple):
    """Lines of a group that follow each other in the file. ``line``: which of the section's lines there the first one is.

    ``number``: which one it was as the section was written. Both are the same where nothing was removed.
    """

    group: Group
    line: int
    number: int


@dataclass(frozen=True, slots=True)
class After:
    """The end of the epoch before: its writer's last published batch as the taker read it."""

    epoch: int
    place: Place


@dataclass(frozen=True, slots=True)
class Begin:
    """What makes an epoch count: where the one before ends, and the offset each topic goes on from."""

    after: After | None
    offsets: Mapping[str, int]


@dataclass(slots=True)
class SectionHeader:
    """One section as its batch header declares it. ``bytes``: of the lines that are there."""

    partition: int
    epoch: int | None
    begin: Begin | None
    release: bool
    groups: tuple[Group, ...]
    bytes: int
    sha256: str
    kept: KeptLines | None = None
    """Which of the lines are still there; None: all."""

    @property
    def record_count(self) -> int:
        """Return how many record lines the section was written with."""
        return sum(group.size for group in self.groups)

    @property
    def line_count(self) -> int:
        """Return how many record lines are there."""
        return self.record_count if self.kept is None else self.kept.count

    def pieces(self) -> list[Piece]:
        """Return the lines that are there, by group."""
        pieces: list[Piece] = []
        number = 0
        if self.kept is None:
            for group in self.groups:
                pieces.append(Piece(group, number, number))
                number += group.size
            return pieces
        line = 0
        runs = self.kept.runs
        for group in self.groups:
            end = number + group.size
            for first, count in runs:
                start, stop = max(first, number), min(first + count, end)
                if start < stop:
                    offset = None if group.offset is None else group.offset + start - number
                    pieces.append(Piece(Group(group.topic, group.partition, offset, stop - start), line, start))
                    line += stop - start
            number = end
        return pieces


@dataclass(slots=True)
class BatchHeader:
    """A batch header line. ``position`` is its first byte, ``body`` the first byte of its records, ``end`` after them."""

    number: int
    prev: str
    digest: str
    sections: tuple[SectionHeader, ...]
    position: int = 0
    body: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """A segment's first line. ``bytes`` is its length with the line feed."""

    number: int
    writer: str
    namespace: str
    follows: Place | None
    started_us: int
    digest: str = ""
    bytes: int = 0
    compacted: Compacted | None = None
    """What the cleaner says of the segment, if it wrote it anew: then the file counts as it is, and as a whole."""


class BadLine(Exception):
    """A complete line is not what a writer wrote."""


# --- encoding ---------------------------------------------------------------------------------------------------------


def with_head(core: bytes) -> tuple[bytes, str]:
    """Return the whole header line for ``core`` (its bytes before the head), and the line's digest."""
    digest = sha256(core).hexdigest()
    return b'%b,"head":"%b"}\n' % (core, digest[:16].encode()), digest


def encode_segment_header(header: SegmentHeader) -> tuple[bytes, str]:
    """Return a segment's first line and its digest."""
    follows = "null" if header.follows is None else _encode_place(header.follows)
    core = (
        f'{{"segment":{header.number},"writer":{encode_basestring(header.writer)}'
        f',"namespace":{encode_basestring(header.namespace)},"follows":{follows},"started":{header.started_us}'
    )
    return with_head(core.encode())


def _encode_place(place: Place) -> str:
    return f'{{"segment":{place.segment},"batch":{place.batch}}}'


def lines_digest(lines: Sequence[bytes]) -> str:
    """Return a section's digest."""
    return sha256(b"".join([sha256(line).digest() for line in lines])).hexdigest()


def encode_begin(begin: Begin) -> str:
    """Return a begin as JSON text."""
    after = "null"
    if begin.after is not None:
        after = (
            f'{{"epoch":{begin.after.epoch},"segment":{begin.after.place.segment},"batch":{begin.after.place.batch}}}'
        )
    offsets = ",".join(f"{encode_basestring(topic)}:{begin.offsets[topic]}" for topic in sorted(begin.offsets))
    return f'{{"after":{after},"offsets":{{{offsets}}}}}'


@lru_cache(maxsize=1024)
def record_prefix(topic: str, partition: int) -> bytes:
    """Return the bytes that every record line of a topic's partition starts with."""
    return f'{{"topic":{encode_basestring(topic)},"partition":{partition},"offset":'.encode()


# --- decoding ---------------------------------------------------------------------------------------------------------


def is_header_line(line: bytes, digest: str) -> bool:
    """Return whether this is the header line of that digest; ``line`` with its line feed."""
    return with_head(line[: -HEAD_BYTES - 1]) == (line, digest)


def _checked(line: bytes) -> tuple[dict[str, Any], str]:
    """Return a header line's members and its digest; ``line`` without its line feed."""
    core = line[:-HEAD_BYTES]
    digest = sha256(core).hexdigest()
    if line[-HEAD_BYTES:] != b',"head":"%b"}' % digest[:16].encode():
        raise BadLine("a header line fails its digest")
    try:
        members = from_json(line)
    except ValueError as error:
        raise BadLine("a header line is not JSON") from error
    if not isinstance(members, dict):
        raise BadLine("a header line is not a JSON object")
    return cast(dict[str, Any], members), digest


def _digest_as_written(line: bytes, member: bytes) -> str:
    """Return the digest that a header line had before the cleaner added a member to it."""
    return sha256(as_written(line, member)).hexdigest()


def decode_segment_header(line: bytes) -> SegmentHeader:
    """Return a segment's header from its first line, without the line feed. Raises: BadLine."""
    members, digest = _checked(line)
    try:
        follows = members["follows"]
        compacted = members.get("compacted")
        if compacted is not None:
            digest = _digest_as_written(line, COMPACTED)
        return SegmentHeader(
            number=members["segment"],
            writer=members["writer"],
            namespace=members["namespace"],
            follows=None if follows is None else Place(follows["segment"], follows["batch"]),
            started_us=members["started"],
            digest=digest,
            bytes=len(line) + 1,
            compacted=None if compacted is None else decode_compacted(compacted),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadLine("a segment header lacks a member") from error


def decode_batch_header(line: bytes, position: int) -> BatchHeader:
    """Return a batch's header from its line, without the line feed, that starts at ``position``. Raises: BadLine."""
    members, digest = _checked(line)
    try:
        sections = tuple([_decode_section(section) for section in members["sections"]])
        if (kept := members.get("kept")) is not None:
            digest = _digest_as_written(line, KEPT)
            for section, told in zip(sections, kept, strict=True):
                section.kept = decode_kept(told, section.record_count)
                if section.kept is not None:
                    section.bytes = section.kept.size
        body = position + len(line) + 1
        return BatchHeader(
            number=members["batch"],
            prev=members["prev"],
            digest=digest,
            sections=sections,
            position=position,
            body=body,
            end=body + sum([section.bytes for section in sections]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadLine("a batch header lacks a member") from error


def _decode_section(members: dict[str, Any]) -> SectionHeader:
    begin = members.get("begin")
    return SectionHeader(
        partition=members["partition"],
        epoch=members["epoch"],
        begin=None if begin is None else decode_begin(begin),
        release=members.get("release", False),
        groups=tuple([Group(*group) for group in members["records"]]),
        bytes=members["bytes"],
        sha256=members["sha256"],
    )


def begin_members(begin: Begin) -> dict[str, Any]:
    """Return a begin as JSON values, for the index."""
    return cast(dict[str, Any], json.loads(encode_begin(begin)))


def decode_begin(members: dict[str, Any]) -> Begin:
    """Return the begin of a section header's or :func:`begin_members`' JSON values."""
    after = members["after"]
    return Begin(
        after=None if after is None else After(after["epoch"], Place(after["segment"], after["batch"])),
        offsets=members["offsets"],
    )
