"""Appends of one transactional id: a transaction each, and certainty about what became of it.

A commit whose answer got lost is neither a failure nor a success. It is settled before anything else is written: the id is
fenced again, which ends whatever was on its way; then the broker is read to its end, and the records are there or never
will be. While no broker answers, an append waits, as long as it takes: nothing that was decided is lost by an outage.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from gasoline_es.engine_log import EngineLog
from gasoline_es.errors import Fenced, LogError, RecordTooLarge
from gasoline_es.log.kafka.drivers.port import (
    BrokerError,
    Committed,
    Driver,
    Fate,
    NotWritten,
    Out,
    Refused,
    Unknown,
    Writer,
)

_log = EngineLog(__name__)

AGAIN_FIRST_S: Final = 0.05
AGAIN_MOST_S: Final = 2.0
TOLD_S: Final = 10.0
"""An append that waits for a broker says so, and again each time."""


class Evidence(ABC):
    """How a sender finds out whether it may write, and whether what it wrote is there."""

    def begin(self) -> None:
        """Note how things stand before anything is on its way: what is there later and not now is what was sent."""
        return

    @abstractmethod
    def still_mine(self) -> bool:
        """Whether nobody else has taken what is written to here, as of now. Raises: BrokerError."""

    def refused(self, topic: str, why: str) -> bool:
        """Learn that a topic has refused a record for what it is; whether whoever decided it can decide otherwise."""
        return False

    def hopeless(self, records: Sequence[Out]) -> str | None:
        """Say why the records can never be written, however often that is tried; None: they can. Raises: BrokerError."""
        return None

    @abstractmethod
    def find(self, records: Sequence[Out]) -> Sequence[int] | None:
        """Return the offsets of the records, if they are there as of now; None: none of them is. Raises: BrokerError."""


class Sender:
    """One transactional id at work. Sends take turns, those of callers that have gone too; any thread may ``stop`` it."""

    def __init__(self, driver: Driver, transactional_id: str, timeout_s: float, evidence: Evidence) -> None:
        self.transactional_id: Final = transactional_id
        self._driver = driver
        self._timeout_s = timeout_s
        self._evidence = evidence
        self._writer: Writer | None = None
        self._stopped = False
        self._sending: Final = threading.Lock()

    def fence(self) -> None:
        """Be the only one that can write under this id from now on. Raises: BrokerError: not reached; try again."""
        self._discard()
        if self._stopped:
            raise BrokerError("the log is being closed")
        writer = self._driver.writer(self.transactional_id, self._timeout_s)
        try:
            writer.fence()
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        if self._stopped:  # in the middle of it, so that nobody else would let go of this one
            self._discard()
            raise BrokerError("the log is being closed")

    def begin(self, records: Sequence[Out]) -> Fate:
        """Commit right after :meth:`fence`, once, whatever becomes of it."""
        if self._writer is None:
            raise BrokerError("the log is being closed")
        return self._writer.commit(records)

    def send(self, records: Sequence[Out]) -> Sequence[int]:
        """Append the records, all or nothing; return their offsets. On return they are durable and everybody sees them.

        Raises: Fenced: none of them is there: somebody else has taken over. RecordTooLarge: the broker takes no such
            record. LogError: it was stopped; if records were on their way, whether they are there is not known.
        """
        with self._sending:
            return self._send(records)

    def _send(self, records: Sequence[Out]) -> Sequence[int]:
        trouble = _Trouble(self.transactional_id)
        self._evidence.begin()
        on_its_way = False
        while True:
            try:
                if self._writer is None:
                    if not self._evidence.still_mine():
                        raise self._fenced("somebody else has taken it")
                    self.fence()
                    # Only now nothing can come any more: what is not there by now never will be.
                    if on_its_way:
                        found = self._evidence.find(records)
                        if found is not None:
                            return found
                        on_its_way = False
                    if not self._evidence.still_mine():
                        raise self._fenced("somebody else has taken it")
                    # None of them is there, nor will be: whoever decided them decides anew, by what is there now.
                    hopeless = self._evidence.hopeless(records)
                    if hopeless is not None:
                        raise self._fenced(hopeless)
                writer = self._writer
                if writer is None:  # stopped meanwhile
                    raise BrokerError("the log is being closed")
                fate = writer.commit(records)
            except BrokerError as error:
                trouble.met(error.message)
                self._discard()
                self._wait(trouble, on_its_way)
                continue
            match fate:
                case Committed(offsets):
                    trouble.over()
                    return offsets
                case Refused(why):
                    # Whoever fenced it may have found out since that this one lives, and have begun nothing. The owners'
                    # records tell, and if they do, the id is fenced back; else somebody else goes on from here.
                    self._discard()
                    trouble.met(why)
                case NotWritten(why, too_large, refused):
                    self._discard()
                    if too_large:
                        self._require_hope(records)
                        raise RecordTooLarge(f"the broker refuses a record as too large: {why}")
                    if refused is not None and self._evidence.refused(refused, why):
                        raise self._fenced(f"topic {refused!r} has refused a record: {why}")
                    trouble.met(why, refused)
                case Unknown(why, fenced):
                    self._discard()
                    if fenced and not self._evidence.still_mine():
                        raise self._fenced(why)  # the new owner reads back what counts
                    on_its_way = True
                    trouble.met(why)
            self._wait(trouble, on_its_way)

    def stop(self) -> None:
        """Let whoever waits in here give up, and let go of the writer."""
        self._stopped = True
        self._discard()

    def _wait(self, trouble: _Trouble, on_its_way: bool) -> None:
        if not self._stopped:
            time.sleep(trouble.pause_s)
        if self._stopped:
            raise LogError(
                "the log was closed before the broker answered: "
                + ("whether the last append counts is not known" if on_its_way else "the last append does not count")
            )

    def _require_hope(self, records: Sequence[Out]) -> None:
        """Raises: Fenced: a topic of others takes no such records any more, and whoever decided them has to look again."""
        with suppress(BrokerError):
            hopeless = self._evidence.hopeless(records)
            if hopeless is not None:
                raise self._fenced(hopeless)

    def _discard(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _fenced(self, why: str) -> Fenced:
        return Fenced(f"{self.transactional_id} cannot append any more: {why}")


class _Trouble:
    """What has gone wrong with one append so far, and how often that was said."""

    def __init__(self, transactional_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._id = transactional_id
        self._clock = clock
        self._since: float | None = None
        self._told: float | None = None
        self.pause_s = AGAIN_FIRST_S / 2

    def met(self, why: str, refused: str | None = None) -> None:
        """Take note of what went wrong. ``refused``: a topic of ours takes no such record, until its settings are changed."""
        now = self._clock()
        self.pause_s = min(self.pause_s * 2, AGAIN_MOST_S)
        if self._since is None:
            self._since = now
        if refused is not None:
            if self._told is None or now - self._told >= TOLD_S:
                self._told = now
                _log.error(
                    "topic %s refuses a record of %s, which is tried again: %s. Look at the settings of the topic "
                    "(message.timestamp.*) and at the clock of this host",
                    refused,
                    self._id,
                    why,
                    extra={"transactional_id": self._id, "topic": refused, "why": why},
                )
        elif now - (self._told or self._since) >= TOLD_S:
            self._told = now
            _log.warning(
                "an append of %s has waited for the broker for %.0f s: %s",
                self._id,
                now - self._since,
                why,
                extra={"transactional_id": self._id, "waited_s": now - self._since, "why": why},
            )

    def over(self) -> None:
        if self._told is not None and self._since is not None:
            waited = self._clock() - self._since
            _log.info(
                "the broker takes appends of %s again, after %.0f s",
                self._id,
                waited,
                extra={"transactional_id": self._id, "waited_s": waited},
            )
