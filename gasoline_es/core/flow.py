"""Steps made of other steps: what stands between a body and the branches, joins, races and loops it awaits (semantics.md §4).

A *node* is one step on its way: placed first (its location is settled, in the order of the arguments), then started,
then answered by its *asker* being told. A node may be dropped instead, when a race is decided without it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from gasoline_es.core.branch import Branch
from gasoline_es.core.history import MessageEntry
from gasoline_es.core.steps import (
    Break,
    CatchStep,
    CheckpointStep,
    CheckVersionStep,
    ClosureStep,
    JoinStep,
    LoopStep,
    MessageStep,
    RaceStep,
    RemovedStep,
    Step,
    ValueStep,
)
from gasoline_es.core.waits import Asker, Failure, Wait, WaitCommit, made_cancel
from gasoline_es.errors import Cancelled, StepMisused

if TYPE_CHECKING:
    from gasoline_es.core.replay import Run
    from gasoline_es.core.strand import Strand


class Node(Protocol):
    """One step on its way."""

    def start(self) -> None:
        """Go on as far as what is recorded allows; may tell the asker at once."""

    def cancel(self) -> None:
        """Let what is awaited below it, and has not ended, give a cancel in place of its answer."""

    def drop(self) -> None:
        """Nobody waits for it any more: close what is below it."""


def place(run: Run, step: Step, asker: Asker, *, joined: bool) -> Node:
    """Give a step its location on the asker's branch, in the order of the calls. ``joined``: others stand beside it.

    Raises: HistoryDiverged: the step does not fit what is recorded there.
    """
    branch = asker.branch
    if isinstance(step, ClosureStep):
        entry = branch.open(step, "closure" if step.name is None else "run", step.name)
        return _Body(run, step, asker, branch.below(entry.location, step.version))
    if isinstance(step, JoinStep):
        return _Join(run, step, asker)
    if isinstance(step, RaceStep):
        return _Race(run, step, asker)
    if isinstance(step, CatchStep):
        return _Catch(run, step, asker, joined=joined)
    if isinstance(step, LoopStep):
        return _Loop(run, step, asker)
    if isinstance(step, MessageStep):
        return _Message(run, branch.send(step), asker)
    if isinstance(step, ValueStep):
        return _Value(asker, step.value)
    if isinstance(step, CheckpointStep):
        raise _not_alone(step)
    if isinstance(step, RemovedStep):
        branch.removed(step)
        return _Value(asker, None)
    if isinstance(step, CheckVersionStep):
        return _Value(asker, branch.check_version(step))
    return _Leaf(run, branch.wait_for(step, asker, run.now_us, joined=joined))


class _Leaf:
    """A step that is answered from outside."""

    __slots__ = ("_run", "_wait")

    def __init__(self, run: Run, wait: Wait) -> None:
        self._run = run
        self._wait = wait

    def start(self) -> None:
        self._run.wait_for(self._wait)

    def cancel(self) -> None:
        self._run.interrupt(self._wait)

    def drop(self) -> None:
        self._run.give_up(self._wait)


class _Message:
    """A message, which is sent as it is placed. Its asker goes on once that is durable, in its turn."""

    __slots__ = ("_asker", "_entry", "_run", "_sent", "branch")

    def __init__(self, run: Run, entry: MessageEntry, asker: Asker) -> None:
        self._run = run
        self._entry = entry
        self._asker = asker
        self._sent: WaitCommit | None = None
        self.branch = asker.branch

    def start(self) -> None:
        self._sent = WaitCommit(self, self._entry.seq)
        self._run.wait_for_commit(self._sent)

    def answered(self, value: Any, error: Failure | None) -> None:
        """Learn that its turn has come."""
        self.branch.pass_sent(self._entry)
        self._asker.answered(None, None)

    def cancel(self) -> None:
        pass  # as every send, it is let finish: it is out

    def drop(self) -> None:
        if self._sent is not None:
            self._sent.over = True


class _Value:
    """A step that needs no waiting."""

    __slots__ = ("_asker", "_value")

    def __init__(self, asker: Asker, value: Any) -> None:
        self._asker = asker
        self._value = value

    def start(self) -> None:
        self._asker.answered(self._value, None)

    def cancel(self) -> None:
        pass

    def drop(self) -> None:
        pass


class _Body:
    """A closure, or another workflow's body run inline."""

    __slots__ = ("_step", "_strand")

    def __init__(self, run: Run, step: ClosureStep, asker: Asker, branch: Branch) -> None:
        self._step = step
        self._strand = run.strand(asker, branch)

    def start(self) -> None:
        self._strand.start(self._step.body)

    def cancel(self) -> None:
        self._strand.cancel()

    def drop(self) -> None:
        self._strand.drop()


class _Part:
    """The asker of one step of several."""

    __slots__ = ("_index", "_whole", "branch")

    def __init__(self, whole: _Join | _Race, index: int, branch: Branch) -> None:
        self._whole = whole
        self._index = index
        self.branch = branch

    def answered(self, value: Any, error: Failure | None) -> None:
        self._whole.part(self._index, value, error)


class _Join:
    """Steps side by side. Each is driven to its own end; then the first error in the order of the arguments is raised.

    A cancel goes before every error.
    """

    __slots__ = ("_asker", "_errors", "_left", "_nodes", "_run", "_started", "_step", "_values")

    def __init__(self, run: Run, step: JoinStep, asker: Asker) -> None:
        self._run = run
        self._step = step
        self._asker = asker
        self._left = len(step.steps)
        self._started = False
        self._values: list[Any] = [None] * self._left
        self._errors: dict[int, Failure] = {}
        self._nodes = [
            place(run, one, _Part(self, index, asker.branch), joined=True) for index, one in enumerate(step.steps)
        ]

    def start(self) -> None:
        if not self._nodes:
            self._end()
            return
        self._started = True
        self._run.side_by_side += 1
        for node in self._nodes:
            if self._run.ended:
                return
            node.start()

    def part(self, index: int, value: Any, error: Failure | None) -> None:
        self._values[index] = value
        if error is not None:
            self._errors[index] = error
        self._left -= 1
        if self._left == 0:
            self._run.side_by_side -= 1
            self._nodes = []
            self._end()

    def _end(self) -> None:
        if self._errors:
            self._asker.answered(None, _cancel_among(self._errors) or self._errors[min(self._errors)])
        else:
            self._asker.answered(self._step.make(self._values), None)

    def cancel(self) -> None:
        for node in self._nodes:
            node.cancel()

    def drop(self) -> None:
        if self._started and self._left:
            self._run.side_by_side -= 1
        self._started = False
        for node in self._nodes:
            node.drop()
        self._nodes = []


class _Race:
    """Steps side by side, each on its own branch below the race's location, until the first succeeds.

    Who wins follows from the order of the recorded answers alone, so a replay comes to the same winner. Where new code has
    more to do before the recorded winner is there, or less before another one is, the record stands: the others are let
    go where they were let go at first, and the winner is waited for.
    """

    __slots__ = (
        "_asker",
        "_branches",
        "_decision",
        "_entry",
        "_errors",
        "_nodes",
        "_over",
        "_run",
        "_started",
        "_step",
        "branch",
    )

    def __init__(self, run: Run, step: RaceStep, asker: Asker) -> None:
        self._run = run
        self._step = step
        self._asker = asker
        self.branch = asker.branch
        self._entry = self.branch.open(step, "race")
        self.branch.check_winner(step, self._entry, len(step.steps))
        self._errors: dict[int, Failure] = {}
        self._started = self._over = False
        self._decision: WaitCommit | None = None
        self._branches = [
            self.branch.below((*self._entry.location, (index + 1,)), one.version)
            for index, one in enumerate(step.steps)
        ]
        self._nodes = [self._place(index, one) for index, one in enumerate(step.steps)]

    def _place(self, index: int, step: Step) -> Node:
        branch = self._branches[index]
        part = _Part(self, index, branch)
        if isinstance(step, ClosureStep) and step.name is None:
            return _Body(self._run, step, part, branch)  # its own branch already
        return place(self._run, step, part, joined=False)

    def start(self) -> None:
        self._started = True
        self._run.side_by_side += 1
        if self._entry.winner is not None:
            self._decision = WaitCommit(self, self._entry.seq)
            self._run.wait_for_commit(self._decision)
        for node in self._nodes:
            if self._over or self._run.ended:
                return
            node.start()

    def answered(self, value: Any, error: Failure | None) -> None:
        """Learn that the recorded decision's turn has come, and the winner is not there yet."""
        for index, node in enumerate(self._nodes):
            if index != self._entry.winner:
                node.drop()

    def part(self, index: int, value: Any, error: Failure | None) -> None:
        if self._over:
            return
        recorded = self._entry.winner
        if recorded is not None and (index != recorded or error is not None):
            if index == recorded:
                raise self.branch.other_winner(self._step, self._entry, "the winner fails") from error
            return
        if error is None:
            self._branches[index].cursor.finish()
            self._end(index, _to_look_at(self._step.encoders[index](value)))
            self._asker.answered((index, value), None)
            return
        self._errors[index] = error
        if len(self._errors) == len(self._step.steps):
            self._end(None, b"null")
            uncaught = _uncaught_among(self._errors)
            if uncaught is not None:
                self._asker.answered(None, uncaught)
                return
            errors = [error for _, error in sorted(self._errors.items()) if isinstance(error, Exception)]
            self._asker.answered(None, ExceptionGroup("every competitor of the race failed", errors))

    def cancel(self) -> None:
        for node in self._nodes:
            node.cancel()

    def _end(self, winner: int | None, value: bytes) -> None:
        self.drop(but=winner)
        self.branch.decide_race(self._step, self._entry, winner, value)

    def drop(self, but: int | None = None) -> None:
        if self._over:
            return
        self._over = True
        if self._decision is not None:
            self._decision.over = True
        if self._started:
            self._run.side_by_side -= 1
        for index, node in enumerate(self._nodes):
            if index != but and index not in self._errors:
                node.drop()
        self._nodes = []


RACE_VALUE_BYTES_MAX: Final = 100_000
"""A winner's value is recorded for people to look at, up to so many bytes of JSON."""


def _to_look_at(value: bytes) -> bytes:
    """What is recorded of a winner's value: a replay takes it from the winner's own steps, so it may be left out."""
    return value if len(value) <= RACE_VALUE_BYTES_MAX else b"null"


class _Catch:
    """A step whose failure is a value."""

    __slots__ = ("_asker", "_node", "_step", "branch")

    def __init__(self, run: Run, step: CatchStep, asker: Asker, *, joined: bool) -> None:
        self._step = step
        self._asker = asker
        self.branch = asker.branch
        self._node = place(run, step.step, self, joined=joined)

    def start(self) -> None:
        self._node.start()

    def answered(self, value: Any, error: Failure | None) -> None:
        if error is not None and not isinstance(error, Exception):
            self._asker.answered(None, error)
        else:
            self._asker.answered(self._step.made(value) if error is None else self._step.failed(error), None)

    def cancel(self) -> None:
        self._node.cancel()

    def drop(self) -> None:
        self._node.drop()


class _Iteration:
    """The asker of one iteration's body."""

    __slots__ = ("_loop", "branch")

    def __init__(self, loop: _Loop, branch: Branch) -> None:
        self._loop = loop
        self.branch = branch

    def answered(self, value: Any, error: Failure | None) -> None:
        self._loop.iterated(value, error)


class _Loop:
    """A body again and again, each iteration on its own branch; it starts after the last committed one.

    What happened before a commit is forgotten, so a replay must find there what the first run had: the state as it comes
    back from its encoding, the commit's time, and, where other steps go on beside it, its turn among them: the loop goes
    on, or gives its value, when the commit's turn comes. Its clock is its own: the branch's shows its neighbours' times.
    """

    __slots__ = (
        "_asker",
        "_cancelled",
        "_carried",
        "_committed",
        "_done",
        "_entry",
        "_node",
        "_result",
        "_run",
        "_starting",
        "_state",
        "_step",
        "branch",
    )

    def __init__(self, run: Run, step: LoopStep, asker: Asker) -> None:
        self._run = run
        self._step = step
        self._asker = asker
        self._entry = asker.branch.open_loop(step)
        self.branch = asker.branch.below(self._entry.location, self._entry.version)
        self._done = self._committed = self._entry.iteration
        self._state: Any = None
        self._node: Strand | WaitCommit | None = None
        self._starting = self._cancelled = False
        self._result: tuple[Any, Failure | None] | None = None

    def start(self) -> None:
        if self._entry.output is None:
            self._state = self.branch.loop_state(self._step, self._entry)
        # Not before: handlers are in the order in which they were given, and what was placed before it may give some.
        self._carried = self._run.handlers.restore(self._entry)
        if self._done and self._run.side_by_side:
            self._wait_for_commit(self._entry.seq)
        else:
            self.answered(None, None)

    def _go(self) -> None:
        """Run iterations until one has to wait. (A loop, because iterations that never wait would nest too deep.)"""
        while not self._run.ended:
            branch = self.branch.below((*self._entry.location, (self._done + 1,)), self._entry.version)
            self._node = strand = self._run.strand(_Iteration(self, self.branch), branch)
            self._starting, self._result = True, None
            strand.start(self._body)
            self._starting = False
            result: tuple[Any, Failure | None] | None = self._result  # set meanwhile, if the body is over already
            if result is None or not self._goes_on(*result):
                return

    def _body(self, port: Any) -> Coroutine[Any, Any, Any]:
        return self._step.body(port, self._state)

    def iterated(self, value: Any, error: Failure | None) -> None:
        """Learn that the body of an iteration returned."""
        if self._starting:
            self._result = (value, error)
        elif self._goes_on(value, error):
            self._go()

    def answered(self, value: Any, error: Failure | None) -> None:
        """Learn that the last commit is durable, and its turn has come."""
        self._node = None
        self.branch.clock_us, self.branch.seq = self._entry.time_us, self._entry.seq
        if self._cancelled:
            self._end(None, made_cancel())
        elif self._entry.output is not None:
            self._end(self.branch.loop_output(self._step, self._entry, self._entry.output), None)
        else:
            self._go()

    def _wait_for_commit(self, seq: int) -> None:
        self._node = wait = WaitCommit(self, seq)
        self._run.wait_for_commit(wait)

    def _end(self, value: Any, error: Failure | None) -> None:
        above = self._asker.branch
        above.catch_up(self.branch)
        self._asker.answered(value, error)

    def _goes_on(self, value: Any, error: Failure | None) -> bool:
        """Whether the next iteration may start now; else the loop is over, or waits for its commit."""
        self._node = None
        if self._cancelled and not isinstance(error, Cancelled):
            error = made_cancel()
        if error is not None:
            self._end(None, error)
            return False
        if value is not None and not isinstance(value, Break):
            raise _no_break(self._step, value)
        self._done += 1
        if value is None and self._done - self._committed < self._step.commit_interval:
            return True
        if value is None and self._run.state.history.goes_on(self._entry.location, self._done):
            return True  # the interval was longer once: a commit in the midst of what is recorded would shift its times
        encoded, self._state = self._step.roundtrip(self._state)
        output = None if value is None else self._step.encode(cast("Break[Any]", value).value)
        seq = self.branch.commit(self._entry, self._done, encoded, output, self._carried)
        self._committed = self._done
        if output is not None and not self._run.side_by_side:
            self.answered(None, None)
        else:
            self._wait_for_commit(seq)
        return False

    def cancel(self) -> None:
        # Also if its iteration swallows the cancel: there is no next one.
        self._cancelled = self._node is not None
        if self._node is not None and not isinstance(self._node, WaitCommit):
            self._node.cancel()

    def drop(self) -> None:
        if isinstance(self._node, WaitCommit):
            self._node.over = True
        elif self._node is not None:
            self._node.drop()


def _not_alone(step: CheckpointStep) -> StepMisused:
    return StepMisused(
        f"`ctx.checkpoint()` in {step.file}:{step.line} stands in a join, a race or a catch: what goes on beside it would be "
        f"before it or behind it by chance. Await it by itself",
        file=step.file,
        line=step.line,
    )


def _cancel_among(errors: Mapping[int, Failure]) -> Cancelled | None:
    return next((error for _, error in sorted(errors.items()) if isinstance(error, Cancelled)), None)


def _uncaught_among(errors: Mapping[int, Failure]) -> Failure | None:
    """What passes every ``except Exception``: a cancel before all else."""
    others = (error for _, error in sorted(errors.items()) if not isinstance(error, Exception))
    return _cancel_among(errors) or next(others, None)


def _no_break(step: LoopStep, value: Any) -> StepMisused:
    return StepMisused(
        f"the body of `ctx.{step.verb}(…)` in {step.file}:{step.line} returned {type(value).__name__} {value!r:.100}: return "
        f"nothing to go on with the next iteration, or `return Break(value)` to end the loop",
        file=step.file,
        line=step.line,
    )
