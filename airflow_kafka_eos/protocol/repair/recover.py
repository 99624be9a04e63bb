"""What a person does with a load that commit could not finish: have all of it looked at anew, or leave it as it is."""

from __future__ import annotations

import logging

from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError
from airflow_kafka_eos.kafka.admin.open_producers import open_producers
from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow
from airflow_kafka_eos.load import LoadIdentity, LoadState, fill_in
from airflow_kafka_eos.protocol.evidence import evidence_of
from airflow_kafka_eos.protocol.guards.ownership import check_cluster
from airflow_kafka_eos.protocol.hanging import still_there
from airflow_kafka_eos.protocol.repair.copy import end_abandoned
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.commit import commit, decided_attempt
from airflow_kafka_eos.transaction import FINAL, TopicPartition, judge_decided

log = logging.getLogger(__name__)


def recover(session: Session, load: LoadIdentity, *, by: str, deadline_s: float) -> LoadRow:
    """Roll a decided load forward, whatever state it is in.

    All of it is judged anew, what is open is committed, what is lost is repaired. A load that is
    COMMITTED is left as it is.

    :param by: the person, for the ledger: repairs are opened in this name.
    :param deadline_s: seconds, see :func:`~airflow_kafka_eos.protocol.stages.commit.commit`.
    :returns: the load, COMMITTED.
    :raises ConfigurationError: the ledger does not know the load.
    :raises UndecidableError: it is not decided to be committed, or was given up.
    :raises OtherClusterError: it was written to another cluster.
    :raises InDoubtError: the logs still do not tell one story, or what was lost cannot be repaired.
    :raises AccessError: see :func:`~airflow_kafka_eos.protocol.stages.commit.commit`.
    :raises TransientError: it is not done at the deadline; run it again.
    """
    if _known(session, load).state is not LoadState.COMMITTED:
        log.info("%s recovers load %s", by, load)
        try:
            commit(session, load, deadline_s=deadline_s, by=by)
        except KafkaEosError as e:
            fill_in(e, load)
            raise
    return _known(session, load)


def give_up(session: Session, load: LoadIdentity, *, by: str, reason: str) -> LoadRow:
    """Leave a decided load as it is, for good: nobody commits or repairs anything of it any more.

    What the logs show of each transaction is recorded first, as far as brokers answer. What is committed stays visible;
    what is open stays open until somebody ends it (force-terminate may: the load is given up by name), or its timeout
    does. A commit may still be under way, so what is missing is certain only once nothing of it is open: the next
    cleanup closes it then, and with pooling its slot comes back after a quarantine. Its key never loads again.

    :param by: the person.
    :param reason: why; people will read it.
    :returns: the load, GIVEN_UP. The first one's word stays.
    :raises ConfigurationError: the ledger does not know the load, or nobody or nothing is named.
    :raises UndecidableError: it is not decided to be committed, or it is COMMITTED.
    :raises OtherClusterError: it was written to another cluster: what is recorded of it would not be true.
    """
    for field, text in (("by", by), ("reason", reason)):
        if not text.strip():
            raise ConfigurationError(
                f"{field} is empty: a load is given up by name", remedy=f"Set {field}", load=str(load)
            )
    if _known(session, load).state is not LoadState.GIVEN_UP:
        decided = decided_attempt(session, load)
        check_cluster(session, [decided])
        _note_outcomes(session, load, decided)
        session.ledger.record_given_up(load, by=by, reason=reason)
        log.warning("load %s is given up by %s: %s", load, by, reason)
    try:
        end_abandoned(session, load)
    except KafkaEosError as e:
        log.warning("what repairs of load %s left open is left to cleanup: %s", load, e)
    return _known(session, load)


def still_open(session: Session, load: LoadIdentity) -> list[str]:
    """What of a load that was given up coordinators show as open, of all that was ever decided of it, also what a
    repair has replaced; sorted.

    What was not decided cleanup ends.
    """
    rows = session.ledger.transactions(load, decided_attempt(session, load).number)
    described = session.coordinator.describe(t.transaction.transactional_id for t in rows)
    return sorted(name for name, seen in described.items() if seen.is_open)


def hanging_in(session: Session, load: LoadIdentity) -> list[TopicPartition]:
    """Where leaders show open what of a load that was given up was decided; sorted.

    Behind :func:`still_open`, where that finds nothing: its coordinators have forgotten the end markers, and write
    none any more.

    :raises AccessError: READ on a topic is missing.
    """
    rows = session.ledger.transactions(load, decided_attempt(session, load).number)
    decided = {(w.topic_partition, t.transaction.state) for t in rows for w in t.writes}
    there = still_there(session, {partition for partition, _ in decided})
    shown = open_producers(session.partitions.wire, there) if there else []
    return sorted({p.partition for p in shown if (p.partition, p.state) in decided})


def _known(session: Session, load: LoadIdentity) -> LoadRow:
    row = session.ledger.load(load)
    if row is None:
        raise ConfigurationError(
            "the ledger does not know this load",
            remedy="Run `airflow-kafka-eos loads list` for what it knows, and check --namespace",
            load=str(load),
        )
    return row


def _note_outcomes(session: Session, load: LoadIdentity, decided: AttemptRow) -> None:
    """For the person who compares topic and ledger afterwards; brokers may be gone for good."""
    rows = [t for t in session.ledger.transactions(load, decided.number) if t.outcome not in FINAL]
    found, error = evidence_of(session, rows, decided)
    if error is not None:
        log.warning("what became of %d transactions of %s cannot be told: %s", len(rows) - len(found), load, error)
    if found:
        outcomes = {name: judge_decided(markers.values()) for name, markers in found.items()}
        session.ledger.record_outcomes(load, decided.number, outcomes)
