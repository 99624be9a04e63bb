"""The records: the same for Spark and Java, and where Kafka's Java client would put them."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_kafka_eos.kafka.producer.arrow.partitioner import murmur2
from bench.data import dataset
from bench.murmur2 import partitions_of


@pytest.mark.parametrize("name", ["small", "large"])
def test_java_and_spark_get_the_same_records_in_order(tmp_path: Path, name: str) -> None:
    made = dataset(tmp_path, name, 1000, 2, 4)
    assert len(made.parquet_files) == 2
    tables = [pq.read_table(file) for file in made.parquet_files]
    pairs = [pair for t in tables for pair in zip(t["key"].to_pylist(), t["value"].to_pylist(), strict=True)]
    raw = made.java_file.read_bytes()
    (count,), at, found = struct.unpack_from(">i", raw), 4, []
    while at < len(raw):
        key, value = struct.unpack_from(">ii", raw, at)
        at += 8
        found.append((raw[at : at + key], raw[at + key : at + key + value]))
        at += key + value
    assert (count, found) == (1000, pairs)
    assert len(set(found)) == 1000
    assert made.bytes == sum(len(key) + len(value) for key, value in found)
    average = made.bytes / 1000
    assert 130 < average < 150 if name == "small" else 950 < average < 1070
    assert sum(made.per_partition) == 1000
    again = dataset(tmp_path, name, 1000, 2, 4)
    assert again == made


def test_partitions_are_those_of_the_java_client() -> None:
    # the package's own partitioner was written apart from it, and is tested against Java's
    keys = pa.array([b"c-%010d" % n for n in range(500)], pa.binary())
    ours = (murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(5)
    assert partitions_of(pa.chunked_array([keys]), 5).tolist() == ours.tolist()
    assert len(Counter(ours.tolist())) == 5


def test_keys_that_it_cannot_place_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        partitions_of(pa.chunked_array([[b"12345"]]), 4)
    with pytest.raises(ValueError, match="different lengths"):
        partitions_of(pa.chunked_array([[b"1234", b"12345678"]]), 4)
