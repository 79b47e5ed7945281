"""The tombstone horizon: of each topic's partition, below which offset tombstones were removed.

``horizon.json``, one JSON line, is replaced as a whole, durably, before the file that lacks the tombstones takes its place::

    {"format":1,"log":"<log id>","horizons":[["shop.index",3,120],…],"head":"H"}

Whoever has read less of the topic's partition than that, from before the tombstone came, would never hear of it: what they
know is thrown away and read anew. Only the cleaner writes it, under its lock. No such file: no tombstone was ever removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic_core import from_json, to_json

from gasoline_es.errors import LogCorrupt
from gasoline_es.log.file.disk import Disk, Status
from gasoline_es.log.file.lines import with_head

FORMAT: Final = 1
Feed = tuple[str, int]


class Horizon:
    """Reads the horizon of one log, and raises it."""

    def __init__(self, directory: str, log_id: str, disk: Disk) -> None:
        self._directory: Final = directory
        self._path: Final = f"{directory}/horizon.json"
        self._log_id: Final = log_id
        self._disk: Final = disk
        self._status: Status | None = None
        self._known: dict[Feed, int] = {}

    def of(self, topic: str, partition: int) -> int:
        """Return the offset below which tombstones may be gone; 0: none is. Raises: LogCorrupt."""
        return self.read().get((topic, partition), 0)

    def read(self) -> Mapping[Feed, int]:
        """Return all of it, as it is now. Raises: LogCorrupt."""
        try:
            status = self._disk.status_of(self._path)
        except FileNotFoundError:
            return {}
        if status != self._status:
            self._known = self._decode(self._disk.read_file(self._path))
            self._status = status
        return self._known

    def raise_to(self, offsets: Mapping[Feed, int]) -> None:
        """Let the horizon be at least there, durably. Raises: OSError: it is as it was. LogCorrupt."""
        known = dict(self.read())
        raised = {feed: max(offset, known.get(feed, 0)) for feed, offset in offsets.items()}
        if all(known.get(feed, 0) == offset for feed, offset in raised.items()):
            # It may have been renamed by a process that died before it had synced the directory.
            self._disk.sync_directory(self._directory)
            return
        known |= raised
        members = {
            "format": FORMAT,
            "log": self._log_id,
            "horizons": [[topic, partition, offset] for (topic, partition), offset in sorted(known.items())],
        }
        beside = f"{self._path}.tmp"
        self._disk.unlink(beside)
        fd = self._disk.create(beside)
        try:
            self._disk.write(fd, with_head(to_json(members)[:-1])[0], 0)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(beside, self._path)
        self._disk.sync_directory(self._directory)

    def _decode(self, data: bytes) -> dict[Feed, int]:
        core, found, _ = data.rpartition(b',"head":"')
        try:
            if not found or with_head(core)[0] != data:
                raise ValueError("it fails its digest")
            members = from_json(data)
            if members["format"] != FORMAT or members["log"] != self._log_id:
                raise ValueError("it is of another log or format")
            return {(str(topic), int(partition)): int(offset) for topic, partition, offset in members["horizons"]}
        except (ValueError, LookupError, TypeError) as error:
            raise LogCorrupt(
                f"the log is damaged: {self._path} cannot be read: {error}. Nothing was changed; put it back from a copy",
                segment=None,
                position=0,
                reason=f"{self._path} cannot be read: {error}",
                path=self._path,
            ) from error
