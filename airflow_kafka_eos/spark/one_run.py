"""Scope ``load``: nothing is run twice, or the attempt fails (rule: scope-load-writes-once). No I/O."""

from __future__ import annotations

from collections.abc import Callable

from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.spark.options import WriteOptions

#: What Spark must be told before it starts, so that it fails at once where it would run something again. A Python task
#: cannot see that its stage runs a second time (Spark 4.2 shows it to JVM tasks only), so that must never happen.
ONE_RUN = {
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.ignoreDecommissionFetchFailure": "false",
    "spark.speculation": "false",
}


def refuse_second_runs(setting: Callable[[str], str | None]) -> None:
    """Refuse Spark settings with which a stage may run twice, or a task twice at once.

    :param setting: the value of a Spark setting, None when it is not set.
    :raises ConfigurationError: naming the setting.
    """
    for key in ("spark.stage.maxConsecutiveAttempts", "spark.stage.ignoreDecommissionFetchFailure"):
        if (value := setting(key)) != ONE_RUN[key]:
            raise ConfigurationError(
                f"{key} is {value or 'not set'}: Spark could run the writing stage a second time, and scope load "
                "cannot take back what the first has written",
                remedy=f"Start Spark with {key}={ONE_RUN[key]} (the packaged application does so by itself), or use "
                "scope task",
            )
    if str(setting("spark.speculation") or "false").lower() != "false":
        raise ConfigurationError(
            "spark.speculation is on: Spark would run a task twice at once, and scope load cannot tell apart what they "
            "write",
            remedy="Start Spark with spark.speculation=false, or use scope task",
        )


def refuse_second_attempt(attempt_number: int, options: WriteOptions, task: int) -> None:
    """A task that runs a second time writes nothing, and its attempt is lost (rule: scope-load-writes-once).

    :param attempt_number: Spark's, from 0 on.
    :raises UndecidableError: it is above 0.
    """
    if options.scope is TransactionScope.LOAD and attempt_number > 0:
        raise UndecidableError(
            f"Spark has run task {task} before (this is attempt number {attempt_number}): in scope load a failed task "
            "fails the attempt, for what it has written cannot be taken back by itself",
            remedy="Clear prepare: it opens a new attempt. Look for what made the task fail the first time; "
            "where tasks must be able to fail and be retried, use scope task",
            load=str(options.attempt.load),
            attempt=options.attempt.attempt,
        )
