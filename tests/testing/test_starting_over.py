"""Workflows of a simulation start over, and fork, whatever append the worker dies at (semantics.md §4)."""

from __future__ import annotations

from datetime import timedelta

from gasoline_es import ActivityContext, Break, Signal, WorkflowContext, activity, workflow
from gasoline_es.testing import Simulation, crash_everywhere
from tests.testing.shop import Order, Paid, Receipt, charge, deliver, fulfil, order_and_deliver

ORDER = Order(number=1)
RECEIPT = Receipt(order=1, cents=500)


class Go(Signal): ...


@activity
async def note(ctx: ActivityContext, text: str) -> str:
    return text


@workflow
async def rounds(ctx: WorkflowContext, count: int) -> list[str]:
    """Iterations with a join in each; two are committed at a time."""

    async def one(inner: WorkflowContext, seen: list[str]) -> Break[list[str]] | None:
        async def listening(branch: WorkflowContext) -> str:
            await branch.listen(Go)
            return await branch.activity(note, f"went {len(seen)}")

        went, slept = await inner.join(inner.closure(listening), inner.activity(note, f"noted {len(seen)}"))
        seen.append(f"{went}, {slept}")
        return Break(seen) if len(seen) == count else None

    return await ctx.loop(one, list[str](), commit_interval=2)


def test_an_order_that_starts_over_is_charged_again_under_another_key() -> None:
    keys: list[str] = []

    def scenario(sim: Simulation) -> tuple[str, str]:
        def noted(ctx: ActivityContext, order: Order) -> Receipt:
            keys.append(ctx.idempotency_key.partition(":")[2])
            return Receipt(order=order.number, cents=len(set(keys)))

        keys.clear()
        sim.fake(charge, noted)
        handle = sim.dispatch(fulfil, ORDER)
        sim.signal_at(timedelta(days=3), Paid(cents=500), to=handle)
        first = handle.output()
        again = handle.rerun("{3}")
        assert again.id == handle.id
        return first, again.output()

    assert crash_everywhere(scenario, [fulfil]) == ("parcel 1 for 1", "parcel 1 for 2")
    assert set(keys) == {"{3}", "{3}:g1"}


def test_loops_with_joins_start_over_and_fork_through_a_crash_at_every_append() -> None:
    def scenario(sim: Simulation) -> list[list[str]]:
        handle = sim.dispatch(rounds, 3)
        for _ in range(3):
            handle.signal(Go())
        expected = handle.output()
        handle.rerun("{1, 2, 1, 2}")
        assert handle.output() == expected
        fork = handle.rerun("{1, 3, 1, 1}", fork=True)
        assert fork.output() == expected
        assert [info.queued for info in sim.workflows()] == [{}, {}]
        return [expected, handle.rerun("{}").output()]

    expected = ["went 0, noted 0", "went 1, noted 1", "went 2, noted 2"]
    assert crash_everywhere(scenario, [rounds]) == [expected, expected]


def test_sub_workflows_are_dispatched_again_through_a_crash_at_every_append() -> None:
    def scenario(sim: Simulation) -> int:
        handle = sim.dispatch(order_and_deliver, ORDER)
        expected = handle.output()
        assert handle.rerun("{1}").output() == expected
        assert handle.rerun("{3}").output() == expected
        return len(sim.workflows(deliver))

    assert crash_everywhere(scenario, [order_and_deliver, deliver], every=2) == 2


def test_a_sleep_that_is_started_over_takes_its_time_again() -> None:
    with Simulation([deliver]) as sim:
        handle = sim.dispatch(deliver, ORDER)
        handle.output()
        elapsed = sim.elapsed
        handle.rerun("{1}")
        assert handle.get().status in ("running", "sleeping")
        handle.output()
        assert sim.elapsed >= elapsed + timedelta(hours=1)


def test_a_crash_in_the_middle_of_what_is_done_again_repeats_nothing_that_holds() -> None:
    with Simulation([rounds]) as sim:
        handle = sim.dispatch(rounds, 2)
        handle.signal(Go())
        handle.signal(Go())
        handle.output()
        before = len(sim.calls(note))
        handle.rerun("{1, 2, 1, 1}")
        sim.crash()
        handle.output()
        assert [call.input for call in sim.calls(note)[before:]] == ["went 1"], "what stands beside it stays"
