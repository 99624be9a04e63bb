"""The wiring is part of the guarantee, and the README tells the truth about it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, TriggerRule

from airflow_kafka_eos import ExactlyOnceLoad, Transactions
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.hooks import _check_one_host
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.operators.base import DEFAULT_LOAD_KEY, are_siblings, check_no_sibling, owner_of
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.sensors import CleanupLoadSensor, LoadedSensor

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def group() -> ExactlyOnceLoad:
    with DAG("orders", schedule=None, start_date=datetime(2026, 1, 1)):
        return ExactlyOnceLoad("load_orders", job="jobs/orders.py", topics=["orders"])


def test_the_tasks_stand_in_the_order_of_the_protocol(group: ExactlyOnceLoad) -> None:
    downstream = {
        t.task_id.removeprefix("load_orders."): {
            d.removeprefix("load_orders.") for d in t.downstream_task_ids
        }
        for t in group.dag.tasks
    }
    assert downstream == {
        "begin": {"prepare", "cleanup"},
        "prepare": {"decide"},
        "decide": {"commit"},
        "commit": {"cleanup", "loaded"},
        "cleanup": set(),
        "loaded": set(),
    }


def test_cleanup_is_the_teardown_of_begin_and_its_failure_fails_the_run(group: ExactlyOnceLoad) -> None:
    assert (group.begin.is_setup, group.cleanup.is_teardown) == (True, True)
    assert group.cleanup.on_failure_fail_dagrun


def test_loaded_is_the_groups_only_leaf(group: ExactlyOnceLoad) -> None:
    """A leaf that succeeds although the load failed would show the run as successful."""
    assert [t.task_id for t in group.get_leaves()] == ["load_orders.loaded"]


def test_names_default_to_dag_and_group(group: ExactlyOnceLoad) -> None:
    tasks = (group.begin, group.prepare, group.decide, group.commit, group.cleanup, group.loaded)
    assert {(t.load_name, t.load_key, t.namespace) for t in tasks} == {
        ("orders.load_orders", DEFAULT_LOAD_KEY, "airflow")
    }


@pytest.mark.parametrize("taken", ["application", "application_args", "durable"])
def test_what_prepare_sets_itself_is_refused(taken: str) -> None:
    with pytest.raises(ConfigurationError, match=taken):
        PrepareLoadOperator(task_id="p", load_name="x", topics=["t"], job="j.py", **{taken: True})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"scope": "loads"}, "scope is 'loads'.*Did you mean load"),
        ({"two_phase_commit": "require"}, "two_phase_commit is 'require'.*Did you mean required"),
        ({"two_phase_commit": True}, "two_phase_commit is True, it can be auto, required, off"),
        ({"transaction_naming": "pool"}, "transaction_naming is 'pool'.*Did you mean pooling"),
        ({"writer": "Arrow"}, "writer is 'Arrow'.*Did you mean arrow"),
    ],
)
def test_a_word_that_is_none_is_refused_at_parse_with_the_nearest_one(wrong: dict[str, Any], says: str) -> None:
    with DAG("wrong", schedule=None), pytest.raises(ConfigurationError, match=says):
        ExactlyOnceLoad("load", job="j.py", topics=["t"], transactions=Transactions(**wrong))


def test_how_it_is_written_reaches_the_application() -> None:
    from airflow_kafka_eos.manifest import AttemptRef
    from airflow_kafka_eos.spark.manifest_store import ManifestStore
    from airflow_kafka_eos.spark.spec import ApplicationSpec

    with DAG("whole", schedule=None):
        how = Transactions(
            scope="load", two_phase_commit="required", writer="arrow", transaction_naming="pooling"
        )
        load = ExactlyOnceLoad("load", sql="SELECT 1", topics=["t"], transactions=how)
    assert load.prepare.transaction_naming == "pooling"
    ref = AttemptRef(LoadIdentity("a", "b", "c"), "0" * 10, 1, slot=3)
    spec = ApplicationSpec.from_json(load.prepare._spec(ManifestStore("/m"), 77)(ref))
    assert (spec.options.attempt, spec.options.deadline_ms) == (ref, 77)
    assert (spec.options.scope, spec.options.two_phase_commit, spec.options.writer) == ("load", "required", "arrow")


def test_a_dual_write_reaches_decide() -> None:
    arguments: dict[str, Any] = {"dual_write_sql": ["DELETE FROM marts"], "dual_write": print}
    with DAG("dual", schedule=None):
        group = ExactlyOnceLoad("load", job="j.py", topics=["orders"], ledger_conn_id="marts", **arguments)
    assert (group.decide.dual_write_sql, group.decide.dual_write) == (["DELETE FROM marts"], print)
    assert "dual_write_sql" in group.decide.template_fields


def test_prepare_never_reconnects_to_an_older_application(group: ExactlyOnceLoad) -> None:
    assert getattr(group.prepare, "durable", None) is False  # rule: one-application-per-attempt


def test_spark_arguments_reach_spark_submit() -> None:
    with DAG("spark", schedule=None, start_date=datetime(2026, 1, 1)):
        load = ExactlyOnceLoad("l", sql="SELECT 1", topics=["t"], spark_args={"conf": {"spark.x": "1"}})
    assert getattr(load.prepare, "conf", None) == {"spark.x": "1"}


def test_the_readmes_smallest_dag_is_a_dag_of_less_than_15_lines() -> None:
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    assert len(code.strip().splitlines()) < 15
    space: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), space)
    assert isinstance(space["ExactlyOnceLoad"], type)


def test_the_default_key_is_partition_date_or_run_id_whatever_of_these_airflow_has() -> None:
    template = DAG("dag", schedule=None).get_template_env().from_string(DEFAULT_LOAD_KEY)

    def key(**dag_run: Any) -> str:
        return template.render(dag_run=SimpleNamespace(**dag_run), run_id="manual__1")

    date = datetime(2026, 1, 1, tzinfo=UTC)
    assert key(partition_key="2026-01-01T05", logical_date=None) == "2026-01-01T05"
    assert key(partition_key=None, logical_date=date) == "2026-01-01T00:00:00+00:00"
    assert key(partition_key=None, logical_date=None) == "manual__1"
    # Airflow 3.1
    assert key(logical_date=date) == "2026-01-01T00:00:00+00:00"
    assert key(logical_date=None) == "manual__1"


class _Instance:
    def __init__(self, run_id: str = "run", map_index: int = -1, task_id: str = "load.begin") -> None:
        self.dag_id, self.run_id, self.map_index, self.task_id = "dag", run_id, map_index, task_id


def _owner(**instance: Any) -> str:
    return owner_of({"ti": _Instance(**instance)})


def test_an_owner_is_the_run_the_group_and_the_map_index_never_the_try() -> None:
    assert _owner() == _owner(task_id="load.prepare") == "dag/run#group=load"
    assert _owner(map_index=3) == "dag/run#group=load#map_index=3"
    assert _owner(task_id="begin") == "dag/run#group="


def test_long_owners_stay_different_and_siblings() -> None:
    long = "r" * 250
    owners = {_owner(run_id=long + end, map_index=n) for end in "ab" for n in (0, 1)}
    assert len(owners) == 4
    assert max(map(len, owners)) <= 500
    assert are_siblings(_owner(run_id=long, map_index=0), _owner(run_id=long, map_index=1))


def test_siblings_are_groups_and_map_indexes_of_one_run() -> None:
    assert are_siblings(_owner(map_index=0), _owner(map_index=1))
    assert are_siblings(_owner(), _owner(task_id="other.begin"))
    assert not are_siblings(_owner(), _owner())
    assert not are_siblings(_owner(), _owner(run_id="run2"))


def test_a_mapped_load_without_a_key_of_its_own_is_refused(group: ExactlyOnceLoad) -> None:
    """Its second map index would be taken for loaded already: a lost load."""
    with pytest.raises(AirflowFailException, match="load_key"):
        group.begin.pre_execute({"ti": _Instance(map_index=0)})
    group.begin.pre_execute({"ti": _Instance()})


def test_a_load_that_another_load_of_the_run_committed_does_not_pass_for_ours() -> None:
    by = _owner(map_index=0)
    row = AttemptRow(LoadIdentity("n", "l", "k"), 1, by, "t", "t", by, "t", Verdict.COMMIT)
    dag = SimpleNamespace(task_ids=["load.begin", "load.prepare"])

    def context(**instance: Any) -> Any:
        return {"ti": _Instance(**instance), "dag": dag}

    with pytest.raises(ConfigurationError, match="another load of this run"):
        check_no_sibling(row, context(map_index=1))
    check_no_sibling(row, context(map_index=0))
    check_no_sibling(row, context(run_id="another run"))
    # the group was renamed since: the DAG has no "load" any more, so it can only be this one
    dag.task_ids = ["renamed.begin"]
    check_no_sibling(row, context(task_id="renamed.begin", map_index=0))


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"topics": "orders"}, "topics"),
        ({"job": None}, "job"),
        ({"sql": "SELECT 1"}, "sql"),
        ({"transactions": Transactions(margin=timedelta(minutes=15))}, "margin"),
        ({"transactions": Transactions(margin=timedelta(0))}, "margin"),
        ({"dual_write_sql": "DELETE FROM marts"}, "ledger_conn_id"),
        ({"dual_write_sql": "COMMIT", "ledger_conn_id": "marts"}, "dual_write_sql"),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(wrong: dict[str, Any], names: str) -> None:
    arguments: dict[str, Any] = {"job": "j.py", "topics": ["orders"]} | wrong
    with DAG("wrong", schedule=None), pytest.raises(ConfigurationError, match=names):
        ExactlyOnceLoad("load", **arguments)


def test_default_args_do_not_soften_the_wiring() -> None:
    """A skipped cleanup or loaded would show a failed load as a successful run."""
    soft = {"soft_fail": True, "mode": "reschedule", "trigger_rule": "all_done"}
    with DAG("soft", schedule=None, default_args=soft):
        load = ExactlyOnceLoad("load", job="j.py", topics=["t"])
    assert [(s.soft_fail, s.mode) for s in (load.cleanup, load.loaded)] == [(False, "poke")] * 2
    after = (load.prepare, load.decide, load.commit, load.loaded)
    assert {t.trigger_rule for t in after} == {TriggerRule.ALL_SUCCESS}
    assert load.cleanup.trigger_rule == TriggerRule.ALL_DONE_SETUP_SUCCESS


def test_a_dagrun_timeout_is_warned_of() -> None:
    with DAG("short", schedule=None, dagrun_timeout=timedelta(hours=1)), pytest.warns(match="dagrun_timeout"):
        ExactlyOnceLoad("load", job="j.py", topics=["t"])


@pytest.mark.parametrize(
    "executor", ["CeleryExecutor", "LocalExecutor,KubernetesExecutor", "airflow.providers.x.EdgeExecutor"]
)
def test_the_embedded_ledger_is_refused_where_tasks_run_on_several_hosts(executor: str) -> None:
    """Two hosts would have two ledgers, and a committed load would be loaded again from the other."""
    with pytest.raises(ConfigurationError, match="ledger_conn_id"):
        _check_one_host(executor)


@pytest.mark.parametrize("executor", ["LocalExecutor", "airflow.executors.local_executor.LocalExecutor"])
def test_the_embedded_ledger_is_fine_on_one_host(executor: str) -> None:
    _check_one_host(executor)


def test_cleanup_fails_when_its_ledger_does_not_know_the_load(tmp_path: Path) -> None:
    sensor = CleanupLoadSensor(task_id="cleanup", load_name="l", load_key="k")
    with Ledger.open(f"sqlite:///{tmp_path}/other.db", upgrade=True) as ledger:
        with pytest.raises(ConfigurationError, match="does not know"):
            sensor.look_up(ledger, "dag/run#group=load")
        ledger.begin(sensor.load_identity, owner="dag/run#group=load")
        sensor.look_up(ledger, "dag/run#group=load")
        assert sensor.new_trigger("dag/run#group=load").up_to == 1
        with pytest.raises(ConfigurationError, match="one task group"):
            sensor.look_up(ledger, "dag/run#group=elsewhere")


def test_cleanup_warns_of_what_no_sweep_can_end_and_does_not_fail(capfd: pytest.CaptureFixture[str]) -> None:
    """The run has failed by then, at commit and loaded; a teardown that hangs or fails too says no more."""
    sensor = CleanupLoadSensor(task_id="cleanup", load_name="l", load_key="k")
    summary = {"load": "airflow/l/k", "aborted": [], "problem": "1 of its transactions were lost"}
    done = {"status": "done", "summary": summary}
    ti = SimpleNamespace(
        dag_id="dag", run_id="run", map_index=-1, task_id="load.cleanup", get_task_states=lambda **_: {}
    )
    with DAG("dag", schedule=None) as dag:
        LoadedSensor(task_id="loaded", load_name="l")
    context: Any = {"ti": ti, "dag": dag}
    assert sensor.execute_complete(context, done) == summary
    said = "".join(capfd.readouterr())
    assert "NOT CLEAN" in said and "were lost" in said
    sensor.execute_complete(context, {"status": "done", "summary": summary | {"problem": None}})
    assert "NOT CLEAN" not in "".join(capfd.readouterr())


def test_a_cleanup_keeps_to_the_attempts_that_it_found_first(tmp_path: Path) -> None:
    """One that outlives its task must not touch the attempt of the retry."""
    owner = "dag/run#group=load"
    sensor = CleanupLoadSensor(task_id="cleanup", load_name="l", load_key="k")
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db", upgrade=True) as ledger:
        ledger.begin(sensor.load_identity, owner=owner)
        ledger.submit(sensor.load_identity, owner=owner)
        sensor.look_up(ledger, owner)
        ledger.submit(sensor.load_identity, owner=owner)  # attempt 2, of the retry
        assert sensor.new_trigger(owner).up_to == 1
