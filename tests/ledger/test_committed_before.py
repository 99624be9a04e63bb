"""What decide and commit take for done, told by the ledger alone."""

from __future__ import annotations

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import UNFINISHED
from airflow_kafka_eos.operators.base import committed_before
from airflow_kafka_eos.transaction import Outcome
from tests.ledger.ledger_support import LOAD, commit, sql
from tests.ledger.test_ledger_repairs import adopt, lost_one, open_repair


def test_what_is_only_decided_is_not_done(ledger: Ledger) -> None:
    assert committed_before(ledger, LOAD) is None
    commit(ledger)
    assert committed_before(ledger, LOAD) is None
    ledger.record_outcomes(
        LOAD, 1, {t.transaction.transactional_id: Outcome.COMMITTED for t in ledger.transactions(LOAD, 1)}
    )
    ledger.record_committed(LOAD, 1)
    assert committed_before(ledger, LOAD) == ledger.attempt(LOAD, 1)


def test_a_repaired_load_may_have_stragglers_that_are_to_be_ended(ledger: Ledger) -> None:
    lost = lost_one(ledger)
    repair = open_repair(ledger, lost)
    adopt(ledger, repair, lost)
    ledger.record_outcomes(LOAD, 1, {repair.transactional_id: Outcome.COMMITTED})
    ledger.record_committed(LOAD, 1)
    assert committed_before(ledger, LOAD) is None


def test_a_dual_write_that_is_half_done_is_for_a_person(ledger: Ledger, url: str) -> None:
    commit(ledger)
    ledger.record_outcomes(
        LOAD, 1, {t.transaction.transactional_id: Outcome.COMMITTED for t in ledger.transactions(LOAD, 1)}
    )
    ledger.record_committed(LOAD, 1)
    reason = UNFINISHED.replace("'", "''")
    sql(url, f"UPDATE kafka_eos_decisions SET reason = '{reason}'")
    assert committed_before(ledger, LOAD) is None
