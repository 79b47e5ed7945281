"""Whether the epoch files are all there and say what the log says: they are never removed, so what is missing is damage.

Every begin on the log proves that there was a file of its epoch, made by the writer of its segment, and one of the epoch it
goes on from. Files are made one after the other, so there is none without those before it (filelog.md §4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gasoline_es.errors import LogCorrupt
from gasoline_es.log.file.begins import Begun
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.disk import Status
from gasoline_es.log.file.epochs import EpochFiles, Epochs


@dataclass(slots=True)
class _Checked:
    """How much of a partition was looked at, and what is wrong with it."""

    top: int = -1
    """Up to this epoch no file is missing, but for those in ``faults``."""
    files: list[range] = field(default_factory=list[range])
    """The epochs of which there were files at the last look: one range, where none is missing."""
    read: int = 0
    """Up to this epoch every file was read, now or, as the mark says, by an earlier opening."""
    sealed: tuple[int, str] = (0, "")
    """Up to which epoch there were files when all were looked at, and their seal (epochs.py)."""

    def has(self, epoch: int) -> bool:
        """Return whether there was a file of the epoch at the last look."""
        return any(epoch in files for files in self.files)

    begun: list[tuple[int, Begun]] = field(default_factory=list[tuple[int, Begun]])
    """Begins that were not compared with the holders of their epochs yet."""
    faults: dict[int, LogCorrupt] = field(default_factory=dict[int, LogCorrupt])


class Soundness:
    """Compares the epoch files with each other and with the log. Its owner holds a lock around every call."""

    def __init__(self, catalog: Catalog, epochs: Epochs) -> None:
        self._catalog: Final = catalog
        self._epochs: Final = epochs
        self._checked: dict[tuple[str, int], _Checked] = {}
        self._strays: list[LogCorrupt] = []
        self.faulty = False
        """Whether anything was found so far."""

    @property
    def faults(self) -> list[LogCorrupt]:
        """Return everything found so far, in order of namespaces, partitions and epochs."""
        found = list(self._strays)
        for key in sorted(self._checked):
            faults = self._checked[key].faults
            found += [faults[epoch] for epoch in sorted(faults)]
        return found

    def check_all(self, manifest: Callable[[], Mapping[str, int]], *, read: bool) -> None:
        """Check every partition of the namespaces that the ``manifest`` has. ``read``: also read every file, once."""
        self._strays = []
        known: dict[int, Status | None] = {}
        partitions = self._epochs.partitions()
        namespaces = manifest()
        others = [key for key in partitions if key[1] >= namespaces.get(key[0], 0) and self._epochs.listed(*key)]
        if others:
            namespaces = manifest()  # looked at later: a namespace is in it before anybody takes a partition there
        for namespace, partition in others:
            if partition >= namespaces.get(namespace, 0):
                path = self._epochs.directory(namespace, partition)
                self._strays.append(_corrupt(path, "holds epochs of a partition that manifest.json does not have"))
        for namespace, count in namespaces.items():
            for partition in range(count):
                state = self._state(namespace, partition)
                files = self._epochs.files(namespace, partition)
                if files is None:
                    self._fault(state, 0, _corrupt(self._epochs.directory(namespace, partition), "is missing"))
                    files = EpochFiles([], [])
                # Looked at before they are read: what is changed meanwhile is read again next time.
                self._recall(state, namespace, partition, files, known)
                self._check(namespace, partition, files.epochs, read=read)
        self.faulty = self.faulty or bool(self._strays)

    def _recall(
        self, state: _Checked, namespace: str, partition: int, files: EpochFiles, known: dict[int, Status | None]
    ) -> None:
        """Take the files that an earlier opening has read for read, if they are still the ones it has read."""
        marked = self._catalog.checked.get((namespace, partition))
        if marked is not None:
            upto, seal = marked
            if self._epochs.seal(namespace, partition, files.up_to(upto), known) == seal:
                state.read = max(state.read, upto)
            else:
                self._catalog.begun[namespace, partition] = list(self._catalog.begins.every(namespace, partition))
        if files.epochs:
            state.sealed = files.epochs[-1], self._epochs.seal(namespace, partition, files, known)

    def sealed(self) -> Mapping[tuple[str, int], tuple[int, str]]:
        """Return up to which epoch of each namespace and partition every file was read, and the seal of those files."""
        return {key: state.sealed for key, state in self._checked.items() if 0 < state.sealed[0] <= state.read}

    def check(self, namespace: str, partition: int, *, read: bool, top: int | None = None) -> LogCorrupt | None:
        """Return what is wrong with a partition's epochs. ``top``: its highest epoch, if that was just looked up."""
        return self._check(namespace, partition, None, read=read, top=top)

    def _check(
        self, namespace: str, partition: int, listed: Sequence[int] | None, *, read: bool, top: int | None = None
    ) -> LogCorrupt | None:
        state = self._state(namespace, partition)
        if top is None:
            top = self._epochs.highest(namespace, partition, listed)
        if top > state.top >= 0 and listed is None:
            # Each was found right behind the one before: a directory of thousands is not listed for that.
            state.files = _ranges([*state.files, range(state.top + 1, top + 1)])
            state.top = top
        elif top > state.top:
            if listed is None or top > max(listed, default=0):
                listed = self._epochs.listed(namespace, partition) or ()
            self._check_files(state, namespace, partition, top, listed)
        if fresh := self._catalog.begun.pop((namespace, partition), None):
            for epoch, begun in fresh:
                self._check_begin(state, namespace, partition, epoch, begun)
            state.begun += fresh
        if read and (state.begun or state.read < top):
            self._check_holders(state, namespace, partition, top)
        return state.faults[min(state.faults)] if state.faults else None

    def _state(self, namespace: str, partition: int) -> _Checked:
        return self._checked.setdefault((namespace, partition), _Checked())

    def _fault(self, state: _Checked, epoch: int, fault: LogCorrupt) -> None:
        self.faulty = True
        state.faults.setdefault(epoch, fault)

    def _check_files(self, state: _Checked, namespace: str, partition: int, top: int, listed: Sequence[int]) -> None:
        if listed and listed[-1] - listed[0] + 1 == len(listed):
            state.files = [range(listed[0], listed[-1] + 1)]  # as it should be, and without a walk
        else:
            state.files = _ranges([range(epoch, epoch + 1) for epoch in listed])
        below = max(0, state.top)
        for files in state.files:
            epoch = files.start
            if epoch > below + 1:
                path = self._epochs.path(namespace, partition, below + 1)
                others = "" if epoch == below + 2 else f", and so are those up to epoch {epoch - 1}"
                reason = f"is missing{others}, though there is one of epoch {epoch}"
                self._fault(state, below + 1, _corrupt(path, reason))
            below = max(below, files.stop - 1)
        state.top = top

    def _check_begin(self, state: _Checked, namespace: str, partition: int, epoch: int, begun: Begun) -> None:
        path = self._epochs.path(namespace, partition, epoch)
        if not state.has(epoch) and not self._epochs.exists(namespace, partition, epoch):
            self._fault(
                state, epoch, _corrupt(path, f"is missing, though segment {begun.place.segment} begins its epoch")
            )
        first = self._catalog.begins.begun(namespace, partition, epoch)
        if first is not None and first is not begun and first.place != begun.place:
            where = f"in segment {first.place.segment} and in segment {begun.place.segment}"
            self._fault(state, epoch, _corrupt(path, f"is of an epoch that begins twice, {where}"))
        after = begun.begin.after
        if after is None:
            return
        if not state.has(after.epoch) and not self._epochs.exists(namespace, partition, after.epoch):
            path = self._epochs.path(namespace, partition, after.epoch)
            self._fault(state, after.epoch, _corrupt(path, f"is missing, though epoch {epoch} goes on from it"))
        if not self._begins(namespace, partition, after.epoch):
            reason = f"is of an epoch that epoch {epoch} goes on from, but no segment holds its begin"
            self._fault(state, after.epoch, _corrupt(self._epochs.path(namespace, partition, after.epoch), reason))

    def _begins(self, namespace: str, partition: int, epoch: int) -> bool:
        if self._catalog.begins.begun(namespace, partition, epoch) is None:
            # Published in a segment whose end was read before that of the one which refers to it.
            self._catalog.refresh(liveness=True)
        # In a damaged segment it may be what cannot be read: that is the damage to name.
        return self._catalog.damaged or self._catalog.begins.begun(namespace, partition, epoch) is not None

    def _check_holders(self, state: _Checked, namespace: str, partition: int, top: int) -> None:
        # Of one taken since the last look there is but the next number.
        unread = [epoch for files in state.files for epoch in files[max(0, state.read + 1 - files.start) :]]
        for epoch in sorted({top, *unread}):
            if not state.read < epoch <= top:
                continue
            try:
                self._epochs.holder(namespace, partition, epoch)
            except LogCorrupt as fault:
                self._fault(state, epoch, fault)
        state.read = max(state.read, top)
        begun, state.begun = state.begun, []
        for epoch, begin in begun:
            if epoch in state.faults:
                continue
            holder = self._epochs.holder(namespace, partition, epoch)
            if holder is not None and holder.incarnation != begin.writer:
                reason = (
                    f"names {holder.incarnation}, but {begin.writer} began its epoch in segment {begin.place.segment}"
                )
                self._fault(state, epoch, _corrupt(self._epochs.path(namespace, partition, epoch), reason))


def _ranges(files: Sequence[range]) -> list[range]:
    """Return ascending ranges with those joined that follow each other."""
    found: list[range] = []
    for epochs in files:
        if found and epochs.start == found[-1].stop:
            found[-1] = range(found[-1].start, epochs.stop)
        else:
            found.append(epochs)
    return found


def _corrupt(path: str, reason: str) -> LogCorrupt:
    return LogCorrupt(
        f"the log is damaged: {path} {reason}. Nothing was changed; it can still be opened for reading",
        segment=None,
        position=0,
        reason=f"{path} {reason}",
        path=path,
    )
