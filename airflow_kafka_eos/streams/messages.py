"""What a batch's begin tells its tasks, and what they tell its end: by pickle, between processes.

Executors read it too, whose hosts have nothing of the ledger (docs/adr/0031).
"""

from __future__ import annotations

from dataclasses import dataclass

try:
    from pyspark.sql.datasource import WriterCommitMessage
except ImportError:  # Spark 3.5
    WriterCommitMessage = object  # type: ignore[misc, assignment]

from pyspark.accumulators import AccumulatorParam

from airflow_kafka_eos.micro_batch import MicroBatch, StreamRun
from airflow_kafka_eos.spark.attempt_writer import PartReport
from airflow_kafka_eos.spark.options import Checked, WriteOptions


@dataclass(frozen=True)
class Begun:
    """A batch as the driver has begun it; what its tasks and its end are told.

    :param number: of its attempt.
    :param committed: records that it was committed with before, where nothing is written; None where it is, or where a
        person has said that the topics have it.
    :param options: of the write; None where nothing is written, as is ``checked``.
    """

    batch: MicroBatch
    run: StreamRun
    number: int
    committed: int | None = None
    options: WriteOptions | None = None
    checked: Checked | None = None


@dataclass
class Message(WriterCommitMessage):
    """What a task attempt reports.

    :param number: the ledger's, of the attempt.
    :param report: None where nothing was written.
    :param ran_once: neither Spark's settings nor what the task met allow for another run of it.
    :param begun: of the first Spark partition's task only: it is the same in all.
    """

    number: int
    rows: int
    report: PartReport | None
    ran_once: bool
    begun: Begun | None


class Reports(AccumulatorParam[list[PartReport]]):
    """What accepted tasks of ``foreachBatch`` report, beside their results."""

    def zero(self, value: list[PartReport]) -> list[PartReport]:
        return []

    def addInPlace(self, value1: list[PartReport], value2: list[PartReport]) -> list[PartReport]:
        value1.extend(value2)
        return value1
