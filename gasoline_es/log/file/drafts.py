"""The writing side of the codec: sections and the records in them become the bytes of a batch (layout: lines.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring

from gasoline_es.errors import RecordTooLarge
from gasoline_es.log.file.lines import Begin, encode_begin, lines_digest, record_prefix, with_head
from gasoline_es.log.port import RECORD_BYTES_MAX, NewRecord


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
    size: int = 0
    """How many bytes its record lines take, with their line feeds."""


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
    draft.size = sum(map(len, lines)) + len(lines)
    begin = "" if draft.begin is None else f',"begin":{encode_begin(draft.begin)}'
    release = ',"release":true' if draft.release else ""
    draft.header = (
        f'{{"partition":{draft.partition},"epoch":{"null" if draft.epoch is None else draft.epoch}{begin}{release}'
        f',"records":[{",".join(groups)}],"bytes":{draft.size},"sha256":"{lines_digest(lines)}"}}'
    ).encode()


def single_writer(topic: str, partition: int, draft: Draft, namespace: str) -> bool:
    """Return whether a record of the section gets an offset (see the log port)."""
    return draft.epoch is not None and partition == draft.partition and topic.startswith(namespace + ".")


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


def _encode_records(
    topic: str, partition: int, first: int | None, records: Sequence[NewRecord], lines: list[bytes]
) -> None:
    prefix = record_prefix(topic, partition)
    offset = "null"
    for index, (_, _, key, value, time_us, headers) in enumerate(records):
        if value is None:
            value = b"null"
        elif b"\n" in value:
            raise ValueError(f"the value of record {key!r} for topic {topic!r} has a line feed")
        if first is not None:
            offset = str(first + index)
        more = ""
        if headers:
            more = f',"headers":{json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))}'
        middle = f'{offset},"key":{encode_basestring(key)},"time":{time_us}{more},"value":'
        line = b"".join((prefix, middle.encode(), value, b"}"))
        if len(line) > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"a record for topic {topic!r}, key {key!r}, takes {len(line)} bytes; "
                f"the limit is {RECORD_BYTES_MAX}: keep large values elsewhere and record where",
                topic=topic,
                partition=partition,
                key=key,
                bytes=len(line),
            )
        lines.append(line)
