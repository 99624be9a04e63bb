"""What rows become on the page: pure functions, and which buttons there are in which state."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.kafka.admin.open_producers import OpenProducer
from airflow_kafka_eos.ledger.rows import AttemptRow, LoadRow
from airflow_kafka_eos.load import REPAIR_THROWN_AWAY, LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.operators.base import dag_and_run_of, dag_of, group_of, group_of_task, run_of
from airflow_kafka_eos.plugin import views
from airflow_kafka_eos.plugin.dags import Access, dags_of, load_named_by
from airflow_kafka_eos.plugin.reads import visible
from airflow_kafka_eos.plugin.views import ActionName, Standing
from airflow_kafka_eos.protocol.hanging import HangingTransaction, Whose
from airflow_kafka_eos.transaction import (
    TWO_PHASE_TIMEOUT_MS,
    CoordinatorState,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)

LOAD = LoadIdentity("airflow", "orders.load", "2026-01-01")
T = "2026-01-01T00:00:0{}.000000+00:00"


def row(state: LoadState, attempt: int = 1, updated_at: str = T.format(9)) -> LoadRow:
    return LoadRow(LOAD, state, attempt, "", None, T.format(0), updated_at)


def attempt(number: int = 1, verdict: Verdict | None = None, closed: bool = False) -> AttemptRow:
    return AttemptRow(
        LOAD,
        number,
        "orders/run#group=load",
        T.format(0),
        submitted_at=T.format(1),
        verdict=verdict,
        decided_at=T.format(3) if verdict else None,
        closed_at=T.format(4) if closed else None,
    )


def names(found: list[views.Action]) -> list[tuple[str, bool]]:
    return [(a.name.value, a.wants_name) for a in found]


def test_what_looks_well_and_is_not_is_noted() -> None:
    committed = replace(attempt(verdict=Verdict.COMMIT), arguments_sha256="a" * 64)
    own, another = run_of("orders", "run"), run_of("orders", "by hand")
    assert views.note(committed, [], own) == views.note(committed, [committed], None) == ""
    said = views.note(committed, [], another)
    by = f"orders/run#group=load, decided at {T.format(3)}"
    assert said == f"Already committed by {by}: this run has written nothing."
    twin = replace(committed, load=replace(LOAD, key="2026-01-01T08:30"))
    assert "had the same arguments as that of 2026-01-01T08:30, committed too" in views.note(committed, [twin], None)
    reload = replace(committed, load=replace(LOAD, key=f"{LOAD.key}~reload-2"))
    assert views.note(committed, [reload], None) == ""
    assert views.note(attempt(verdict=Verdict.ABORT), [twin], another) == views.note(None, [], another) == ""
    many = [replace(committed, load=replace(LOAD, key=str(n))) for n in range(5)]
    assert "that of 0, 1, 2 and 2 more, committed too" in views.note(committed, many, None)


@pytest.mark.parametrize("state", list(LoadState))
def test_a_decision_is_never_offered_to_be_taken_back(state: LoadState) -> None:
    """Behind the decision one rolls forward, or gives up by name; before it there is nothing to recover."""
    offered = {a.name for a in views.actions(row(state), [attempt(verdict=Verdict.COMMIT)])}
    unfinished = {LoadState.COMMITTING, LoadState.REPAIRING, LoadState.IN_DOUBT}
    wanted = {ActionName.RECOVER, ActionName.GIVE_UP} if state in unfinished else set()
    assert offered - {ActionName.CLEANUP} == wanted


def test_what_takes_something_from_somebody_is_confirmed_by_name() -> None:
    undecided = views.actions(row(LoadState.PREPARED, 2), [attempt(1, Verdict.ABORT), attempt(2)])
    assert names(undecided) == [("cleanup", True)]
    assert "Attempt 2 is undecided" in undecided[0].warning
    repairing = views.actions(row(LoadState.REPAIRING), [attempt(verdict=Verdict.COMMIT)])
    assert names(repairing) == [("recover", False), ("cleanup", True), ("give-up", True)]
    assert REPAIR_THROWN_AWAY in repairing[1].warning
    lost = views.actions(row(LoadState.IN_DOUBT), [attempt(verdict=Verdict.COMMIT)])
    assert names(lost) == [("recover", False), ("cleanup", False), ("give-up", True)]
    assert lost[2].wants_reason


def test_a_clean_load_needs_a_sweep_only_if_something_is_open() -> None:
    assert [a.if_open for a in views.actions(row(LoadState.ABORTING), [attempt(verdict=Verdict.ABORT)])] == [False]
    closed = attempt(verdict=Verdict.COMMIT, closed=True)
    assert [a.if_open for a in views.actions(row(LoadState.COMMITTED), [closed])] == [True]
    assert views.actions(row(LoadState.PREPARING, 0), []) == []


@pytest.mark.parametrize(
    ("known", "state", "is_decided", "wanted"),
    [
        (None, None, False, Standing.UNKNOWN),
        (attempt(), LoadState.PREPARED, False, Standing.UNDECIDED),
        (attempt(verdict=Verdict.ABORT), LoadState.ABORTING, False, Standing.LINGERING),
        (attempt(verdict=Verdict.COMMIT), LoadState.COMMITTING, True, Standing.DECIDED),
        # a task attempt that Spark did not choose, or a zombie's: no decision names it
        (attempt(verdict=Verdict.COMMIT), LoadState.COMMITTING, False, Standing.LINGERING),
        (attempt(verdict=Verdict.COMMIT), LoadState.GIVEN_UP, True, Standing.LINGERING),
    ],
)
def test_what_an_open_transaction_waits_for(
    known: AttemptRow | None, state: LoadState | None, is_decided: bool, wanted: Standing
) -> None:
    load = None if state is None else row(state)
    assert views.standing(known, load, is_decided=is_decided) is wanted


@pytest.mark.parametrize(
    ("known", "waits"),
    [(None, False), (attempt(), False), (replace(attempt(), prepared_at=T.format(2)), True)]
    + [(replace(attempt(verdict=verdict), prepared_at=T.format(2)), False) for verdict in Verdict],
)
def test_what_waits_for_a_paused_dag(known: AttemptRow | None, waits: bool) -> None:
    assert views.waits_for_paused_dag(known, {"orders"}) is waits
    assert views.waits_for_paused_dag(known, {"another"}) is False


def test_the_time_that_a_broker_leaves() -> None:
    tp = TopicPartition("orders", 0)

    def shown(timeout_ms: int, start_ms: int) -> dict[str, object]:
        seen = TransactionDescription(
            "id", CoordinatorState.ONGOING, PreparedTxnState(7, 1), timeout_ms, start_ms, frozenset({tp})
        )
        return views.open_transaction(seen, None, None, is_decided=False, now_ms=100_000)

    one = shown(60_000, 50_000)
    assert (one["running_ms"], one["time_left_ms"], one["prepared_txn_state"]) == (50_000, 10_000, "7:1")
    assert shown(10_000, 50_000)["time_left_ms"] == -40_000
    assert shown(TWO_PHASE_TIMEOUT_MS, 50_000)["time_left_ms"] is None
    assert shown(60_000, -1)["running_ms"] is None


def test_the_list_is_cut_and_says_so() -> None:
    rows = [(row(LoadState.COMMITTED, updated_at=f"2026-01-01T00:{n:05}"), None) for n in range(views.MOST_LOADS + 3)]
    shown = views.loads(rows)
    assert (len(shown["loads"]), shown["more"]) == (views.MOST_LOADS, True)
    assert [views.loads(rows[:1], more=more)["more"] for more in (False, True)] == [False, True]
    assert shown["loads"][0]["updated_at"] > shown["loads"][-1]["updated_at"]
    json.dumps(shown)


def test_a_hanging_transaction_says_where_whose_and_why() -> None:
    producer = OpenProducer(TopicPartition("orders", 1), 7, 2, 0, 40, 1_000)
    stranger = HangingTransaction(producer, None, "no coordinator knows it", 5_000, Whose.FOREIGN)
    shown = views.hanging(stranger, "here:9092")
    assert (shown["topic_partition"], shown["producer"], shown["whose"]) == ("orders-1", "7:2", "foreign")
    assert (shown["idle_ms"], shown["transactional_id"], shown["load"]) == (5_000, None, None)
    ours = HangingTransaction(producer, "id", "ended", 5_000, Whose.OURS, attempt(verdict=Verdict.ABORT))
    assert (views.hanging(ours, "")["whose"], views.hanging(ours, "")["load"]) == ("ours", str(LOAD))
    assert (shown["proven"], shown["doubt"]) == (True, None)
    command = "kafka-transactions.sh --bootstrap-server here:9092 abort --topic orders --partition 1 --start-offset 40"
    assert command in shown["what_to_do"]
    doubt = AccessError("may be hidden", remedy="Grant DESCRIBE")
    unproven = views.hanging(replace(stranger, doubt=doubt), "here:9092")
    assert (unproven["proven"], unproven["doubt"]) == (False, "may be hidden")
    assert "end nothing. Grant DESCRIBE" in unproven["what_to_do"] and "kafka-" not in unproven["what_to_do"]


@pytest.mark.parametrize(("dags", "seen"), [({"orders"}, ["ours"]), ({"orders", None}, ["ours", "foreign"])])
def test_others_hanging_transactions_are_for_who_may_see_all_dags(dags: set[str | None], seen: list[str]) -> None:
    class Answers(Access):
        """In the auth manager's place."""

        def may(self, method: str, dag_id: str | None) -> bool:
            return dag_id in dags

    producer = OpenProducer(TopicPartition("orders", 1), 7, 2, 0, 40, 1_000)
    stuck = [
        HangingTransaction(producer, "id", "ended", 5_000, Whose.OURS, attempt()),
        HangingTransaction(producer, "id", "ended", 5_000, Whose.OURS, replace(attempt(), owner="other/run#group=x")),
        HangingTransaction(producer, "theirs", "no coordinator knows it", 5_000, Whose.FOREIGN),
    ]
    assert [h.whose.value for h in visible(Answers(None), stuck)] == seen


@pytest.mark.parametrize(
    ("stored", "load"),
    [
        ('{"load": "airflow/l/k", "attempt": 1}', "airflow/l/k"),
        ({"load": "airflow/l/k"}, "airflow/l/k"),
        # what custom XCom backends keep: a path, an object's place
        ("s3://bucket/xcom/1.json", None),
        ('{"load": ["x"]}', None),
        ('["load"]', None),
        (None, None),
    ],
)
def test_a_load_is_read_out_of_an_xcom_and_nothing_else_is_trusted(stored: object, load: str | None) -> None:
    assert load_named_by(stored) == load


def test_lag_is_sorted_by_what_waits() -> None:
    by_partition = {TopicPartition("a", 0): 1, TopicPartition("b", 0): 7}
    assert [x["topic_partition"] for x in views.lag(by_partition)] == ["b-0", "a-0"]


IDS = st.text(st.sampled_from("abcXYZ019._-:+~"), min_size=1, max_size=240)


@given(dag_id=IDS, run_id=IDS, group=IDS)
def test_an_owner_is_read_back_as_its_dag_and_run_or_not_at_all(dag_id: str, run_id: str, group: str) -> None:
    """What cannot be read back must not name another DAG: permissions are asked for what it names."""
    owner = run_of(dag_id, run_id) + group_of_task(f"{group}.begin")
    assert dag_of(owner) in (dag_id, None)
    assert dag_of(owner) == dag_id or len(dag_id) > 180
    if len(dag_id) + len(run_id) < 200:
        assert dag_and_run_of(owner) == (dag_id, run_id)
    assert group_of(owner) == group_of_task(f"{group}.prepare")
    assert dag_of("someone@somewhere (airflow-kafka-eos)") is None
    assert dag_of("a/b") is None


def test_the_page_offers_each_state_of_a_load_to_look_for() -> None:
    script = (Path(views.__file__).parent / "static" / "loads.js").read_text()
    (states,) = re.findall(r"const STATES = \[(.*?)\];", script, re.DOTALL)
    assert json.loads(f"[{states.strip().rstrip(',')}]") == [state.value for state in LoadState]


@pytest.mark.parametrize(
    ("state", "verdict", "told"),
    [
        ("up_for_retry", None, "The retry of run aborts this attempt, and opens a new one."),
        ("failed", None, "Cleanup of the run aborts it."),
        ("up_for_retry", Verdict.COMMIT, "the next run of its query does so, or maintenance."),
    ],
)
def test_a_batch_is_of_the_run_that_has_started_its_driver(state: str, verdict: Verdict | None, told: str) -> None:
    """Also of a driver that nobody has started: it names no run."""
    of_run = replace(attempt(verdict=verdict), owner="dag/run#group=orders", submitted_by="stream host blockmgr-1")
    assert (of_run.responsible, dags_of(of_run)) == ("dag/run#group=orders", {"dag"})
    seen = views.RunSeen("dag", "run", has_dag=True, state="running", tries=(views.Try("orders.run", state, 1, 3),))
    shown = views.load(row(LoadState.PREPARING), of_run, runs={of_run.responsible: seen})
    if verdict is Verdict.COMMIT:
        shown = views.load(row(LoadState.COMMITTING), of_run, runs={of_run.responsible: seen})
    assert (shown["dag_id"], shown["run_id"]) == ("dag", "run")
    assert told in shown["outlook"]
    by_itself = replace(of_run, owner="stream host blockmgr-1")
    assert (by_itself.responsible, dags_of(by_itself)) == ("stream host blockmgr-1", {None})
