"""Commit a decided load: EndTxn for each transaction, then the log's own word that it is done (rules 4, 7, 10)."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_kafka_eos.errors import InDoubtError, KafkaEosError, NotFinishedError, UndecidableError
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
    failed: KafkaEosError | None = None
    if todo:
        # the answers are hints (rule 7): a refused EndTxn may be one that went through before
        try:
            session.coordinator.end_many([t.transaction for t in todo], Verdict.COMMIT)
        except KafkaEosError as e:
            failed = e
    outcomes: dict[str, Outcome] = {}
    for t in todo:
        try:
            outcomes[t.transaction.transactional_id] = outcome_of(session, t)
        except KafkaEosError as e:
            failed = failed or e
    log.info("commit of %s attempt %d: %s", load, number, {n: o.value for n, o in outcomes.items()})
    if outcomes:
        # what was seen is kept, whatever else failed: retention may take the evidence before the next pass
        session.ledger.record_outcomes(load, number, outcomes)
    for name, outcome in outcomes.items():
        if outcome is Outcome.OPEN:
            result.open.append(name)
        elif outcome is Outcome.COMMITTED:
            result.newly_committed.append(name)
    broken = {n: o for n, o in outcomes.items() if o in (Outcome.ABORTED, Outcome.IN_DOUBT)}
    if broken:
        _stop(session, load, number, broken)
    if failed is not None and len(result.newly_committed) < len(todo):
        raise failed
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


def _stop(session: Session, load: LoadIdentity, number: int, broken: Mapping[str, Outcome]) -> None:
    """Every other transaction's outcome is recorded by now: the ledger shows a person what is committed."""
    name, outcome = next(iter(broken.items()))
    if outcome is Outcome.ABORTED:
        what = f"transaction {name} was aborted although the decision was commit (the broker's timeout, or a hand)"
    else:
        what = f"the logs of transaction {name} do not tell one story"
    if len(broken) > 1:
        what += f", and so with {len(broken) - 1} more"
    session.ledger.record_in_doubt(load, number, what)
    raise InDoubtError(
        what,
        remedy="Nothing more is touched. Compare the topic with the manifest; then mend it by hand or load the same "
        "data under a load_key of its own",
        load=str(load),
        attempt=number,
        transactional_id=name,
    )
