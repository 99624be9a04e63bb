"""Whether Spark runs something twice: forbidden beforehand in scope ``load``, and asked of Spark behind any write.

Rules: scope-load-writes-once, verified-end-before-reuse.

Attempt numbers alone do not tell: they begin at 0 again when a stage is run again, and a Python task cannot see the
stage's own attempt number (Spark 4.2 shows it to JVM tasks only). What Spark cannot tell counts as "yes, twice".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.spark.options import WriteOptions

#: What Spark must be told before it starts, so that it fails at once where it would run something again.
ONE_RUN = {
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.ignoreDecommissionFetchFailure": "false",
    "spark.speculation": "false",
}
_OF_STAGES = ("spark.stage.maxConsecutiveAttempts", "spark.stage.ignoreDecommissionFetchFailure")
_SPECULATION = "spark.speculation"
_SUCCEEDED, _FAILED = "SUCCEEDED", "FAILED"
_WAIT_S = 20.0
_PAUSE_S = 0.02


def run_again_by(setting: Callable[[str], str | None]) -> list[str]:
    """Those of Spark's settings by which it may run a stage twice, or a task twice at once. No I/O.

    A task that has failed is another matter: that it runs again shows in its attempt number.

    :param setting: the value of a Spark setting, None when it is not set.
    """
    wrong = [key for key in _OF_STAGES if str(setting(key) or "").lower() != ONE_RUN[key]]
    if str(setting(_SPECULATION) or "false").lower() != ONE_RUN[_SPECULATION]:  # Spark's default
        wrong.append(_SPECULATION)
    return wrong


def check_spark_settings(setting: Callable[[str], str | None]) -> None:
    """Refuse Spark settings with which a stage may run twice, or a task twice at once.

    :param setting: see :func:`run_again_by`.
    :raises ConfigurationError: naming the setting.
    """
    for key in run_again_by(setting):
        if key == _SPECULATION:
            raise ConfigurationError(
                "spark.speculation is on: Spark would run a task twice at once, and scope load cannot tell apart what "
                "they write",
                remedy="Start Spark with spark.speculation=false, or use scope task",
            )
        raise ConfigurationError(
            f"{key} is {setting(key) or 'not set'}: Spark could run the writing stage a second time, and scope load "
            "cannot take back what the first has written",
            remedy=f"Start Spark with {key}={ONE_RUN[key]} (the packaged application does so by itself), or use "
            "scope task",
        )


def check_first_attempt(attempt_number: int, options: WriteOptions, task: int) -> None:
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
            **options.attempt.ids,
        )


def ran_once(context: Any, group: str, *, wait_s: float = _WAIT_S) -> bool:
    """Whether no stage of a job group was run again, and no task twice at once.

    With that, a task attempt with number 0 that Spark has accepted was its task's only one.

    :param context: the SparkContext.
    :param group: the job group that the write ran in, and nothing else.
    :param wait_s: seconds for Spark's own book-keeping, which lags behind its jobs.
    """
    if str(context.getConf().get("spark.speculation", "false")).lower() != "false":
        return False
    tracker = context.statusTracker()
    give_up = time.monotonic() + wait_s
    while True:
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
        # events come in order: once the end of a job is known, all that went before is
        if jobs and all(job is not None and job.status == _SUCCEEDED for job in jobs):
            break
        if any(job is not None and job.status == _FAILED for job in jobs) or time.monotonic() > give_up:
            return False
        time.sleep(_PAUSE_S)
    seen = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    # no info: forgotten by now (spark.ui.retainedStages)
    return bool(seen) and all(
        stage is not None and stage.currentAttemptId == 0 and stage.numFailedTasks == 0 for stage in seen
    )
