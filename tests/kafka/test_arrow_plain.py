"""The ways between numpy and Arrow that spare each Spark task the import of pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.kafka.producer.arrow import binary, encoding
from airflow_kafka_eos.kafka.producer.arrow.binary import single


@given(
    st.lists(st.integers(0, 100)),
    st.sampled_from([np.uint8, np.int32, np.int64]),
    st.integers(1, 3),
)
def test_numbers(values: list[int], kind: type, step: int) -> None:
    every: npt.NDArray[Any] = np.array(values, kind)[::step]
    made = binary.numbers(every)
    made.validate(full=True)
    assert made.to_pylist() == every.tolist()
    assert made.type == pa.from_numpy_dtype(np.dtype(kind))


@pytest.mark.parametrize("kind", [">i4", "?", "f8"])
def test_what_arrow_would_read_as_something_else_is_refused(kind: str) -> None:
    with pytest.raises(TypeError):
        binary.numbers(np.zeros(3, kind))


@given(st.lists(st.booleans()), st.integers(0, 20), st.integers(0, 40))
def test_truths(values: list[bool], start: int, count: int) -> None:
    column = pa.array(values, pa.bool_()).slice(start, count)
    assert binary.truths(column).tolist() == values[start : start + count]


@given(st.binary(max_size=300))
def test_single(content: bytes) -> None:
    made = single(content)
    made.validate(full=True)
    assert made.to_pylist() == [content]


def test_nothing_is_an_empty_text() -> None:
    assert encoding._NOTHING.as_py() == b""


# what a Spark task does with a plain batch, with all that has to do with brokers left out
TASK = """
import sys
import types

class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise AssertionError("pandas is imported")

sys.meta_path.insert(0, NoPandas())
import numpy as np
import pyarrow as pa
import airflow_kafka_eos.spark.datasource
import airflow_kafka_eos.kafka.producer.arrow.writer
from airflow_kafka_eos.kafka.producer.arrow.batcher import Batcher
from airflow_kafka_eos.kafka.producer.arrow.binary import from_parts, single
from airflow_kafka_eos.kafka.producer.arrow.columns import read
from airflow_kafka_eos.kafka.records.kernel import kernel
from airflow_kafka_eos.kafka.records.compression import compressor
from airflow_kafka_eos.kafka.producer.arrow.partitioner import place
from airflow_kafka_eos.kafka.producer.interface import Tally
from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition

codec, nulls = sys.argv[1], sys.argv[2] == "nulls"
by = kernel() if sys.argv[3] == "kernel" else None
numbers = np.arange(101, dtype=np.int32)
keys = from_parts(np.arange(100, dtype=np.uint8), numbers)
if nulls:
    there = pa.py_buffer(np.full(13, 0b10110110, np.uint8))
    keys = pa.Array.from_buffers(pa.binary(), 100, [there, *keys.buffers()[1:]])
batch = pa.RecordBatch.from_arrays([keys, from_parts(np.zeros(100, np.uint8), numbers)], ["key", "value"])
batcher = Batcher(PreparedTxnState(1, 0), {"t": 10**6}, 500, compressor(codec, None), Tally(), lambda: 5, by)
columns = read(batch, types.SimpleNamespace(default_topic="t"), 5)
topics, partitions = place(batch, {"t": 4}, "t", "murmur2_random")
sealed = list(batcher.add(columns, topics + partitions, [TopicPartition("t", n) for n in range(4)]))
sealed += batcher.finish()
pa.RecordBatch.from_arrays([single(b"report")], ["report"])
print(sum(one.records for one in sealed), "pandas" in sys.modules)
"""


@pytest.mark.parametrize("by", ["kernel", "numpy"])
@pytest.mark.parametrize("nulls", ["nulls", "whole"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_task_imports_no_pandas(codec: str, nulls: str, by: str) -> None:
    task = [sys.executable, "-c", TASK, codec, nulls, by]
    run = subprocess.run(task, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.strip() == "100 False", run.stderr
