"""Topics of others in the cluster: how many partitions each has, and whether this process may write or read there.

It is asked before anything is decided that rests on it. What the broker refuses once it was decided would keep all that was
decided with it waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Final

from gasoline_es.core.topics import is_reserved
from gasoline_es.errors import TopicRefused
from gasoline_es.log.kafka.drivers.port import Admin, BrokerError, Driver, Feed, NotAllowed, Out
from gasoline_es.log.port import RECORD_BYTES_MAX, check_foreign

KNOWN_S: Final = 60.0
"""So long it is relied on what was told of a topic."""
ASK_S: Final = 60.0
REFUSED_S: Final = 60.0
"""So long nothing is written to a topic that has refused a record for what it is: what refuses it is set by people."""


class Others:
    """What was asked about topics of others. On the event loop, unless a method says otherwise."""

    def __init__(
        self,
        url: str,
        driver: Driver,
        namespace: str,
        prefix: str,
        known: set[Feed],
        in_pool: Callable[[Callable[[str, bool], int], str, bool], Awaitable[int]],
    ) -> None:
        """``known``: feeds that are known to be there, which is kept up here. ``in_pool``: calls in a thread."""
        self._url: Final = url
        self._driver: Final = driver
        self._namespace: Final = namespace
        self._prefix: Final = prefix
        self._known: Final = known
        self._in_pool: Final = in_pool
        self._loop: Final = asyncio.get_running_loop()
        self._looking: Final = asyncio.Lock()
        self._told: dict[tuple[str, bool], tuple[int, float]] = {}
        """By topic and whether it is to be read: how many partitions it has, and until when that is relied on."""
        self._refusals: dict[str, tuple[str, float]] = {}
        """By topic: with what it has refused a record, and until when that is relied on. Written by threads."""

    async def partitions_of(self, topic: str, *, reading: bool) -> int:
        """Return how many partitions a topic has (see the log port). Raises: TopicRefused, BrokerError."""
        if not reading and (refusal := self._refusal(topic)) is not None:
            raise refusal
        told = self._told.get((topic, reading))
        if told is None or told[1] <= time.monotonic():
            check_foreign(topic, self._namespace)
            check_foreign(topic.removeprefix(self._prefix), self._namespace)
            async with self._looking:  # many ask at once: one looks
                told = self._told.get((topic, reading))
                if told is None or told[1] <= time.monotonic():
                    try:
                        partitions = await self._in_pool(self._look_at, topic, reading)
                    except BrokerError:
                        if told is None:
                            raise
                        return told[0]  # the append itself waits for the broker
                    except TopicRefused:
                        self._forget(topic)
                        raise
                    told = self._told[topic, reading] = partitions, time.monotonic() + KNOWN_S
                    self._known.update(Feed(topic, partition) for partition in range(partitions))
        return told[0]

    def why_not(self, records: Sequence[Out]) -> str | None:
        """Say of which topic these records can never be written, as things are now; in a thread. Raises: BrokerError."""
        feeds = {out.feed for out in records if not is_reserved(out.feed.topic.removeprefix(self._prefix))}
        if not feeds:
            return None
        last = {feed.topic: feed.partition for feed in sorted(feeds)}
        with closing(self._driver.admin()) as admin:
            for topic, partition in last.items():
                try:
                    if partition < self._ask(admin, topic, reading=False):
                        continue
                    why = f"topic {topic!r} was made anew, with fewer partitions"
                except TopicRefused as refused:
                    why = refused.message
                self._loop.call_soon_threadsafe(self._forget, topic)
                return f"records were on their way, and {why}"
        return None

    def refused(self, topic: str, why: str) -> bool:
        """Have it known that a topic has refused a record for what it is; False: it is none of others. From any thread."""
        if is_reserved(topic.removeprefix(self._prefix)):
            return False
        self._refusals[topic] = why, time.monotonic() + REFUSED_S
        return True

    def _refusal(self, topic: str) -> TopicRefused | None:
        why, until_s = self._refusals.get(topic, ("", 0.0))
        if until_s <= time.monotonic():
            self._refusals.pop(topic, None)
            return None
        return TopicRefused(
            f"topic {topic!r} of the cluster of {self._url} has refused a record for what it is ({why}), and for "
            f"{REFUSED_S:g} s nothing is written to it. Look at its settings (kafka-configs.sh --describe --topic {topic}: "
            f"message.timestamp.*) and at the clock of this host",
            topic=topic,
        )

    def _forget(self, topic: str) -> None:
        for reading in (False, True):
            self._told.pop((topic, reading), None)
        self._known.difference_update([feed for feed in self._known if feed.topic == topic])

    def _look_at(self, topic: str, reading: bool) -> int:
        with closing(self._driver.admin()) as admin:
            return self._ask(admin, topic, reading=reading)

    def _ask(self, admin: Admin, topic: str, *, reading: bool) -> int:
        """Ask the cluster about a topic; in a thread. Raises: TopicRefused, BrokerError."""
        try:
            found = admin.describe([topic], ASK_S, settings=not reading).get(topic)
        except NotAllowed as error:
            raise self._not_allowed(topic, reading, ", if that is there") from error
        if found is None:
            raise TopicRefused(
                f"there is no topic {topic!r} in the cluster of {self._url}. Make it: kafka-topics.sh --create "
                f"--topic {topic}",
                topic=topic,
            )
        if not found.may("READ" if reading else "WRITE"):
            raise self._not_allowed(topic, reading, "")
        takes = RECORD_BYTES_MAX if reading else int(found.config.get("max.message.bytes", RECORD_BYTES_MAX))
        if takes < RECORD_BYTES_MAX:
            # Records go in batches, and one that the broker refuses would keep all that is decided with it waiting.
            raise TopicRefused(
                f"topic {topic!r} takes batches of {takes} bytes, and must take {RECORD_BYTES_MAX}. Set it: kafka-configs.sh "
                f"--alter --topic {topic} --add-config max.message.bytes=1048588",
                topic=topic,
            )
        return found.partitions

    def _not_allowed(self, topic: str, reading: bool, perhaps: str) -> TopicRefused:
        what, operations = ("read", ("Read",)) if reading else ("write to", ("Write", "DescribeConfigs"))
        words = "".join(f" --operation {one}" for one in operations)
        return TopicRefused(
            f"the cluster of {self._url} does not let this process {what} topic {topic!r}{perhaps}. Allow it: kafka-acls.sh "
            f"--add --allow-principal User:… --topic {topic}{words}",
            topic=topic,
        )
