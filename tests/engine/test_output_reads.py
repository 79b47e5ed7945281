"""What asking for the output of a workflow that ended long ago reads (design §10: cold histories stay cheap)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gasoline_es import Gasoline, Signal, WorkflowContext, workflow
from gasoline_es.log.file.log import FileLog
from gasoline_es.log.port import Record


class Counted(Signal):
    amount: int


@workflow
async def total(ctx: WorkflowContext, parts: int) -> int:
    return sum([(await ctx.listen(Counted)).amount for _ in range(parts)])


async def test_the_output_of_a_complete_workflow_is_read_from_one_record(
    tmp_log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Gasoline.open(tmp_log_url) as gasoline, gasoline.worker([total]):
        handle = await gasoline.dispatch(total, 20)
        for amount in range(20):
            await handle.signal(Counted(amount=amount))
        assert await handle.output(timeout=30) == 190
    asked: list[int] = []
    read_at = FileLog.read_at

    def counted(self: FileLog, topic: str, partition: int, offsets: Sequence[int], *places: Any) -> list[Record]:
        asked.extend(offsets)
        return read_at(self, topic, partition, offsets, *places)

    monkeypatch.setattr(FileLog, "read_at", counted)
    async with Gasoline.open(tmp_log_url, readonly=True) as gasoline:
        asked.clear()  # an opening sees whether the log knows where its stored views end
        assert await gasoline.handle(handle.id, total).output(timeout=30) == 190
    assert len(asked) == 1
