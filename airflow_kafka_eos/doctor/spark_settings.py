"""Spark settings that decide what a load can bear. No I/O, and no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_kafka_eos.doctor.finding import Finding, Judgement
from airflow_kafka_eos.load import TransactionScope

_SPARK = "Spark settings"


def check(conf: Mapping[str, str], scope: TransactionScope) -> Iterator[Finding]:
    """Settings that a Spark connection, or ``spark_args``, brings along.

    In scope ``load`` the packaged application sets what is right by itself; what is set by hand wins over it.

    :param conf: by name, such as ``spark.speculation``.
    """
    yield _speculation(conf, scope)
    yield _task_failures(conf, scope)
    yield _stage_attempts(conf, scope)
    yield _decommission(conf, scope)


def _seen(id: str, key: str, conf: Mapping[str, str], scope: TransactionScope) -> Judgement:
    return Judgement(id, _SPARK, f"{key} {'is ' + conf[key] if key in conf else 'is not set'}, scope {scope.value}")


def _speculation(conf: Mapping[str, str], scope: TransactionScope) -> Finding:
    key = "spark.speculation"
    found = _seen("spark-speculation", key, conf, scope)
    if scope is TransactionScope.TASK:
        return found.ok("Each task attempt has a transaction of its own")
    if conf.get(key, "false").strip().lower() == "false":
        return found.ok("No task is run twice at once")
    return found.error(
        "Spark would run a task twice at once: prepare refuses that", f"--conf {key}=false, or scope=task"
    )


def _task_failures(conf: Mapping[str, str], scope: TransactionScope) -> Finding:
    key = "spark.task.maxFailures"
    found = _seen("spark-task-failures", key, conf, scope)
    value = conf.get(key)
    if scope is TransactionScope.LOAD and value not in (None, "1"):
        return found.warning(
            "A task that failed is run again only to find that it may not write: the attempt fails later",
            f"Remove {key}, or --conf {key}=1",
        )
    if scope is TransactionScope.TASK and value == "1":
        return found.warning("One lost executor fails the load, which scope task need not", f"Remove {key}")
    once = scope is TransactionScope.LOAD
    return found.ok("A failed task fails the attempt at once" if once else "A failed task is run again")


def _stage_attempts(conf: Mapping[str, str], scope: TransactionScope) -> Finding:
    key = "spark.stage.maxConsecutiveAttempts"
    found = _seen("spark-stage-attempts", key, conf, scope)
    if scope is TransactionScope.LOAD and conf.get(key, "1") != "1":
        return found.error(
            "Spark could run the writing stage twice: prepare refuses that", f"--conf {key}=1, or scope=task"
        )
    return found.ok("As it must be")


def _decommission(conf: Mapping[str, str], scope: TransactionScope) -> Finding:
    key = "spark.stage.ignoreDecommissionFetchFailure"
    found = _seen("spark-decommission", key, conf, scope)
    if scope is TransactionScope.LOAD and conf.get(key, "false").strip().lower() != "false":
        return found.error(
            "Spark could run the writing stage twice when a host is taken out of service: prepare refuses that",
            f"--conf {key}=false, or scope=task",
        )
    return found.ok("As it must be")
