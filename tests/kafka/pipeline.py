"""A program between two topics: ``python -m tests.kafka.pipeline URL SOURCE SINK`` answers each record with one."""

from __future__ import annotations

import asyncio
import sys

from gasoline_es import Gasoline, WorkflowContext, workflow
from gasoline_es.pipelines import Dispatch, Incoming


@workflow
async def relay(ctx: WorkflowContext, sink_and_number: tuple[str, int]) -> None:
    sink, number = sink_and_number
    await ctx.emit(sink, str(number), number)


async def main(url: str, source: str, sink: str) -> None:
    def take(number: Incoming[int]) -> Dispatch[tuple[str, int]]:
        return Dispatch(relay, (sink, number.value))

    async with Gasoline.open(url) as gasoline, gasoline.worker([relay]), gasoline.ingest(source, take, model=int):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
