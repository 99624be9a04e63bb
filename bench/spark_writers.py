"""What Spark's contestants do with a DataFrame of key and value, both binary. Functions that run inside tasks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row

from airflow_kafka_eos.kafka.producer.arrow.binary import numbers
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.write import write

Settings = Mapping[str, str]
ANSWER_SECONDS = 60
BATCH = 10_000


def floor(frame: DataFrame, given: Settings) -> None:
    """Spark hands its Arrow batches to Python, which counts them: what no writer in Python can go below."""
    frame.mapInArrow(count, "rows long").collect()


def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Looks at nothing but the batches' lengths."""
    # pa.array would import pandas, which ours does not
    yield pa.RecordBatch.from_arrays([numbers(np.array([sum(batch.num_rows for batch in batches)]))], ["rows"])


def kafka_eos(frame: DataFrame, given: Settings) -> None:
    """Ours: prepared when it returns; whoever measures commits."""
    if "columns" in given:
        frame = frame.select(*given["columns"].split(","))
    options = {k.removeprefix("option."): v for k, v in given.items() if k.startswith(("option.", "kafka."))}
    if "repartition" in given:
        frame = frame.repartition(int(given["repartition"]))
    if options.get("transaction.scope") == "load":
        from airflow_kafka_eos.spark.scope import own_partitions

        frame = own_partitions(frame, options)
    write(frame, WriteOptions.parse(options))


def foreach_partition(frame: DataFrame, given: Settings) -> None:
    """What people write today: a transactional producer per partition, row by row."""
    frame.foreachPartition(partial(write_rows, topic=given["topic"], settings=_kafka(given)))


def write_rows(rows: Iterable[Row], topic: str, settings: Settings) -> None:
    """The rows of one Spark partition, in a transaction of their own."""
    producer = _begun(settings)
    for row in rows:
        while True:
            try:
                producer.produce(topic, key=row.key, value=row.value)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.commit_transaction(ANSWER_SECONDS)


def produce_batch(frame: DataFrame, given: Settings) -> None:
    """The better form: Arrow batches, and confluent-kafka's ``produce_batch``, whose loop is in C."""
    mapped = partial(write_batches, topic=given["topic"], settings=_kafka(given))
    frame.mapInArrow(mapped, "none int").collect()


def write_batches(batches: Iterable[pa.RecordBatch], topic: str, settings: Settings) -> Iterator[pa.RecordBatch]:
    """The batches of one Spark partition, in a transaction of their own. Yields a batch without rows."""
    producer = _begun(settings)
    for batch in batches:
        pairs = zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
        messages = [{"key": key, "value": value} for key, value in pairs]
        while messages:
            producer.produce_batch(topic, messages)
            # in the order in which they were handed over: librdkafka's queue is full from some row on
            messages = [_again(m) for m in messages if "_error" in m]
            producer.poll(0.01 if messages else 0)
    producer.commit_transaction(ANSWER_SECONDS)
    yield pa.record_batch([pa.array([], pa.int32())], ["none"])


def spark_sink(frame: DataFrame, given: Settings) -> None:
    """What Spark has for it: each task hands its rows to one Java producer, without a transaction."""
    settings = {k: v for k, v in given.items() if k.startswith("kafka.")}
    frame.write.format("kafka").options(topic=given["topic"], **settings).mode("append").save()


def _begun(settings: Settings) -> Any:
    from confluent_kafka import Producer

    producer = Producer({**settings, "transactional.id": f"bench-{uuid.uuid4()}"})
    producer.init_transactions(ANSWER_SECONDS)
    producer.begin_transaction()
    return producer


def _again(message: dict[str, Any]) -> dict[str, Any]:
    error = message.pop("_error")
    if error.name() != "_QUEUE_FULL":
        raise RuntimeError(f"produce_batch: {error}")
    return message


def _kafka(given: Settings) -> dict[str, str]:
    return {k.removeprefix("kafka."): v for k, v in given.items() if k.startswith("kafka.")}


WRITERS: dict[str, Callable[[DataFrame, Settings], None]] = {
    "floor": floor,
    "kafka_eos": kafka_eos,
    "foreach": foreach_partition,
    "produce-batch": produce_batch,
    "spark-sink": spark_sink,
}
