"""A job that writes a part, and then meets what jobs meet; its message has the broker's password in it."""

from __future__ import annotations

import json
import os


def load(spark):
    settings = json.loads(os.environ["AIRFLOW_KAFKA_EOS_KAFKA"])
    raise ValueError(f"no table of orders for {settings['sasl.password']}, and {spark.version[:1]} is no table")
