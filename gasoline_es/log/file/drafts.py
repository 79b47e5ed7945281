"""The writing side of the codec: sections and the records in them become the bytes of a batch (layout: lines.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring

from gasoline_es.log.file.lines import (
    BatchHeader,
    Begin,
    Group,
    SectionHeader,
    encode_begin,
    lines_digest,
    record_prefix,
    with_head,
)
from gasoline_es.log.port import RECORD_BYTES_MAX, NewRecord, Offset, check_size


class Draft:
    """A section about to be written; :func:`encode_draft` fills in what is not given (no dataclass: one an append)."""

    __slots__ = (
        "begin",
        "ends",
        "epoch",
        "firsts",
        "header",
        "lines",
        "partition",
        "records",
        "release",
        "section",
        "size",
    )

    def __init__(
        self,
        partition: int,
        epoch: int | None,
        records: Sequence[NewRecord],
        begin: Begin | None = None,
        release: bool = False,
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.records = records
        self.begin = begin
        self.release = release
        self.header = b""
        self.section: SectionHeader
        self.lines: list[bytes] = []
        self.size = 0
        """How many bytes the record lines take, with their line feeds."""
        self.firsts: dict[str, Offset] = {}
        """Topic → offset of the section's first single-writer record there."""
        self.ends: dict[str, int] = {}
        """Topic → offset after the section's last."""


def encode_batch(number: int, prev: str, drafts: Sequence[Draft]) -> tuple[bytes, BatchHeader]:
    """Return a batch's bytes, header line and record lines, and its header as if it stood at byte 0.

    The drafts are encoded (:func:`encode_draft`).
    """
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
    data = b"\n".join(parts)
    sections = tuple([draft.section for draft in drafts])
    return data, BatchHeader(number, prev, digest, sections, 0, len(line), len(data))


def encode_draft(draft: Draft, namespace: str, ends: Mapping[str, int]) -> None:
    """Encode a section's records and its header entry into ``draft``; ``ends`` says what offset each topic goes on from.

    Raises: RecordTooLarge; ValueError for a value that has a line feed or a text that is not UTF-8.
    """
    groups = _encode_records(draft, namespace, ends)
    lines = draft.lines
    entries: list[str] = []
    declared: list[Group] = []
    for (topic, partition), (first, group) in groups.items():
        count = len(group)
        declared.append(Group(topic, partition, first, count))
        if first is None:
            entries.append(f"[{encode_basestring(topic)},{partition},null,{count}]")
        else:
            entries.append(f"[{encode_basestring(topic)},{partition},{first},{count}]")
            draft.firsts[topic] = Offset(first)
            draft.ends[topic] = first + count
        lines += group
    draft.size = size = sum(map(len, lines)) + len(lines)
    begin = "" if draft.begin is None else f',"begin":{encode_begin(draft.begin)}'
    release = ',"release":true' if draft.release else ""
    epoch = "null" if draft.epoch is None else draft.epoch
    digest = lines_digest(lines)
    draft.header = (
        f'{{"partition":{draft.partition},"epoch":{epoch}{begin}{release},"records":[{",".join(entries)}]'
        f',"bytes":{size},"sha256":"{digest}"}}'
    ).encode()
    draft.section = SectionHeader(
        draft.partition, draft.epoch, draft.begin, draft.release, tuple(declared), size, digest
    )


def single_writer(topic: str, partition: int, draft: Draft, namespace: str) -> bool:
    """Return whether a record of the section gets an offset (see the log port)."""
    return draft.epoch is not None and partition == draft.partition and topic.startswith(namespace + ".")


def _encode_records(
    draft: Draft, namespace: str, ends: Mapping[str, int]
) -> dict[tuple[str, int], tuple[int | None, list[bytes]]]:
    """Return the section's record lines by topic and partition, each with the offset of its first (None: many-writer)."""
    groups: dict[tuple[str, int], tuple[int | None, list[bytes]]] = {}
    topic, partition, prefix = "", -1, b""
    first: int | None = None
    group: list[bytes] = []
    for its_topic, its_partition, key, value, time_us, headers in draft.records:
        if its_topic != topic or its_partition != partition:
            topic, partition, prefix = its_topic, its_partition, record_prefix(its_topic, its_partition)
            known = groups.get((topic, partition))
            if known is None:
                first = ends.get(topic, 0) if single_writer(topic, partition, draft, namespace) else None
                group = []
                groups[topic, partition] = first, group
            else:
                first, group = known
        if value is None:
            value = b"null"
        elif b"\n" in value:
            raise ValueError(f"the value of record {key!r} for topic {topic!r} has a line feed")
        more = ""
        if headers:
            more = f',"headers":{json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))}'
        offset = "null" if first is None else first + len(group)
        middle = f'{offset},"key":{encode_basestring(key)},"time":{time_us}{more},"value":'
        # Joined: to let bytes grow by formatting costs a quarter more.
        line = b"".join((prefix, middle.encode(), value, b"}"))
        if len(line) > RECORD_BYTES_MAX:
            check_size(topic, partition, key, len(line), exact=True)
        group.append(line)
    return groups
