"""Scope ``load``: which Spark task owns which Kafka partition, and the check that it gets no other's. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.errors import RecordError
from airflow_kafka_eos.kafka.arrow.placing import UnplacedRow, place
from airflow_kafka_eos.kafka.refusals import unknown_partition, unknown_topic
from airflow_kafka_eos.kafka.writer import TopicLimits, WriteTarget
from airflow_kafka_eos.naming import IdRole
from airflow_kafka_eos.spark.options import WriteOptions

FUNCTION = "airflow_kafka_eos.spark.scope.own_partitions"


@dataclass(frozen=True)
class Owners:
    """Which Spark task owns which Kafka partition: they are counted through, topic by topic, and dealt out.

    :param partitions: by topic.
    :param tasks: how many Spark tasks write.
    """

    partitions: Mapping[str, int]
    tasks: int

    @classmethod
    def of(cls, partitions: Mapping[str, int], tasks: int | None) -> Owners:
        """As many tasks as there are Kafka partitions, unless told otherwise."""
        every = sum(partitions.values())
        return cls(dict(partitions), min(tasks or every, every))

    def owners(self, codes: Any, partitions: Any) -> Any:
        """The owning task of each row.

        :param codes: per row the topic, as its place among the sorted topics.
        """
        counts = [self.partitions[name] for name in sorted(self.partitions)]
        firsts = np.cumsum([0, *counts[:-1]])
        return ((firsts[codes] + partitions) % self.tasks).astype(np.int32)


def placed(
    batch: pa.RecordBatch, owners: Owners, options: WriteOptions, partitioner: str, start: int = 0
) -> tuple[Any, Any]:
    """Topic (its place among the sorted topics) and partition of each row.

    :raises RecordError: a row's topic or partition is not there.
    """
    try:
        return place(batch, owners.partitions, options.default_topic, partitioner, start=start)
    except UnplacedRow as e:
        ref = options.attempt
        target = WriteTarget(
            ref.common_id(IdRole.LOAD),
            {name: TopicLimits(count, 0) for name, count in owners.partitions.items()},
            options.default_topic,
            options.transaction_timeout_ms,
            options.deadline_ms,
        )
        if e.partition is None:
            raise unknown_topic(e.topic, target) from None
        raise unknown_partition(e.topic or "", e.partition, target) from None


def refuse_foreign_rows(batch: pa.RecordBatch, task: int, owners: Owners, options: WriteOptions) -> None:
    """Refuse a batch that another task's rows are in.

    :param task: the Spark partition.
    :raises RecordError: a row has no partition, or one that this task does not own.
    """
    remedy = f"Arrange the DataFrame with {FUNCTION}(df, options) and write what it returns, as it is"
    index = batch.schema.get_field_index("partition")
    if index < 0 or batch.column(index).null_count:
        raise RecordError("in scope load each row must name its partition, some do not", remedy=remedy)
    # one look at each different pair of topic and partition, not at each row: they are few in a task
    column = batch.column(index)
    topics = batch.column("topic") if "topic" in batch.schema.names else pa.nulls(len(batch), pa.string())
    if topics.null_count == len(topics):
        pairs = [pa.nulls(len(found := pc.unique(column)), pa.string()), found]
    else:
        table = pa.table([topics, column], names=["topic", "partition"]).group_by(["topic", "partition"])
        pairs = table.aggregate([]).combine_chunks().to_batches()[0].columns
    few = pa.RecordBatch.from_arrays(pairs, names=["topic", "partition"])
    codes, partitions = placed(few, owners, options, "murmur2_random")
    foreign = np.flatnonzero(owners.owners(codes, partitions) != task)
    if len(foreign):
        row = foreign[0]
        topic = sorted(owners.partitions)[codes[row]]
        raise RecordError(
            f"Spark task {task} of {owners.tasks} has a row of partition {partitions[row]} of topic {topic!r}, which "
            "is another task's: in scope load each Kafka partition is written by one",
            remedy=remedy,
        )
