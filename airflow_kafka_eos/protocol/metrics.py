"""Numbers to watch: what is open for how long, and what waits behind a decision. For Airflow's Stats, or any other."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.naming import namespace_prefix
from airflow_kafka_eos.protocol.holding import is_ours
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition, TransactionDescription


@dataclass(frozen=True)
class Metrics:
    """One look at a namespace of a ledger. Milliseconds, counts, records; None: there is nothing to measure.

    :param open_transactions: of ours, at their coordinators.
    :param active_transaction_total_time_max_ms: how long the longest of them has been open (KIP-939's metric of that
        name, for ours alone).
    :param time_left_min_ms: until the broker aborts the first of them; negative when overdue. Those in two-phase commit
        have no end and do not count.
    :param undecided_attempts: opened, neither decided nor closed.
    :param decided_not_committed: attempts that are decided to be committed and not verified yet.
    :param decided_not_committed_age_max_ms: since the oldest of these decisions.
    :param last_stable_offset_lag_max: records that readers do not see because of us, in the partition where it is most:
        from the last stable offset to the high watermark where an open transaction of ours is the first.
    """

    open_transactions: int
    active_transaction_total_time_max_ms: int
    time_left_min_ms: int | None
    undecided_attempts: int
    decided_not_committed: int
    decided_not_committed_age_max_ms: int
    last_stable_offset_lag_max: int

    def numbers(self) -> dict[str, int]:
        """By name; what cannot be measured is left out."""
        return {name: value for name, value in vars(self).items() if value is not None}


def measure(session: Session) -> Metrics:
    """Look once. Ages are by this machine's clock against those of brokers and ledger.

    :raises BrokerUnavailableError: a broker did not answer; half a picture is not given.
    :raises AccessError: DESCRIBE on our ids, or READ on a topic they write to, is missing.
    """
    prefix = namespace_prefix(session.namespace, session.ledger.ledger_id)
    listed = [name for name in session.coordinator.list_open(prefix) if is_ours(session, name)]
    described = [d for d in session.coordinator.describe(listed).values() if d.is_open]
    lag = _lag(session, described)
    return summarise(described, session.ledger.unfinished(session.namespace), lag, int(time.time() * 1000))


def summarise(
    described: Iterable[TransactionDescription], attempts: Iterable[AttemptRow], lag: int, now_ms: int
) -> Metrics:
    """The numbers of what was seen. No I/O."""
    open_ = list(described)
    attempts = list(attempts)
    decided = [a for a in attempts if a.verdict is Verdict.COMMIT]
    return Metrics(
        open_transactions=len(open_),
        active_transaction_total_time_max_ms=max(
            (max(0, now_ms - d.start_time_ms) for d in open_ if d.start_time_ms >= 0), default=0
        ),
        time_left_min_ms=min((d.time_left_ms(now_ms) for d in open_ if not d.is_two_phase), default=None),
        undecided_attempts=sum(a.is_undecided for a in attempts),
        decided_not_committed=len(decided),
        decided_not_committed_age_max_ms=max(
            (max(0, now_ms - _epoch_ms(a.decided_at)) for a in decided if a.decided_at), default=0
        ),
        last_stable_offset_lag_max=lag,
    )


def _epoch_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _lag(session: Session, described: list[TransactionDescription]) -> int:
    return max(lag_by_partition(session, described).values(), default=0)


def lag_by_partition(
    session: Session, described: Iterable[TransactionDescription]
) -> dict[TopicPartition, int]:
    """Records that readers do not see, in the partitions where one of these transactions is the first that is open."""
    described = list(described)
    partitions: set[TopicPartition] = {tp for d in described for tp in d.partitions}
    if not partitions:
        return {}
    ours = {d.state for d in described}
    stable = session.partitions.last_stable_offsets(partitions)
    end = session.partitions.end_offsets(partitions)
    lags = {}
    for tp, producers in session.partitions.producers(partitions).items():
        open_ = [p for p in producers if p.txn_start_offset >= 0]
        first = min(open_, key=lambda p: p.txn_start_offset, default=None)
        if first is not None and PreparedTxnState(first.producer_id, first.producer_epoch) in ours:
            lags[tp] = end[tp] - stable[tp]
    return lags
