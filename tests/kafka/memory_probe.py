"""Writes records into one transaction, and prints the most memory that its process ever had, in MiB.

Run by test_arrow_memory.py:
    python -m tests.kafka.memory_probe <bootstrap> <topic> <partitions> <codec> <thousands> <spread>
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from airflow_kafka_eos.kafka.producer.writers import make_writer
from tests.kafka.writers_support import an_id, settings_of, target_of

ROWS = 10_000  # as Spark hands them over


def rows(number: int, spread: str) -> pa.RecordBatch:
    """Some 140 bytes each, half of it random. Skewed: nearly all go to partition 0."""
    random = np.random.default_rng(number)
    data = random.integers(0, 256, ROWS * 60, np.uint8).reshape(ROWS, 60)
    texts = np.full((ROWS, 120), ord("x"), np.uint8)
    texts[:, :60] = data
    values = pa.BinaryArray.from_buffers(
        pa.binary(),
        ROWS,
        [None, pa.py_buffer(np.arange(ROWS + 1, dtype=np.int32) * 120), pa.py_buffer(texts.reshape(-1))],
    )
    keys = pa.array(random.integers(0, 10**9, ROWS)).cast(pa.string())
    columns = {"key": keys, "value": values}
    if spread == "skewed":
        columns["partition"] = pa.array((np.arange(ROWS) == 0).astype(np.int32))
    return pa.RecordBatch.from_pydict(columns)


def peak_mib() -> float:
    """Not ru_maxrss: that begins with the parent's."""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024


def main() -> None:
    bootstrap, topic, partitions, codec, thousands, spread = sys.argv[1:]
    settings = settings_of(bootstrap, compression_type=codec)
    writer = make_writer("arrow", settings, target_of(an_id(topic), {topic: int(partitions)}))
    writer.open()
    before = peak_mib()
    for number in range(int(thousands) * 1000 // ROWS):
        writer.write(rows(number, spread))
    _, writes = writer.prepare()
    assert sum(w.records for w in writes) == int(thousands) * 1000
    writer.abort()
    writer.close()
    print(f"{before:.0f} {peak_mib():.0f}")


main()
