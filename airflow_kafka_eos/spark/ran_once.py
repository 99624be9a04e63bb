"""Did each task of a write run exactly once? Only then is no writer left that nobody knows of.

Rule: verified-end-before-reuse.

Attempt numbers alone do not tell: they begin at 0 again when a stage is run again, and a Python task cannot see the
stage's own attempt number (Spark 4.2). So the driver asks Spark itself when the write is over. What it cannot tell
counts as no.
"""

from __future__ import annotations

import time
from typing import Any

_SUCCEEDED, _FAILED = "SUCCEEDED", "FAILED"
_WAIT_S = 20.0
_PAUSE_S = 0.02


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
