"""Running the help desk example as its users do, and what it must come to: computed here straight from the input."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

from gasoline_es import Gasoline
from gasoline_es.core.codec import decode
from gasoline_es.core.events import ActivityCompleted, SignalConsumed, SignalReceived, WorkflowDispatched

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "helpdesk.py"
SAMPLE = ROOT / "examples" / "helpdesk-sample.jsonl"

Line = dict[str, str]
OVERLOADED = "the event loop has more to do than it can"
"""What a worker says on a machine that has others to serve: how it shares the work then."""


# --- running it -------------------------------------------------------------------------------------------------------


def command(path: Path, log: Path, *options: str) -> list[str]:
    return [sys.executable, str(SCRIPT), str(path), "--log", f"file:{log}", *options]


def run(path: Path, log: Path, *options: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(path, log, *options), capture_output=True, text=True, encoding="utf-8", timeout=timeout_s, check=False
    )


def summary(path: Path, log: Path, timeout_s: float = 100) -> str:
    """The text of ``--json``, from a run that must go well and say nothing else, but that the machine has much to do."""
    done = run(path, log, "--json", timeout_s=timeout_s)
    said = [line for line in done.stderr.splitlines() if not line.startswith(OVERLOADED)]
    assert said == [], done.stderr
    assert done.returncode == 0
    return done.stdout


# --- what it must come to ---------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[Line]:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def expected(lines: Sequence[Line]) -> dict[str, Any]:
    """The summary, the plain way: everything in memory, fractions for the percentiles."""
    last: dict[str, str] = {}
    times: dict[str, list[datetime]] = {}
    for line in lines:
        last[line["ticket"]] = line["activity"]
        times.setdefault(line["ticket"], []).append(datetime.fromisoformat(line["time"]))
    durations = sorted(Fraction((max(of) - min(of)) // timedelta(microseconds=1), 1_000_000) for of in times.values())
    counts = Counter(last.values())
    firsts = list(dict.fromkeys(last.values()))
    return {
        "tickets": len(last),
        "events": len(lines),
        "by_status": {
            name: counts[name] for name in sorted(counts, key=lambda name: (-counts[name], firsts.index(name)))
        },
        "duration_p50_s": _between(durations, Fraction(1, 2)),
        "duration_p90_s": _between(durations, Fraction(9, 10)),
    }


def _between(ordered: list[Fraction], share: Fraction) -> float | None:
    if not ordered:
        return None
    rank = share * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (rank - below) * (ordered[above] - ordered[below]))


def as_printed(figures: dict[str, Any]) -> str:
    """Text and not the object: so the order of ``by_status`` counts too."""
    return json.dumps(figures, indent=1, ensure_ascii=False) + "\n"


# --- what is on its log -----------------------------------------------------------------------------------------------


@dataclass
class Recorded:
    """What the log holds of one ticket: ids of signals in order, and how many lines were folded."""

    received: list[str] = field(default_factory=list[str])
    consumed: list[str] = field(default_factory=list[str])
    folded: int = 0


async def recorded(log: Path) -> dict[str, Recorded]:
    """Ticket → what is recorded of it, read from the log without any worker."""
    found: dict[str, Recorded] = {}
    names: dict[str, str] = {}
    async with Gasoline.open(f"file:{log}", readonly=True) as gasoline:
        for partition in range(gasoline.log.partition_count):
            for record in gasoline.log.read("default.events", partition):
                assert record.value is not None
                event = decode(record.value)
                if event.workflow != "ticket":
                    continue
                data = event.data
                if isinstance(data, WorkflowDispatched):
                    assert data.tags["ticket"] not in found
                    names[event.workflow_id] = data.tags["ticket"]
                    found[data.tags["ticket"]] = Recorded()
                of = found[names[event.workflow_id]]
                if isinstance(data, SignalReceived):
                    of.received.append(data.signal_id)
                elif isinstance(data, SignalConsumed):
                    of.consumed.extend(data.signal_ids)
                elif isinstance(data, ActivityCompleted) and data.name == "fold":
                    of.folded += 1
    return found


async def check_every_line_is_recorded_once(log: Path, lines: Sequence[Line]) -> None:
    numbers: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        numbers.setdefault(line["ticket"], []).append(str(number))
    on_log = await recorded(log)
    assert on_log.keys() == numbers.keys()
    for name, of in on_log.items():
        assert of.received == [*numbers[name], "end"], name
        assert of.consumed == [*numbers[name], "end"], name
        assert of.folded == len(numbers[name]), name


# --- made-up inputs ---------------------------------------------------------------------------------------------------


def made_up(rng: random.Random, count: int) -> list[Line]:
    """Lines of tickets that run beside each other, a few of them after their end, in no strict order of time."""
    activities = ["Opened", "Assigned", "Waiting", "Answered", "Größe geklärt", "解決", "Closed"]
    since = datetime(2023, 5, 1, tzinfo=UTC)
    lines: list[Line] = []
    open_tickets: list[str] = []
    for number in range(count):
        if not open_tickets or rng.random() < 0.25:
            open_tickets.append(f"T-{number} ü")
        name = rng.choice(open_tickets)
        if rng.random() < 0.2:
            open_tickets.remove(name)
        moment = since + timedelta(seconds=number * 997, microseconds=rng.choice([0, 0, rng.randrange(10**6)]))
        moment -= timedelta(hours=rng.choice([0, 0, 0, 30]))
        lines.append(
            {
                "ticket": name,
                "activity": rng.choice(activities),
                "time": moment.isoformat(),
                "resource": rng.choice(["Ana", "Bø", "Cem"]),
                "seriousness": "normal",
                "customer": "Kiosk",
                "product": "bell",
                "service_level": "basic",
                "workgroup": "workshop",
            }
        )
    return lines


def written(path: Path, lines: Sequence[Line]) -> Path:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
