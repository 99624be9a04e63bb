"""Who gets what: Airflow's roles, a user who is kept to one DAG, and requests that another site has made."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from tests.plugin.conftest import Site, owner
from tests.plugin.test_page_api import GUARD, NewLoad, get, lingering, press, state, status, whose

pytestmark = pytest.mark.airflow


@pytest.mark.parametrize(("user", "may"), [("viewer", False), ("user", True), ("op", True), ("admin", True)])
def test_roles_that_may_edit_runs_get_buttons(site: Site, new_load: NewLoad, user: str, may: bool) -> None:
    world = new_load(f"role-{user}")
    lingering(site, world)
    with site.client(user) as client:
        full = get(client, "load", **whose(world))
        assert (full["may_act"], bool(full["actions"])) == (may, may)
        answer = press(client, world, "cleanup")
    assert answer.status_code == (200 if may else 403)
    assert state(site, world) is (LoadState.ABORTED if may else LoadState.ABORTING)
    assert (world.open_ids() == []) is may


def test_a_user_without_permission_gets_neither_data_nor_buttons(site: Site, new_load: NewLoad) -> None:
    world = new_load("not-yours")
    lingering(site, world)
    run = {"dag_id": "orders", "run_id": "not-yours"}
    with site.client("stranger") as stranger:
        assert get(stranger, "loads") == {"loads": [], "more": False, "ledger_conn_id": None}
        assert get(stranger, "transactions") == {"clusters": []}
        assert get(stranger, "ids") == {"namespaces": []}
        assert status(stranger, "load", **whose(world)) == 404
        for route in ("loads", "transactions"):
            assert status(stranger, route, **run) == 403
        assert status(stranger, "load", **whose(world), **run) == 403
        assert press(stranger, world, "cleanup").status_code == 404
        assert press(stranger, world, "cleanup", **run).status_code == 403
        # by way of a DAG that they may see
        run = {"dag_id": "elsewhere", "run_id": "x"}
        assert get(stranger, "loads", **run)["loads"] == []
        assert press(stranger, world, "cleanup", **run).status_code == 404
    assert len(world.open_ids()) == 2


def test_attempts_of_another_dag_are_neither_shown_nor_swept(site: Site, new_load: NewLoad) -> None:
    """Two DAGs load one identity: who may see one of them sees its attempts, and does nothing to the other's."""
    world = new_load("shared")
    ledger = site.session.ledger
    lingering(site, world, dag_id="other")
    # not the protocol's begin, which would sweep what the first one has left
    ledger.begin(world.load, owner=owner(world))
    ref = reference(site.session, ledger.submit(world.load, owner=owner(world)))
    record_prepared(site.session, world.manifest(ref, [world.write(ref, ["c"])]))
    ledger.make_undecidable(world.load, up_to=2, decided_by="test", reason="over")
    with site.client("neighbour") as neighbour:
        full = get(neighbour, "load", **whose(world))
        assert ([a["number"] for a in full["attempts"]], full["hidden_attempts"]) == ([2], 1)
        assert {t["attempt"] for t in full["transactions"]} == {2}
        assert full["actions"] == []
        looks = get(neighbour, "transactions")["clusters"]
        mine = [t for look in looks for t in look["transactions"] if t["load"]["key"] == "shared"]
        assert {t["attempt"] for t in mine} == {2}
        assert press(neighbour, world, "cleanup", attempt=2).status_code == 403
    assert len(world.open_ids()) == 3


def test_ids_of_a_name_are_shown_to_who_may_see_all_of_its_loads(site: Site, new_load: NewLoad) -> None:
    mine, others = new_load("ids-mine"), new_load("ids-others")
    mine.prepare(["a"], owner=owner(mine))
    # the same load name, and one of its loads is another DAG's
    others.prepare(["a"], owner=owner(others, "other"))
    shown = {}
    for user in ("neighbour", "viewer"):
        with site.client(user) as client:
            assert {"ids-mine"} <= {x["key"] for x in get(client, "loads")["loads"]}
            shown[user] = [n["load_name"] for report in get(client, "ids")["namespaces"] for n in report["names"]]
    assert "orders.load" in shown["viewer"]
    assert "orders.load" not in shown["neighbour"]


@pytest.mark.parametrize(
    ("run_id", "headers"),
    [
        ("no-header", {"Content-Type": "application/json"}),
        ("text", GUARD | {"Content-Type": "text/plain"}),
        ("form", GUARD | {"Content-Type": "application/x-www-form-urlencoded"}),
        ("cross-site", GUARD | {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}),
        ("same-site", GUARD | {"Content-Type": "application/json", "Sec-Fetch-Site": "same-site"}),
    ],
)
def test_what_another_site_may_have_sent_is_refused(
    site: Site, new_load: NewLoad, run_id: str, headers: dict[str, str]
) -> None:
    world = new_load(f"forged-{run_id}")
    lingering(site, world)
    with site.client("user") as user:
        content = '{"namespace": "airflow", "name": "orders.load", "attempt": 1, "key": "' + world.load.key + '"}'
        answer = user.post("/kafka-eos/api/load/cleanup", content=content, headers=headers)
    assert answer.status_code == 403, answer.text
    assert len(world.open_ids()) == 2


def test_a_page_may_be_framed_by_this_airflow_only(site: Site) -> None:
    with site.client("viewer") as viewer:
        for path in ("/kafka-eos/", "/kafka-eos/page.js", "/kafka-eos/api/loads"):
            headers = viewer.get(path).headers
            assert "frame-ancestors 'self'" in headers["content-security-policy"]
            assert "script-src 'self';" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"


def test_half_a_run_is_refused(site: Site) -> None:
    with site.client("viewer") as viewer:
        assert status(viewer, "loads", dag_id="orders") == 422
