"""Who owns which partition of a namespace, and taking one (filelog.md §4.1, §4.6)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

from gasoline_es.errors import LogCorrupt, PartitionOwned
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.drafts import Draft
from gasoline_es.log.file.epochs import Epochs
from gasoline_es.log.file.incarnation import Incarnation, Observer
from gasoline_es.log.file.ownership import Ownership
from gasoline_es.log.file.soundness import Soundness
from gasoline_es.log.port import Epoch, Owner, check_partition


class Partitions:
    """The partitions of one namespace, as one handle sees them."""

    def __init__(
        self,
        namespace: str,
        count: int,
        catalog: Catalog,
        epochs: Epochs,
        observer: Observer,
        counted: Ownership,
        soundness: Soundness,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._namespace: Final = namespace
        self._count: Final = count
        self._catalog: Final = catalog
        self._epochs: Final = epochs
        self._observer: Final = observer
        self._counted: Final = counted
        self._soundness: Final = soundness
        self._lock: Final = lock
        self._lost: set[str] = set()

    def check(self, partition: int) -> None:
        """Raises: LogError unless the namespace has this partition."""
        check_partition(partition, self._count, self._namespace)

    def claim(self, partition: int, taker: Incarnation, owned: int | None) -> Draft | None:
        """Link the next epoch for ``taker``, then read where the one before ended; return the begin to append.

        None: ``owned``, the epoch as which the taker owns the partition, is still the highest. Raises: PartitionOwned.
        """
        with self._lock:
            while True:
                self._catalog.refresh(liveness=True)
                self._require_sound(partition)
                top = self._epochs.highest(self._namespace, partition)
                if owned == top:
                    return None
                self._require_free(partition, top, taker.name)
                if self._epochs.claim(self._namespace, partition, top + 1, taker):
                    break
            # Only now that the epoch is durable: whoever published before it was seen is read here, whoever publishes
            # after this sees the epoch.
            self._catalog.refresh(liveness=True)
            self._require_sound(partition)
            begin = self._counted.predecessor(self._namespace, partition, top + 1)
        return Draft(partition, top + 1, (), begin=begin)

    def _require_sound(self, partition: int) -> None:
        fault = self._soundness.check(self._namespace, partition, read=True)
        if (damage := self._catalog.damage or fault) is not None:
            raise damage

    def require_free(self, partition: int, taker: str) -> None:
        """Raises: PartitionOwned if somebody else than ``taker`` owns the partition, lives and moves."""
        with self._lock:
            self._require_free(partition, self._epochs.highest(self._namespace, partition), taker)

    def _require_free(self, partition: int, epoch: int, taker: str) -> None:
        if epoch == 0:
            return
        holder = self._epochs.holder(self._namespace, partition, epoch)
        if holder is None or holder.incarnation == taker:
            return
        if self._catalog.begins.released(self._namespace, partition, epoch) or not self._observer.alive(
            holder.incarnation
        ):
            return
        if self._observer.silent(holder.incarnation):
            return
        raise PartitionOwned(
            f"partition {partition} of namespace {self._namespace!r} is owned by {holder.incarnation} "
            f"(process {holder.pid} on {holder.host}), which lives",
            partition=partition,
            owner=holder.incarnation,
            epoch=epoch,
        )

    def owner(self, partition: int, owned: int | None) -> Owner | None:
        """Return who holds the partition now. ``owned``: the epoch as which this very handle owns it."""
        with self._lock:
            self._catalog.refresh()
            epoch = self._epochs.highest(self._namespace, partition)
            holder = self._epochs.holder(self._namespace, partition, epoch) if epoch else None
            if holder is None:
                return None
            return Owner(
                partition=partition,
                epoch=Epoch(epoch),
                incarnation=holder.incarnation,
                alive=self._observer.alive(holder.incarnation) and not self._observer.silent(holder.incarnation),
                mine=owned == epoch,
                released=self._catalog.begins.released(self._namespace, partition, epoch),
                host=holder.host,
                pid=holder.pid,
            )

    def lost_owner(self) -> bool:
        """Return whether an owner died or fell silent since the last look. Nothing in the files says so."""
        lost: set[str] = set()
        with self._lock:
            for partition in range(self._count):
                epoch = self._epochs.highest(self._namespace, partition)
                try:
                    holder = self._epochs.holder(self._namespace, partition, epoch) if epoch else None
                except LogCorrupt:
                    continue  # said to whoever uses the partition
                if holder is not None and holder.incarnation not in lost:
                    name = holder.incarnation
                    if not self._observer.alive(name) or self._observer.silent(name):
                        lost.add(name)
        fresh = lost - self._lost
        self._lost = lost
        return bool(fresh)
