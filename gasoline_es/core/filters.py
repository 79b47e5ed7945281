"""Which workflows somebody asks for: what a list, a revival and the command line filter by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gasoline_es.core.state import Summary, created
from gasoline_es.core.tags import matches


@dataclass(frozen=True, slots=True)
class Filters:
    """What a workflow must match; all of what is given.

    ``error``: a part of its error's text. Times are of its creation, microseconds UTC: from ``since_us``, before ``until_us``.
    ``after``: it stands in the list behind the one that was created then, and has that id.
    """

    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    status: str | None = None
    error: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    after: tuple[int, str] | None = None

    def match(self, summary: Summary) -> bool:
        """Tell whether a workflow matches."""
        return (
            summary.pruned != "all"
            and self.may_match(summary)
            and (self.status is None or summary.status == self.status)
            and (self.error is None or (summary.error is not None and self.error in str(summary.error)))
            and matches(summary.tags, self.tags)
        )

    def may_match(self, summary: Summary) -> bool:
        """Tell whether a workflow matches by what is so from its first event on: its name, and when it was created."""
        return (
            (self.name is None or summary.name == self.name)
            and (self.since_us is None or summary.created_us >= self.since_us)
            and (self.until_us is None or summary.created_us < self.until_us)
            and (self.after is None or created(summary) > self.after)
        )

    @property
    def may_match_all(self) -> bool:
        """Whether :meth:`may_match` is true of every workflow."""
        return self.name is None and self.since_us is None and self.until_us is None and self.after is None
