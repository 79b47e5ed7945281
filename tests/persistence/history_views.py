"""Workflows, and a view of their histories on SQLite: what each event was, in one transaction with how far. Also a process.

python -m tests.persistence.history_views DIRECTORY: runs the projection of all partitions until it is killed, and says what it
has processed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import ExitStack
from typing import Any, ClassVar

from eventsourcing.dispatch import singledispatchmethod
from eventsourcing.persistence import Tracking
from eventsourcing.projection import Projection, ProjectionRunner
from eventsourcing.sqlite import SQLiteTrackingRecorder

from gasoline_es import ActivityContext, Gasoline, WorkflowContext, activity, workflow
from gasoline_es.persistence import WorkflowEvent, WorkflowHistory, workflow_histories

PARTITIONS = 3


@activity
async def double(ctx: ActivityContext, number: int) -> int:
    return 2 * number


@workflow
async def quadruple(ctx: WorkflowContext, number: int) -> int:
    return await ctx.activity(double, await ctx.activity(double, number))


def run_workflows(url: str, count: int) -> list[str]:
    """Let a worker run so many workflows to their end; return their ids."""

    async def run() -> list[str]:
        opening = Gasoline.open(url, namespace="shop", partitions=PARTITIONS)
        async with opening as gasoline, gasoline.worker([quadruple]):
            handles = [await gasoline.dispatch(quadruple, number) for number in range(count)]
            assert [await handle.output() for handle in handles] == [4 * number for number in range(count)]
            return [handle.id for handle in handles]

    return asyncio.run(run())


class Processed(SQLiteTrackingRecorder):
    """One row for each event that was processed; twice processed are two rows."""

    def construct_create_table_statements(self) -> list[str]:
        table = (
            "CREATE TABLE IF NOT EXISTS processed (application TEXT, id INTEGER, workflow TEXT, seq INTEGER, type TEXT)"
        )
        return [*super().construct_create_table_statements(), table]

    tells: ClassVar[bool] = False

    def process(self, event: WorkflowEvent, tracking: Tracking) -> None:
        row = (tracking.application_name, tracking.notification_id, event.originator_id, event.seq, event.type)
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute("INSERT INTO processed VALUES (?, ?, ?, ?, ?)", row)
        if self.tells:
            print(
                f"{' '.join(map(str, row))}\n", end="", flush=True
            )  # in one piece: there is a thread for each partition

    def rows(self) -> list[tuple[Any, ...]]:
        with self.datastore.transaction(commit=False) as cursor:
            cursor.execute("SELECT application, id, workflow, seq, type FROM processed ORDER BY application, rowid")
            return [tuple(row) for row in cursor.fetchall()]


class Process(Projection[Processed]):
    @singledispatchmethod
    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        raise TypeError(domain_event)

    @process_event.register
    def _(self, event: WorkflowEvent, tracking: Tracking) -> None:
        self.view.process(event, tracking)


Runner = ProjectionRunner[WorkflowHistory, Processed]


def environment(directory: str) -> dict[str, str]:
    return {
        "GASOLINE_LOG": f"file:{directory}/log",
        "PERSISTENCE_MODULE": "eventsourcing.sqlite",
        "SQLITE_DBNAME": f"{directory}/view.db",
        "SQLITE_LOCK_TIMEOUT": "30",
        "ORIGINATOR_ID_TYPE": "text",
    }


def runners(stack: ExitStack, env: dict[str, str]) -> list[Runner]:
    """Start the projection of each partition."""
    return [
        stack.enter_context(
            ProjectionRunner(application_class=history, projection_class=Process, view_class=Processed, env=env)
        )
        for history in workflow_histories(env, "shop")
    ]


def main(directory: str) -> None:
    Processed.tells = True
    with ExitStack() as stack:
        started = runners(stack, environment(directory))
        threads = [threading.Thread(target=runner.run_forever) for runner in started]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
