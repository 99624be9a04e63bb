"""Commit a decided load: EndTxn for each transaction, then the log's own word that it is done (rules 4, 7, 10)."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from airflow_kafka_eos.errors import InDoubtError, NotFinishedError, UndecidableError
from airflow_kafka_eos.evidence import Outcome, judge
from airflow_kafka_eos.ledger.rows import AttemptRow, TransactionRow
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.protocol.session import Session

log = logging.getLogger(__name__)


@dataclass
class CommitPass:
    """What one pass over a decided load's transactions found; transactional ids."""

    newly_committed: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)


def decided_attempt(session: Session, load: LoadIdentity) -> AttemptRow:
    """The attempt that the load's commit decision names.

    :raises UndecidableError: there is none.
    """
    for row in session.ledger.attempts(load):
        if row.verdict is Verdict.COMMIT:
            return row
    raise UndecidableError(
        "there is no commit decision for this load",
        remedy="Run decide first; if decide refused the load, clear prepare to start a new attempt",
        load=str(load),
    )


def commit(session: Session, load: LoadIdentity, *, deadline_s: float, poll_s: float = 0.1) -> AttemptRow:
    """Repeat :func:`commit_pass` until every commit marker is there; then the load is COMMITTED.

    Safe to kill and to repeat: EndTxn by the recorded identity is idempotent, and what is done stays recorded.

    :param deadline_s: seconds until it gives up waiting; nothing is lost by that.
    :raises InDoubtError: a transaction's log does not tell of a commit; terminal, a person decides.
    :raises NotFinishedError: markers are still missing at the deadline; run it again.
    """
    row = decided_attempt(session, load)
    give_up = time.monotonic() + deadline_s
    wait = poll_s
    while True:
        result = commit_pass(session, load, row.number)
        if not result.open:
            return session.ledger.attempt(load, row.number) or row
        if time.monotonic() >= give_up:
            raise NotFinishedError(
                f"{len(result.open)} decided transactions have no commit marker after {deadline_s:g} s: "
                f"{', '.join(result.open[:5])}",
                remedy="Nothing is lost: check the brokers, then run commit again (or let its retry do it)",
                load=str(load),
                attempt=row.number,
                transactional_id=result.open[0],
            )
        time.sleep(wait)
        wait = min(wait * 1.5, 2.0)


def commit_pass(session: Session, load: LoadIdentity, number: int) -> CommitPass:
    """Send EndTxn where no outcome is recorded yet, read the evidence, record it; no waiting.

    :raises InDoubtError: see :func:`commit`.
    :raises UndecidableError: the attempt is not decided to be committed.
    """
    row = session.ledger.attempt(load, number)
    if row is None or row.verdict is not Verdict.COMMIT:
        # the ledger knows the transactions of undecided and aborted attempts too
        raise UndecidableError(
            "the attempt is not decided to be committed, so none of its transactions is (rule 1)",
            remedy="Run decide first; if the attempt is aborted, clear prepare to start a new one",
            load=str(load),
            attempt=number,
        )
    result = CommitPass()
    todo = [t for t in session.ledger.transactions(load, number) if t.outcome is not Outcome.COMMITTED]
    if todo:
        # the answers are hints (rule 7): a refused EndTxn may be one that went through before
        answers = session.coordinator.end_many([t.transaction for t in todo], Verdict.COMMIT)
        log.info(
            "EndTxn(commit) for %s attempt %d: %s", load, number, {k: str(v) for k, v in answers.items()}
        )
    for t in todo:
        name = t.transaction.transactional_id
        outcome = outcome_of(session, t)
        if outcome is Outcome.OPEN:
            result.open.append(name)
            continue
        if outcome is not Outcome.COMMITTED:
            _stop(session, load, number, t, outcome)
        session.ledger.record_outcome(load, number, name, outcome)
        result.newly_committed.append(name)
    if not result.open:
        session.ledger.record_committed(load, number)
    return result


def outcome_of(session: Session, row: TransactionRow) -> Outcome:
    """What the partitions' logs say of one prepared transaction (rule 7)."""
    last_offsets = {w.topic_partition: w.last_offset for w in row.writes}
    state = row.transaction.state
    found = session.partitions.markers(
        state.producer_id, last_offsets, row.topic_ids, producer_epoch=state.producer_epoch
    )
    return judge(found.values())


def _stop(session: Session, load: LoadIdentity, number: int, row: TransactionRow, outcome: Outcome) -> None:
    name = row.transaction.transactional_id
    if outcome is Outcome.ABORTED:
        what = f"transaction {name} was aborted although the decision was commit (the broker's timeout, or a hand)"
    else:
        what = f"the logs of transaction {name} do not tell one story"
    session.ledger.record_in_doubt(load, number, what)
    raise InDoubtError(
        what,
        remedy="Nothing more is touched. Compare the topic with the manifest; then mend it by hand or load the same "
        "data under a load_key of its own",
        load=str(load),
        attempt=number,
        transactional_id=name,
    )
