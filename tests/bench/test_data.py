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
from bench.cases import ZSTD
from bench.data import Dataset, dataset
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
    assert made.per_partition is not None
    assert sum(made.per_partition) == 1000
    again = dataset(tmp_path, name, 1000, 2, 4)
    assert again == made


def test_the_same_records_are_there_compressed_and_dictionary_encoded(tmp_path: Path) -> None:
    plain = dataset(tmp_path, "small", 1000, 2, 4)
    packed = dataset(tmp_path, "small", 1000, 2, 4, ZSTD)
    assert packed.java_file == plain.java_file
    assert [pq.read_table(f) for f in packed.parquet_files] == [pq.read_table(f) for f in plain.parquet_files]
    assert how_it_is_stored(plain) == {("UNCOMPRESSED", False)}
    assert how_it_is_stored(packed) == {("ZSTD", True)}
    assert dataset(tmp_path, "small", 1000, 2, 4, ZSTD) == packed


def how_it_is_stored(records: Dataset) -> set[tuple[str, bool]]:
    found = set()
    for file in records.parquet_files:
        group = pq.ParquetFile(file).metadata.row_group(0)
        for number in range(group.num_columns):
            column = group.column(number)
            found.add((column.compression, "RLE_DICTIONARY" in column.encodings))
    return found


def test_other_partitions_are_of_the_same_records(tmp_path: Path) -> None:
    four, sixteen = dataset(tmp_path, "small", 1000, 2, 4), dataset(tmp_path, "small", 1000, 2, 16)
    assert four.folder == sixteen.folder
    assert four.per_partition is not None and sixteen.per_partition is not None
    # murmur2 modulo: each of four is four of sixteen
    assert four.per_partition == tuple(sum(sixteen.per_partition[p::4]) for p in range(4))


def test_without_keys_only_the_sum_is_known(tmp_path: Path) -> None:
    keyed = dataset(tmp_path, "small", 1000, 2, 4)
    keyless = keyed.without_keys()
    assert (keyed.keyed, keyed.wanted) == (True, keyed.per_partition)
    assert (keyless.keyed, keyless.wanted) == (False, 1000)
    values = [value for file in keyless.parquet_files for value in pq.read_table(file)["value"].to_pylist()]
    assert keyless.bytes == sum(map(len, values))
    assert keyless.without_keys() == keyless


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
