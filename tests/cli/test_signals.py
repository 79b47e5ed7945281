"""`gasoline signal …` and `gasoline workflow dispatch`: queues seen and filled by hand, without a worker or beside one."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gasoline_es import Gasoline, Signal, WorkflowContext, workflow
from tests.cli.terminal import Done, invoke, jq, run, settled


class Paid(Signal):
    cents: int


class Held(Signal): ...


@workflow
async def order(ctx: WorkflowContext, number: int) -> int:
    first = await ctx.listen(Paid)
    second = await ctx.listen(Paid)
    return first.cents + second.cents + number


@workflow
async def appointment(ctx: WorkflowContext, number: int) -> None:
    await ctx.listen(Paid)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Order 1 has taken one signal and has another kind queued; order 2 was never run, and has two queued."""

    async def made() -> str:
        url = f"file:{tmp_path}/log"
        async with Gasoline.open(url, partitions=2) as gasoline:
            async with gasoline.worker([order], evict_after=0):
                one = await gasoline.dispatch(order, 1, tags={"order": 1}, key="1")
                await one.signal(Paid(cents=900), id="payment of 1")
                while "signal.consumed" not in [event.type for event in await one.history()]:
                    await asyncio.sleep(0.01)
                await one.signal(Held(), id="hold 1")
            two = await gasoline.dispatch(order, 2, tags={"order": 2}, key="2")
            await two.signal(Paid(cents=100), id="payment of 2")
            await two.signal(Held(), id="hold 2")
        return url

    return asyncio.run(made())


def ids(url: str) -> dict[str, str]:
    return {one["tags"]["order"]: one["id"] for one in invoke("--log", url, "workflow", "list").objects}


def listed(url: str, *options: str) -> list[str]:
    done = invoke("--log", url, "signal", "list", *options)
    assert (done.status, done.stderr) == (0, "")
    return [one["id"] for one in done.objects]


def test_list_shows_what_is_queued_in_order_of_receipt(url: str) -> None:
    """semantics.md §5, §11: taken ones are not in it."""
    assert listed(url) == ["hold 1", "payment of 2", "hold 2"]
    first = invoke("--log", url, "signal", "list").objects[0]
    assert (first["name"], first["workflow"], first["workflow_id"]) == ("held", "order", ids(url)["1"])
    assert set(first) == {"id", "name", "workflow_id", "workflow", "status", "received", "sender", "partition"}


def test_list_is_filtered_by_workflow_name_id_and_age(url: str) -> None:
    assert listed(url, "--name", "held") == ["hold 1", "hold 2"]
    assert listed(url, "--workflow", "order", "--name", "paid") == ["payment of 2"]
    assert listed(url, "--workflow", "another") == []
    assert listed(url, "--to", ids(url)["2"]) == ["payment of 2", "hold 2"]
    assert listed(url, "--limit", "1") == ["hold 2"]
    assert listed(url, "--older-than", "1h") == []
    assert listed(url, "--since", "1h", "--name", "paid") == ["payment of 2"]
    received = invoke("--log", url, "signal", "list").objects[1]["received"]
    assert listed(url, "--since", received) == ["payment of 2", "hold 2"]
    assert listed(url, "--until", received) == ["hold 1"]


def test_list_on_a_terminal_is_a_table_with_a_count(url: str) -> None:
    shown = invoke("--log", url, "signal", "list", "--text", columns=160).stdout
    assert settled(shown, one=ids(url)["1"], two=ids(url)["2"]).splitlines()[-1] == "3 signals queued"
    assert "hold 1" in shown
    none = invoke("--log", url, "signal", "list", "--name", "nothing", "--text")
    assert none.stdout == "0 signals queued\n"


def test_list_breaks_no_id_on_a_wide_terminal(tmp_path: Path) -> None:
    """An id is there to be copied."""
    url = f"file:{tmp_path}/wide"

    async def sent() -> tuple[str, str]:
        async with Gasoline.open(url, partitions=1) as gasoline:
            to = (await gasoline.dispatch(appointment, 1)).id
            return to, await gasoline.signal(Paid(cents=1), to=to, id=f"re-{to}")

    to, signal_id = asyncio.run(sent())
    for columns in (112, 120, 140, 160, 200):
        lines = invoke("--log", url, "signal", "list", "--text", columns=columns).stdout.splitlines()
        assert max(map(len, lines)) <= columns
        assert any(f" {signal_id} " in line for line in lines), lines
        assert any(to in line.replace(signal_id, "") for line in lines), lines


def test_get_tells_what_became_of_a_signal(url: str) -> None:
    """semantics.md §5: queued, or taken by a listen, or discarded at the end."""
    (taken,) = invoke("--log", url, "signal", "get", "payment of 1").objects
    assert (taken["stands"], taken["location"], taken["body"]) == ("taken", "{1}", {"cents": 900})
    assert taken["ended"] >= taken["received"]
    (queued,) = invoke("--log", url, "signal", "get", "hold 2").objects
    assert (queued["stands"], queued["ended"], queued["location"]) == ("queued", None, None)
    invoke("--log", url, "workflow", "silence", ids(url)["2"])
    (discarded,) = invoke("--log", url, "signal", "get", "hold 2").objects
    assert (discarded["stands"], discarded["location"]) == ("discarded", None)
    text = invoke("--log", url, "signal", "get", "payment of 1", "--text").stdout
    assert settled(text, one=ids(url)["1"]) == TAKEN


def test_get_shows_each_workflow_that_received_the_id_and_one_if_asked(url: str) -> None:
    """semantics.md §5: an id of the caller's is remembered by each workflow for itself."""
    invoke("--log", url, "signal", "send", "held", "{}", "--to", ids(url)["2"], "--id", "hold 1")
    both = invoke("--log", url, "signal", "get", "hold 1").objects
    assert [one["workflow_id"] for one in both] == [ids(url)["1"], ids(url)["2"]]
    only = invoke("--log", url, "signal", "get", "hold 1", "--to", ids(url)["2"]).objects
    assert [one["workflow_id"] for one in only] == [ids(url)["2"]]
    missing = invoke("--log", url, "signal", "get", "hold 3")
    assert (missing.status, missing.stdout) == (1, "")
    assert "no signal 'hold 3' was received in namespace 'default'" in missing.stderr


def test_signal_that_a_rerun_gave_back_is_queued_again(url: str) -> None:
    """semantics.md §4, starting over: what held before the rerun is no end of it."""
    invoke("--log", url, "workflow", "rerun", ids(url)["1"], "--from", "1")
    (again,) = invoke("--log", url, "signal", "get", "payment of 1").objects
    assert (again["stands"], again["location"]) == ("queued", None)
    assert "payment of 1" in listed(url)


def send(url: str, *options: str) -> Done:
    return invoke("--log", url, "signal", "send", *options)


def test_send_by_id_and_by_tags_queues_it_durably(url: str) -> None:
    """semantics.md §5: no worker is needed; with the sender's id a repeat changes nothing."""
    two = ids(url)["2"]
    (sent,) = send(url, "paid", '{"cents": 5}', "--to", two, "--id", "x").objects
    assert sent == {"id": "x", "name": "paid", "workflow_id": two, "stands": None}
    assert send(url, "paid", '{"cents": 5}', "--to", two, "--id", "x").objects == [sent]
    (by_tags,) = send(url, "held", "{}", "--workflow", "order", "--tag", "order=2").objects
    assert by_tags["workflow_id"] == two
    assert listed(url, "--to", two) == ["payment of 2", "hold 2", "x", by_tags["id"]]
    text = send(url, "held", "{}", "--to", two, "--id", "y", "--text").stdout
    assert text == f"held y to {two}\n"

    async def work() -> int:
        async with Gasoline.open(url) as gasoline, gasoline.worker([order]):
            return await gasoline.handle(two, order).output(timeout=30)

    assert asyncio.run(work()) == 107


def discard(url: str, *options: str) -> Done:
    return invoke("--log", url, "signal", "discard", *options)


def test_discard_takes_away_what_is_queued_and_a_repeat_says_so(url: str) -> None:
    """semantics.md §5: nobody gets it; it is told by `get` and in the history, with who did it."""
    two = ids(url)["2"]
    (done,) = discard(url, "hold 2").objects
    assert done == {
        "id": "hold 2",
        "name": "held",
        "workflow_id": two,
        "workflow": "order",
        "status": "running",
        "discarded": True,
    }
    assert discard(url, "hold 2", "--to", two).objects == [{**done, "discarded": False}]
    assert listed(url) == ["hold 1", "payment of 2"]
    (told,) = invoke("--log", url, "signal", "get", "hold 2").objects
    assert told["stands"] == "discarded"
    assert discard(url, "payment of 2", "--text").stdout == f"paid payment of 2 discarded: was queued for order {two}\n"
    assert discard(url, "payment of 2", "--text").stdout == (
        f"paid payment of 2 was discarded before: was queued for order {two}\n"
    )
    history = invoke("--log", url, "workflow", "history", two, "--text", columns=160).stdout
    assert history.count("1 signal discarded by ") == 2


def test_discard_of_a_taken_or_unknown_signal_is_refused_in_a_line(url: str) -> None:
    one = ids(url)["1"]
    taken = discard(url, "payment of 1")
    assert (taken.status, taken.stdout, taken.stderr.count("\n")) == (1, "", 1)
    assert f"'payment of 1' was taken by the listen at {{1}} of workflow {one}" in taken.stderr
    assert f"gasoline workflow rerun {one} --from '{{1}}'" in taken.stderr
    for options in (("nothing",), ("hold 2", "--to", one)):
        unknown = discard(url, *options)
        assert (unknown.status, unknown.stdout) == (1, "")
        assert f"no signal {options[0]!r} was received in" in unknown.stderr
    parked = discard(url, "hold 2", "--parked")
    assert (parked.status, parked.stdout) == (1, "")
    assert "no signal 'hold 2' is parked: `gasoline signal get`" in parked.stderr
    both = discard(url, "hold 2", "--parked", "--to", one)
    assert (both.status, both.stdout) == (2, "")
    assert "--to goes without --parked" in both.stderr


def test_discard_of_an_id_in_several_places_asks_which(url: str) -> None:
    """An id that its sender made up is remembered by each workflow for itself."""
    one, two = ids(url)["1"], ids(url)["2"]
    send(url, "held", "{}", "--to", two, "--id", "hold 1")
    send(url, "held", "{}", "--workflow", "order", "--tag", "order=3", "--park", "1h", "--id", "hold 1")
    which = discard(url, "hold 1")
    assert (which.status, which.stdout, which.stderr.count("\n")) == (1, "", 1)
    assert f"'hold 1' waits in 3 places (order {one}, order {two}, parked for order {{'order': '3'}})" in which.stderr
    assert "say which, with --to ID, or --parked" in which.stderr
    assert [one["workflow_id"] for one in discard(url, "hold 1", "--to", two).objects] == [two]
    (parked,) = discard(url, "hold 1", "--parked").objects
    assert (parked["workflow_id"], parked["workflow"], parked["discarded"]) == (None, "order", True)
    assert [one["workflow_id"] for one in discard(url, "hold 1").objects] == [one], "the one that waits yet"
    again = discard(url, "hold 1")
    assert "waits no more, but came in 3 places" in again.stderr


def test_discard_of_a_parked_signal_says_for_whom_it_was(url: str) -> None:
    send(url, "held", "{}", "--workflow", "order", "--tag", "order=3", "--park", "1h", "--id", "x")
    assert discard(url, "x", "--text").stdout == "held x discarded: was parked for order\n"
    assert discard(url, "x", "--text").stdout == "held x was discarded before: was parked for order\n"
    assert listed(url, "--parked") == []
    (told,) = invoke("--log", url, "signal", "get", "x").objects
    assert (told["stands"], told["workflow_id"]) == ("discarded", None)


def test_discard_for_a_dead_workflow_says_how_to_wake_it(url: str) -> None:
    @workflow(name="order")
    async def breaks(ctx: WorkflowContext, number: int) -> int:
        await ctx.listen(Held)
        raise ValueError("no such order")

    async def die() -> str:
        async with Gasoline.open(url) as gasoline, gasoline.worker([breaks]):
            handle = await gasoline.dispatch(breaks, 3)
            await handle.signal(Held())
            await handle.signal(Paid(cents=1), id="x")
            while (await handle.get()).status != "dead":
                await asyncio.sleep(0.01)
            return handle.id

    three = asyncio.run(die())
    assert discard(url, "x", "--text", "--to", three).stdout.splitlines() == [
        f"paid x discarded: was queued for order {three}",
        f"that workflow is dead: `gasoline workflow wake {three}` runs it again",
    ]


async def test_discard_beside_a_worker_is_decided_there(url: str) -> None:
    """design §5: through the inbox of its owner."""
    two = (await asyncio.to_thread(ids, url))["2"]
    async with Gasoline.open(url) as gasoline, gasoline.worker([order]):
        done = await asyncio.to_thread(run, "--log", url, "signal", "discard", "hold 2")
        assert (done.status, done.stderr) == (0, "")
        assert done.objects[0]["discarded"]
        assert list((await gasoline.get(two)).queued) == []


async def all_are_got(url: str) -> None:
    """Let a client that sends one signal see to those that are parked: whoever owns their partition does."""
    async with Gasoline.open(url) as gasoline:
        await gasoline.signal(Held(), order, tags={"order": "none"}, park=0.001)
        node = gasoline._node
        async with asyncio.timeout(30):
            while any([(await node.viewing.parked(index)).any_live() for index in range(2)]):
                await asyncio.sleep(0.01)


def test_a_parked_signal_is_listed_got_by_who_is_started_and_told(url: str) -> None:
    """semantics.md §5: also by processes that come and go, and without a worker."""
    to = ("--workflow", "order", "--tag", "order=3", "--park", "1h")
    (sent,) = send(url, "paid", '{"cents": 5}', *to, "--id", "x").objects
    assert sent == {"id": "x", "name": "paid", "workflow_id": None, "stands": "parked"}
    assert send(url, "paid", '{"cents": 5}', *to, "--id", "x", "--text").stdout == (
        "paid x parked for order  was there already\n"
    )
    assert send(url, "held", "{}", *to, "--id", "y", "--text").stdout == "held y parked for order\n"
    assert listed(url, "--parked") == ["x", "y"]
    assert listed(url, "--parked", "--name", "held") == ["y"]
    assert listed(url, "--parked", "--workflow", "other") == listed(url, "--parked", "--older-than", "1h") == []
    assert listed(url, "--parked", "--limit", "1", "--since", "1h") == ["y"]
    first = invoke("--log", url, "signal", "list", "--parked").objects[0]
    assert set(first) == {"id", "name", "workflow", "tags", "parked", "until", "partition"}
    assert (first["workflow"], first["tags"]) == ("order", {"order": "3"})
    shown = invoke("--log", url, "signal", "list", "--parked", "--text", columns=160).stdout.splitlines()
    assert shown[-1] == "2 signals parked"
    assert "order order=3" in shown[1]
    assert "x" not in listed(url), "it is in no queue"
    (parked,) = invoke("--log", url, "signal", "get", "x").objects
    assert (parked["stands"], parked["workflow_id"], parked["body"]) == ("parked", None, {"cents": 5})
    assert "parked" in invoke("--log", url, "signal", "get", "x", "--text").stdout

    (three,) = dispatch(url, "order", "3", "--tag", "order=3").objects
    send(url, "held", "{}", *to, "--id", "z")  # it stays behind the others
    asyncio.run(all_are_got(url))
    assert listed(url, "--parked") == []
    assert listed(url, "--to", three["id"]) == ["x", "y", "z"]
    (queued,) = invoke("--log", url, "signal", "get", "x").objects
    assert (queued["stands"], queued["workflow_id"], queued["parked"]) == ("queued", three["id"], first["parked"])
    assert set(queued) == set(parked)
    assert "parked" in invoke("--log", url, "signal", "get", "x", "--to", three["id"], "--text").stdout
    (sent,) = send(url, "paid", '{"cents": 5}', *to, "--id", "x").objects
    assert sent == {"id": "x", "name": "paid", "workflow_id": None, "stands": "delivered"}
    assert send(url, "paid", '{"cents": 5}', *to, "--id", "x", "--text").stdout == (
        "paid x was got by a workflow order before\n"
    )


def test_a_parked_signal_whose_time_was_over_is_told_as_discarded(url: str) -> None:
    send(url, "paid", '{"cents": 5}', "--workflow", "order", "--tag", "order=3", "--park", "1s", "--id", "x")
    asyncio.run(all_are_got(url))
    (told,) = invoke("--log", url, "signal", "get", "x").objects
    assert (told["stands"], told["workflow_id"]) == ("discarded", None)
    assert told["ended"] >= told["until"]
    assert "discarded" in invoke("--log", url, "signal", "get", "x", "--text").stdout
    repeat = send(url, "paid", '{"cents": 5}', "--workflow", "order", "--tag", "order=3", "--park", "1s", "--id", "x")
    assert (repeat.status, repeat.stdout) == (1, "")
    assert "signal 'paid' with the id 'x' was parked before and is discarded" in repeat.stderr


def test_a_parked_signal_is_told_however_long_ago_it_ended_and_as_it_was_parked_last(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has it, whatever an owner remembers for repeats."""
    monkeypatch.setattr("projections.parked.ENDED_REMEMBERED", 0)
    monkeypatch.setattr("projections.parked.ENDED_REMEMBERED_US", 0)
    to = ("--workflow", "order", "--tag", "order=3", "--id", "x")
    send(url, "paid", '{"cents": 5}', *to, "--park", "1s")
    asyncio.run(all_are_got(url))
    (first,) = invoke("--log", url, "signal", "get", "x").objects
    assert (first["stands"], first["body"]) == ("discarded", {"cents": 5})
    send(url, "paid", '{"cents": 6}', *to, "--park", "1h")
    (second,) = invoke("--log", url, "signal", "get", "x").objects
    assert (second["stands"], second["body"], second["ended"]) == ("parked", {"cents": 6}, None)
    assert second["until"] > second["parked"] > first["ended"]
    assert listed(url, "--parked") == ["x"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--to", "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f", "--park", "1m"), "--park goes with --workflow"),
        (("--workflow", "order", "--park", "soon"), "--park 'soon' is no length of time"),
        (("--workflow", "order", "--park", "0s"), "--park '0s' is no length of time"),
    ],
)
def test_what_cannot_be_parked_is_refused_in_a_line(url: str, options: tuple[str, ...], told: str) -> None:
    done = send(url, "held", "{}", *options)
    assert (done.status, done.stdout) == (2, "")
    assert told in done.stderr


def test_parked_signals_are_for_no_id(url: str) -> None:
    done = invoke("--log", url, "signal", "list", "--parked", "--to", ids(url)["1"])
    assert (done.status, done.stdout) == (2, "")
    assert "--to goes without --parked" in done.stderr


async def test_send_and_dispatch_beside_a_worker_are_decided_there(url: str) -> None:
    """design §5: through the inbox, answered when it is decided."""
    async with Gasoline.open(url) as gasoline, gasoline.worker([order]):
        done = await asyncio.to_thread(run, "--log", url, "workflow", "dispatch", "order", "7", "--tag", "order=7")
        assert (done.status, done.stderr) == (0, "")
        (dispatched,) = done.objects
        assert dispatched["created"]
        for cents in ("1", "2"):
            sent = await asyncio.to_thread(
                run,
                "--log",
                url,
                "signal",
                "send",
                "paid",
                f'{{"cents": {cents}}}',
                "--workflow",
                "order",
                "--tag",
                "order=7",
            )
            assert (sent.status, sent.stderr) == (0, "")
        assert await gasoline.handle(dispatched["id"], order).output(timeout=30) == 10


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        (("paid", "{}"), 2, "say where it goes"),
        (("paid", "{}", "--to", "ID", "--workflow", "order"), 2, "say where it goes"),
        (("paid", "{}", "--to", "ID", "--tag", "a=b"), 2, "say where it goes"),
        (("paid", "{cents: 5}", "--workflow", "order"), 2, "the body is no JSON that can be kept"),
        (("paid", "NaN", "--workflow", "order"), 2, "the body is no JSON that can be kept"),
        (("paid", '"5"', "--workflow", "order"), 2, "a JSON object of its fields"),
        (("Paid!", "{}", "--workflow", "order"), 2, "Paid!"),
        (("paid", "{}", "--workflow", "Order!"), 2, "Order!"),
        (("paid", "{}", "--workflow", "order", "--tag", "order"), 2, "is not a tag"),
        (("paid", "{}", "--workflow", "order", "--tag", "order=3"), 1, "no incomplete workflow 'order' has the tags"),
        (("paid", "{}", "--to", "0190f3a2-7c1e-7d05-9b3a-5f2c81e40a3f"), 1, "not found"),
        (("paid", "{}", "--to", "../../etc"), 1, "workflow"),
        (("paid", "{}", "--workflow", "order", "--id", ""), 2, "signal id"),
        (("paid", "{}", "--workflow", "order", "--id", "x" * 301), 2, "signal id"),
    ],
)
def test_signal_that_cannot_be_sent_is_refused_in_a_line(
    url: str, options: tuple[str, ...], status: int, why: str
) -> None:
    before = listed(url)
    done = send(url, *options)
    assert (done.status, done.stdout) == (status, ""), done.stderr
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
    assert listed(url) == before


def dispatch(url: str, *options: str) -> Done:
    return invoke("--log", url, "workflow", "dispatch", *options)


def test_dispatch_starts_one_or_finds_it(url: str) -> None:
    """semantics.md §6: unique by tags; a key gives the one it gave before."""
    (made,) = dispatch(url, "order", "3", "--tag", "order=3", "--unique").objects
    assert (made["name"], made["created"]) == ("order", True)
    (found,) = dispatch(url, "order", "3", "--tag", "order=3", "--unique").objects
    assert found == {**made, "created": False}
    (keyed,) = dispatch(url, "order", "4", "--key", "four").objects
    (again,) = dispatch(url, "order", "4", "--key", "four").objects
    assert (keyed["created"], again) == (True, {**keyed, "created": False})
    assert dispatch(url, "order", "4", "--key", "four", "--text").stdout == f"order {keyed['id']}  was there already\n"
    (got,) = invoke("--log", url, "workflow", "get", keyed["id"]).objects
    assert (got["status"], got["input"]) == ("running", 4)
    reused = dispatch(url, "order", "5", "--key", "four")
    assert reused.status == 1
    assert "belongs to workflow" in reused.stderr


def test_dispatch_keeps_the_json_as_it_was_written(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """design §9: integers stay exact, and it may come from standard input."""
    large = '{"n": 123456789012345678901234567890, "x": 0.1, "text": "é"}'
    (made,) = dispatch(url, "order", large).objects
    raw = invoke("--log", url, "workflow", "get", made["id"]).stdout
    assert jq(".input.text", raw) == ["é"]
    assert "123456789012345678901234567890" in raw

    class Piped:
        buffer = io.BytesIO(b'{"from": "a pipe"}\n')

    from gasoline_es.cli.typed import json_of

    monkeypatch.setattr(sys, "stdin", Piped())
    assert json.loads(json_of("the input", "-")) == {"from": "a pipe"}


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        (("order", "three"), 2, "the input is no JSON that can be kept"),
        (("order", '"\\ud800"'), 2, "the input is no JSON that can be kept"),
        (("order", "[" * 200 + "]" * 200), 2, "the input is no JSON that can be kept"),
        (("Order", "3"), 2, "Order"),
        (("order", "3", "--unique", "--key", "x"), 2, "not both"),
        (("order", "3", "--key", ""), 2, "key"),
        (("order", "3", "--tag", "a=1", "--tag", "a=2"), 2, "two values"),
        (("order", f'"{"x" * 99}"', "--key", "1"), 1, "belongs to workflow"),
    ],
)
def test_workflow_that_cannot_be_dispatched_is_refused_in_a_line(
    url: str, options: tuple[str, ...], status: int, why: str
) -> None:
    before = ids(url)
    done = dispatch(url, *options)
    assert (done.status, done.stdout) == (status, ""), done.stderr
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
    assert ids(url) == before


async def test_input_and_body_that_the_code_cannot_read_make_it_dead(url: str) -> None:
    """Nothing here could hold them against the types: the error is told where it shows."""
    (made,) = (await asyncio.to_thread(dispatch, url, "order", '"three"')).objects
    (sent,) = (await asyncio.to_thread(dispatch, url, "order", "3")).objects
    await asyncio.to_thread(send, url, "paid", '{"dollars": 9}', "--to", sent["id"])
    async with Gasoline.open(url) as gasoline, gasoline.worker([order]):
        for workflow_id in (made["id"], sent["id"]):
            while (await gasoline.get(workflow_id)).status != "dead":
                await asyncio.sleep(0.01)
        error: Any = (await gasoline.get(made["id"])).error
        assert "does not read as the type 'order' takes" in error.message


@pytest.mark.parametrize(
    "command",
    [
        ("signal", "send", "paid", "{}", "--workflow", "order"),
        ("workflow", "dispatch", "order", "1"),
        ("signal", "list"),
        ("signal", "get", "x"),
        ("registry",),
    ],
)
def test_log_or_namespace_that_is_not_there_is_not_made(tmp_path: Path, url: str, command: tuple[str, ...]) -> None:
    done = invoke("--log", f"file:{tmp_path}/typo", *command)
    assert (done.status, done.stdout) == (1, "")
    assert "there is no log in" in done.stderr
    assert not (tmp_path / "typo").exists()
    wrong = invoke("--log", url, "--namespace", "typo", *command)
    assert (wrong.status, wrong.stdout) == (1, "")
    assert "there is no namespace 'typo'" in wrong.stderr
    assert list(invoke("--log", url, "log", "info").objects[0]["namespaces"]) == ["default"]


TAKEN = """\
signal    payment of 1
name      paid
workflow  order <one>
received  <time>
status    taken at {1} <time>
body      {"cents":900}"""
