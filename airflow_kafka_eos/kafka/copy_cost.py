"""What it takes to copy a lost transaction, known before it is begun: its beginning is read, and timed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_kafka_eos.errors import InDoubtError
from airflow_kafka_eos.kafka.copying import read_batches
from airflow_kafka_eos.kafka.digest import PartitionDigest
from airflow_kafka_eos.kafka.stored_batches import feed
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.transaction import PreparedTransaction

#: What has no more is copied in a moment: not worth a measurement.
SMALL_BYTES = 8 << 20
SMALL_RECORDS = 50_000
_SAMPLE_S = 1.0
#: The best of such stretches counts: what stalls now and then is not taken for slow.
_STRETCH_S = 0.05


@dataclass(frozen=True)
class Cost:
    """
    :param bytes: of keys, values and headers, before compression.
    :param seconds: a copy takes no less, for to read and check the records takes so long by itself; None: a moment.
    """

    records: int
    bytes: int
    seconds: float | None

    def __str__(self) -> str:
        how_long = "" if self.seconds is None else f", about {self.seconds:.3g} s"
        return f"{self.records:,} records, {self.bytes / 1e6:,.1f} MB{how_long}"


def is_small(writes: tuple[PartitionWrites, ...]) -> bool:
    """Whether a copy is a matter of a moment."""
    return sum(w.bytes for w in writes) <= SMALL_BYTES and sum(w.records for w in writes) <= SMALL_RECORDS


def cost_of(
    wire: Wire, lost: PreparedTransaction, writes: tuple[PartitionWrites, ...], topic_ids: Mapping[str, str]
) -> Cost:
    """Measure for a second what a copy does for each record but send it.

    :raises KafkaEosError: no leader answers. Whether all records are there is not said here.
    """
    records = sum(w.records for w in writes)
    rate = 0.0 if is_small(writes) else _rate(wire, lost, max(writes, key=lambda w: w.records), topic_ids)
    return Cost(records, sum(w.bytes for w in writes), records / rate if rate else None)


def _rate(wire: Wire, lost: PreparedTransaction, w: PartitionWrites, topic_ids: Mapping[str, str]) -> float:
    """Records per second, from one partition; 0 where it cannot be told."""
    digest, best, done = PartitionDigest(), 0.0, 0
    began = at = time.monotonic()
    try:
        for batch in read_batches(wire, lost, w, topic_ids[w.topic]):
            feed(batch, digest)
            done += batch.records
            now = time.monotonic()
            if now - at >= _STRETCH_S:
                best, done, at = max(best, done / (now - at)), 0, now
            if now - began >= _SAMPLE_S:
                break
    except InDoubtError:
        pass  # the copy will say so, of all of them
    return best
