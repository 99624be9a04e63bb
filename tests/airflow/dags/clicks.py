"""Loads that stop at a moment until the test lets them go on: what a test does there, it does to a running task.

A moment is a file in ``$TEST_SWITCHES/<run id>/``: who comes by and finds ``<moment>.hold`` renames it to ``.here`` (so
one process stops there, once) and waits for ``<moment>.go``. The moments: ``before-<task>`` and ``after-<task>`` its
``execute``, ``checking`` inside decide, and ``writing`` inside Spark, with one of its two partitions written.

All but ``at_once`` decide in the task decide alone: so there is something to be done between prepare and it.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from pathlib import Path

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_kafka_eos import Checks, ExactlyOnceLoad, Submit, Transactions

HERE = Path(__file__).parent
SWITCHES = os.environ.get("TEST_SWITCHES", "/nonexistent")
HELD_SECONDS = 240.0
RECORDS = 200


def stop_at(run_id, moment):
    here = Path(SWITCHES, run_id, moment)
    try:
        here.with_suffix(".hold").rename(here.with_suffix(".here"))
    except FileNotFoundError:
        return
    here.with_suffix(".here").write_text(str(os.getpid()))
    until = time.monotonic() + HELD_SECONDS
    while not here.with_suffix(".go").exists() and time.monotonic() < until:
        time.sleep(0.02)


def before(context):
    stop_at(context["run_id"], f"before-{context['ti'].task_id.rpartition('.')[2]}")


def after(context, result=None):
    stop_at(context["run_id"], f"after-{context['ti'].task_id.rpartition('.')[2]}")


def check(manifest):
    stop_at(manifest.attempt.load.key, "checking")
    switch = Path(SWITCHES, manifest.attempt.load.key)
    if (switch / "skip").exists():
        raise AirflowSkipException("the switch is set")
    if (switch / "fails-once").exists():
        (switch / "fails-once").unlink()
        raise OSError("a service that the check asks is away")
    return "the switch is set" if (switch / "refuse").exists() else None


def load_dag(name, topic="{{ run_id }}", prefix="{{ run_id }}", schedule=None, hooks=True, scope="task", **arguments):
    default_args = {"retries": 4, "retry_delay": timedelta(seconds=1)}
    if hooks:
        default_args |= {"pre_execute": before, "post_execute": after}
    with DAG(
        name,
        schedule=schedule,
        start_date=datetime(2025, 1, 1),
        # no run of the scheduler's own
        end_date=datetime(2025, 12, 31),
        catchup=False,
        default_args=default_args,
    ) as dag:
        ExactlyOnceLoad(
            "load",
            job=f"{HERE}/jobs/held.py",
            job_args={"prefix": prefix, "count": RECORDS, "switches": f"{SWITCHES}/{{{{ run_id }}}}"},
            topics=[topic],
            checks=Checks(check=check),
            transactions=Transactions(scope=scope, quiet_period=timedelta(seconds=2)),
            **{"decide_at_once": False} | arguments,
        )
    return dag


clicks = load_dag("clicks")
# as authors write it
at_once = load_dag("at_once", hooks=False, decide_at_once=True)
# one transaction for all of it
whole = load_dag("whole", scope="load")
# Spark behind an operator of the author's
own_clicks = load_dag(
    "own_clicks",
    submit=Submit(
        BashOperator,
        runs_here=True,
        bash_command="spark-submit --master 'local[2]' {{ kafka_eos.application }} --spec {{ kafka_eos.spec }}",
        env={"PYSPARK_PYTHON": "{{ kafka_eos.python }}"},
        append_env=True,
    ),
)
# a driver that outlives its task (tests/airflow/yarn.py); the triggerer waits for it, or a worker
elsewhere = {"spark_conn_id": "yarn_default", "manifest_dir": f"{SWITCHES}/manifests"}
far = load_dag("far", spark_args={"yarn_track_via_rm_api": True, "wait_in_triggerer": True}, **elsewhere)
far_here = load_dag("far_here", spark_args={"yarn_track_via_rm_api": True}, **elsewhere)
days = load_dag("days", topic="days", prefix="{{ ds }}", schedule="@daily", hooks=False)
again = {"on_committed": "reload", "topic": "days_again"}
days_again = load_dag("days_again", prefix="{{ ds }}", schedule="@daily", hooks=False, **again)
# three who load the very same
racers = [
    load_dag(name, topic="race", prefix="race", load_name="race", load_key="the one")
    for name in ("racer_one", "racer_two")
]
