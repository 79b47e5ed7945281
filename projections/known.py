"""Whether a log knows the positions of a generation: if it does not, the tables are of another past."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

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
        # First what costs a look: where a topic ends may take asking a server.
        if _another_record(log, feed, position) is None:
            continue
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
    try:
        (record,) = log.read_at(feed.topic, feed.partition, [position.offset], [position.place])
    except LogCorrupt:
        raise
    except LogError:
        return f"the log has no record at {where}, which it has folded"
    digest = digest_of(record)
    if digest == position.digest:
        return None
    return f"the record at {where} is another one (digest {digest}) than it has folded ({position.digest})"
