"""What `gasoline kafka acls` shows is what each role needs: with exactly that it works, and with anything less it does not."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.errors import WorkflowFailed
from gasoline_es.log.kafka.acls import ROLES, Acl, Ingested, Role, acls_of
from gasoline_es.log.kafka.drivers.port import Committed, Feed, NewTopic, Out
from gasoline_es.log.kafka.records import now_ms
from gasoline_es.log.kafka.settings import DRIVERS, Address, make_driver
from gasoline_es.log.kafka.topics import prepare
from tests.cli.terminal import run
from tests.kafka.guarded import Guard, guarded_broker, shown_as
from tests.kafka.permitted import others_of
from tests.kafka_server import Broker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

ENOUGH_S = 60.0
"""Who may do it has done it within that, on a slow machine, too."""
REFUSED_S = 8.0
"""Who has not done it by then, nor in three times as long as with all permissions, waits for something that is not to come."""
SIDE_BY_SIDE = 4
"""Who is refused mostly waits."""


def needed(namespace: str) -> list[Acl]:
    """What is shown for a namespace whose bodies emit to a topic, and that ingests one."""
    emitted, source, letters = others_of(namespace)
    return acls_of("", namespace, emit=[emitted], ingest=[Ingested(source, letters)])


def shown(role: Role, namespace: str) -> list[Acl]:
    """What is shown for one role."""
    return [one for one in needed(namespace) if one.role == role]


class Place:
    """A broker with permissions. All roles but the one in question are allowed what they need of each namespace."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.guard = Guard(broker.bootstrap)
        self.folder = folder

    def url(self, role: str, namespace: str, **options: str) -> str:
        """The URL by which a role comes."""
        config = shown_as(role, self.folder)
        state = self.folder / secrets.token_hex(4)  # none of its own: everything has to be read
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"kafka://{self.broker.other_bootstrap}/{namespace}?config={config}&state_dir={state}{more}"

    def does(self, role: str, namespace: str, limit_s: float = ENOUGH_S) -> str | None:
        """Do what a role does; return why that did not go well, None if it did."""
        command = [sys.executable, "-m", "tests.kafka.permitted", role, self.url(role, namespace)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired as expired:
            return f"it did not come to an end: {(expired.stderr or b'')[-2000:]!r}"
        return done.stderr[-2000:] if done.returncode else None

    def made(self, role: Role, *, empty: bool = False) -> str:
        """Make a namespace with all that is there before a role does anything; return its name. ``empty``: without records."""
        namespace = f"t-{secrets.token_hex(6)}"
        self.guard.allow(needed(namespace))
        if role != "administrator":
            address = Address((self.broker.bootstrap,), namespace)
            with closing(make_driver(address, environ={})) as driver, closing(driver.admin()) as admin:
                prepare(admin, "the broker", "", namespace, 1, -1, readonly=False)
                others = others_of(namespace)
                admin.create([NewTopic(one, 1, -1, {"retention.ms": "-1"}) for one in others], ENOUGH_S)
                with closing(driver.writer(f"made.{namespace}", ENOUGH_S)) as writer:
                    writer.fence()
                    fate = writer.commit([Out(Feed(others[1], 0), b"key", b"{}", (), now_ms())])
                assert isinstance(fate, Committed)
        if role != "administrator" and not empty:
            assert self.does("worker", namespace) is None  # so that there is something to be read
        return namespace


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with guarded_broker() as broker:
        yield Place(broker, tmp_path_factory.mktemp("permitted"))


@pytest.mark.parametrize("role", ROLES)
def test_a_role_does_all_it_does_with_what_is_shown_for_it_and_with_nothing_less(place: Place, role: Role) -> None:
    """Each permission is taken away by itself, and given back. What changes a namespace gets one of its own each time."""
    namespace = place.made(role)
    began_s = time.monotonic()
    assert place.does(role, namespace) is None
    limit_s = max(REFUSED_S, 3 * (time.monotonic() - began_s))
    changes = role in ("administrator", "worker")

    def is_enough_without(at: int) -> bool:
        used = place.made(role) if changes else namespace
        missing = shown(role, used)[at]
        place.guard.forbid([missing])
        enough = place.does(role, used, limit_s) is None
        place.guard.allow([missing])
        return enough

    permissions = shown(role, namespace)
    with ThreadPoolExecutor(SIDE_BY_SIDE if changes else 1) as pool:
        enough = list(pool.map(is_enough_without, range(len(permissions))))
    assert [one for one, without in zip(permissions, enough, strict=True) if without] == []
    if not changes:
        assert place.does(role, namespace) is None  # it was for want of those, and of nothing else


@activity
async def charge(ctx: ActivityContext, cents: int) -> int:
    return cents


@workflow
async def pay(ctx: WorkflowContext, cents: int) -> int:
    return await ctx.activity(charge, cents)


async def test_a_worker_a_client_and_a_reader_do_together_what_they_are_for(place: Place) -> None:
    """With exactly what is shown, by the library's own front door."""
    namespace = await asyncio.to_thread(place.made, "worker", empty=True)
    async with (
        Gasoline.open(place.url("worker", namespace)) as working,
        working.worker([pay]),
        Gasoline.open(place.url("client", namespace)) as asking,
    ):
        dispatched = await asking.dispatch(pay, 500)
        assert await dispatched.output() == 500
    done = await asyncio.to_thread(run, "--log", place.url("reader", namespace), "workflow", "list", "--json")
    assert [one["status"] for one in done.objects] == ["complete"], done.stderr


@workflow
async def tell(ctx: WorkflowContext, topic: str) -> str:
    await ctx.emit(topic, "key", 1)
    return topic


@pytest.mark.parametrize("driver_name", DRIVERS)
async def test_a_topic_that_a_worker_may_not_write_ends_the_run_and_nothing_else_waits(
    place: Place, driver_name: str
) -> None:
    """Decision 0037: before it is first looked at, and also when it was relied on. All of it is in one partition."""
    namespace = await asyncio.to_thread(place.made, "worker", empty=True)
    topic, *_ = others_of(namespace)
    (writing,) = [one for one in shown("worker", namespace) if (one.name, one.operation) == (topic, "Write")]

    async def is_refused(gasoline: Gasoline) -> None:
        await asyncio.to_thread(place.guard.forbid, [writing])
        refused = await gasoline.dispatch(tell, topic)
        with pytest.raises(WorkflowFailed, match=f"not let this process write to topic '{topic}'.*--operation Write"):
            await refused.output()
        assert await (await gasoline.dispatch(pay, 500)).output() == 500
        await asyncio.to_thread(place.guard.allow, [writing])
        await refused.wake()
        assert await refused.output() == topic

    url = place.url("worker", namespace, driver=driver_name)
    async with asyncio.timeout(ENOUGH_S * 2), Gasoline.open(url) as gasoline, gasoline.worker([pay, tell]):
        await is_refused(gasoline)
        await is_refused(gasoline)  # now it is known, and relied on
