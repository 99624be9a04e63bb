"""What importing ExactlyOnceLoad adds to the time that a DAG file takes to be read.

    python -m bench.parse [rounds]

Each import is a fresh interpreter, the two kinds in turn, so that a busy moment of the machine hits both: one that
imports what any Spark DAG has (Airflow's SDK, the Spark provider's operator, triggers), and one that imports our
classes behind it. What is shown is the time that the import statement of ours takes itself, and the whole of both.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

AIRFLOWS_OWN = """
import json, sys, time
from airflow.sdk import DAG, BaseHook, BaseOperator, BaseSensorOperator, TaskGroup, task_group
from airflow.providers.common.compat.sdk import conf
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.triggers.base import BaseTrigger
before, started = set(sys.modules), time.perf_counter()
"""
OURS = """
from airflow_kafka_eos import ExactlyOnceLoad, exactly_once_load
import airflow_kafka_eos.mapped
"""
SAY = """
print(json.dumps({"s": time.perf_counter() - started, "modules": len(set(sys.modules) - before)}))
"""


@dataclass(frozen=True)
class Parse:
    """Seconds: of the whole interpreter without and with our import, and of the import statement alone."""

    without: list[float]
    with_ours: list[float]
    statement: list[float]
    modules: int

    @property
    def added_ms(self) -> float:
        """The median of the import statement, in ms."""
        return statistics.median(self.statement) * 1000


def _once(code: str) -> tuple[float, dict[str, float]]:
    started = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return time.perf_counter() - started, json.loads(run.stdout.splitlines()[-1])


def measure(rounds: int) -> Parse:
    """Interleaved; one round more comes first and is not counted: it compiles what was never imported."""
    found = Parse([], [], [], 0)
    for number in range(rounds + 1):
        order = (AIRFLOWS_OWN, AIRFLOWS_OWN + OURS)
        for code in order if number % 2 else order[::-1]:
            whole, said = _once(code + SAY)
            if number and code == AIRFLOWS_OWN:
                found.without.append(whole)
            elif number:
                found.with_ours.append(whole)
                found.statement.append(said["s"])
                found = Parse(found.without, found.with_ours, found.statement, int(said["modules"]))
    return found


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    found = measure(rounds)
    low, high = min(found.statement) * 1000, max(found.statement) * 1000
    print(f"importing ExactlyOnceLoad behind Airflow's own: {found.added_ms:.0f} ms ({low:.0f} to {high:.0f}), "
          f"{found.modules} modules; median of {rounds}")  # fmt: skip
    print(f"the whole interpreter: {statistics.median(found.without):.2f} s without, "
          f"{statistics.median(found.with_ours):.2f} s with")  # fmt: skip


if __name__ == "__main__":
    main()
