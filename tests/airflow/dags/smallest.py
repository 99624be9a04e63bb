"""README's smallest DAG as it is printed, but for its job and start date; and one whose key is finer than its job."""

from __future__ import annotations

import os
import re
from datetime import date, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad

HERE = Path(__file__).parent
TODAY = date.fromisoformat(os.environ.get("TEST_TODAY", "2026-01-01"))
README = HERE.parents[2] / "README.md"
JOB = f"{HERE}/jobs/days.py"


def printed():
    (block,) = re.findall(r"## The smallest DAG\n\n```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    first = TODAY - timedelta(days=3)
    for old, new in (
        ("/opt/jobs/orders.py", JOB),
        ("datetime(2026, 1, 1)", f"datetime({first.year}, {first.month}, {first.day})"),
    ):
        assert block.count(old) == 1, old
        block = block.replace(old, new)
    # so that the test begins it
    return block.replace('DAG("orders",', 'DAG("orders", is_paused_upon_creation=True,')


exec(compile(printed(), __file__, "exec"))

with DAG("finer", schedule=None, start_date=datetime(2025, 1, 1)):
    ExactlyOnceLoad("load", job=JOB, job_args={"day": "{{ ds }}"}, topics=["finer"])
