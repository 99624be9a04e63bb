"""What decide and commit take for done, told by the ledger alone."""

from __future__ import annotations

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import UNFINISHED
from airflow_kafka_eos.operators.base import committed_before
from tests.ledger.ledger_support import LOAD, commit, sql, verify
from tests.ledger.test_ledger_repairs import repaired


def test_what_is_only_decided_is_not_done(ledger: Ledger) -> None:
    assert committed_before(ledger, LOAD) is None
    commit(ledger)
    assert committed_before(ledger, LOAD) is None
    verify(ledger)
    assert committed_before(ledger, LOAD) == ledger.attempt(LOAD, 1)


def test_a_repaired_load_may_have_stragglers_that_are_to_be_ended(ledger: Ledger) -> None:
    repaired(ledger)
    assert committed_before(ledger, LOAD) is None


def test_a_dual_write_that_is_half_done_is_for_a_person(ledger: Ledger, url: str) -> None:
    commit(ledger)
    verify(ledger)
    reason = UNFINISHED.replace("'", "''")
    sql(url, f"UPDATE kafka_eos_decisions SET reason = '{reason}'")
    assert committed_before(ledger, LOAD) is None
