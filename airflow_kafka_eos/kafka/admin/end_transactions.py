"""End prepared transactions by EndTxn, one or thousands, as fast as their coordinators can.

EndTxn's request, and what its answer means, are pure functions; :class:`_Ending` sends, repeats and keeps the time. All
of it is safe to send twice, because a transaction is named by its recorded identity (rule: recorded-identity). Whose
transactions may be ended is the caller's to guard (rule: only-our-ids).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from kafka import errors
from kafka.protocol.producer.transaction import EndTxnRequest

from airflow_kafka_eos.errors import BrokerUnavailableError, KafkaEosError
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.pool import Reply
from airflow_kafka_eos.kafka.client.wire import Wire, find_coordinators
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import PreparedTransaction

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long the first EndTxn of a transaction may take before the connection it hangs on is given up.
FIRST_TRY_S = 2.0
#: Ids in one request: bounded whatever the size of the load.
BATCH = 1000

_OLDEST, HIGHEST = 3, 5
#: The last version that does not ask for a raised epoch (KIP-890).
BEFORE_EPOCH_BUMP = 4
_FENCED = retry.codes(
    errors.InvalidProducerEpochError, errors.InvalidProducerIdMappingError, errors.ProducerFencedError
)


class EndAnswer(str, Enum):
    """What EndTxn was answered. A hint, never evidence: v4 after an end by v5 answers FENCED too.

    Rule: log-is-the-evidence.
    """

    #: this call ended it, or it had been ended with the same verdict
    DONE = "done"
    #: it has no such transaction open; often: it was ended with the opposite verdict
    WRONG_STATE = "wrong state"
    #: another producer id or epoch holds the transactional id by now
    FENCED = "fenced"


def highest_for(transaction_version: int) -> int:
    """The highest version of EndTxn that a cluster can do, whatever its brokers offer.

    With ``transaction.version`` 0, as a cluster has it that was upgraded from 3.9, a coordinator cannot write down what
    v5 asks for: it answers UNSUPPORTED_VERSION, and v4 behind it gets nowhere either (seen with Kafka 4.1.2).
    """
    return HIGHEST if transaction_version >= 1 else BEFORE_EPOCH_BUMP


def meaning_of(code: int, transactional_id: str) -> EndAnswer | Exception:
    """What EndTxn's error code means: an answer, :class:`retry.Retry`, or a terminal error."""
    if code == errors.InvalidTxnStateError.errno:
        return EndAnswer.WRONG_STATE
    if code in _FENCED:
        return EndAnswer.FENCED
    return retry.error_of_id(code, "WRITE", transactional_id) or EndAnswer.DONE


def end_txn(transaction: PreparedTransaction, verdict: Verdict, highest: int = HIGHEST) -> EndTxnRequest:
    """EndTxn by the recorded identity, in the highest version that both sides speak (KIP-890).

    Rule: recorded-identity.

    :param highest: see :func:`highest_for`.
    """
    return EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.state.producer_id,
        producer_epoch=transaction.state.producer_epoch,
        committed=verdict.is_commit,
        min_version=_OLDEST,
        max_version=highest,
    )


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


def batches(items: Sequence[T]) -> Iterable[Sequence[T]]:
    """Slices of at most :data:`BATCH`."""
    return (items[i : i + BATCH] for i in range(0, len(items), BATCH))


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
            self._pool = self._wire.pool()
            self._highest = highest_for(self._wire.transaction_version())
        except KafkaEosError as error:
            for job in self._waiting:
                self._failed(job, error)
        else:
            with closing(self._pool):
                while self._unfinished and (left := give_up - time.monotonic()) > 0:
                    self._submit_due()
                    next_due = min((job.due for job in self._waiting), default=give_up)
                    for reply in self._pool.wait(max(0.0, min(left, next_due - time.monotonic()))):
                        self._take(reply)
        for job in self._unfinished.values():
            what = f"ending transaction {job.transaction} with {self._verdict.value}"
            self.errors[job.transaction] = retry.give_up(what, self._timeout_s, job.reason, job.id)

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
        message = end_txn(job.transaction, self._verdict, self._highest)
        self._pool.submit(node_id, message, job, timeout_s=timeout_s)

    def _send_find(self, jobs: Sequence[_Job]) -> None:
        node_id = self._pool.any_broker()
        if node_id is None:
            self._again(jobs, "no broker is known")
            return
        timeout_s = patience_s(min(job.tries for job in jobs), self._wire.request_timeout_s)
        message = find_coordinators(sorted({job.id for job in jobs}))
        self._pool.submit(node_id, message, list(jobs), timeout_s=timeout_s)

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
            refusal = retry.error_of_id(row.error_code, "DESCRIBE", job.id)
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
        if code == errors.NotCoordinatorError.errno:
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
