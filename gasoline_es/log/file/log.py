"""The file log: one handle on a directory, for one namespace. Format and protocol: docs/file-log-format.md."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import Fenced, LogCorrupt, LogError, LogFailed, LogReadOnly, NoSpace
from gasoline_es.log.file.bodies import pack_place
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.checkpoint import decode as checkpoint_heads
from gasoline_es.log.file.checkpoint import hold as held_to
from gasoline_es.log.file.checkpoint import take as take_checkpoint
from gasoline_es.log.file.checkpoint import unproven
from gasoline_es.log.file.cleaning import Cleaner, Pace
from gasoline_es.log.file.disk import Disk, Status
from gasoline_es.log.file.drafts import Draft, encode_draft
from gasoline_es.log.file.end import PublishedEnd
from gasoline_es.log.file.epochs import Epochs
from gasoline_es.log.file.follower import Follower
from gasoline_es.log.file.horizon import Horizon
from gasoline_es.log.file.incarnation import Incarnation, Observer
from gasoline_es.log.file.lines import Place
from gasoline_es.log.file.manifest import Manifest, create_namespace, read_manifest
from gasoline_es.log.file.mark import MarkedEpochs
from gasoline_es.log.file.marks import Marks
from gasoline_es.log.file.newest import Newest
from gasoline_es.log.file.ownership import Acked
from gasoline_es.log.file.ownership import Ownership as Counted
from gasoline_es.log.file.partitions import Partitions
from gasoline_es.log.file.reader import Reader
from gasoline_es.log.file.soundness import Soundness
from gasoline_es.log.file.tail import FileTail
from gasoline_es.log.file.verify import verify_log
from gasoline_es.log.file.vouching import Vouching
from gasoline_es.log.file.writer import SEGMENT_BYTES_MAX, SegmentWriter
from gasoline_es.log.names import check_namespace, check_partitions, check_wanted
from gasoline_es.log.port import (
    Appended,
    Compaction,
    Epoch,
    Log,
    LogInfo,
    Member,
    Offset,
    Outcome,
    Owner,
    Ownership,
    Position,
    Problem,
    Record,
    Rules,
    Section,
    SegmentInfo,
    Source,
    TailSource,
    Wanted,
    about_json,
    check_sections,
)

_INLINE_SYNC_S: Final = 300e-6
_INLINE_BYTES: Final = 256 * 1024
_READY_SYNC_S: Final = 5e-3
"""Who stands in the loop's place may hold it up for so long: the way to a thread and back would cost several times the sync."""
_logger = EngineLog("gasoline_es.log")
_BEAT_S: Final = 1.0
SILENT_AFTER_S: Final = 10.0


@dataclass(slots=True)
class _Owned:
    """A partition of ours. ``next_epoch``: the path whose existence fences us."""

    epoch: Epoch
    next_epoch: str
    ends: dict[str, int]


class FileLog(Log):
    """See :class:`gasoline_es.log.port.Log`. Made by :func:`open_file_log`."""

    def __init__(
        self,
        directory: str,
        namespace: str,
        partitions: int | None,
        *,
        readonly: bool,
        final: bool = False,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        silent_after_s: float = SILENT_AFTER_S,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_namespace(namespace)
        check_wanted(partitions)
        self._directory: Final = directory
        self._disk: Final = disk or Disk()
        self.url = f"file:{directory}"
        self.namespace = namespace
        self.derived = f"{directory}/projections/{namespace}"
        self.writable = not readonly
        self._open_manifest(partitions)
        self._lock: Final = threading.RLock()
        self._observer: Final = Observer(directory, clock, silent_after_s)
        self._epochs: Final = Epochs(directory, self._disk)
        self._marks: Final = Marks(directory, self.log_id, self._disk)
        self._vouching: Final = Vouching(self._marks, self._own_file, readonly=readonly)
        self._catalog: Final = Catalog(
            directory,
            self._disk,
            self._observer,
            readonly=readonly,
            verify=not readonly,
            own_ends=self._own_end,
            vouching=self._vouching,
        )
        self._soundness: Final = Soundness(self._catalog, self._epochs)
        self._counted: Final = Counted(
            self._catalog, self._epochs, self._observer, self._soundness, final=final or not readonly
        )
        self._horizon: Final = Horizon(directory, self.log_id, self._disk)
        self._reader: Final = Reader(self._catalog, self._counted, self._horizon, self._lock)
        self._newest: Final = Newest(self._catalog, self._counted, self._lock)
        self._partitions: Final = Partitions(
            namespace,
            self.partition_count,
            self._catalog,
            self._epochs,
            self._observer,
            self._counted,
            self._soundness,
            self._lock,
        )
        self._owned: dict[int, _Owned] = {}
        self._mutex: Final = asyncio.Lock()
        self._taking: Final = asyncio.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._follower: Final = Follower(directory, self._is_own_file, self._partitions.lost_owner)
        self._heart: threading.Thread | None = None
        self._cleaning: asyncio.Task[Compaction] | None = None
        self._pace: Pace | None = None
        self._still = threading.Event()
        """Set when the heart is to stop."""
        self._closed = False
        self._writer: SegmentWriter | None = None
        self._incarnation: Incarnation | None = None
        self.incarnation = ""
        self._open_segments(readonly, segment_bytes_max)

    def _open_manifest(self, partitions: int | None) -> None:
        manifest = read_manifest(self._directory, self._disk)
        count = None
        if manifest is not None:
            count = check_partitions(manifest.namespaces, self.namespace, partitions, self.url)
        if count is None or manifest is None:
            if not self.writable:
                if manifest is None:
                    raise LogError(f"there is no log in {self._directory}", path=self._directory)
                raise LogError(
                    f"there is no namespace {self.namespace!r} in {self._directory}, which has "
                    f"{', '.join(sorted(manifest.namespaces)) or 'none'}",
                    path=self._directory,
                )
            if manifest is not None:
                self._require_sound(manifest)
            manifest = create_namespace(self._directory, self.namespace, partitions, self._disk)
            count = manifest.namespaces[self.namespace]
        self.log_id = manifest.log_id
        self._namespaces = manifest.namespaces
        self.partition_count = count

    def _require_sound(self, manifest: Manifest) -> None:
        """Raises: LogCorrupt if the log is damaged: its manifest must not be touched then either."""
        catalog, soundness = self._look(
            Marks(self._directory, manifest.log_id, self._disk), lambda: manifest.namespaces
        )
        catalog.close()
        for damage in (catalog.damage, *soundness.faults):
            if damage is not None:
                raise damage

    def _look(
        self, marks: Marks | None, namespaces: Callable[[], Mapping[str, int]], *, scan: bool = True
    ) -> tuple[Catalog, Soundness]:
        """Look at the log as somebody who has just opened it and changes nothing. ``marks`` None: believing no mark.

        ``scan``: with a mark, verify all that it does not vouch for.
        """
        observer = Observer(self._directory, time.monotonic, SILENT_AFTER_S)
        catalog = Catalog(
            self._directory,
            self._disk,
            observer,
            readonly=True,
            verify=scan and marks is not None,
            own_ends=lambda _: None,
            vouching=None if marks is None else Vouching(marks, lambda _: None, readonly=True),
        )
        soundness = Soundness(catalog, Epochs(self._directory, self._disk))
        try:
            catalog.refresh(liveness=True)
            soundness.check_all(namespaces, read=True)
        except BaseException:
            catalog.close()
            raise
        return catalog, soundness

    def _open_segments(self, readonly: bool, segment_bytes_max: int) -> None:
        self._catalog.refresh(liveness=True)
        self._soundness.check_all(self._known_namespaces, read=not readonly)
        if readonly:
            return
        if (damage := self.damage) is not None:
            self._catalog.close()
            raise damage
        self._disk.make_directory(f"{self._directory}/workers")  # whoever is not in it is dead
        self._incarnation = Incarnation(self._directory, self.namespace, self._disk)
        self.incarnation = self._incarnation.name
        self._writer = SegmentWriter(self._directory, self.incarnation, self.namespace, self._disk, segment_bytes_max)
        self._writer.highest_known = self._catalog.highest
        self._store_mark()
        self._catalog.verify = False
        # What is found from now on, the mark has vouched for: the next opening is to find it, and to refuse.
        self._catalog.files.met_damage = self._marks.discard
        self._catalog.writes_indexes = True
        self._catalog.indexes.write()
        self._observer.sweep(self._disk)
        # A thread of its own: code that blocks the event loop for long is no reason to take its partitions away, which
        # would only start its activity once more elsewhere.
        self._heart = threading.Thread(target=self._beat, name="gasoline-log-heartbeat", daemon=True)
        self._heart.start()

    def _store_mark(self) -> None:
        """Store what this opening has verified, for the next one."""
        mark = self._vouching.opened()
        for key, (read, seal) in self._soundness.sealed().items():
            epochs = mark.epochs.setdefault(key, MarkedEpochs())
            epochs.read, epochs.seal = read, seal
        self._marks.store(mark, self.incarnation, self._observer)
        self._catalog.begins.forget()

    @property
    def damage(self) -> LogCorrupt | None:
        """The first damage this handle knows of (see the port)."""
        with self._lock:
            if self._catalog.damaged:
                return self._catalog.damage
            return self._soundness.faults[0] if self._soundness.faulty else None

    # --- appending ----------------------------------------------------------------------------------------------------

    async def append(self, sections: Sequence[Section]) -> list[Outcome]:
        """Append the sections in one group (see the port)."""
        return await self._append(_drafts(sections))

    @property
    def ready(self) -> bool:
        """Whether :meth:`append_now` may be called (see the port)."""
        writer = self._writer
        return writer is not None and writer.sync_s < _READY_SYNC_S and not self._mutex.locked()

    def append_now(self, sections: Sequence[Section]) -> list[Outcome]:
        """Append the sections before this returns (see the port)."""
        writer, drafts = self._usable(), _drafts(sections)
        outcomes, written, _ = self._encode(drafts)
        try:
            return _merged(outcomes, self._commit(writer, written) if written else [])
        except BaseException as error:
            writer.interrupted(error)
            raise

    async def _append(self, drafts: Sequence[Draft]) -> list[Outcome]:
        writer = self._usable()
        await self._mutex.acquire()
        hopped = False
        try:
            self._usable()
            outcomes, written, size = self._encode(drafts)
            if not written:
                settled: list[Outcome] = []
            elif writer.sync_s < _INLINE_SYNC_S and size < _INLINE_BYTES:
                settled = self._commit(writer, written)
            else:
                try:
                    # The lock is let go of when the thread is done, even if whoever called does not wait for it.
                    future = self._in_thread(writer, written)
                except RuntimeError:
                    # The interpreter is ending and starts nothing in threads any more; whoever is left may still append.
                    settled = self._commit(writer, written)
                else:
                    hopped = True
                    settled = await asyncio.shield(future)
        finally:
            if not hopped:
                self._mutex.release()
        return _merged(outcomes, settled)

    def _encode(self, drafts: Sequence[Draft]) -> tuple[list[Outcome | None], list[Draft], int]:
        """Encode what is to be written; return the outcomes of what is not (None: it is), the rest, and how long that is."""
        outcomes: list[Outcome | None] = []
        written: list[Draft] = []
        size = 0
        for draft in drafts:
            outcome = self._unwritten(draft)
            outcomes.append(outcome)
            if outcome is None:
                owned = self._owned.get(draft.partition) if draft.begin is None else None
                encode_draft(draft, self.namespace, {} if owned is None or draft.epoch is None else owned.ends)
                size += draft.size
                written.append(draft)
        return outcomes, written, size

    def _in_thread(self, writer: SegmentWriter, written: list[Draft]) -> asyncio.Future[list[Outcome]]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="gasoline-log-writer")
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._commit, writer, written)
        future.add_done_callback(lambda _: self._mutex.release())
        return future

    def _commit(self, writer: SegmentWriter, written: list[Draft]) -> list[Outcome]:
        """Write, sync, publish, look for a higher epoch: all that makes a section count or not."""
        try:
            writer.append(written)
        except (NoSpace, LogFailed) as error:
            return [error] * len(written)
        with self._lock:
            assert writer.last is not None
            assert writer.last_header is not None
            self._catalog.wrote(writer.last.segment, writer.last_header)
            return [self._outcome(draft, writer.last, writer.last_position) for draft in written]

    def _outcome(self, draft: Draft, place: Place, position: int) -> Outcome:
        if draft.epoch is None:
            return Appended({})
        if draft.begin is not None:
            next_epoch = self._epochs.path(self.namespace, draft.partition, draft.epoch + 1)
            if self._disk.exists(next_epoch):
                return self._fenced(draft.partition, draft.epoch)
            begun = _Owned(Epoch(draft.epoch), next_epoch, dict(draft.begin.offsets))
            self._owned[draft.partition] = begun
            self._counted.acked[self.namespace, draft.partition] = Acked(draft.epoch, place, begun.ends)
            return Appended({})
        owned = self._owned.get(draft.partition)
        if owned is None or owned.epoch != draft.epoch:
            return self._fenced(draft.partition, draft.epoch)
        if self._disk.exists(owned.next_epoch):
            del self._owned[draft.partition]
            return self._fenced(draft.partition, draft.epoch)
        owned.ends.update(draft.ends)
        self._counted.acked[self.namespace, draft.partition] = Acked(draft.epoch, place, owned.ends)
        if draft.release:
            del self._owned[draft.partition]
        return Appended(draft.firsts, pack_place(place.segment, position))

    def _unwritten(self, draft: Draft) -> Outcome | None:
        """Return the outcome of a section of which nothing is to be written, or None."""
        if draft.epoch is None or draft.begin is not None:
            return None
        owned = self._owned.get(draft.partition)
        if owned is None or owned.epoch != draft.epoch:
            return self._fenced(draft.partition, draft.epoch)
        if draft.records or draft.release:
            return None
        # A section without records writes nothing, but its owner must still be the owner (filelog.md §3.1).
        with self._lock:
            if self._disk.exists(owned.next_epoch):
                del self._owned[draft.partition]
                return self._fenced(draft.partition, draft.epoch)
        return Appended({})

    def _fenced(self, partition: int, epoch: int) -> Fenced:
        return Fenced(
            f"partition {partition} of namespace {self.namespace!r} is not owned as epoch {epoch} any more; "
            "what this append wrote there counts only if the next owner's begin says so",
            partition=partition,
            epoch=epoch,
        )

    def _usable(self) -> SegmentWriter:
        if self._incarnation is not None:
            self._incarnation.require_same_process()
        if self._closed:
            raise LogError(f"{self.url} is closed")
        if self._writer is None:
            raise LogReadOnly(f"{self.url} was opened for reading")
        if self._writer.failed is not None:
            raise LogFailed(self._writer.failed.message, **self._writer.failed.fields)
        return self._writer

    def _own_end(self, number: int) -> PublishedEnd | None:
        return None if self._writer is None else self._writer.ends.get(number)

    def _own_file(self, number: int) -> Status | None:
        return None if self._writer is None else self._writer.closed.get(number)

    # --- owning -------------------------------------------------------------------------------------------------------

    async def acquire(self, partition: int) -> Ownership:
        """Take the partition as a new epoch (see the port; filelog.md §4)."""
        self._partitions.check(partition)
        async with self._taking:
            return await self._acquire(partition)

    async def _acquire(self, partition: int) -> Ownership:
        self._usable()
        assert self._incarnation is not None
        owned = self._owned.get(partition)
        try:
            draft = self._partitions.claim(partition, self._incarnation, None if owned is None else owned.epoch)
        except OSError as error:
            assert self._writer is not None
            raise self._writer.refusal(error) from error
        if draft is None:
            assert owned is not None
            return Ownership(partition, owned.epoch, {topic: Offset(end) for topic, end in owned.ends.items()})
        self._owned.pop(partition, None)
        assert draft.begin is not None
        assert draft.epoch is not None
        (outcome,) = await self._append([draft])
        if isinstance(outcome, Fenced):
            self._partitions.require_free(partition, self.incarnation)
            raise outcome
        if isinstance(outcome, LogError):
            raise outcome
        ends = {topic: Offset(end) for topic, end in draft.begin.offsets.items()}
        return Ownership(partition, Epoch(draft.epoch), ends)

    async def release(self, partition: int) -> None:
        """Give the partition up, durably (see the port)."""
        self._partitions.check(partition)
        await self._release([partition])

    async def _release(self, partitions: Sequence[int]) -> None:
        drafts = [
            Draft(partition, self._owned[partition].epoch, (), release=True)
            for partition in partitions
            if partition in self._owned
        ]
        if not drafts:
            return
        for outcome in await self._append(drafts):
            if isinstance(outcome, LogError) and not isinstance(outcome, Fenced):
                raise outcome

    def owner(self, partition: int) -> Owner | None:
        """Return who holds the partition now (see the port)."""
        self._partitions.check(partition)
        owned = self._owned.get(partition)
        return self._partitions.owner(partition, None if owned is None else owned.epoch)

    # --- reading ------------------------------------------------------------------------------------------------------

    def announce(self, about: Mapping[str, Any] | None) -> None:
        """Tell the other processes about this one (see the port)."""
        self._usable()
        assert self._incarnation is not None
        if about is not None:
            about_json(about)
        try:
            self._incarnation.tell(about)
        except OSError as error:
            raise LogError(f"{self.url}: what this process tells about itself could not be written: {error}") from error

    def members(self) -> list[Member]:
        """Return who told something about itself (see the port)."""
        self._readable()
        return [
            Member(name, who["about"], name == self.incarnation, who["host"], who["pid"])
            for name, who in self._observer.told(self.namespace, self._disk)
        ]

    def others(self) -> list[Member]:
        """Return the other handles that may write (see the port)."""
        self._readable()
        return [
            Member(name, who.get("about") or {}, False, who["host"], who["pid"])
            for name, who in self._observer.living(self.namespace, self._disk)
            if name != self.incarnation
        ]

    def _readable(self) -> None:
        if self._incarnation is not None:
            self._incarnation.require_same_process()
        if self._closed:
            raise LogError(f"{self.url} is closed")

    def read(self, topic: str, partition: int, start: int = 0, stop: int | None = None) -> Iterator[Record]:
        """Yield the counted records of a single-writer topic (see the port)."""
        self._readable()
        return self._reader.read(topic, partition, start, stop)

    def read_at(
        self, topic: str, partition: int, offsets: Sequence[int], places: Sequence[int] | None = None
    ) -> list[Record]:
        """Return the records at these ascending offsets (see the port)."""
        self._readable()
        return self._reader.read_at(topic, partition, offsets, places)

    def end(self, topic: str, partition: int) -> Offset:
        """Return the offset after the last counted record (see the port)."""
        self._readable()
        return self._reader.end(topic, partition)

    def undecided(self, topic: str, partition: int) -> bool:
        """Whether a taker has yet to begin (see the port)."""
        return self._reader.undecided(topic, partition)

    def tail(self, topic: str, partition: int, position: Position | None = None) -> FileTail:
        """Open a many-writer topic's partition for reading (see the port)."""
        self._readable()
        with self._lock:
            self._catalog.refresh()
            tail = FileTail(topic, partition, position, self._catalog, self._counted, self._lock)
            self._catalog.subscribe(topic, partition, tail)
        return tail

    async def source(
        self, topic: str, partition: int, position: Position | None = None, *, past_lost: bool = False
    ) -> Source:
        """Open a partition of any topic for reading (see the port)."""
        return TailSource(self.tail(topic, partition, position))

    def newest(self, topic: str, partition: int, since_us: int, wanted: Wanted) -> Record | None:
        """Return the newest record that is wanted (see the port)."""
        self._readable()
        with self._lock:
            self._catalog.refresh()
            return self._newest.find(topic, partition, since_us, wanted)

    async def changed(self) -> None:
        """Return once something may have changed since the last call returned (see the port)."""
        self._readable()
        await self._follower.changed()

    def _is_own_file(self, name: str) -> bool:
        stem = name.partition(".")[0]
        return self._writer is not None and stem.isdigit() and int(stem) in self._writer.ends

    # --- cleaning -----------------------------------------------------------------------------------------------------

    def horizon(self, topic: str, partition: int) -> Offset:
        """Return the offset below which tombstones may be gone (see the port)."""
        self._readable()
        return self._reader.horizon(topic, partition)

    async def compact(
        self,
        rules: Rules,
        *,
        dry_run: bool = False,
        bytes_per_s: float | None = None,
        gain_min: float = 0.0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Compaction:
        """Remove what the rules give up (see the port). It runs in a thread, with a view of the log of its own."""
        self._usable()
        if self._cleaning is not None:
            return Compaction("another", dry_run)
        pace = self._pace = Pace(bytes_per_s)
        pace.progress = progress
        cleaner = Cleaner(
            self._directory,
            self._disk,
            self._marks,
            Horizon(self._directory, self.log_id, self._disk),
            rules,
            pace,
            dry_run=dry_run,
            gain_min=gain_min,
            who=self.incarnation,
        )
        self._cleaning = asyncio.create_task(
            asyncio.to_thread(cleaner.run, self._look_to_clean), name="gasoline-cleaner"
        )
        try:
            return await asyncio.shield(self._cleaning)
        except asyncio.CancelledError:
            await self._stop_cleaning()
            raise
        finally:
            self._cleaning = None

    async def _stop_cleaning(self) -> None:
        """Let the cleaner stop at what it is at. What it has not replaced stays."""
        if self._cleaning is not None and self._pace is not None:
            self._pace.stop.set()
            await asyncio.wait([self._cleaning])

    def _look_to_clean(self) -> tuple[Catalog, Counted]:
        catalog, soundness = self._look(
            Marks(self._directory, self.log_id, self._disk), self._known_namespaces, scan=False
        )
        observer = Observer(self._directory, time.monotonic, SILENT_AFTER_S)
        if soundness.faults:
            catalog.close()
            raise soundness.faults[0]
        epochs = Epochs(self._directory, self._disk)
        return catalog, Counted(catalog, epochs, observer, soundness, final=True)

    # --- showing ------------------------------------------------------------------------------------------------------

    def info(self) -> LogInfo:
        """Return what ``log info`` shows."""
        self._readable()
        with self._lock:
            self._catalog.refresh(liveness=True)
            segments = self._catalog.ordered()
            torn = [
                f"segment {segment.number}: {segment.torn} torn bytes at {segment.position} are ignored"
                for segment in segments
                if segment.torn
            ]
            owners: list[Owner] = []
            for partition in range(self.partition_count):
                with suppress(LogCorrupt):  # of the file that names it, which the problems say
                    owner = self.owner(partition)
                    if owner is not None:
                        owners.append(owner)
            self._soundness.check_all(self._known_namespaces, read=True)
            return LogInfo(
                url=self.url,
                log_id=self.log_id,
                namespaces=self._known_namespaces(),
                segments=[self._catalog.files.describe(segment) for segment in segments],
                owners=owners,
                torn=torn,
                problems=[
                    *(segment.damage.message for segment in segments if segment.damage is not None),
                    *(fault.message for fault in self._soundness.faults),
                ],
            )

    def verify(self) -> Iterator[Problem | SegmentInfo]:
        """Check every published byte (see the port). Whatever this handle or a mark knows is not believed."""
        self._readable()
        catalog, soundness = self._look(None, self._known_namespaces)
        catalog.close()
        return self._verified(catalog, soundness)

    def checkpoint(self) -> bytes:
        """Return a digest of all that is published (see the port)."""
        self._readable()
        catalog, soundness = self._look(None, self._known_namespaces)
        try:
            for damage in (catalog.damage, *soundness.faults):
                if damage is not None:
                    raise damage
            return take_checkpoint(catalog, self.log_id, time.time_ns() // 1000)
        finally:
            catalog.close()

    def against(self, checkpoint: bytes) -> Iterator[Problem]:
        """Yield each place where the log is not what it was (see the port)."""
        self._readable()
        heads = checkpoint_heads(checkpoint, self.log_id)
        catalog, _ = self._look(None, self._known_namespaces)
        try:
            yield from held_to(catalog, heads)
            for number in unproven(catalog, heads):
                _logger.info(
                    "nothing is left of a segment, which had grown since: what it held then cannot be proven",
                    extra={"segment": number},
                )
        finally:
            catalog.close()

    def _verified(self, catalog: Catalog, soundness: Soundness) -> Iterator[Problem | SegmentInfo]:
        for found in verify_log(catalog, catalog.ordered(), soundness.faults):
            if self.writable and isinstance(found, Problem):
                self._marks.discard()
            yield found

    def _known_namespaces(self) -> Mapping[str, int]:
        manifest = read_manifest(self._directory, self._disk)
        return self._namespaces if manifest is None else manifest.namespaces

    # --- living and dying ---------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Show that the process lives, until it lets go or can append nothing any more: then others may take over."""
        incarnation, writer = self._incarnation, self._writer
        assert incarnation is not None
        assert writer is not None
        while incarnation.alive and writer.failed is None and not self._still.wait(_BEAT_S):
            try:
                incarnation.beat()
            except OSError as error:
                _logger.warning("a heartbeat could not be written: %s", error, extra={"error": str(error)})

    async def close(self) -> None:
        """Release every partition, finish the writer's segment, let go of the log. Idempotent."""
        if self._closed:
            return
        if self._incarnation is not None:
            self._incarnation.require_same_process()
        try:
            if self._writer is not None and self._writer.failed is None:
                # Without space for it, letting go of the lock frees the partitions all the same.
                with suppress(NoSpace, LogFailed):
                    await self._release(sorted(self._owned))
                async with self._mutex:
                    with suppress(OSError):  # a full disk: all of a segment whose writer is gone is published
                        self._writer.finish()
                    with self._lock:
                        self._catalog.refresh()
        finally:
            await self._let_go()
            if self._incarnation is not None:
                self._incarnation.retire()

    async def _let_go(self) -> None:
        async with self._mutex:
            self._closed = True
        await self._stop_cleaning()
        self._still.set()
        if self._heart is not None and self._heart.is_alive() and self._incarnation is not None:
            self._heart.join()
        self._follower.close()
        if self._thread is not None:
            self._thread.shutdown()
        if self._writer is not None:
            self._writer.close()
        with self._lock:
            self._catalog.close()

    async def crash(self) -> None:
        """For tests: let go of everything as the end of the process would, releasing and finishing nothing."""
        await self._let_go()
        if self._incarnation is not None:
            self._incarnation.drop()


async def open_file_log(
    directory: str,
    *,
    namespace: str = "default",
    partitions: int | None = None,
    readonly: bool = False,
    final: bool = False,
    segment_bytes_max: int = SEGMENT_BYTES_MAX,
    silent_after_s: float = SILENT_AFTER_S,
    disk: Disk | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FileLog:
    """Open the log in a directory; create it unless ``readonly``.

    For writing, every published byte is verified, but for what an earlier opening verified or its writer vouches for.

    ``final``: of a log opened for reading, too, show nothing that may turn out not to count, because somebody is just taking
    its partition over: :meth:`Log.undecided` tells meanwhile. (What is opened for writing never shows it.)

    Raises: LogCorrupt (nothing was changed; it can be opened with ``readonly``), LogError.
    """
    try:
        return FileLog(
            _absolute(directory),
            namespace,
            partitions,
            readonly=readonly,
            final=final,
            segment_bytes_max=segment_bytes_max,
            silent_after_s=silent_after_s,
            disk=disk,
            clock=clock,
        )
    except OSError as error:
        raise LogError(f"the log in {directory} cannot be opened: {error}", path=directory) from error


def _absolute(directory: str) -> str:
    """Return the path that stays the same when the program changes its working directory."""
    return os.path.abspath(directory)


def _drafts(sections: Sequence[Section]) -> list[Draft]:
    check_sections(sections)
    return [Draft(section.partition, section.epoch, section.records) for section in sections]


def _merged(outcomes: Sequence[Outcome | None], settled: Sequence[Outcome]) -> list[Outcome]:
    """Return all outcomes: where there was none yet, what became of what was written, in order."""
    rest = iter(settled)
    return [next(rest) if outcome is None else outcome for outcome in outcomes]
