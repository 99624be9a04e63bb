"""Mapped loads, the decorator, on_committed: what is refused when the DAG is parsed, and how the tasks are wired."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, ExceptionRetryPolicy, RetryAction, RetryRule, TaskGroup, task

from airflow_kafka_eos import Checks, ExactlyOnceLoad, exactly_once_load
from airflow_kafka_eos.errors import ConfigurationError, TransientError, UndecidableError
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.operators.base import DEFAULT_LOAD_KEY
from airflow_kafka_eos.operators.begin import BeginLoadOperator, check_own, name_of_item
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.spark.dag_file import JOB

COMMON: dict[str, Any] = {"job": "j.py", "topics": ["t"]}
LATER = ("prepare", "decide", "commit", "cleanup", "loaded")


def dag(**arguments: Any) -> DAG:
    return DAG("authored", schedule=None, start_date=datetime(2026, 1, 1), **arguments)


def steps(load: ExactlyOnceLoad) -> dict[str, Any]:
    return {name: getattr(load, name) for name in ("begin", *LATER)}


# on_committed


@pytest.mark.parametrize("mode", ["skip", "fail"])
def test_a_load_that_is_not_reloaded_has_its_authors_key_in_all_steps(mode: str) -> None:
    with dag():
        load = ExactlyOnceLoad("load", on_committed=mode, **COMMON)
    assert {t.load_key for t in steps(load).values()} == {DEFAULT_LOAD_KEY}


@pytest.mark.parametrize("mode", ["reload", "{{ params.mode }}"])
def test_all_later_steps_take_the_generation_that_begin_chose(mode: str) -> None:
    with dag(), TaskGroup("outer"):
        load = ExactlyOnceLoad("load", on_committed=mode, load_key="mine", **COMMON)
    assert load.begin.load_key == "mine"
    (key,) = {getattr(load, name).load_key for name in LATER}
    pulled: list[Any] = []

    def xcom_pull(**asked: Any) -> Any:
        pulled.append(asked)
        return {"load_key": "mine~reload-2"}

    load.commit.render_template_fields({"ti": SimpleNamespace(xcom_pull=xcom_pull, map_index=-1)})
    assert load.commit.load_key == "mine~reload-2"
    assert pulled == [{"task_ids": "outer.load.begin", "map_indexes": -1}]
    assert "load_key" in key


def test_begin_without_a_result_gives_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marked successful by hand: a load with the key None would be anybody's."""
    from jinja2 import UndefinedError

    with dag():
        load = ExactlyOnceLoad("load", on_committed="reload", **COMMON)
    with pytest.raises(UndefinedError):
        load.commit.render_template_fields({"ti": SimpleNamespace(xcom_pull=lambda **_: None, map_index=-1)})


def test_a_mode_that_is_none_is_refused_at_parse() -> None:
    with dag(), pytest.raises(ConfigurationError, match=r"on_committed is 'relod'.*Did you mean reload"):
        ExactlyOnceLoad("load", on_committed="relod", **COMMON)


def test_fail_refuses_what_another_run_has_committed() -> None:
    row = AttemptRow(LoadIdentity("n", "l", "k"), 1, "run a", "t", "t", "run a", "t", Verdict.COMMIT)
    with pytest.raises(UndecidableError, match=r"by run a.*on_committed='reload'"):
        check_own(row, "run b")
    check_own(row, "run a")
    check_own(AttemptRow(row.load, 2, "run a", "t"), "run b")


class _Instance:
    dag_id, run_id, map_index, task_id = "authored", "run", -1, "load.begin"

    def __init__(self, **states: str | None) -> None:
        self.states, self.asked = states, dict[str, Any]()

    def get_task_states(self, **asked: Any) -> Any:
        self.asked = asked
        return {"run": {f"load.{name}": state for name, state in self.states.items()}}


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        ({}, True),
        ({"prepare": None, "decide": None, "commit": None, "loaded": None}, True),
        ({"prepare": "failed", "decide": "upstream_failed"}, True),
        ({"prepare": None, "decide": "success", "commit": "success", "loaded": "success"}, False),
        ({"prepare": "success", "decide": "success", "commit": None, "loaded": None}, False),
    ],
)
def test_clearing_a_part_of_the_group_is_no_reload(states: dict[str, str | None], whole: bool) -> None:
    """A task's setup is cleared along with it: begin runs again although nothing is to be written again."""
    with dag():
        load = ExactlyOnceLoad("load", on_committed="reload", **COMMON)
        load >> ExactlyOnceLoad("another", **COMMON)  # whose tasks say nothing about this load
    ti = _Instance(**states)
    assert load.begin._whole_group_runs({"ti": ti}) is whole
    assert sorted(ti.asked["task_ids"]) == [f"load.{name}" for name in ("commit", "decide", "loaded", "prepare")]
    assert (ti.asked["run_ids"], ti.asked["map_index"]) == (["run"], None)


# mapped loads


def test_items_have_names_that_no_other_item_has() -> None:
    assert name_of_item(["b", "a"]) == name_of_item(["a", "b"]) == "a,b"
    assert len({name_of_item(i) for i in (["a", "b"], ["a,b"], ["a/b"], ["a%2Cb"], "a", ["ab"])}) == 6
    assert "/" not in name_of_item("a/b")
    for nameless in ("", " ", [], [1], None, {"a": 1}, 7):
        with pytest.raises(ConfigurationError, match="item="):
            name_of_item(nameless)


def test_an_item_stands_behind_the_key_and_is_a_key_of_its_own() -> None:
    begin = BeginLoadOperator(task_id="begin", load_name="l", load_key="day", item=["orders"])
    begin.pre_execute({"ti": SimpleNamespace(map_index=0)})
    assert begin.load_identity.key == "day/orders"
    with pytest.raises(ConfigurationError, match="cannot name a load"):
        BeginLoadOperator(task_id="refused", load_name="l", load_key="day", item=[])
    nameless = BeginLoadOperator(task_id="nameless", load_name="l", load_key="day", item="{{ nothing }}")
    nameless.item = []  # rendered
    with pytest.raises(AirflowFailException, match="cannot name a load"):
        nameless.pre_execute({"ti": SimpleNamespace(map_index=0)})


@pytest.mark.parametrize(
    ("mapped", "says"),
    [
        ({}, "given 0 arguments"),
        ({"topic": ["a"], "job_args": [{}]}, "given 2 arguments"),
        ({"job_args": [{}, {}]}, "have no names"),
        ({"sql": ["SELECT 1"]}, "have no names"),
        ({"topics": [["a", "b"], ["b", "a"]]}, "two mapped loads have the name 'a,b'"),
        ({"topic": ["a", "a"]}, "two mapped loads have the name 'a'"),
        ({"topik": ["a"]}, "topik cannot be mapped. Did you mean topic"),
        ({"checks": [Checks(), Checks()]}, "checks cannot be mapped.*give all else to partial"),
        ({"min_records": [1, 2]}, r"min_records cannot be mapped.*give checks=Checks\(min_records=…\) to partial"),
        ({"topic": []}, r"topic=\[\]: no list of loads"),
        ({"topic": "orders"}, "topic='orders': no list of loads"),
        ({"topic": ["a b"]}, r"topic=\['a b'\]: 'a b' cannot be the name of a topic"),
        ({"topics": [["a"], "b"]}, "topics='b' is a text"),
        ({"job": ["a.py"]}, "job is mapped, and given to partial"),
    ],
)
def test_what_cannot_be_mapped_is_refused_at_parse(mapped: dict[str, Any], says: str) -> None:
    with dag(), pytest.raises(ConfigurationError, match=says):
        ExactlyOnceLoad.partial("tables", job="j.py").expand(**mapped)


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([{"topic": "a"}, {"topics": ["b"]}], "not every item has the keys"),
        ([{"topic": "a"}, {"topic": "a"}], "two mapped loads"),
        ([{"job_args": {}}], "have no names"),
        ([{"topic": "a", "job_args": []}], "job_args=.* is no dict"),
        ([{"topic": "a", "sql": 7}], "sql=7 is no text"),
        ([], "does not know which arguments"),
    ],
)
def test_dicts_of_arguments_that_cannot_work_are_refused_at_parse(items: Any, says: str) -> None:
    with dag(), pytest.raises(ConfigurationError, match=says):
        ExactlyOnceLoad.partial("tables", job="j.py").expand_kwargs(items)


def test_mapped_tasks_keep_setup_teardown_and_leaf() -> None:
    with dag() as made:
        ExactlyOnceLoad.partial("tables", job="j.py").expand(topic=["a", "b"])
    begin, cleanup = made.get_task("tables.load.begin"), made.get_task("tables.load.cleanup")
    assert begin.is_setup and cleanup.is_teardown and cleanup.on_failure_fail_dagrun
    assert [t.task_id for t in made.task_group.get_leaves()] == ["tables.load.loaded"]


class Smaller(ExactlyOnceLoad):
    """An author's own, with what all of their loads have in common."""

    def __init__(self, group_id: str, **arguments: Any) -> None:
        super().__init__(group_id, **arguments, load_name="smaller")


def test_mapped_loads_are_of_the_class_that_partial_was_called_on() -> None:
    with dag() as made:
        Smaller.partial("tables", job="j.py").expand(topic=["a", "b"])
    begin: Any = made.get_task("tables.load.begin")
    assert begin.load_name == "smaller"


# the decorator


def test_the_call_makes_a_group_whose_job_is_the_function() -> None:
    @exactly_once_load(topics=["t"], checks=Checks(min_records=2))
    def load_numbers(spark: Any, count: int, day: str) -> Any:
        """Numbers."""
        return (spark, count, day)

    @task
    def how_many() -> int:
        return 3

    with dag() as made, TaskGroup("outer"):
        load = load_numbers(count=how_many(), day="{{ ds }}")
        other = load_numbers.override(group_id="more", checks=Checks(min_records=5))(count=1, day="x")
    assert (load.group_id, other.group_id) == ("outer.load_numbers", "outer.more")
    assert (load.decide.min_records, other.decide.min_records) == (2, 5)
    arguments = load.prepare.job_args
    assert load.prepare.job == JOB
    assert (arguments["dag_id"], arguments["group_id"]) == ("authored", "outer.load_numbers")
    assert arguments["file"] == str(Path(__file__).resolve())
    assert str(Path(__file__).parents[2]) in arguments["path"]
    # what an earlier task returns makes it an upstream task
    assert "outer.how_many" in made.get_task("outer.load_numbers.prepare").upstream_task_ids
    assert load_numbers.__doc__ == "Numbers." and load_numbers.function("s", 1, "d") == ("s", 1, "d")


def test_a_dag_that_another_module_makes_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver runs the file in which DAG( is called: a factory's module by itself makes no DAG (ADR 17)."""
    from airflow_kafka_eos.spark import dag_file

    (tmp_path / "a_factory.py").write_text(
        "from airflow.sdk import DAG\n"
        "from airflow_kafka_eos import exactly_once_load\n"
        "def make(name):\n"
        "    @exactly_once_load(topics=['t'])\n"
        "    def rows(spark):\n"
        "        return spark\n"
        "    with DAG(name, schedule=None) as dag:\n"
        "        rows()\n"
        "    return dag\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(dag_file, "_functions", {})
    import a_factory  # type: ignore[import-not-found]

    given = a_factory.make("made_elsewhere").get_task("rows.prepare").job_args
    assert given["file"] == str(tmp_path / "a_factory.py")
    dag_file._functions.clear()  # the driver is another process
    with pytest.raises(ConfigurationError, match=r"has no load 'rows'.*Call DAG\(\.\.\.\) in the DAG file itself"):
        dag_file.load("spark", **given)


def test_the_driver_finds_the_function_by_dag_and_group(tmp_path: Path) -> None:
    from airflow_kafka_eos.spark import dag_file

    file = tmp_path / "a_dag.py"
    file.write_text(
        "from airflow.sdk import DAG, get_parsing_context\n"
        "from airflow_kafka_eos import exactly_once_load\n"
        "for number in (1, 2):\n"
        "    with DAG(f'dag_{number}', schedule=None):\n"
        "        @exactly_once_load(topics=['t'])\n"
        "        def rows(spark, what, number=number):\n"
        "            return spark, what, number\n"
        "        rows(what='x')\n"
        "assert get_parsing_context().dag_id == 'dag_1' and get_parsing_context().task_id == 'rows.prepare'\n"
    )
    found = dag_file.load("spark", str(file), "dag_1", "rows", {"what": "y"}, [])
    assert found == ("spark", "y", 1)
    with pytest.raises(ConfigurationError, match=r"no load 'other' of DAG 'dag_1'.*rows of DAG dag_2"):
        file.write_text(file.read_text().partition("assert")[0])
        dag_file.load("spark", str(file), "dag_1", "other", {}, [])
    with pytest.raises(ConfigurationError, match="no file"):
        dag_file.load("spark", str(tmp_path / "gone.py"), "dag_1", "rows", {}, [])


def test_a_driver_without_airflow_is_told_what_to_do(tmp_path: Path) -> None:
    from airflow_kafka_eos.spark import dag_file

    (tmp_path / "d.py").write_text("import airflow.no_such_module_here\n")
    with pytest.raises(ConfigurationError, match=r"there is no Airflow.*deploy mode client"):
        dag_file.load(None, str(tmp_path / "d.py"), "d", "g", {}, [])
    (tmp_path / "e.py").write_text("import no_such_module_of_the_author\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_the_author"):  # the author's own error
        dag_file.load(None, str(tmp_path / "e.py"), "d", "g", {}, [])


def _one(spark: Any, day: str) -> Any: ...


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: exactly_once_load(topics=["t"])(_one)(), "missing a required argument: 'day'"),
        (lambda: exactly_once_load(topics=["t"])(_one)(day="1", more=2), "unexpected keyword argument 'more'"),
        (lambda: exactly_once_load(topics=["t"])(_one)(spark=1, day="1"), "multiple values for argument 'spark'"),
        (lambda: exactly_once_load(topics=["t"], job="x.py")(_one), "job='x.py' cannot be set"),  # type: ignore[call-arg]
        (lambda: exactly_once_load(topics=["t"], sql="SELECT 1")(_one), "sql='SELECT 1' cannot be set"),  # type: ignore[call-arg]
        (lambda: exactly_once_load(topics=["t"])(lambda spark: spark), "cannot decorate"),
        (lambda: exactly_once_load(topics=["t"])(print), "cannot decorate"),
    ],
)
def test_what_the_decorator_cannot_do_is_refused_at_parse(call: Any, says: str) -> None:
    with dag(), pytest.raises(ConfigurationError, match=says):
        call()


# default_args and the wiring

POLICY = ExceptionRetryPolicy([RetryRule(TransientError, RetryAction.RETRY, timedelta(seconds=1))])
PASSED: dict[str, Any] = {
    "pool": "kafka",
    "pool_slots": 2,
    "priority_weight": 7,
    "queue": "big",
    "retries": 4,
    "retry_delay": timedelta(seconds=3),
    "execution_timeout": timedelta(hours=1),
    "owner": "team",
    "retry_policy": POLICY,
}


@pytest.mark.parametrize("where", ["dag", "group"])
def test_default_args_reach_every_task(where: str) -> None:
    with dag(default_args=PASSED if where == "dag" else {}):
        more: dict[str, Any] = {"default_args": PASSED} if where == "group" else {}
        load = ExactlyOnceLoad("load", **COMMON, **more)
    for name, step in steps(load).items():
        reached = {key: getattr(step, key) for key in PASSED}
        assert reached.pop("retry_policy").rules == POLICY.rules, name  # a group copies its default_args
        assert reached | {"retry_policy": POLICY} == PASSED, name


def test_spark_args_reach_prepare_over_default_args() -> None:
    with dag(default_args=PASSED):
        load = ExactlyOnceLoad("load", spark_args={"pool": "spark", "executor_memory": "2g"}, **COMMON)
    assert isinstance(load.prepare, PrepareLoadOperator)
    assert (load.prepare.pool, load.prepare._executor_memory, load.decide.pool) == ("spark", "2g", "kafka")


@pytest.mark.parametrize("name", ["trigger_rule", "outlets", "load_key", "topics", "conn_id", "task_id"])
def test_spark_args_cannot_take_over_what_the_group_says(name: str) -> None:
    with dag(), pytest.raises(ConfigurationError, match=f"spark_args has {name}"):
        ExactlyOnceLoad("load", spark_args={name: "all_done"}, **COMMON)


def test_no_default_args_break_the_wiring() -> None:
    """Each would let a failed load look good, or say of a load that is not there that it is."""
    from airflow.sdk import Asset

    wrong = {
        "trigger_rule": "all_done",
        "soft_fail": True,
        "never_fail": True,
        "silent_fail": True,
        "mode": "reschedule",
        "outlets": [Asset("told-too-early")],
        "do_xcom_push": False,
        "retries": 0,
        "durable": True,
        "load_key": "shared",
        "load_name": "shared",
        "application": "other.py",
    }
    with dag(default_args=wrong):
        load = ExactlyOnceLoad("load", outlets=[Asset("loaded")], on_committed="reload", **COMMON)
    found = steps(load)
    assert {n for n, t in found.items() if t.trigger_rule == "all_success"} >= {"prepare", "decide", "commit", "loaded"}
    assert found["cleanup"].trigger_rule == "all_done_setup_success"
    assert {n: [a.name for a in t.outlets] for n, t in found.items() if t.outlets} == {
        "loaded": ["loaded", "authored.load"]  # the alias of its topics' assets
    }
    assert found["begin"].do_xcom_push and not found["prepare"].durable
    assert {t.load_name for t in found.values()} == {"authored.load"}
    assert found["begin"].load_key == DEFAULT_LOAD_KEY
    for waiting in (found["cleanup"], found["loaded"]):
        assert (waiting.soft_fail, waiting.never_fail, waiting.silent_fail, waiting.mode) == (*[False] * 3, "poke")
    assert found["begin"].is_setup and found["cleanup"].is_teardown and found["cleanup"].on_failure_fail_dagrun
    assert [t.task_id for t in load.get_leaves()] == ["load.loaded"]
