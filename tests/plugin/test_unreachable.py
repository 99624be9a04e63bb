"""Clusters that do not answer, or are not known. Last in the folder: the page looks for these loads from then on."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.load import LoadState, Verdict
from tests.plugin.conftest import Site
from tests.plugin.test_page_api import NewLoad, get, lingering, press, state

pytestmark = pytest.mark.airflow


def test_brokers_that_do_not_answer_leave_the_ledgers_part_readable(site: Site, new_load: NewLoad) -> None:
    world = new_load("down", dag_id="away")
    lingering(site, world, dag_id="away")
    run = {"dag_id": "away", "run_id": "down"}
    with site.client("user") as user:
        (row,) = get(user, "loads", **run)["loads"]
        assert row["state"] == "ABORTING"
        (look,) = get(user, "transactions", **run)["clusters"]
        assert look["kafka_conn_id"] == "kafka_away" and "127.0.0.1:1" in look["problem"]
        assert press(user, world, "cleanup", **run).status_code == 503
    assert state(site, world) is LoadState.ABORTING


@pytest.mark.parametrize("dag_id", ["unnamed", "gone"])
def test_a_cluster_that_is_not_known_for_sure_is_never_guessed(
    site: Site, new_load: NewLoad, dag_id: str
) -> None:
    """On another cluster nothing of the load is open: a sweep there would call it clean."""
    world = new_load(f"unsure-{dag_id}")
    lingering(site, world, dag_id=dag_id)
    with site.client("user") as user:
        answer = press(user, world, "cleanup")
        looks = get(user, "transactions")["clusters"]
    assert answer.status_code == 422 and "is not known" in answer.text
    said = answer.json()["detail"]
    assert f"`airflow-kafka-eos cleanup {world.load.in_command}" in said and " --kafka-conn-id …`" in said
    assert [look["problem"] for look in looks if look["kafka_conn_id"] is None] != []
    attempt = site.session.ledger.attempt(world.load, 1)
    assert attempt is not None and attempt.closed_at is None and attempt.verdict is Verdict.ABORT
    assert len(world.open_ids()) == 2
