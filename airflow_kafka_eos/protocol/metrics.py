"""Numbers to watch: what is open for how long, and what waits behind a decision. For Airflow's Stats, or any other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_kafka_eos.kafka.admin.inspect import topics_seen
from airflow_kafka_eos.kafka.admin.preflight import RETENTION
from airflow_kafka_eos.ledger.queries import NOTHING, Waiting
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.protocol.guards.id_caps import EXPIRATION
from airflow_kafka_eos.protocol.guards.ownership import hidden_by_acls, open_of_ours
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
    :param unverified_age_max_ms: since the oldest decision to commit whose load is neither COMMITTED nor given up.
    :param unverified_expiration_left_min_ms: until coordinators may forget the ids of that load's transactions, those
        that have ended (``transactional.id.expiration.ms``). Then only the logs tell what became of them.
    :param unverified_retention_left_min_ms: until retention (``retention.ms``) may take the first record of such a
        load; negative when it may have. Without its markers the load ends IN_DOUBT; lost records that it takes
        can only be prepared again.
    :param undecided_two_phase_age_max_ms: how long the oldest attempt has been prepared in two-phase commit, and is
        undecided: no broker ends it, and readers are held back until somebody does.
    """

    open_transactions: int
    active_transaction_total_time_max_ms: int
    time_left_min_ms: int | None
    undecided_attempts: int
    decided_not_committed: int
    decided_not_committed_age_max_ms: int
    last_stable_offset_lag_max: int
    unverified_age_max_ms: int = 0
    unverified_expiration_left_min_ms: int | None = None
    unverified_retention_left_min_ms: int | None = None
    undecided_two_phase_age_max_ms: int = 0

    def numbers(self) -> dict[str, int]:
        """By name; what cannot be measured is left out."""
        return {name: value for name, value in vars(self).items() if value is not None}


def measure(session: Session) -> Metrics:
    """Look once. Ages are by this machine's clock against those of brokers and ledger.

    :raises BrokerUnavailableError: a broker did not answer; half a picture is not given.
    :raises AccessError: DESCRIBE on our ids, or READ on a topic they write to, is missing: brokers leave out of a
        listing what one may not describe, and a number of what is left would look good.
    """
    if (hidden := hidden_by_acls(session)) is not None:
        raise hidden
    described = open_of_ours(session)
    lag = _lag(session, described)
    waiting = session.ledger.waiting(session.namespace)
    limits = _limits(session, waiting)
    attempts = session.ledger.unfinished(session.namespace)
    return summarise(described, attempts, lag, int(time.time() * 1000), waiting, limits)


@dataclass(frozen=True)
class Limits:
    """How long brokers keep what decided loads are verified by, as far as it may be read (DESCRIBE_CONFIGS).

    :param expiration_ms: the brokers' shortest ``transactional.id.expiration.ms``.
    :param topics: topic -> settings of its retention.
    """

    expiration_ms: int | None = None
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def summarise(
    described: Iterable[TransactionDescription],
    attempts: Iterable[AttemptRow],
    lag: int,
    now_ms: int,
    waiting: Waiting = NOTHING,
    limits: Limits = Limits(),
) -> Metrics:
    """The numbers of what was seen. No I/O."""
    open_ = list(described)
    attempts = list(attempts)
    decided = [a for a in attempts if a.verdict is Verdict.COMMIT]
    age_ms = max((one.age_ms(now_ms) for one in waiting.unverified), default=0)
    expiration_left = None if limits.expiration_ms is None else limits.expiration_ms - age_ms
    left = [one.retention_left_ms(limits.topics, now_ms) for one in waiting.unverified]
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
        unverified_age_max_ms=age_ms,
        unverified_expiration_left_min_ms=expiration_left if waiting.unverified else None,
        unverified_retention_left_min_ms=min((ms for ms in left if ms is not None), default=None),
        undecided_two_phase_age_max_ms=max((one.age_ms(now_ms) for one in waiting.undecided), default=0),
    )


def _epoch_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _limits(session: Session, waiting: Waiting) -> Limits:
    if not waiting.unverified:
        return Limits()
    # one that was deleted has no settings: its load's commit says so, the others have their numbers
    there = [topic for topic, seen in topics_seen(session.partitions.wire, waiting.topics).items() if seen is not None]
    expiration_ms = min(session.broker_limits(EXPIRATION), default=None)
    return Limits(expiration_ms, session.partitions.topic_config(there, RETENTION))


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
