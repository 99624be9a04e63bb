"""What became of a world's run: for the line, the page and the exit code of a campaign."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.faults.facts import Violation
from tests.faults.result import Played


class Plan(Protocol):
    """A world's plan."""

    @property
    def seed(self) -> int: ...

    @property
    def dimensions(self) -> dict[str, str]: ...

    def to_json(self) -> str: ...


@dataclass
class Outcome(Played):
    """
    :param strikes: what was to strike, and where, and whether it did.
    :param figures: by name; of several runs the page has the median and the largest.
    """

    plan: Plan
    folder: Path
    seconds: float = 0.0
    strikes: list[tuple[str, str, bool]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    timeline: str = ""

    def wrong(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))
