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
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, cast

from pydantic_core import from_json

from gasoline_es.errors import RecordTooLarge
from gasoline_es.log.port import RECORD_BYTES_MAX, NewRecord, Offset, Record

HEAD_BYTES: Final = len(b',"head":"0123456789abcdef"}')
_DECODER: Final = json.JSONDecoder()


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
    """One section as its batch header declares it."""

    partition: int
    epoch: int | None
    begin: Begin | None
    release: bool
    groups: tuple[Group, ...]
    bytes: int
    sha256: str

    @property
    def record_count(self) -> int:
        """Return how many record lines the section has."""
        return sum(group.size for group in self.groups)


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


@dataclass(slots=True)
class Draft:
    """A section about to be written."""

    partition: int
    epoch: int | None
    records: Sequence[NewRecord]
    begin: Begin | None = None
    release: bool = False
    header: bytes = b""
    lines: list[bytes] = field(default_factory=list[bytes])
    firsts: dict[str, int] = field(default_factory=dict[str, int])
    ends: dict[str, int] = field(default_factory=dict[str, int])


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


def encode_batch(number: int, prev: str, drafts: Sequence[Draft]) -> tuple[bytes, str]:
    """Return a batch's bytes, header line and record lines, and its digest. The drafts are encoded (:func:`encode_draft`)."""
    core = b'{"batch":%d,"prev":"%b","sections":[%b]' % (
        number,
        prev.encode(),
        b",".join([draft.header for draft in drafts]),
    )
    line, digest = with_head(core)
    # One join: a copy of a large batch costs as much as its digest.
    parts = [line[:-1]]
    for draft in drafts:
        parts.extend(draft.lines)
    parts.append(b"")
    return b"\n".join(parts), digest


def encode_draft(draft: Draft, namespace: str, ends: Mapping[str, int]) -> None:
    """Encode a section's records and its header entry into ``draft``; ``ends`` says what offset each topic goes on from.

    Raises: RecordTooLarge; ValueError for a value that has a line feed or a text that is not UTF-8.
    """
    groups: list[str] = []
    lines: list[bytes] = []
    draft.lines = lines
    for (topic, partition), records in _by_topic(draft.records).items():
        first: int | None = None
        if single_writer(topic, partition, draft, namespace):
            first = ends.get(topic, 0)
            draft.firsts[topic] = first
            draft.ends[topic] = first + len(records)
        _encode_records(topic, partition, first, records, lines)
        groups.append(f"[{encode_basestring(topic)},{partition},{'null' if first is None else first},{len(records)}]")
    header = f'{{"partition":{draft.partition},"epoch":{"null" if draft.epoch is None else draft.epoch}'
    if draft.begin is not None:
        header += f',"begin":{_encode_begin(draft.begin)}'
    if draft.release:
        header += ',"release":true'
    size = sum(map(len, lines)) + len(lines)
    header += f',"records":[{",".join(groups)}],"bytes":{size},"sha256":"{lines_digest(lines)}"}}'
    draft.header = header.encode()


def single_writer(topic: str, partition: int, draft: Draft, namespace: str) -> bool:
    """Return whether a record of the section gets an offset (see the log port)."""
    return draft.epoch is not None and partition == draft.partition and topic.startswith(namespace + ".")


def lines_digest(lines: Sequence[bytes]) -> str:
    """Return a section's digest."""
    return sha256(b"".join([sha256(line).digest() for line in lines])).hexdigest()


def _by_topic(records: Sequence[NewRecord]) -> dict[tuple[str, int], list[NewRecord]]:
    groups: dict[tuple[str, int], list[NewRecord]] = {}
    topic, partition = "", -1
    group: list[NewRecord] = []
    for record in records:
        if record.topic != topic or record.partition != partition:
            topic, partition = record.topic, record.partition
            group = groups.setdefault((topic, partition), [])
        group.append(record)
    return groups


def _encode_begin(begin: Begin) -> str:
    after = "null"
    if begin.after is not None:
        after = (
            f'{{"epoch":{begin.after.epoch},"segment":{begin.after.place.segment},"batch":{begin.after.place.batch}}}'
        )
    offsets = ",".join(f"{encode_basestring(topic)}:{begin.offsets[topic]}" for topic in sorted(begin.offsets))
    return f'{{"after":{after},"offsets":{{{offsets}}}}}'


def _prefix(topic: str, partition: int) -> bytes:
    return f'{{"topic":{encode_basestring(topic)},"partition":{partition},"offset":'.encode()


def _encode_records(
    topic: str, partition: int, first: int | None, records: Sequence[NewRecord], lines: list[bytes]
) -> None:
    prefix = _prefix(topic, partition)
    null = prefix + b"null"
    for index, record in enumerate(records):
        value = record.value
        if value is None:
            value = b"null"
        elif b"\n" in value:
            raise ValueError(f"the value of record {record.key!r} for topic {topic!r} has a line feed")
        headers = b""
        if record.headers:
            text = json.dumps(dict(record.headers), ensure_ascii=False, separators=(",", ":"))
            headers = b',"headers":%b' % text.encode()
        line = b'%b,"key":%b,"time":%d%b,"value":%b}' % (
            null if first is None else b"%b%d" % (prefix, first + index),
            encode_basestring(record.key).encode(),
            record.time_us,
            headers,
            value,
        )
        if len(line) > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"a record for topic {topic!r}, key {record.key!r}, takes {len(line)} bytes; "
                f"the limit is {RECORD_BYTES_MAX}: keep large values elsewhere and record where",
                topic=topic,
                partition=partition,
                key=record.key,
                bytes=len(line),
            )
        lines.append(line)


# --- decoding ---------------------------------------------------------------------------------------------------------


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


def decode_segment_header(line: bytes) -> SegmentHeader:
    """Return a segment's header from its first line, without the line feed. Raises: BadLine."""
    members, digest = _checked(line)
    try:
        follows = members["follows"]
        return SegmentHeader(
            number=members["segment"],
            writer=members["writer"],
            namespace=members["namespace"],
            follows=None if follows is None else Place(follows["segment"], follows["batch"]),
            started_us=members["started"],
            digest=digest,
            bytes=len(line) + 1,
        )
    except (KeyError, TypeError) as error:
        raise BadLine("a segment header lacks a member") from error


def decode_batch_header(line: bytes, position: int) -> BatchHeader:
    """Return a batch's header from its line, without the line feed, that starts at ``position``. Raises: BadLine."""
    members, digest = _checked(line)
    try:
        sections = tuple([_decode_section(section) for section in members["sections"]])
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
    return cast(dict[str, Any], json.loads(_encode_begin(begin)))


def decode_begin(members: dict[str, Any]) -> Begin:
    """Return the begin of a section header's or :func:`begin_members`' JSON values."""
    after = members["after"]
    return Begin(
        after=None if after is None else After(after["epoch"], Place(after["segment"], after["batch"])),
        offsets=members["offsets"],
    )


class Body(NamedTuple):
    """A section's record lines, checked: line ``i`` ends before the line feed at ``ends[i]``.

    The lines stay in one piece: splitting them would copy every byte once more, which costs a scan a third of its rate.
    """

    data: bytes
    ends: list[int]


def check_body(data: bytes, section: SectionHeader) -> Body:
    """Return a section's record lines after checking them against its digest and count. Raises: BadLine."""
    view = memoryview(data)
    find = data.find
    ends: list[int] = []
    digests: list[bytes] = []
    start = 0
    size = len(data)
    while start < size:
        end = find(b"\n", start)
        if end < 0:
            raise BadLine("a section's last record has no line feed")
        digests.append(sha256(view[start:end]).digest())
        ends.append(end)
        start = end + 1
    if sha256(b"".join(digests)).hexdigest() != section.sha256:
        raise BadLine("a section's records fail their digest")
    if len(ends) != section.record_count:
        raise BadLine("a section has another number of records than its header says")
    return Body(data, ends)


_new = cast(Any, Record).__new__
_set_topic = cast(Any, Record).topic.__set__
_set_partition = cast(Any, Record).partition.__set__
_set_offset = cast(Any, Record).offset.__set__
_set_key = cast(Any, Record).key.__set__
_set_value = cast(Any, Record).value.__set__
_set_time = cast(Any, Record).time_us.__set__
_set_headers = cast(Any, Record).headers.__set__


def decode_records(body: Body, line: int, group: Group, first: int, stop: int) -> list[Record]:
    """Return the records ``first <= index < stop`` of a group that starts at line ``line`` of its section.

    Lines as this library writes them are sliced: their digest is checked, so where the members are is known. Anything else
    is parsed. A frozen dataclass takes 1.1 µs to construct the ordinary way and half of that slot by slot, which decides
    whether a scan reaches its rate.
    """
    data, ends = body
    find = data.find
    topic, partition, offset, _ = group
    prefix_size = len(_prefix(topic, partition))
    key_skip = prefix_size + len(b'null,"key":"')
    grows_at = 0
    at: Offset | None = None
    records: list[Record] = []
    end = ends[line + first - 1] if line + first else -1
    for index in range(first, stop):
        start = end + 1
        end = ends[line + index]
        if offset is not None:
            at = Offset(offset + index)
            if at >= grows_at:
                digits = len(str(at))
                grows_at = 10**digits
                key_skip = prefix_size + digits + len(b',"key":"')
        key_start = start + key_skip
        key_end = find(b'","time":', key_start, end)
        time_end = find(b',"value":', key_end, end)
        key = data[key_start:key_end]
        try:
            time_us = int(data[key_end + 9 : time_end])
        except ValueError:
            time_end = -1
            time_us = 0
        if time_end < 0 or data[key_start - 8 : key_start] != b',"key":"' or b"\\" in key:
            records.append(_parse_record(data[start:end], topic, partition, at))
            continue
        value = data[time_end + 9 : end - 1]
        record = _new(Record)
        _set_topic(record, topic)
        _set_partition(record, partition)
        _set_offset(record, at)
        _set_key(record, key.decode())
        _set_value(record, None if value == b"null" else value)
        _set_time(record, time_us)
        _set_headers(record, None)
        records.append(record)
    return records


def _parse_record(line: bytes, topic: str, partition: int, offset: Offset | None) -> Record:
    """Return a record from any JSON object line; the value's text is kept as it is where the line has our member order."""
    text = line.decode()
    members: dict[str, Any] = {}
    value = ""
    at = 1
    while at < len(text) and text[at - 1] in "{,":
        name, colon = _DECODER.raw_decode(text, at)
        members[name], end = _DECODER.raw_decode(text, colon + 1)
        if name == "value":
            value = text[colon + 1 : end]
        at = end + 1
    return Record(
        topic=topic,
        partition=partition,
        offset=offset,
        key=members["key"],
        value=None if value == "null" else value.encode(),
        time_us=members["time"],
        headers=members.get("headers"),
    )
