"""A writer's memory is bounded, whatever it writes: in a process of its own, on a real broker."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kafka_eos.sandbox.kafka import LocalKafka

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]
MOST_MIB = 350  # of a Spark task's Python worker
MIB_MORE = 60  # of one run than of another with the same work: glibc's and Arrow's allocators keep some
_numbers = itertools.count()


def peak(kafka: LocalKafka, partitions: int, codec: str, thousands: int, spread: str) -> list[int]:
    """MiB when the writer was opened, and the most there were."""
    topic = f"memory-{next(_numbers)}"
    kafka.create_topic(topic, partitions=partitions)
    run = subprocess.run(
        [
            sys.executable, "-m", "tests.kafka.memory_probe",
            kafka.bootstrap_servers, topic, str(partitions), codec, str(thousands), spread,
        ],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [int(n) for n in run.stdout.split()]


@pytest.mark.parametrize(
    ("partitions", "codec", "spread"),
    [(4, "none", "even"), (4, "zstd", "even"), (200, "none", "even"), (200, "zstd", "even"), (2, "none", "skewed")],
)
def test_memory_does_not_grow_with_the_number_of_records(
    kafka: LocalKafka, partitions: int, codec: str, spread: str
) -> None:
    opened, few = peak(kafka, partitions, codec, 500, spread)
    _, many = peak(kafka, partitions, codec, 2500, spread)
    print(f"{partitions} partitions, {codec}, {spread}: {opened} MiB opened, {few} then {many} for 0.5 and 2.5 million")
    assert many < MOST_MIB
    assert many < few + MIB_MORE
