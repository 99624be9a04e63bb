"""Numbers to watch, of real transactions and of made-up ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from confluent_kafka.admin import AdminClient

from airflow_kafka_eos.ledger.queries import UndecidedTwoPhase, Unverified, Waiting
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.metrics import Limits, Metrics, measure, summarise
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import (
    TWO_PHASE_TIMEOUT_MS,
    CoordinatorState,
    PreparedTxnState,
    TransactionDescription,
)
from tests.kafka.open_transactions import wait_until
from tests.protocol.test_leftovers import alone as alone
from tests.protocol.world import World, foreign_transaction

LOAD = LoadIdentity("test", "orders", "1")
NOW_MS = 1_700_000_000_000


def described(started_ms_ago: int, timeout_ms: int) -> TransactionDescription:
    return TransactionDescription(
        "id", CoordinatorState.ONGOING, PreparedTxnState(1, 0), timeout_ms, NOW_MS - started_ms_ago, frozenset()
    )


def attempt(verdict: Verdict | None, decided_ms_ago: int | None = None) -> AttemptRow:
    decided = None
    if decided_ms_ago is not None:
        decided = datetime.fromtimestamp((NOW_MS - decided_ms_ago) / 1000, UTC).isoformat(timespec="microseconds")
    return AttemptRow(LOAD, 1, "dag/run", "2026-01-01T00:00:00+00:00", verdict=verdict, decided_at=decided)


def test_the_longest_the_nearest_end_and_the_oldest_decision_are_picked() -> None:
    seen = [described(5000, 60_000), described(90_000, TWO_PHASE_TIMEOUT_MS), described(50_000, 40_000)]
    commits = [attempt(Verdict.COMMIT, 3000), attempt(Verdict.COMMIT, 8000)]
    attempts = [attempt(None), attempt(Verdict.ABORT, 99_000), *commits]
    assert summarise(seen, attempts, 7, NOW_MS) == Metrics(
        open_transactions=3,
        active_transaction_total_time_max_ms=90_000,
        time_left_min_ms=-10_000,  # overdue; what is in two-phase commit has no end
        undecided_attempts=1,
        decided_not_committed=2,
        decided_not_committed_age_max_ms=8000,
        last_stable_offset_lag_max=7,
    )


def test_nothing_open_is_zero_and_no_end() -> None:
    nothing = summarise([], [], 0, NOW_MS)
    assert nothing == Metrics(0, 0, None, 0, 0, 0, 0)
    assert "time_left_min_ms" not in nothing.numbers() and nothing.numbers()["open_transactions"] == 0


def test_what_the_broker_never_ends_has_no_time_left() -> None:
    assert summarise([described(90_000, TWO_PHASE_TIMEOUT_MS)], [], 0, NOW_MS).time_left_min_ms is None


def test_decisions_that_nobody_verifies_and_two_phases_that_nobody_decides_have_their_ages() -> None:
    first = Unverified(LOAD, LoadState.IN_DOUBT, NOW_MS - 9000, {"short": NOW_MS - 20_000, "long": NOW_MS - 90_000})
    later = Unverified(LOAD, LoadState.COMMITTING, NOW_MS - 3000, {"shorter": NOW_MS - 4000})
    undecided = tuple(UndecidedTwoPhase(LOAD, n, NOW_MS - age) for n, age in ((1, 70_000), (2, 60_000)))
    topics = {name: {"retention.ms": ms} for name, ms in (("short", "30000"), ("long", "-1"), ("shorter", "9000"))}
    seen = summarise([], [], 0, NOW_MS, Waiting((first, later), undecided), Limits(12_000, topics))
    assert (seen.unverified_age_max_ms, seen.undecided_two_phase_age_max_ms) == (9000, 70_000)
    assert (seen.unverified_expiration_left_min_ms, seen.unverified_retention_left_min_ms) == (3000, 5000)
    unknown = summarise([], [], 0, NOW_MS, Waiting((first,)), Limits())  # DESCRIBE_CONFIGS is missing
    assert (unknown.unverified_expiration_left_min_ms, unknown.unverified_retention_left_min_ms) == (None, None)


def test_a_topic_that_was_deleted_takes_no_number_of_the_others_away(
    alone: World, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    gone = replace(alone, topic=topic(), load=replace(alone.load, key="gone"))
    alone.decide(alone.prepare(["a"]))
    manifest = gone.prepare(["a"])
    gone.decide(manifest)
    (transaction,) = manifest.transactions
    alone.session.coordinator.end(transaction, Verdict.COMMIT)
    wait_until(lambda: transaction.transactional_id not in gone.open_ids(), "the end of the transaction")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([gone.topic])[gone.topic].result(30)
    seen = measure(alone.session)
    assert seen.decided_not_committed == 2
    assert seen.unverified_retention_left_min_ms is not None
    alone.commit()


def test_readers_that_a_stranger_holds_back_first_do_not_wait_for_us(alone: World) -> None:
    name = f"before-{alone.load.key}"
    stranger = foreign_transaction(alone, name)
    (place,) = alone.session.coordinator.describe([name])[name].partitions
    ref = reference(alone.session, alone.open_attempt())
    alone.write_arrow(TransactionalId(ref.load, ref.ledger_id, 1, 0, 0), ["a"], partition=place.partition)
    assert measure(alone.session).last_stable_offset_lag_max == 0
    stranger.abort_transaction(30)
    give_up = time.monotonic() + 30
    while (lag := measure(alone.session).last_stable_offset_lag_max) != 2:  # our record, and the stranger's marker
        assert time.monotonic() < give_up, lag


def test_it_measures_what_is_open_and_who_is_held_back(alone: World) -> None:
    assert measure(alone.session) == Metrics(0, 0, None, 0, 0, 0, 0)
    manifest = alone.prepare([str(n) for n in range(20)])
    behind = foreign_transaction(alone, f"behind-{alone.load.key}", value="theirs")
    seen = measure(alone.session)
    assert (seen.open_transactions, seen.undecided_attempts, seen.decided_not_committed) == (1, 1, 0)
    assert 0 < seen.active_transaction_total_time_max_ms < 120_000
    assert seen.time_left_min_ms is not None and 480_000 < seen.time_left_min_ms < 600_000
    held = max(w.records for p in manifest.prepared for w in p.writes)
    assert held <= seen.last_stable_offset_lag_max <= held + 1
    alone.decide(manifest)
    decided = measure(alone.session)
    assert decided.decided_not_committed == 1 and 0 <= decided.unverified_age_max_ms < 120_000
    week_ms = 7 * 86_400_000  # the broker's default, for ids and for records
    for left in (decided.unverified_expiration_left_min_ms, decided.unverified_retention_left_min_ms):
        assert left is not None and week_ms - 120_000 < left <= week_ms
    alone.commit()
    # readers wait for a stranger now, which is not because of us
    after = measure(alone.session)
    assert replace(after, time_left_min_ms=None) == Metrics(0, 0, None, 0, 0, 0, 0)
    behind.abort_transaction(30)
