"""What can be waited for: a poll looks once and says what it still waits for, or None when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.sweeping import finish, needs_quiet_period, sweep
from airflow_kafka_eos.protocol.visibility import lags


class Poll(Protocol):
    """Called again and again with an open session."""

    def __call__(self, session: Session) -> str | None:
        """What it waits for, as a text for people, or None."""
        ...

    def summary(self) -> dict[str, Any]:
        """What was found, once it is done; JSON values."""
        ...


class CleanPoll:
    """Sweep until nothing of the run's attempts has been open for the quiet period (rule 11)."""

    def __init__(
        self,
        load: LoadIdentity,
        *,
        up_to: int,
        by: str,
        quiet_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.load = load
        self.up_to = up_to
        self.by = by
        self.quiet_s = quiet_s
        self._clock = clock
        self._quiet_since: float | None = None
        self._aborted: set[str] = set()

    def __call__(self, session: Session) -> str | None:
        rows = session.ledger.attempts(self.load)
        up_to = self.up_to
        quiet_s = self.quiet_s if needs_quiet_period([r for r in rows if r.number <= up_to]) else 0.0
        report = sweep(session, self.load, up_to=up_to, by=self.by)
        self._aborted.update(report.aborted)
        now = self._clock()
        if not report.is_quiet:
            self._quiet_since = None
            return f"load {self.load}: ended {report.aborted or 'none'}, still open {report.still_open or 'none'}"
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        if now - self._quiet_since < quiet_s:
            return f"load {self.load}: nothing open since {now - self._quiet_since:.1f} of {quiet_s:g} s"
        finish(session, self.load, up_to=up_to)
        return None

    def summary(self) -> dict[str, Any]:
        return {"load": str(self.load), "aborted": sorted(self._aborted)}


class VisiblePoll:
    """Wait until read_committed readers see the load's last record on every partition (rule 10)."""

    def __init__(self, load: LoadIdentity) -> None:
        self.load = load

    def __call__(self, session: Session) -> str | None:
        waiting = lags(session, self.load)
        if not waiting:
            return None
        return f"load {self.load} is committed, readers are held back: {'; '.join(map(str, waiting[:5]))}"

    def summary(self) -> dict[str, Any]:
        return {"load": str(self.load)}


def own_number(rows: list[AttemptRow], owner: str) -> int:
    """The newest attempt that a run is responsible for, 0 when there is none.

    Asked of the ledger, not of XCom: a prepare that was killed has pushed nothing.
    """
    return max((r.number for r in rows if r.responsible == owner), default=0)
