"""What can be waited for: a poll looks once and says what it still waits for, or None when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from airflow_kafka_eos.errors import AccessError, KafkaEosError, NotFinishedError
from airflow_kafka_eos.ledger.dual_write import check_finished
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.protocol.cleanup.sweep import (
    CLEANUP,
    SweepReport,
    finish,
    needs_quiet_period,
    nothing_can_hide,
    sweep,
)
from airflow_kafka_eos.protocol.hanging import HangingTransaction, end_ours
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.commit import decided_attempt
from airflow_kafka_eos.protocol.stages.visible import arrival_of, lags
from airflow_kafka_eos.transaction import TopicPartition


class Poll(Protocol):
    """Called again and again with an open session."""

    def __call__(self, session: Session) -> str | None:
        """What it waits for, as a text for people, or None."""
        ...

    def summary(self) -> dict[str, Any]:
        """What was found, once it is done; JSON values."""
        ...


#: Seconds between two listings of a load whose writers have ended: brokers learn of a new leader one by one.
APART_S = 0.5
#: Listings that must have found nothing, each of them complete.
LOOKS = 2


class CleanPoll:
    """Sweep until nothing of the run's attempts has been open for the quiet period (rule: listing-only-adds).

    One empty listing proves little: a coordinator that is just moving hides its ids, and a loser of Spark's speculation
    may be late. So it takes two of them that were complete, some time apart, but where nothing can hide: a commit whose
    tasks ran once (:func:`~.sweep.nothing_can_hide`). That time is at least :data:`~.fences.QUIET_S` where a fence was
    moved (rule: writers-have-a-deadline). The looks that it begins and ends with ask by name too for what nobody has
    reported (:func:`~.sweep.describe_guesses`); those between only list. What only a person can end is not waited for:
    ``problem`` says it.

    Coordinators' word is not the last one: they forget to end a transaction in some partitions
    (:mod:`..forgotten_markers`). So where anything was aborted, the leaders of its partitions are asked as well, and
    what hangs there is ended.

    :param partitions: of a poll that this one goes on with, see :attr:`partitions`.
    :param aborted: the ids that it has ended.
    :param reason: why undecided attempts are aborted, for the ledger.
    """

    def __init__(
        self,
        load: LoadIdentity,
        *,
        up_to: int,
        by: str,
        quiet_s: float,
        partitions: Iterable[Sequence[Any]] = (),
        aborted: Iterable[str] = (),
        reason: str = CLEANUP,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.load = load
        self.up_to = up_to
        self.by = by
        self.quiet_s = quiet_s
        self.reason = reason
        self._clock = clock
        self._pause = pause
        self._quiet_since: float | None = None
        self._looks = 0
        self._aborted = set(aborted)
        #: warnings that were given: each look meets the same
        self._told: set[str] = set()
        #: fences that were asked about: once is enough
        self._fences: set[str] = set()
        self._partitions = {TopicPartition(*tp) for tp in partitions}
        #: once it is done: what no further sweep would end; None for a load that is clean
        self.problem: KafkaEosError | None = None
        self._state: str | None = None

    def __call__(self, session: Session) -> str | None:
        waiting_for, left_s = self._look(session)
        if waiting_for is not None and 0 <= left_s <= APART_S:
            # a load whose writers have ended: deferring would take longer than waiting here
            self._pause(left_s)
            waiting_for, _ = self._look(session)
        return waiting_for

    def _look(self, session: Session) -> tuple[str | None, float]:
        """What it waits for, and how many seconds at least; -1 for what takes as long as it takes."""
        rows = [r for r in session.ledger.attempts(self.load) if r.number <= self.up_to]
        quiet_s, looks = 0.0, 1
        if not nothing_can_hide(rows, repaired=bool(session.ledger.repairs(self.load))):
            quiet_s, looks = self.quiet_s if needs_quiet_period(rows) else 0.0, LOOKS
            # one that is set shorter would take a writer for gone that has just looked
            fenced_s = fences.QUIET_S if any(map(fences.may_have_writers, rows)) else 0.0
            quiet_s = max(quiet_s, APART_S, fenced_s)
        began, quiet_since, looked = self._clock(), self._quiet_since, self._looks
        # up to its beginning: what this look lists, it may list long before it ends
        quiet = 0.0 if quiet_since is None else began - quiet_since
        # only a look that is whole leaves it: behind one that failed, or saw a part, it is counted anew
        self._quiet_since, self._looks = None, 0
        # a thousand ids a look, with a slot; no load is called clean by a look without them
        guesses = quiet_since is None or quiet >= quiet_s
        report = SweepReport(told=self._told, fences=self._fences)
        try:
            sweep(
                session,
                self.load,
                up_to=self.up_to,
                by=self.by,
                guesses=guesses,
                report=report,
                reason=self.reason,
            )
        except NotFinishedError as e:  # a coordinator is moving or away, so nothing may be ended yet
            return f"load {self.load}: {e.message}", -1
        finally:  # brokers that are away when their answer is awaited are those that forget
            self._aborted.update(report.aborted)
            self._partitions |= report.partitions
        if not report.is_quiet:
            return f"load {self.load}: {report}", -1
        if not report.is_complete:
            return f"load {self.load}: a transaction coordinator is moving or away, so its listing proves nothing", -1
        now = self._clock()
        self._looks, self._quiet_since = looked + 1, now if quiet_since is None else quiet_since
        if quiet < quiet_s or self._looks < looks or not guesses:
            # the same text at each look: it is told once
            waits = f"load {self.load}: nothing is open; this must stay so for {quiet_s:g} s"
            return waits, max(0.0, quiet_s - (now - self._quiet_since))
        try:
            refused = self._end_hanging_and_finish(session)
        except NotFinishedError as e:  # a coordinator is moving or away, or a marker is not seen yet
            return f"load {self.load}: {e.message}", -1
        self.problem = report.problem(self.load) or refused
        state = session.ledger.state(self.load)
        self._state = None if state is None else state.value
        return None, 0

    def _end_hanging_and_finish(self, session: Session) -> KafkaEosError | None:
        """What aborted transactions have left open although their coordinators call them ended; why not, if it may not.

        Then the attempts stay unswept, so that maintenance names them.
        """
        ended: list[HangingTransaction] = []
        try:
            end_ours(session, self._partitions, self.load, up_to=self.up_to, ended=ended)
            return finish(session, self.load, up_to=self.up_to)
        except AccessError as e:
            return e
        finally:
            self._aborted.update(str(one.transactional_id) for one in ended)

    @property
    def partitions(self) -> list[list[Any]]:
        """Where it has aborted something: topics and partitions, JSON values. Coordinators tell it only once."""
        return [list(tp) for tp in sorted(self._partitions)]

    @property
    def aborted(self) -> list[str]:
        """The ids that it has ended, sorted."""
        return sorted(self._aborted)

    def summary(self) -> dict[str, Any]:
        problem = None if self.problem is None else str(self.problem)
        return {"load": str(self.load), "aborted": self.aborted, "problem": problem, "state": self._state}


class VisiblePoll:
    """Wait until read_committed readers see the load's last record on every partition (rule: loaded-is-visible)."""

    def __init__(self, load: LoadIdentity) -> None:
        self.load = load
        self._arrival: dict[str, Any] = {"load": str(load)}

    def __call__(self, session: Session) -> str | None:
        check_finished(decided_attempt(session, self.load))  # a decide that was marked success by hand has not asked
        waiting = lags(session, self.load)
        if not waiting:
            self._arrival = arrival_of(session, self.load)
            return None
        return f"load {self.load} is committed, readers are held back: {'; '.join(map(str, waiting[:5]))}"

    def summary(self) -> dict[str, Any]:
        """See :func:`~airflow_kafka_eos.protocol.stages.visible.arrival_of`."""
        return self._arrival


def own_number(rows: list[AttemptRow], owner: str) -> int:
    """The newest attempt that a run is responsible for, 0 when there is none.

    Asked of the ledger, not of XCom: a prepare that was killed has pushed nothing.
    """
    return max((r.number for r in rows if r.responsible == owner), default=0)
