"""The bytes on the disk, pinned: a later version must read what this one writes (filelog.md §2, docs/file-log-format.md)."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gasoline_es.log.file.bodies import check_body, decode_records
from gasoline_es.log.file.drafts import Draft, encode_batch, encode_draft
from gasoline_es.log.file.end import END_BYTES, PublishedEnd, decode_end, encode_end
from gasoline_es.log.file.index import SegmentIndex, decode_index, encode_index
from gasoline_es.log.file.lines import (
    After,
    BadLine,
    Begin,
    Place,
    SegmentHeader,
    decode_batch_header,
    decode_segment_header,
    encode_segment_header,
)
from gasoline_es.log.file.log import open_file_log
from gasoline_es.log.port import NewRecord
from gasoline_es.testing.log_contract import EVENTS, event, put

_SEGMENT = (
    b'{"segment":42,"writer":"w-1","namespace":"shop","follows":{"segment":41,"batch":4710},"started":1700,'
    b'"head":"%b"}\n'
)
_BATCH = (
    b'{"batch":4711,"prev":"%b","sections":[{"partition":3,"epoch":17,"begin":{"after":{"epoch":16,"segment":41,"batch":9},'
    b'"offsets":{"shop.events":120}},"records":[["shop.events",3,120,2],["shop.inbox",7,null,1]],"bytes":%d,"sha256":"%b"},'
    b'{"partition":5,"epoch":null,"release":true,"records":[],"bytes":0,"sha256":"%b"}],"head":"%b"}\n'
)
_RECORDS = (
    b'{"topic":"shop.events","partition":3,"offset":120,"key":"a/1","time":1,"value":{"x":1}}\n'
    b'{"topic":"shop.events","partition":3,"offset":121,"key":"a/\\"2","time":2,"headers":{"h":"\xc3\xa9"},"value":null}\n'
    b'{"topic":"shop.inbox","partition":7,"offset":null,"key":"b","time":3,"value":[1, 2]}\n'
)


def _head(line: bytes) -> str:
    return hashlib.sha256(line[: line.rindex(b',"head":')]).hexdigest()


def _with_head(line: bytes) -> bytes:
    return line.replace(b'"head":"%b"', b'"head":"' + _head(line)[:16].encode() + b'"')


def _drafts() -> list[Draft]:
    records = [
        NewRecord("shop.events", 3, "a/1", b'{"x":1}', 1),
        NewRecord("shop.inbox", 7, "b", b"[1, 2]", 3),
        NewRecord("shop.events", 3, 'a/"2', None, 2, {"h": "é"}),
    ]
    begin = Begin(After(16, Place(41, 9)), {"shop.events": 120})
    drafts = [Draft(3, 17, records, begin=begin), Draft(5, None, [], release=True)]
    encode_draft(drafts[0], "shop", {"shop.events": 120})
    encode_draft(drafts[1], "shop", {})
    return drafts


def test_a_segment_header_is_these_bytes() -> None:
    header = SegmentHeader(42, "w-1", "shop", Place(41, 4710), 1700)
    line, digest = encode_segment_header(header)
    assert line == _with_head(_SEGMENT)
    assert digest == _head(_SEGMENT)
    read = decode_segment_header(line[:-1])
    assert (read.number, read.writer, read.namespace, read.follows, read.digest) == (
        42,
        "w-1",
        "shop",
        (41, 4710),
        digest,
    )


def test_a_batch_is_these_bytes() -> None:
    data, written = encode_batch(4711, "ab" * 32, _drafts())
    lines = _RECORDS.split(b"\n")[:-1]
    section = hashlib.sha256(b"".join(hashlib.sha256(line).digest() for line in lines)).hexdigest()
    empty = hashlib.sha256(b"").hexdigest()
    filled = _BATCH.replace(b'"head":"%b"', b'"head":"%%b"') % (
        b"ab" * 32,
        len(_RECORDS),
        section.encode(),
        empty.encode(),
    )
    assert data == _with_head(filled) + _RECORDS
    header = decode_batch_header(data[: data.index(b"\n")], 1000)
    assert (header.body, header.end) == (1000 + data.index(b"\n") + 1, 1000 + len(data))
    assert decode_batch_header(data[: data.index(b"\n")], 0) == written  # what is taken in without reading it back
    assert header.sections[0].begin == Begin(After(16, Place(41, 9)), {"shop.events": 120})
    body = check_body(_RECORDS, header.sections[0])
    first, second = decode_records(body, 0, header.sections[0].groups[0], 0, 2)
    assert (first.offset, first.value, second.offset, second.key, second.headers) == (
        120,
        b'{"x":1}',
        121,
        'a/"2',
        {"h": "é"},
    )
    (third,) = decode_records(body, 2, header.sections[0].groups[1], 0, 1)
    assert (third.offset, third.value) == (None, b"[1, 2]")


def test_any_changed_byte_of_a_batch_is_found() -> None:
    data, _ = encode_batch(4711, "ab" * 32, _drafts())
    line_end = data.index(b"\n")
    section = decode_batch_header(data[:line_end], 0).sections[0]

    def read(changed: bytes) -> None:
        decode_batch_header(changed[: changed.find(b"\n")], 0)
        check_body(changed[line_end + 1 :], section)

    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 2
        with pytest.raises(BadLine):
            read(bytes(changed))


def test_a_published_end_has_a_fixed_size_and_checks_itself() -> None:
    end = PublishedEnd(42, "1a229a0e610-2e3c-970d4b9b2615", 2**53, 2**40, "failed")
    data = encode_end(end)
    assert (len(data), data[-1:], decode_end(data)) == (END_BYTES, b"\n", end)
    assert json.loads(data)["state"] == "failed"
    for at in range(len(data.rstrip()) - 2):
        changed = bytearray(data)
        changed[at] ^= 1
        assert decode_end(bytes(changed)) is None
    assert decode_end(b"") is None


def test_an_index_is_read_back_or_not_at_all() -> None:
    data, _ = encode_batch(1, "ab" * 32, _drafts())
    index = SegmentIndex(torn=3)
    index.add(decode_batch_header(data[: data.index(b"\n")], 100))
    stored = encode_index(42, index)
    assert decode_index(42, stored) == index
    assert decode_index(43, stored) is None
    changed = bytearray(stored)
    changed[len(changed) // 2] ^= 1
    assert decode_index(42, bytes(changed)) is None
    assert decode_index(42, stored[:-5]) is None


def _jq(program: str, text: str) -> list[object]:
    jq: Any = import_module("jq")  # it has no types
    compiled = jq.compile(program)
    found: list[object] = compiled.input_text(text).all()
    return found


async def test_a_history_is_read_with_jq_alone(tmp_path: Path) -> None:
    """filelog.md §1, docs/file-log-format.md: no library is needed."""
    log = await open_file_log(str(tmp_path), partitions=1)
    owned = await log.acquire(0)
    for number in range(3):
        await put(log, owned.epoch, event(number))
    await log.close()
    text = "".join(path.read_text() for path in sorted((tmp_path / "segments").glob("*.jsonl")))
    values = _jq(f'select(.topic == "{EVENTS}") | .value', text)
    assert values == [{"number": 0}, {"number": 1}, {"number": 2}]
    begins = _jq("select(.sections) | .sections[] | select(.begin) | {epoch, after: .begin.after}", text)
    assert begins == [{"epoch": 1, "after": None}]
    ends = [json.loads(path.read_text()) for path in sorted((tmp_path / "segments").glob("*.end"))]
    assert [(end["state"], end["position"]) for end in ends] == [("closed", len(text.encode()))]
