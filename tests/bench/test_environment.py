"""What the figures depend on is said beside them."""

from __future__ import annotations

from pathlib import Path

from bench.cases import ZSTD, Knobs
from bench.environment import environment


def test_the_cluster_the_partitions_and_the_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "kafka-clients-3.9.2.jar").touch()
    usual = environment(Knobs(), tmp_path, tmp_path, "4.4.0")
    other = environment(Knobs(brokers=3, partitions=16, parquet=ZSTD, steady=4), tmp_path, tmp_path, "4.4.0")
    assert "one node, heap 2 GB" in usual["broker"]
    assert "3 nodes, heap 1 GB each, replication factor 3, min.insync.replicas 2" in other["broker"]
    assert (usual["topics"].partition(";")[0], other["topics"].partition(";")[0]) == ("4 partitions", "16 partitions")
    assert "Parquet files neither encoded nor compressed" in usual["Spark"]
    assert "Parquet files dictionary-encoded, compressed by zstd" in other["Spark"]
    assert "its own sink with kafka-clients 3.9.2" in usual["Spark"]
    assert "of each 4 steady writes" in other["rounds"]
