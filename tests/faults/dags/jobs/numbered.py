"""Records whose values say who wrote them, as ``tests/faults/facts.py`` has it: load, attempt, key, number, no time."""

from __future__ import annotations

import sys

from airflow_kafka_eos.spark.spec import ApplicationSpec


def load(spark, key, records, key_count, tasks):
    # an author's job has no business with attempts; the campaign's checkers have
    attempt = ApplicationSpec.from_json(sys.argv[sys.argv.index("--spec") + 1]).options.attempt.attempt
    # one key is in one Spark task only: between two tasks there is no order
    of_key = f"concat('k', spark_partition_id(), '-', id % {int(key_count)})"
    value = f"concat('load|{key}|{attempt}|', {of_key}, '|', id, '|0|', repeat('.', 60))"
    return spark.range(0, int(records), 1, int(tasks)).selectExpr(f"{of_key} AS key", f"{value} AS value")
