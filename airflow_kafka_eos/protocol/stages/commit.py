"""Commit a decided load: EndTxn for each transaction, then the log's own word that it is done.

Rules: recorded-identity, committed-is-verified.

It is a loop over outcomes, as FLIP-319's committer is one over commit requests: what is open is asked for again, what
is lost is repaired (rule: repair-replaces-lost-row), what passes is tried again until the deadline. What ends it early
is final: it loses nothing, and says what a person can do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, assert_never

from airflow_kafka_eos.errors import (
    AccessError,
    InDoubtError,
    KafkaEosError,
    NotFinishedError,
    RecordsGoneError,
    TooLargeToCopyError,
    TransientError,
    UndecidableError,
)
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.admin.find_markers import Progress
from airflow_kafka_eos.kafka.producer.copier import is_small
from airflow_kafka_eos.ledger.rows import AttemptRow, TransactionRow
from airflow_kafka_eos.load import STAYS_GIVEN_UP, LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.naming import counted
from airflow_kafka_eos.protocol.evidence import doubt, evidence_of, look_before_ending, missing_for_good
from airflow_kafka_eos.protocol.forgotten_markers import end_forgotten
from airflow_kafka_eos.protocol.guards.ownership import check_cluster
from airflow_kafka_eos.protocol.guards.restored_ledger import check_repairs_known
from airflow_kafka_eos.protocol.repair.copy import end_abandoned, repair
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import FINAL, Marker, Outcome, TopicPartition, judge_decided

log = logging.getLogger(__name__)

#: Markers follow EndTxn within milliseconds. Whether a coordinator has forgotten some is asked once they are late: no
#: other load pays for the question.
LATE_S = 2.0
#: For so long what decide has seen of the partitions is near enough to their ends.
FRESH_S = 1.0
#: What was copied waits no longer than that for the small ones behind it.
COMMIT_AFTER_S = 5.0

#: Why a lost transaction cannot be copied.
Uncopied = RecordsGoneError | TooLargeToCopyError


@dataclass
class CommitPass:
    """What one pass over a decided load's transactions found; transactional ids."""

    newly_committed: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    #: aborted by the broker or by a hand although the decision was commit: the load is REPAIRING
    lost: list[str] = field(default_factory=list)
    #: their coordinators had forgotten to end them, and they have their markers now: still among the open ones
    forgotten: list[str] = field(default_factory=list)
    #: why a forgotten one cannot be ended here; what else is to be done comes first
    refused: AccessError | None = None
    #: the attempt, where this pass has recorded that the load is COMMITTED, or found it recorded
    closed: AttemptRow | None = None

    @property
    def is_done(self) -> bool:
        """The load is COMMITTED."""
        return not (self.open or self.lost)


class Decided(NamedTuple):
    """An attempt that is decided to be committed, and what its commit goes by.

    :param end_offsets: see :func:`airflow_kafka_eos.ledger.queries.end_offsets`.
    :param topic_config: settings of its topics that were seen a moment ago; None: they were not asked for.
    """

    attempt: AttemptRow
    transactions: Sequence[TransactionRow]
    end_offsets: Mapping[TopicPartition, int]
    topic_config: Mapping[str, Mapping[str, str]] | None = None


def decided_attempt(session: Session, load: LoadIdentity) -> AttemptRow:
    """The attempt that the load's commit decision names.

    :raises UndecidableError: there is none.
    """
    for row in session.ledger.attempts(load):
        if row.verdict is Verdict.COMMIT:
            return row
    raise UndecidableError(
        "there is no commit decision for this load",
        remedy="Clear decide. If the attempt was refused or aborted, clear prepare, with what is downstream",
        load=str(load),
    )


def commit(
    session: Session,
    load: LoadIdentity,
    *,
    deadline_s: float,
    poll_s: float = 0.1,
    by: str | None = None,
    decided: Decided | None = None,
) -> AttemptRow:
    """Repeat :func:`commit_pass`, and repair what is lost, until every commit marker is there: the load is COMMITTED.

    Safe to kill and to repeat: EndTxn by the recorded identity is idempotent, what is done stays recorded, and a
    repair that was cut off is ended by the next call.

    :param deadline_s: seconds until it gives up waiting; nothing is lost by that.
    :param by: who asks, for the ledger; None: whoever is responsible for the attempt.
    :param decided: what the caller has decided a moment ago; None: the ledger is asked.
    :raises RecordsGoneError: what was lost is not in the log any more, the rest is committed; terminal, prepare has to
        write it again.
    :raises TooLargeToCopyError: what was lost takes longer to copy than the brokers let a transaction stay open, the
        rest is committed; terminal, a setting of the brokers has to change, or prepare has to write it again.
    :raises InDoubtError: a transaction's log does not tell one story, what was lost cannot be repaired, or may have
        been repaired already, for the ledger was restored from a backup; terminal, a person decides.
    :raises UndecidableError: there is no commit decision, or the load was given up.
    :raises OtherClusterError: it was written to another cluster, and is not verified committed.
    :raises AccessError: markers that a coordinator has forgotten cannot be written (:mod:`..forgotten_markers`),
        ALTER on the Cluster is missing; everything else of the load was asked for.
    :raises TransientError: it is not done at the deadline, or brokers or ledger do not answer; run it again.
    """
    if decided is not None and _is_some_time_ago(decided.attempt):
        decided = None  # the ledger had decided it before, and was asked again: others may have gone on with it
    row = decided_attempt(session, load) if decided is None else decided.attempt
    began = time.monotonic()
    give_up = began + deadline_s
    wait = poll_s
    first, may_repair, told = True, False, ""
    uncopied: dict[str, Uncopied] = {}
    progress = Progress()
    while True:
        try:
            if decided is None:  # of what was decided just now there is no repair yet
                end_abandoned(session, load, closed_too=first)
                first = False
            is_late = time.monotonic() - began >= LATE_S
            fresh, decided = decided, None
            result = commit_pass(
                session, load, row.number, ends_forgotten=is_late, progress=progress, decided=fresh
            )
            if result.is_done:
                return result.closed or session.ledger.attempt(load, row.number) or row
            todo = [name for name in result.lost if name not in uncopied]
            if todo:
                if not may_repair:  # once: what it repairs itself from here on is known
                    check_repairs_known(session, load)
                    may_repair = True
                uncopied |= _repair_all(session, row, todo, by or row.responsible, give_up)
                wait = poll_s  # on to commit them, with what is left of the time
                if time.monotonic() >= give_up:
                    # what was copied has a timeout: whoever comes next may come too late for it
                    result = commit_pass(session, load, row.number, progress=progress)
                    if result.is_done:
                        continue
            elif result.refused is not None:  # only now: what could be copied has a timeout
                raise result.refused
            elif result.lost and not result.open:
                raise _first_of([uncopied[name] for name in result.lost])
            if result.forgotten:
                wait = poll_s
            problem: KafkaEosError = _unfinished(row, result, deadline_s)
        except TransientError as e:
            problem = e
        if time.monotonic() >= give_up:
            raise problem
        if problem.message != told:  # once: it may stay so for minutes
            log.info("commit of %s still waits: %s", load, problem.message)
            told = problem.message
        time.sleep(wait)
        wait = min(wait * 1.5, 2.0)


def _repair_all(
    session: Session, row: AttemptRow, lost: list[str], by: str, give_up: float
) -> dict[str, Uncopied]:
    """Copy each that can be copied, as far as the time goes; the others, by transactional id."""
    known = {t.transaction.transactional_id: t for t in session.ledger.transactions(row.load, row.number)}
    uncopied: dict[str, Uncopied] = {}
    began, is_copied = time.monotonic(), False
    for name in sorted(lost, key=lambda name: known[name].records):
        # the timeout of what is copied runs: it is committed before much time goes into the next
        if is_copied and (not is_small(known[name].writes) or time.monotonic() - began >= COMMIT_AFTER_S):
            break
        try:
            is_copied |= repair(session, row.load, row.number, known[name], by=by)
        except (RecordsGoneError, TooLargeToCopyError) as e:
            uncopied[name] = e
        if time.monotonic() >= give_up:
            break  # the next run goes on: what is adopted is recorded
    return uncopied


def _first_of(uncopied: list[Uncopied]) -> Uncopied:
    error = uncopied[0]
    if len(uncopied) > 1:
        others = ", ".join(str(e.transactional_id) for e in uncopied[1:6])
        error.message += f"; and {len(uncopied) - 1} more cannot be copied: {others}"
    return error


def _unfinished(row: AttemptRow, result: CommitPass, deadline_s: float) -> NotFinishedError:
    waiting = [*result.open, *result.lost]
    return NotFinishedError(
        f"after {deadline_s:g} s, {len(result.open)} transactions wait for their commit marker, and {len(result.lost)} "
        f"for their repair: {', '.join(waiting[:5])}",
        remedy="The decision stands. Check the brokers, then run commit again (or let its retry do it)",
        load=str(row.load),
        attempt=row.number,
        transactional_id=waiting[0],
    )


def commit_pass(
    session: Session,
    load: LoadIdentity,
    number: int,
    *,
    ends_forgotten: bool = False,
    progress: Progress | None = None,
    decided: Decided | None = None,
) -> CommitPass:
    """Send EndTxn where no outcome is recorded yet, read the evidence, record it; no waiting, and no repair.

    :param ends_forgotten: see also whether coordinators have forgotten what is open, and end that
        (:mod:`..forgotten_markers`).
    :param progress: what earlier passes have read, which is added to: nothing is read twice.
    :param decided: see :func:`commit`.
    :raises InDoubtError: see :func:`commit`.
    :raises UndecidableError: the attempt is not decided to be committed, or its load was given up.
    :raises OtherClusterError: see :func:`commit`.
    """
    attempt, rows, ends, topic_config = decided or _check_decided(session, load, number)
    check_cluster(session, [attempt])
    result = CommitPass()
    todo = [t for t in rows if t.outcome not in FINAL]
    failed: KafkaEosError | None = None
    answers: dict[str, EndAnswer] = {}
    progress = progress or Progress(repeats=False)
    if todo and not progress.is_looked_at and _is_some_time_ago(attempt):
        look_before_ending(session, todo, progress)
    if todo:
        # the answers are hints (rule: log-is-the-evidence): a refused EndTxn may be one that went through before
        try:
            answers = session.coordinator.end_many([t.transaction for t in todo], Verdict.COMMIT)
        except KafkaEosError as e:
            failed = e
    by_name = {t.transaction.transactional_id: t for t in todo}
    found, unread = evidence_of(
        session, todo, attempt, answers=answers, progress=progress, ends=ends, topic_config=topic_config
    )
    failed = failed or unread
    outcomes = {name: judge_decided(markers.values()) for name, markers in found.items()}
    if outcomes:
        by_outcome: dict[Outcome, list[str]] = {}
        for name, outcome in outcomes.items():
            by_outcome.setdefault(outcome, []).append(name)
        told = "; ".join(f"{outcome.value} {counted(names)}" for outcome, names in by_outcome.items())
        log.debug("load %s attempt %d, %d transactions: %s", load, number, len(outcomes), told)
        # what was seen is kept, whatever else failed: retention may take the evidence before the next pass
        outcomes, result.closed = session.ledger.record_and_close(load, number, outcomes)
    in_doubt: dict[str, dict[TopicPartition, Marker]] = {}
    for name, outcome in outcomes.items():
        match outcome:
            case Outcome.OPEN:
                result.open.append(name)
            case Outcome.COMMITTED:
                result.newly_committed.append(name)
            case Outcome.IN_DOUBT:
                in_doubt[name] = found[name]
            case Outcome.LOST | Outcome.ABORTED | Outcome.SUPERSEDED:
                pass  # lost ones below, with those of earlier passes
            case _:
                assert_never(outcome)
    if in_doubt and _stop(session, load, number, doubt(session, load, number, in_doubt, by_name, answers)):
        return CommitPass()  # COMMITTED since the look
    known = {t.transaction.transactional_id: t.outcome for t in rows} | outcomes
    result.lost = [name for name, outcome in known.items() if outcome is Outcome.LOST]
    if result.lost:
        to_copy = [t for t in rows if t.transaction.transactional_id in set(result.lost)]
        size = sum(w.bytes for t in to_copy for w in t.writes) / 1e6
        why = (
            f"{len(result.lost)} transactions were aborted although the decision was commit, with "
            f"{sum(t.records for t in to_copy):,} records, {size:,.1f} MB: {result.lost[0]}"
        )
        session.ledger.record_repairing(load, number, why)
    if ends_forgotten and result.open:
        try:
            result.forgotten = end_forgotten(session, attempt, [by_name[name] for name in result.open], progress)
            late = [by_name[name] for name in result.open if name not in result.forgotten]
            never = missing_for_good(session, late, progress)
            if never:
                session.ledger.record_outcomes(load, number, dict.fromkeys(never, Outcome.IN_DOUBT))
                if _stop(session, load, number, doubt(session, load, number, never, by_name, answers)):
                    return CommitPass()
        except AccessError as e:
            result.refused = e
        except InDoubtError:
            raise
        except KafkaEosError as e:
            failed = e
    if failed is not None and any(o not in FINAL for o in known.values()):
        raise failed
    if result.is_done and result.closed is None:
        result.closed = session.ledger.record_committed(load, number)
    return result


def _is_some_time_ago(attempt: AttemptRow) -> bool:
    """Whether much may have been written into its topics since it was decided."""
    return attempt.decided_at is None or time.time() - datetime.fromisoformat(attempt.decided_at).timestamp() > FRESH_S


def _check_decided(session: Session, load: LoadIdentity, number: int) -> Decided:
    known = session.ledger.details(load, number)
    if known is None or known.attempt.verdict is not Verdict.COMMIT:
        # the ledger knows the transactions of undecided and aborted attempts too
        raise UndecidableError(
            "the attempt is not decided to be committed, so none of its transactions is",
            remedy="Clear decide. If the attempt was refused or aborted, clear prepare, with what is downstream",
            load=str(load),
            attempt=number,
        )
    if known.load.state is LoadState.GIVEN_UP:
        raise UndecidableError(
            f"the load was {known.load.reason or 'given up'}",
            remedy=STAYS_GIVEN_UP,
            load=str(load),
            attempt=number,
        )
    return Decided(known.attempt, known.transactions, known.end_offsets)


def _stop(session: Session, load: LoadIdentity, number: int, error: InDoubtError) -> bool:
    """True when somebody else has seen all of the load committed since.

    Every other transaction's outcome is recorded by now: the ledger shows a person what is committed.

    :raises InDoubtError: otherwise.
    """
    if not session.ledger.record_in_doubt(load, number, error.message):
        return True
    raise error
