"""End what a coordinator has forgotten to end: decided transactions that it calls ended and partitions have open.

Rule: forgotten-markers.

A transaction coordinator that comes up while the leader of a partition is not known yet drops the markers that it owes
that partition ("Couldn't find leader endpoint …, these partitions are likely deleted already and hence can be
skipped", TransactionMarkerChannelManager, Kafka 4.4.0), and calls the transaction complete. No EndTxn brings them back,
readers are held back for ever, and the load would never be committed. docs/adr/0021 has the choices made here, and
docs/specification/forgotten.py why each of them stands.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.admin.find_markers import Progress
from airflow_kafka_eos.kafka.admin.open_producers import OpenProducer, open_producers, who_may, write_marker
from airflow_kafka_eos.ledger.rows import AttemptRow, TransactionRow
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.protocol.evidence import evidence_of
from airflow_kafka_eos.protocol.guards.coordinator_watch import finished, is_finished
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import CoordinatorState, Marker, TopicPartition, TransactionDescription

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Forgotten:
    """What to write, and where, for one decided transaction."""

    transaction: TransactionRow
    verdict: Verdict
    producers: tuple[OpenProducer, ...]


def end_forgotten(
    session: Session, row: AttemptRow, unfinished: Iterable[TransactionRow], progress: Progress | None = None
) -> list[str]:
    """Write the markers that coordinators owe and will not write; who judges the logs next sees them.

    :param row: an attempt that is decided to be committed, so that whatever is written ends nothing undecided
        (rule: decide-before-kafka).
    :param unfinished: transactions of its decision whose end the logs do not show.
    :param progress: see :func:`.evidence.evidence_of`.
    :returns: the transactional ids that were ended.
    :raises AccessError: ALTER on the Cluster is missing, or brokers take no markers: says who has to do what.
    :raises TransientError: a broker does not answer. Safe to call again.
    """
    known = {t.transaction.transactional_id: t for t in unfinished}
    described = finished(session, known)
    if not described:
        return []
    # then the logs, then the leaders: what a coordinator had ended when it answered is to be seen there, or never will
    found, _ = evidence_of(session, [known[name] for name in described], row, progress=progress)
    missing = {tp for of in found.values() for tp, marker in of.items() if marker is Marker.MISSING}
    shown = open_producers(session.partitions.wire, missing)
    ended = []
    for name, markers in found.items():
        forgotten = judge_forgotten(known[name], described[name], markers, shown)
        if forgotten is not None and _end(session, row, forgotten):
            ended.append(name)
    return ended


def judge_forgotten(
    row: TransactionRow,
    seen: TransactionDescription | None,
    markers: Mapping[TopicPartition, Marker],
    shown: list[OpenProducer],
) -> Forgotten | None:
    """What to write for one decided transaction; None when nothing is owed, or nobody can tell what. No I/O.

    The marker is of the kind that the transaction's other partitions have. Where none has any, no reader has seen a
    record of it: either kind is right. Then it is the coordinator's, so that it agrees with one that comes late after
    all; where that is abort, or not known any more, its records are copied afterwards, and verified by that.

    :param seen: its transactional id, as its coordinator showed it; None: it knows no such id.
    :param markers: by partition, what the log showed behind that.
    :param shown: what the partitions' leaders had open behind that.
    """
    if not is_finished(seen):
        return None
    first = row.first_offsets
    state = row.transaction.state
    # from where the recorded writes begin: what began elsewhere is another transaction, whoever wrote it
    # (rule: recorded-identity)
    producers = tuple(
        p
        for p in shown
        if p.state == state
        and markers.get(p.partition) is Marker.MISSING
        and p.txn_start_offset == first[p.partition]
    )
    if not producers:
        return None
    found = set(markers.values()) - {Marker.MISSING}
    if not found and len(producers) < len(first):
        return None  # a marker is there that the log does not show yet, behind its high watermark: look again
    if found - {Marker.COMMIT, Marker.ABORT} or len(found) > 1:
        return None  # in doubt: a person has it (rule: doubt-stops-for-a-person)
    is_committed = (
        found == {Marker.COMMIT}
        if found
        else seen is not None and seen.coordinator_state is CoordinatorState.COMPLETE_COMMIT
    )
    return Forgotten(row, Verdict.COMMIT if is_committed else Verdict.ABORT, producers)


def _end(session: Session, row: AttemptRow, forgotten: Forgotten) -> bool:
    """False when a leader has refused a marker: there the producer's epoch is another one by now."""
    transaction = forgotten.transaction.transaction
    places = ", ".join(f"{p.partition} from offset {p.txn_start_offset} on" for p in forgotten.producers)
    log.warning(
        "transaction %s of %s attempt %d is decided and its coordinator says that it has ended, but it is open in "
        "%s: writing the missing end markers (%s)",
        transaction,
        row.load,
        row.number,
        places,
        forgotten.verdict.value,
    )
    for producer in forgotten.producers:
        try:
            if not write_marker(session.partitions.wire, producer, forgotten.verdict):
                return False
        except AccessError as e:
            raise AccessError(
                f"transaction {transaction} is decided, its coordinator has forgotten its end markers "
                f"({forgotten.verdict.value}), and it is open in {places}; they cannot be written from here: "
                f"{e.message}",
                remedy=f"Run `airflow-kafka-eos loads recover {row.load.in_command}` {who_may(e)}; then clear commit",
                load=str(row.load),
                attempt=row.number,
                transactional_id=transaction.transactional_id,
            ) from e
    return True
