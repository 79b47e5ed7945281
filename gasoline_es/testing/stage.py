"""What a simulation stands on: the virtual loop, the one client, one worker after the other, and the rule when time moves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gasoline_es.clock import VirtualClock
from gasoline_es.core.durations import to_datetime
from gasoline_es.core.guard import check_outside_body
from gasoline_es.definitions import Activity, Workflow
from gasoline_es.engine import Gasoline, node_on
from gasoline_es.errors import GasolineError
from gasoline_es.log.memory import MemoryStore
from gasoline_es.operating import Operations
from gasoline_es.runtime.node import Node
from gasoline_es.testing.process import NAMESPACE, ClientLog, CrashPoint, WorkerLog, WorkerProcess
from gasoline_es.testing.stuck import Stuck, where_all_stand
from gasoline_es.testing.virtual_loop import VirtualLoop, outer_loop_suspended

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What stays the same for as long as a simulation lasts; see there."""

    workflows: Sequence[Workflow[Any, Any]]
    start_us: int
    seed: int
    partitions: int
    evict_after_s: float
    patience_s: float
    jumps_max: int
    crash: CrashPoint | None


class Stage:
    """Runs coroutines; each returns when nothing can happen any more without time passing."""

    def __init__(self, setting: Setting, stand_in: Callable[[Activity[Any, Any]], Activity[Any, Any]]) -> None:
        self._setting = setting
        self._stand_in = stand_in
        self._store = MemoryStore()
        self._store.namespaces[NAMESPACE] = setting.partitions
        self._crash = setting.crash
        self._lives = 0
        self._jumps = 0
        self._settling: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._client: Node | None = None
        self._process: WorkerProcess | None = None
        self._loop: VirtualLoop | None = None
        self.clock = VirtualClock(setting.start_us)
        self.gasoline: Gasoline | None = None
        self.crashed_at: str | None = None

    def open(self) -> None:
        """Begin. Raises: GasolineError: it was open before."""
        check_outside_body("a simulation is for tests")
        if self._loop is not None:
            raise GasolineError("this simulation was entered before: make a new one")
        self._loop = VirtualLoop(self.clock, self)
        try:
            self.run(self._open(), "with")
        except BaseException:
            self._loop.close()
            raise

    def close(self) -> None:
        """End everything at once, as a kill would."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            self.run(self._close(), "with")
        finally:
            with outer_loop_suspended(loop, "with"):
                loop.close()

    @property
    def loop(self) -> VirtualLoop:
        """The loop. Raises: GasolineError: the simulation is not open."""
        if self._loop is None or self._loop.is_closed():
            when = "not entered yet" if self._loop is None else "over"
            raise GasolineError(
                f"this simulation is {when}: write `with Simulation([…]) as sim:` and use it in that block"
            )
        return self._loop

    def run(self, coroutine: Coroutine[Any, Any, T], verb: str) -> T:
        """Run a coroutine to its end, whatever loop the caller is on, and all that follows at that time."""
        try:
            loop = self.loop
            check_outside_body(f"`sim.{verb}` is for the test around it")
            with outer_loop_suspended(loop, f"sim.{verb}"):
                return self._run(loop, coroutine)
        finally:
            coroutine.close()  # in case it was refused; otherwise it is over

    # --- running the loop ---------------------------------------------------------------------------------------------

    def _run(self, loop: VirtualLoop, coroutine: Coroutine[Any, Any, T]) -> T:
        self._jumps = 0
        task = loop.create_task(self._settled(coroutine))
        self._drive(loop, task)
        failure, self._failure = self._failure, None
        if failure is None:
            return task.result()
        if isinstance(failure, Stuck):
            failure = self._explained(loop, failure)
        task.cancel()
        self._drive(loop, task)
        self._failure = None
        if task.done() and not task.cancelled():
            task.exception()  # the failure says more
        raise failure

    def _drive(self, loop: VirtualLoop, task: asyncio.Task[Any]) -> None:
        """Run the loop until the task is done, or something failed."""

        def stop(done: asyncio.Task[Any]) -> None:
            loop.stop()

        task.add_done_callback(stop)
        try:
            while not task.done() and self._failure is None:
                loop.run_forever()
        finally:
            task.remove_done_callback(stop)

    async def _settled(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return once nothing happens any more at this time."""
        try:
            return await coroutine
        finally:
            quiet: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settling.append(quiet)
            await quiet

    def _explained(self, loop: VirtualLoop, stuck: Stuck) -> Stuck:
        if self.gasoline is None:
            return stuck  # in the middle of opening or closing
        registered = () if self._process is None else self._process.registered
        asking = loop.create_task(where_all_stand(self.gasoline, registered))
        self._drive(loop, asking)
        return Stuck(f"{stuck.message}: {asking.result()}")

    def idle(self, timer_at: float | None) -> float:
        """Decide what to do when nothing is ready (for the loop)."""
        if self._really_working():
            return self._setting.patience_s
        if self._settling:
            for quiet in self._settling:
                if not quiet.done():
                    quiet.set_result(None)
            self._settling.clear()
            return 0
        loop = self.loop
        broken = None if self._process is None else self._process.node.failure
        driver = None if self._process is None else self._process.driver
        leaves_at = None if driver is None else driver.next_eviction
        if broken is not None:
            self.fail(broken)
        elif driver is not None and leaves_at is not None and (timer_at is None or leaves_at < timer_at):
            loop.jump(leaves_at + 1e-6)  # a microsecond later no rounding is in the way
            driver.evict_idle()
        elif timer_at is None:
            self.fail(Stuck("nothing can happen any more, however much time passes"))
        elif self._jumps >= self._setting.jumps_max:
            self.fail(
                Stuck(
                    f"no end in sight after {self._jumps:,} jumps of the clock, at {to_datetime(self.clock.now_us())}"
                )
            )
        else:
            self._jumps += 1
            loop.jump(timer_at)
        return 0

    def _really_working(self) -> bool:
        """Whether something goes on that virtual time has no part in."""
        loop, driver = self.loop, None if self._process is None else self._process.driver
        if loop.in_executor:
            return True
        if any(operations.in_threads for operations in self._operations()):
            return True
        return driver is not None and bool(driver.runner.in_threads or (loop.open_files and driver.runner.running))

    def _operations(self) -> Iterator[Operations]:
        """Yield who runs operations: of the client, and of the worker."""
        if self.gasoline is not None:
            yield self.gasoline._node.operations  # pyright: ignore[reportPrivateUsage] -- the library's own
        if self._process is not None:
            yield self._process.node.operations

    def waited_in_vain(self) -> None:
        """Say that the clock stood still for too long (for the loop)."""
        driver = None if self._process is None else self._process.driver
        names = sorted({attempt.definition.name for attempt in driver.runner.in_threads}) if driver is not None else []
        called = sorted({name for operations in self._operations() for name in operations.in_threads})
        who = f"in activity {', '.join(names)}, in a thread" if names else "in a thread, or on a socket"
        if called:
            who = f"in operation {', '.join(called)}, in a thread"
        self.fail(
            GasolineError(
                f"real work went on for more than {self._setting.patience_s:g} s ({who}), while virtual time stands still. "
                f"Fake the activity, or give the simulation more `patience=`"
            )
        )

    def fail(self, error: BaseException) -> None:
        """End the verb that runs with this error."""
        if self._failure is None:
            self._failure = error
        self.loop.stop()

    # --- what goes on in it -------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self._client = node_on(ClientLog(self._store), self.clock, random.Random(self._setting.seed).randbytes)
        self._client.start()
        self.gasoline = Gasoline(self._client)
        await self._start_worker()

    async def _start_worker(self) -> None:
        self._lives += 1
        self._process = WorkerProcess(
            WorkerLog(self._store, self._crash, self._crash_reached),
            self.clock,
            f"{self._setting.seed}/{self._lives}",
            self._setting.workflows,
            self._setting.evict_after_s,
            self._stand_in,
        )
        self._crash = None  # one is enough
        await self._process.start()

    def _crash_reached(self, append: str) -> None:
        self.crashed_at = append
        self.spawn(self.restart())

    async def restart(self) -> None:
        """Kill the worker and start another."""
        assert self._process is not None
        await self._process.kill()
        await self._start_worker()

    async def replace(self) -> None:
        """Stop the worker cleanly and start another."""
        assert self._process is not None
        await self._process.stop()
        await self._start_worker()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start something that nobody waits for: an error in it ends the verb that runs."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_done)

    def _spawned_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def _close(self) -> None:
        if self._process is not None:
            await self._process.kill()
        self._process = self.gasoline = None
        if self._client is not None:
            await self._client.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=1)  # of virtual time: what resists is nobody's concern any more
        await asyncio.get_running_loop().shutdown_asyncgens()
