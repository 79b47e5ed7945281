"""What the follower asks the broker about many feeds at once: of a topic that nobody answers for, it is asked apart.

One that was deleted keeps a client asking until its time is over. Nobody who waits for something else is to wait for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gasoline_es.log.kafka.drivers.port import BrokerError, Feed

TOGETHER_S: Final = 2.0
"""So long a question about many topics may take: meanwhile nothing is read."""
ASK_S: Final = 10.0
"""So long one about a topic apart may take. Whoever asked waits on: it is asked again."""
AGAIN_S: Final = 0.2

Answer: TypeAlias = Mapping[Feed, int]


class Question:
    """An offset of each of some feeds, as of after it was put."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self.found: Final[dict[Feed, int]] = {}
        self.open: Final = dict.fromkeys(feeds)

    def learn(self, answer: Answer) -> None:
        """Take what was answered."""
        for feed in [feed for feed in self.open if feed in answer]:
            self.found[feed] = answer[feed]
            del self.open[feed]


@dataclass(slots=True)
class _Apart:
    """A topic that was not answered for. One thread at a time asks about it."""

    waiting: list[Question] = field(default_factory=list[Question])
    """Those that were put since it was last asked about."""
    asked: list[Question] = field(default_factory=list[Question])
    answer: Future[Answer] | None = None
    again_at_s: float = 0.0


class Questions:
    """Of one kind. For the follower's thread."""

    def __init__(self, ask: Callable[[Sequence[Feed], float], Answer], answered: Callable[[], None]) -> None:
        """``ask``: called in any thread. ``answered``: called in another one when there is something for :meth:`turn`."""
        self._ask = ask
        self._answered = answered
        self._new: list[Question] = []
        self._apart: dict[str, _Apart] = {}

    def put(self, question: Question) -> None:
        """Have a question asked by the next turn."""
        self._new.append(question)

    def turn(self) -> None:
        """Ask what was put, and hand out what was answered."""
        for topic, apart in list(self._apart.items()):
            if apart.answer is not None and apart.answer.done():
                self._learn(topic, apart, apart.answer)
        new, self._new = self._new, []
        together = list(dict.fromkeys(feed for one in new for feed in one.open if feed.topic not in self._apart))
        if together:
            answer: Answer = {}
            try:
                answer = self._ask(together, TOGETHER_S)
            except BrokerError:
                self._apart |= {feed.topic: _Apart() for feed in together}
            for one in new:
                one.learn(answer)
        for one in new:
            for topic in dict.fromkeys(feed.topic for feed in one.open):
                self._apart[topic].waiting.append(one)
        for topic, apart in self._apart.items():
            if apart.answer is None and time.monotonic() >= apart.again_at_s:
                self._ask_apart(topic, apart)

    def _learn(self, topic: str, apart: _Apart, answer: Future[Answer]) -> None:
        apart.answer = None
        error = answer.exception()
        if error is not None and not isinstance(error, BrokerError):
            raise error
        if error is not None:
            apart.waiting, apart.asked = apart.asked + apart.waiting, []
            apart.again_at_s = time.monotonic() + AGAIN_S
            return
        for one in apart.asked:
            one.learn(answer.result())
        self._new += apart.waiting
        del self._apart[topic]

    def _ask_apart(self, topic: str, apart: _Apart) -> None:
        apart.asked, apart.waiting = apart.waiting, []
        feeds = list(dict.fromkeys(feed for one in apart.asked for feed in one.open if feed.topic == topic))
        answer = apart.answer = Future[Answer]()

        def run() -> None:
            try:
                answer.set_result(self._ask(feeds, ASK_S))
            except BaseException as error:  # also what comes of a client that is closed meanwhile
                answer.set_exception(error)
            self._answered()

        threading.Thread(target=run, name="gasoline-kafka-ask", daemon=True).start()
