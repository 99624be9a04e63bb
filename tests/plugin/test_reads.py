"""What a look at a load shows to a user who may not see all of its attempts: a real ledger, no Airflow around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kafka_eos.errors import OtherLedgerError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.location import default_url
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.operators.base import dag_of
from airflow_kafka_eos.plugin import dags, reads, views
from airflow_kafka_eos.plugin.dags import Access
from airflow_kafka_eos.plugin.reads import Found, Selection, find_loads, show
from airflow_kafka_eos.transaction import Outcome
from tests.ledger.ledger_support import LOAD, OTHER, manifest

pytestmark = pytest.mark.airflow


class OneDag(Access):
    """Of a user who may do everything to the runs of one DAG, and nothing else."""

    def may(self, method: str, dag_id: str | None) -> bool:
        return bool(dag_id == self._user)


class Everything(Access):
    def may(self, method: str, dag_id: str | None) -> bool:
        return True


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


def many(ledger: Ledger) -> None:
    """One that is in doubt since long, and more loads of two DAGs than a list has."""
    lost_by(ledger, "orders/run#group=load")
    for number in range(views.MOST_LOADS + 2):
        by = f"{('orders', 'other')[number % 2]}/run#group=load"
        load = LoadIdentity("team", "many", str(number))
        ledger.begin(load, owner=by)
        ledger.make_undecidable(load, up_to=1, decided_by="x", reason="x")
        ledger.record_swept(load, 1)


def test_a_list_has_what_is_not_through_first_and_says_that_there_are_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(reads, "_FIRST_LOOK", 10)
    with Ledger.open(default_url(), upgrade=True) as ledger:
        ledger.begin(LOAD, owner="orders/run#group=load")
        many(ledger)
    found = find_loads(OneDag("orders"), Selection())
    assert found.more is False
    assert len(found.loads) == 1 + (views.MOST_LOADS + 2) // 2
    assert {dag_of(f.newest.owner) for f in found.loads if f.newest} == {"orders"}
    every = find_loads(Everything(None), Selection())
    assert (len(every.loads), every.more) == (views.MOST_LOADS, True)
    assert LOAD in {f.row.load for f in every.loads}, "it is not through, and changed before all others"
    assert find_loads(OneDag("none"), Selection()) == reads.FoundLoads([])


def test_the_loads_of_a_run_are_found_by_its_owners_and_by_what_it_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    before, slashes = LoadIdentity("team", "orders", "k"), LoadIdentity("a/b", "c", "d/e")
    with Ledger.open(default_url(), upgrade=True) as ledger:
        for load, by in (
            (LOAD, "orders/run#group=load"), (OTHER, "orders/run2#group=load"),
            (before, "orders/another#group=load"), (slashes, "orders/another#group=load"),
        ):  # fmt: skip
            ledger.begin(load, owner=by)
    monkeypatch.setattr(dags, "load_tasks", lambda *_: [dags.LoadTask("load.begin", "{{ x }}", dags.Place("k", None))])
    begun = {str(before), str(slashes)}
    monkeypatch.setattr(dags, "begun_loads", lambda *_: begun)
    found = find_loads(OneDag("orders"), Selection("orders", "run"))
    assert {f.row.load for f in found.loads} == {LOAD, before, slashes}
    begun.add("team/orders/unknown")
    with pytest.raises(OtherLedgerError, match="does not know this load"):
        find_loads(OneDag("orders"), Selection("orders", "run"))


def test_a_loads_text_is_read_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reads.loads_named("n/l/k") == [LoadIdentity("n", "l", "k")]
    assert LoadIdentity("a/b", "c", "d/e") in reads.loads_named("a/b/c/d/e")
    assert reads.loads_named("n/l") == reads.loads_named("") == reads.loads_named("//") == []
    assert len(reads.loads_named("/".join("x" * 1000))) == reads._CUTS
