"""Restarts with care what was under way when a process died: one of it may have been the cause (design §5).

An activity is a *suspect* when it was under way as the last owner of its partition died: a running workflow, replayed, comes
to it before anything new is recorded. It is recorded as started
before it is started again, so that a process which dies of it leaves a count behind. How carefully, goes by that count:

* none: with others of its kind, at most ``TOGETHER_MAX`` of which are on trial at a time;
* one: with no other on trial, in its first ``TRIAL_S[1]`` seconds;
* more: with no other suspect under way at all, until it ends. Only so the count tells of nobody but itself;
* ``STARTS_MAX``: not at all. The activity has failed for good.

Those with low counts come first: nearly all of them are innocent, and what they are waited for is not theirs to pay. New
work is not held back.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable
from typing import Final

from gasoline_es.clock import Clock
from gasoline_es.core import events as ev
from gasoline_es.core.decide import STARTS_MAX, process_died
from gasoline_es.core.location import format_location
from gasoline_es.core.replay import Run
from gasoline_es.core.state import Started
from gasoline_es.core.waits import WaitActivity
from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import LogError
from gasoline_es.runtime.activities import ActivityRunner, key_at
from gasoline_es.runtime.live import Live
from gasoline_es.runtime.partition import Partition

_log = EngineLog(__name__)

TRIAL_S: Final = (0.5, 5.0)
"""For how long a suspect is on trial, by how often it was started before; beyond, until it ends."""
TOGETHER_MAX: Final = 50
"""So many suspects that were never started before may be on trial at a time."""
QUIET_S: Final = 0.5
"""Those that were are started only when no new suspect has come up for so long: the others go first."""


class _Suspect:
    """``started``: how often it was started since it last ended, and when the last time; None: never."""

    __slots__ = ("key", "live", "started", "timer", "wait")

    def __init__(self, key: str, live: Live, wait: WaitActivity, started: Started | None) -> None:
        self.key = key
        self.live = live
        self.wait = wait
        self.started = started
        self.timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        return 0 if self.started is None else self.started.times

    @property
    def wanted(self) -> bool:
        live = self.live
        run = live.run
        return (
            run is not None
            and not live.partition.lost
            and run.waits.get(self.wait.location) is self.wait
            and live.state.summary.incomplete  # its end may be decided, and not durable yet
        )

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Suspects:
    """The suspects of a worker: held, on trial, under way."""

    def __init__(self, runner: ActivityRunner, clock: Clock) -> None:
        self.expected: dict[str, Live] = {}
        """Where activities will come up that are suspects."""
        self.held: dict[str, _Suspect] = {}
        """Those that are still to be started, by key."""
        self.under_way: dict[str, _Suspect] = {}
        """Those that were started, or are about to be as soon as that is durable, and have not ended."""
        self._trial: dict[str, _Suspect] = {}
        """Those of them that must still show that they do no harm."""
        self._order: list[tuple[int, int, int, _Suspect]] = []
        """A heap of the held ones, and of some that are not any more: the next to be started first."""
        self._entered = 0
        self._quiet_at = 0.0
        self._look_again: asyncio.TimerHandle | None = None
        self._runner = runner
        self._clock = clock
        self._loop = asyncio.get_running_loop()

    def expect(self, live: Live, run: Run, now_us: int) -> None:
        """Note what a replay has come to that was under way: what it comes to after something new was recorded was not."""
        live.partition.suspects.discard(live.id)
        for wait in run.fresh:
            if isinstance(wait, WaitActivity) and not wait.over and (wait.not_before_us or 0) <= now_us:
                self.expected[key_at(live.state, wait.location)] = live

    def holds(self, live: Live, wait: WaitActivity) -> bool:
        """Whether an activity is one of the suspects that are not to be started yet; if so, it is held."""
        key = key_at(live.state, wait.location)
        if key in self.under_way or (self.expected.pop(key, None) is None and key not in self.held):
            return False
        started = live.state.starts.get(wait.location)
        if started is not None and started.times >= STARTS_MAX:
            self.held.pop(key, None)
            self._give_verdict(live, wait, started)
            return True
        assert live.run is not None
        live.run.suspect(wait)
        suspect = self.held[key] = _Suspect(key, live, wait, started)
        self._entered += 1
        latest_first = 0 if started is None else -started.time_us
        heapq.heappush(self._order, (suspect.count, latest_first, self._entered, suspect))
        self._quiet_at = self._loop.time() + QUIET_S
        self._start_more()
        return True

    def ended(self, key: str) -> None:
        """The attempt of a suspect is over, or nobody waits for it any more."""
        self.expected.pop(key, None)
        self.held.pop(key, None)
        self._trial.pop(key, None)
        suspect = self.under_way.pop(key, None)
        if suspect is not None:
            suspect.stop_timer()
        self._start_more()

    def forget(self, lives: Iterable[Live]) -> None:
        """The partition of these is not ours any more."""
        gone = {live.id for live in lives}
        for key in [key for key, live in self.expected.items() if live.id in gone]:
            del self.expected[key]
        for suspects in (self.held, self.under_way):
            for suspect in [one for one in suspects.values() if one.live.id in gone]:
                suspect.stop_timer()
                self._trial.pop(suspect.key, None)
                del suspects[suspect.key]
        self._start_more()

    def move(self, old: Live, new: Live) -> None:
        """A workflow starts over: what stays of it is as suspect as before, and the rest is not waited for any more."""
        for key, live in list(self.expected.items()):
            if live is old:
                self.expected[key] = new
        for suspects in (self.held, self.under_way):
            for suspect in [one for one in suspects.values() if one.live is old]:
                stays = suspect.key == key_at(new.state, suspect.wait.location)
                if not stays:
                    suspect.stop_timer()
                    self._trial.pop(suspect.key, None)
                    del suspects[suspect.key]
                elif suspects is self.held:
                    del suspects[suspect.key]  # the new body comes to it anew
                    self.expected[suspect.key] = new
                else:
                    suspect.live = new
        self._start_more()

    def hand_back(self, partition: Partition | None = None) -> None:
        """Tell a partition, or all of them, what is held: for whoever drives it next. Here it is held no more."""
        for key, live in list(self.expected.items()):
            if partition in (None, live.partition):
                live.partition.suspects.add(live.id)
                del self.expected[key]
        for key, suspect in list(self.held.items()):
            if partition in (None, suspect.live.partition):
                suspect.live.partition.suspects.add(suspect.live.id)
                del self.held[key]

    def close(self) -> None:
        """Start nothing more."""
        self.hand_back()
        for suspect in self.under_way.values():
            suspect.stop_timer()
        if self._look_again is not None:
            self._look_again.cancel()
        self.under_way.clear()
        self._trial.clear()
        self._order.clear()

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start_more(self) -> None:
        while self.held and not self._runner.stopping:
            while self._order and self.held.get(self._order[0][3].key) is not self._order[0][3]:
                heapq.heappop(self._order)
            suspect = self._order[0][3]
            if not self._may_start(suspect):
                return
            heapq.heappop(self._order)
            del self.held[suspect.key]
            if suspect.wanted:
                self._record_start(suspect)
            else:
                self._suspect_again(suspect)

    def _may_start(self, suspect: _Suspect) -> bool:
        if suspect.count == 0:
            return len(self._trial) < TOGETHER_MAX and not any(one.count for one in self._trial.values())
        if self._loop.time() < self._quiet_at:
            if self._look_again is None:
                self._look_again = self._loop.call_at(self._quiet_at, self._when_quiet)
            return False
        return not (self._trial if suspect.count < len(TRIAL_S) else self.under_way)

    def _when_quiet(self) -> None:
        self._look_again = None
        self._start_more()

    def _record_start(self, suspect: _Suspect) -> None:
        self.under_way[suspect.key] = self._trial[suspect.key] = suspect
        live, step = suspect.live, suspect.wait.step
        started = ev.ActivityStarted(suspect.wait.location, step.version, step.plan.name, suspect.wait.attempt)
        live.partition.record(live, started)
        live.partition.when_durable(lambda error: self._start(suspect, error))

    def _start(self, suspect: _Suspect, error: LogError | None) -> None:
        """Start it, now that its start is durable."""
        if self.under_way.get(suspect.key) is not suspect:
            return
        if error is not None:
            self.ended(suspect.key)
            self._suspect_again(suspect)
        elif not suspect.wanted or self._runner.stopping:
            self.ended(suspect.key)
        else:
            self._runner.start(suspect.live, suspect.wait, self._clock.now_us())
            self._watch(suspect)

    def _suspect_again(self, suspect: _Suspect) -> None:
        """Its workflow is driven anew, from the log: it comes up once more."""
        self.expected[suspect.key] = suspect.live

    def _watch(self, suspect: _Suspect) -> None:
        if suspect.count < len(TRIAL_S) and self.under_way.get(suspect.key) is suspect:
            suspect.timer = self._loop.call_later(TRIAL_S[suspect.count], self._stood, suspect)

    def _stood(self, suspect: _Suspect) -> None:
        """Its trial is over."""
        suspect.timer = None
        if self._runner.runs(suspect.key):
            self._trial.pop(suspect.key, None)
            self._start_more()
        else:
            self._watch(suspect)  # it waits for its turn among all activities

    def _give_verdict(self, live: Live, wait: WaitActivity, started: Started) -> None:
        live.partition.record(live, process_died(wait, started))
        _log.error(
            "activity %s at %s of workflow %s %s is not started again: its process died %d times while it ran",
            wait.step.plan.name,
            format_location(wait.location),
            live.state.summary.name,
            live.id,
            started.times,
            extra={
                **live.fields,
                "location": format_location(wait.location),
                "activity": wait.step.plan.name,
                "starts": started.times,
            },
        )
