"""What the partitions' logs say of the transactions of a load (rule 7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.evidence import Marker
from airflow_kafka_eos.kafka.log_scan import Sought
from airflow_kafka_eos.ledger.rows import TransactionRow
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import TopicPartition


class Judged(NamedTuple):
    """By transactional id, the markers of those whose partitions could all be read; ``error``: why others could not."""

    markers: dict[str, dict[TopicPartition, Marker]]
    error: KafkaEosError | None


def evidence_of(session: Session, rows: Iterable[TransactionRow]) -> Judged:
    """What the logs show behind the last records of prepared transactions, each partition read once."""
    result = Judged({}, None)
    for topic_ids, group in _by_topic_ids(rows):
        sought = {t.transaction.transactional_id: _sought(t) for t in group}
        by_partition: dict[TopicPartition, list[Sought]] = defaultdict(list)
        for of in sought.values():
            for tp, one in of.items():
                by_partition[tp].append(one)
        found, error = session.partitions.markers_of(by_partition, topic_ids)
        for name, of in sought.items():
            markers = {tp: found[tp][one] for tp, one in of.items() if one in found[tp]}
            if len(markers) == len(of):
                result.markers[name] = markers
        result = Judged(result.markers, result.error or error)
    return result


def evidence(session: Session, row: TransactionRow) -> dict[TopicPartition, Marker]:
    """The same of one transaction.

    :raises KafkaEosError: a partition could not be read.
    """
    found, error = evidence_of(session, [row])
    if error is not None:
        raise error
    return found[row.transaction.transactional_id]


def _sought(row: TransactionRow) -> dict[TopicPartition, Sought]:
    state = row.transaction.state
    last = {w.topic_partition: w.last_offset for w in row.writes}
    return {tp: Sought(state.producer_id, state.producer_epoch, offset + 1) for tp, offset in last.items()}


def _by_topic_ids(rows: Iterable[TransactionRow]) -> list[tuple[Mapping[str, str], list[TransactionRow]]]:
    """Rows that agree about the topics' ids; an attempt's all do, whatever topics each has."""
    groups: list[tuple[dict[str, str], list[TransactionRow]]] = []
    for row in rows:
        for known, group in groups:
            if all(known.get(topic, topic_id) == topic_id for topic, topic_id in row.topic_ids.items()):
                known.update(row.topic_ids)
                group.append(row)
                break
        else:
            groups.append((dict(row.topic_ids), [row]))
    return list(groups)
