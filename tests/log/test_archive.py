"""Archives: what is durable in their files is read back as it was, whatever was cut off (docs/design/0046)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import zstandard

from gasoline_es.errors import LogCorrupt, LogError, NoSpace
from gasoline_es.log import archive
from gasoline_es.log.archive import Archive, archived, history_of
from gasoline_es.log.file.disk import Disk
from gasoline_es.log.port import Offset, Record

NOW_US = 1_767_225_600_000_000


def record(number: int, value: bytes = b"{}", headers: dict[str, str] | None = None, subject: str = "one") -> Record:
    return Record("shop.events", 3, Offset(number), f"{subject}/{number}", value, NOW_US + number, headers)


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.exists() else []


class FaultyDisk(Disk):
    """Fails one call, having written half of what it was to."""

    def __init__(self) -> None:
        self.fails = ""
        self.calls: list[str] = []

    def _at(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, fd: int, data: bytes, position: int) -> None:
        super().write(fd, data[: len(data) // 2] if self.fails == "write" else data, position)
        self._at("write")

    def sync(self, fd: int) -> None:
        self._at("sync")
        super().sync(fd)

    def sync_directory(self, path: str) -> None:
        self._at(f"sync_directory {Path(path).name}")
        super().sync_directory(path)


def test_records_come_back_byte_for_byte(tmp_path: Path) -> None:
    """A value is not read and written anew: 2^64 and the order of its members stay, whatever it or a header contains."""
    records = [
        record(1, b'{"b":18446744073709551616, "a":",\\"value\\":"}'),
        record(2, b'{"value":{"value":1},"x":[]}', {"ce_type": "x", "value": "y"}),
        record(3, "\u00e4\u2028".encode().join([b'"', b'"'])),
    ]
    writer = Archive(str(tmp_path / "a" / "b"), "me")
    for one in records:
        writer.add(one, NOW_US)
    writer.sync(NOW_US)
    writer.close()
    assert list(archived(str(tmp_path / "a" / "b"))) == records


def test_synced_is_durable_with_the_directories_that_were_made(tmp_path: Path) -> None:
    disk = FaultyDisk()
    writer = Archive(str(tmp_path / "a" / "b"), "me", disk)
    writer.add(record(1), NOW_US)
    assert disk.calls == []
    writer.sync(NOW_US)
    assert disk.calls == [f"sync_directory {tmp_path.name}", "sync_directory a", "write", "sync", "sync_directory b"]
    writer.sync(NOW_US)
    assert len(disk.calls) == 5, "nothing was added"


def test_frames_are_short_and_a_file_is_read_across_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FRAME_BYTES", 500)
    monkeypatch.setattr(archive, "_READ_BYTES", 7)
    records = [record(number, b'"%d"' % (7**number)) for number in range(1, 40)]
    writer = Archive(str(tmp_path), "me")
    for one in records:
        writer.add(one, NOW_US)
    writer.sync(NOW_US)
    assert list(archived(str(tmp_path))) == records
    (file,) = files(tmp_path)
    assert file.read_bytes().count(b"\x28\xb5\x2f\xfd") > 5


def test_cut_at_any_byte_what_was_synced_before_is_read(tmp_path: Path) -> None:
    writer = Archive(str(tmp_path), "me")
    writer.add(record(1), NOW_US)
    writer.sync(NOW_US)
    (file,) = files(tmp_path)
    first = file.stat().st_size
    writer.add(record(2), NOW_US)
    writer.sync(NOW_US)
    whole = file.read_bytes()
    for end in range(first, len(whole)):
        file.write_bytes(whole[:end])
        notes: list[str] = []
        assert list(archived(str(tmp_path), note=notes.append)) == [record(1)]
        assert len(notes) == (end > first)
        assert all(f"{file}: the frame from byte {first} on is cut off" in note for note in notes)
    file.write_bytes(whole[:first] + bytes(len(whole) - first))  # a file system that had the length, and not the bytes
    notes = []
    assert list(archived(str(tmp_path), note=notes.append)) == [record(1)]
    assert f"from byte {first} on there is no whole frame" in notes[0]


def test_changed_byte_is_never_read_as_a_record(tmp_path: Path) -> None:
    writer = Archive(str(tmp_path), "me")
    writer.add(record(1, b'"abcdefghijklmnopqrstuvwxyz"'), NOW_US)
    writer.sync(NOW_US)
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        notes: list[str] = []
        found = list(archived(str(tmp_path), note=notes.append))
        assert found == [] or found == [record(1, b'"abcdefghijklmnopqrstuvwxyz"')]
        assert found or notes


@pytest.mark.parametrize("call", ["write", "sync", "sync_directory archive"])
def test_what_fails_counts_for_nothing_and_the_next_goes_to_another_file(tmp_path: Path, call: str) -> None:
    disk = FaultyDisk()
    writer = Archive(str(tmp_path / "archive"), "me", disk)
    disk.fails = call
    for _ in range(3):
        writer.add(record(1), NOW_US)
        with pytest.raises(NoSpace, match="cannot be written: No space left on device"):
            writer.sync(NOW_US)
        assert files(tmp_path / "archive") == [], "a full disk does not fill with names"
    disk.fails = ""
    writer.add(record(2), NOW_US)
    writer.sync(NOW_US)
    assert list(archived(str(tmp_path / "archive"))) == [record(2)]
    disk.fails = "write"
    writer.add(record(3), NOW_US)
    with pytest.raises(NoSpace):
        writer.sync(NOW_US)
    disk.fails = ""
    writer.add(record(4), NOW_US)
    writer.sync(NOW_US)
    assert len(files(tmp_path / "archive")) == 2, "nothing is written behind what is torn"
    notes: list[str] = []
    assert list(archived(str(tmp_path / "archive"), note=notes.append)) == [record(2), record(4)]
    assert len(notes) == 1


def test_writers_do_not_meet_and_a_history_has_each_event_once(tmp_path: Path) -> None:
    for who in ("me", "you", "me"):
        writer = Archive(str(tmp_path), who)
        for one in (record(12), record(5), record(6, subject="other")):
            writer.add(one, NOW_US)
        writer.sync(NOW_US)
        writer.close()
    assert len(files(tmp_path)) == 3
    assert history_of("one", str(tmp_path)) == [record(5), record(12)]


def test_what_is_no_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot be read: No such file"):
        list(archived(str(tmp_path / "nowhere")))
    (tmp_path / "plain").write_text("x")
    writer = Archive(str(tmp_path / "plain"), "me")
    writer.add(record(1), NOW_US)
    with pytest.raises(LogError, match="cannot be written: "):
        writer.sync(NOW_US)
    for line in (b"{}\n", b'{"topic":1,"value":2}\n', b"abc\n"):
        (tmp_path / "bad.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(line))
        with pytest.raises(LogCorrupt, match=r"bad\.jsonl\.zst"):
            list(archived(str(tmp_path)))
