"""Decisions that nobody has verified, and prepared two-phase transactions that nobody has decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

import pytest

from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.ledger.queries import NOTHING, Unverified
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.transaction import Outcome
from tests.ledger.ledger_support import LOAD, OTHER, commit, manifest, prepare, ref, shared_manifest

#: of the transactions that ledger_support makes
WRITTEN_MS = 1_700_000_000_000
DECIDED_MS, DAY_MS = WRITTEN_MS + 5000, 86_400_000
ONE = Unverified(LOAD, LoadState.COMMITTING, DECIDED_MS, {"orders": WRITTEN_MS, "bills": WRITTEN_MS - 1000})


@pytest.fixture
def ledger(new_url: Callable[[bool], str]) -> Iterator[Ledger]:
    with Ledger.open(new_url(True)) as opened:
        yield opened


def test_a_decision_waits_until_all_of_it_is_verified(ledger: Ledger) -> None:
    assert ledger.waiting("team") == NOTHING
    prepare(ledger, OTHER)
    assert ledger.waiting("team") == NOTHING  # the broker ends what nobody decides: it has a timeout
    row = commit(ledger)
    (one,) = ledger.waiting("team").unverified
    assert row.decided_at is not None
    decided_ms = int(datetime.fromisoformat(row.decided_at).timestamp() * 1000)
    assert one == Unverified(LOAD, LoadState.COMMITTING, decided_ms, {"orders": WRITTEN_MS})
    assert ledger.waiting("elsewhere") == NOTHING
    names = [t.transaction.transactional_id for t in ledger.transactions(LOAD, 1)]
    ledger.record_outcomes(LOAD, 1, {names[0]: Outcome.COMMITTED})
    ledger.record_outcomes(LOAD, 1, {names[1]: Outcome.LOST})
    ledger.record_repairing(LOAD, 1, "lost")
    (one,) = ledger.waiting("team").unverified
    assert (one.state, one.oldest_ms) == (LoadState.REPAIRING, {"orders": WRITTEN_MS})


def test_what_is_verified_is_safe_from_retention(ledger: Ledger) -> None:
    commit(ledger)
    for t in ledger.transactions(LOAD, 1):
        ledger.record_outcomes(LOAD, 1, {t.transaction.transactional_id: Outcome.COMMITTED})
    (one,) = ledger.waiting("team").unverified
    assert one.oldest_ms == {} and ledger.waiting("team").topics == frozenset()
    ledger.record_committed(LOAD, 1)
    assert ledger.waiting("team") == NOTHING


def test_a_load_that_was_given_up_waits_for_nothing(ledger: Ledger) -> None:
    commit(ledger)
    ledger.record_given_up(LOAD, by="me", reason="gone")
    assert ledger.waiting("team") == NOTHING


def test_an_undecided_attempt_in_two_phase_commit_waits_until_it_is_decided(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="begin")
    ledger.submit(LOAD, owner="prepare")
    assert ledger.waiting("team") == NOTHING
    ledger.mark_prepared(shared_manifest(ledger, 1))
    (one,) = ledger.waiting("team").undecided
    assert (one.load, one.attempt, one.age_ms(one.prepared_ms + 7)) == (LOAD, 1, 7)
    ledger.decide_abort(ref(ledger, 1), decided_by="decide", reason="check")
    assert ledger.waiting("team") == NOTHING


def test_the_oldest_come_first(ledger: Ledger) -> None:
    commit(ledger, OTHER)
    commit(ledger, LOAD)
    assert [one.load for one in ledger.waiting("team").unverified] == [OTHER, LOAD]
    for load in (replace(LOAD, name="b"), replace(LOAD, name="a")):
        ledger.begin(load, owner="begin")
        ledger.submit(load, owner="prepare")
        ledger.mark_prepared(replace(manifest(ledger, 1, load), two_phase_commit=True))
    assert [one.load.name for one in ledger.waiting("team").undecided] == ["b", "a"]


@pytest.mark.parametrize(
    ("topics", "left_ms"),
    [
        ({}, None),
        ({"orders": {}}, None),
        ({"orders": {"retention.ms": "-1"}}, None),
        ({"orders": {"retention.ms": str(DAY_MS)}}, DAY_MS - 9000),
        # the first to go counts
        ({"orders": {"retention.ms": str(DAY_MS)}, "bills": {"retention.ms": str(DAY_MS)}}, DAY_MS - 10_000),
        ({"orders": {"retention.ms": "1000"}}, -8000),
        ({"orders": {"retention.ms": "1000", "cleanup.policy": "compact"}}, None),
        ({"orders": {"retention.ms": "1000", "cleanup.policy": "compact,delete"}}, -8000),
        # by the broker's time of writing, which was before the decision
        ({"orders": {"retention.ms": "5000", "message.timestamp.type": "LogAppendTime"}}, 1000),
    ],
)
def test_how_long_retention_leaves_what_a_load_is_verified_by(
    topics: dict[str, dict[str, str]], left_ms: int | None
) -> None:
    assert ONE.retention_left_ms(topics, WRITTEN_MS + 9000) == left_ms
    assert (ONE.age_ms(DECIDED_MS + 4000), ONE.age_ms(0)) == (4000, 0)
