"""Follows topics in a thread of its own: what comes is put where reads find it, and whoever waits is told.

A feed that is followed is read from where its copy ends, without end. *Caught up* is judged by the reader's position, which
passes what holds no record (markers of transactions, aborted records, holes of compaction), and never by the last record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from gasoline_es.errors import LogCorrupt, LogError
from gasoline_es.log.kafka.drivers.port import Feed, In, Reader
from gasoline_es.log.kafka.questions import AGAIN_S, Question, Questions

POLL_RECORDS: Final = 5_000
POLL_S: Final = 0.5
WAITED_FOR_S: Final = 0.005
END_S: Final = 10.0
"""So long an end waits for the thread."""


class Kept(Protocol):
    """Where what is read of feeds is kept."""

    def position(self, feed: Feed, /) -> int:
        """Return from where a feed has yet to be read."""
        ...

    def begins_at(self, feed: Feed, offset: int, /) -> None:
        """Learn that the broker has nothing before an offset any more. Raises: LogCorrupt: it should."""

    def add(self, read: Mapping[Feed, tuple[Sequence[In], int, int]], /) -> None:
        """Take records of feeds, from where each was read, and how far it is read now."""
        ...


class CatchingUp(Future[None]):
    """Ends once some feeds are read to where they ended when it was made."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # so that nobody can cancel it just when the thread ends it
        self.behind: Sequence[Feed] = feeds
        """Those that are not read that far yet, as of the thread's last look."""


class _Wanted:
    """Somebody waits until feeds are read to where they ended when it asked."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self.ends: Final = Question(feeds)
        self.kept: dict[Feed, int] = {}
        """How far each was read before its end was asked for."""
        self.done: Final = CatchingUp(list(self.ends.open))


class Follower:
    """The thread. In it are called: ``heard`` whenever something came, ``beat`` twice a second or more often, ``broke`` once,
    if it cannot go on.
    """

    def __init__(
        self,
        make_reader: Callable[[], Reader],
        kept: Kept,
        heard: Callable[[], None],
        broke: Callable[[LogError], None],
        beat: Callable[[], None],
    ) -> None:
        self._make_reader = make_reader
        self._kept = kept
        self._heard = heard
        self._broke = broke
        self._beat = beat
        self._lock: Final = threading.Lock()
        self._followed: dict[Feed, None] = {}
        self._restarted: set[Feed] = set()
        self._changed = False
        self._asked: list[_Wanted] = []
        self._reader: Reader | None = None
        self._ends: Questions
        self._begins: Questions
        self._fresh: list[Question] = []
        """Where feeds begin that are to be followed, and are not read yet."""
        self._closing = False
        self.failure: LogError | None = None
        self._thread: Final = threading.Thread(target=self._run, name="gasoline-kafka-follow", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, and wait for that; whoever waits learns that the log is closed."""
        with self._lock:
            self._closing = True
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(END_S)

    def follows(self, feed: Feed) -> bool:
        """Whether a feed is followed."""
        return feed in self._followed

    def follow(self, *feeds: Feed) -> None:
        """Follow these feeds, too."""
        with self._lock:
            before = len(self._followed)
            self._followed.update(dict.fromkeys(feeds))
            changed = len(self._followed) != before
            self._changed |= changed
        if changed:
            self._wake()

    def restart(self, feed: Feed) -> None:
        """Follow a feed from where it is kept to, wherever it is being read now: it is kept from an earlier offset again."""
        with self._lock:
            self._followed[feed] = None
            self._restarted.add(feed)
            self._changed = True
        self._wake()

    def leave(self, *feeds: Feed) -> None:
        """Follow these feeds no more: this process is the only one that writes there."""
        with self._lock:
            for feed in feeds:
                self._followed.pop(feed, None)
            self._changed = True
        self._wake()

    def catch_up(self, *feeds: Feed) -> CatchingUp:
        """Follow these feeds, too; the future ends once they are read to where they end as of now, or with what went wrong."""
        wanted = _Wanted(feeds)
        with self._lock:
            if self._closing or self.failure is not None:
                wanted.done.set_exception(self.failure or _closed())
                return wanted.done
            before = len(self._followed)
            self._followed.update(dict.fromkeys(feeds))
            self._changed |= len(self._followed) != before
            self._asked.append(wanted)
        self._wake()
        return wanted.done

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None:
            reader.wake()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        waiting: list[_Wanted] = []
        try:
            self._reader = reader = self._make_reader()
            self._ends = Questions(reader.ends, self._wake)
            self._begins = Questions(reader.begins, self._wake)
            assigned: dict[Feed, None] = {}
            while True:
                self._beat()
                with self._lock:
                    if self._closing:
                        return
                    changed, self._changed = self._changed, False
                    asked, self._asked = self._asked, []
                    followed = dict(self._followed)
                    restarted, self._restarted = self._restarted, set()
                waiting += asked
                if restarted:
                    assigned = {feed: None for feed in assigned if feed not in restarted}
                    self._assign(reader, assigned)
                if changed or self._fresh:
                    assigned = self._follow(reader, followed, assigned)
                self._ask(asked)
                waiting = self._answer(reader, waiting, assigned)
                if assigned:
                    self._read(reader, assigned, self._poll_s(waiting))
                    waiting = self._answer(reader, waiting, assigned)
                else:
                    time.sleep(WAITED_FOR_S)  # nothing is followed yet: somebody is about to say what
        except LogError as error:
            self._fail(error, waiting)
        except Exception as error:
            self._fail(LogError(f"following the log failed: {error!r}"), waiting)
        finally:
            with self._lock:
                self._closing = True
                waiting += self._asked
                self._asked = []
            for one in waiting:
                if not one.done.done():
                    one.done.set_exception(self.failure or _closed())
            if self._reader is not None:
                self._reader.close()

    def _fail(self, error: LogError, waiting: Sequence[_Wanted]) -> None:
        self.failure = error
        for one in waiting:
            if not one.done.done():
                one.done.set_exception(error)
        self._broke(error)

    def _poll_s(self, waiting: Sequence[_Wanted]) -> float:
        """Return how long to wait for records."""
        if any(not one.ends.open for one in waiting):
            return WAITED_FOR_S  # what one waits for may end with what is no record, which no poll returns for
        return AGAIN_S if waiting or self._fresh else POLL_S

    def _follow(self, reader: Reader, followed: Mapping[Feed, None], assigned: Mapping[Feed, None]) -> dict[Feed, None]:
        """Read what is to be followed, once it is known where it begins; return all that is read."""
        known = {feed for one in self._fresh for feed in (*one.open, *one.found)}
        new = [feed for feed in followed if feed not in assigned and feed not in known]
        if new:
            question = Question(new)
            self._fresh.append(question)
            self._begins.put(question)
        self._begins.turn()
        begins = {feed: begin for one in self._fresh for feed, begin in one.found.items() if feed in followed}
        for one in self._fresh:
            one.found.clear()
        self._fresh = [one for one in self._fresh if one.open]
        for feed, begin in begins.items():
            if begin > self._kept.position(feed):
                self._kept.begins_at(feed, begin)
        reading = {feed: None for feed in followed if feed in assigned or feed in begins}
        if reading.keys() != assigned.keys():
            self._assign(reader, reading)
        return reading

    def _assign(self, reader: Reader, assigned: Mapping[Feed, None]) -> None:
        reader.assign({feed: self._kept.position(feed) for feed in assigned})

    def _ask(self, asked: Sequence[_Wanted]) -> None:
        for one in asked:
            # Before the ends: whoever appends to its own feeds moves where they are kept to, meanwhile too.
            one.kept = {feed: self._kept.position(feed) for feed in one.ends.open}
            self._ends.put(one.ends)
        self._ends.turn()

    def _read(self, reader: Reader, assigned: Mapping[Feed, None], timeout_s: float) -> None:
        came: dict[Feed, list[In]] = {}
        before = {feed: reader.position(feed) for feed in assigned}
        for record in reader.poll(POLL_RECORDS, timeout_s):
            came.setdefault(record.feed, []).append(record)
        moved: dict[Feed, tuple[Sequence[In], int, int]] = {}
        for feed in assigned:
            records = came.get(feed, ())
            position = reader.position(feed)
            if records or position > before[feed]:
                moved[feed] = (records, before[feed], position)
        if moved:
            self._kept.add(moved)
        if came:
            self._heard()

    def _answer(self, reader: Reader, waiting: list[_Wanted], assigned: Mapping[Feed, None]) -> list[_Wanted]:
        left: list[_Wanted] = []
        for one in waiting:
            if one.done.done():
                continue
            shrunk = next((feed for feed, end in one.ends.found.items() if one.kept[feed] > end), None)
            if shrunk is not None:
                one.done.set_exception(_shrunk(shrunk, one.kept[shrunk], one.ends.found[shrunk]))
                continue
            one.done.behind = behind = [*one.ends.open]
            behind += [
                feed
                for feed, end in one.ends.found.items()
                # One that is followed no more is this process's own by now: what is in it is kept by whoever appends.
                if (reader.position(feed) < end if feed in assigned else feed in self._followed)
            ]
            if behind:
                left.append(one)
            else:
                one.done.set_result(None)
        return left


def _closed() -> LogError:
    return LogError("the log is closed")


def _shrunk(feed: Feed, at: int, end: int) -> LogCorrupt:
    return LogCorrupt(
        f"partition {feed.partition} of topic {feed.topic!r} ends at offset {end}, and this machine has read it to {at}: the "
        f"broker has lost records, or the topic was made anew. Nothing goes on there until somebody has looked",
        segment=feed.topic,
        position=end,
        reason="the broker has fewer records than were read",
    )
