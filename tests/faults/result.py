"""What became of one run."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.facts import ForeignFact, PlainFact, Violation
from tests.faults.scenario import Scenario
from tests.faults.timeline import told
from tests.faults.traffic import totals

#: what shorter runs see of other applications may be nothing
SHORT_S = 2.0


class Played:
    """What every run has: its end is noted, whatever it was."""

    seconds: float
    timeline: str
    violations: list[Violation]
    folder: str | Path

    @contextmanager
    def played(self) -> Iterator[None]:
        """Around a run: what it fails with is a violation too, and it has a timeline and a length whatever happened."""
        begun = time.monotonic()
        try:
            yield
        except Exception as e:
            self.violations.append(Violation("harness", f"{type(e).__name__}: {e}\n{traceback.format_exc()}"))
        self.timeline = told(str(self.folder))
        self.seconds = time.monotonic() - begun


@dataclass
class Result(Played):
    """What became of one run.

    :param records: of our loads, visible at the end.
    :param repairs: of transactions that were lost behind their decision: copied, or prepared again (rule:
        repair-replaces-lost-row).
    :param struck: per fault of the scenario, whether it happened.
    :param windows: for how many ms loads were visible in part, one figure for each that was visible.
    :param ended_by_maintenance: transactions that no run's cleanup had ended.
    :param foreign_committed: transactions of another application, by its own word.
    :param plain_acked: records of another application without transactions, by its own word.
    """

    scenario: Scenario
    seconds: float = 0.0
    records: int = 0
    attempts: int = 0
    repairs: int = 0
    struck: list[bool] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    windows: list[float] = field(default_factory=list)
    timeline: str = ""
    folder: str = ""
    read_by_java: bool = False
    through_airflow: bool = False
    ended_by_maintenance: int = 0
    foreign_committed: int = 0
    plain_acked: int = 0

    def judge_others(self, foreign: Sequence[ForeignFact], plain: Sequence[PlainFact], seconds: float) -> None:
        """Where other applications did nothing, that nothing of theirs was touched proves nothing.

        :param seconds: that they had.
        """
        self.foreign_committed, self.plain_acked = totals(foreign, plain)
        if seconds > SHORT_S and not (self.foreign_committed and self.plain_acked):
            text = f"{self.foreign_committed} transactions committed and {self.plain_acked} plain records acknowledged"
            self.violations.append(Violation("harness", f"other applications had {seconds:.0f} s: {text}"))
