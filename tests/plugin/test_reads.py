"""What a look at a load shows to a user who may not see all of its attempts: a real ledger, no Airflow around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.location import default_url
from airflow_kafka_eos.plugin.dags import Access
from airflow_kafka_eos.plugin.reads import Found, show
from airflow_kafka_eos.transaction import Outcome
from tests.ledger.ledger_support import LOAD, manifest

pytestmark = pytest.mark.airflow


class OneDag(Access):
    """Of a user who may do everything to the runs of one DAG, and nothing else."""

    def may(self, method: str, dag_id: str | None) -> bool:
        return bool(dag_id == self._user)


def test_repairs_of_an_attempt_that_one_may_not_see_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another DAG takes the load over, and loses a transaction, between the list and the look."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    with Ledger.open(default_url(), upgrade=True) as ledger:
        ledger.begin(LOAD, owner="orders/run#group=load")
        row = ledger.load(LOAD)
        assert row is not None
        found = Found(row, ledger.attempt(LOAD, 1), None)
        lost_by(ledger, "other/run#group=load")
        (repair,) = ledger.repairs(LOAD)
    shown = show(OneDag("orders"), found)
    assert (repair.attempt, [a["number"] for a in shown["attempts"]], shown["hidden_attempts"]) == (2, [1], 1)
    assert (shown["transactions"], shown["repairs"]) == ([], [])
    assert [r["attempt"] for r in show(OneDag("other"), found)["repairs"]] == [2]


def lost_by(ledger: Ledger, owner: str) -> None:
    ledger.make_undecidable(LOAD, up_to=1, decided_by="x", reason="x")
    ledger.begin(LOAD, owner=owner)
    number = ledger.submit(LOAD, owner=owner).number
    ledger.mark_prepared(manifest(ledger, number))
    ledger.decide_commit(manifest(ledger, number), decided_by=owner)
    lost = ledger.transactions(LOAD, number)[0].transaction.transactional_id
    ledger.record_outcomes(LOAD, number, {lost: Outcome.LOST})
    assert ledger.open_repair(LOAD, number, lost, opened_by=owner) is not None
