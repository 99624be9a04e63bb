"""Where an argument belongs that a load does not take itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any, NoReturn

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator

from airflow_kafka_eos.errors import ConfigurationError, nearest
from airflow_kafka_eos.operators.base import LoadOperator
from airflow_kafka_eos.operators.commit import CommitLoadOperator
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.signatures import GroupArguments, OverridingArguments, PartialArguments

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
#: What a load takes, and hands on to its task group.
_KNOWN = {*PartialArguments.__annotations__, *OverridingArguments.__annotations__}


def refuse_unknown(given: Iterable[str], where: str) -> None:
    """Keyword arguments that neither the load nor its task group has.

    :param where: what was given them.
    :raises ConfigurationError: the first of them, with the place where it belongs.
    """
    for name in given:
        if name not in _KNOWN:
            _refuse(name, _KNOWN, where)


def refuse_unknown_of_spark(given: Mapping[str, Any]) -> None:
    """Keys of ``spark_args`` that prepare does not have, or gets from the load.

    :raises ConfigurationError: the first of them.
    """
    own = {"task_id", "conn_id", "trigger_rule"} | _KNOWN - set(GroupArguments.__annotations__)
    taken = sorted(given.keys() & own)
    if taken:
        raise ConfigurationError(
            f"spark_args has {', '.join(taken)}, which prepare gets from the group",
            remedy="Give it to ExactlyOnceLoad itself; the Spark connection is spark_conn_id",
        )
    known = _spark() | _names(BaseOperator) | _names(LoadOperator)
    for name in given:
        if name not in known:
            near = nearest(name, known - own)
            raise ConfigurationError(
                f"spark_args has {name!r}, which neither SparkSubmitOperator nor a task has",
                remedy=f"Did you mean {near}" if near else "Spark's own settings go into spark_args={'conf': {…}}",
            )


def _refuse(name: str, known: set[str], where: str) -> NoReturn:
    problem = f"{where} has no argument {name!r}"
    value = f"{{{name!r}: …}}"
    if name in _KNOWN_AS:
        remedy = f"Use {_KNOWN_AS[name]}"
    elif name in _OURS:
        remedy = "Leave it out: what the load promises stands on how it sets it"
    elif name in _spark() - _names(BaseOperator):
        remedy = f"It is prepare's: spark_args={value}"
    elif name in _names(BaseOperator):
        remedy = f"It is of tasks: default_args={value} reaches all six of the load, spark_args={value} prepare alone"
    elif name in _names(BaseSensorOperator):
        remedy = f"It is of the sensors cleanup and loaded: default_args={value}"
    elif name in _names(CommitLoadOperator):
        remedy = f"It is commit's: default_args={value}"
    elif name in _names(DAG):
        remedy = f"It is the DAG's: DAG(…, {name}=…)"
    else:
        near = nearest(name, known)
        remedy = f"Did you mean {near}" if near else "Its docstring has all of them: help(ExactlyOnceLoad)"
    raise ConfigurationError(problem, remedy=remedy)


def _spark() -> set[str]:
    return _names(SparkSubmitOperator) | _names(PrepareLoadOperator)


def _names(of: Callable[..., Any]) -> set[str]:
    kinds = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    return {name for name, p in signature(of).parameters.items() if p.kind not in kinds}
