"""Workers that ingest: pipelines are given like workflows, and who does not run one is told (design 0038)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from pydantic import BaseModel

from gasoline_es import Gasoline, WorkflowContext, workflow
from gasoline_es.errors import DefinitionError
from gasoline_es.log.port import ABOUT_BYTES_MAX, Member, NewRecord, Section, about_json
from gasoline_es.pipelines import Dispatch, Incoming, pipeline
from gasoline_es.runtime import ingesting, rebalancing
from gasoline_es.runtime.sharing import HeldUp, Peer, peers_of
from tests.engine.harness import soon


class Order(BaseModel):
    id: str
    cents: int


@workflow
async def charge(ctx: WorkflowContext, order: Order) -> int:
    return order.cents


@pipeline("orders", model=Order)
def orders(incoming: Incoming[Order]) -> Dispatch[Order]:
    return Dispatch(charge, incoming.value, id=incoming.value.id)


@pipeline("raw", name="raw orders", dead_letters="bad", start="latest")
async def raw(incoming: Incoming[bytes | None]) -> Dispatch[Order] | None:
    return None


async def write(gasoline: Gasoline, *written: Order) -> None:
    records = [NewRecord("orders", 0, one.id, one.model_dump_json().encode(), 0) for one in written]
    await gasoline.log.append([Section(0, None, records)])


async def test_worker_ingests_while_it_runs() -> None:
    async with Gasoline.open("memory:") as gasoline:
        await write(gasoline, Order(id="a", cents=1))
        async with gasoline.worker([charge], pipelines=[orders]):
            handle = await gasoline.dispatch(charge, Order(id="a", cents=1), key="a")
            assert await soon(handle.output()) == 1
            while gasoline._node.recording.ingested["orders"] < 1:  # pyright: ignore[reportPrivateUsage]
                await asyncio.sleep(0.01)
        await write(gasoline, Order(id="b", cents=2))
        assert gasoline._node.pipelines == set()  # pyright: ignore[reportPrivateUsage]
        async with gasoline.worker([charge]):
            assert [info.id async for info in gasoline.list()] == [handle.id], "nobody reads any more"
        async with gasoline.worker([charge], pipelines=[orders]):
            second = await gasoline.dispatch(charge, Order(id="b", cents=2), key="b")
            assert await soon(second.output()) == 2


async def test_worker_whose_pipelines_cannot_begin_leaves_nothing_behind() -> None:
    async with Gasoline.open("memory:") as gasoline, gasoline.ingest(orders):
        with pytest.raises(DefinitionError, match="already ingests by the name 'orders'"):
            async with gasoline.worker([charge], pipelines=[raw, orders]):
                pass
        assert gasoline._node.pipelines == {"orders"}, "raw was ended again"  # pyright: ignore[reportPrivateUsage]
        async with gasoline.worker([charge], pipelines=[raw]):
            pass


async def test_what_pipeline_makes_is_the_mapping_still_and_goes_to_ingest() -> None:
    incoming = Incoming("orders", 0, "1", "k", Order(id="a", cents=1), {}, None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert orders(incoming) == Dispatch(charge, Order(id="a", cents=1), id="a")
    assert (raw.topic, raw.name, raw.dead_letters, raw.start, raw.past_lost) == (
        "raw",
        "raw orders",
        "bad",
        "latest",
        False,
    )
    async with Gasoline.open("memory:") as gasoline:
        async with gasoline.ingest(orders, past_lost=True):
            pass
        untyped: Any = gasoline.ingest
        with pytest.raises(DefinitionError, match="has its mapping and options already"):
            untyped(orders, model=Order)
        with pytest.raises(DefinitionError, match="needs a mapping"):
            untyped("orders")


# --- who does not -------------------------------------------------------------------------------------------------------


def member(peer: Peer) -> Member:
    return Member(peer.incarnation, peer.about(), mine=False, host="host", pid=1)


def test_pipelines_are_told_to_the_others_unless_they_are_too_many() -> None:
    few = Peer("a", 1, 1.0, None, ("orders", "payments"))
    assert peers_of([member(few)]) == [few]
    held_up = HeldUp(1_700_000_000_000_000, "x" * 500)
    for names in (("o" * 249,), tuple(f"pipeline {n}" for n in range(50))):
        many = Peer("a", 1, 1.0, held_up, names)
        assert len(about_json(many.about())) <= ABOUT_BYTES_MAX
        (told,) = peers_of([member(many)])
        assert told.pipelines is None
        assert told.held_up is not None
    assert peers_of([member(Peer("a", 1, 1.0, None, ()))])[0].pipelines == ()
    assert (
        peers_of([Member("a", {"worker": {"version": 1, "weight": 1.0}}, mine=False, host="host", pid=1)])[0].pipelines
        is None
    )


async def warned(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    async with asyncio.timeout(20):
        while not (found := [one for one in caplog.records if "read by nobody" in one.message]):
            await asyncio.sleep(0.01)
    return found


async def test_worker_that_does_not_ingest_is_named_by_those_that_do(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingesting, "READERS_AGAIN_S", 0.02)
    monkeypatch.setattr(rebalancing, "LOOK_AGAIN_S", 0.02)
    async with (
        Gasoline.open("memory:readers", partitions=1) as first,
        Gasoline.open("memory:readers") as second,
        first.worker([charge], version=2),  # newer, so that the one partition there is stays with it
        second.worker([charge], pipelines=[orders]),
    ):
        (told,) = await warned(caplog)
        assert f"because {first.log.incarnation} would have to and does not" in told.message
        assert told.__dict__["unread"] == [0]
        async with first.ingest(orders):  # it does after all, beside its worker
            async with asyncio.timeout(20):
                while "orders" not in (_seen(second, first).pipelines or ()):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)  # a look that had begun
            caplog.clear()
        async with asyncio.timeout(20):
            while "orders" in (_seen(second, first).pipelines or ()):
                await asyncio.sleep(0.01)
        assert len(await warned(caplog)) == 1, "it is said again when it is so again, once"


def _seen(one: Gasoline, other: Gasoline) -> Peer:
    return next(peer for peer in peers_of(one.log.members()) if peer.incarnation == other.log.incarnation)
