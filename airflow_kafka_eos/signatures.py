"""The keyword arguments of a load by name and type; and where an argument belongs that a load does not take.

Type checkers and editors know them by these classes where Python itself sees only ``**``. What each means is in the
docstring of :class:`~airflow_kafka_eos.task_group.ExactlyOnceLoad`, or of the group that it stands in
(:mod:`airflow_kafka_eos.argument_groups`); its default is in the signature of the step that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator

from airflow_kafka_eos.argument_groups import PLACES
from airflow_kafka_eos.arguments import shown
from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.load import Engine, EngineText, OnCommittedText
from airflow_kafka_eos.operators.base import LoadOperator
from airflow_kafka_eos.operators.commit import CommitLoadOperator
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.spark.formats.settings import FormatText, ValueFormatArguments

if TYPE_CHECKING:
    from airflow.sdk import TaskGroup, XComArg

    from airflow_kafka_eos.argument_groups import Checks, Transactions
    from airflow_kafka_eos.cursor import Cursor
    from airflow_kafka_eos.operators.own_submitter import Submit


class GroupArguments(TypedDict, total=False):
    """Those of Airflow's TaskGroup that a load hands on."""

    group_display_name: str
    prefix_group_id: bool
    parent_group: TaskGroup | None
    dag: DAG
    default_args: dict[str, Any]
    tooltip: str
    doc_md: str | None
    ui_color: str
    ui_fgcolor: str
    add_suffix_on_collision: bool


class SharedArguments(GroupArguments, total=False):
    """Those that mapped loads share, and that a decorated function takes."""

    load_name: str | None
    load_key: str
    on_committed: OnCommittedText | str
    namespace: str | None
    kafka_conn_id: str | None
    ledger_conn_id: str | None
    spark_conn_id: str
    transactions: Transactions
    checks: Checks
    dual_write_sql: Any
    dual_write: Callable[[Any, Any], object] | None
    decide_at_once: bool
    value_format: FormatText | ValueFormatArguments
    registry_conn_id: str | None
    manifest_dir: str | None
    deferrable: bool | None
    outlets: Sequence[Any]
    asset_events: bool
    asset_server: str | None
    spark_args: Mapping[str, Any] | None
    cursor: Cursor | None
    engine: EngineText
    max_batch_bytes: int
    submit: Submit | None


class JobArguments(SharedArguments, total=False):
    """And what is loaded, which a decorated function says by itself."""

    job: str | XComArg | None
    sql: str | XComArg | None
    job_args: Mapping[str, Any] | XComArg | None


class LoadArguments(JobArguments, total=False):
    """Those of ``ExactlyOnceLoad()``, beside ``group_id`` and ``topics``."""

    item: Any


class PartialArguments(JobArguments, total=False):
    """Those of ``ExactlyOnceLoad.partial()``."""

    topics: Sequence[str] | XComArg


class OverridingArguments(SharedArguments, total=False):
    """Those of a decorated function's ``override()``."""

    group_id: str
    topics: Sequence[str] | XComArg
    item: Any


class DecoratorArguments(SharedArguments, total=False):
    """Those of ``@exactly_once_load``."""

    group_id: str
    item: Any
    topics: Required[Sequence[str] | XComArg]


#: What may differ from load to load.
Mappable = Literal["item", "topic", "topics", "job", "sql", "job_args"]


class MappedArguments(TypedDict, total=False):
    """Those of ``expand()``, which takes one of them: a list, or what an earlier task returns."""

    item: Sequence[Any] | XComArg
    topic: Sequence[str] | XComArg
    topics: Sequence[Sequence[str]] | XComArg
    job: Sequence[str] | XComArg
    sql: Sequence[str] | XComArg
    job_args: Sequence[Mapping[str, Any]] | XComArg


class ItemArguments(TypedDict, total=False):
    """Those of one item of ``expand_kwargs()``."""

    item: Any
    topic: str
    topics: Sequence[str]
    job: str
    sql: str
    job_args: Mapping[str, Any]


#: What the load sets itself, for all that is promised stands on it.
_OURS = ("trigger_rule", "soft_fail", "never_fail", "silent_fail", "mode", "durable", "task_id", "do_xcom_push")
#: What people know under another name.
_KNOWN_AS = {
    "topic": "topics=['orders']",
    "conn_id": "spark_conn_id",
    "application": "job, which names your file; the application is this package's own",
    "application_args": "job_args",
    "name": "load_name; Spark's own name of the application is spark_args={'name': …}",
    "task_group_id": "group_id",
}
#: What a load takes, and hands on to its steps and its task group.
_KNOWN = {*PartialArguments.__annotations__, *OverridingArguments.__annotations__}


def arguments_of(step: type[LoadOperator], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a step gets of its load's arguments: each that it has, at the step's own default where it is not given.

    Defaults are named too, for else ``default_args`` would reach them.

    :param given: the groups' fields one by one.
    """
    known = _KNOWN | PLACES.keys()
    return {name: given.get(name, default) for name, default in _defaults(step).items() if name in known}


def check_names(given: Iterable[str], where: str) -> None:
    """Whether the load, or its task group, has these keyword arguments.

    :param where: what was given them.
    :raises ConfigurationError: the first that they do not have, with the place where it belongs.
    """
    for name in given:
        if name not in _KNOWN:
            raise ConfigurationError(f"{where} has no argument {name!r}", remedy=_where_it_belongs(name))


def check_spark_args(given: Mapping[str, Any], of: str = "") -> None:
    """Whether prepare has these arguments, and does not get them from the load.

    :param of: the group that has another task in prepare's place, and not the load's arguments.
    :raises ConfigurationError: the first of them.
    """
    own = {"task_id", "conn_id", "trigger_rule", *PLACES} | _KNOWN - set(GroupArguments.__annotations__)
    taken = sorted(given.keys() & own)
    if taken and of:
        raise ConfigurationError(
            f"spark_args has {', '.join(taken)}, which {of} has not",
            remedy=f"Leave it out; what it has, its docstring says: help({of})",
        )
    if taken:
        places = [PLACES[name] for name in taken if name in PLACES]
        raise ConfigurationError(
            f"spark_args has {', '.join(taken)}, which prepare gets from the group",
            remedy="Give it to ExactlyOnceLoad itself"
            + (f": {', '.join(places)}" if places else "; the Spark connection is spark_conn_id"),
        )
    known = _spark() | _defaults(BaseOperator).keys() | _defaults(LoadOperator).keys()
    for name in given:
        if name not in known:
            near = nearest(name, known - own)
            raise ConfigurationError(
                f"spark_args has {name!r}, which neither SparkSubmitOperator nor a task has",
                remedy=f"Did you mean {near}" if near else "Spark's own settings go into spark_args={'conf': {…}}",
            )


def check_no_spark(given: Mapping[str, Any]) -> None:
    """Whether a load that runs no spark-submit of its own is given what is its.

    :raises ConfigurationError: naming the argument.
    """
    submit = given.get("submit")
    if submit is not None:
        _check_submit(given)
    if given.get("engine") != Engine.ARROW:
        if "max_batch_bytes" in given:
            raise ConfigurationError(
                f"max_batch_bytes={given['max_batch_bytes']!r} bounds what engine='arrow' reads, and Spark runs this",
                remedy="Leave it out, or use engine='arrow'",
            )
        return
    of_tasks = _defaults(BaseOperator).keys() | _defaults(LoadOperator).keys()
    of_spark = [f"spark_args={{{name!r}: …}}" for name in given.get("spark_args") or {} if name not in of_tasks]
    if "spark_conn_id" in given:
        of_spark.insert(0, f"spark_conn_id={given['spark_conn_id']!r}")
    if of_spark:
        raise ConfigurationError(
            f"{of_spark[0]} is of Spark, and engine='arrow' starts none",
            remedy="Leave it out, or use engine='spark'",
        )


def _check_submit(given: Mapping[str, Any]) -> None:
    from airflow_kafka_eos.operators.own_submitter import Submit

    submit = given["submit"]
    if not isinstance(submit, Submit):
        raise ConfigurationError(
            f"submit={shown(submit)} is of type {type(submit).__name__}, not Submit",
            remedy="Write submit=Submit(YourOperator, …), after `from airflow_kafka_eos import Submit`",
        )
    if given.get("engine", Engine.SPARK) != Engine.SPARK:
        raise ConfigurationError(
            f"engine={given['engine']!r} runs in Airflow's worker, and submit= names an operator that runs Spark",
            remedy="Leave one of them out",
        )
    for name in ("spark_conn_id", "spark_args"):
        if given.get(name):
            raise ConfigurationError(
                f"{name}={shown(given[name])} is of spark-submit by this package, and submit= names another operator",
                remedy=f"Give it to that operator: Submit(…, argument=…), and leave {name} out",
            )


def _where_it_belongs(name: str) -> str:
    value = f"{{{name!r}: …}}"
    if name in PLACES:
        return f"It is {PLACES[name]}"
    if name in _KNOWN_AS:
        return f"Use {_KNOWN_AS[name]}"
    if name in _OURS:
        return "Leave it out: what the load promises stands on how it sets it"
    of_tasks = _defaults(BaseOperator)
    reach = f"default_args={value} reaches all six of the load, spark_args={value} prepare alone"
    for names, remedy in (
        (_spark() - of_tasks.keys(), f"It is prepare's: spark_args={value}"),
        (of_tasks, f"It is of tasks: {reach}"),
        (_defaults(BaseSensorOperator), f"It is of the sensors cleanup and loaded: default_args={value}"),
        (_defaults(CommitLoadOperator), f"It is commit's: default_args={value}"),
        (_defaults(DAG), f"It is the DAG's: DAG(…, {name}=…)"),
    ):
        if name in names:
            return remedy
    near = nearest(name, _KNOWN | PLACES.keys())
    return f"Did you mean {PLACES.get(near, near)}" if near else "Its docstring has all of them: help(ExactlyOnceLoad)"


def _spark() -> set[str]:
    return {*_defaults(SparkSubmitOperator), *_defaults(PrepareLoadOperator)}


@cache
def _defaults(of: Callable[..., Any]) -> Mapping[str, Any]:
    """The parameters of its own signature, not those that it hands on by ``**``, with their defaults."""
    kinds = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    return {name: p.default for name, p in signature(of).parameters.items() if p.kind not in kinds}
