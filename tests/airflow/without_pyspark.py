"""Run by a Python that has no pyspark: parse a DAG, begin, and prepare with the Spark that SPARK_HOME names."""

from __future__ import annotations

import importlib.util
import json
import sys
from datetime import datetime


def main(topic: str) -> None:
    assert importlib.util.find_spec("pyspark") is None
    from airflow.sdk import DAG

    from airflow_kafka_eos import ExactlyOnceLoad
    from tests.airflow.steps import run, shares_its_broker

    with DAG("orders", schedule=None, start_date=datetime(2026, 1, 1)):
        ExactlyOnceLoad("load", sql="SELECT 1", topics=[topic])
    shares_its_broker()
    run("begin", "own spark")
    made = run("prepare", "own spark", topics=[topic], sql="select cast(id as string) value from range(5)")
    assert "pyspark" not in sys.modules
    print("prepared", json.dumps(made))


main(sys.argv[1])
