"""What `gasoline kafka acls` shows is what each role needs: with exactly that it works, and with anything less it does not."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.log.kafka.acls import ROLES, Acl, Role, acls_of
from gasoline_es.log.kafka.settings import Address, make_driver
from gasoline_es.log.kafka.topics import prepare
from tests.cli.terminal import run
from tests.kafka.guarded import Guard, guarded_broker, shown_as
from tests.kafka_server import Broker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

ENOUGH_S = 60.0
"""Who may do it has done it within that, on a slow machine, too."""
REFUSED_S = 8.0
"""Who has not done it by then waits for something that is not to come: with all permissions it takes two seconds."""


class Place:
    """A broker with permissions. All roles but the one in question are allowed what they need of each namespace."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.guard = Guard(broker.bootstrap)
        self.folder = folder

    def url(self, role: str, namespace: str) -> str:
        """The URL by which a role comes."""
        config = shown_as(role, self.folder)
        state = self.folder / secrets.token_hex(4)  # none of its own: everything has to be read
        return f"kafka://{self.broker.other_bootstrap}/{namespace}?config={config}&state_dir={state}"

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
        self.guard.allow(acls_of("", namespace))
        if role != "administrator":
            address = Address((self.broker.bootstrap,), namespace)
            with closing(make_driver(address, environ={})) as driver, closing(driver.admin()) as admin:
                prepare(admin, "the broker", "", namespace, 1, -1, readonly=False)
        if role != "administrator" and not empty:
            assert self.does("worker", namespace) is None  # so that there is something to be read
        return namespace


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with guarded_broker() as broker:
        yield Place(broker, tmp_path_factory.mktemp("permitted"))


@pytest.mark.parametrize("role", [role for role in ROLES if role != "consumer"])
def test_a_role_does_all_it_does_with_what_is_shown_for_it_and_with_nothing_less(place: Place, role: Role) -> None:
    """Each permission is taken away by itself, and given back. What changes a namespace gets one of its own each time."""
    namespace = place.made(role)
    assert place.does(role, namespace) is None
    enough_without: list[Acl] = []
    for at, _ in enumerate([one for one in acls_of("", namespace) if one.role == role]):
        if role in ("administrator", "worker"):
            namespace = place.made(role)
        missing = [one for one in acls_of("", namespace) if one.role == role][at]
        place.guard.forbid([missing])
        if place.does(role, namespace, REFUSED_S) is None:
            enough_without.append(missing)
        place.guard.allow([missing])
    assert enough_without == []
    if role not in ("administrator", "worker"):
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
