"""What a check of recorded histories against code comes to: counts, and a finding for each history that does not fit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from gasoline_es.checking.ledger import CallSite, Observed

Kind = Literal[
    "diverged", "latent", "misused", "raises", "goes_on", "output_differs", "output_type", "raises_at_end", "unreadable"
]
"""Diverging: ``diverged`` (HistoryDiverged), ``latent`` (LatentHistoryFound), ``misused`` (another mistake that ends a run),
``raises`` (an error leaves the body where the history goes on), ``goes_on`` (the code waits where the history is complete).
Warnings: ``output_differs`` and ``output_type`` (of a complete workflow), ``raises_at_end`` (of an incomplete one, which will
die when it is taken up). ``unreadable``: no history this version of the library can read.
"""

WARNINGS: Final = frozenset({"output_differs", "output_type", "raises_at_end"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One history that does not fit the code. Texts are empty, ``line`` is 0, where there is nothing to say."""

    kind: Kind
    workflow_id: str
    name: str
    status: str
    """Where the workflow stands: running, sleeping, complete, dead, unreadable."""
    error: str
    """The class of the error the engine would end it with, if it would."""
    location: str
    recorded: str
    found: str
    """What the code has there."""
    file: str
    line: int
    fix: str
    message: str


@dataclass(slots=True)
class Report:
    """What became of all histories that were looked at. Every list is in order of workflow id."""

    histories: int = 0
    replayed: int = 0
    """How many of them replay, warnings included."""
    partly: int = 0
    """How many of those could be replayed only up to a step that was inserted: what is recorded behind it is not checked."""
    left_out: int | None = None
    """How many were not looked at because they are complete or cancelled, if only the others were asked for."""
    silenced: int = 0
    """How many were not looked at because they are silenced: whatever the code does, they will not run again."""
    not_in_module: Counter[str] = field(default_factory=Counter[str])
    """Workflow name → histories that were not looked at, because the code has no workflow of that name."""
    divergences: list[Finding] = field(default_factory=list[Finding])
    warnings: list[Finding] = field(default_factory=list[Finding])
    unreadable: list[Finding] = field(default_factory=list[Finding])
    damages: list[str] = field(default_factory=list[str])
    """Places of the log or file that could not be read, as far as they were met."""
    observed: Observed | None = None
    """What was seen of ``ctx.v``, ``removed`` and ``check_version``, if that was asked for."""
    sites: list[CallSite] = field(default_factory=list[CallSite])
    """All calls of these in the code, and which of them are needed, if that was asked for."""

    @property
    def ok(self) -> bool:
        """Whether every history could be read and replays."""
        return not (self.divergences or self.unreadable or self.damages)

    def found(self, finding: Finding) -> None:
        """Add a finding to the list it belongs to."""
        if finding.kind == "unreadable":
            self.unreadable.append(finding)
        elif finding.kind in WARNINGS:
            self.warnings.append(finding)
        else:
            self.divergences.append(finding)

    def add(self, other: Report) -> None:
        """Take another part of the same check in."""
        self.histories += other.histories
        self.replayed += other.replayed
        self.partly += other.partly
        if self.left_out is not None and other.left_out is not None:
            self.left_out += other.left_out
        self.silenced += other.silenced
        self.not_in_module.update(other.not_in_module)
        self.divergences += other.divergences
        self.warnings += other.warnings
        self.unreadable += other.unreadable
        self.damages += [damage for damage in other.damages if damage not in self.damages]
        if self.observed is not None and other.observed is not None:
            self.observed.add(other.observed)

    def sort(self) -> None:
        """Put the findings in an order that does not depend on who found them."""
        for findings in (self.divergences, self.warnings, self.unreadable):
            findings.sort(key=lambda finding: (finding.workflow_id, finding.kind))
        self.damages.sort()

    def __str__(self) -> str:
        """Say it for people, as an assertion shows it: the counts, then each history that diverges."""
        counts = (
            f"{self.replayed} of {self.histories} histories replay, {len(self.divergences)} diverge, "
            f"{len(self.unreadable)} cannot be read, {self.not_in_module.total()} are of other workflows"
        )
        if self.left_out is not None:
            counts += f", {self.left_out} are over and were left out"
        if self.silenced:
            counts += f", {self.silenced} are silenced and were left out"
        told = [f"{one.name} {one.workflow_id}: {one.message}" for one in (*self.divergences, *self.unreadable)]
        return "\n".join((counts, *told, *self.damages))
