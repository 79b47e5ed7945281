"""The reading side of the codec: a section's record lines are checked and become records (layout: lines.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

from gasoline_es.log.file.compacted import merged_digests
from gasoline_es.log.file.lines import BadLine, Group, SectionHeader, record_prefix
from gasoline_es.log.port import Offset, Record

_DECODER: Final = json.JSONDecoder()


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
    if section.kept is not None and len(ends) == section.line_count:
        digests = merged_digests(section.kept, digests)
    # Of a section of which nothing is left its digest is all there is.
    if (ends or section.kept is None) and sha256(b"".join(digests)).hexdigest() != section.sha256:
        raise BadLine("a section's records fail their digest")
    if len(ends) != section.line_count:
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
_set_place = cast(Any, Record).place.__set__

_POSITION_BITS: Final = 40


def pack_place(segment: int, position: int) -> int:
    """Return a record's place: its segment, and the byte where its batch starts."""
    return segment << _POSITION_BITS | position


def unpack_place(place: int) -> tuple[int, int]:
    """Return a place's segment and the byte where its batch starts."""
    return place >> _POSITION_BITS, place & (1 << _POSITION_BITS) - 1


def decode_records(body: Body, line: int, group: Group, first: int, stop: int, place: int = 0) -> list[Record]:
    """Return the records ``first <= index < stop`` of a group that starts at line ``line`` of its section.

    Lines as this library writes them are sliced: their digest is checked, so where the members are is known. Anything else
    is parsed. A frozen dataclass takes 1.1 µs to construct the ordinary way and half of that slot by slot, which decides
    whether a scan reaches its rate.
    """
    data, ends = body
    find = data.find
    topic, partition, offset, _ = group
    prefix_size = len(record_prefix(topic, partition))
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
            records.append(replace(_parse_record(data[start:end], topic, partition, at), place=place))
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
        _set_place(record, place)
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
