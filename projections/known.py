"""Which generation may be relied on: the one place that decides it, for whoever folds, builds, reads or compares.

:func:`look` opens what is current and says how it stands; :func:`stands` says it of what is open already; :func:`begun` opens
what is to be built on. Each caller knows by itself what follows: whoever keeps a projection up discards what nobody can use and
builds it, who reads alone goes without.

Positions that the log does not know are another past's (:func:`unknown`). ``known=unknown_so_far`` is for whoever may be taking
partitions over itself, as the keeper of the engine's views (``keeping``) may: what ``look`` calls ``usable`` then is what it
keeps its views in, ``newer`` what it leaves alone, ``none`` and ``older`` what it builds beside; ``readonly`` is for one that
keeps nothing, and ``begun`` finds what another began to build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from gasoline_es.errors import LogCorrupt, LogError, ProjectionError
from gasoline_es.log.port import Log
from projections.stores.port import AnyGeneration, AnyStore, Feed, Meta, Position, digest_of, is_damage


class Undecided(ProjectionError):
    """A partition is being taken over, so what counts there is not known yet. It does not last."""

    retryable = True


def unknown(log: Log, meta: Meta, positions: Mapping[Feed, Position]) -> str | None:
    """Return why a log does not know a generation's positions, None if it does. Reads one record for each.

    Raises: Undecided. LogCorrupt: damage may have cost the record.
    """
    if meta.log_id != log.log_id:
        return f"it is of log {meta.log_id}, and this is log {log.log_id}"
    if meta.namespace != log.namespace:
        return f"it is of namespace {meta.namespace!r}, and this is {log.namespace!r}"
    for feed, position in positions.items():
        if not 0 <= feed.partition < log.partition_count:
            return f"it has folded partition {feed.partition}, and there are {log.partition_count}"
        if log.remote and _another_record(log, feed, position) is None:
            continue  # what was read there counts for good; where the topic ends a server would have to be asked
        end = 0
        for _ in range(2):  # whoever takes it over may have begun between the two looks: then it ends elsewhere
            end = log.end(feed.topic, feed.partition)
            if position.offset < end:
                break
            if log.undecided(feed.topic, feed.partition):
                raise Undecided(
                    f"partition {feed.partition} of {feed.topic!r} is being taken over: it is not known yet what counts there",
                    projection=meta.projection,
                )
        else:
            return (
                f"it is at offset {position.offset} of {feed.topic!r}, partition {feed.partition}, which ends at {end}"
            )
        if (why := _another_record(log, feed, position)) is not None:
            return why
    return None


def unknown_so_far(log: Log, meta: Meta, positions: Mapping[Feed, Position]) -> str | None:
    """Return the same, passing over partitions that are being taken over: what counts there shows later."""
    if (why := unknown(log, meta, {})) is not None:
        return why
    for feed, position in positions.items():
        with suppress(Undecided):
            if (why := unknown(log, meta, {feed: position})) is not None:
                return why
    return None


Known = Callable[[Log, Meta, Mapping[Feed, Position]], str | None]
"""Says why a log does not know a generation's positions: :func:`unknown` or :func:`unknown_so_far`."""

State = Literal["usable", "older", "newer", "unknown", "foreign", "damaged", "none"]
"""``older``, ``newer``: of another version than the code's. ``unknown``: the log has another past. ``foreign``: it is of
another log. ``damaged``: nobody can use it. ``none``: nothing is current."""


@dataclass(frozen=True, slots=True)
class Found:
    """How what is current stands, and why it cannot be used. ``generation``: open if it is usable, else None."""

    state: State
    why: str = ""
    meta: Meta | None = None
    generation: AnyGeneration | None = None

    @property
    def useless(self) -> bool:
        """Whether nobody can rely on it, whatever their version is."""
        return self.state in ("unknown", "foreign", "damaged")

    @property
    def to_be_built(self) -> bool:
        """Whether code of this version has to build one. What newer code has built is left alone: no versions by turns."""
        return self.state not in ("usable", "newer")


def stands(
    log: Log, meta: Meta, positions: Mapping[Feed, Position], version: int, known: Known = unknown
) -> tuple[State, str]:
    """Return how a generation stands to a log and to code of a version, and why it cannot be used. Raises: as ``known``."""
    why = known(log, meta, positions)
    if why is not None:
        return "foreign" if meta.log_id != log.log_id else "unknown", why
    if meta.version == version:
        return "usable", ""
    told = f"it was built by version {meta.version}, and this code has version {version}"
    return "newer" if meta.version > version else "older", told


def look(
    store: AnyStore, name: str, version: int, log: Log, known: Known = unknown, *, readonly: bool = False
) -> Found:
    """Open the current generation, if code of this version can use it with this log.

    Raises: ProjectionError: it cannot be opened by this process, or not now. What ``known`` raises.
    """
    current: AnyGeneration | None = None
    try:
        current = store.current(name, readonly=readonly)
        if current is None:
            return Found("none")
        state, why = stands(log, current.meta, current.positions(), version, known)
    except BaseException as error:
        if current is not None:
            current.close()
        if not is_damage(error):
            raise
        return Found("damaged", str(error))
    if state == "usable":
        return Found(state, why, current.meta, current)
    current.close()
    return Found(state, why, current.meta)


def begun(store: AnyStore, name: str, version: int, log: Log, known: Known = unknown) -> AnyGeneration | None:
    """Open a generation of this version whose builder died, to go on with. With the store's ``building`` lock held."""
    found: AnyGeneration | None = None
    usable = False
    try:
        found = store.unfinished(name, version)
        if found is not None:
            usable = stands(log, found.meta, found.positions(), version, known)[0] == "usable"
    except ProjectionError as error:
        if isinstance(error, Undecided):
            raise
    finally:
        if found is not None and not usable:
            found.close()
    return found if usable else None


def open_current(
    store: AnyStore, name: str, log: Log, check: Callable[[Log, Meta, Mapping[Feed, Position]], str | None]
) -> tuple[AnyGeneration | None, str | None]:
    """Open the current generation; with why it cannot be relied on, by ``check`` or because it is damaged.

    Raises: ProjectionError: it cannot be opened by this process, or not now. What ``check`` raises.
    """
    current: AnyGeneration | None = None
    try:
        current = store.current(name)
        return current, None if current is None else check(log, current.meta, current.positions())
    except BaseException as error:
        if current is not None:
            current.close()
        if not is_damage(error):
            raise
        return None, str(error)


def _another_record(log: Log, feed: Feed, position: Position) -> str | None:
    where = f"offset {position.offset} of {feed.topic!r}, partition {feed.partition}"
    horizon = log.horizon(feed.topic, feed.partition)
    if position.next_offset < horizon:
        return f"it is at {where}, and what took back some of that was removed since, below offset {horizon}"
    try:
        (record,) = log.read_at(feed.topic, feed.partition, [position.offset], [position.place])
    except LogCorrupt:
        raise
    except LogError:
        if position.offset < log.end(feed.topic, feed.partition):
            return None  # it had a record there that was folded: a cleaner, or a broker's, has removed it
        return f"the log has no record at {where}, which it has folded"
    digest = digest_of(record)
    if digest == position.digest:
        return None
    return f"the record at {where} is another one (digest {digest}) than it has folded ({position.digest})"
