"""Which sections count: the chain of a partition's epochs, as its begins tie it together (filelog.md §4).

Only a begin ends an epoch. A reader takes the highest epoch file, uses its writer's published end, then checks that no
higher file exists. If one does, the epoch below is undecided until a begin says where it ended: what was counted stays
counted, and nothing more is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gasoline_es.errors import LogCorrupt
from gasoline_es.log.file.catalog import Catalog
from gasoline_es.log.file.chain import Chain
from gasoline_es.log.file.epochs import Epochs
from gasoline_es.log.file.incarnation import Observer
from gasoline_es.log.file.lines import After, Begin, Place
from gasoline_es.log.file.soundness import Soundness

_NOWHERE: Final = Place(0, 0)


@dataclass(slots=True)
class View:
    """What counts of a partition. ``ends`` are those of its newest epoch that counts."""

    epoch: int = 0
    chain: Chain = field(default_factory=lambda: Chain(0))
    ends: Mapping[str, int] = field(default_factory=dict[str, int])
    undecided: bool = False
    broken: LogCorrupt | None = None
    """Damage that may have cost this partition records, or the knowledge of which count."""


class Acked(NamedTuple):
    """The last section of an epoch of ours that was acknowledged. ``ends``: topic → next offset after it."""

    epoch: int
    place: Place
    ends: Mapping[str, int]


class Ownership:
    """The views of every partition. Its owner holds a lock around every call, and refreshed the catalog just before."""

    def __init__(
        self, catalog: Catalog, epochs: Epochs, observer: Observer, soundness: Soundness, *, final: bool
    ) -> None:
        """``final``: count nothing that somebody who is just about to take a partition over may not count."""
        self._catalog: Final = catalog
        self._epochs: Final = epochs
        self._observer: Final = observer
        self._final: Final = final
        self._soundness: Final = soundness
        self._views: dict[tuple[str, int], View] = {}
        self._over: set[str] = set()
        self.acked: dict[tuple[str, int], Acked] = {}
        """What this handle itself was told to count, as an owner: good for ever, even if nobody has read it yet."""

    def view(self, namespace: str, partition: int) -> View:
        """Return what counts as of the catalog's last refresh."""
        key = (namespace, partition)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = View()
        # The epochs are looked at after the published ends were read: a section published under an epoch that was still
        # the highest afterwards counts, whatever comes.
        begins = self._catalog.begins
        top = self._epochs.highest(namespace, partition)
        if top > view.epoch and begins.begun(namespace, partition, top) is None:
            self._catalog.refresh()
            top = self._epochs.highest(namespace, partition)
        fault = self._soundness.check(namespace, partition, read=True, top=top)
        if fault is not None:
            top = max(top, begins.top(namespace, partition))
        if top > 0:
            self._update(view, namespace, partition, top)
        if fault is not None or self._catalog.damaged:
            view.broken = fault or self._broken(view, namespace, partition)
        return view

    def seen(self, namespace: str, partition: int) -> View:
        """Return what counted when it was last looked at."""
        return self._views.get((namespace, partition)) or View()

    def _update(self, view: View, namespace: str, partition: int, top: int) -> None:
        counted = self._settled(namespace, partition, top)
        # Before a first begin nothing was ever acknowledged here that could seem to be missing, whoever is about to begin.
        view.undecided = counted is None and self._catalog.begins.top(namespace, partition) > 0
        if counted is not None and counted >= view.epoch:
            ends = self._catalog.begins.ends(namespace, partition, counted)
            self._count(view, namespace, partition, counted, None, ends)
        elif counted is None and (acked := self.acked.get((namespace, partition))) is not None:
            seen = view.chain.limit(acked.epoch) or _NOWHERE
            if acked.epoch >= view.epoch and seen < acked.place:
                self._count(view, namespace, partition, acked.epoch, acked.place, acked.ends)

    def _settled(self, namespace: str, partition: int, top: int) -> int | None:
        """Return the newest epoch whose published sections count for good; None while a taker may decide otherwise."""
        begun = self._catalog.begins.top(namespace, partition)
        if begun >= top:
            return top
        for epoch in range(top, begun, -1) if self._final else ():
            holder = self._epochs.holder(namespace, partition, epoch)
            if holder is not None and not self._finished(holder.incarnation):
                return None
        begun = self._catalog.begins.top(namespace, partition)  # a look at who is dead may have found more
        if begun == 0:
            return None
        # Whoever takes over from here on reads no less than what is published now.
        return begun if self._epochs.highest(namespace, partition) <= max(top, begun) else None

    def _finished(self, incarnation: str) -> bool:
        """Return whether the incarnation is dead and all it ever wrote has been taken in."""
        if incarnation in self._over:
            return True
        if self._observer.alive(incarnation):
            return False
        # Found dead first, then everything is read once more: before that, its last segment may have been missed.
        self._catalog.refresh(liveness=True)
        if not self._catalog.complete(incarnation):
            return False
        self._over.add(incarnation)
        return True

    def _count(
        self,
        view: View,
        namespace: str,
        partition: int,
        epoch: int,
        limit: Place | None,
        ends: Mapping[str, int],
    ) -> None:
        """Let the view count the epoch up to ``limit``; None: up to its writer's published end."""
        catalog = self._catalog
        begun = catalog.begins.begun(namespace, partition, epoch)
        if begun is None:
            raise LogCorrupt(
                f"the begin of epoch {epoch} of partition {partition} was published and is not on the log any more",
                segment=None,
                position=0,
                reason="a begin is missing",
            )
        if view.epoch != epoch or view.chain.newest is None:
            view.chain = Chain(
                epoch,
                lambda below: catalog.begins.begun(namespace, partition, below),
                lambda begun: catalog.last_place.get(begun.writer, begun.place),
            )
            view.epoch = epoch
        newest = view.chain.newest
        assert newest is not None
        if limit is None:
            limit = catalog.last_place.get(newest.writer, begun.place)
        if limit != newest.limit:
            view.chain.publish(limit)
        view.ends = dict(ends)

    def _broken(self, view: View, namespace: str, partition: int) -> LogCorrupt | None:
        """Return the first damage of a segment that may have held more of this partition's records that count."""
        links = view.chain.all()
        joined = all(
            link.begin.after is not None and link.begin.after.epoch == links[index].epoch
            for index, link in enumerate(links[1:])
        ) and (not links or links[0].begin.after is None)
        epochs: dict[str, list[int]] = {}
        for epoch in sorted(self._epochs.listed(namespace, partition) or ()):
            holder = self._epochs.holder(namespace, partition, epoch)
            if holder is not None:
                epochs.setdefault(holder.incarnation, []).append(epoch)
        for segment in self._catalog.ordered():
            if segment.damage is None:
                continue
            if not segment.writer:
                return segment.damage  # it may be anybody's
            for epoch in epochs.get(segment.writer, ()):
                limit = view.chain.limit(epoch)
                if limit is None:
                    concerned = epoch > view.epoch or not joined
                else:
                    concerned = epoch == view.epoch or Place(segment.number, segment.batch) < limit
                if concerned:
                    return segment.damage
        return None

    def counts(self, namespace: str, partition: int, epoch: int, place: Place) -> bool | None:
        """Return whether a section of the epoch at ``place`` counts; None: undecided."""
        view = self.view(namespace, partition)
        limit = view.chain.limit(epoch)
        if limit is not None and place <= limit:
            return True
        if epoch >= view.epoch:
            return None
        if view.broken is not None:
            raise view.broken  # what says where it ended may be what cannot be read
        return False

    def predecessor(self, namespace: str, partition: int, epoch: int) -> Begin:
        """Return the begin that a taker of ``epoch`` writes: it settles everything below, as published right now."""
        for below in range(min(epoch - 1, self._catalog.begins.top(namespace, partition)), 0, -1):
            begun = self._catalog.begins.begun(namespace, partition, below)
            if begun is None:
                continue
            place = self._catalog.last_place[begun.writer]
            return Begin(After(below, place), dict(self._catalog.begins.ends(namespace, partition, below)))
        return Begin(None, {})
