"""End prepared transactions by EndTxn, one or thousands, as fast as their coordinators can.

What an answer means is decided in :mod:`airflow_kafka_eos.kafka.end_txn`; :class:`_Ending` sends, repeats and keeps
the time. All of it is safe to send twice, because a transaction is named by its recorded identity
(rule: recorded-identity). Whose transactions may be ended is the caller's to guard (rule: only-our-ids).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_kafka_eos.errors import BrokerUnavailableError, KafkaEosError
from airflow_kafka_eos.kafka import retry
from airflow_kafka_eos.kafka.end_txn import HIGHEST, EndAnswer, EndTxn, highest_for, meaning_of
from airflow_kafka_eos.kafka.end_txn import refusal as refusal_of
from airflow_kafka_eos.kafka.lanes import Reply
from airflow_kafka_eos.kafka.wire import Wire, find_coordinators
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import PreparedTransaction

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long the first EndTxn of a transaction may take before the connection it hangs on is given up.
FIRST_TRY_S = 2.0
#: Ids in one FindCoordinator: bounded requests whatever the size of the load.
BATCH = 1000


@dataclass(frozen=True)
class Endings:
    """What became of each transaction: an answer, or the error that was the last one in time."""

    answers: dict[PreparedTransaction, EndAnswer]
    errors: dict[PreparedTransaction, KafkaEosError]


def end_all(
    wire: Wire, transactions: Iterable[PreparedTransaction], verdict: Verdict, *, timeout_s: float
) -> Endings:
    """End each by its recorded identity. Safe to call again.

    Several connections to each coordinator work in parallel; one transaction, or one coordinator, that does not
    answer keeps none of the others waiting.

    :param timeout_s: seconds for all of them together.
    :returns: errors are AccessError (WRITE on the id, or the login), BrokerUnavailableError (no final answer in time:
        it may have been ended), or another terminal one.
    """
    every = list(dict.fromkeys(transactions))
    ending = _Ending(wire, verdict, timeout_s)
    if every:
        ending.run(every)
    if ending.errors:
        log.warning("%d of %d transactions could not be ended", len(ending.errors), len(every))
    return Endings(ending.answers, ending.errors)


def patience_s(tries: int, longest_s: float) -> float:
    """Seconds for the answer to one EndTxn: short at first, for others may wait behind it; then twice as long."""
    return min(longest_s, FIRST_TRY_S * 2.0 ** min(tries, 10))


def batches(items: Sequence[T], size: int = BATCH) -> Iterable[Sequence[T]]:
    """Slices of at most so many."""
    return (items[i : i + size] for i in range(0, len(items), size))


@dataclass
class _Job:
    transaction: PreparedTransaction
    tries: int = 0
    due: float = 0.0  # time.monotonic()
    reason: str = "there was no time to try"

    @property
    def id(self) -> str:
        return self.transaction.transactional_id


class _Ending:
    def __init__(self, wire: Wire, verdict: Verdict, timeout_s: float) -> None:
        self._wire = wire
        self._verdict = verdict
        self._timeout_s = timeout_s
        self._waiting: list[_Job] = []
        self._unfinished: dict[PreparedTransaction, _Job] = {}
        self._highest = HIGHEST
        self.answers: dict[PreparedTransaction, EndAnswer] = {}
        self.errors: dict[PreparedTransaction, KafkaEosError] = {}

    def run(self, transactions: list[PreparedTransaction]) -> None:
        give_up = time.monotonic() + self._timeout_s
        self._waiting = [_Job(t) for t in transactions]
        self._unfinished = {job.transaction: job for job in self._waiting}
        try:
            self._lanes = self._wire.lanes()
            self._highest = highest_for(self._wire.transaction_version())
        except KafkaEosError as error:
            for job in self._waiting:
                self._failed(job, error)
        else:
            with closing(self._lanes):
                while self._unfinished and (left := give_up - time.monotonic()) > 0:
                    self._submit_due()
                    next_due = min((job.due for job in self._waiting), default=give_up)
                    for reply in self._lanes.wait(max(0.0, min(left, next_due - time.monotonic()))):
                        self._take(reply)
        for job in self._unfinished.values():
            what = f"ending transaction {job.transaction} with {self._verdict.value}"
            self.errors[job.transaction] = retry.give_up(what, self._timeout_s, job.reason, retry.REMEDY, job.id)

    # -- sending ---------------------------------------------------------------------------------------------------

    def _submit_due(self) -> None:
        now = time.monotonic()
        due = [job for job in self._waiting if job.due <= now]
        if not due:
            return
        self._waiting = [job for job in self._waiting if job.due > now]
        known = self._wire.known_coordinators(job.id for job in due)
        for job in due:
            if job.id in known:
                self._send_end(job, known[job.id])
        for batch in batches([job for job in due if job.id not in known]):
            self._send_find(batch)

    def _send_end(self, job: _Job, node_id: int) -> None:
        timeout_s = patience_s(job.tries, self._wire.request_timeout_s)
        message = EndTxn(job.transaction, self._verdict, self._highest)
        self._lanes.submit(node_id, message, job, timeout_s=timeout_s)

    def _send_find(self, jobs: Sequence[_Job]) -> None:
        node_id = self._lanes.any_broker()
        if node_id is None:
            self._again(jobs, "no broker is known")
            return
        timeout_s = patience_s(min(job.tries for job in jobs), self._wire.request_timeout_s)
        message = find_coordinators(sorted({job.id for job in jobs}))
        self._lanes.submit(node_id, message, list(jobs), timeout_s=timeout_s)

    # -- what came back ---------------------------------------------------------------------------------------------

    def _take(self, reply: Reply[_Job | list[_Job]]) -> None:
        jobs = [reply.tag] if isinstance(reply.tag, _Job) else reply.tag
        if isinstance(reply.error, BrokerUnavailableError):
            self._wire.forget_coordinators(job.id for job in jobs)
            self._again(jobs, reply.error.message)
        elif isinstance(reply.error, KafkaEosError):
            for job in jobs:
                self._failed(job, reply.error)
        elif reply.error is not None:
            raise reply.error
        elif isinstance(reply.tag, _Job):
            self._ended(reply.tag, reply.answer.error_code)
        else:
            self._found(jobs, reply.answer.coordinators)

    def _found(self, jobs: list[_Job], rows: Iterable[Any]) -> None:
        by_id = {row.key: row for row in rows}
        for job in jobs:
            row = by_id.get(job.id)
            if row is None:
                self._again([job], f"no broker said who the coordinator of {job.id} is")
                continue
            refusal = refusal_of(row.error_code, "DESCRIBE", job.id)
            if refusal is None:
                self._wire.remember_coordinator(job.id, row.node_id)
                self._send_end(job, row.node_id)
            else:
                self._refused(job, refusal)

    def _ended(self, job: _Job, code: int) -> None:
        meaning = meaning_of(code, job.id)
        if isinstance(meaning, EndAnswer):
            self.answers[job.transaction] = meaning
            del self._unfinished[job.transaction]
            return
        if code == retry.NOT_COORDINATOR:
            self._wire.forget_coordinators([job.id])
        self._refused(job, meaning)

    def _refused(self, job: _Job, refusal: Exception) -> None:
        if isinstance(refusal, retry.Retry):
            self._again([job], refusal.reason)
        elif isinstance(refusal, KafkaEosError):
            self._failed(job, refusal)
        else:
            raise refusal

    def _again(self, jobs: Iterable[_Job], reason: str) -> None:
        now = time.monotonic()
        for job in jobs:
            job.due = now + retry.pause_s(job.tries, self._timeout_s)
            job.tries += 1
            job.reason = reason
            self._waiting.append(job)

    def _failed(self, job: _Job, error: KafkaEosError) -> None:
        self.errors[job.transaction] = error
        del self._unfinished[job.transaction]
