"""What executors unpickle of a query, where neither Airflow nor the ledger's libraries are installed."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from pyspark import Accumulator, cloudpickle

from airflow_kafka_eos.micro_batch import MicroBatch, StreamRun
from airflow_kafka_eos.streams.foreach import task_of
from airflow_kafka_eos.streams.messages import Begun, Reports
from airflow_kafka_eos.streams.source import BatchWriter
from tests.spark.conftest import REPOSITORY

_EXECUTOR = """
import base64, pickle, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("airflow", "alembic", "sqlalchemy"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
print(type(pickle.loads(base64.b64decode(sys.stdin.read()))).__name__)
"""


def _writer() -> BatchWriter:
    from pyspark.sql.types import StructType

    batch = MicroBatch("n", "q", str(UUID(int=1)), 0, "o")
    return BatchWriter(Begun(batch, StreamRun("/c", "driver"), 0), None, StructType([]))


@pytest.mark.parametrize(
    "made",
    [_writer, lambda: task_of(_writer(), Accumulator(1, [], Reports()))],
    ids=["writeStream", "foreachBatch"],
)
def test_an_executor_unpickles_what_it_gets_without_a_ledger(made: Callable[[], Any]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _EXECUTOR],
        input=base64.b64encode(cloudpickle.dumps(made())).decode(),  # type: ignore[no-untyped-call]
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() in ("BatchWriter", "function")
