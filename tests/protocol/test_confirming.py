"""What speaks against committing, without a broker: what would take weeks to see on one."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.kafka.admin.partitions import ProducerState
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry, PartitionWrites, TopicInfo
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.stages.decide import Observed, problems
from airflow_kafka_eos.transaction import (
    TWO_PHASE_TIMEOUT_MS,
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)

REF = AttemptRef(LoadIdentity("n", "l", "k"), "0123456789", 1)
STATE = PreparedTxnState(7, 0)
NAME = str(TransactionalId(REF.load, REF.ledger_id, 1, 0, 0))
PLACE = TopicPartition("t", 0)
TOPICS = {"t": TopicInfo("id", 1)}
DAY_MS = 24 * 3600 * 1000
NOW_MS = 1_800_000_000_000


def _found(
    two_phase: bool,
    timeout_ms: int,
    age_ms: int,
    retention: dict[str, dict[str, str]],
    *,
    oldest_ms: int | None = None,
    log_start: int = 0,
    begun: int = 5,
) -> list[str]:
    oldest_ms = NOW_MS - age_ms if oldest_ms is None else oldest_ms
    writes = (PartitionWrites("t", 0, 1, 1, 5, 5, "0" * 32, oldest_ms),)
    entry = ManifestEntry(0, PreparedTransaction(NAME, STATE), writes)
    manifest = Manifest(
        REF, "now", "arrow", TransactionScope.TASK, two_phase, timeout_ms, "x", TOPICS, (entry,)
    )
    description = TransactionDescription(
        NAME, CoordinatorState.ONGOING, STATE, timeout_ms, NOW_MS - age_ms, frozenset({PLACE})
    )
    producers = {PLACE: [ProducerState(7, 0, 0, begun)]}
    seen = Observed({NAME: description}, producers, TOPICS, {PLACE: log_start}, topic_config=retention)
    return problems(manifest, seen, now_ms=NOW_MS, margin_ms=60_000)


def test_a_transaction_without_a_timeout_never_runs_out_of_time() -> None:
    """The number that a coordinator shows for none, 2147483647 ms, would be 24 days."""
    assert _found(True, TWO_PHASE_TIMEOUT_MS, 60 * DAY_MS, {}) == []


@pytest.mark.parametrize("timeout_ms", [TWO_PHASE_TIMEOUT_MS - 1, 900_000])
def test_one_with_a_timeout_does(timeout_ms: int) -> None:
    (problem,) = _found(False, timeout_ms, 60 * DAY_MS, {})
    assert "s left" in problem


def test_retention_counts_with_two_phases_too() -> None:
    retention = {"t": {"retention.ms": str(7 * DAY_MS), "cleanup.policy": "delete"}}
    assert _found(True, TWO_PHASE_TIMEOUT_MS, 6 * DAY_MS, retention) == []
    (problem,) = _found(True, TWO_PHASE_TIMEOUT_MS, 8 * DAY_MS, retention)
    assert "may delete the first records before readers see them" in problem


def test_retention_counts_by_the_records_own_times() -> None:
    retention = {"t": {"retention.ms": str(7 * DAY_MS)}}
    week_ago = NOW_MS + 60_000 - 7 * DAY_MS
    assert _found(True, TWO_PHASE_TIMEOUT_MS, 0, retention, oldest_ms=week_ago + 1) == []
    (problem,) = _found(True, TWO_PHASE_TIMEOUT_MS, 0, retention, oldest_ms=week_ago)
    assert "may delete the first records before readers see them" in problem


def test_records_that_are_deleted_already_are_not_committed() -> None:
    """retention.bytes deletes by the high watermark, which passes records that are not committed yet."""
    assert _found(True, TWO_PHASE_TIMEOUT_MS, 0, {}, log_start=5) == []
    (problem,) = _found(True, TWO_PHASE_TIMEOUT_MS, 0, {}, log_start=6)
    assert "t-0 begins at offset 6 now, records from 5 on are deleted" in problem


@pytest.mark.parametrize(("begun", "says"), [(-1, "none open"), (6, "one from offset 6 on open")])
def test_a_transaction_that_was_ended_in_a_partition_past_its_coordinator_is_not_committed(
    begun: int, says: str
) -> None:
    (problem,) = _found(False, 900_000, 1000, {}, begun=begun)
    assert says in problem and "t-0" in problem and NAME in problem
