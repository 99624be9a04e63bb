"""What the page's routes answer whom, and what its buttons do: a real api-server, ledger and broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from airflow_kafka_eos.load import LoadState
from tests.plugin.conftest import SECRET, Site, owner
from tests.protocol.world import World

pytestmark = pytest.mark.airflow

NewLoad = Callable[..., World]
GUARD = {"X-Kafka-EOS": "page"}
ROUTES = """
from airflow_kafka_eos.plugin.api import make_app
for route in make_app().routes:
    for method in sorted(route.methods - {"HEAD"}):
        print(method, route.path)
"""


def get(client: httpx.Client, route: str, **query: str) -> Any:
    answer = client.get(f"/kafka-eos/api/{route}", params=query)
    assert answer.is_success, answer.text
    return answer.json()


def status(client: httpx.Client, route: str, **query: str) -> int:
    return client.get(f"/kafka-eos/api/{route}", params=query).status_code


def whose(world: World) -> dict[str, str]:
    return {"namespace": world.load.namespace, "name": world.load.name, "key": world.load.key}


def press(client: httpx.Client, world: World, action: str, **body: Any) -> httpx.Response:
    """As the page sends it, for attempt 1."""
    sent = whose(world) | {"attempt": 1} | body
    return client.post(f"/kafka-eos/api/load/{action}", json=sent, headers=GUARD)


def state(site: Site, world: World) -> LoadState:
    row = site.session.ledger.load(world.load)
    assert row is not None
    return row.state


def lingering(site: Site, world: World, dag_id: str = "orders") -> None:
    world.prepare(["a"], ["b"], owner=owner(world, dag_id))
    site.session.ledger.make_undecidable(world.load, up_to=1, decided_by="test", reason="a task failed")


def test_every_route_wants_a_login(site: Site) -> None:
    listed = subprocess.run(
        [sys.executable, "-c", ROUTES], env=site.airflow.env, capture_output=True, text=True, timeout=120
    )
    assert listed.returncode == 0, listed.stderr
    routes = [line.split() for line in listed.stdout.splitlines() if line.startswith(("GET /", "POST /"))]
    assert ["GET", "/"] in routes and ["GET", "/page.js"] in routes and len(routes) > 10
    with site.client(None) as nobody:
        for method, path in routes:
            path = path.replace("{action}", "cleanup")
            answer = nobody.request(method, f"/kafka-eos{path}", json={}, headers=GUARD)
            assert (answer.status_code, answer.text) == (401, '{"detail":"Not authenticated"}'), (method, path)


def test_a_prepared_load_is_shown_with_its_transactions_and_what_readers_wait_for(
    site: Site, new_load: NewLoad
) -> None:
    world = new_load("shown")
    manifest = world.prepare(["a", "b"], ["c"], owner=owner(world))
    with site.client("viewer") as viewer:
        (row,) = get(viewer, "loads", dag_id="orders", run_id="shown")["loads"]
        full = get(viewer, "load", **whose(world))
        looks = get(viewer, "transactions", dag_id="orders", run_id="shown")["clusters"]
    assert (row["state"], row["records"], row["dag_id"], row["run_id"]) == ("PREPARED", 3, "orders", "shown")
    states = {t.transactional_id: str(t.state) for t in manifest.transactions}
    assert {t["transactional_id"]: t["prepared_txn_state"] for t in full["transactions"]} == states
    assert [e["what"] for e in full["attempts"][0]["timeline"]] == ["begun", "submitted", "prepared"]
    (look,) = looks
    assert (look["kafka_conn_id"], look["problem"], look["hanging"]) == ("kafka_default", None, [])
    assert look["hidden"] == []
    assert {t["transactional_id"]: t["prepared_txn_state"] for t in look["transactions"]} == states
    for seen in look["transactions"]:
        assert seen["standing"] == "undecided"
        assert 0 <= seen["running_ms"] < 600_000 and 0 < seen["time_left_ms"] <= 600_000
    assert sum(lag["records"] for lag in look["lag"]) == 3


def test_it_shows_what_nobody_decides_because_the_dag_is_paused(site: Site, new_load: NewLoad) -> None:
    world = new_load("held")
    world.prepare(["a"], owner=owner(world))
    run = {"dag_id": "orders", "run_id": "held"}
    with site.client("admin") as admin:
        for paused, waits in ((True, "undecided, DAG paused"), (False, "undecided")):
            admin.patch("/api/v2/dags/orders", json={"is_paused": paused}).raise_for_status()
            (row,) = get(admin, "loads", **run)["loads"]
            full = get(admin, "load", **whose(world))
            (look,) = get(admin, "transactions", **run)["clusters"]
            assert (row["waits_for_paused_dag"], full["load"]["waits_for_paused_dag"]) == (paused, paused)
            assert {t["standing"] for t in look["transactions"]} == {waits}


def test_it_tells_what_comes_next_and_whether_anybody_is_left_to_do_it(site: Site, new_load: NewLoad) -> None:
    """No scheduler is here, so each state stays as it is set; running, up for retry: tests/airflow/test_on_call.py."""
    world = new_load("next", dag_id="doomed")
    world.prepare(["a"], owner=owner(world, "doomed"))
    path = "/api/v2/dags/doomed"
    with site.client("admin") as admin:

        def now() -> tuple[str, str, set[str], str]:
            (row,) = [x for x in get(admin, "loads")["loads"] if x["key"] == "next"]
            full = get(admin, "load", **whose(world))
            assert (full["load"]["prospect"], full["load"]["outlook"]) == (row["prospect"], row["outlook"])
            open_ = [t for look in get(admin, "transactions")["clusters"] for t in look.get("transactions", [])]
            standings = {t["standing"] for t in open_ if t["load"] is not None and t["load"]["key"] == "next"}
            (cleanup,) = full["actions"]
            assert row["outlook"] in cleanup["warning"] and cleanup["wants_name"]
            return row["prospect"], row["outlook"], standings, cleanup["warning"]

        prospect, outlook, standings, warning = now()
        assert (prospect, standings) == ("waits for its turn", {"undecided"})
        assert "aborted" not in outlook and warning.startswith("Attempt 1 is undecided: Its run is queued")

        admin.patch(path, json={"is_paused": True}).raise_for_status()
        prospect, outlook, standings, _ = now()
        assert (prospect, standings) == ("DAG paused", {"undecided, DAG paused"})
        assert "no task of the run begins until it is unpaused" in outlook and "Readers wait meanwhile" in outlook
        admin.patch(path, json={"is_paused": False}).raise_for_status()

        task = f"{path}/dagRuns/next/taskInstances/load.decide"
        admin.patch(task, json={"new_state": "failed"}).raise_for_status()
        prospect, outlook, standings, _ = now()
        assert (prospect, standings) == ("failed", {"undecided"})
        assert outlook.startswith("load.decide (try 0) failed.") and "Cleanup of the run aborts it" in outlook

        # a run is over when its teardown is
        cleanup_task = f"{path}/dagRuns/next/taskInstances/load.cleanup"
        admin.patch(cleanup_task, json={"new_state": "success"}).raise_for_status()
        admin.patch(f"{path}/dagRuns/next", json={"state": "failed"}).raise_for_status()
        prospect, outlook, standings, _ = now()
        assert (prospect, standings) == ("run has ended", {"undecided, abandoned"})
        assert "Its run has ended (failed) without finishing it. Clear decide to let the run go on" in outlook

        admin.delete(f"{path}/dagRuns/next").raise_for_status()
        prospect, outlook, standings, _ = now()
        assert (prospect, standings) == ("run deleted", {"undecided, abandoned"})
        assert "The run next is deleted in Airflow, so no run finishes it. It can never be committed:" in outlook

        admin.delete(path).raise_for_status()
        prospect, outlook, standings, _ = now()
        assert (prospect, standings) == ("DAG deleted", {"undecided, abandoned"})
        assert "The DAG doomed is deleted in Airflow" in outlook and "press Clean up to end it now" in outlook


def test_a_decided_load_of_a_deleted_run_is_not_called_lost(site: Site, new_load: NewLoad) -> None:
    world = new_load("decided-deleted")
    site.session.ledger.decide_commit(world.prepare(["a"], owner=owner(world)), decided_by="test")
    with site.client("admin") as admin:
        admin.delete("/api/v2/dags/orders/dagRuns/decided-deleted").raise_for_status()
        full = get(admin, "load", **whose(world))
        assert (full["load"]["prospect"], full["load"]["decision"]) == ("run deleted", "commit")
        assert full["load"]["outlook"].endswith("press Recover to do it now; otherwise maintenance does.")
        assert press(admin, world, "recover").json() == {"done": "the load is COMMITTED"}
        assert get(admin, "load", **whose(world))["load"]["prospect"] is None
    assert world.visible() == ["a"]


def test_what_names_no_run_of_this_airflow_is_said_not_to(site: Site, new_load: NewLoad) -> None:
    world = new_load("somebody")
    world.prepare(["a"], owner="ada@laptop (airflow-kafka-eos)")
    with site.client("admin") as admin:
        shown = get(admin, "load", **whose(world))["load"]
    assert (shown["prospect"], shown["outlook"]) == (
        "not known", "It belongs to ada@laptop (airflow-kafka-eos), which is no run of this Airflow."
    )  # fmt: skip


def test_the_tab_of_a_run_shows_that_runs_loads_only(site: Site, new_load: NewLoad) -> None:
    mine, others = new_load("mine"), new_load("mine-too")
    for world in (mine, others):
        world.prepare(["a"], owner=owner(world))
    with site.client("user") as user:
        assert [x["key"] for x in get(user, "loads", dag_id="orders", run_id="mine")["loads"]] == ["mine"]
        (look,) = get(user, "transactions", dag_id="orders", run_id="mine")["clusters"]
        assert {t["load"]["key"] for t in look["transactions"]} == {"mine"}
        everything = get(user, "transactions")["clusters"]
    assert {"mine", "mine-too"} <= {t["load"]["key"] for look in everything for t in look.get("transactions", [])}


def test_a_lingering_transaction_is_named_so_and_the_button_ends_it(site: Site, new_load: NewLoad) -> None:
    world = new_load("linger")
    lingering(site, world)
    run = {"dag_id": "orders", "run_id": "linger"}
    with site.client("user") as user:
        (look,) = get(user, "transactions", **run)["clusters"]
        assert {t["standing"] for t in look["transactions"]} == {"lingering"}
        assert [a["name"] for a in get(user, "load", **whose(world))["actions"]] == ["cleanup"]
        answer = press(user, world, "cleanup", **run)
        assert answer.status_code == 200, answer.text
        (look,) = get(user, "transactions", **run)["clusters"]
        assert (look["transactions"], look["lag"]) == ([], [])
    assert world.open_ids() == []
    assert state(site, world) is LoadState.ABORTED


def test_recover_rolls_a_decided_load_forward(site: Site, new_load: NewLoad) -> None:
    """What is decided is only ever completed (rule: one-key-loads-once)."""
    world = new_load("decided")
    site.session.ledger.decide_commit(world.prepare(["a"], ["b"], owner=owner(world)), decided_by="test")
    run = {"dag_id": "orders", "run_id": "decided"}
    with site.client("user") as user:
        (look,) = get(user, "transactions", **run)["clusters"]
        assert {t["standing"] for t in look["transactions"]} == {"to be committed"}
        answer = press(user, world, "recover", **run)
        assert (answer.status_code, answer.json()) == (200, {"done": "the load is COMMITTED"})
        full = get(user, "load", **whose(world))
    assert world.visible() == ["a", "b"]
    assert [t["outcome"] for t in full["transactions"]] == ["committed", "committed"]
    assert full["attempts"][0]["timeline"][-1]["what"] == "committed"
    assert [a["name"] for a in full["actions"] if not a["if_open"]] == []


def test_giving_up_wants_the_name_and_a_reason(site: Site, new_load: NewLoad) -> None:
    world = new_load("given-up")
    site.session.ledger.decide_commit(world.prepare(["a"], owner=owner(world)), decided_by="test")
    with site.client("user") as user:
        for body in ({}, {"confirm": "orders", "reason": "x"}, {"confirm": world.load.name, "reason": " "}):
            answer = press(user, world, "give-up", **body)
            assert (answer.status_code == 422 and "Type" in answer.text) or "reason" in answer.text
            assert state(site, world) is LoadState.COMMITTING
        answer = press(user, world, "give-up", confirm=world.load.name, reason="the topic is gone")
        assert answer.status_code == 200, answer.text
    row = site.session.ledger.load(world.load)
    assert row is not None and row.state is LoadState.GIVEN_UP
    assert "user (Airflow UI)" in row.reason and "the topic is gone" in row.reason
    site.session.ledger.record_swept(world.load, 1)  # as cleanup does once nothing of it is open
    with site.client("user") as user:
        steps = [e["what"] for e in get(user, "load", **whose(world))["attempts"][0]["timeline"]]
    assert steps[-2:] == ["decided", "swept"]


def test_an_undecided_attempt_is_swept_only_by_name(site: Site, new_load: NewLoad) -> None:
    """A run may be at work on it, and about to decide."""
    world = new_load("at-work")
    world.prepare(["a"], owner=owner(world))
    with site.client("user") as user:
        assert press(user, world, "cleanup").status_code == 422
        assert state(site, world) is LoadState.PREPARED
        assert len(world.open_ids()) == 1
        assert press(user, world, "cleanup", confirm=world.load.name).status_code == 200
    assert (state(site, world), world.open_ids()) == (LoadState.ABORTED, [])


def test_what_came_after_the_user_looked_is_not_touched(site: Site, new_load: NewLoad) -> None:
    """An attempt that nobody has seen is nobody's to sweep (rule: up-to-its-own-attempt)."""
    world = new_load("newer")
    lingering(site, world)
    world.prepare(["c"], owner=owner(world))
    with site.client("user") as user:
        answer = press(user, world, "cleanup", confirm=world.load.name)
    assert answer.status_code == 409 and "attempt 2 is the newest now" in answer.text
    assert state(site, world) is LoadState.PREPARED


def test_what_is_nothing_to_do_is_refused(site: Site, new_load: NewLoad) -> None:
    world = new_load("nothing")
    lingering(site, world)
    with site.client("user") as user:
        for action in ("recover", "give-up"):
            assert press(user, world, action, confirm=world.load.name, reason="x").status_code == 409
        assert press(user, world, "drop").status_code == 422
        assert press(user, world, "cleanup", attempt=0).status_code == 422


def test_buttons_are_noted_in_airflows_audit_log(site: Site, new_load: NewLoad) -> None:
    world = new_load("audited")
    lingering(site, world)
    with site.client("user") as user, site.client("admin") as admin:
        assert press(user, world, "cleanup").status_code == 200
        log = admin.get("/api/v2/eventLogs", params={"dag_id": "orders", "run_id": "audited"}).json()
    (entry,) = [e for e in log["event_logs"] if e["event"].startswith("kafka_eos")]
    assert (entry["event"], entry["owner"]) == ("kafka_eos.cleanup", "user")
    assert "orders.load/audited" in entry["extra"]


@pytest.mark.parametrize(("dag", "prepares"), [("orders", ["prepare"]), ("own_operator", ["submit", "collect"])])
def test_every_task_links_to_its_runs_tab(
    site: Site, new_load: NewLoad, dag: str, prepares: list[str]
) -> None:
    new_load("linked", dag_id=dag)
    with site.client("viewer") as viewer:
        for task in ("begin", *prepares, "decide", "commit", "cleanup", "loaded"):
            path = f"/api/v2/dags/{dag}/dagRuns/linked/taskInstances/load.{task}/links"
            links = viewer.get(path, params={"map_index": -1}).json()["extra_links"]
            assert links["Kafka transactions"] == f"/dags/{dag}/runs/linked/plugin/kafka-transactions-run"


def test_the_ids_that_brokers_keep_are_counted(site: Site, new_load: NewLoad) -> None:
    world = new_load("counted")
    world.prepare(["a"], ["b"], owner=owner(world))
    with site.client("viewer") as viewer:
        (report,) = get(viewer, "ids")["namespaces"]
    names = {n["load_name"]: n for n in report["names"]}
    assert names["orders.load"]["incrementing"] >= 2


def test_a_ledger_that_does_not_know_what_a_run_has_begun_is_another_one(site: Site, new_load: NewLoad) -> None:
    """As where the api-server has another Airflow home than the workers: an empty tab would mean that nothing is."""
    world = new_load("elsewhere")
    with site.client("admin") as admin:
        begun = {"key": "return_value", "value": {"load": str(world.load), "attempt": 1}}
        admin.post(
            "/api/v2/dags/orders/dagRuns/elsewhere/taskInstances/load.begin/xcomEntries", json=begun
        ).raise_for_status()
        asked = {"dag_id": "orders", "run_id": "elsewhere"}
        answer = admin.get("/kafka-eos/api/loads", params=asked)
        assert answer.status_code == 422 and "does not know this load" in answer.json()["detail"], answer.text
        world.prepare(["a"], owner=owner(world))
        assert [x["key"] for x in get(admin, "loads", **asked)["loads"]] == ["elsewhere"]


def test_a_ledger_that_is_not_known_for_sure_is_said_to_be(site: Site, new_load: NewLoad) -> None:
    """Not taken for the name of a connection, nor for the embedded ledger, where another load may have the name."""
    new_load("no-ledger", dag_id="unnamed_ledger")
    with site.client("viewer") as viewer:
        for route in ("loads", "transactions"):
            answer = viewer.get(
                f"/kafka-eos/api/{route}", params={"dag_id": "unnamed_ledger", "run_id": "no-ledger"}
            )
            assert answer.status_code == 422 and "ledger_conn_id is the template" in answer.text, answer.text


@pytest.mark.parametrize("given", [{"run_id": ""}, {"dag_id": ""}, {"run_id": "a\x00b"}])
def test_a_run_that_cannot_be_is_refused_in_words(site: Site, new_load: NewLoad, given: dict[str, str]) -> None:
    named = {"dag_id": "orders", "run_id": "shown"} | given
    with site.client("admin") as admin:
        for route in ("loads", "transactions"):
            answer = admin.get(f"/kafka-eos/api/{route}", params=named)
            assert answer.status_code == 422 and "name one, or leave both out" in answer.text, (answer, answer.text)
        ((name, value),) = given.items()
        world = new_load(f"cannot-be-{name}-{len(value)}")
        assert admin.get("/kafka-eos/api/load", params=whose(world) | named).status_code == 422
        assert press(admin, world, "cleanup", **named).status_code == 422
        assert press(admin, world, "give-up", reason="a\x00b").status_code == 422


def test_no_answer_has_a_secret(site: Site, new_load: NewLoad) -> None:
    world = new_load("secret")
    lingering(site, world)
    with site.client("admin") as admin:
        for route in ("loads", "transactions", "ids"):
            assert SECRET not in admin.get(f"/kafka-eos/api/{route}").text
        assert SECRET not in admin.get("/kafka-eos/api/load", params=whose(world)).text
        assert SECRET not in press(admin, world, "cleanup").text
    assert SECRET.encode() not in (site.airflow.home / "api-server.log").read_bytes()
