"""Arguments are checked when the DAG is parsed: by name, value and what to write in its place."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from datetime import date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Asset, TaskGroup, task

from airflow_kafka_eos import ExactlyOnceLoad, Transactions, exactly_once_load, load, signatures
from airflow_kafka_eos.argument_groups import GROUPS, PLACES
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.operators.base import LoadOperator
from airflow_kafka_eos.operators.begin import BeginLoadOperator
from airflow_kafka_eos.operators.commit import CommitLoadOperator
from airflow_kafka_eos.operators.decide import DecideLoadOperator
from airflow_kafka_eos.operators.maintenance import SweepLeftoversOperator
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.operators.preparing import PreparingOperator
from airflow_kafka_eos.sensors import CleanupLoadSensor, LoadedSensor, PollingLoadSensor
from airflow_kafka_eos.spark.formats import settings as formats
from tests.adapters.grouping import grouped

BOTH: dict[str, Any] = {"topics": ["orders"], "job": "jobs/orders.py"}


def dag(**arguments: Any) -> DAG:
    return DAG("arguments", schedule=None, start_date=datetime(2026, 1, 1), **arguments)


def a_job(spark: Any) -> None: ...


async def awaited(manifest: Any) -> None: ...


#: argument, value, what the error says behind "argument=value is"
WRONG: list[tuple[str, Any, str]] = [
    ("quiet_period", "60", "no duration. Set it to seconds as a number, or to a timedelta"),
    ("quiet_period", -1, "too short. Set it to 0 or more"),
    ("quiet_period", True, "no duration"),
    ("quiet_period", "{{ x }}", "filled in when the task runs, and quiet_period has to be known when the DAG is"),
    ("hold_time", "1800", "no duration"),
    ("hold_time", float("nan"), "no duration"),
    ("hold_time", float("inf"), "no duration"),
    ("hold_time", 10**400, "too long"),
    ("hold_time", timedelta(days=25), "too long. Set it to less than 24 days"),
    ("hold_time", 0, "too short. Set it to more than 0"),
    ("check", True, "no function. Set it to a function of the manifest"),
    ("check", lambda: True, "called with the manifest: too many positional arguments"),
    ("check", awaited, "an async function: nobody awaits it"),
    ("dual_write", lambda connection: None, "called with the connection and the manifest: too many"),
    ("job", a_job, "a function, and has no way to Spark as an argument. Write @exactly_once_load"),
    ("job", Path("jobs/orders.py"), "no text. Set it to 'file.py'"),
    ("job", "orders", "neither a Python file nor a function of a module"),
    ("job", " ", "no text"),
    ("topics", [], "no topic. Name one or more"),
    ("topics", {"orders"}, "no list of topics"),
    ("topics", None, "no list of topics"),
    ("job_args", ["2026-01-01"], "no dict of names and values. Write job_args={'name': value}"),
    ("job_args", {1: 2}, "no dict of names and values"),
    ("min_records", "1", "no whole number from 0 on"),
    ("min_records", -1, "no whole number from 0 on"),
    ("min_records", True, "no whole number from 0 on"),
    ("max_records", 1e6, "no whole number from 0 on"),
    ("max_transactional_ids", 0, "no whole number from 1 on. Set it to one, or to None for no limit"),
    ("max_transactional_ids_of_namespace", "9", "no whole number from 1 on"),
    ("deferrable", "no", "neither True nor False"),
    ("decide_at_once", 1, "neither True nor False"),
    ("asset_events", 0, "neither True nor False"),
    ("outlets", "orders", "no list of assets"),
    ("outlets", Asset("orders"), "no list of assets. Pass a list: outlets=[Asset('name')]"),
    ("spark_args", ["conf"], "no dict of names and values"),
    ("default_args", ["retries"], "no dict of names and values"),
    ("asset_server", 7, "no text"),
    ("kafka_conn_id", 7, "no text"),
    ("ledger_conn_id", "", "no text"),
    ("spark_conn_id", None, "no text"),
    ("load_name", 7, "no text"),
    ("load_key", date(2026, 1, 1), "no text"),
    ("namespace", " ", "no text"),
    ("manifest_dir", Path("/m"), "no text"),
    ("registry_conn_id", 7, "no text"),
    ("item", 7, "cannot name a load"),
]  # fmt: skip
SAID_OTHERWISE = [
    ({"topics": "orders"}, r"topics='orders' is a text. Pass a list: topics=\['orders'\]"),
    ({"topics": ["orders", "a b"]}, "topics=.*: 'a b' cannot be the name of a topic. Kafka takes letters"),
    ({"topics": [7]}, "topics=.*: 7 cannot be the name of a topic"),
    ({"min_records": 5, "max_records": 4}, "min_records=5 is more than max_records=4: every load would be refused"),
    ({"job_args": {"day": date(2026, 1, 1)}}, r"job_args\['day'\] is datetime.date\(2026, 1, 1\) of type date, .*JSON"),
    ({"job_args": {"of": [1, {"a": {2}}]}}, r"job_args\['of'\]\[1\]\['a'\] is \{2\} of type set"),
    ({"job_args": {"x": float("nan")}}, r"job_args\['x'\] is nan"),
    ({"hold_time": 30, "margin": 60}, "margin=0:01:00 does not fit hold_time=0:00:30"),
    ({"writer": "confluent", "scope": "load"}, 'writer="confluent" cannot do scope="load".*Leave writer at "auto"'),
    ({"writer": "confluent", "two_phase_commit": "required"}, 'cannot do two_phase_commit="required"'),
    ({"spark_args": {"conf": "spark.x=1"}}, "conf='spark.x=1' is no dict of names and values"),
    ({"spark_args": {"executor_memry": "1g"}}, "spark_args has 'executor_memry'.*Did you mean executor_memory"),
]  # fmt: skip


def refused(**wrong: Any) -> str:
    with dag(), pytest.raises(ConfigurationError) as caught:
        ExactlyOnceLoad("load", **(BOTH | grouped(wrong)))
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize(("argument", "value", "says"), WRONG)
def test_what_cannot_work_is_refused_by_name_value_and_remedy(argument: str, value: Any, says: str) -> None:
    said = refused(**{argument: value})
    assert said.startswith(f"{argument}=") and says in said


@pytest.mark.parametrize(("wrong", "says"), SAID_OTHERWISE)
def test_what_does_not_fit_together_is_refused(wrong: dict[str, Any], says: str) -> None:
    assert re.search(says, refused(**wrong))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: CommitLoadOperator(task_id="t", load_name="l", commit_timeout="5m"), "commit_timeout='5m' is no dur"),  # type: ignore[arg-type]
        (lambda: CommitLoadOperator(task_id="t", load_name=None), "load_name=None is no text"),
        (lambda: CleanupLoadSensor(task_id="t", load_name="l", quiet_period="1"), "quiet_period='1' is no duration"),  # type: ignore[arg-type]
        (lambda: LoadedSensor(task_id="t", load_name="l", deferrable="yes"), "deferrable='yes' is neither"),
        (lambda: DecideLoadOperator(task_id="t", load_name="l", margin="1"), "margin='1' is no duration"),  # type: ignore[arg-type]
        (
            lambda: PrepareLoadOperator(task_id="t", load_name="l", writer_deadline="1h", **BOTH),  # type: ignore[arg-type]
            "writer_deadline='1h' is no duration",
        ),
        (lambda: SweepLeftoversOperator(task_id="t", abandoned_after=0), "abandoned_after=0 is too short: it would"),
        (lambda: SweepLeftoversOperator(task_id="t", paused_after="15m"), "paused_after='15m' is no duration"),  # type: ignore[arg-type]
        (lambda: SweepLeftoversOperator(task_id="t", sweep_timeout="1"), "sweep_timeout='1' is no duration"),  # type: ignore[arg-type]
        (lambda: SweepLeftoversOperator(task_id="t", prune_after=3600), "prune_after=3600 is less than a day"),
        (lambda: SweepLeftoversOperator(task_id="t", quiet_period=False), "quiet_period=False is no duration"),
        (lambda: SweepLeftoversOperator(task_id="t", fail_on_problems=1), "fail_on_problems=1 is neither"),  # type: ignore[arg-type]
        (lambda: SweepLeftoversOperator(task_id="t", namespaces=[]), r"namespaces=\[\] is no list of one or more"),
        (lambda: SweepLeftoversOperator(task_id="t", namespaces="airflow"), "namespaces='airflow' is a text"),
    ],
)
def test_steps_that_are_wired_by_hand_and_maintenance_are_checked_as_well(make: Callable[[], Any], says: str) -> None:
    with dag(), pytest.raises(ConfigurationError, match=says):
        make()


@pytest.mark.parametrize("minutes", [30, 0.5])
def test_seconds_or_a_timedelta_are_one_duration_everywhere(minutes: float) -> None:
    seconds, delta = minutes * 60, timedelta(minutes=minutes)
    for given in (seconds, int(seconds), delta):
        with dag():
            durations = Transactions(hold_time=given, margin=1, quiet_period=given)
            group = ExactlyOnceLoad("load", transactions=durations, **BOTH)
            hand = (
                CommitLoadOperator(task_id="c", load_name="l", commit_timeout=given).commit_timeout,
                PrepareLoadOperator(task_id="p", load_name="l", writer_deadline=given, **BOTH).writer_deadline,
                SweepLeftoversOperator(task_id="s", abandoned_after=given).abandoned_after,
                SweepLeftoversOperator(task_id="q", quiet_period=given).quiet_period,
                SweepLeftoversOperator(task_id="u", sweep_timeout=given).sweep_timeout,
            )
        assert (group.prepare.hold_time, group.cleanup.quiet_period) == (delta, delta)
        assert group.decide.margin == timedelta(seconds=1)
        assert set(hand) == {delta}


def test_what_is_filled_in_later_passes_where_it_is_templated_and_is_checked_when_it_is_there() -> None:
    @task
    def earlier() -> Any: ...

    with dag():
        later = earlier()
        ExactlyOnceLoad(
            "load",
            job="{{ params.job }}",
            job_args={"day": "{{ ds }}", "more": [later]},
            topics=["{{ params.topic }}"],
            load_name="{{ params.name }}",
            load_key="{{ ds }}",
            item="{{ params.item }}",
            on_committed="{{ params.mode }}",
            namespace="{{ params.namespace }}",
            manifest_dir="{{ params.folder }}",
        )
        mapped = ExactlyOnceLoad("more", sql=later, job_args=later, topics=later, item=later)
        dual = ExactlyOnceLoad("dual", dual_write_sql=later, ledger_conn_id="marts", **BOTH)
        with pytest.raises(ConfigurationError, match="ledger_conn_id is not"):
            ExactlyOnceLoad("nowhere", dual_write_sql=later, **BOTH)
        sweep = SweepLeftoversOperator(task_id="sweep", namespaces=later)  # type: ignore[arg-type]
    assert mapped.prepare.topics is later and dual.decide.dual_write_sql is later and sweep.namespaces is later
    # as rendering would set them
    store: Any = SimpleNamespace(base="/m")
    for argument, value, says in (
        ("topics", "orders", "topics='orders' is a text"),
        ("topics", [], "is no topic"),
        ("job_args", ["2026"], "is no dict"),
        ("job_args", {"day": date(2026, 1, 1)}, "cannot be written as JSON"),
        ("job", "None", "neither a Python file"),
    ):
        rendered = PrepareLoadOperator(task_id="p", load_name="l", **BOTH)
        setattr(rendered, argument, value)
        with pytest.raises(ConfigurationError, match=says):
            rendered._spec(store, 1)
    sweep.namespaces = "airflow"
    with pytest.raises(AirflowFailException, match="namespaces='airflow' is a text"):
        sweep.execute({})
    begin = BeginLoadOperator(task_id="b", load_name="l", load_key="k", item="{{ params.item }}")
    begin.item = 7
    with pytest.raises(AirflowFailException, match="item=7 cannot name a load"):
        begin.pre_execute({"ti": SimpleNamespace(map_index=-1)})


MISPLACED = [
    ("retries", "It is of tasks: default_args={'retries': …} reaches all six of the load, spark_args={'ret"),
    ("pool", "default_args={'pool': …}"),
    ("execution_timeout", "default_args={'execution_timeout': …}"),
    ("conf", "It is prepare's: spark_args={'conf': …}"),
    ("driver_memory", "spark_args={'driver_memory': …}"),
    ("writer_deadline", "spark_args={'writer_deadline': …}"),
    ("commit_timeout", "It is commit's: default_args={'commit_timeout': …}"),
    ("poke_interval", "It is of the sensors cleanup and loaded: default_args={'poke_interval': …}"),
    ("schedule", "It is the DAG's: DAG(…, schedule=…)"),
    ("trigger_rule", "Leave it out"),
    ("soft_fail", "Leave it out"),
    ("conn_id", "Use spark_conn_id"),
    ("application", "Use job"),
    ("min_record", "Did you mean checks=Checks(min_records=…)"),
    ("transaction", "Did you mean transactions"),
    ("tool_tip", "Did you mean tooltip"),
    ("xyzzy", "help(ExactlyOnceLoad)"),
]


@pytest.mark.parametrize(("name", "says"), MISPLACED)
@pytest.mark.parametrize("form", ["class", "partial", "decorator", "override"])
def test_an_argument_of_something_else_says_where_it_belongs(name: str, says: str, form: str) -> None:
    forms: dict[str, Callable[[dict[str, Any]], Any]] = {
        "class": lambda wrong: ExactlyOnceLoad("load", **(BOTH | wrong)),
        "partial": lambda wrong: ExactlyOnceLoad.partial("tables", **wrong),
        "decorator": lambda wrong: exactly_once_load(topics=["t"], **wrong)(a_job),
        "override": lambda wrong: exactly_once_load(topics=["t"])(a_job).override(**wrong),
    }
    with dag(), pytest.raises(ConfigurationError, match=f"has no argument {name!r}") as caught:
        forms[form]({name: 1})
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["retries", "pool", "execution_timeout", "poke_interval", "commit_timeout"])
def test_default_args_are_where_it_belongs_indeed(name: str) -> None:
    value = {"retries": 7, "pool": "p", "commit_timeout": 5, "poke_interval": 5}.get(name, timedelta(seconds=5))
    with dag():
        group = ExactlyOnceLoad("load", default_args={name: value}, **BOTH)
    step = {"poke_interval": group.cleanup}.get(name, group.commit)
    assert getattr(step, name) in (value, timedelta(seconds=5))


def test_the_decorator_without_its_brackets_and_wrong_arguments_of_the_call_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"without arguments above .*@exactly_once_load\(topics="):
        exactly_once_load(a_job)  # type: ignore[call-arg, arg-type]

    @exactly_once_load(topics=["t"])
    def rows(spark: Any, day: Any) -> None: ...

    with dag(), pytest.raises(ConfigurationError, match=r"rows\(\)\['day'\] is datetime.date.*JSON"):
        rows(day=date(2026, 1, 1))


def test_an_item_for_all_mapped_loads_is_refused() -> None:
    with dag(), pytest.raises(ConfigurationError, match=r"item='a': all loads would have that name.*expand_kwargs"):
        ExactlyOnceLoad.partial("tables", job="j.py", item="a")  # type: ignore[call-arg]


STEPS = (
    *(BeginLoadOperator, PrepareLoadOperator, DecideLoadOperator, CommitLoadOperator, CleanupLoadSensor, LoadedSensor),
    *(LoadOperator, PreparingOperator, PollingLoadSensor),
)
#: of the load, beside those of its steps: the other name of prepare's connection, what is prepare's, loaded's outlets,
#: and the operator in prepare's place
OF_THE_LOAD = {"spark_conn_id", "spark_args", "outlets", "submit"}
#: of a step, and no load's: a task's, for default_args or spark_args
OF_A_STEP = {"writer_deadline", "commit_timeout", "poke_interval", "timeout", "wait_in_triggerer", "kwargs"}
FORMS = (signatures.LoadArguments, signatures.PartialArguments, signatures.DecoratorArguments)


def test_type_checkers_know_the_arguments_that_there_are() -> None:
    parameters = [p for step in STEPS for p in inspect.signature(step).parameters.values() if p.name not in OF_A_STEP]
    known: dict[str, Any] = {n: h.__forward_arg__ for form in FORMS for n, h in form.__annotations__.items()}
    known["topics"] = "Sequence[str] | XComArg"  # required by the decorator
    assert {name: known.pop(name) for name in GROUPS} == {name: kind.__name__ for name, kind in GROUPS.items()}
    assert known.keys().isdisjoint(PLACES)
    known |= {field.name: field.type for kind in GROUPS.values() for field in fields(kind)}
    group = set(inspect.signature(TaskGroup).parameters)
    assert {p.name for p in parameters} == known.keys() - OF_THE_LOAD - group
    optional = {"load_name": "str | None"}  # which the load has a default for
    assert {p.name: p.annotation for p in parameters} | optional == {p.name: known[p.name] for p in parameters}
    assert set(signatures.GroupArguments.__annotations__) == group - {"group_id"}
    of_partial = signatures.PartialArguments.__annotations__.keys()
    assert of_partial | {"item"} == signatures.LoadArguments.__annotations__.keys() | {"topics"}
    mappable = set(get_args(signatures.Mappable))
    assert set(signatures.MappedArguments.__annotations__) == mappable
    assert set(signatures.ItemArguments.__annotations__) == mappable


def test_prepare_names_each_argument_that_it_shares_with_collect() -> None:
    """Else no type checker knows it in a call of prepare's: what it hands on by ``**`` may be anything."""
    shared, of_prepare = (inspect.signature(step).parameters for step in (PreparingOperator, PrepareLoadOperator))
    assert len(shared) > 10
    assert {name: str(of_prepare[name]) for name in shared} == {name: str(p) for name, p in shared.items()}


def test_every_argument_is_explained_once() -> None:
    def explained(*kinds: Any) -> list[str]:
        return sorted(name for kind in kinds for name in re.findall(r"^ +:param (\w+):", kind.__doc__ or "", re.M))

    given = {n for form in FORMS for n in form.__annotations__} - signatures.GroupArguments.__annotations__.keys()
    assert explained(ExactlyOnceLoad) == sorted({*given, "arguments"})
    for kind in GROUPS.values():
        assert explained(kind) == sorted(field.name for field in fields(kind))
    assert explained(*STEPS) == sorted(OF_A_STEP - {"kwargs"})


@pytest.mark.parametrize(
    ("literal", "values"),
    [
        (load.ScopeText, {c.value for c in load.TransactionScope}),
        (load.EngineText, {c.value for c in load.Engine}),
        (load.NamingText, {c.value for c in load.TransactionNaming}),
        (load.TwoPhaseCommitText, {c.value for c in load.TwoPhaseCommit}),
        (load.OnCommittedText, {c.value for c in load.OnCommitted}),
        (load.WriterText, {c.value for c in load.WriterName}),
        (formats.FormatText, set(formats.FORMATS)),
        (formats.RegistrationText, set(formats.REGISTRATIONS)),
        (formats.StrategyText, set(formats.STRATEGIES)),
    ],
)
def test_literals_say_what_is_read(literal: Any, values: set[str]) -> None:
    assert set(get_args(literal)) == values


def test_a_value_format_has_the_keys_that_type_checkers_know() -> None:
    known = set(formats.ValueFormatArguments.__annotations__)
    assert known - {"format"} == {f.name for f in fields(formats.ValueFormat)}
